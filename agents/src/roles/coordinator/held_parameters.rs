//! Determines whether the MemoryX agents hold the parameters of an earlier coordinator of this run, before the run is
//! prepared. A coordinator that continues from them needs neither the data of a checkpoint nor training data.
//!
//! ```text
//!  model_dir had an owner ──no──► nothing is held
//!        └─yes─► hellos:  memoryx-0 at step 57   memoryx-1 at step 57   ► held
//!                         memoryx-0 at step 57   memoryx-1 is empty     ► not held
//!                         memoryx-0 at step 57   (no answer)            ► not held, after a timeout
//! ```
//!
//! The result decides only what is read and verified in advance: the driver decides from the same hellos what the run
//! continues from, when all agents have joined.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millrace_emulator::placement::{ShardId, shard_of_agent};
use millrace_engine::message::ShardState;
use millrace_engine::types::{AgentId, Role};
use millrace_protocol::launch::AgentCounts;

use crate::control::server::{ControlEvent, ControlEvents};

/// How long MemoryX agents are waited for. They try to join a new coordinator several times a second.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns whether a replica of every shard has joined that holds parameters with at least one update of this run.
/// Leaves the events to the driver.
pub async fn are_parameters_held(agents: &mut ControlEvents, counts: &AgentCounts) -> bool {
    let mut hellos = ShardHellos::new(counts);
    let is_held = async {
        loop {
            match agents.peek().await {
                Some(ControlEvent::Hello(_, hello)) => hellos.record(hello.agent, hello.shard),
                Some(ControlEvent::Disconnected(agent, _)) => hellos.forget(*agent),
                Some(_) => {}
                None => return false,
            }
            if let Some(is_held) = hellos.verdict() {
                return is_held;
            }
        }
    };
    tokio::time::timeout(HELLO_TIMEOUT, is_held).await.unwrap_or(false)
}

/// The states of the MemoryX agents that have joined.
struct ShardHellos {
    shards: u32,
    replicas: u32,
    states: BTreeMap<AgentId, ShardState>,
}

impl ShardHellos {
    const fn new(counts: &AgentCounts) -> Self {
        Self { shards: counts.shards as u32, replicas: counts.replicas as u32, states: BTreeMap::new() }
    }

    fn record(&mut self, agent: AgentId, state: Option<ShardState>) {
        if agent.role == Role::MemoryX && agent.index < self.shards.saturating_mul(self.replicas) {
            self.states.insert(agent, state.unwrap_or_default());
        }
    }

    fn forget(&mut self, agent: AgentId) {
        self.states.remove(&agent);
    }

    /// Returns whether parameters are held; `None` while that depends on agents that have not joined.
    fn verdict(&self) -> Option<bool> {
        let holds = |state: &ShardState| state.loaded && state.record.is_some();
        let held = self.states.iter().filter(|(_, state)| holds(state));
        let held: BTreeSet<ShardId> = held.map(|(agent, _)| shard_of_agent(agent.index, self.shards)).collect();
        let have_all_joined = self.states.len() as u32 == self.shards.saturating_mul(self.replicas);
        match held.len() as u32 == self.shards {
            true => Some(true),
            false => have_all_joined.then_some(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_engine::types::{CommitRecord, TrainingHistory};

    use super::*;

    fn at_step(step: u64) -> ShardState {
        let history = TrainingHistory::default();
        let record = CommitRecord { step, scale: 1.0, learning_rate: 0.1, loss: 1.0, norm: 1.0, tokens: 1, history };
        ShardState { loaded: true, committed: step, record: Some(record), prepared: None }
    }

    #[test]
    fn parameters_are_held_if_a_replica_of_every_shard_has_them() {
        let (held, loaded) = (at_step(7), ShardState { loaded: true, ..ShardState::default() });
        let empty = ShardState::default();
        for (replicas, hellos, expected) in [
            (1, vec![(0, held)], None),
            (1, vec![(0, held), (1, held)], Some(true)),
            (1, vec![(0, held), (1, empty)], Some(false)),
            (1, vec![(0, loaded), (1, loaded)], Some(false)),
            (1, vec![(0, held), (1, held), (1, empty)], Some(false)),
            (2, vec![(0, held), (2, held), (1, empty)], None),
            (2, vec![(0, held), (2, empty), (3, held)], Some(true)),
        ] {
            let mut shards = ShardHellos { shards: 2, replicas, states: BTreeMap::new() };
            hellos.iter().for_each(|&(index, state)| shards.record(AgentId::new(Role::MemoryX, index), Some(state)));
            shards.record(AgentId::new(Role::MemoryX, 4), Some(held));
            shards.record(AgentId::new(Role::Cs2, 0), None);
            assert_eq!(shards.verdict(), expected, "{hellos:?}");
        }
    }

    #[test]
    fn agent_that_is_lost_holds_nothing() {
        let mut shards = ShardHellos { shards: 1, replicas: 1, states: BTreeMap::new() };
        let agent = AgentId::new(Role::MemoryX, 0);
        shards.record(agent, Some(at_step(7)));
        shards.forget(agent);
        assert_eq!(shards.verdict(), None);
    }
}
