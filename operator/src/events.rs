//! Publishes events, which `kubectl describe` shows with an object.
//!
//! * An event follows from a status that is recorded, so it stays true when the leader that recorded it loses its
//!   lease. Therefore one task of the process publishes all events: it outlives leaderships, and its client is not
//!   bound to the leader's term.
//! * Events are published in the order in which they were queued. Temporary failures are retried.
//! * A process that is requested to end publishes the queued events before. One that is killed loses them; conditions
//!   contain the current state in any case.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event as Published, EventType, Recorder, Reporter};
use millrace_cluster::client::api_message;
use millrace_lifecycle::JobEvent;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::error::is_temporary;

/// Maximum characters of a note, a little less than the API accepts.
const MAX_NOTE_CHARS: usize = 1000;
/// Maximum number of events that wait; more are logged and dropped. An event has less than 2 KiB.
const MAX_QUEUED_EVENTS: usize = 4096;
/// Delay between attempts to publish an event.
const PUBLISH_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Bounds the attempts to publish an event, from the moment it is queued: longer than the API server needs to restart.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(120);
/// Bounds the time in which a process that ends publishes what is queued. Kubernetes kills it after 30 s.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

struct QueuedEvent {
    object: ObjectReference,
    event: Published,
    since: Instant,
}

enum Queued {
    Event(Box<QueuedEvent>),
    Flush(oneshot::Sender<()>),
}

/// Queues events for the task that publishes them. Clones share the queue.
#[derive(Clone)]
pub struct EventPublisher(mpsc::Sender<Queued>);

impl EventPublisher {
    /// Starts the task that publishes events with `client`, on the current runtime. It ends with the last clone.
    pub fn start(client: Client, reporter: Reporter) -> Self {
        let (sender, queue) = mpsc::channel(MAX_QUEUED_EVENTS);
        tokio::spawn(publish_queued(Recorder::new(client, reporter), queue));
        Self(sender)
    }

    /// Queues `event` of `object`. A failure is only logged: nothing depends on events.
    pub fn publish(&self, object: ObjectReference, event: &JobEvent) {
        let published = Published {
            type_: if event.warning { EventType::Warning } else { EventType::Normal },
            reason: event.reason.clone(),
            note: Some(event.message.chars().take(MAX_NOTE_CHARS).collect()),
            action: action(event),
            secondary: None,
        };
        let queued = Box::new(QueuedEvent { object, event: published, since: Instant::now() });
        if let Err(error) = self.0.try_send(Queued::Event(queued)) {
            tracing::warn!("can't queue the event {}: {error}", event.reason);
        }
    }

    /// Waits until the events that are queued are published, at most 5 s.
    pub async fn flush(&self) {
        let flushed = timeout(FLUSH_TIMEOUT, async {
            let (sender, done) = oneshot::channel();
            if self.0.send(Queued::Flush(sender)).await.is_ok() {
                // An error means that the task has ended.
                let _ = done.await;
            }
        });
        if flushed.await.is_err() {
            tracing::warn!("not all events were published within {} s", FLUSH_TIMEOUT.as_secs());
        }
    }
}

async fn publish_queued(recorder: Recorder, mut queue: mpsc::Receiver<Queued>) {
    while let Some(next) = queue.recv().await {
        match next {
            Queued::Event(queued) => publish_with_retries(&recorder, &queued).await,
            Queued::Flush(done) => {
                // The caller may have stopped waiting.
                let _ = done.send(());
            }
        }
    }
}

/// Publishes an event, and retries temporary failures for [`PUBLISH_TIMEOUT`].
async fn publish_with_retries(recorder: &Recorder, QueuedEvent { object, event, since }: &QueuedEvent) {
    while let Err(error) = recorder.publish(event, object).await {
        if !is_temporary(&error) || since.elapsed() >= PUBLISH_TIMEOUT {
            let name = object.name.as_deref().unwrap_or_default();
            tracing::warn!("can't publish the event {} of {name}: {}", event.reason, api_message(&error));
            return;
        }
        sleep(PUBLISH_RETRY_INTERVAL).await;
    }
}

