//! The job as the coordinator sends it to every agent, and the values that agents derive from it.
//!
//! The job contains the graph of its model. Only the coordinator knows where the graph comes from: agents compile the
//! graph that they receive.

use std::sync::Arc;

use millrace_checkpoint::Moments;
use millrace_emulator::compile::{CompileRequest, compile, request};
use millrace_emulator::graph::{Graph, LossReduction};
use millrace_emulator::numerics::{Isa, NumericsProfile};
use millrace_emulator::optimizers::optimizer;
use millrace_emulator::plan::{PlanHash, StreamPlan};
use millrace_emulator::sparsity::{MASK_STATE, mask_update};
use millrace_params::{JobSpec, LossScaling, MachineSpec};
use serde::{Deserialize, Serialize};

use super::client::MAX_CONTROL_MESSAGE_BYTES;
use crate::error::AgentError;
use crate::host;
use crate::model::job_graph;

/// Maximum bytes of a job's JSON. A control message has room for the rest of the welcome.
const MAX_JOB_BYTES: usize = MAX_CONTROL_MESSAGE_BYTES - (1 << 20);

/// The job in the coordinator's welcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDocument {
    /// The resolved params.
    pub job: JobSpec,
    /// The model.
    pub graph: Graph,
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
    /// The model, as it was before the compiler replaced patterns.
    pub graph: Arc<Graph>,
    pub appliance: Arc<MachineSpec>,
    pub plan: Arc<StreamPlan>,
    pub hash: PlanHash,
    pub profile: NumericsProfile,
    /// The cuts that the document required, if any.
    pub cuts: Option<BatchCuts>,
}

impl JobDocument {
    /// Builds the document of a job, with the graph of its model. A reduction that the graph states replaces that of
    /// the params.
    ///
    /// # Errors
    /// See [`job_graph`].
    pub fn new(mut job: JobSpec, appliance: MachineSpec) -> Result<Self, AgentError> {
        let graph = job_graph(&job)?;
        if let Some(reduction) = graph.reduction {
            job.model.loss_scaling = match reduction {
                LossReduction::Labels => LossScaling::NumTokens,
                LossReduction::Samples => LossScaling::BatchSize,
                LossReduction::Sum => LossScaling::Sum,
            };
        }
        Ok(Self { graph, job, appliance, cuts: None })
    }

    /// Compiles the plan of a job that is pinned to `isa`.
    ///
    /// # Errors
    /// The model does not fit, or its plan can't be streamed; the user has to change the params.
    pub fn compile(self, isa: Isa) -> Result<CompiledJob, AgentError> {
        let graph = Arc::new(self.graph);
        let mut request = request(&self.job, (*graph).clone(), &self.appliance)?;
        if let Some(cuts) = self.cuts {
            cuts.apply_to(&mut request);
        }
        let plan = compile(request)?;
        plan.check_streamable()?;
        let hash = plan.hash();
        Ok(CompiledJob {
            job: Arc::new(self.job),
            graph,
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
        let (own, other) = (&self.job, &*compiled.job);
        self.graph == *compiled.graph
            && own.model == other.model
            && own.optimizer == other.optimizer
            && own.train_input == other.train_input
            && own.eval_input == other.eval_input
            && own.run.seed == other.run.seed
            && own.sparsity == other.sparsity
    }
}

impl CompiledJob {
    pub fn document(&self) -> JobDocument {
        JobDocument {
            job: (*self.job).clone(),
            graph: (*self.graph).clone(),
            appliance: (*self.appliance).clone(),
            cuts: self.cuts,
        }
    }

    /// Returns the JSON of the document, as the coordinator sends it to every agent.
    ///
    /// # Errors
    /// It is too large for a message.
    pub fn document_json(&self) -> Result<String, AgentError> {
        let json = serde_json::to_string(&self.document()).map_err(AgentError::local)?;
        if json.len() > MAX_JOB_BYTES {
            return Err(AgentError::bad_input(format!(
                "the model's graph and the job have {} bytes as JSON; a job has at most {MAX_JOB_BYTES}",
                json.len()
            ))
            .hint("describe large constants as tensors, or use fewer layers"));
        }
        Ok(json)
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

#[cfg(test)]
mod tests {
    use millrace_params::{FlagOverrides, Params};

    use super::*;

    #[test]
    fn agents_compile_the_graph_that_they_receive() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/gpt2-tiny.yaml");
        let params = Params::parse_yaml(&std::fs::read_to_string(path).unwrap()).unwrap();
        let job = params.resolve(&FlagOverrides::default()).unwrap().job;
        let mut document = JobDocument::new(job, MachineSpec::default()).unwrap();
        let family = document.clone().compile(Isa::Portable).unwrap();
        document.graph.tensors[0].name = "words".to_owned();
        let other = document.compile(Isa::Portable).unwrap();
        let received: JobDocument = serde_json::from_str(&other.document_json().unwrap()).unwrap();
        assert!(received.is_numerically_equal(&other) && !received.is_numerically_equal(&family));
        let compiled = received.compile(Isa::Portable).unwrap();
        assert_eq!((compiled.hash, compiled.plan.graph.tensors[0].name.as_str()), (other.hash, "words"));
        assert_ne!(compiled.hash, family.hash);
    }
}
