//! Decides how the launcher reacts when a process ends or the user interrupts the run: a state machine without
//! processes and without a clock.
//!
//! ```text
//!  an agent or the coordinator is killed  ─backoff─►  replace it
//!  an agent fails             ─FAILURE_REPORT_TIMEOUT─►  replace it
//!  an agent leaves                    ─LEAVE_TIMEOUT─►  replace it
//!  an agent is given up       ─FAILURE_REPORT_TIMEOUT─►  stop the coordinator ─SAVE_TIMEOUT─► kill all
//!  the coordinator is given up, or ends as a failure    ─►  kill all
//!  the coordinator ends as a success     ─SHUTDOWN_TIMEOUT─►  kill all
//!  the coordinator ends as interrupted   ─►  terminate all ─SHUTDOWN_TIMEOUT─►  kill all
//!  the user interrupts       ─►  stop the coordinator; deadline SAVE_TIMEOUT only if an agent is missing
//!  the user interrupts again, or after the coordinator has ended  ─►  kill all
//! ```
//!
//! * [`Replacements`] decides whether and when a process is replaced, or that it is given up.
//! * The first timeout gives the coordinator time to report the failure itself, and to end: its report takes
//!   precedence. An agent that leaves may have been told that the run is over, which the end of the coordinator shows.
//! * If MemoryX is given up, nothing can be saved: all processes are killed after the first timeout.
//! * A process that SIGINT ends was interrupted by the user: a terminal sends Ctrl-C also to a process that has started
//!   but has not left the launcher's process group yet.
//! * No process is replaced once the run is ending, except a shard while the user's stop waits for it.

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_engine::types::{AgentId, Role};
use millrace_protocol::journal::USER_STOP_REASON;
use millrace_replacement::FAILURE_REPORT_TIMEOUT;

use super::Exit;
use super::replacements::{Replacements, is_coordinator_lost};

/// How long the coordinator then has to save the last committed step.
pub const SAVE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long all other processes have to leave once the coordinator has ended.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of the signal of Ctrl-C.
const SIGINT: i32 = rustix::process::Signal::INT.as_raw();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessExit {
    Code(i32),
    Signal(i32),
}

impl ProcessExit {
    pub(super) fn exit(self) -> Option<Exit> {
        match self {
            ProcessExit::Code(code) => Exit::from_code(code),
            ProcessExit::Signal(SIGINT) => Some(Exit::Interrupted),
            ProcessExit::Signal(_) => None,
        }
    }
}

impl std::fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // The exit code of a program after a panic.
            ProcessExit::Code(101) => f.write_str("crashed (exit code 101)"),
            ProcessExit::Code(code) => write!(f, "ended with exit code {code}"),
            ProcessExit::Signal(9) => f.write_str("was killed (signal 9)"),
            ProcessExit::Signal(signal) => write!(f, "was ended by signal {signal}"),
        }
    }
}

/// Input of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupervisorEvent {
    /// A process ended after it had run for this time.
    Ended(AgentId, ProcessExit, Duration),
    /// The coordinator counts an agent as lost whose process has run for this time.
    Unresponsive(AgentId, Duration),
    /// The time of a [`SupervisorCommand::Replace`] has elapsed.
    ReplacementDue(AgentId),
    /// The user interrupted the run.
    Interrupted,
    /// The coordinator could not be asked to stop.
    StopFailed,
    /// The last deadline has passed.
    Deadline,
}

/// Output of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupervisorCommand {
    /// Send [`SupervisorEvent::ReplacementDue`] after this time.
    Replace(AgentId, Duration),
    /// Report to the user how the process of this agent ended, and start another one.
    Start {
        agent: AgentId,
        exit: ProcessExit,
        /// Whether it was killed because it did not respond.
        was_unresponsive: bool,
    },
    /// Send SIGKILL to the process of this agent.
    Kill(AgentId),
    /// Ask the coordinator to save and stop, for this reason.
    Stop(String),
    /// Set the deadline, replacing an earlier one.
    Within(Duration),
    NoDeadline,
    /// Send SIGTERM to every running process.
    TerminateAll,
    KillAll,
}

