//! The compiler: computes a [stream plan](crate::plan) from a graph, two batches and a wafer.
//!
//! * The plan is a function of the [`CompileRequest`] alone. Numbers of systems, shards and SwarmX nodes are unknown to
//!   the compiler, so every combination runs the same plan. The number of leaves that one system can hold at once
//!   ([`StreamPlan::leaves_per_round`]) is part of the plan; the resulting rounds are part of the placement.
//! * Known patterns of operators are first [replaced](crate::rewrite) by macro-operators.
//! * By default a layer of the plan is a layer of the graph: short layers fill and drain the pipeline quickly. With
//!   recomputation, the parts of a block form one layer: only values between layers are kept, and half as many layers
//!   keep half as many.
//! * The wafer holds activations, a window of weights, a window of gradients (both counted in chunks) and resident
//!   weights. The size of a layer does not matter.
//! * If a job does not fit, the compiler tries in this order: recompute layers; divide the batch into rounds; reduce
//!   the leaf size (a given `micro_batch_size` is an upper bound); divide single samples into tiles. Recomputation
//!   is chosen if one system could not hold the whole batch without it. Weights of the last layers, and weights that
//!   layers share, stay on the wafer if that costs at most one sixteenth of the leaves of a round. A job that fits in
//!   none of these ways is rejected with layer, bytes and remedy.

use crate::graph::{Graph, NodeId};
use crate::ops::{layer_flops, node_flops};
use crate::optimizers::PLANNED_STATE_TENSORS;
use crate::plan::{DEFAULT_CHUNK_ELEMENTS, Encoding, LayerPlan, MachineBytes, StateShape, StreamPlan};
use crate::rewrite::rewrite;

mod activation_memory;
mod cost;
mod error;
mod fit;
mod groups;
mod job;
mod leaves;
mod stream_order;
mod system;
mod tiles;

pub use activation_memory::recomputed_nodes;
pub use cost::{graph_planning_bytes, planning_bytes};
pub use error::CompileError;
pub(crate) use error::format_bytes;
pub use fit::{WeightBytes, WeightElements};
pub use job::{compile_job, graph, request};
pub use leaves::BatchSpec;
pub use system::{PlanMemory, SystemBytes, SystemMemory, system_bytes};
pub(crate) use tiles::{SampleTiling, TiledLayer};

/// Input of the compiler.
#[derive(Clone, Debug)]
pub struct CompileRequest {
    /// The model.
    pub graph: Graph,
    /// The training batch.
    pub train: BatchSpec,
    /// Whether the job trains. If not, only its evaluation has to fit.
    pub trains: bool,
    /// The evaluation batch; `None` if the job does not evaluate. The plan then repeats the leaves of the training
    /// batch.
    pub eval: Option<BatchSpec>,
    /// Encoding of weights on links, and type of activations on the wafer.
    pub encoding: Encoding,
    /// Memory of the modelled wafer, bytes.
    pub wafer_memory: u64,
    /// Maximum elements of a chunk, at most [`DEFAULT_CHUNK_ELEMENTS`].
    pub chunk_elements: usize,
    /// Chunks of weights in flight on the wafer, and the same number of chunks of gradients.
    pub window_chunks: usize,
    /// Memory of the modelled MemoryX for one replica of all shards, in bytes.
    pub memoryx_memory: u64,
    /// See [`StreamPlan::whole_tensor_state`].
    pub whole_tensor_state: Option<Vec<StateShape>>,
    /// See [`StreamPlan::extra_state_tensors`].
    pub extra_state_tensors: u32,
}

/// Returns the bytes that MemoryX holds of a tensor with these dimensions: weights, gradient and optimizer state, in
/// f32.
pub fn memoryx_bytes(shape: &[usize], whole_tensor_state: Option<&[StateShape]>, extra_state_tensors: u32) -> u64 {
    let elements = |dimensions: &[usize]| dimensions.iter().fold(1u64, |all, size| all.saturating_mul(*size as u64));
    let weights = elements(shape);
    let Some(state) = whole_tensor_state else {
        let values = 2 + PLANNED_STATE_TENSORS as u64 + u64::from(extra_state_tensors);
        return weights.saturating_mul(4 * values);
    };
    let state = state.iter().map(|state| elements(&state.dimensions(shape)));
    state.fold(weights.saturating_mul(2), u64::saturating_add).saturating_mul(4)
}

