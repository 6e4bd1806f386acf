//! Assigns the work of one epoch to agents: leaves to systems, rounds, chunks to shards, and partial sums to SwarmX
//! nodes.
//!
//! * A placement is computed from a plan and the available agents, is valid for one epoch and never stored in a
//!   checkpoint.
//! * A placement does not affect the bits of the result: every sum follows the leaf tree, whichever system owns the
//!   leaves.
//! * Rounds and shares begin and end at subtree boundaries if that is cheap. The owner of a whole subtree sends one
//!   partial sum per chunk; the owner of n arbitrary leaves sends up to 2 log2 n. Alignment may enlarge the share of
//!   the busiest system, or the number of rounds, by at most a sixteenth ([`ALIGNMENT_SLACK`]). For example, 16 systems
//!   share 24 leaves as 1, 2, 1, 2, ... (single subtrees), not as 2, 1, 2, 1, ...; 3 systems share 8 leaves as 2, 3, 3,
//!   because whole subtrees (4, 2, 2) would occupy the busiest system for a third longer.

use std::ops::Range;

pub use millrace_params::shard_of_agent;
use serde::{Deserialize, Serialize};

use crate::plan::{ChunkId, Group, StreamPlan};
use crate::tree::{LeafTree, Node};

/// Index of a system's agent, `cs2-<index>`.
pub type SystemId = u32;
/// Index of a MemoryX shard: a fixed part of the chunks.
pub type ShardId = u32;
/// Index of a MemoryX agent, `memoryx-<index>`. It holds the shard [`shard_of_agent`].
pub type MemoryXId = u32;
/// Index of a SwarmX agent, `swarmx-<index>`.
pub type SwarmId = u32;
/// Index of an activation server, `activation-<index>`.
pub type ActivationId = u32;

/// The available agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementMembers {
    /// Systems, in the order in which they are assigned leaves.
    pub systems: Vec<SystemId>,
    /// Number of MemoryX shards.
    pub shards: u32,
    /// MemoryX agents, ascending; at least one for every shard.
    pub memoryx: Vec<MemoryXId>,
    /// Available SwarmX agents. The tree uses as many as it needs.
    pub swarmx: Vec<SwarmId>,
    /// Maximum children of a SwarmX node, at least 2.
    pub fan_out: u32,
    /// Available activation servers. Systems share servers if there are fewer servers than systems. Surplus servers are
    /// not used, because a system reads from one server at a time.
    pub activation_servers: Vec<ActivationId>,
}

/// A child of a SwarmX node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwarmChild {
    /// A system: its index in [`Placement::systems`].
    System(usize),
    /// Another SwarmX node: its index in [`Placement::swarm`].
    Swarm(usize),
}

/// A SwarmX agent in the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwarmNode {
    /// The agent.
    pub id: SwarmId,
    /// Index of its parent in [`Placement::swarm`]; `None` for the root, which is connected to every MemoryX agent.
    pub parent: Option<usize>,
    /// Its children, leaves ascending.
    pub children: Vec<SwarmChild>,
    /// The systems below it: a range of indices into [`Placement::systems`].
    pub systems: Range<usize>,
}

/// A system in the placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedSystem {
    /// The agent.
    pub id: SystemId,
    /// Index of its SwarmX node in [`Placement::swarm`].
    pub parent: usize,
    /// The activation server that sends its samples.
    pub activation: ActivationId,
}

/// The shard that owns a whole group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupOwner {
    /// One past the last chunk of the group. Groups ascend.
    pub end: ChunkId,
    /// The shard.
    pub shard: ShardId,
}

/// Part of a step for which the weights are streamed once: contiguous leaves, divided among the systems.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// The leaves of the round.
    pub leaves: Range<u32>,
    /// Leaves of each system, by its index in [`Placement::systems`]; contiguous, ascending, together equal to
    /// `leaves`.
    pub owned: Vec<Range<u32>>,
}

/// The assignment of work in one epoch; see the module documentation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Systems, leaves ascending.
    pub systems: Vec<PlacedSystem>,
    /// SwarmX nodes; the root is first, parents before children.
    pub swarm: Vec<SwarmNode>,
    /// Number of MemoryX shards.
    pub shards: u32,
    /// MemoryX agents, ascending: one or more replicas of every shard. Each receives the sums of its shard's gradients,
    /// and the first one of a shard sends its weights.
    pub memoryx: Vec<MemoryXId>,
    /// Owners of whole groups; empty if the chunks of a group are divided among the shards.
    pub group_owners: Vec<GroupOwner>,
    /// Rounds of a training step.
    pub rounds: Vec<Round>,
    /// Rounds of an evaluation step.
    pub eval_rounds: Vec<Round>,
    /// The tree over the training leaves.
    pub tree: LeafTree,
}

