//! One attempt of a job, as the worlds create its agents from it.

use std::path::PathBuf;

use millrace_crds::{ApplianceSpec, ResolvedJob, Role, TrainJob};
use millrace_params::{JobSpec, MachineSpec};

use crate::record::{ResolvedJobError, resolved_job, resolved_version};
use crate::requirements::ResourceRequirements;

/// One attempt of a job, with everything that its agents are created from.
#[derive(Clone, Debug)]
pub struct AttemptContext<'a> {
    pub job: &'a TrainJob,
    /// The record of the job's first admission; its first phase is that of the attempt.
    pub resolution: &'a ResolvedJob,
    /// The appliance, for the settings that may change between attempts.
    pub cluster: &'a ApplianceSpec,
    /// The attempt's number, from 1.
    pub number: u32,
    /// Its agents and their memory.
    pub needs: &'a ResourceRequirements,
    /// Names of its systems, in the order of the system agents.
    pub systems: &'a [String],
}

impl AttemptContext<'_> {
    /// Returns the number of systems of the attempt.
    pub fn system_count(&self) -> u32 {
        self.needs.wanted.iter().find(|(role, _)| *role == Role::Cs2).map_or(0, |(_, count)| *count)
    }

    /// Returns the version of its agents. It determines which launch documents and arguments they read, and how their
    /// ports authenticate; see [`millrace_protocol::launch::VERSION`].
    pub fn version(&self) -> u32 {
        resolved_version(self.resolution)
    }

    /// Returns the resolved job, and the machine it is planned for.
    ///
    /// # Errors
    /// The record can't be read; see [`ResolvedJobError`].
    pub fn resolved(&self) -> Result<(JobSpec, MachineSpec), ResolvedJobError> {
        resolved_job(self.resolution)
    }

    /// Returns the checkpoint to start from; `None` if the params name none, or the record can't be read.
    pub fn checkpoint_path(&self) -> Option<PathBuf> {
        Some(PathBuf::from(self.resolved().ok()?.0.run.checkpoint_path?))
    }
}
