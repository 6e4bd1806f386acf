//! The job as every agent is told it, and what each derives from it.

use std::sync::Arc;

use millrace_emulator::compile::{CompileRequest, compile, request};
use millrace_emulator::numerics::{Isa, NumericsProfile, Precision};
use millrace_emulator::plan::{Encoding, PlanHash, StreamPlan};
use millrace_params::{ApplianceSpec, Job};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::host;

/// What travels in the coordinator's welcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDocument {
    /// The resolved params.
    pub job: Job,
    /// The machine.
    pub appliance: ApplianceSpec,
    /// Cuts that the run must keep, whatever the machine would allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuts: Option<Cuts>,
}

/// How a checkpoint's run cut its batch and its parameters. A run that goes on from it cuts them in the same way, so
/// that another wafer, or other chunks on the links, change no bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cuts {
    /// Samples of a training leaf.
    #[serde(default)]
    pub leaf_samples: Option<u32>,
    /// Elements of the largest chunk.
    #[serde(default)]
    pub chunk_elements: Option<u32>,
}

impl Cuts {
    /// The cuts that a profile has.
    pub const fn of(profile: &NumericsProfile) -> Self {
        Self { leaf_samples: profile.leaf_samples, chunk_elements: profile.chunk_elements }
    }

    /// Asks the compiler for these.
    fn ask(self, request: &mut CompileRequest) {
        if let Some(samples) = self.leaf_samples {
            // Also where that is more than the bound: `auto` may have stood for larger leaves in an earlier release.
            request.train.leaf_bound = samples as usize;
        }
        if let Some(elements) = self.chunk_elements {
            request.chunk_elements = elements as usize;
        }
    }
}

/// A job compiled: the same on every agent.
#[derive(Clone, Debug)]
pub struct CompiledJob {
    /// The resolved params.
    pub job: Arc<Job>,
    /// The machine.
    pub appliance: Arc<ApplianceSpec>,
    /// The stream plan.
    pub plan: Arc<StreamPlan>,
    /// Its hash.
    pub hash: PlanHash,
    /// How the arithmetic is done.
    pub profile: NumericsProfile,
    /// The cuts it was asked to keep.
    pub cuts: Option<Cuts>,
}

impl JobDocument {
    /// Compiles the plan, for a job pinned to `isa`.
    ///
    /// # Errors
    /// The model does not fit; the user's to mend.
    pub fn compile(self, isa: Isa) -> Result<CompiledJob, Failure> {
        let mut request = request(&self.job, &self.appliance)?;
        if let Some(cuts) = self.cuts {
            cuts.ask(&mut request);
        }
        let plan = compile(request)?;
        plan.check_streamable()?;
        let hash = plan.hash();
        let precision = match plan.encoding {
            Encoding::F32 => Precision::F32,
            Encoding::Bf16 => Precision::Bf16,
        };
        Ok(CompiledJob {
            job: Arc::new(self.job),
            appliance: Arc::new(self.appliance),
            profile: NumericsProfile::new(isa, precision).for_plan(&plan),
            plan: Arc::new(plan),
            hash,
            cuts: self.cuts,
        })
    }

    /// Whether this document describes the numbers `compiled` does. How long the run is and where it writes may differ.
    pub fn makes_the_numbers_of(&self, compiled: &CompiledJob) -> bool {
        let (this, other) = (&self.job, &*compiled.job);
        this.model == other.model
            && this.optimizer == other.optimizer
            && this.train_input == other.train_input
            && this.eval_input == other.eval_input
            && this.run.seed == other.run.seed
    }
}

impl CompiledJob {
    /// The document it was compiled from.
    pub fn document(&self) -> JobDocument {
        JobDocument { job: (*self.job).clone(), appliance: (*self.appliance).clone(), cuts: self.cuts }
    }

    /// How gradients change the weights.
    pub fn optimizer(&self) -> &millrace_params::OptimizerSpec {
        &self.job.optimizer
    }

    /// Compute threads of a system: the appliance's number, else an equal share of this machine's cores.
    pub fn threads(&self) -> usize {
        match self.appliance.threads {
            0 => (host::cores() / self.job.run.num_csx.max(1)).max(1),
            threads => threads,
        }
    }

    /// MemoryX shards: the job's number, else the appliance's.
    pub fn shards(&self) -> u32 {
        let asked = self.job.run.num_wgt_servers;
        (if asked > 0 { asked } else { self.appliance.memoryx.shards }) as u32
    }

    /// Slots a receiver lets be in flight to it.
    pub fn window(&self) -> u64 {
        self.plan.slots_within(self.appliance.link.window_bytes())
    }
}