/// How the run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunExit {
    /// The exit of the run.
    pub exit: Exit,
    /// The process whose end ended the run, if the coordinator has not reported it.
    pub failed_process: Option<(AgentId, ProcessExit)>,
}

/// Supervises the processes of a run: maps events to commands, and at the end says how the run ended.
#[derive(Debug)]
pub struct Supervisor {
    replacements: Replacements,
    /// Processes that ended and will be replaced.
    replacing: BTreeMap<AgentId, ProcessExit>,
    coordinator: Option<ProcessExit>,
    /// The process that was given up.
    failed_process: Option<(AgentId, ProcessExit)>,
    interrupted: bool,
    asked_to_stop: bool,
    killed: bool,
    /// Whether the coordinator was killed before it ended by itself.
    killed_coordinator: bool,
}

impl Supervisor {
    /// Creates a supervisor of a run with these processes.
    pub const fn new(replacements: Replacements) -> Self {
        Self {
            replacements,
            replacing: BTreeMap::new(),
            coordinator: None,
            failed_process: None,
            interrupted: false,
            asked_to_stop: false,
            killed: false,
            killed_coordinator: false,
        }
    }

    /// Returns whether every process has ended and none will be replaced.
    pub fn is_over(&self) -> bool {
        self.replacing.is_empty() && Role::ALL.into_iter().all(|role| self.replacements.running(role) == 0)
    }

    /// Handles an event; returns the commands to execute.
    pub fn handle_event(&mut self, event: SupervisorEvent) -> Vec<SupervisorCommand> {
        match event {
            SupervisorEvent::Ended(agent, exit, uptime) => self.on_ended(agent, exit, uptime),
            // The end of the process follows, and counts as its loss.
            SupervisorEvent::Unresponsive(agent, uptime)
                if !self.is_ending() && self.replacements.kills_unresponsive(agent, uptime) =>
            {
                vec![SupervisorCommand::Kill(agent)]
            }
            SupervisorEvent::Unresponsive(..) => Vec::new(),
            SupervisorEvent::ReplacementDue(agent) => match self.replacing.remove(&agent) {
                Some(exit) => {
                    let was_unresponsive = self.replacements.on_started(agent);
                    vec![SupervisorCommand::Start { agent, exit, was_unresponsive }]
                }
                None => Vec::new(),
            },
            SupervisorEvent::Interrupted if self.interrupted || self.coordinator.is_some() => {
                self.interrupted = true;
                self.kill()
            }
            SupervisorEvent::Interrupted => self.on_first_interrupt(),
            // The coordinator has already ended.
            SupervisorEvent::StopFailed if self.coordinator.is_some() => Vec::new(),
            SupervisorEvent::StopFailed => vec![SupervisorCommand::Within(FAILURE_REPORT_TIMEOUT)],
            SupervisorEvent::Deadline => self.on_deadline(),
        }
    }

    fn on_first_interrupt(&mut self) -> Vec<SupervisorCommand> {
        self.interrupted = true;
        let is_complete = self.failed_process.is_none() && self.replacing.is_empty();
        self.replacing.retain(|agent, _| agent.role == Role::MemoryX);
        if self.is_awaiting_coordinator() {
            // There is no coordinator that could save anything.
            return self.kill();
        }
        let mut commands = self.stop(USER_STOP_REASON.into());
        // While all agents are alive, saving may take any time.
        commands.push(if is_complete {
            SupervisorCommand::NoDeadline
        } else {
            SupervisorCommand::Within(SAVE_TIMEOUT)
        });
        commands
    }

    /// Returns whether the coordinator has ended and its replacement has not started.
    fn is_awaiting_coordinator(&self) -> bool {
        self.coordinator.is_none() && self.replacements.running(Role::Coordinator) == 0
    }

    /// Returns whether no process is replaced any more.
    const fn is_ending(&self) -> bool {
        self.coordinator.is_some() || self.failed_process.is_some() || self.killed || self.asked_to_stop
    }

