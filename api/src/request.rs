//! The request that is being answered: what its lines in the log have in common.

use std::sync::OnceLock;

tokio::task_local! {
    static CURRENT: Request;
}

struct Request {
    id: String,
    who: OnceLock<String>,
}

/// Does `work` for the request `id`: what it came to, and whose request it was, where that was found out.
pub async fn answering<T>(id: &str, work: impl Future<Output = T>) -> (T, Option<String>) {
    let request = Request { id: id.to_owned(), who: OnceLock::new() };
    let work = async {
        let done = work.await;
        (done, CURRENT.with(|request| request.who.get().cloned()))
    };
    CURRENT.scope(request, work).await
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
}
