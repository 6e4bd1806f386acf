//! Tests the definitions on a real API server: `cargo test -p millrace-crds --test resources -- --ignored`, with
//! KUBECONFIG set and kubectl in PATH. No operator is needed, and none may run.

use std::io::Write;
use std::process::{Command, Stdio};

use millrace_crds::{definitions, internal_definitions};
use serde_json::{Value, json};

use crate::cases::{Case, appliance, cases, job};

/// Runs kubectl in `namespace`; returns its output, as an error if it failed.
fn kubectl(namespace: &str, arguments: &[&str], input: &str) -> Result<String, String> {
    let mut child = Command::new("kubectl")
        .args(["--namespace", namespace])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl is in PATH");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(out.into_owned()) } else { Err(err.into_owned()) }
}

/// A namespace of the test, deleted at its end. Its contents are deleted first, because no controller may exist to do
/// that.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Self {
        let name = format!("crds-{name}-{}", std::process::id());
        for definition in definitions().into_iter().chain(internal_definitions()) {
            let definition = serde_json::to_string(&definition).unwrap();
            let apply =
                ["apply", "--server-side", "--force-conflicts", "--field-manager=millrace-crds-test", "-f", "-"];
            kubectl("default", &apply, &definition).unwrap();
        }
        let established =
            ["wait", "--for=condition=Established", "crd/trainjobs.millrace.dev", "crd/appliances.millrace.dev"];
        kubectl("default", &established, "").unwrap();
        kubectl("default", &["create", "namespace", &name], "").unwrap();
        Self(name)
    }

    fn kubectl(&self, arguments: &[&str], input: &Value) -> Result<String, String> {
        kubectl(&self.0, arguments, &input.to_string())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = kubectl(&self.0, &["delete", "trainjobs.millrace.dev", "--all"], "");
        let _ = kubectl("default", &["delete", "namespace", &self.0, "--wait=false"], "");
    }
}

/// Joins many objects in one document, because starting kubectl takes longer than any of its requests.
fn list<'a>(objects: impl IntoIterator<Item = &'a Value>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": objects.into_iter().collect::<Vec<_>>()})
}

#[test]
#[ignore = "needs an API server"]
fn rules_accept_and_reject() {
    const CREATE: &[&str] = &["create", "-f", "-"];
    const REPLACE: &[&str] = &["replace", "-f", "-"];
    const STATUS: &[&str] = &["replace", "--subresource=status", "-f", "-"];
    let namespace = Namespace::new("rules");
    let cases = cases();
    let before = |status: bool| {
        let before = cases.iter().filter_map(|case| case.before.as_ref());
        before.filter(move |object| !status || object.get("status").is_some())
    };
    namespace.kubectl(CREATE, &list(before(false))).unwrap();
    namespace.kubectl(STATUS, &list(before(true))).unwrap();
    let verb_of = |case: &Case| match case.before {
        None => CREATE,
        Some(_) if case.of_status() => STATUS,
        Some(_) => REPLACE,
    };
    for verb in [CREATE, REPLACE, STATUS] {
        let (rejected, accepted): (Vec<&Case>, Vec<&Case>) =
            cases.iter().filter(|case| verb_of(case) == verb).partition(|case| case.expected_error.is_some());
        namespace.kubectl(verb, &list(accepted.iter().map(|case| &case.after))).unwrap();
        let output = namespace.kubectl(verb, &list(rejected.iter().map(|case| &case.after))).unwrap_err();
        for case in rejected {
            let message = output.lines().find(|line| line.contains(&format!("{:?} is invalid", case.name)));
            let expected_error = case.expected_error.unwrap_or_default();
            assert!(
                message.is_some_and(|part| part.contains(expected_error)),
                "{}: no {expected_error:?} in {message:?} of {output}",
                case.name
            );
        }
    }
}

