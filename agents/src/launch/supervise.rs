//! Decides how the launcher reacts when a process ends or the user interrupts the run: a state machine without
//! processes and without a clock.
//!
//! ```text
//!  an agent fails            ─FAILURE_REPORT_TIMEOUT─►  stop the coordinator ─SAVE_TIMEOUT─► kill all
//!  an agent leaves           ─LOSS_DETECTION_TIMEOUT─►  stop the coordinator ─SAVE_TIMEOUT─► kill all
//!  the coordinator ends as a success     ─SHUTDOWN_TIMEOUT─►  kill all
//!  the coordinator ends as interrupted   ─►  terminate all ─SHUTDOWN_TIMEOUT─►  kill all
//!  the coordinator ends otherwise                       ─►  kill all
//!  the user interrupts       ─►  stop the coordinator; deadline SAVE_TIMEOUT only if an agent has failed
//!  the user interrupts again, or after the coordinator has ended  ─►  kill all
//! ```
//!
//! * The first timeout gives the coordinator time to report the failure itself; its report takes precedence.
//! * If the failed agent is MemoryX, nothing can be saved: all processes are killed after the first timeout.
//! * A process that SIGINT ends was interrupted by the user: a terminal sends Ctrl-C also to a process that has started
//!   but has not left the launcher's process group yet.
//! * Every exit that ends the run early sets a deadline or kills, so a dead process can't hang the run.

use std::time::Duration;

use millrace_engine::types::{AgentId, Role};
use millrace_protocol::journal::USER_STOP_REASON;

use super::Exit;

/// Time for the coordinator to report the failure of an agent. Also the time for it to end if the stop request could
/// not be sent.
pub const FAILURE_REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the coordinator then has to save the last committed step.
pub const SAVE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the coordinator has to notice that an agent has left, or that an agent lost a peer that is still running.
pub const LOSS_DETECTION_TIMEOUT: Duration = Duration::from_secs(20);
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
    fn exit(self) -> Option<Exit> {
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
    Ended(AgentId, ProcessExit),
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
    running: usize,
    coordinator: Option<ProcessExit>,
    failed_process: Option<(AgentId, ProcessExit)>,
    /// The first agent that ended without a failure of its own while the coordinator was running. It becomes the
    /// failed process if no other one does.
    leaving_agent: Option<(AgentId, ProcessExit)>,
    interrupted: bool,
    asked_to_stop: bool,
    killed: bool,
    /// Whether the coordinator was killed before it ended by itself.
    killed_coordinator: bool,
}

impl Supervisor {
    /// Creates a supervisor of `processes` running processes.
    pub const fn new(processes: usize) -> Self {
        Self {
            running: processes,
            coordinator: None,
            failed_process: None,
            leaving_agent: None,
            interrupted: false,
            asked_to_stop: false,
            killed: false,
            killed_coordinator: false,
        }
    }

    /// Returns whether every process has ended.
    pub const fn is_over(&self) -> bool {
        self.running == 0
    }

    /// Handles an event; returns the commands to execute.
    pub fn handle_event(&mut self, event: SupervisorEvent) -> Vec<SupervisorCommand> {
        match event {
            SupervisorEvent::Ended(agent, exit) => self.on_ended(agent, exit),
            SupervisorEvent::Interrupted if self.interrupted => self.kill(),
            SupervisorEvent::Interrupted => {
                self.interrupted = true;
                match self.coordinator {
                    Some(_) => self.kill(),
                    None => {
                        let mut commands = self.stop(USER_STOP_REASON.into());
                        // While all agents are alive, saving may take any time.
                        let deadline = if self.failed_process.is_none() {
                            SupervisorCommand::NoDeadline
                        } else {
                            SupervisorCommand::Within(SAVE_TIMEOUT)
                        };
                        commands.push(deadline);
                        commands
                    }
                }
            }
            // The coordinator has already ended.
            SupervisorEvent::StopFailed if self.coordinator.is_some() => Vec::new(),
            SupervisorEvent::StopFailed => vec![SupervisorCommand::Within(FAILURE_REPORT_TIMEOUT)],
            SupervisorEvent::Deadline => self.on_deadline(),
        }
    }

