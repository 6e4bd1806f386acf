//! The state machine of a SwarmX node: copies each weight chunk to all children as it arrives, and joins the children's
//! partial sums for its parent.
//!
//! The root has one parent link per MemoryX agent, other nodes have one parent link. The root receives the weights of a
//! shard from its first replica, and sends the sums to all of its replicas. Both directions follow the plan
//! order strictly and are independent of each other: a slot moves when its frames have arrived and the next hop has
//! credit. Queues are bounded by the granted windows.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_emulator::placement::Placement;
use millrace_emulator::plan::StreamPlan;
use millrace_emulator::tree::{LeafTree, Node, PartialSumError, PartialSums};

use crate::credit::{ReceiveWindow, SendCredit};
use crate::frame::{Frame, FrameError, FrameKey};
use crate::payload::Payload;
use crate::payload_memory::PayloadMemory;
use crate::slots::{Direction, Slot, SlotCursor, SlotSequences};
use crate::types::{Epoch, Iteration};

/// Output of a node.
#[derive(Clone, Debug)]
pub enum SwarmCommand {
    /// Send a weight frame to the child at this index in the node's list.
    Down(usize, Frame),
    /// Send a partial sum to the parent link at this index.
    Up(usize, Frame),
    /// Grant the parent link at this index a running total of weight slots.
    GrantParent(usize, u64),
    /// Grant a child a running total of gradient slots.
    GrantChild(usize, u64),
}

/// A neighbor of a node, by its index in the node's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// A parent link.
    Parent(usize),
    /// A child.
    Child(usize),
}

/// An invalid frame and its sender.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{source}")]
pub struct LinkError {
    /// The sender.
    pub from: Neighbour,
    /// The reason.
    pub source: FrameError,
}

struct Parent {
    frames: VecDeque<Frame>,
    window: ReceiveWindow,
    credit: SendCredit,
}

struct Child {
    frames: VecDeque<Frame>,
    window: ReceiveWindow,
    credit: SendCredit,
    /// Nodes whose sums it sends, per round.
    nodes: Vec<Vec<Node>>,
}

/// The state machine of one SwarmX node in one epoch.
pub struct SwarmX {
    epoch: Epoch,
    plan: Arc<StreamPlan>,
    placement: Arc<Placement>,
    parents: Vec<Parent>,
    /// Parent links of each shard's replicas; of a node below the root, its only link.
    links_of_shard: Vec<Vec<usize>>,
    children: Vec<Child>,
    /// Whether the node sends partial sums up, per round.
    sends: Vec<bool>,
    down: SlotCursor,
    up: SlotCursor,
    /// Memory for the sums that the node creates.
    memory: Arc<dyn PayloadMemory>,
}

impl SwarmX {
    /// Creates the node at index `place` of the placement's swarm, with `window` slots per link and direction. It
    /// creates sums in `memory`.
    pub fn new(
        plan: Arc<StreamPlan>,
        placement: Arc<Placement>,
        place: usize,
        epoch: Epoch,
        window: u64,
        memory: Arc<dyn PayloadMemory>,
    ) -> Self {
        let node = &placement.swarm[place];
        let is_root = node.parent.is_none();
        let links_of_shard: Vec<Vec<usize>> = if is_root {
            (0..placement.shards).map(|shard| placement.replicas(shard).collect()).collect()
        } else {
            vec![vec![0]]
        };
        let links = if is_root { placement.memoryx.len() } else { 1 };
        let parent =
            |_| Parent { frames: VecDeque::new(), window: ReceiveWindow::new(window), credit: SendCredit::default() };
        let child = |&child: &millrace_emulator::placement::SwarmChild| Child {
            frames: VecDeque::new(),
            window: ReceiveWindow::new(window),
            credit: SendCredit::default(),
            nodes: (0..placement.rounds.len()).map(|round| placement.child_nodes(child, round)).collect(),
        };
        Self {
            epoch,
            sends: (0..placement.rounds.len()).map(|round| !placement.swarm_nodes(place, round).is_empty()).collect(),
            parents: (0..links).map(parent).collect(),
            links_of_shard,
            children: node.children.iter().map(child).collect(),
            down: SlotCursor::new(SlotSequences::new(&plan, &placement, Direction::Down, None)),
            up: SlotCursor::new(SlotSequences::new(&plan, &placement, Direction::Up, None)),
            plan,
            placement,
            memory,
        }
    }

