use millrace_protocol::launch::AgentCounts;

use super::*;
use millrace_replacement::LEAVE_TIMEOUT;

const COORDINATOR: AgentId = AgentId::new(Role::Coordinator, 0);
const SHARD: AgentId = AgentId::new(Role::MemoryX, 0);
const SYSTEM: AgentId = AgentId::new(Role::Cs2, 0);
const KILLED: ProcessExit = ProcessExit::Signal(9);
/// Shorter than an instance runs whose loss counts as the first.
const SHORT: Duration = Duration::from_secs(1);

fn ended(agent: AgentId, code: i32) -> SupervisorEvent {
    SupervisorEvent::Ended(agent, ProcessExit::Code(code), SHORT)
}

fn killed(agent: AgentId) -> SupervisorEvent {
    SupervisorEvent::Ended(agent, KILLED, SHORT)
}

/// Returns a supervisor of a coordinator, a shard and two systems.
fn supervisor() -> Supervisor {
    let counts = AgentCounts {
        systems: 2,
        least_systems: 1,
        shards: 1,
        replicas: 1,
        swarmx: 0,
        fan_out: 2,
        activation_servers: 0,
    };
    Supervisor::new(Replacements::new(&counts, true))
}

/// Passes events to the supervisor; returns all commands, and how the run ended.
fn run_events(events: impl IntoIterator<Item = SupervisorEvent>) -> (Vec<SupervisorCommand>, RunExit) {
    let mut supervisor = supervisor();
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
fn agents_that_leave_first_at_the_end_are_not_replaced() {
    let mut supervisor = supervisor();
    for agent in [SHARD, SYSTEM, AgentId::new(Role::Cs2, 1)] {
        let commands = supervisor.handle_event(ended(agent, 0));
        assert_eq!(commands, [SupervisorCommand::Replace(agent, LEAVE_TIMEOUT)]);
    }
    assert!(!supervisor.is_over());
    supervisor.handle_event(ended(COORDINATOR, 0));
    assert!(supervisor.is_over());
    assert_eq!(supervisor.handle_event(SupervisorEvent::ReplacementDue(SYSTEM)), []);
    assert_eq!(supervisor.run_exit(), RunExit { exit: Exit::Success, failed_process: None });
}

#[test]
fn every_killed_process_is_replaced_at_once() {
    for agent in [COORDINATOR, SHARD, SYSTEM] {
        let (commands, _) = run_events([killed(agent), SupervisorEvent::ReplacementDue(agent)]);
        let start = SupervisorCommand::Start { agent, exit: KILLED, was_unresponsive: false };
        let expected = [SupervisorCommand::Replace(agent, Duration::ZERO), start];
        assert_eq!(commands, expected);
    }
    let (commands, _) = run_events([SHORT, 3 * SHORT].map(|uptime| SupervisorEvent::Unresponsive(SYSTEM, uptime)));
    assert_eq!(commands, [SupervisorCommand::Kill(SYSTEM)], "a process that is starting is not killed");
}

/// Returns the events of an agent that is killed until it is given up.
fn killed_repeatedly(agent: AgentId, times: u32) -> Vec<SupervisorEvent> {
    (0..times).flat_map(|_| [SupervisorEvent::ReplacementDue(agent), killed(agent)]).collect()
}

#[test]
fn shard_that_is_given_up_ends_the_run_without_a_save() {
    let mut events = killed_repeatedly(SHARD, 7);
    events.push(SupervisorEvent::Deadline);
    let (commands, run_exit) = run_events(events);
    let expected =
        [SupervisorCommand::Within(FAILURE_REPORT_TIMEOUT), SupervisorCommand::KillAll, SupervisorCommand::NoDeadline];
    assert!(commands.ends_with(&expected), "{commands:?}");
    assert_eq!(run_exit, RunExit { exit: Exit::Failed, failed_process: Some((SHARD, KILLED)) });
}

#[test]
fn system_is_given_up_only_if_too_few_others_remain() {
    let (commands, _) = run_events(killed_repeatedly(SYSTEM, 20));
    assert!(matches!(commands.last(), Some(SupervisorCommand::Replace(SYSTEM, _))), "{commands:?}");
    let mut events = vec![killed(AgentId::new(Role::Cs2, 1))];
    events.extend(killed_repeatedly(SYSTEM, 7));
    events.extend([SupervisorEvent::Deadline, ended(COORDINATOR, 130), ended(SHARD, 0)]);
    let (commands, run_exit) = run_events(events);
    let expected = [
        SupervisorCommand::Within(FAILURE_REPORT_TIMEOUT),
        SupervisorCommand::Stop("cs2-0 was killed (signal 9)".into()),
        SupervisorCommand::Within(SAVE_TIMEOUT),
        SupervisorCommand::TerminateAll,
        SupervisorCommand::Within(SHUTDOWN_TIMEOUT),
    ];
    assert!(commands.ends_with(&expected), "{commands:?}");
    assert_eq!(run_exit, RunExit { exit: Exit::Failed, failed_process: Some((SYSTEM, KILLED)) });
}

#[test]
fn coordinators_own_report_takes_precedence() {
    let (_, run_exit) = run_events([ended(SYSTEM, 2), ended(COORDINATOR, 2), ended(SHARD, 3)]);
    assert_eq!(run_exit, RunExit { exit: Exit::BadInput, failed_process: None });
    let (commands, run_exit) =
        run_events([ended(SYSTEM, 1), ended(COORDINATOR, 1), SupervisorEvent::ReplacementDue(SYSTEM)]);
    assert!(!commands.iter().any(|command| matches!(command, SupervisorCommand::Start { .. })), "{commands:?}");
    assert_eq!(run_exit, RunExit { exit: Exit::Failed, failed_process: None });
}

#[test]
fn coordinator_that_is_given_up_is_named() {
    for exit in [KILLED, ProcessExit::Code(101), ProcessExit::Code(3)] {
        let times =
            |_| [SupervisorEvent::ReplacementDue(COORDINATOR), SupervisorEvent::Ended(COORDINATOR, exit, SHORT)];
        let (commands, run_exit) = run_events((0..7).flat_map(times));
        assert!(commands.ends_with(&[SupervisorCommand::KillAll, SupervisorCommand::NoDeadline]), "{commands:?}");
        assert_eq!(run_exit, RunExit { exit: Exit::Failed, failed_process: Some((COORDINATOR, exit)) });
    }
}

#[test]
fn first_interrupt_waits_for_save_and_second_does_not() {
    let saved = [SupervisorEvent::Interrupted, ended(COORDINATOR, 130), ended(SHARD, 0), ended(SYSTEM, 0)];
    let (commands, run_exit) = run_events(saved);
    assert_eq!(commands[..2], [SupervisorCommand::Stop("interrupted".into()), SupervisorCommand::NoDeadline]);
    assert_eq!(run_exit, RunExit { exit: Exit::Interrupted, failed_process: None });

    let all = [COORDINATOR, SHARD, SYSTEM].map(killed);
    let (commands, run_exit) =
        run_events([SupervisorEvent::Interrupted, SupervisorEvent::Interrupted].into_iter().chain(all));
    assert!(commands.contains(&SupervisorCommand::KillAll));
    assert_eq!(run_exit, RunExit { exit: Exit::Interrupted, failed_process: None });
}

/// A save needs the shards, and no other agent. Without a coordinator, there is nothing to wait for.
#[test]
fn interrupted_run_replaces_shards_only() {
    let (commands, _) = run_events([SupervisorEvent::Interrupted, killed(SYSTEM), killed(SHARD)]);
    assert_eq!(commands[2..], [SupervisorCommand::Replace(SHARD, Duration::ZERO)]);
    let (commands, _) = run_events([killed(SYSTEM), SupervisorEvent::Interrupted]);
    assert_eq!(commands.last(), Some(&SupervisorCommand::Within(SAVE_TIMEOUT)));
    let (commands, run_exit) = run_events([killed(COORDINATOR), SupervisorEvent::Interrupted]);
    assert!(commands.contains(&SupervisorCommand::KillAll), "{commands:?}");
    assert_eq!(run_exit.exit, Exit::Interrupted);
}

/// Ctrl-C reaches a process that is still in the launcher's process group. It did not fail.
#[test]
fn process_that_ctrl_c_ends_is_not_the_cause() {
    let ended_by_ctrl_c = |agent| SupervisorEvent::Ended(agent, ProcessExit::Signal(2), SHORT);
    let interrupted = RunExit { exit: Exit::Interrupted, failed_process: None };
    let others = || [ended(COORDINATOR, 130), ended(SHARD, 0)];
    let (_, run_exit) = run_events([SupervisorEvent::Interrupted, ended_by_ctrl_c(SYSTEM)].into_iter().chain(others()));
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
        [SupervisorCommand::Within(FAILURE_REPORT_TIMEOUT), SupervisorCommand::KillAll, SupervisorCommand::NoDeadline]
    );
    // The coordinator was already ending: its own exit counts.
    let (commands, run_exit) =
        run_events([SupervisorEvent::Interrupted, ended(COORDINATOR, 130), SupervisorEvent::StopFailed]);
    assert!(!commands.contains(&SupervisorCommand::KillAll));
    assert_eq!(run_exit.exit, Exit::Interrupted);
}