    fn on_ended(&mut self, agent: AgentId, exit: ProcessExit) -> Vec<SupervisorCommand> {
        self.running = self.running.saturating_sub(1);
        if agent.role == Role::Coordinator {
            self.coordinator = Some(exit);
            return match exit.exit() {
                // The coordinator has sent `Finish` to all agents.
                Some(Exit::Success) => vec![SupervisorCommand::Within(SHUTDOWN_TIMEOUT)],
                // Agents that had not joined did not receive `Finish`, and would try to reach the coordinator.
                Some(Exit::Interrupted) => {
                    vec![SupervisorCommand::TerminateAll, SupervisorCommand::Within(SHUTDOWN_TIMEOUT)]
                }
                // Agents that did not receive `Finish` would wait for another coordinator, which a local run never has.
                _ => self.kill(),
            };
        }
        if self.coordinator.is_some() || self.failed_process.is_some() || self.killed {
            return Vec::new();
        }
        match exit.exit() {
            Some(Exit::Success | Exit::PeerLost | Exit::Interrupted) => {
                let first = self.leaving_agent.is_none();
                self.leaving_agent.get_or_insert((agent, exit));
                // A stop in progress has its own deadline.
                if first && !self.asked_to_stop {
                    vec![SupervisorCommand::Within(LOSS_DETECTION_TIMEOUT)]
                } else {
                    Vec::new()
                }
            }
            Some(Exit::Failed | Exit::BadInput) | None => {
                self.failed_process = Some((agent, exit));
                vec![SupervisorCommand::Within(FAILURE_REPORT_TIMEOUT)]
            }
        }
    }

