//! The document of a graph, up to a step of training.

use std::sync::Arc;

use millrace_emulator::compile::{BatchSpec, CompileRequest, compile};
use millrace_emulator::device::{
    CpuDevice, Device as _, DeviceError, DeviceOptions, InputData, LeafInput, LossWeights,
};
use millrace_emulator::graph::{DType, Graph};
use millrace_emulator::kernels::Simd;
use millrace_emulator::ops::layer_flops;
use millrace_emulator::plan::{DEFAULT_CHUNK_ELEMENTS, Encoding, Pass};
use millrace_emulator::schedule::PassSchedule;

/// Maximum elements of all values and tensors of a graph that is computed.
const MAX_COMPUTED_ELEMENTS: u64 = 1 << 14;

/// Maximum operators of a graph that is computed.
const MAX_COMPUTED_NODES: usize = 100;

/// Reads the document of a graph, derives the steps of both passes from a valid one, and computes them if it is small.
pub fn document(bytes: &[u8]) {
    let Ok(graph) = serde_json::from_slice::<Graph>(bytes) else { return };
    let written = serde_json::to_vec(&graph).expect("a graph is written");
    assert_eq!(serde_json::from_slice::<Graph>(&written).expect("a written graph reads back"), graph);
    if graph.validate().is_err() {
        return;
    }
    let layers = graph.layers.len();
    for recompute in [false, true] {
        drop(PassSchedule::training(&graph, &vec![recompute; layers]));
    }
    drop(PassSchedule::evaluation(&graph));
    for layer in 0..layers {
        let _ = layer_flops(&graph, layer);
    }
    let sizes = graph.values.iter().map(|value| value.shape.elements());
    let elements = sizes.chain([graph.parameters()]).fold(0, u64::saturating_add);
    if elements <= MAX_COMPUTED_ELEMENTS && graph.nodes.len() <= MAX_COMPUTED_NODES {
        compute(graph);
    }
}

/// Compiles a valid graph, and computes a step of it: the device may reject it, but not panic.
fn compute(graph: Graph) {
    let request = CompileRequest {
        graph,
        train: BatchSpec { samples: 2, leaf_bound: 1 },
        trains: true,
        eval: None,
        encoding: Encoding::F32,
        wafer_memory: 1 << 40,
        chunk_elements: DEFAULT_CHUNK_ELEMENTS,
        window_chunks: 8,
        memoryx_memory: u64::MAX,
        whole_tensor_state: None,
        extra_state_tensors: 0,
    };
    let Ok(plan) = compile(request).map(Arc::new) else { return };
    let options = DeviceOptions { seed: 1, threads: 1, simd: Simd::detect(), leaves: plan.leaves.count as usize };
    let Ok(mut device) = CpuDevice::new(Arc::clone(&plan), options) else { return };
    let zeros = vec![0; MAX_COMPUTED_ELEMENTS as usize * 2];
    let numbers = vec![0.5; MAX_COMPUTED_ELEMENTS as usize * 2];
    let input = |input: &usize| {
        let shape = plan.graph.values[*input].shape;
        let count = shape.elements() as usize * plan.leaves.samples as usize;
        match shape.dtype() {
            DType::F32 => InputData::F32(&numbers[..count]),
            DType::I32 | DType::Bool => InputData::I32(&zeros[..count]),
        }
    };
    let inputs: Vec<InputData<'_>> = plan.graph.inputs.iter().map(input).collect();
    let weights = LossWeights::new(&plan.graph, plan.leaves.samples, Simd::detect(), 0).expect("weights are a graph");
    if let Some(mut weights) = weights {
        let computed = weights.of_leaf(0, &inputs);
        assert!(matches!(computed, Ok(_) | Err(DeviceError::Index { .. })), "{computed:?}");
        let factors: Vec<f64> = computed.unwrap_or_default().iter().map(|weight| 2.0 / weight).collect();
        let _ = device.scale_losses(&factors);
    }
    let leaf = |leaf| LeafInput { leaf, first_sample: u64::from(leaf), inputs: &inputs };
    let leaves: Vec<LeafInput<'_>> = (0..plan.leaves.count).map(leaf).collect();
    let nodes = plan.leaves.tree().cover(0..plan.leaves.count);
    if device.begin(true, &nodes, &leaves).is_err() {
        return;
    }
    let forward = (0..plan.layers.len()).map(|layer| (Pass::Forward, layer));
    let backward = (0..plan.layers.len()).rev().map(|layer| (Pass::Backward, layer));
    for (pass, layer) in forward.chain(backward) {
        for slot in plan.down_train.iter().filter(|slot| (slot.pass, slot.layer) == (pass, layer)) {
            let payload = 0.25f32.to_le_bytes().repeat(plan.chunk_range(slot.chunk).len());
            device.load(slot.chunk, Encoding::F32, &payload).expect("a chunk of the plan");
        }
        let computed = if pass == Pass::Forward { device.forward(layer) } else { device.backward(layer) };
        if let Err(error) = computed {
            assert!(matches!(error, DeviceError::Index { .. }), "{error}");
            return;
        }
    }
}