/// Compiles a plan.
///
/// # Errors
/// The graph is invalid, a batch is out of range, MemoryX is too small for the parameters, or one sample does not fit
/// on the wafer.
pub fn compile(request: CompileRequest) -> Result<StreamPlan, CompileError> {
    let CompileRequest {
        graph,
        train,
        trains,
        eval,
        encoding,
        wafer_memory,
        chunk_elements,
        window_chunks,
        memoryx_memory,
        whole_tensor_state,
        extra_state_tensors,
    } = request;
    graph.validate()?;
    let graph = rewrite(graph);
    let eval = eval.unwrap_or(train);
    train.check("train_input")?;
    eval.check("eval_input")?;
    let state = whole_tensor_state.as_deref();
    let bytes = graph.tensors.iter().map(|tensor| memoryx_bytes(&tensor.shape, state, extra_state_tensors));
    let needed = bytes.fold(0, u64::saturating_add);
    if needed > memoryx_memory {
        return Err(CompileError::MemoryXTooSmall { needed, available: memoryx_memory });
    }

    let window = window_elements(chunk_elements, window_chunks);
    let search = |graph: &Graph, tensor_groups: &groups::TensorGroups| {
        let search = fit::FitSearch { graph, tensor_groups, encoding, memory: wafer_memory, window };
        if trains { search.fit(train, eval) } else { search.fit_evaluation(train, eval) }
    };
    let (mut tensor_groups, mut graph) = (groups::TensorGroups::new(&graph, encoding), graph);
    let mut fit = search(&graph, &tensor_groups);
    let saves_all = |fit: &fit::Fit| !fit.recompute.contains(&true);
    if trains && !fit.as_ref().is_ok_and(saves_all) {
        let (joined, new_layers) = graph.joined();
        (graph, tensor_groups) = (joined, tensor_groups.joined(&new_layers));
        fit = search(&graph, &tensor_groups);
    }
    let fit = fit?;
    let layers = layer_plans(&graph, &tensor_groups, encoding, &fit);
    let (groups, chunks) = tensor_groups.into_chunks(&graph, chunk_elements);
    let orders = stream_order::StreamOrders::new(&layers, &groups, &fit.resident);
    Ok(StreamPlan {
        sequence: graph.sequence(),
        graph,
        leaves: fit.train,
        eval_leaves: fit.eval,
        groups,
        chunks,
        layers,
        resident: fit.resident,
        encoding,
        leaves_per_round: fit.leaves_per_round,
        tiles: fit.tiles,
        whole_tensor_state,
        extra_state_tensors,
        down_train: orders.down_train,
        down_eval: orders.down_eval,
        up: orders.up,
    })
}

/// Elements of weights, or of gradients, in flight on the wafer.
const fn window_elements(chunk_elements: usize, window_chunks: usize) -> u64 {
    let chunk = if chunk_elements < DEFAULT_CHUNK_ELEMENTS { chunk_elements } else { DEFAULT_CHUNK_ELEMENTS };
    (chunk as u64).saturating_mul(window_chunks as u64)
}

/// Returns the bytes of an activation on the modelled wafer.
pub(crate) const fn wafer_activation_bytes(encoding: Encoding) -> u64 {
    encoding.bytes() as u64
}

/// Bytes of an activation in the emulating process, which always computes in f32.
pub(crate) const HOST_ACTIVATION_BYTES: u64 = 4;

fn layer_plans(
    graph: &Graph,
    tensor_groups: &groups::TensorGroups,
    encoding: Encoding,
    fit: &fit::Fit,
) -> Vec<LayerPlan> {
    let [wafer, host] = activation_memory::of_machines(graph, encoding, &fit.recompute, fit.tiles);
    let repeated = activation_memory::recomputed_nodes(graph);
    let leaf = u64::from(fit.train.samples);
    let plan = |layer: usize| {
        let (wafer, host) = (&wafer[layer], &host[layer]);
        let flops = layer_flops(graph, layer);
        let recomputed: &[NodeId] = if fit.recompute[layer] { &repeated[layer] } else { &[] };
        LayerPlan {
            groups: tensor_groups.layers[layer].clone(),
            backward_groups: tensor_groups.read_backward(graph, layer, fit.recompute[layer]),
            recompute: fit.recompute[layer],
            forward_flops: flops.forward,
            backward_flops: flops.backward,
            recompute_flops: recomputed.iter().map(|&node| node_flops(graph, node).forward).sum(),
            saved: MachineBytes { wafer: wafer.saved, host: host.saved },
            working: MachineBytes { wafer: wafer.working() * leaf, host: host.working() * leaf },
        }
    };
    (0..graph.layers.len()).map(plan).collect()
}

#[cfg(test)]
mod tests;
