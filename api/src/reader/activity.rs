//! Detects that a reader is idle.

use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use tokio::sync::watch;

/// Counts requests in progress. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct RequestActivity(watch::Sender<usize>);

/// A request in progress, until it is dropped.
#[derive(Debug)]
pub struct RequestGuard(watch::Sender<usize>);

impl RequestActivity {
    pub fn begin(&self) -> RequestGuard {
        self.0.send_modify(|count| *count += 1);
        RequestGuard(self.0.clone())
    }

    /// Waits until no request has been in progress for `patience`.
    pub async fn wait_idle(&self, idle_timeout: Duration) {
        let mut counts = self.0.subscribe();
        loop {
            // Can't fail: `self` holds a sender.
            let _ = counts.wait_for(|count| *count == 0).await;
            tokio::select! {
                () = tokio::time::sleep(idle_timeout) => return,
                _ = counts.changed() => {}
            }
        }
    }
}

impl RequestGuard {
    /// Keeps the request in progress until its response stream has ended or is dropped.
    pub fn hold_until_end<T>(self, stream: impl Stream<Item = T> + Send + 'static) -> BoxStream<'static, T> {
        stream
            .map(move |item| {
                let _under_way = &self;
                item
            })
            .boxed()
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}
