//! Publishes events, which `kubectl describe` shows with an object.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event as Published, EventType, Recorder};
use millrace_cluster::client::api_message;
use millrace_lifecycle::JobEvent;

/// Maximum characters of a note, a little less than the API accepts.
const MAX_NOTE_CHARS: usize = 1000;

/// Publishes `event` of `object`. A failure is only logged: nothing depends on events.
pub async fn publish(recorder: &Recorder, object: &ObjectReference, event: &JobEvent) {
    let published = Published {
        type_: if event.warning { EventType::Warning } else { EventType::Normal },
        reason: event.reason.clone(),
        note: Some(event.message.chars().take(MAX_NOTE_CHARS).collect()),
        action: action(event),
        secondary: None,
    };
    if let Err(error) = recorder.publish(&published, object).await {
        let name = object.name.as_deref().unwrap_or_default();
        tracing::warn!("can't publish an event of {name}: {}", api_message(&error));
    }
}

/// Returns the action of an event. Events of one type, reason, action and object are aggregated to one, which keeps the
/// first note; therefore different attempts and roles have different actions.
fn action(event: &JobEvent) -> String {
    let role = event.role.as_deref().map_or_else(String::new, |role| format!("/{role}"));
    event.attempt.map_or_else(|| "Reconcile".to_owned(), |attempt| format!("Attempt{attempt}{role}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_different_attempts_or_roles_are_never_folded() {
        let of = |attempt, role: Option<&str>| {
            action(&JobEvent { attempt, role: role.map(str::to_owned), ..JobEvent::default() })
        };
        let all = [
            of(None, None),
            of(Some(1), None),
            of(Some(1), Some("cs2")),
            of(Some(2), Some("cs2")),
            of(Some(2), Some("memoryx")),
        ];
        let once: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(once.len(), all.len(), "{all:?}");
    }
}
