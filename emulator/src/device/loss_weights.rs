//! Computes the weights of losses, which the divisors of a step are the sums of, from samples and random numbers.

use std::sync::Arc;

use super::{CpuDevice, Device, DeviceError, DeviceOptions, DeviceStartError, InputData, LeafInput};
use crate::compile::{BatchSpec, CompileError, CompileRequest, compile};
use crate::graph::Graph;
use crate::kernels::Simd;
use crate::plan::{DEFAULT_CHUNK_ELEMENTS, Encoding};
use crate::tree::Node;

/// The operators of a graph that compute the weights of its losses. The result for a leaf does not depend on others, on
/// the number of threads, or on the precision of the model.
#[derive(Debug)]
pub struct LossWeights {
    device: CpuDevice,
    /// The position of each weight among the sums that the device reports.
    positions: Vec<usize>,
}

/// Why weights of losses can't be computed.
#[derive(Debug, thiserror::Error)]
pub enum LossWeightsError {
    /// Their operators can't be compiled.
    #[error("the weights of the losses can't be compiled")]
    Compile(#[from] CompileError),
    /// Their operators can't be executed.
    #[error("the weights of the losses can't be computed")]
    Device(#[from] DeviceStartError),
}

impl LossWeights {
    /// Prepares the weights of a valid graph, for leaves of `samples` samples; `None` if no loss has a weight. `seed`
    /// is that of the job.
    ///
    /// # Errors
    /// The operators can't be compiled or executed.
    pub fn new(graph: &Graph, samples: u32, simd: Simd, seed: u64) -> Result<Option<Self>, LossWeightsError> {
        let Some(graph) = graph.of_loss_weights() else { return Ok(None) };
        let plan = compile(CompileRequest {
            graph,
            train: BatchSpec { samples: samples as usize, leaf_bound: samples as usize },
            trains: true,
            eval: None,
            encoding: Encoding::F32,
            wafer_memory: u64::MAX,
            chunk_elements: DEFAULT_CHUNK_ELEMENTS,
            window_chunks: 1,
            memoryx_memory: u64::MAX,
            whole_tensor_state: None,
            extra_state_tensors: 0,
        })?;
        let positions = plan.graph.weighted_losses().map(|loss| loss.sums.end - 1).collect();
        let options = DeviceOptions { seed, threads: 1, simd, leaves: 1 };
        Ok(Some(Self { device: CpuDevice::new(Arc::new(plan), options)?, positions }))
    }

    /// Returns the sum of each weight over the samples of a leaf, which has all inputs of the graph. `first_sample` is
    /// the number of its first sample.
    ///
    /// # Errors
    /// Samples do not match the graph, or an integer is outside the table that it indexes. The error names leaf 0.
    pub fn of_leaf(&mut self, first_sample: u64, inputs: &[InputData<'_>]) -> Result<Vec<f64>, DeviceError> {
        self.device.begin(true, &[Node::new(0, 1)], &[LeafInput { leaf: 0, first_sample, inputs }])?;
        self.device.forward(0)?;
        let sums = self.device.losses().first().map_or(&[][..], |leaf| &leaf.metrics);
        Ok(self.positions.iter().map(|&position| sums.get(position).copied().unwrap_or_default()).collect())
    }
}
