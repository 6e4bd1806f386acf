//! Journal entries and events as clients see them.

use millrace_store::{EventRecord, JournalRecord};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::rfc3339;

/// Returns the JSON of a journal entry for clients: number, time and attempt, and the fields of its body.
pub fn entry_json(entry: &JournalRecord) -> Value {
    let mut view = Map::new();
    view.insert("number".to_owned(), entry.number.into());
    view.insert("time".to_owned(), rfc3339(entry.at_ms).into());
    view.insert("attempt".to_owned(), entry.attempt.into());
    if let Ok(Value::Object(body)) = serde_json::from_str(&entry.body) {
        view.extend(body.into_iter().filter(|(key, _)| key != "unix_ms"));
    }
    Value::Object(view)
}

/// An event of a job.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct EventView {
    /// Number of the event; later events have higher numbers.
    number: u64,
    /// Time in the format of RFC 3339.
    time: String,
    /// Severity.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["Normal", "Warning"]))]
    kind: &'static str,
    /// Reason in one word.
    reason: String,
    /// Message, a sentence.
    message: String,
}

pub fn event_json(event: &EventRecord) -> Value {
    let content = &event.event;
    json!(EventView {
        number: event.number,
        time: rfc3339(content.at_ms),
        kind: if content.warning { "Warning" } else { "Normal" },
        reason: content.reason.clone(),
        message: content.message.clone(),
    })
}
