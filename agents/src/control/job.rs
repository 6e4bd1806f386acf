//! The job as the coordinator sends it to every agent, and the values that agents derive from it.

use std::sync::Arc;

use millrace_checkpoint::Moments;
use millrace_emulator::compile::{CompileRequest, compile, request};
use millrace_emulator::numerics::{Isa, NumericsProfile};
use millrace_emulator::optimizers::optimizer;
use millrace_emulator::plan::{PlanHash, StreamPlan};
use millrace_emulator::sparsity::{MASK_STATE, mask_update};
use millrace_params::{JobSpec, MachineSpec};
use serde::{Deserialize, Serialize};

use crate::error::AgentError;
use crate::host;

/// The job in the coordinator's welcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDocument {
    /// The resolved params.
    pub job: JobSpec,
    pub appliance: MachineSpec,
    /// Cuts that the run must keep, even if the machine would allow others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuts: Option<BatchCuts>,
}

/// Sizes of leaves and chunks of a checkpoint's run. A run that continues from the checkpoint uses the same ones, so
/// that another wafer, or other chunks on the links, do not change the numerics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchCuts {
    /// Samples of a training leaf; `None` for the compiler's choice.
    #[serde(default)]
    pub leaf_samples: Option<u32>,
    /// Elements of the largest chunk; `None` for the compiler's choice.
    #[serde(default)]
    pub chunk_elements: Option<u32>,
}

impl BatchCuts {
    /// Returns the cuts of a profile.
    pub const fn of(profile: &NumericsProfile) -> Self {
        Self { leaf_samples: profile.leaf_samples, chunk_elements: profile.chunk_elements }
    }

    /// Sets the cuts in the request to the compiler.
    fn apply_to(self, request: &mut CompileRequest) {
        if let Some(samples) = self.leaf_samples {
            // Set even if it exceeds the bound of the params: `auto` may have meant larger leaves in an earlier
            // release.
            request.train.leaf_bound = samples as usize;
        }
        if let Some(elements) = self.chunk_elements {
            request.chunk_elements = elements as usize;
        }
    }
}

/// A compiled job; the same on every agent.
#[derive(Clone, Debug)]
pub struct CompiledJob {
    /// The resolved params.
    pub job: Arc<JobSpec>,
    pub appliance: Arc<MachineSpec>,
    pub plan: Arc<StreamPlan>,
    pub hash: PlanHash,
    pub profile: NumericsProfile,
    /// The cuts that the document required, if any.
    pub cuts: Option<BatchCuts>,
}

impl JobDocument {
    /// Compiles the plan of a job that is pinned to `isa`.
    ///
    /// # Errors
    /// The model does not fit, or its plan can't be streamed; the user has to change the params.
    pub fn compile(self, isa: Isa) -> Result<CompiledJob, AgentError> {
        let mut request = request(&self.job, &self.appliance)?;
        if let Some(cuts) = self.cuts {
            cuts.apply_to(&mut request);
        }
        let plan = compile(request)?;
        plan.check_streamable()?;
        let hash = plan.hash();
        Ok(CompiledJob {
            job: Arc::new(self.job),
            appliance: Arc::new(self.appliance),
            profile: NumericsProfile::new(isa, plan.encoding.into()).for_plan(&plan),
            plan: Arc::new(plan),
            hash,
            cuts: self.cuts,
        })
    }

    /// Returns whether this document gives the same numerics as `compiled`. Length of the run and directories may
    /// differ.
    pub fn is_numerically_equal(&self, compiled: &CompiledJob) -> bool {
        let (this, other) = (&self.job, &*compiled.job);
        this.model == other.model
            && this.optimizer == other.optimizer
            && this.train_input == other.train_input
            && this.eval_input == other.eval_input
            && this.run.seed == other.run.seed
            && this.sparsity == other.sparsity
    }
}

impl CompiledJob {
    pub fn document(&self) -> JobDocument {
        JobDocument { job: (*self.job).clone(), appliance: (*self.appliance).clone(), cuts: self.cuts }
    }

    pub fn optimizer(&self) -> &millrace_params::OptimizerSpec {
        &self.job.optimizer
    }

    /// Returns the profile as it is written to manifests.
    pub fn profile_json(&self) -> String {
        // The profile consists of names, numbers and a flag, so serialization can't fail.
        serde_json::to_string(&self.profile).unwrap_or_default()
    }

    /// Returns the moments that the optimizer keeps.
    pub fn moments(&self) -> Moments {
        let moments = Moments::of_optimizer(optimizer(&self.job.optimizer.kind));
        if mask_update(&self.job).is_some() { moments.with_full(MASK_STATE) } else { moments }
    }

    /// Returns the compute threads of a system on this machine.
    pub fn threads(&self) -> usize {
        host::threads_per_system(self.appliance.threads, self.job.run.num_csx, host::cores())
    }

    /// Returns the number of MemoryX shards.
    pub fn shards(&self) -> u32 {
        self.job.memoryx_shards(&self.appliance) as u32
    }

    /// Returns the slots that a receiver allows in flight to it.
    pub fn window(&self) -> u64 {
        self.plan.slots_within(self.appliance.link.window_bytes())
    }
}