#[test]
#[ignore = "needs an API server"]
fn every_example_is_accepted() {
    let namespace = Namespace::new("examples");
    let examples = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples")).unwrap();
    let paths = examples.map(|entry| entry.unwrap().path());
    let paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect();
    assert!(paths.len() > 5, "{paths:?}");
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let Ok(params) = millrace_params::Params::parse_yaml(&text) else { continue }; // no params document
        let name = path.file_stem().unwrap().to_str().unwrap();
        // The text itself, as a user would paste it.
        let indented: String = text.lines().map(|line| format!("    {line}\n")).collect();
        let head = format!("apiVersion: millrace.dev/v1alpha1\nkind: TrainJob\nmetadata: {{name: {name}}}\n");
        let yaml = format!("{head}spec:\n  numCsx: 2\n  params:\n{indented}");
        kubectl(&namespace.0, &["apply", "-f", "-"], &yaml).expect(name);
        let stored: Value =
            serde_json::from_str(&kubectl(&namespace.0, &["get", "tj", name, "-o", "json"], "").unwrap()).unwrap();
        let job: millrace_crds::TrainJob = serde_json::from_value(stored).unwrap();
        assert_eq!(job.spec.params.read().unwrap(), params, "{name}: what was stored is what was written");
    }
}

