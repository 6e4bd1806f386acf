//! The current request: its client, for the log.

use std::sync::{Arc, OnceLock};

tokio::task_local! {
    static CURRENT: Arc<RequestContext>;
}

#[derive(Default)]
struct RequestContext {
    principal: OnceLock<String>,
}

/// Runs `work` as one request; returns its result, and the name of the client if it was authenticated.
pub async fn with_request<T>(work: impl Future<Output = T>) -> (T, Option<String>) {
    let request = Arc::new(RequestContext::default());
    let work = async {
        let result = work.await;
        (result, CURRENT.with(|request| request.principal.get().cloned()))
    };
    CURRENT.scope(request, work).await
}

/// Runs `work` to its end, even if the returned future is dropped: a client that disconnects must not leave half of a
/// change done.
pub async fn run_to_completion<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let task = match CURRENT.try_with(Arc::clone) {
        Ok(request) => tokio::spawn(CURRENT.scope(request, work)),
        Err(_) => tokio::spawn(work),
    };
    match task.await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime is shutting down, and this task with it.
        Err(Err(_)) => std::future::pending().await,
    }
}

/// Records the client of the current request.
pub fn set_principal(principal: &str) {
    // Fails outside of a request, and if the client is recorded already; neither matters.
    let _ = CURRENT.try_with(|request| request.principal.set(principal.to_owned()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn request_contexts_are_independent() {
        let request = async |name: &'static str| {
            set_principal(name);
            tokio::task::yield_now().await;
            name
        };
        let (one, two) = tokio::join!(with_request(request("ann")), with_request(request("bob")));
        assert_eq!(one, ("ann", Some("ann".to_owned())));
        assert_eq!(two, ("bob", Some("bob".to_owned())));
        set_principal("nobody");
        assert_eq!(with_request(async {}).await, ((), None));
    }

    #[tokio::test]
    async fn mutation_completes_after_client_disconnect() {
        let (begun, done) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
        let (begin, end) = (begun.clone(), done.clone());
        let work = with_request(async move {
            let work = async move {
                begin.notify_one();
                tokio::task::yield_now().await;
                assert!(CURRENT.try_with(|_| ()).is_ok(), "the request's context outlives its client");
                end.notify_one();
            };
            run_to_completion(work).await;
        });
        tokio::select! {
            biased;
            () = begun.notified() => {}
            _ = work => {}
        }
        done.notified().await;
    }
}
