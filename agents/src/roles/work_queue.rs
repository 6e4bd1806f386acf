//! The queue of a compute thread: a channel whose waiting items can be counted, so that a thread that no longer
//! receives is noticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvError, SendError, TryRecvError};

/// Creates an unbounded queue.
pub fn work_queue<T>() -> (WorkSender<T>, WorkReceiver<T>) {
    let (sender, receiver) = mpsc::channel();
    let count = QueuedItems::default();
    (WorkSender { sender, count: count.clone() }, WorkReceiver { receiver, count })
}

/// Number of items that were sent and not received yet.
#[derive(Clone, Debug, Default)]
pub struct QueuedItems(Arc<AtomicUsize>);

impl QueuedItems {
    /// Returns whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// Sends to a queue.
#[derive(Debug)]
pub struct WorkSender<T> {
    sender: mpsc::Sender<T>,
    count: QueuedItems,
}

impl<T> Clone for WorkSender<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), count: self.count.clone() }
    }
}

impl<T> WorkSender<T> {
    /// Sends an item.
    ///
    /// # Errors
    /// The receiver was dropped.
    pub fn send(&self, item: T) -> Result<(), SendError<T>> {
        // First, so that the receiver never subtracts what was not added.
        self.count.0.fetch_add(1, Ordering::Relaxed);
        self.sender.send(item)
    }
}

/// Receives from a queue.
#[derive(Debug)]
pub struct WorkReceiver<T> {
    receiver: mpsc::Receiver<T>,
    count: QueuedItems,
}

impl<T> WorkReceiver<T> {
    /// Returns the number of waiting items, also after the receiver was moved to its thread.
    pub fn queued(&self) -> QueuedItems {
        self.count.clone()
    }

    /// Waits for the next item.
    ///
    /// # Errors
    /// All senders were dropped.
    pub fn recv(&self) -> Result<T, RecvError> {
        self.receiver.recv().inspect(|_| self.on_received())
    }

    /// Returns the next item if there is one.
    ///
    /// # Errors
    /// There is none, or all senders were dropped.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.receiver.try_recv().inspect(|_| self.on_received())
    }

    fn on_received(&self) {
        self.count.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_items_are_counted() {
        let (sender, receiver) = work_queue();
        let queued = receiver.queued();
        assert!(queued.is_empty());
        [1, 2].into_iter().for_each(|item| sender.clone().send(item).unwrap());
        assert_eq!((receiver.recv(), queued.is_empty()), (Ok(1), false));
        assert_eq!((receiver.try_recv(), queued.is_empty()), (Ok(2), true));
        assert_eq!((receiver.try_recv(), queued.is_empty()), (Err(TryRecvError::Empty), true));
    }
}
