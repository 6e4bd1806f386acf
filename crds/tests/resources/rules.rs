//! Checks the CEL rules in process, with valid and invalid objects.

use kube_cel::Validator;
use millrace_crds::definitions;
use serde_json::Value;

use crate::cases::cases;
use crate::schemas::all;

#[test]
fn every_rule_is_kept_or_refused_with_its_message() {
    let definitions = definitions().map(|definition| serde_json::to_value(definition).unwrap());
    for case in cases() {
        let of_kind = |definition: &&Value| definition["spec"]["names"]["kind"] == case.after["kind"];
        let schema = &definitions.iter().find(of_kind).unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let result = Validator::new().validate(schema, &case.after, case.before.as_ref());
        match (result, case.expected_error) {
            (Ok(()), None) => {}
            (Err(errors), Some(expected_error)) if errors.to_string().contains(expected_error) => {}
            (result, expected_error) => panic!("{}: {result:?} instead of {expected_error:?}", case.name),
        }
    }
}

/// A rule that no case violates is not tested.
#[test]
fn every_rule_has_a_case() {
    let cases = cases();
    let is_tested =
        |message: &str| cases.iter().filter_map(|case| case.expected_error).any(|part| message.contains(part));
    for (path, schema) in all() {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            let message = rule["message"].as_str().unwrap_or_default();
            assert!(is_tested(message), "no case breaks this rule of {path}: {message}");
        }
    }
}
