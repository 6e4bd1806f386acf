//! Computes the payload bytes of a step if every number is sent, including zeros. Windows and links are sized for this.
//! A gradient that is mostly zero takes less.

use serde::{Deserialize, Serialize};

use crate::placement::Placement;
use crate::plan::{DownSlot, StreamPlan};

/// Bytes of a gradient on the wire.
const GRADIENT_BYTES: u64 = 4;

/// Payload bytes of a step over all links together, without headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Number of links that carry weights down and gradients up.
    pub links: u64,
    /// Weights of a training step, over all links and rounds.
    pub weights_down: u64,
    /// Partial sums of gradients including zeros, over all links and rounds.
    pub gradients_up: u64,
    /// Maximum partial sums of a gradient that a link carries in a round. It is one if every share is a subtree of the
    /// leaves.
    #[serde(rename = "most_sums")]
    pub max_partial_sums: u32,
    /// Tokens and labels of a training step.
    pub samples: u64,
    /// Weights of an evaluation step.
    pub eval_weights_down: u64,
    /// Tokens and labels of an evaluation step.
    pub eval_samples: u64,
}

impl Traffic {
    /// Returns the bytes of a training step.
    pub const fn training_step(&self) -> u64 {
        self.weights_down + self.gradients_up + self.samples
    }
}

/// Computes the traffic of `plan` under `placement`.
///
/// Down: each slot once over the link from MemoryX to the root (all shards together), over each link between SwarmX
/// nodes and over each link to a system. Up: each slot once for every partial sum of the sender; from the root once for
/// every replica.
pub fn traffic(plan: &StreamPlan, placement: &Placement) -> Traffic {
    let links = (placement.swarm.len() + placement.systems.len()) as u64;
    let down = |slots: &[DownSlot], rounds: usize| {
        let bytes = |slot: &DownSlot| plan.chunks[slot.chunk].elements * plan.chunk_encoding(slot.chunk).bytes();
        slots.iter().map(|slot| bytes(slot) as u64).sum::<u64>() * links * rounds as u64
    };
    let up: u64 = plan.up.iter().map(|slot| plan.chunks[slot.chunk].elements as u64).sum();
    let (mut sums, mut max_partial_sums) = (0u64, 0);
    let replicas = placement.memoryx.len() as u64 / u64::from(placement.shards.max(1));
    for round in 0..placement.rounds.len() {
        let systems = (0..placement.systems.len()).map(|index| (placement.system_nodes(index, round).len(), 1));
        // The root, which is the first node, sends each sum to every replica of its shard.
        let receivers = |index| if index == 0 { replicas } else { 1 };
        let swarm =
            (0..placement.swarm.len()).map(|index| (placement.swarm_nodes(index, round).len(), receivers(index)));
        for (count, receivers) in systems.chain(swarm) {
            sums += count as u64 * receivers;
            max_partial_sums = max_partial_sums.max(count as u32);
        }
    }
    let sample = plan.graph.input_bytes();
    Traffic {
        links,
        weights_down: down(&plan.down_train, placement.rounds.len()),
        gradients_up: up.saturating_mul(GRADIENT_BYTES).saturating_mul(sums),
        max_partial_sums,
        samples: plan.leaves.batch() * sample,
        eval_weights_down: down(&plan.down_eval, placement.eval_rounds.len()),
        eval_samples: plan.eval_leaves.batch() * sample,
    }
}
