//! The longest deadlines that jobs may set. They bound the time for which a job holds systems without doing anything.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::TrainJobSpec;

/// The longest deadlines that jobs may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MaxDeadlines {
    /// Maximum of deadlines.startupSeconds.
    #[serde(default = "default_startup")]
    #[schemars(range(min = 1, max = 2_592_000))]
    pub startup_seconds: u32,
    /// Maximum of deadlines.progressSeconds.
    #[serde(default = "default_progress")]
    #[schemars(range(min = 1, max = 2_592_000))]
    pub progress_seconds: u32,
    /// Maximum of checkpoint.gracePeriodSeconds.
    #[serde(default = "default_grace_period")]
    #[schemars(range(min = 1, max = 86_400))]
    pub grace_period_seconds: u32,
}

const fn default_startup() -> u32 {
    3600
}

const fn default_progress() -> u32 {
    86_400
}

const fn default_grace_period() -> u32 {
    3600
}

impl Default for MaxDeadlines {
    fn default() -> Self {
        Self {
            startup_seconds: default_startup(),
            progress_seconds: default_progress(),
            grace_period_seconds: default_grace_period(),
        }
    }
}

impl MaxDeadlines {
    /// Returns the path of the first field of `spec` that exceeds its bound, and why, without the field.
    pub fn find_violation(&self, spec: &TrainJobSpec) -> Option<(&'static str, String)> {
        let rows = [
            ("spec.deadlines.startupSeconds", spec.deadlines.startup_seconds, self.startup_seconds),
            ("spec.deadlines.progressSeconds", spec.deadlines.progress_seconds, self.progress_seconds),
            ("spec.checkpoint.gracePeriodSeconds", spec.checkpoint.grace_period_seconds, self.grace_period_seconds),
        ];
        let (field, requested, maximum) = rows.into_iter().find(|(_, requested, maximum)| requested > maximum)?;
        Some((field, format!("{requested} exceeds what the appliance allows: set it to {maximum} or less")))
    }
}