/// Reason why there is no placement.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    #[error("no system is available")]
    NoSystems,
    /// A MemoryX shard has no agent.
    #[error("no agent of MemoryX shard {shard} is available")]
    NoReplica {
        /// The shard.
        shard: ShardId,
    },
    #[error("no activation server is available")]
    NoActivationServers,
    /// A system would have no leaves.
    #[error(
        "{systems} systems were requested, but a batch has only {leaves} leaves; request at most {leaves}, or create \
         more leaves with a smaller micro_batch_size"
    )]
    TooManySystems {
        systems: usize,
        /// Leaves of the batch (K).
        leaves: u32,
    },
    #[error(
        "a batch of {leaves} leaves on {systems} systems, each of which holds {per_system} at once, would take {rounds} rounds a step; {maximum} are the most: give a smaller batch_size or an appliance with a larger wafer"
    )]
    TooManyRounds {
        /// Leaves of the batch.
        leaves: u32,
        systems: usize,
        /// Leaves that a system holds at once.
        per_system: u32,
        rounds: u64,
        /// Maximum rounds for this number of systems.
        maximum: u64,
    },
    /// There are too few SwarmX nodes for the tree.
    #[error(
        "the SwarmX tree over {systems} systems with fan-out {fan_out} needs {needed} nodes, but only {available} are \
         available"
    )]
    TooFewSwarmNodes {
        systems: usize,
        /// Maximum children of a node.
        fan_out: u32,
        needed: usize,
        available: usize,
    },
}

/// Returns the number of SwarmX nodes for `systems` systems: one level for every power of the fan-out, up to one root.
pub fn swarm_nodes(systems: usize, fan_out: u32) -> usize {
    let fan_out = fan_out.max(2) as usize;
    let (mut level, mut nodes) = (systems.max(1), 0);
    loop {
        level = level.div_ceil(fan_out);
        nodes += level;
        if level == 1 {
            return nodes;
        }
    }
}

/// Returns the owners of whole groups if the optimizer updates whole tensors; otherwise nothing. Each group goes to the
/// shard with the fewest elements so far.
pub fn group_owners(plan: &StreamPlan, shards: u32) -> Vec<GroupOwner> {
    if plan.whole_tensor_state.is_none() {
        return Vec::new();
    }
    let mut elements = vec![0u64; shards.max(1) as usize];
    let owner = |group: &Group| {
        let shard = elements.iter().enumerate().min_by_key(|(_, elements)| **elements).map_or(0, |(shard, _)| shard);
        elements[shard] += group.elements as u64;
        GroupOwner { end: group.chunks.end, shard: shard as ShardId }
    };
    plan.groups.iter().map(owner).collect()
}

/// Returns the shard that owns `chunk`, for owners of whole groups as from [`group_owners`].
pub fn owner_of_chunk(group_owners: &[GroupOwner], shards: u32, chunk: ChunkId) -> ShardId {
    let group = group_owners.partition_point(|owner| owner.end <= chunk);
    group_owners.get(group).map_or((chunk % shards.max(1) as usize) as ShardId, |owner| owner.shard)
}

impl Placement {
    /// Computes the placement of `plan` on `members`.
    ///
    /// # Errors
    /// No system, no agent of a shard or no activation server is available, there are more systems than leaves, too
    /// many rounds, or too few SwarmX agents.
    pub fn new(plan: &StreamPlan, members: &PlacementMembers) -> Result<Self, PlacementError> {
        let systems = members.systems.len();
        let leaves = plan.leaves.count;
        if systems == 0 {
            return Err(PlacementError::NoSystems);
        }
        if members.shards == 0 {
            return Err(PlacementError::NoReplica { shard: 0 });
        }
        let has_replica =
            |shard: &ShardId| members.memoryx.iter().any(|&id| shard_of_agent(id, members.shards) == *shard);
        if let Some(shard) = (0..members.shards).find(|shard| !has_replica(shard)) {
            return Err(PlacementError::NoReplica { shard });
        }
        let servers = &members.activation_servers;
        if servers.is_empty() {
            return Err(PlacementError::NoActivationServers);
        }
        if systems > leaves as usize {
            return Err(PlacementError::TooManySystems { systems, leaves });
        }
        let needed = swarm_nodes(systems, members.fan_out);
        if members.swarmx.len() < needed {
            let (fan_out, available) = (members.fan_out, members.swarmx.len());
            return Err(PlacementError::TooFewSwarmNodes { systems, fan_out, needed, available });
        }
        for leaves in [plan.leaves.count, plan.eval_leaves.count] {
            check_rounds(leaves, systems, plan.leaves_per_round)?;
        }
        let (swarm, parents) = swarm_tree(systems, members.fan_out.max(2) as usize, &members.swarmx);
        let place_system = |(index, &id): (usize, &SystemId)| PlacedSystem {
            id,
            parent: parents[index],
            activation: servers[index % servers.len()],
        };
        Ok(Self {
            systems: members.systems.iter().enumerate().map(place_system).collect(),
            swarm,
            shards: members.shards,
            memoryx: members.memoryx.clone(),
            group_owners: group_owners(plan, members.shards),
            rounds: rounds(leaves, systems, plan.leaves_per_round),
            eval_rounds: rounds(plan.eval_leaves.count, systems, plan.leaves_per_round),
            tree: plan.leaves.tree(),
        })
    }

