//! The sections of a chunk.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A section of a chunk: its parameters, or one of the optimizer's moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// The parameters.
    Parameters,
    /// The moment with this index in [`Moments`](crate::Moments).
    Moment(usize),
}

impl Section {
    /// Returns the position among the sections of a chunk: 0 for the parameters.
    pub const fn index(self) -> usize {
        match self {
            Self::Parameters => 0,
            Self::Moment(index) => index.saturating_add(1),
        }
    }

    pub(crate) const fn from_index(index: usize) -> Self {
        match index {
            0 => Self::Parameters,
            index => Self::Moment(index - 1),
        }
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameters => f.write_str("the parameters"),
            Self::Moment(index) => write!(f, "moment {index}"),
        }
    }
}
