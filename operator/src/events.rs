//! Events, as `kubectl describe` shows them below an object.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event as Published, EventType, Recorder};
use millrace_crds::decide::Event;

use crate::error::said;

/// What the API takes of a note, in characters, with something to spare.
const LONGEST: usize = 1000;

/// Publishes `event` of `object`. That it can't be is logged: nothing depends on it.
pub async fn publish(recorder: &Recorder, object: &ObjectReference, event: &Event) {
    let published = Published {
        type_: if event.warning { EventType::Warning } else { EventType::Normal },
        reason: event.reason.clone(),
        note: Some(event.message.chars().take(LONGEST).collect()),
        action: "Reconcile".to_owned(),
        secondary: None,
    };
    if let Err(error) = recorder.publish(&published, object).await {
        let name = object.name.as_deref().unwrap_or_default();
        log::warn!("an event of {name} could not be published: {}", said(&error));
    }
}