    /// Returns the shard that owns `chunk`.
    pub fn shard_of(&self, chunk: ChunkId) -> ShardId {
        owner_of_chunk(&self.group_owners, self.shards, chunk)
    }

    /// Returns the replicas of `shard` by their indices in [`Placement::memoryx`]. The first one sends the weights.
    pub fn replicas(&self, shard: ShardId) -> impl Iterator<Item = usize> {
        let holds = move |id: MemoryXId| shard_of_agent(id, self.shards) == shard;
        self.memoryx.iter().enumerate().filter_map(move |(index, &id)| holds(id).then_some(index))
    }

    /// Returns whether a MemoryX agent sends the weights of its shard.
    pub fn sends_weights(&self, agent: MemoryXId) -> bool {
        let first = self.replicas(shard_of_agent(agent, self.shards)).next();
        first.is_some_and(|index| self.memoryx[index] == agent)
    }

    /// Returns the partial sums that the system at index `index` sends for every chunk of `round`.
    pub fn system_nodes(&self, index: usize, round: usize) -> Vec<Node> {
        self.tree.cover(self.rounds[round].owned[index].clone())
    }

    /// Returns the partial sums that the SwarmX node at index `index` sends for every chunk of `round`, after joining
    /// those of its children.
    pub fn swarm_nodes(&self, index: usize, round: usize) -> Vec<Node> {
        let systems = self.swarm[index].systems.clone();
        let owned = &self.rounds[round].owned[systems];
        match (owned.first(), owned.last()) {
            (Some(first), Some(last)) => self.tree.cover(first.start..last.end),
            _ => Vec::new(),
        }
    }

    /// Returns the partial sums that `child` sends for every chunk of `round`.
    pub fn child_nodes(&self, child: SwarmChild, round: usize) -> Vec<Node> {
        match child {
            SwarmChild::System(index) => self.system_nodes(index, round),
            SwarmChild::Swarm(index) => self.swarm_nodes(index, round),
        }
    }
}

/// Maximum shares of systems in all rounds of a step. Bounds the size of a placement.
const MAX_SHARES: u64 = 1 << 20;

fn check_rounds(leaves: u32, systems: usize, per_system: u32) -> Result<(), PlacementError> {
    let rounds = u64::from(leaves).div_ceil(u64::from(per_system.max(1)) * systems as u64);
    let maximum = (MAX_SHARES / systems as u64).max(1);
    if rounds <= maximum {
        Ok(())
    } else {
        Err(PlacementError::TooManyRounds { leaves, systems, per_system, rounds, maximum })
    }
}

/// Alignment with subtrees may increase a share, or the number of rounds, by one part in this many.
pub const ALIGNMENT_SLACK: u32 = 16;

/// Divides `leaves` leaves into rounds in which no system holds more than `per_system`: nodes of the leaf tree at one
/// depth or, if these would be too many, as few contiguous ranges as possible.
fn rounds(leaves: u32, systems: usize, per_system: u32) -> Vec<Round> {
    let tree = LeafTree::new(leaves);
    let maximum = u64::from(per_system.max(1)) * systems as u64;
    let mut nodes = vec![tree.root()];
    while nodes.iter().any(|node| u64::from(node.leaves()) > maximum) {
        nodes = nodes.into_iter().flat_map(child_nodes_or_self).collect();
    }
    let min_rounds = u64::from(leaves).div_ceil(maximum);
    let max_rounds = min_rounds + min_rounds / u64::from(ALIGNMENT_SLACK);
    let ranges = if nodes.len() as u64 <= max_rounds {
        nodes.into_iter().map(Node::range).collect()
    } else {
        cut_range(tree, 0..leaves, max_rounds as usize, maximum)
    };
    let round = |leaves: Range<u32>| Round { owned: share_leaves(tree, leaves.clone(), systems, per_system), leaves };
    ranges.into_iter().map(round).collect()
}

