//! Link events in the order of epochs.

use std::collections::{BTreeMap, VecDeque};

use millrace_engine::types::{AgentId, Epoch};
use tokio::sync::mpsc;

use super::{DirectionKey, EVENTS, Events, Happening, LinkEvent};

/// Most links that may be open for epochs this agent hasn't been told of yet: more than any node of the tree has.
const EARLY_LINKS: usize = 4096;
/// Most events kept of one such link: that it is up, the newest grant, its end. Frames can't come: nothing is granted
/// yet.
const EARLY_EVENTS: usize = 3;

/// Hands out the events of the current epoch; see the module above.
pub struct Mailbox {
    receiver: mpsc::Receiver<LinkEvent>,
    epoch: Epoch,
    /// Events of epochs this agent hasn't been told of yet; of each peer those of its newest epoch, since it has left
    /// the ones before.
    early: BTreeMap<(AgentId, DirectionKey), Vec<LinkEvent>>,
    /// Early events whose epoch has come.
    ready: VecDeque<LinkEvent>,
}

impl Mailbox {
    /// A mailbox before the first epoch, and where links put their events.
    pub fn new() -> (Self, Events) {
        let (sender, receiver) = mpsc::channel(EVENTS);
        let mailbox = Self { receiver, epoch: Epoch::default(), early: BTreeMap::new(), ready: VecDeque::new() };
        (mailbox, sender)
    }

    /// The agent was told of `epoch`.
    pub fn enter(&mut self, epoch: Epoch) {
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

    /// Keeps an early event; one that is dropped with the link's end in it closes the link.
    fn keep(&mut self, event: LinkEvent) {
        let link = (event.key.peer, event.key.direction);
        if !self.early.contains_key(&link) && self.early.len() >= EARLY_LINKS {
            let (peer, epoch) = (event.key.peer, event.key.epoch);
            tracing::warn!(%peer, %epoch, "a link came early, like {EARLY_LINKS} others, and is closed");
            return;
        }
        let kept = self.early.entry(link).or_default();
        match kept.first().map(|first| event.key.epoch.cmp(&first.key.epoch)) {
            Some(std::cmp::Ordering::Less) => return,
            Some(std::cmp::Ordering::Greater) => kept.clear(),
            Some(std::cmp::Ordering::Equal) | None => {}
        }
        if matches!(event.what, Happening::Grant(_)) {
            kept.retain(|kept| !matches!(kept.what, Happening::Grant(_)));
        }
        if kept.len() < EARLY_EVENTS {
            kept.push(event);
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

    /// Events kept for later.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.early.values().map(Vec::len).sum::<usize>() + self.ready.len()
    }
}