    fn on_ended(&mut self, agent: AgentId, exit: ProcessExit, uptime: Duration) -> Vec<SupervisorCommand> {
        self.replacements.on_ended(agent);
        if agent.role == Role::Coordinator {
            return self.on_coordinator_ended(exit, uptime);
        }
        let is_awaited_shard = agent.role == Role::MemoryX && self.interrupted && !self.killed;
        if self.coordinator.is_some() || (self.is_ending() && !is_awaited_shard) {
            return Vec::new();
        }
        if let Some(after) = self.replacements.replace_after(agent, exit, uptime) {
            return self.replace(agent, exit, after);
        }
        self.failed_process = Some((agent, exit));
        self.replacing.clear();
        vec![SupervisorCommand::Within(FAILURE_REPORT_TIMEOUT)]
    }

    fn on_coordinator_ended(&mut self, exit: ProcessExit, uptime: Duration) -> Vec<SupervisorCommand> {
        let is_lost = is_coordinator_lost(exit) && !self.is_ending();
        let coordinator = AgentId::new(Role::Coordinator, 0);
        if is_lost && let Some(after) = self.replacements.replace_after(coordinator, exit, uptime) {
            return self.replace(coordinator, exit, after);
        }
        self.coordinator = Some(exit);
        self.replacing.clear();
        match exit.exit() {
            // The coordinator has sent `Finish` to all agents.
            Some(Exit::Success) => vec![SupervisorCommand::Within(SHUTDOWN_TIMEOUT)],
            // Agents that had not joined did not receive `Finish`, and would try to reach the coordinator.
            Some(Exit::Interrupted) => {
                vec![SupervisorCommand::TerminateAll, SupervisorCommand::Within(SHUTDOWN_TIMEOUT)]
            }
            // Agents that did not receive `Finish` would wait for another coordinator.
            _ => self.kill(),
        }
    }

    fn replace(&mut self, agent: AgentId, exit: ProcessExit, after: Duration) -> Vec<SupervisorCommand> {
        self.replacing.insert(agent, exit);
        vec![SupervisorCommand::Replace(agent, after)]
    }

    fn on_deadline(&mut self) -> Vec<SupervisorCommand> {
        match self.failed_process {
            // Without MemoryX nothing can be saved.
            Some((agent, ending))
                if self.coordinator.is_none() && agent.role != Role::MemoryX && !self.asked_to_stop =>
            {
                let mut commands = self.stop(format!("{agent} {ending}"));
                commands.push(SupervisorCommand::Within(SAVE_TIMEOUT));
                commands
            }
            _ => self.kill(),
        }
    }

    fn stop(&mut self, reason: String) -> Vec<SupervisorCommand> {
        self.asked_to_stop = true;
        vec![SupervisorCommand::Stop(reason)]
    }

    fn kill(&mut self) -> Vec<SupervisorCommand> {
        self.killed = true;
        self.replacing.clear();
        self.killed_coordinator |= self.coordinator.is_none();
        vec![SupervisorCommand::KillAll, SupervisorCommand::NoDeadline]
    }

    /// Returns how the run ended. Valid once all processes have ended.
    pub fn run_exit(&self) -> RunExit {
        let coordinator_exit = self.coordinator.and_then(ProcessExit::exit).filter(|&exit| exit != Exit::PeerLost);
        // An exit after the coordinator was requested to stop because of the failed process is a consequence, not the
        // cause.
        let stopped_because_of_failure = self.asked_to_stop && self.failed_process.is_some();
        if let Some(exit @ (Exit::Failed | Exit::BadInput)) = coordinator_exit
            && !stopped_because_of_failure
        {
            return RunExit { exit, failed_process: None };
        }
        if let Some(failed_process) = self.failed_process {
            return RunExit { exit: Exit::Failed, failed_process: Some(failed_process) };
        }
        match coordinator_exit {
            Some(exit) => RunExit { exit, failed_process: None },
            None if self.interrupted => RunExit { exit: Exit::Interrupted, failed_process: None },
            None => {
                let crashed = self.coordinator.filter(|_| !self.killed_coordinator);
                let failed_process = crashed.map(|exit| (AgentId::new(Role::Coordinator, 0), exit));
                RunExit { exit: Exit::Failed, failed_process }
            }
        }
    }
}

#[cfg(test)]
mod tests;
