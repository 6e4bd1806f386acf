//! Link events in the order of epochs.

use millrace_engine::types::Epoch;
use tokio::sync::mpsc;

use super::{Events, LinkEvent};

/// Hands out the events of the current epoch; see the module above.
pub struct Mailbox {
    receiver: mpsc::UnboundedReceiver<LinkEvent>,
    epoch: Epoch,
    /// Events of epochs this agent hasn't been told of yet.
    early: Vec<LinkEvent>,
    /// Early events whose epoch has come.
    ready: std::collections::VecDeque<LinkEvent>,
}

impl Mailbox {
    /// A mailbox before the first epoch, and where links put their events.
    pub fn new() -> (Self, Events) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mailbox = Self { receiver, epoch: Epoch::default(), early: Vec::new(), ready: Default::default() };
        (mailbox, sender)
    }

    /// The agent was told of `epoch`.
    pub fn enter(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.ready.clear();
        let early = std::mem::take(&mut self.early);
        for event in early {
            self.sort(event);
        }
    }

    fn sort(&mut self, event: LinkEvent) {
        match event.key.epoch.cmp(&self.epoch) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => self.ready.push_back(event),
            std::cmp::Ordering::Greater => self.early.push(event),
        }
    }

    /// The next event of the current epoch. Safe to cancel.
    pub async fn next(&mut self) -> Option<LinkEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let event = self.receiver.recv().await?;
            self.sort(event);
        }
    }
}
