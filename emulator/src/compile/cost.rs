//! Estimates the memory that planning a job takes, before anything is built. Servers reject jobs whose estimate is too
//! large.

use millrace_params::{JobSpec, MachineSpec};

use super::groups::MAX_CHUNKS;
use crate::graph::Graph;

/// Bytes of a plan without layers: the first and last layers of the graph, and a report.
const BASE_BYTES: u64 = 1 << 20;
/// Bytes per transformer block, measured: its operators and tensors by name, its schedule and the plans of its layers.
const BLOCK_BYTES: u64 = 24 << 10;
/// Bytes per operator of a graph document, from the same measurements: a block has at least 12 operators.
const NODE_BYTES: u64 = 2 << 10;
/// Bytes per chunk, measured: the chunk and its positions in three stream orders.
const CHUNK_BYTES: u64 = 160;
/// Groups of tensors in a block. Each group begins a new chunk.
const GROUPS_PER_BLOCK: u64 = 4;

/// Returns an upper estimate of the memory, in bytes, that compiling and projecting `job` takes. Time grows with the
/// same quantities: one gigabyte corresponds to about ten seconds on one core.
pub fn planning_bytes(job: &JobSpec, appliance: &MachineSpec) -> u64 {
    let model = &job.model;
    let [blocks, hidden, filter, vocabulary, positions] = [
        model.num_hidden_layers,
        model.hidden_size,
        model.filter_size,
        model.vocab_size,
        model.max_position_embeddings,
    ]
    .map(|number| number as u64);
    let block = hidden.saturating_mul(hidden.saturating_mul(4).saturating_add(filter.saturating_mul(2)));
    let tables = vocabulary.saturating_mul(2).saturating_add(positions).saturating_mul(hidden);
    // The first layer of a model of images.
    let pixels = model.image.as_ref().map_or(0, |image| image.shape.elements() as u64).saturating_mul(hidden);
    let elements = block.saturating_mul(blocks).saturating_add(tables).saturating_add(pixels);
    let chunks = chunks(elements, appliance).saturating_add(blocks.saturating_mul(GROUPS_PER_BLOCK));
    BASE_BYTES.saturating_add(blocks.saturating_mul(BLOCK_BYTES)).saturating_add(chunks.saturating_mul(CHUNK_BYTES))
}

/// Like [`planning_bytes`], for a job whose model is `graph`.
pub fn graph_planning_bytes(graph: &Graph, appliance: &MachineSpec) -> u64 {
    let elements = graph.tensors.iter().fold(0_u64, |sum, tensor| sum.saturating_add(tensor.elements() as u64));
    // Each tensor may begin a new chunk.
    let chunks = chunks(elements, appliance).saturating_add(graph.tensors.len() as u64);
    let nodes = graph.nodes.len() as u64;
    BASE_BYTES.saturating_add(nodes.saturating_mul(NODE_BYTES)).saturating_add(chunks.saturating_mul(CHUNK_BYTES))
}

/// Returns the number of full chunks of so many elements.
fn chunks(elements: u64, appliance: &MachineSpec) -> u64 {
    (elements / (appliance.link.chunk_bytes / 4).max(1)).min(MAX_CHUNKS as u64)
}

#[cfg(test)]
mod tests {
    use millrace_params::{FlagOverrides, Params};

    use super::*;
    use crate::compile::compile_job;

    /// The element counts of real plans stay below the estimate.
    #[test]
    fn estimate_covers_chunks_and_names_of_plan() {
        let appliance = MachineSpec::default();
        for (blocks, hidden) in [(2, 64), (300, 64), (24, 4096)] {
            let text = format!(
                "train_input: {{data_processor: GptTextDataProcessor, data_files: x, tokenizer: bytes, batch_size: 4, \
                 micro_batch_size: 1, max_sequence_length: 64}}\n\
                 model: {{name: gpt2, vocab_size: 256, hidden_size: {hidden}, num_hidden_layers: {blocks}, num_heads: 1}}\n\
                 optimizer: {{optimizer_type: AdamW, learning_rate: 1.0e-3}}\n\
                 runconfig: {{max_steps: 1}}\n"
            );
            let job =
                Params::parse_yaml(&text).and_then(|params| params.resolve(&FlagOverrides::default())).unwrap().job;
            let plan = compile_job(&job, &appliance).unwrap();
            let slots = plan.down_train.len() + plan.down_eval.len() + plan.up.len();
            let nodes = size_of_val(&plan.graph.nodes[..]);
            let tensors: usize = plan.graph.tensors.iter().map(|tensor| tensor.name.len() + size_of_val(tensor)).sum();
            let counted = size_of_val(&plan.chunks[..]) + slots * size_of_val(&plan.down_train[0]) + nodes + tensors;
            let graph = crate::compile::graph(&job).unwrap();
            for estimate in [planning_bytes(&job, &appliance), graph_planning_bytes(&graph, &appliance)] {
                assert!(estimate > counted as u64, "{blocks} x {hidden}: {estimate} for {counted}");
            }
        }
    }
}
