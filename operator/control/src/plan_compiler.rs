//! Computes the plans of jobs, once for each job, machine and number of systems, within limits on memory and time.
//!
//! Compiling is CPU-bound and can't be interrupted. Its cost is therefore estimated before it begins, and too expensive
//! plans are rejected. Callers run it on [`WorkerPool`](crate::workers::WorkerPool), never on an async thread.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};

use millrace_emulator::compile::{compile, graph_planning_bytes, planning_bytes, request};
use millrace_emulator::plan::StreamPlan;
use millrace_params::{JobSpec, MachineSpec};

use crate::job_graph::JobGraph;
use crate::lock::lock;
use crate::requirements::{ResourceRequirements, largest_num_csx, requirements_of_plan};
use crate::resolve_error::{InvalidJob, JobTooLarge, OverBudget, ResolveError};

/// Maximum memory of one plan while it is computed. The plan of every model that fits a system needs less.
pub(crate) const MAX_PLAN_BYTES: u64 = 256 << 20;
/// Plans of up to this many bytes are computed within a tenth of a second; larger ones are heavy work.
pub const MAX_LIGHT_PLAN_BYTES: u64 = 8 << 20;
/// Maximum memory of all plans that are being computed.
const MAX_TOTAL_PLAN_BYTES: u64 = 384 << 20;
/// Maximum layers of a step, counted once for each round: the time model computes each of them.
const MAX_LAYER_VISITS: u64 = 1 << 22;
/// Number of cached results, each of about a kilobyte.
const MAX_CACHED_PLANS: usize = 1024;

/// Result of planning a job.
#[derive(Clone, Debug)]
pub struct PlanSummary {
    /// The plan's hash, as logs show it.
    pub hash: String,
    /// Needs of an attempt.
    pub needs: ResourceRequirements,
    /// Whether its chunks can be streamed.
    pub streamable: Result<(), ResolveError>,
}

type CompileResult = Result<Arc<PlanSummary>, ResolveError>;

/// Decides whether a plan that takes this many bytes of memory may be computed now.
pub type PlanBudget<'a> = dyn Fn(u64) -> Result<(), OverBudget> + 'a;

/// Cache and limits of plans.
#[derive(Default)]
pub struct PlanCompiler {
    results: Mutex<PlanResults>,
    memory: PlanMemoryBudget,
}

impl PlanCompiler {
    /// Returns the plan of `job` on `num_csx` systems of `appliance`, or on the largest number that all have work, if
    /// that is less. Reads `graph` only if the plan is not cached and its budget allows it. Blocks while it computes.
    ///
    /// # Errors
    /// The job can never run as it is, or [`ResolveError::Overloaded`] with the error of the budget.
    pub fn plan(&self, job: &JobSpec, appliance: &MachineSpec, num_csx: u32, graph: &JobGraph<'_>) -> CompileResult {
        let key = key(job, appliance, num_csx)?;
        if let Some(cached) = lock(&self.results).of.get(&key) {
            return cached.clone();
        }
        let bytes = match graph.of_document(job)? {
            Some(graph) => graph_planning_bytes(graph, appliance),
            None => planning_bytes(job, appliance),
        };
        if bytes > MAX_PLAN_BYTES {
            return Err(JobTooLarge::Plan { bytes }.into());
        }
        graph.may_plan()(bytes)?;
        let _reserved = self.memory.reserve(bytes);
        let result = plan(job, appliance, num_csx, graph).map(Arc::new);
        lock(&self.results).keep(key, result.clone());
        result
    }
}

fn plan(
    job: &JobSpec,
    appliance: &MachineSpec,
    num_csx: u32,
    graph: &JobGraph<'_>,
) -> Result<PlanSummary, ResolveError> {
    let plan = compile(request(job, graph.read(job)?, appliance)?)?;
    let systems = num_csx.clamp(1, largest_num_csx(job));
    check_rounds(&plan, systems)?;
    let needs = requirements_of_plan(&plan, job, appliance, systems)?;
    let streamable = plan.check_streamable().map_err(ResolveError::from);
    Ok(PlanSummary { hash: plan.hash().to_string(), needs, streamable })
}

/// Rejects a plan whose steps have so many rounds that even projecting their time takes long.
fn check_rounds(plan: &StreamPlan, systems: u32) -> Result<(), ResolveError> {
    let leaves_at_once = u64::from(systems) * u64::from(plan.leaves_per_round.max(1));
    let rounds = u64::from(plan.leaves.count.max(plan.eval_leaves.count)).div_ceil(leaves_at_once);
    let layers = plan.layers.len();
    if rounds.saturating_mul(layers as u64) <= MAX_LAYER_VISITS {
        return Ok(());
    }
    Err(JobTooLarge::Batch { layers, rounds, systems, leaves_at_once }.into())
}

/// Returns the cache key: a hash of everything that a result depends on.
fn key(job: &JobSpec, appliance: &MachineSpec, num_csx: u32) -> Result<blake3::Hash, ResolveError> {
    let mut digest = blake3::Hasher::new();
    serde_json::to_writer(&mut digest, job).map_err(InvalidJob::Json)?;
    serde_json::to_writer(&mut digest, appliance).map_err(InvalidJob::Json)?;
    Ok(digest.update(&num_csx.to_le_bytes()).finalize())
}

