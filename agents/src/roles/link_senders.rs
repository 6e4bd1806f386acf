//! State that the drivers of the data tree share: the open ends of their links, and the steps of iterations.

use std::collections::{BTreeMap, VecDeque};

use millrace_engine::frame::Frame;
use millrace_engine::slots::Direction;
use millrace_engine::types::{AgentId, Iteration};
use millrace_protocol::codec::LinkContext;

use crate::links::{LinkKey, LinkSender};

/// The ends of all links of one epoch.
pub struct LinkSenders {
    ends: BTreeMap<(AgentId, Direction), Option<LinkSender>>,
}

impl LinkSenders {
    /// Creates closed ends for both directions of the links to `peers`.
    pub fn new(peers: impl IntoIterator<Item = AgentId>) -> Self {
        let both = |peer| [((peer, Direction::Down), None), ((peer, Direction::Up), None)];
        Self { ends: peers.into_iter().flat_map(both).collect() }
    }

    /// Stores an open end. The end of an unknown peer is dropped, which closes its link.
    pub fn open(&mut self, key: LinkKey, end: LinkSender) {
        if let Some(slot) = self.ends.get_mut(&(key.peer, key.direction)) {
            *slot = Some(end);
        }
    }

    /// Returns whether all ends are open.
    pub fn is_complete(&self) -> bool {
        self.ends.values().all(Option::is_some)
    }

    fn of(&self, peer: AgentId) -> impl Iterator<Item = &LinkSender> {
        [Direction::Down, Direction::Up].into_iter().filter_map(move |way| self.ends.get(&(peer, way))?.as_ref())
    }

    /// Returns the end that sends frames to `peer`: one of its two directions does.
    pub fn frames(&self, peer: AgentId) -> Option<LinkSender> {
        self.of(peer).find(|end| matches!(end, LinkSender::Frames(..))).cloned()
    }

    /// Sends a frame to `peer`.
    pub fn send_frame(&self, peer: AgentId, frame: Frame, context: LinkContext) {
        if let Some(end) = self.frames(peer) {
            end.frame(frame, context);
        }
    }

    /// Returns the end that sends grants to `peer`: one of its two directions does.
    pub fn grants(&self, peer: AgentId) -> Option<LinkSender> {
        self.of(peer).find(|end| matches!(end, LinkSender::Grants(..))).cloned()
    }

    pub fn send_grant(&self, peer: AgentId, total: u64) {
        if let Some(end) = self.grants(peer) {
            end.grant(total);
        }
    }
}

/// The latest iterations and their steps, for the headers of frames.
#[derive(Debug, Default)]
pub struct IterationSteps(VecDeque<Iteration>);

impl IterationSteps {
    /// More iterations than can be in progress at once on one link.
    const KEPT_ITERATIONS: usize = 8;

    /// Records an opened iteration.
    pub fn open(&mut self, iteration: Iteration) {
        if self.0.len() == Self::KEPT_ITERATIONS {
            self.0.pop_front();
        }
        self.0.push_back(iteration);
    }

    /// Returns the step of an iteration; 0 if it is unknown.
    pub fn of(&self, number: u64) -> u64 {
        let iteration = self.0.iter().find(|iteration| iteration.number == number);
        iteration.map_or(0, |iteration| iteration.task.step())
    }
}