    /// Returns the initial grants, to be sent when the links are established.
    pub fn start(&self) -> Vec<SwarmCommand> {
        let parents =
            self.parents.iter().enumerate().map(|(at, link)| SwarmCommand::GrantParent(at, link.window.total()));
        let children =
            self.children.iter().enumerate().map(|(at, link)| SwarmCommand::GrantChild(at, link.window.total()));
        parents.chain(children).collect()
    }

    /// Opens an iteration.
    ///
    /// # Errors
    /// Frames that were waiting for it are invalid.
    pub fn open(&mut self, iteration: Iteration, out: &mut Vec<SwarmCommand>) -> Result<(), LinkError> {
        self.down.open(iteration);
        self.up.open(iteration);
        self.pump(out)
    }

    /// Handles a weight frame from a parent link.
    ///
    /// # Errors
    /// The frame is not the next one in plan order.
    pub fn weights(&mut self, link: usize, frame: Frame, out: &mut Vec<SwarmCommand>) -> Result<(), LinkError> {
        self.parents[link].frames.push_back(frame);
        self.pump_down(out)
    }

    /// Handles a partial sum from a child.
    ///
    /// # Errors
    /// The frame is not the next one in plan order, or its leaves do not fit.
    pub fn gradient(&mut self, child: usize, frame: Frame, out: &mut Vec<SwarmCommand>) -> Result<(), LinkError> {
        self.children[child].frames.push_back(frame);
        self.pump_up(out)
    }

    /// Handles a grant of weight slots by a child.
    ///
    /// # Errors
    /// See [`SwarmX::weights`].
    pub fn child_grant(&mut self, child: usize, total: u64, out: &mut Vec<SwarmCommand>) -> Result<(), LinkError> {
        self.children[child].credit.grant(total);
        self.pump_down(out)
    }

    /// Handles a grant of gradient slots by a parent link.
    ///
    /// # Errors
    /// See [`SwarmX::gradient`].
    pub fn parent_grant(&mut self, link: usize, total: u64, out: &mut Vec<SwarmCommand>) -> Result<(), LinkError> {
        self.parents[link].credit.grant(total);
        self.pump_up(out)
    }

    /// Returns the maximum number of frames queued on one link: weights of a parent, partial sums of a child.
    pub fn max_queued_frames(&self) -> (usize, usize) {
        let weights = self.parents.iter().map(|link| link.frames.len()).max();
        let sums = self.children.iter().map(|link| link.frames.len()).max();
        (weights.unwrap_or(0), sums.unwrap_or(0))
    }

    fn pump(&mut self, out: &mut Vec<SwarmCommand>) -> Result<(), LinkError> {
        self.pump_down(out)?;
        self.pump_up(out)
    }

    /// Returns the index in `links_of_shard` for a chunk.
    fn shard_of(&self, at: Slot) -> usize {
        if self.links_of_shard.len() == 1 { 0 } else { self.placement.shard_of(at.chunk) as usize }
    }

    fn pump_down(&mut self, out: &mut Vec<SwarmCommand>) -> Result<(), LinkError> {
        while let Some((iteration, at)) = self.down.next() {
            let Some(&link) = self.links_of_shard[self.shard_of(at)].first() else { break };
            let ready = !self.parents[link].frames.is_empty() && self.children.iter().all(|c| c.credit.has_credit());
            if !ready {
                break;
            }
            let Some(frame) = self.parents[link].frames.pop_front() else { break };
            let from = Neighbour::Parent(link);
            check_expected(&frame.key, iteration, at).map_err(|source| LinkError { from, source })?;
            for (place, child) in self.children.iter_mut().enumerate() {
                child.credit.spend();
                out.push(SwarmCommand::Down(place, frame.clone()));
            }
            out.push(SwarmCommand::GrantParent(link, self.parents[link].window.consume()));
            self.down.advance();
        }
        Ok(())
    }