/// The newest results.
#[derive(Default)]
struct PlanResults {
    of: HashMap<blake3::Hash, CompileResult>,
    oldest_first: VecDeque<blake3::Hash>,
}

impl PlanResults {
    fn keep(&mut self, key: blake3::Hash, result: CompileResult) {
        if self.of.insert(key, result).is_none() {
            self.oldest_first.push_back(key);
        }
        while self.oldest_first.len() > MAX_CACHED_PLANS {
            if let Some(oldest) = self.oldest_first.pop_front() {
                self.of.remove(&oldest);
            }
        }
    }
}

/// Memory of all plans that are being computed.
#[derive(Default)]
struct PlanMemoryBudget {
    used: Mutex<u64>,
    freed: Condvar,
}

impl PlanMemoryBudget {
    /// Waits until `bytes`, which is less than the total, can be reserved.
    fn reserve(&self, bytes: u64) -> MemoryReservation<'_> {
        let mut used =
            self.freed.wait_while(lock(&self.used), |used| *used > 0 && *used + bytes > MAX_TOTAL_PLAN_BYTES);
        let used = used.as_mut().map_or_else(|poisoned| &mut **poisoned.get_mut(), |used| &mut **used);
        *used += bytes;
        MemoryReservation { memory: self, bytes }
    }
}

struct MemoryReservation<'a> {
    memory: &'a PlanMemoryBudget,
    bytes: u64,
}

impl Drop for MemoryReservation<'_> {
    fn drop(&mut self) {
        *lock(&self.memory.used) -= self.bytes;
        self.memory.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    use millrace_crds::{StoredParams, TrainJob, TrainJobSpec};
    use millrace_params::{FlagOverrides, Params};

    use super::*;
    use crate::job_graph::testing::Uploads;

    fn job(layers: u64, batch: u64, sequence: u64) -> JobSpec {
        let text = format!(
            "train_input: {{data_processor: GptTextDataProcessor, data_files: x, tokenizer: bytes, batch_size: {batch}, \
             micro_batch_size: 1, max_sequence_length: {sequence}}}\n\
             model: {{name: gpt2, vocab_size: 256, hidden_size: 32, num_hidden_layers: {layers}, num_heads: 1, \
             max_position_embeddings: {sequence}}}\n\
             optimizer: {{optimizer_type: AdamW, learning_rate: 1.0e-3}}\n\
             runconfig: {{max_steps: 1}}\n"
        );
        Params::parse_yaml(&text).and_then(|params| params.resolve(&FlagOverrides::default())).unwrap().job
    }

    fn plan(
        plans: &PlanCompiler,
        job: &JobSpec,
        machine: &MachineSpec,
        num_csx: u32,
        may_plan: &PlanBudget<'_>,
    ) -> CompileResult {
        let object = TrainJob::new("job", TrainJobSpec::new(num_csx, StoredParams::default()));
        plans.plan(job, machine, num_csx, &JobGraph::new(&object, &Uploads::default(), may_plan))
    }

    #[test]
    fn cached_plan_is_not_recompiled() {
        let (plans, calls) = (PlanCompiler::default(), Cell::new(0));
        let machine = MachineSpec::default();
        let systems = |num_csx, job: &JobSpec| {
            let permit = |_| {
                calls.set(calls.get() + 1);
                Ok(())
            };
            plan(&plans, job, &machine, num_csx, &permit).unwrap().needs.largest_num_csx
        };
        assert_eq!([systems(1, &job(2, 4, 64)), systems(1, &job(2, 4, 64))], [4, 4]);
        assert_eq!(calls.get(), 1);
        assert_eq!([systems(2, &job(2, 4, 64)), systems(1, &job(2, 8, 64))], [4, 8]);
        assert_eq!(calls.get(), 3);
        let rejected = plan(&plans, &job(3, 4, 64), &machine, 1, &|bytes| Err(OverBudget::Heavy { bytes }));
        assert!(matches!(rejected, Err(ResolveError::Overloaded(OverBudget::Heavy { .. }))));
        let retried = plan(&plans, &job(3, 4, 64), &machine, 1, &|_| Ok(()));
        assert!(retried.is_ok(), "a rejection is not cached");
    }

    #[test]
    fn expensive_plan_is_rejected_before_compiling() {
        let (plans, machine) = (PlanCompiler::default(), MachineSpec::default());
        let began = Instant::now();
        // One leaf of sixteen million at a time, through the layers of 300 decoder blocks.
        let many_rounds = plan(&plans, &job(300, 1 << 24, 16_384), &machine, 1, &|_| Ok(()));
        assert!(matches!(&many_rounds, Err(ResolveError::TooLarge(JobTooLarge::Batch { .. }))), "{many_rounds:?}");
        let small_chunks = MachineSpec::parse_yaml("link: {chunkBytes: 64}").unwrap();
        let mut large = job(10_000, 4, 64);
        large.model.hidden_size = 4096;
        let many_chunks = plan(&plans, &large, &small_chunks, 1, &|_| Ok(()));
        assert!(matches!(&many_chunks, Err(ResolveError::TooLarge(JobTooLarge::Plan { .. }))), "{many_chunks:?}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}
