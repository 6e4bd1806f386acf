//! Compares `docs/reference/custom-resources.md` with the definitions.

use std::path::Path;

use millrace_crds::{ConditionType, JobState};
use serde_json::Value;

const REFERENCE: &str = "docs/reference/custom-resources.md";

fn reference() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(REFERENCE);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names of the fields of spec and status.
fn fields(definition: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(definition);
    let document: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let schema = &document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let names = |part: &str| schema[part]["properties"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    [names("spec"), names("status")].concat()
}

#[test]
fn reference_names_every_field_of_job_and_appliance() {
    let text = reference();
    for definition in ["trainjobs.millrace.dev.yaml", "appliances.millrace.dev.yaml"] {
        let fields = fields(definition);
        assert!(fields.len() > 15, "{fields:?}");
        let is_named =
            |field: &String| [format!("`{field}`"), format!("`{field}.")].iter().any(|pattern| text.contains(pattern));
        let missing: Vec<_> = fields.iter().filter(|field| !is_named(field)).collect();
        assert!(missing.is_empty(), "{REFERENCE} lacks {missing:?} of {definition}");
    }
}

#[test]
fn reference_lists_every_state_and_condition() {
    let text = reference();
    let states = JobState::ALL.map(JobState::as_str);
    let conditions = ConditionType::ALL.map(ConditionType::as_str);
    for name in states.iter().chain(&conditions) {
        assert!(text.contains(&format!("`{name}`")), "{REFERENCE} lacks {name}");
    }
}
