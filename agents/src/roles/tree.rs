//! What drivers on the data tree share: the open ends of their links, and which step an iteration is for.

use std::collections::{BTreeMap, VecDeque};

use millrace_engine::types::{AgentId, Iteration, IterationKind};
use millrace_protocol::packet::Packet;

use crate::links::{DirectionKey, End, LinkKey};

/// The ends of all links of one epoch.
pub struct Ends {
    ends: BTreeMap<(AgentId, DirectionKey), Option<End>>,
}

impl Ends {
    /// Links to these peers, both directions each, none open yet.
    pub fn new(peers: impl IntoIterator<Item = AgentId>) -> Self {
        let both = |peer| [((peer, DirectionKey::Down), None), ((peer, DirectionKey::Up), None)];
        Self { ends: peers.into_iter().flat_map(both).collect() }
    }

    /// One is up. A stranger's is dropped, which closes it.
    pub fn open(&mut self, key: LinkKey, end: End) {
        if let Some(slot) = self.ends.get_mut(&(key.peer, key.direction)) {
            *slot = Some(end);
        }
    }

    /// Whether all are up.
    pub fn complete(&self) -> bool {
        self.ends.values().all(Option::is_some)
    }

    fn of(&self, peer: AgentId) -> impl Iterator<Item = &End> {
        [DirectionKey::Down, DirectionKey::Up].into_iter().filter_map(move |way| self.ends.get(&(peer, way))?.as_ref())
    }

    /// The end that takes frames for `peer`: of its two links, one does.
    pub fn frames(&self, peer: AgentId) -> Option<End> {
        self.of(peer).find(|end| matches!(end, End::Frames(..))).cloned()
    }

    /// Sends a frame to `peer`.
    pub fn frame(&self, peer: AgentId, frame: Packet) {
        if let Some(end) = self.frames(peer) {
            end.frame(frame);
        }
    }

    /// The end that takes grants for `peer`: of its two links, one does.
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

/// Turns opened lately and the step each is for, for the frames' headers.
#[derive(Debug, Default)]
pub struct TurnSteps(VecDeque<Iteration>);

impl TurnSteps {
    /// Turns that may be under way at once on one link, with air.
    const KEPT: usize = 8;

    /// An iteration was opened.
    pub fn open(&mut self, iteration: Iteration) {
        if self.0.len() == Self::KEPT {
            self.0.pop_front();
        }
        self.0.push_back(iteration);
    }

    /// The step of an iteration.
    pub fn of(&self, number: u64) -> u64 {
        let iteration = self.0.iter().find(|iteration| iteration.number == number);
        iteration.map_or(0, |iteration| match iteration.task {
            IterationKind::Train { step } | IterationKind::Eval { step, .. } => step,
        })
    }
}
