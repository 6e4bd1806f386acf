//! Delivers link events in the order of epochs.

use std::collections::{BTreeMap, VecDeque};

use millrace_engine::types::{AgentId, Epoch};
use tokio::sync::mpsc;

use super::{Direction, LinkEvent, LinkEventKind, LinkEventSender, MAX_QUEUED_LINK_EVENTS};

/// Maximum link directions with events of epochs that this agent has not entered yet: more than any node of the tree
/// has.
const MAX_EARLY_LINKS: usize = 4096;
/// Maximum stored events of one such link direction: that it is open, the newest grant, its end. Frames can't arrive,
/// because nothing is granted yet.
const MAX_EARLY_EVENTS_PER_LINK: usize = 3;

/// Delivers the events of the current epoch; see the parent module.
pub struct LinkEventQueue {
    receiver: mpsc::Receiver<LinkEvent>,
    epoch: Epoch,
    /// Events of epochs that this agent has not entered yet. Of each peer only those of its newest epoch are stored,
    /// because the peer has left the earlier ones.
    early: BTreeMap<(AgentId, Direction), Vec<LinkEvent>>,
    /// Stored events whose epoch was entered.
    ready: VecDeque<LinkEvent>,
}

impl LinkEventQueue {
    /// Creates a mailbox before the first epoch, and the sender for links.
    pub fn new() -> (Self, LinkEventSender) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_LINK_EVENTS);
        let mailbox = Self { receiver, epoch: Epoch::default(), early: BTreeMap::new(), ready: VecDeque::new() };
        (mailbox, sender)
    }

    /// Makes `epoch` the current one, and delivers its stored events.
    pub fn set_epoch(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.ready.clear();
        let early = std::mem::take(&mut self.early);
        for event in early.into_values().flatten() {
            self.sort(event);
        }
    }

    fn sort(&mut self, event: LinkEvent) {
        match event.key.epoch.cmp(&self.epoch) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => self.ready.push_back(event),
            std::cmp::Ordering::Greater => self.keep(event),
        }
    }

    /// Stores an early event. If it has the end of the link in it and is dropped, the link closes.
    fn keep(&mut self, event: LinkEvent) {
        let link = (event.key.peer, event.key.direction);
        if !self.early.contains_key(&link) && self.early.len() >= MAX_EARLY_LINKS {
            let (peer, epoch) = (event.key.peer, event.key.epoch);
            tracing::warn!(%peer, %epoch, "closing a link that was opened before its epoch: {MAX_EARLY_LINKS} others \
                already wait for theirs");
            return;
        }
        let events = self.early.entry(link).or_default();
        match events.first().map(|first| event.key.epoch.cmp(&first.key.epoch)) {
            Some(std::cmp::Ordering::Less) => return,
            Some(std::cmp::Ordering::Greater) => events.clear(),
            Some(std::cmp::Ordering::Equal) | None => {}
        }
        if matches!(event.kind, LinkEventKind::Grant(_)) {
            events.retain(|events| !matches!(events.kind, LinkEventKind::Grant(_)));
        }
        if events.len() < MAX_EARLY_EVENTS_PER_LINK {
            events.push(event);
        }
    }

    /// Returns the next event of the current epoch; `None` after all senders were dropped. Cancel safe.
    pub async fn next(&mut self) -> Option<LinkEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let event = self.receiver.recv().await?;
            self.sort(event);
        }
    }

    /// Returns the number of stored events.
    #[cfg(test)]
    pub fn queued_early_events(&self) -> usize {
        self.early.values().map(Vec::len).sum::<usize>() + self.ready.len()
    }
}
