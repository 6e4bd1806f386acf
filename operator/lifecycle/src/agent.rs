//! Agents as the control loop observes them, and which of them caused a failure.

use k8s_openapi::jiff::Timestamp;
use millrace_crds::{FailureStatus, Role};
use millrace_outcome::Exit;

/// One running instance of a role.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedAgent {
    /// Its role.
    pub role: Role,
    /// Number of the agent within its role, from 0.
    pub index: u32,
    /// The attempt it belongs to.
    pub attempt: u32,
    /// Name of the object that runs it, such as its pod.
    pub name: String,
    /// Identifies this instance among all of the agent, such as the UID of its pod; the agent's name in a world that
    /// replaces agents itself.
    pub instance: String,
    /// The node it runs on.
    pub node: Option<String>,
    /// When the object was created, if known.
    pub created: Option<Timestamp>,
    /// When its process started, if known.
    pub started: Option<Timestamp>,
    /// Whether it was requested to end.
    pub is_terminating: bool,
    /// When its grace period ends, if it was requested to end.
    pub removal_deadline: Option<Timestamp>,
    /// Whether it was requested to end to be moved: its node is being drained, or its place is needed.
    pub is_evicted: bool,
    /// Its state.
    pub state: AgentState,
}

impl ObservedAgent {
    /// Returns the agent's name in the job, such as `cs2-1`.
    pub fn id(&self) -> String {
        format!("{}-{}", self.role, self.index)
    }
}

/// The state of an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentState {
    /// It has not started.
    Waiting {
        /// The reason in one word, such as `ImagePullBackOff` or `Unschedulable`.
        reason: String,
        /// One sentence.
        message: String,
    },
    /// It runs, but is not part of the job yet.
    Starting,
    /// It is part of the job.
    Ready,
    /// It ended, or must be treated as ended.
    Ended(ProcessEnd),
}

/// How an agent ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessEnd {
    /// Exit code of its process, if it ended by itself.
    pub exit_code: Option<i32>,
    /// The reason in one word: `Completed`, `Error`, `OOMKilled`, `Evicted`, `NodeLost`.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// The last lines of its log, the newest last.
    pub log_tail: Vec<String>,
    /// When it ended, if known.
    pub at: Option<Timestamp>,
}

/// Reason of an agent that was killed because it exceeded its memory limit.
pub const OUT_OF_MEMORY: &str = "OOMKilled";
/// Exit code of an agent that lost a peer: never the cause of a failure.
const EXIT_PEER_LOST: i32 = Exit::PeerLost.code() as i32;
/// Exit code of a process that was ended by SIGTERM.
const EXIT_SIGTERM: i32 = 143;
/// Exit code of a process that completed.
const EXIT_SUCCESS: i32 = Exit::Success.code() as i32;
/// Exit code of an agent that was given invalid input.
pub(crate) const EXIT_BAD_INPUT: i32 = Exit::BadInput.code() as i32;

/// Describes how a process ended, from its exit code as a shell or container runtime reports it: 128 plus the number of
/// the signal if a signal ended it.
pub fn describe_exit(exit_code: i32) -> String {
    match exit_code {
        EXIT_SUCCESS => "it exited normally".to_owned(),
        // The exit code of a program that panicked.
        101 => "it crashed (exit code 101)".to_owned(),
        129..=192 => format!("killed by signal {} (exit code {exit_code})", exit_code - 128),
        _ => format!("it exited with code {exit_code}"),
    }
}

impl ProcessEnd {
    /// Returns a rank; an agent with a lower one is a more likely cause of a failure: 0 if the agent failed by itself
    /// or ran out of memory, 1 if it ended without an exit code, 2 if it completed or was ended by SIGTERM, 3 if it
    /// lost a peer.
    fn blame_rank(&self) -> u8 {
        match (self.reason.as_str(), self.exit_code) {
            (OUT_OF_MEMORY, _) => 0,
            (_, Some(EXIT_BAD_INPUT)) => 0,
            (_, Some(EXIT_PEER_LOST)) => 3,
            (_, Some(EXIT_SUCCESS | EXIT_SIGTERM)) => 2,
            (_, Some(_)) => 0,
            (_, None) => 1,
        }
    }
}

/// Returns the agent whose end caused a failure: of the ended agents with the lowest rank ([`ProcessEnd::blame_rank`])
/// the one that ended first.
pub(crate) fn root_cause_agent<'a>(
    agents: impl IntoIterator<Item = &'a ObservedAgent>,
) -> Option<(&'a ObservedAgent, &'a ProcessEnd)> {
    let ended = agents.into_iter().filter_map(|agent| match &agent.state {
        AgentState::Ended(end) => Some((agent, end)),
        _ => None,
    });
    ended.min_by_key(|(agent, end)| (end.blame_rank(), end.at.unwrap_or(Timestamp::MAX), agent.role, agent.index))
}

/// Builds the status's record of a failure.
pub(crate) fn failure(agent: &ObservedAgent, end: &ProcessEnd) -> FailureStatus {
    FailureStatus {
        attempt: Some(agent.attempt),
        role: Some(agent.role.as_str().to_owned()),
        pod: Some(agent.name.clone()),
        node: agent.node.clone(),
        exit_code: end.exit_code,
        reason: Some(end.reason.clone()),
        message: Some(end.message.clone()),
        log_tail: end.log_tail.clone(),
        time: None,
    }
}

/// Returns whether an attempt can still save its state without this role.
pub(crate) const fn is_optional_for_saving(role: Role) -> bool {
    !matches!(role, Role::Coordinator | Role::MemoryX)
}
