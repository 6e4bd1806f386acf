//! The five roles of an appliance's processes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The role of a process in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Controls the job.
    Coordinator,
    /// Holds parameters and optimizer state.
    MemoryX,
    /// Broadcasts weights, sums gradients.
    SwarmX,
    /// Supplies samples.
    Activation,
    /// A CS-2 system, which computes.
    Cs2,
}

impl Role {
    /// Every role, in the order in which a job starts them.
    pub const ALL: [Role; 5] = [Role::Coordinator, Role::MemoryX, Role::SwarmX, Role::Activation, Role::Cs2];

    /// Returns the name used in agent names, flags, labels, status and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Coordinator => "coordinator",
            Role::MemoryX => "memoryx",
            Role::SwarmX => "swarmx",
            Role::Activation => "activation",
            Role::Cs2 => "cs2",
        }
    }

    /// Returns the role with this name; `None` if there is none.
    pub fn from_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

/// Returns the MemoryX shard that the agent `memoryx-<index>` holds, of `shards` shards: agents whose indices differ by
/// a multiple of `shards` are replicas of the same shard.
pub const fn shard_of_agent(index: u32, shards: u32) -> u32 {
    index % if shards == 0 { 1 } else { shards }
}

/// The name is not that of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the roles are {}", Role::ALL.map(Role::as_str).join(", "))]
pub struct UnknownRole;

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(name: &str) -> Result<Self, UnknownRole> {
        Role::from_name(name).ok_or(UnknownRole)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
