//! The current request: its id and its client, for log lines.

use std::sync::{Arc, OnceLock};

tokio::task_local! {
    static CURRENT: Arc<RequestContext>;
}

struct RequestContext {
    id: String,
    principal: OnceLock<String>,
}

/// Runs `work` as the request `id`; returns its result, and the name of the client if it was authenticated.
pub async fn with_request<T>(id: &str, work: impl Future<Output = T>) -> (T, Option<String>) {
    let request = Arc::new(RequestContext { id: id.to_owned(), principal: OnceLock::new() });
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

/// Returns the id of the current request, if there is one.
pub fn current_request_id() -> Option<String> {
    CURRENT.try_with(|request| request.id.clone()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn request_contexts_are_independent() {
        let ask = async |name: &'static str| {
            set_principal(name);
            tokio::task::yield_now().await;
            current_request_id()
        };
        let (one, two) = tokio::join!(with_request("1", ask("ann")), with_request("2", ask("bob")));
        assert_eq!(one, (Some("1".to_owned()), Some("ann".to_owned())));
        assert_eq!(two, (Some("2".to_owned()), Some("bob".to_owned())));
        set_principal("nobody");
        assert_eq!(current_request_id(), None);
    }

    #[tokio::test]
    async fn mutation_completes_after_client_disconnect() {
        let (begun, done) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
        let (begin, end) = (begun.clone(), done.clone());
        let work = with_request("3", async move {
            let work = async move {
                begin.notify_one();
                tokio::task::yield_now().await;
                assert_eq!(current_request_id().as_deref(), Some("3"));
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
