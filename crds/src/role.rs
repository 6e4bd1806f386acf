//! The five roles of agents, as named in the status, labels and names of objects.

use std::fmt;

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
    /// All roles, in the order in which they are started.
    pub const ALL: [Self; 5] = [Self::Coordinator, Self::MemoryX, Self::SwarmX, Self::Activation, Self::Cs2];

    /// Returns the name of the role in agents' names, labels and status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::MemoryX => "memoryx",
            Self::SwarmX => "swarmx",
            Self::Activation => "activation",
            Self::Cs2 => "cs2",
        }
    }

    /// Returns the role of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
