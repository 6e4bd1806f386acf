//! Counts the processes of an attempt, and decides which of those that end are replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millrace_engine::types::{AgentId, Role};
use millrace_protocol::launch::AgentCounts;
use millrace_replacement::{Consequence, Loss, LossCount, Necessity};

use super::Exit;
use super::supervise::ProcessExit;

/// How long a process must have run to count as unresponsive: the coordinator reports an agent 2 s after its loss, so
/// an older process is not a replacement of it.
const START_TIMEOUT: Duration = Duration::from_millis(2500);

/// The running processes of an attempt, and the losses of each agent.
#[derive(Debug)]
pub struct Replacements {
    /// Agents whose process runs.
    running: BTreeSet<AgentId>,
    /// Number of MemoryX shards.
    shards: usize,
    /// Minimum number of systems with which training continues.
    least_systems: usize,
    losses: BTreeMap<AgentId, LossCount>,
    /// Processes that are killed because they do not respond.
    unresponsive: BTreeSet<AgentId>,
}

impl Replacements {
    /// Creates the state of an attempt whose processes have all been started; without any but the coordinator if
    /// `others` is false.
    pub fn new(counts: &AgentCounts, others: bool) -> Self {
        Self {
            running: counts.agents().filter(|agent| others || agent.role == Role::Coordinator).collect(),
            shards: counts.shards,
            least_systems: counts.least_systems,
            losses: BTreeMap::new(),
            unresponsive: BTreeSet::new(),
        }
    }

    /// Sets the minimum number of systems with which training continues.
    pub const fn set_least_systems(&mut self, least_systems: usize) {
        self.least_systems = least_systems;
    }

    /// Returns the number of running processes of `role`.
    pub fn running(&self, role: Role) -> usize {
        self.running.iter().filter(|agent| agent.role == role).count()
    }

    /// Records that a process of `agent` was started; returns whether its predecessor was killed because it did not
    /// respond.
    pub fn on_started(&mut self, agent: AgentId) -> bool {
        self.running.insert(agent);
        self.unresponsive.remove(&agent)
    }

    /// Records that a process of `agent` has ended.
    pub fn on_ended(&mut self, agent: AgentId) {
        self.running.remove(&agent);
    }

    /// Returns when the process of `agent`, which has ended after `uptime`, is replaced; `None` if it is given up.
    pub fn replace_after(&mut self, agent: AgentId, exit: ProcessExit, uptime: Duration) -> Option<Duration> {
        let remaining = self.running.iter().map(|other| (other.role, other.index));
        let necessity =
            Necessity::of_agent((agent.role, agent.index), remaining, self.shards as u32, self.least_systems);
        let loss = exit.exit().map_or(Loss::Killed, Loss::Exited);
        match self.losses.entry(agent).or_default().on_loss(loss, necessity, uptime) {
            Consequence::Replace { after } => Some(after.max(loss.settling_time())),
            Consequence::GiveUp(_) => None,
        }
    }

    /// Returns whether the process of `agent`, which has run for `uptime`, is to be killed because the agent is lost to
    /// its coordinator. A younger process is a replacement that is still starting.
    pub fn kills_unresponsive(&mut self, agent: AgentId, uptime: Duration) -> bool {
        uptime > START_TIMEOUT && self.unresponsive.insert(agent)
    }
}

/// Returns whether a coordinator that ended in this way was lost, instead of having ended the attempt.
pub fn is_coordinator_lost(exit: ProcessExit) -> bool {
    matches!(exit.exit(), None | Some(Exit::PeerLost))
}

/// Describes the end of a process that is replaced, to follow its name in a message.
pub fn describe_end(exit: ProcessExit, was_unresponsive: bool) -> String {
    if was_unresponsive { "did not respond and was killed".to_owned() } else { exit.to_string() }
}