/// Returns the action of an event. Events of one type, reason, action and object are aggregated to one, which keeps the
/// first note; therefore different attempts, roles and numbers of systems have different actions.
fn action(event: &JobEvent) -> String {
    let role = event.role.as_deref().map_or_else(String::new, |role| format!("/{role}"));
    let resize = event.num_csx.map_or_else(String::new, |num_csx| format!("/{num_csx}"));
    event.attempt.map_or_else(|| "Reconcile".to_owned(), |attempt| format!("Attempt{attempt}{role}{resize}"))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// Notes of events, in the order in which an API server has received them.
    type Notes = Arc<Mutex<Vec<String>>>;

    /// Returns a client of an API server that answers with each of `failures` once, and accepts all later requests.
    fn server(failures: &[u16]) -> (Client, Notes) {
        let (mut failures, notes) = (VecDeque::from(failures.to_vec()), Notes::default());
        let received = notes.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (failure, received) = (failures.pop_front(), received.clone());
            async move {
                let body = request.into_body().collect_bytes().await?;
                let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
                received.lock().unwrap().push(event["note"].as_str().unwrap().to_owned());
                let status = failure.map(|code| {
                    serde_json::json!({"kind": "Status", "status": "Failure", "code": code, "message": "no"})
                        .to_string()
                });
                let body = status.map_or_else(|| body.to_vec(), String::into_bytes);
                Ok::<_, kube::Error>(Response::builder().status(failure.unwrap_or(201)).body(Body::from(body)).unwrap())
            }
        });
        (Client::new(service, "default"), notes)
    }

    fn publish_two(events: &EventPublisher) {
        for message in ["first", "second"] {
            let event = JobEvent { reason: message.to_owned(), message: message.to_owned(), ..JobEvent::default() };
            events.publish(ObjectReference { name: Some("job".to_owned()), ..ObjectReference::default() }, &event);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_retried_in_order() {
        let (client, notes) = server(&[503, 500]);
        let events = EventPublisher::start(client, Reporter::from("test"));
        publish_two(&events);
        events.flush().await;
        assert_eq!(*notes.lock().unwrap(), ["first", "first", "first", "second"]);
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_event_does_not_delay_the_next() {
        let (client, notes) = server(&[403]);
        let events = EventPublisher::start(client, Reporter::from("test"));
        publish_two(&events);
        events.flush().await;
        assert_eq!(*notes.lock().unwrap(), ["first", "second"]);
    }

    #[tokio::test(start_paused = true)]
    async fn flush_does_not_wait_for_an_unreachable_api_server() {
        let (client, _) = server(&[503; 100]);
        let events = EventPublisher::start(client, Reporter::from("test"));
        publish_two(&events);
        let began = Instant::now();
        events.flush().await;
        assert_eq!(began.elapsed(), FLUSH_TIMEOUT);
    }

    /// A leadership queues an event, and its term and its threads end before the event is published.
    #[test]
    fn events_outlive_the_leadership() {
        let process = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (events, notes) = process.block_on(async {
            let (client, notes) = server(&[]);
            (EventPublisher::start(client, Reporter::from("test")), notes)
        });
        let leadership = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let queued = events.clone();
        leadership.block_on(leadership.spawn(async move { publish_two(&queued) })).unwrap();
        leadership.shutdown_background();
        assert!(notes.lock().unwrap().is_empty(), "the task of the process has not run yet");
        process.block_on(events.flush());
        assert_eq!(*notes.lock().unwrap(), ["first", "second"]);
    }

    #[test]
    fn events_of_different_subjects_are_never_folded() {
        let event_of = |attempt, role: Option<&str>| {
            action(&JobEvent { attempt, role: role.map(str::to_owned), ..JobEvent::default() })
        };
        let all = [
            event_of(None, None),
            event_of(Some(1), None),
            event_of(Some(1), Some("cs2")),
            event_of(Some(2), Some("cs2")),
            event_of(Some(2), Some("memoryx")),
            action(&JobEvent { attempt: Some(2), num_csx: Some(4), ..JobEvent::default() }),
        ];
        let unique: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(unique.len(), all.len(), "{all:?}");
    }
}