#[test]
#[ignore = "needs an API server"]
fn mistakes_are_refused_where_they_are_made() {
    let namespace = Namespace::new("mistakes");
    for (path, value, expected_error) in [
        ("/params/model/hiden_size", json!(1), r#"unknown field "spec.params.model.hiden_size""#),
        ("/num_csx", json!(1), r#"unknown field "spec.num_csx""#),
        ("/numCsx", json!(0), "spec.numCsx in body should be greater than or equal to 1"),
        ("/numCsx", json!("2"), "spec.numCsx in body must be of type integer"),
        ("/numCsx", Value::Null, "spec.numCsx: Required value"),
        ("/params", Value::Null, "spec.params: Required value"),
        ("/params/optimizer/momentum", json!("0.9"), "spec.params.optimizer.momentum in body must be of type number"),
        (
            "/params/model/hidden_size",
            json!(0),
            "spec.params.model.hidden_size in body should be greater than or equal to 1",
        ),
        ("/mode", json!("inference"), r#"supported values: "train", "eval", "train_and_eval", "eval_all""#),
        ("/ttlSecondsAfterFinished", json!(-1), "should be greater than or equal to 0"),
        ("/resources", json!({"cs2": {"limits": {"memory": "much"}}}), "should match"),
        ("/mountDirs", json!([{"path": "../x", "volume": "a"}]), "spec.mountDirs[0].path in body should match"),
        (
            "/volumes",
            json!([{"name": "a", "configMap": {"name": "a"}}, {"name": "a", "configMap": {"name": "b"}}]),
            "Duplicate value",
        ),
    ] {
        let wrong = job("wrong", |job| {
            let (parent, key) = path.rsplit_once('/').unwrap();
            let section = job["spec"].pointer_mut(parent).unwrap().as_object_mut().unwrap();
            section.insert(key.into(), value.clone());
        });
        let output = namespace.kubectl(&["apply", "-f", "-"], &wrong).expect_err(path);
        assert!(output.contains(expected_error), "{path} {value}: {output}");
    }
}

/// Without strict validation, which kubectl requests but other clients may not, the API server drops unknown keys. The
/// reader rejects what the schema leaves open, with its own messages.
#[test]
#[ignore = "needs an API server"]
fn reader_rejects_what_the_schema_allows() {
    let namespace = Namespace::new("reader");
    let odd = job("odd", |job| {
        job["spec"]["params"]["model"]["hiden_size"] = json!(1);
        job["spec"]["params"]["model"]["dropout_rate"] = Value::Null;
        job["spec"]["params"]["optimizer"]["learning_rate"] = json!({"schedular": "Linear"});
    });
    let create = ["create", "--validate=ignore", "-f", "-"];
    namespace.kubectl(&create, &odd).unwrap();
    let stored = namespace.kubectl(&["get", "tj", "odd", "-o", "json"], &Value::Null).unwrap();
    let job: millrace_crds::TrainJob = serde_json::from_str(&stored).unwrap();
    let error = job.spec.params.read().unwrap_err();
    assert_eq!(
        error.report(),
        "optimizer.learning_rate.schedular is not a known key\n  hint: did you mean scheduler?\n"
    );
}

#[test]
#[ignore = "needs an API server"]
fn columns_scale_and_explain() {
    let namespace = Namespace::new("shown");
    let status = json!({
        "conditions": [
            {"type": "Succeeded", "status": "Unknown", "reason": "Training", "message": "", "observedGeneration": 1,
             "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "Finished", "status": "False", "reason": "Active", "message": "", "observedGeneration": 1,
             "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ],
        "progress": {"step": 50, "totalSteps": 1100, "loss": "3.5", "rate": "69.37"},
        "restarts": 1, "numCsx": 2, "displayedCsx": 2, "selector": "a=b", "checkpoint": {"step": 40},
        "lastObservedTime": "2026-01-01T00:00:00Z",
        "queue": {"position": 3}, "attempt": 7, "retry": {"restarts": 1, "nextAttemptTime": "2026-01-01T00:00:00Z"},
    });
    namespace.kubectl(&["create", "-f", "-"], &job("shown", |_| ())).unwrap();
    let with_status = job("shown", |job| job["status"] = status);
    namespace.kubectl(&["replace", "--subresource=status", "-f", "-"], &with_status).unwrap();
    let table = namespace.kubectl(&["get", "trainjobs"], &Value::Null).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "STATE", "STEP", "OF", "LOSS", "RATE", "CSX", "RESTARTS", "AGE"]);
    assert_eq!(rows[1][..8], ["shown", "Training", "50", "1100", "3.5", "69.37", "2", "1"]);
    let wide = namespace.kubectl(&["get", "trainjobs", "-o", "wide"], &Value::Null).unwrap();
    let mut columns = wide.lines().map(|line| line.split_whitespace().skip(9).collect::<Vec<_>>());
    assert_eq!(columns.next().unwrap(), ["QUEUE", "PRIORITY", "ATTEMPT", "NEXT", "CHECKPOINT", "UPDATED", "OBSERVED"]);
    assert_eq!(columns.next().unwrap()[..4], ["3", "7", "2026-01-01T00:00:00Z", "40"], "no priority is blank");
    namespace.kubectl(&["scale", "trainjob/shown", "--replicas=4"], &Value::Null).unwrap();
    let num_csx = namespace.kubectl(&["get", "tj/shown", "-o", "jsonpath={.spec.numCsx}"], &Value::Null).unwrap();
    assert_eq!(num_csx, "4");
    let zero = namespace.kubectl(&["scale", "trainjob/shown", "--replicas=0"], &Value::Null).unwrap_err();
    assert!(zero.contains("greater than or equal to 1"), "{zero}");
    for (field, part) in [
        (
            "trainjob.spec.params.model",
            "hidden_size <integer> Width of the residual stream; of `fc_mnist`, of each layer.",
        ),
        ("trainjob.spec.params.optimizer.learning_rate", "schedules that follow each other"),
        ("trainjob.status.conditions", "Finished becomes true on success and on failure"),
        ("appliance.spec.wafer", "Size of the memory. Default: `40GB`."),
    ] {
        let text = namespace.kubectl(&["explain", field], &Value::Null).unwrap();
        let flowing = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flowing.contains(part), "{field}:\n{text}");
    }
}

/// A local run reads the machine of an Appliance from the same file.
#[test]
#[ignore = "needs an API server"]
fn complete_appliance_is_accepted() {
    let namespace = Namespace::new("appliance");
    let complete = appliance(&namespace.0);
    namespace.kubectl(&["create", "-f", "-"], &complete).unwrap();
    let stored = namespace.kubectl(&["get", "appliance", &namespace.0, "-o", "json"], &Value::Null);
    namespace.kubectl(&["delete", "appliance", &namespace.0], &Value::Null).unwrap();
    let stored: millrace_crds::Appliance = serde_json::from_str(&stored.unwrap()).unwrap();
    assert_eq!(stored.spec, serde_json::from_value(complete["spec"].clone()).unwrap());
    assert_eq!(stored.spec.machine.resolve().unwrap().systems, 8);
}
