//! State that the drivers of the data tree share: the open ends of their links, and the steps of iterations.

use std::collections::{BTreeMap, VecDeque};

use millrace_engine::types::{AgentId, Iteration, IterationKind};
use millrace_protocol::packet::Packet;

use crate::links::{DirectionKey, End, LinkKey};

/// The ends of all links of one epoch.
pub struct Ends {
    ends: BTreeMap<(AgentId, DirectionKey), Option<End>>,
}

impl Ends {
    /// Creates closed ends for both directions of the links to `peers`.
    pub fn new(peers: impl IntoIterator<Item = AgentId>) -> Self {
        let both = |peer| [((peer, DirectionKey::Down), None), ((peer, DirectionKey::Up), None)];
        Self { ends: peers.into_iter().flat_map(both).collect() }
    }

    /// Stores an open end. The end of an unknown peer is dropped, which closes its link.
    pub fn open(&mut self, key: LinkKey, end: End) {
        if let Some(slot) = self.ends.get_mut(&(key.peer, key.direction)) {
            *slot = Some(end);
        }
    }

    /// Returns whether all ends are open.
    pub fn complete(&self) -> bool {
        self.ends.values().all(Option::is_some)
    }

    fn of(&self, peer: AgentId) -> impl Iterator<Item = &End> {
        [DirectionKey::Down, DirectionKey::Up].into_iter().filter_map(move |way| self.ends.get(&(peer, way))?.as_ref())
    }

    /// Returns the end that sends frames to `peer`: one of its two directions does.
    pub fn frames(&self, peer: AgentId) -> Option<End> {
        self.of(peer).find(|end| matches!(end, End::Frames(..))).cloned()
    }

    /// Sends a frame to `peer`.
    pub fn frame(&self, peer: AgentId, frame: Packet) {
        if let Some(end) = self.frames(peer) {
            end.frame(frame);
        }
    }

    /// Returns the end that sends grants to `peer`: one of its two directions does.
    pub fn grants(&self, peer: AgentId) -> Option<End> {
        self.of(peer).find(|end| matches!(end, End::Grants(..))).cloned()
    }

    /// Grants slots to `peer`.
    pub fn grant(&self, peer: AgentId, total: u64) {
        if let Some(end) = self.grants(peer) {
            end.grant(total);
        }
    }
}

/// The latest iterations and their steps, for the headers of frames.
#[derive(Debug, Default)]
pub struct TurnSteps(VecDeque<Iteration>);

impl TurnSteps {
    /// More iterations than can be in progress at once on one link.
    const KEPT: usize = 8;

    /// Records an opened iteration.
    pub fn open(&mut self, iteration: Iteration) {
        if self.0.len() == Self::KEPT {
            self.0.pop_front();
        }
        self.0.push_back(iteration);
    }

    /// Returns the step of an iteration; 0 if it is unknown.
    pub fn of(&self, number: u64) -> u64 {
        let iteration = self.0.iter().find(|iteration| iteration.number == number);
        iteration.map_or(0, |iteration| match iteration.task {
            IterationKind::Train { step } | IterationKind::Eval { step, .. } => step,
        })
    }
}