    fn pump_up(&mut self, out: &mut Vec<SwarmCommand>) -> Result<(), LinkError> {
        while let Some((iteration, at)) = self.up.next() {
            let round = at.round as usize;
            let shard = self.shard_of(at);
            let complete = self.children.iter().all(|child| child.frames.len() >= child.nodes[round].len());
            let sends = self.sends[round];
            let has_credit = |&link: &usize| self.parents[link].credit.has_credit();
            if !complete || (sends && !self.links_of_shard[shard].iter().all(has_credit)) {
                break;
            }
            let sums = self.join(iteration, at, out)?;
            let links = &self.links_of_shard[shard];
            if sends {
                for &link in links {
                    self.parents[link].credit.spend();
                }
            }
            for (node, payload) in sums {
                let key = FrameKey {
                    epoch: self.epoch,
                    iteration: iteration.number,
                    round: at.round,
                    slot: at.slot,
                    chunk: at.chunk,
                    node,
                };
                let frame = Frame::new(key, payload);
                out.extend(links.iter().map(|&link| SwarmCommand::Up(link, frame.clone())));
            }
            self.up.advance();
        }
        Ok(())
    }

    /// Takes the frames of one slot from every child and joins siblings.
    fn join(
        &mut self,
        iteration: Iteration,
        at: Slot,
        out: &mut Vec<SwarmCommand>,
    ) -> Result<Vec<(Node, Payload)>, LinkError> {
        let tree = self.placement.tree;
        let mut partials = PartialSums::new(tree);
        let elements = self.plan.chunks[at.chunk].elements;
        for (number, child) in self.children.iter_mut().enumerate() {
            let nodes = &child.nodes[at.round as usize];
            for &node in nodes {
                let Some(frame) = child.frames.pop_front() else { break };
                take_and_join(&mut partials, frame, (node, tree), (iteration, at), elements, &*self.memory)
                    .map_err(|source| LinkError { from: Neighbour::Child(number), source })?;
            }
            // A slot without frames on this link is not counted at either end.
            if !nodes.is_empty() {
                out.push(SwarmCommand::GrantChild(number, child.window.consume()));
            }
        }
        Ok(partials.take())
    }
}

/// Joins the next sum, which must be that of `node`.
fn take_and_join(
    partials: &mut PartialSums<Payload>,
    frame: Frame,
    (node, tree): (Node, LeafTree),
    (iteration, at): (Iteration, Slot),
    elements: usize,
    memory: &dyn PayloadMemory,
) -> Result<(), FrameError> {
    let Frame { key, payload, .. } = frame;
    let chunk = at.chunk;
    check_expected(&key, iteration, at)?;
    if !payload.has_elements(elements) {
        return Err(FrameError::Length { chunk, elements });
    }
    let joined = if key.node == node {
        partials.insert(node, payload, |left, right| left.join(right, memory))
    } else {
        Err(PartialSumError::NotANode(key.node, tree.leaves()))
    };
    joined.map_err(|source| FrameError::Partial { chunk, source })
}

/// Checks that a frame is the next one.
pub(crate) fn check_expected(got: &FrameKey, iteration: Iteration, at: Slot) -> Result<(), FrameError> {
    if got.iteration == iteration.number && got.round == at.round && got.slot == at.slot && got.chunk == at.chunk {
        return Ok(());
    }
    Err(FrameError::OutOfOrder {
        want_iteration: iteration.number,
        want_round: at.round,
        want_slot: at.slot,
        got: *got,
    })
}
