//! Computes the weights of losses for the coordinator, on a thread of its own: the samples of a batch are read once for
//! its divisors, one step before systems request them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use millrace_data::Dataset;
use millrace_emulator::device::{DeviceError, LossWeights};
use millrace_emulator::kernels::Simd;
use millrace_engine::message::AgentReport;
use millrace_engine::types::Epoch;

use crate::control::client::MessageSender;
use crate::control::job::CompiledJob;
use crate::error::AgentError;
use crate::input::{JobInputs, sample_failure};
use crate::roles::samples::{RoundInputs, device_failure};

/// Bytes of samples that are read at a time; more if a leaf has more.
const MAX_READ_BYTES: u64 = 16 << 20;

/// A batch of the training, and the leaves of it to weigh.
#[derive(Debug)]
pub(super) struct WeighRequest {
    pub epoch: Epoch,
    pub batch: u64,
    pub leaves: Range<u32>,
}

/// Starts the thread; it ends when the sender is dropped. Returns `None` if no loss of the job has a weight.
///
/// # Errors
/// The weights can't be computed, or the thread can't be started.
pub(super) fn start_weighing(
    job: &CompiledJob,
    inputs: &Arc<JobInputs>,
    outbox: MessageSender,
) -> Result<Option<Sender<WeighRequest>>, AgentError> {
    let simd = Simd::new(job.profile.isa).map_err(AgentError::local)?;
    let weights = LossWeights::new(&job.plan.graph, job.plan.leaves.samples, simd, job.job.run.seed)
        .map_err(AgentError::local)?;
    let Some(weights) = weights else { return Ok(None) };
    let (sender, requests) = mpsc::channel();
    let (job, inputs) = (job.clone(), Arc::clone(inputs));
    let run = move || {
        millrace_emulator::kernels::ftz::enable();
        weigh(LossWeigher { job, inputs, weights }, &requests, &outbox);
    };
    let thread = std::thread::Builder::new().name("loss-weights".to_owned());
    thread.spawn(run).map_err(|error| AgentError::local(error).context("can't start a thread"))?;
    Ok(Some(sender))
}

/// Answers requests in order, but none of an older epoch than one that waits.
fn weigh(mut weigher: LossWeigher, requests: &Receiver<WeighRequest>, outbox: &MessageSender) {
    let mut waiting: Vec<WeighRequest> = Vec::new();
    loop {
        if waiting.is_empty() {
            let Ok(request) = requests.recv() else { return };
            waiting.push(request);
        }
        waiting.extend(requests.try_iter());
        let newest = waiting.iter().map(|request| request.epoch).max();
        waiting.retain(|request| Some(request.epoch) == newest);
        let WeighRequest { epoch, batch, leaves } = waiting.remove(0);
        let first = leaves.start;
        match weigher.weights(batch, leaves) {
            Ok(weights) => outbox.send_report(&AgentReport::LossWeights { epoch, batch, first, weights }),
            Err(failure) => return outbox.send_report(&failure.report()),
        }
    }
}

struct LossWeigher {
    job: CompiledJob,
    inputs: Arc<JobInputs>,
    weights: LossWeights,
}

impl LossWeigher {
    /// Returns the sum of the weight of each loss, for each of the leaves of a batch of the training.
    fn weights(&mut self, batch: u64, leaves: Range<u32>) -> Result<Vec<Vec<f64>>, AgentError> {
        let plan = &self.job.plan;
        let samples = u64::from(plan.leaves.samples);
        let leaf_bytes = samples.saturating_mul(plan.graph.input_bytes()).max(1);
        let leaves_of_read = usize::try_from(MAX_READ_BYTES / leaf_bytes).unwrap_or(usize::MAX).max(1);
        let dataset = self.inputs.train.as_ref();
        let dataset = dataset.ok_or_else(|| AgentError::local("losses are weighed, but this job does not train"))?;
        let (mut all, mut start) = (Vec::with_capacity(leaves.len()), leaves.start);
        while start < leaves.end {
            let end = u64::from(start).saturating_add(leaves_of_read as u64).min(leaves.end.into()) as u32;
            let first = batch * plan.leaves.batch() + u64::from(start) * samples;
            let count = end - start;
            let read = read(dataset, &self.job, first, count * plan.leaves.samples)?;
            for index in 0..count {
                let first_sample = first + u64::from(index) * samples;
                let weights = self.weights.of_leaf(first_sample, &read.of_leaf(index as usize, count as usize));
                all.push(weights.map_err(|error| device_failure(at_leaf(error, start + index)))?);
            }
            start = end;
        }
        Ok(all)
    }
}

fn read(dataset: &Dataset, job: &CompiledJob, first: u64, count: u32) -> Result<RoundInputs, AgentError> {
    let arrays = dataset.read(first, count).map_err(sample_failure)?;
    let inputs = dataset.inputs();
    let named = inputs.iter().zip(&arrays).map(|(input, elements)| (input.name.as_str(), &elements[..]));
    RoundInputs::decode(&job.plan.graph, &named.collect::<Vec<_>>(), count.into()).map_err(AgentError::local)
}

/// Returns an error of leaf 0 as one of another leaf.
fn at_leaf(mut error: DeviceError, index: u32) -> DeviceError {
    if let DeviceError::Index { leaf, .. } = &mut error {
        *leaf = index;
    }
    error
}
