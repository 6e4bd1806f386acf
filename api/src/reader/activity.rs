//! Whether anybody asks.

use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use tokio::sync::watch;

/// Counts requests that are under way. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Activity(watch::Sender<usize>);

/// A request under way, until it is dropped.
#[derive(Debug)]
pub struct Asking(watch::Sender<usize>);

impl Activity {
    /// A request has come.
    pub fn begin(&self) -> Asking {
        self.0.send_modify(|count| *count += 1);
        Asking(self.0.clone())
    }

    /// Ends when none was under way, and none came, for `patience`.
    pub async fn idle(&self, patience: Duration) {
        let mut counts = self.0.subscribe();
        loop {
            // The counter is here for as long as this is.
            let _ = counts.wait_for(|count| *count == 0).await;
            tokio::select! {
                () = tokio::time::sleep(patience) => return,
                _ = counts.changed() => {}
            }
        }
    }
}

impl Asking {
    /// The request is under way until its answer has been taken or given up.
    pub fn until_end<T>(self, answer: impl Stream<Item = T> + Send + 'static) -> BoxStream<'static, T> {
        answer
            .map(move |item| {
                let _under_way = &self;
                item
            })
            .boxed()
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}
