//! Agents as whoever runs them sees them, and which of them began a failure.

use std::fmt;

use k8s_openapi::jiff::Timestamp;

use crate::Failure;

/// The five roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Directs the job.
    Coordinator,
    /// Holds parameters and optimizer state.
    MemoryX,
    /// Broadcasts weights, reduces gradients.
    SwarmX,
    /// Supplies samples.
    Activation,
    /// An emulated system.
    Cs2,
}

impl Role {
    /// All of them, in the order in which they are started.
    pub const ALL: [Self; 5] = [Self::Coordinator, Self::MemoryX, Self::SwarmX, Self::Activation, Self::Cs2];

    /// The name in agents' names, labels and status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::MemoryX => "memoryx",
            Self::SwarmX => "swarmx",
            Self::Activation => "activation",
            Self::Cs2 => "cs2",
        }
    }

    /// The role of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }

    /// Whether an attempt can still save its state without this role.
    pub const fn can_be_missed(self) -> bool {
        !matches!(self, Self::Coordinator | Self::MemoryX)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One running instance of a role.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    /// Its role.
    pub role: Role,
    /// Its number within the role.
    pub index: u32,
    /// The attempt it belongs to.
    pub attempt: u32,
    /// What runs it: the pod's name.
    pub name: String,
    /// Where it runs.
    pub node: Option<String>,
    /// Whether it was told to end.
    pub leaving: bool,
    /// Whether that was to move it elsewhere: its node is being drained, or its place is needed.
    pub moved: bool,
    /// How it is.
    pub state: AgentState,
}

/// How an agent is.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentState {
    /// It has not begun, for this reason: a word and a sentence.
    Waiting {
        /// One word, as `ImagePullBackOff` or `Unschedulable`.
        reason: String,
        /// One sentence.
        message: String,
    },
    /// It runs and is not part of the job yet.
    Starting,
    /// It is part of the job.
    Ready,
    /// It ended, or is as good as ended.
    Ended(End),
}

/// How an agent ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct End {
    /// Its process's exit code, where it ended by itself.
    pub exit_code: Option<i32>,
    /// One word: `Completed`, `Error`, `OOMKilled`, `Evicted`, `NodeLost`.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// The last lines it wrote, the newest last.
    pub log_tail: Vec<String>,
    /// When.
    pub at: Option<Timestamp>,
}

/// The word of an agent that was killed because it needed more memory than it may use.
pub const OUT_OF_MEMORY: &str = "OOMKilled";
/// What an agent ends with that lost a peer: never the cause of anything.
const PEER_LOST: i32 = 3;
/// What a process ends with on SIGTERM: somebody else ended it.
const TERMINATED: i32 = 143;
/// What a process ends with that did as it was asked.
const DONE: i32 = 0;
/// What an agent ends with when the user's input is to blame.
pub(super) const BAD_INPUT: i32 = 2;

/// Describes how a process ended, from its exit code as a shell and a container runtime give it: one that a signal
/// ended has 128 and the signal's number.
pub fn describe_exit(exit_code: i32) -> String {
    match exit_code {
        DONE => "it ended in good order".to_owned(),
        // The code with which a panic ends a program.
        101 => "it crashed (exit code 101)".to_owned(),
        129..=192 => format!("killed by signal {} (exit code {exit_code})", exit_code - 128),
        _ => format!("it ended with exit code {exit_code}"),
    }
}

impl End {
    /// How likely it is to be the cause of a failure, the lowest first: what an agent did itself, what was done to it, what
    /// it only suffered.
    fn rank(&self) -> u8 {
        match (self.reason.as_str(), self.exit_code) {
            (OUT_OF_MEMORY, _) => 0,
            (_, Some(BAD_INPUT)) => 0,
            (_, Some(PEER_LOST)) => 3,
            (_, Some(DONE | TERMINATED)) => 2,
            (_, Some(_)) => 0,
            (_, None) => 1,
        }
    }
}

/// The agent whose end began a failure: of those that ended by their own doing the first, else of those something was
/// done to.
pub(super) fn first_to_fail<'a>(agents: impl IntoIterator<Item = &'a Agent>) -> Option<(&'a Agent, &'a End)> {
    let ended = agents.into_iter().filter_map(|agent| match &agent.state {
        AgentState::Ended(end) => Some((agent, end)),
        _ => None,
    });
    ended.min_by_key(|(agent, end)| (end.rank(), end.at.unwrap_or(Timestamp::MAX), agent.role, agent.index))
}

/// What status keeps of it.
pub(super) fn failure(agent: &Agent, end: &End) -> Failure {
    Failure {
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