    fn on_deadline(&mut self) -> Vec<SupervisorCommand> {
        if self.coordinator.is_none() && self.failed_process.is_none() {
            self.failed_process = self.leaving_agent;
        }
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
mod tests {
    use super::*;

    const COORDINATOR: AgentId = AgentId::new(Role::Coordinator, 0);
    const SHARD: AgentId = AgentId::new(Role::MemoryX, 1);
    const SYSTEM: AgentId = AgentId::new(Role::Cs2, 0);
    const KILLED: ProcessExit = ProcessExit::Signal(9);

    fn ended(agent: AgentId, code: i32) -> SupervisorEvent {
        SupervisorEvent::Ended(agent, ProcessExit::Code(code))
    }

    /// Passes events to the supervisor of three processes; returns all commands, and how the run ended.
    fn run_events(events: impl IntoIterator<Item = SupervisorEvent>) -> (Vec<SupervisorCommand>, RunExit) {
        let mut supervisor = Supervisor::new(3);
        let commands = events.into_iter().flat_map(|event| supervisor.handle_event(event)).collect();
        (commands, supervisor.run_exit())
    }

    #[test]
    fn run_ends_with_the_coordinators_exit_code() {
        let leave = [SupervisorCommand::Within(SHUTDOWN_TIMEOUT)].as_slice();
        let terminated = [SupervisorCommand::TerminateAll, SupervisorCommand::Within(SHUTDOWN_TIMEOUT)].as_slice();
        let killed = [SupervisorCommand::KillAll, SupervisorCommand::NoDeadline].as_slice();
        let exits = [
            (0, Exit::Success, leave),
            (1, Exit::Failed, killed),
            (2, Exit::BadInput, killed),
            (130, Exit::Interrupted, terminated),
        ];
        for (code, exit, expected) in exits {
            let (commands, run_exit) = run_events([ended(COORDINATOR, code), ended(SHARD, 3), ended(SYSTEM, 3)]);
            assert_eq!(commands, expected);
            assert_eq!(run_exit, RunExit { exit, failed_process: None }, "{code}");
        }
    }

    #[test]
    fn agents_that_leave_first_at_the_end_change_nothing() {
        let (_, run_exit) = run_events([ended(SHARD, 0), ended(SYSTEM, 0), ended(COORDINATOR, 0)]);
        assert_eq!(run_exit, RunExit { exit: Exit::Success, failed_process: None });
    }

    #[test]
    fn lost_system_ends_run_after_save() {
        let death = SupervisorEvent::Ended(SYSTEM, KILLED);
        let (commands, run_exit) =
            run_events([death, SupervisorEvent::Deadline, ended(COORDINATOR, 130), ended(SHARD, 0)]);
        let stop = SupervisorCommand::Stop("cs2-0 was killed (signal 9)".into());
        let expected = [
            SupervisorCommand::Within(FAILURE_REPORT_TIMEOUT),
            stop,
            SupervisorCommand::Within(SAVE_TIMEOUT),
            SupervisorCommand::TerminateAll,
            SupervisorCommand::Within(SHUTDOWN_TIMEOUT),
        ];
        assert_eq!(commands, expected);
        assert_eq!(run_exit, RunExit { exit: Exit::Failed, failed_process: Some((SYSTEM, KILLED)) });
    }

    #[test]
    fn lost_shard_ends_the_run_without_a_save() {
        let (commands, run_exit) = run_events([SupervisorEvent::Ended(SHARD, KILLED), SupervisorEvent::Deadline]);
        assert_eq!(
            commands,
            [
                SupervisorCommand::Within(FAILURE_REPORT_TIMEOUT),
                SupervisorCommand::KillAll,
                SupervisorCommand::NoDeadline
            ]
        );
        assert_eq!(run_exit, RunExit { exit: Exit::Failed, failed_process: Some((SHARD, KILLED)) });
    }

    #[test]
    fn coordinators_own_report_takes_precedence() {
        let (_, run_exit) = run_events([ended(SYSTEM, 2), ended(COORDINATOR, 2), ended(SHARD, 3)]);
        assert_eq!(run_exit, RunExit { exit: Exit::BadInput, failed_process: None });
    }

    #[test]
    fn peer_loss_is_not_blamed_and_never_hangs_the_run() {
        let (_, run_exit) =
            run_events([ended(SYSTEM, 3), SupervisorEvent::Ended(SHARD, KILLED), SupervisorEvent::Deadline]);
        assert_eq!(run_exit.failed_process, Some((SHARD, KILLED)));
        let (commands, run_exit) = run_events([ended(SYSTEM, 3), SupervisorEvent::Deadline, SupervisorEvent::Deadline]);
        assert_eq!(commands.first(), Some(&SupervisorCommand::Within(LOSS_DETECTION_TIMEOUT)));
        assert!(commands.contains(&SupervisorCommand::KillAll));
        assert_eq!(run_exit.failed_process, Some((SYSTEM, ProcessExit::Code(3))));
    }

    #[test]
    fn crashed_coordinator_is_named() {
        for exit in [KILLED, ProcessExit::Code(101), ProcessExit::Code(3)] {
            let (commands, run_exit) = run_events([SupervisorEvent::Ended(COORDINATOR, exit)]);
            assert_eq!(commands, [SupervisorCommand::KillAll, SupervisorCommand::NoDeadline]);
            assert_eq!(run_exit, RunExit { exit: Exit::Failed, failed_process: Some((COORDINATOR, exit)) });
        }
    }

    #[test]
    fn first_interrupt_waits_for_save_and_second_does_not() {
        let saved = [SupervisorEvent::Interrupted, ended(COORDINATOR, 130), ended(SHARD, 0), ended(SYSTEM, 0)];
        let (commands, run_exit) = run_events(saved);
        assert_eq!(commands[..2], [SupervisorCommand::Stop("interrupted".into()), SupervisorCommand::NoDeadline]);
        assert_eq!(run_exit, RunExit { exit: Exit::Interrupted, failed_process: None });

        let all = [COORDINATOR, SHARD, SYSTEM].map(|agent| SupervisorEvent::Ended(agent, KILLED));
        let (commands, run_exit) =
            run_events([SupervisorEvent::Interrupted, SupervisorEvent::Interrupted].into_iter().chain(all));
        assert!(commands.contains(&SupervisorCommand::KillAll));
        assert_eq!(run_exit, RunExit { exit: Exit::Interrupted, failed_process: None });
    }

    /// Ctrl-C reaches a process that is still in the launcher's process group. It did not fail.
    #[test]
    fn process_that_ctrl_c_ends_is_not_the_cause() {
        let ended_by_ctrl_c = |agent| SupervisorEvent::Ended(agent, ProcessExit::Signal(2));
        let interrupted = RunExit { exit: Exit::Interrupted, failed_process: None };
        let others = || [ended(COORDINATOR, 130), ended(SHARD, 0)];
        let (_, run_exit) =
            run_events([SupervisorEvent::Interrupted, ended_by_ctrl_c(SYSTEM)].into_iter().chain(others()));
        assert_eq!(run_exit, interrupted);
        let (commands, run_exit) =
            run_events([ended_by_ctrl_c(SYSTEM), SupervisorEvent::Interrupted].into_iter().chain(others()));
        assert_eq!(run_exit, interrupted);
        assert!(!commands.contains(&SupervisorCommand::KillAll), "{commands:?}");
        let (_, run_exit) = run_events([ended_by_ctrl_c(COORDINATOR), ended(SHARD, 0), ended(SYSTEM, 0)]);
        assert_eq!(run_exit, interrupted);
    }

    #[test]
    fn failed_save_is_reported_after_an_interruption() {
        let (_, run_exit) =
            run_events([SupervisorEvent::Interrupted, ended(COORDINATOR, 1), ended(SHARD, 0), ended(SYSTEM, 0)]);
        assert_eq!(run_exit.exit, Exit::Failed);
    }

    #[test]
    fn unanswered_stop_ends_in_a_kill() {
        let (commands, _) =
            run_events([SupervisorEvent::Interrupted, SupervisorEvent::StopFailed, SupervisorEvent::Deadline]);
        assert_eq!(
            commands[2..],
            [
                SupervisorCommand::Within(FAILURE_REPORT_TIMEOUT),
                SupervisorCommand::KillAll,
                SupervisorCommand::NoDeadline
            ]
        );
        // The coordinator was already ending: its own exit counts.
        let (commands, run_exit) =
            run_events([SupervisorEvent::Interrupted, ended(COORDINATOR, 130), SupervisorEvent::StopFailed]);
        assert!(!commands.contains(&SupervisorCommand::KillAll));
        assert_eq!(run_exit.exit, Exit::Interrupted);
    }
}
