//! Tests launch documents of other versions: those of release 0.1.0 can be read, and can be written for its agents.

mod v1;

use millrace_protocol::launch::{DocumentError, LaunchDocument, V1, VERSION};
use serde_json::{Value, json};

const GOLDEN: &str = include_str!("../../../../tests/golden/0.1.0/launch.json");

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn v1_document_round_trips() {
    let launch = LaunchDocument::from_json(GOLDEN).unwrap();
    assert_eq!((launch.version, launch.attempt, launch.agent_counts.systems), (V1, Some(3), 2));
    assert_eq!(value(&launch.to_json_for(V1).unwrap()), value(GOLDEN));
}

#[test]
fn v1_agents_read_only_v1_documents() {
    let launch = LaunchDocument::from_json(GOLDEN).unwrap();
    let text = launch.to_json_for(V1).unwrap();
    let read: v1::Launch = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), value(GOLDEN), "every value arrives");
    // Agents of 0.1.0 reject the document in this version because it names its version: it must be written for them.
    let refused = serde_json::from_str::<v1::Launch>(&launch.to_json().unwrap()).err().unwrap();
    assert!(refused.to_string().contains("unknown field"), "{refused}");
}

#[test]
fn unknown_fields_are_ignored_and_later_versions_rejected() {
    let launch = LaunchDocument::from_json(GOLDEN).unwrap();
    let mut document = value(&launch.to_json().unwrap());
    for object in [
        "",
        "/job",
        "/job/model",
        "/job/run",
        "/job/optimizer/kind",
        "/appliance",
        "/appliance/wafer",
        "/resume",
        "/wanted",
    ] {
        document.pointer_mut(object).unwrap()["of_a_later_version"] = json!({"any": 1});
    }
    assert_eq!(
        LaunchDocument::from_json(&document.to_string()).unwrap(),
        LaunchDocument { version: VERSION, ..launch.clone() }
    );

    document["version"] = json!(VERSION + 1);
    let refused = LaunchDocument::from_json(&document.to_string()).unwrap_err().to_string();
    assert!(
        refused.contains(&format!("version {}", VERSION + 1)) && refused.contains(&format!("up to {VERSION}")),
        "{refused}"
    );
    assert!(refused.contains("run the release"), "{refused}");
    assert!(matches!(launch.to_json_for(VERSION + 1), Err(DocumentError::NewerVersion { .. })));
}