fn child_nodes_or_self(node: Node) -> Vec<Node> {
    match node.children() {
        Some((left, right)) => vec![left, right],
        None => vec![node],
    }
}

/// Divides `leaves` among `systems` systems: contiguous, ascending ranges of at most `per_system` leaves, of equal size
/// except for [`ALIGNMENT_SLACK`].
fn share_leaves(tree: LeafTree, leaves: Range<u32>, systems: usize, per_system: u32) -> Vec<Range<u32>> {
    let (count, parts) = (u64::from(leaves.end - leaves.start), systems as u64);
    if count < parts {
        // Some systems have no leaves: distribute them evenly.
        let bound = |index: u64| leaves.start + (count * index).div_ceil(parts) as u32;
        return (0..parts).map(|index| bound(index)..bound(index + 1)).collect();
    }
    let equal = count.div_ceil(parts);
    let maximum = (equal + equal / u64::from(ALIGNMENT_SLACK)).min(u64::from(per_system.max(1))).max(equal);
    cut_range(tree, leaves, systems, maximum)
}

/// Cuts `range`, of at least `parts` and at most `parts * maximum` leaves, into `parts` ranges of at most `maximum`
/// leaves, from left to right. Each cut is at the boundary of the largest subtrees that leaves enough, and not too
/// many, leaves for the remaining ranges.
fn cut_range(tree: LeafTree, range: Range<u32>, parts: usize, maximum: u64) -> Vec<Range<u32>> {
    let end = u64::from(range.end);
    let mut start = u64::from(range.start);
    let mut ranges = Vec::with_capacity(parts);
    for remaining_parts in (0..parts as u64).rev() {
        // A share much smaller than average would make all others larger.
        let equal = (end - start) / (remaining_parts + 1);
        let min_end = (start + (equal - equal / 4).max(1)).max(end.saturating_sub(remaining_parts * maximum));
        let max_end = (start + maximum).min(end - remaining_parts);
        let boundary = if remaining_parts == 0 {
            end
        } else {
            u64::from(tree.boundary(min_end.min(max_end) as u32..=max_end as u32))
        };
        ranges.push(start as u32..boundary as u32);
        start = boundary;
    }
    ranges
}

/// Builds the tree over `systems` systems, root first, and returns it with the parent of each system.
fn swarm_tree(systems: usize, fan_out: usize, ids: &[SwarmId]) -> (Vec<SwarmNode>, Vec<usize>) {
    // Levels from the systems upward. Each entry has the node's children in the level below, and its systems.
    let mut levels: Vec<Vec<(Range<usize>, Range<usize>)>> = Vec::new();
    let mut below: Vec<Range<usize>> = (0..systems).map(|index| index..index + 1).collect();
    loop {
        let level: Vec<_> = (0..below.len())
            .step_by(fan_out)
            .map(|index| {
                let children = index..(index + fan_out).min(below.len());
                let covered = below[children.start].start..below[children.end - 1].end;
                (children, covered)
            })
            .collect();
        below = level.iter().map(|(_, covered)| covered.clone()).collect();
        let done = level.len() == 1;
        levels.push(level);
        if done {
            break;
        }
    }
    levels.reverse();
    let starts: Vec<usize> =
        levels.iter().scan(0, |index, level| Some(std::mem::replace(index, *index + level.len()))).collect();
    let mut swarm: Vec<SwarmNode> = Vec::new();
    let mut parents = vec![0; systems];
    for (depth, level) in levels.iter().enumerate() {
        for (children, covered) in level {
            let index = swarm.len();
            let last = depth + 1 == levels.len();
            if last {
                parents[children.clone()].fill(index);
            }
            let child = |index: usize| {
                if last { SwarmChild::System(index) } else { SwarmChild::Swarm(starts[depth + 1] + index) }
            };
            swarm.push(SwarmNode {
                id: ids[index],
                parent: None,
                children: children.clone().map(child).collect(),
                systems: covered.clone(),
            });
        }
    }
    for index in 0..swarm.len() {
        for child in swarm[index].children.clone() {
            if let SwarmChild::Swarm(below) = child {
                swarm[below].parent = Some(index);
            }
        }
    }
    (swarm, parents)
}

#[cfg(test)]
mod tests;
