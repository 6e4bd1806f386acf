//! The request that is being answered: what its lines in the log have in common.

use std::sync::{Arc, OnceLock};

tokio::task_local! {
    static CURRENT: Arc<Request>;
}

struct Request {
    id: String,
    who: OnceLock<String>,
}

/// Does `work` for the request `id`: what it came to, and whose request it was, where that was found out.
pub async fn answering<T>(id: &str, work: impl Future<Output = T>) -> (T, Option<String>) {
    let request = Arc::new(Request { id: id.to_owned(), who: OnceLock::new() });
    let work = async {
        let done = work.await;
        (done, CURRENT.with(|request| request.who.get().cloned()))
    };
    CURRENT.scope(request, work).await
}

/// Does `work` to its end, whether or not somebody waits for it: who hangs up in the middle must not leave half of it done.
pub async fn to_its_end<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let task = match CURRENT.try_with(Arc::clone) {
        Ok(request) => tokio::spawn(CURRENT.scope(request, work)),
        Err(_) => tokio::spawn(work),
    };
    match task.await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The program ends, and this with it.
        Err(Err(_)) => std::future::pending().await,
    }
}

/// The request is this one's.
pub fn is_of(who: &str) {
    // Outside of requests nobody asks, and nobody asks twice in one.
    let _ = CURRENT.try_with(|request| request.who.set(who.to_owned()));
}

/// The id of the request, if this is done for one.
pub fn id() -> Option<String> {
    CURRENT.try_with(|request| request.id.clone()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_request_is_its_own() {
        let ask = async |name: &'static str| {
            is_of(name);
            tokio::task::yield_now().await;
            id()
        };
        let (one, two) = tokio::join!(answering("1", ask("ann")), answering("2", ask("bob")));
        assert_eq!(one, (Some("1".to_owned()), Some("ann".to_owned())));
        assert_eq!(two, (Some("2".to_owned()), Some("bob".to_owned())));
        is_of("nobody");
        assert_eq!(id(), None);
    }

    #[tokio::test]
    async fn what_is_begun_is_done_though_nobody_waits() {
        let (begun, done) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
        let (begin, end) = (begun.clone(), done.clone());
        let work = answering("3", async move {
            let work = async move {
                begin.notify_one();
                tokio::task::yield_now().await;
                assert_eq!(id().as_deref(), Some("3"));
                end.notify_one();
            };
            to_its_end(work).await;
        });
        tokio::select! {
            biased;
            () = begun.notified() => {}
            _ = work => {}
        }
        done.notified().await;
    }
}
