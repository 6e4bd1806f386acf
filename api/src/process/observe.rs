//! Converts processes to observed agents.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use millrace_agents::launch::{ProcessExit, ProcessStatus};
use millrace_crds::{Role, TrainJob};
use millrace_lifecycle::{AgentState, ObservedAgent, ProcessEnd, ReportedOutcome, describe_exit};

/// Returns the agent of a process of `job`. `reported` is the outcome that the attempt's coordinator has reported, if
/// any.
pub fn observed_agent(
    job: &TrainJob,
    attempt: u32,
    process: ProcessStatus,
    leaving: bool,
    reported: Option<&ReportedOutcome>,
) -> ObservedAgent {
    // Every role of a process has an equivalent here.
    let role = Role::from_name(process.agent.role.as_str()).unwrap_or(Role::Coordinator);
    let reported = reported.filter(|_| role == Role::Coordinator);
    let state = match &process.ended {
        Some((exit, ended_at)) => {
            AgentState::Ended(process_end(*exit, Timestamp::try_from(*ended_at).ok(), &process, reported))
        }
        None if process.ready => AgentState::Ready,
        None => AgentState::Starting,
    };
    ObservedAgent {
        role,
        index: process.agent.index,
        attempt,
        name: format!("{}-{}", job.name_any(), process.agent),
        instance: process.agent.to_string(),
        created: None,
        started: None,
        node: None,
        is_terminating: leaving && process.ended.is_none(),
        removal_deadline: None,
        is_evicted: false,
        state,
    }
}

fn process_end(
    exit: ProcessExit,
    ended_at: Option<Timestamp>,
    process: &ProcessStatus,
    reported: Option<&ReportedOutcome>,
) -> ProcessEnd {
    let exit_code = match exit {
        ProcessExit::Code(code) => code,
        // As shells and container runtimes do.
        ProcessExit::Signal(signal) => 128 + signal,
    };
    let (reason, detail) = match reported {
        _ if exit_code == 0 => ("Completed", None),
        Some(reported) => (reported.reason.as_str(), Some(reported.message.clone())),
        // The last line that a process wrote does not explain a signal.
        None if matches!(exit, ProcessExit::Signal(_)) => ("Error", Some(describe_exit(exit_code))),
        None => ("Error", process.last_lines.last().cloned()),
    };
    ProcessEnd {
        exit_code: Some(exit_code),
        reason: reason.to_owned(),
        message: detail.unwrap_or_else(|| format!("{} {exit}", process.agent)),
        log_tail: process.last_lines.clone(),
        at: ended_at,
    }
}

/// Returns the agent that represents an attempt whose processes ended together with the server that ran them. It counts
/// as moved, so the attempt is not charged to the job.
pub fn lost_coordinator(job: &TrainJob, attempt: u32) -> ObservedAgent {
    let end = ProcessEnd {
        reason: "ServerRestarted".to_owned(),
        message: "the server that ran the agents was restarted".to_owned(),
        ..ProcessEnd::default()
    };
    ObservedAgent {
        role: Role::Coordinator,
        index: 0,
        attempt,
        name: format!("{}-coordinator-0", job.name_any()),
        instance: String::new(),
        created: None,
        started: None,
        node: None,
        is_terminating: false,
        removal_deadline: None,
        is_evicted: true,
        state: AgentState::Ended(end),
    }
}
