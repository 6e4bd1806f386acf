//! Counts the processes of an attempt, and decides which of those that end are replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millrace_engine::types::{AgentId, Role};
use millrace_protocol::launch::AgentCounts;
use millrace_replacement::{Consequence, Loss, LossCount, Necessity};

use super::Exit;
use super::supervise::ProcessExit;

/// Time for the coordinator to report the failure of an agent. Also the time for it to end if the stop request could
/// not be sent.
pub const FAILURE_REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the coordinator has to end after an agent has left, if that was the end of the run.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a process must have run to count as unresponsive: the coordinator reports an agent 2 s after its loss, so
/// an older process is not a replacement of it.
const START_TIMEOUT: Duration = Duration::from_millis(2500);

/// The running processes of an attempt, and the losses of each agent.
#[derive(Debug)]
pub struct Replacements {
    /// Running processes of each role.
    running: BTreeMap<Role, usize>,
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
        let count = |role| if others || role == Role::Coordinator { counts.of(role) } else { 0 };
        Self {
            running: Role::ALL.into_iter().map(|role| (role, count(role))).collect(),
            least_systems: counts.least_systems,
            losses: BTreeMap::new(),
            unresponsive: BTreeSet::new(),
        }
    }

    /// Returns the number of running processes of `role`.
    pub fn running(&self, role: Role) -> usize {
        self.running.get(&role).copied().unwrap_or_default()
    }

    /// Records that a process of `agent` was started; returns whether its predecessor was killed because it did not
    /// respond.
    pub fn on_started(&mut self, agent: AgentId) -> bool {
        *self.running.entry(agent.role).or_default() += 1;
        self.unresponsive.remove(&agent)
    }

    /// Records that a process of `agent` has ended.
    pub fn on_ended(&mut self, agent: AgentId) {
        let running = self.running.entry(agent.role).or_default();
        *running = running.saturating_sub(1);
    }

    /// Returns when the process of `agent`, which has ended after `uptime`, is replaced; `None` if it is given up.
    pub fn replace_after(&mut self, agent: AgentId, exit: ProcessExit, uptime: Duration) -> Option<Duration> {
        let remaining = self.running(agent.role);
        let necessity = match agent.role {
            Role::Cs2 if remaining >= self.least_systems.max(1) => Necessity::Optional,
            Role::SwarmX | Role::Activation if remaining > 0 => Necessity::Optional,
            _ => Necessity::Required,
        };
        let (loss, grace) = loss_of(exit);
        match self.losses.entry(agent).or_default().on_loss(loss, necessity, uptime) {
            Consequence::Replace { after } => Some(after.max(grace)),
            Consequence::GiveUp(_) => None,
        }
    }

    /// Returns whether the process of `agent`, which has run for `uptime`, is to be killed because the agent is lost to
    /// its coordinator. A younger process is a replacement that is still starting.
    pub fn kills_unresponsive(&mut self, agent: AgentId, uptime: Duration) -> bool {
        uptime > START_TIMEOUT && self.unresponsive.insert(agent)
    }
}

/// Describes the end of a process that is replaced, to follow its name in a message.
pub fn describe_end(exit: ProcessExit, was_unresponsive: bool) -> String {
    if was_unresponsive { "did not respond and was killed".to_owned() } else { exit.to_string() }
}

/// Returns the loss that the end of a process is, and how long the launcher waits before it counts as one.
fn loss_of(exit: ProcessExit) -> (Loss, Duration) {
    match exit.exit() {
        None => (Loss::Killed, Duration::ZERO),
        Some(exit @ (Exit::Failed | Exit::BadInput)) => (Loss::Exited(exit), FAILURE_REPORT_TIMEOUT),
        Some(exit) => (Loss::Exited(exit), LEAVE_TIMEOUT),
    }
}
