//! Tests launch documents of other versions: those of release 0.1.0 can be read, and can be written for its agents.

mod first;

use millrace_protocol::launch::{DocumentError, FIRST_VERSION, Launch, VERSION};
use serde_json::{Value, json};

const GOLDEN: &str = include_str!("../../../../tests/golden/0.1.0/launch.json");

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_document_of_the_first_release_reads_and_goes_back_as_it_was() {
    let launch = Launch::from_json(GOLDEN).unwrap();
    assert_eq!((launch.version, launch.attempt, launch.wanted.systems), (FIRST_VERSION, Some(3), 2));
    assert_eq!(value(&launch.to_json_for(FIRST_VERSION).unwrap()), value(GOLDEN));
}

#[test]
fn agents_of_the_first_release_read_what_is_written_for_them_and_nothing_else() {
    let launch = Launch::from_json(GOLDEN).unwrap();
    let text = launch.to_json_for(FIRST_VERSION).unwrap();
    let read: first::Launch = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), value(GOLDEN), "every value arrives");
    // Agents of 0.1.0 reject the document in this version because it names its version: it must be written for them.
    let refused = serde_json::from_str::<first::Launch>(&launch.to_json().unwrap()).err().unwrap();
    assert!(refused.to_string().contains("unknown field"), "{refused}");
}

#[test]
fn unknown_fields_are_passed_over_and_later_versions_refused_with_a_remedy() {
    let launch = Launch::from_json(GOLDEN).unwrap();
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
    assert_eq!(Launch::from_json(&document.to_string()).unwrap(), Launch { version: VERSION, ..launch.clone() });

    document["version"] = json!(VERSION + 1);
    let refused = Launch::from_json(&document.to_string()).unwrap_err().to_string();
    assert!(
        refused.contains(&format!("version {}", VERSION + 1)) && refused.contains(&format!("up to {VERSION}")),
        "{refused}"
    );
    assert!(refused.contains("run the release"), "{refused}");
    assert!(matches!(launch.to_json_for(VERSION + 1), Err(DocumentError::NewerVersion { .. })));
}
