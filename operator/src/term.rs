//! The term of a leader, and a client that writes only within it.
//!
//! * A renewal of the lease extends the term from the moment the renewal was *sent*, by less than the lease's duration.
//! * After the term, the leader's client rejects every request that is not read-only, and aborts such requests that are
//!   in flight. Therefore every write of a leader ends before another operator can take the lease, even if the leader
//!   was suspended or busy in between.
//! * Reads are allowed at any time.

use std::time::Duration;

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Error of a write after the term. The write was not made, or its result is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this operator is no longer the leader; write rejected")]
pub struct NotLeading;

/// The term of one leadership. Clones share it.
#[derive(Clone, Debug)]
pub struct LeaderTerm(watch::Sender<Instant>);

impl LeaderTerm {
    /// Begins a term whose first renewal was sent at `sent`; it lasts for `length` from the newest renewal.
    pub fn begin(sent: Instant, length: Duration) -> Self {
        Self(watch::Sender::new(sent + length))
    }

    /// Extends the term by a renewal that was sent at `sent`. Has no effect after the term's end.
    pub fn renewed(&self, sent: Instant, length: Duration) {
        self.0.send_if_modified(|ends| {
            let has_ended = Instant::now() >= *ends;
            if !has_ended {
                *ends = (*ends).max(sent + length);
            }
            !has_ended
        });
    }

    pub fn end_now(&self) {
        self.0.send_modify(|ends| *ends = (*ends).min(Instant::now()));
    }

    /// Returns the end of the term, as of the newest renewal.
    pub fn ends(&self) -> Instant {
        *self.0.borrow()
    }

    /// Returns whether the term has ended.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.ends()
    }

    /// Returns a client that writes nothing after the term.
    pub fn client(&self, client: &Client) -> Client {
        let (client, term) = (client.clone(), self.clone());
        let namespace = client.default_namespace().to_owned();
        let service = tower::service_fn(move |request| send(client.clone(), term.clone(), request));
        Client::new(service, namespace)
    }
}

async fn send(client: Client, term: LeaderTerm, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
    if [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method()) {
        return client.send(request).await;
    }
    let rejection = || kube::Error::Service(Box::new(NotLeading));
    if term.is_over() {
        return Err(rejection());
    }
    // An extension during the request is ignored: the request is aborted at the old end, and the next try may succeed.
    match timeout_at(term.ends(), client.send(request)).await {
        Ok(response) => response,
        Err(_) => Err(rejection()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use kube::api::DeleteParams;

    use super::*;

    const LENGTH: Duration = Duration::from_secs(10);

    /// Returns a client whose API server takes `delay` for each answer, and the number of requests that it received.
    fn server(delay: Duration) -> (Client, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            async move {
                tokio::time::sleep(delay).await;
                let pod = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}"#;
                Ok::<_, kube::Error>(Response::new(Body::from(pod.as_bytes().to_vec())))
            }
        });
        (Client::new(service, "default"), count)
    }

    fn is_refused<T>(answer: Result<T, kube::Error>) -> bool {
        matches!(answer, Err(kube::Error::Service(error)) if error.is::<NotLeading>())
    }

    #[tokio::test(start_paused = true)]
    async fn no_writes_after_the_term() {
        let (client, requests) = server(Duration::from_secs(1));
        let term = LeaderTerm::begin(Instant::now(), LENGTH);
        let pods: Api<Pod> = Api::default_namespaced(term.client(&client));
        pods.delete("a", &DeleteParams::default()).await.unwrap();
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(is_refused(pods.delete("a", &DeleteParams::default()).await), "the term has ended");
        assert_eq!(requests.load(Ordering::Relaxed), 1, "the second never reached the API server");
        pods.get("a").await.unwrap();
        term.renewed(Instant::now(), LENGTH);
        assert!(term.is_over(), "what is over does not begin again");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_cancelled_when_the_term_ends() {
        let (client, _) = server(Duration::from_secs(60));
        let began = Instant::now();
        let term = LeaderTerm::begin(began, LENGTH);
        let pods: Api<Pod> = Api::default_namespaced(term.client(&client));
        assert!(is_refused(pods.delete("a", &DeleteParams::default()).await));
        assert_eq!(began.elapsed(), LENGTH);
    }

    #[tokio::test(start_paused = true)]
    async fn released_term_ends_at_once() {
        let (client, requests) = server(Duration::ZERO);
        let term = LeaderTerm::begin(Instant::now(), LENGTH);
        let pods: Api<Pod> = Api::default_namespaced(term.client(&client));
        term.end_now();
        assert!(is_refused(pods.delete("a", &DeleteParams::default()).await));
        assert_eq!(requests.load(Ordering::Relaxed), 0);
    }
}
