//! Copies Kubernetes events of jobs into the database, because a cluster deletes them after an hour.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::events::v1::Event as KubernetesEvent;
use kube::Client;
use kube::runtime::reflector::{ObjectRef, Store as View};
use kube::runtime::watcher::{self, Event};
use millrace_cluster::watch::watch_selected;
use millrace_crds::TrainJob;
use millrace_protocol::error_chain;
use millrace_store::{Error, NewEvent, Store};

use super::loops::Loops;
use super::mirror::JobMirror;
use super::namespaces::Namespaces;

/// Interval of retries while the database does not respond.
const DATABASE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Copies events about jobs into `store`; never returns. `loops` records its progress.
pub async fn copy(
    client: Client,
    store: Store,
    jobs: View<TrainJob>,
    mirror: Arc<JobMirror<Namespaces>>,
    loops: Arc<Loops>,
) {
    let of_jobs = watcher::Config::default().fields("regarding.kind=TrainJob");
    let mut events = watch_selected::<KubernetesEvent>(&client, of_jobs);
    while let Some(event) = events.next().await {
        let (Event::Apply(event_object) | Event::InitApply(event_object)) = event else { continue };
        let Some((uid, event)) = read(&event_object) else { continue };
        let job =
            ObjectRef::new(event_object.regarding.as_ref().and_then(|job| job.name.as_deref()).unwrap_or_default())
                .within(event_object.regarding.as_ref().and_then(|job| job.namespace.as_deref()).unwrap_or_default());
        let working = loops.events.begin();
        loop {
            // An error counts as progress, too: a loop that waits for the database is not stuck.
            working.record_progress();
            match store.insert_event_if_new(&uid, &event).await {
                Ok(_) => break,
                Err(Error::JobNotFound(_)) => {
                    // The watch of events may be ahead of that of jobs.
                    let Some(job) = jobs.get(&job).filter(|job| job.metadata.uid.as_ref() == Some(&uid)) else { break };
                    if mirror.upsert(&job).await.is_err() {
                        tokio::time::sleep(DATABASE_RETRY_INTERVAL).await;
                    }
                }
                Err(error) => {
                    tracing::warn!("can't record an event of a job, retrying: {}", error_chain(&error));
                    tokio::time::sleep(DATABASE_RETRY_INTERVAL).await;
                }
            }
        }
    }
}

/// Returns the UID of the job and the event.
fn read(event_object: &KubernetesEvent) -> Option<(String, NewEvent)> {
    let uid = event_object.regarding.as_ref()?.uid.clone()?;
    let at = event_object.event_time.as_ref().map(|time| time.0);
    let at = at.or_else(|| event_object.deprecated_first_timestamp.as_ref().map(|time| time.0))?;
    let event = NewEvent {
        at_ms: at.as_millisecond(),
        warning: event_object.type_.as_deref() == Some("Warning"),
        reason: event_object.reason.clone().unwrap_or_default(),
        message: event_object.note.clone().unwrap_or_default(),
    };
    Some((uid, event))
}
