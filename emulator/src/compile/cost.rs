//! What planning itself costs, known before anything is built: a planner that serves many users refuses by it what is
//! too much.

use millrace_params::{ApplianceSpec, Job};

use super::groups::MAX_CHUNKS;

/// Bytes of a plan without layers: a graph's ends, a report.
const BASE_BYTES: u64 = 1 << 20;
/// Bytes for a block of a transformer, measured: its operators and tensors by name, its schedule and its layers' plans.
const BLOCK_BYTES: u64 = 24 << 10;
/// Bytes for a chunk, measured: the chunk and its places in three orders of streaming.
const CHUNK_BYTES: u64 = 160;
/// Groups of tensors in a block, each of which begins a chunk.
const GROUPS_PER_BLOCK: u64 = 4;

/// Bytes of memory that compiling and projecting `job` takes, estimated from above. The time grows with the same
/// numbers: a gigabyte is about ten seconds of one core.
pub fn planning_bytes(job: &Job, appliance: &ApplianceSpec) -> u64 {
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
    let elements = block.saturating_mul(blocks).saturating_add(tables);
    let chunks = (elements / (appliance.link.chunk_bytes / 4).max(1)).min(MAX_CHUNKS as u64);
    let chunks = chunks.saturating_add(blocks.saturating_mul(GROUPS_PER_BLOCK));
    BASE_BYTES.saturating_add(blocks.saturating_mul(BLOCK_BYTES)).saturating_add(chunks.saturating_mul(CHUNK_BYTES))
}

#[cfg(test)]
mod tests {
    use millrace_params::{Overrides, Params};

    use super::*;
    use crate::compile::compile_job;

    /// The sizes of what a plan is made of, counted in the plan itself, stay below the estimate.
    #[test]
    fn the_estimate_covers_the_chunks_and_the_names_of_a_plan() {
        let appliance = ApplianceSpec::default();
        for (blocks, hidden) in [(2, 64), (300, 64), (24, 4096)] {
            let text = format!(
                "train_input: {{data_processor: GptTextDataProcessor, data_files: x, tokenizer: bytes, batch_size: 4, \
                 micro_batch_size: 1, max_sequence_length: 64}}\n\
                 model: {{name: gpt2, vocab_size: 256, hidden_size: {hidden}, num_hidden_layers: {blocks}, num_heads: 1}}\n\
                 optimizer: {{optimizer_type: AdamW, learning_rate: 1.0e-3}}\n\
                 runconfig: {{max_steps: 1}}\n"
            );
            let job = Params::parse_yaml(&text).and_then(|params| params.resolve(&Overrides::default())).unwrap().job;
            let plan = compile_job(&job, &appliance).unwrap();
            let slots = plan.down_train.len() + plan.down_eval.len() + plan.up.len();
            let nodes = size_of_val(&plan.graph.nodes[..]);
            let tensors: usize = plan.graph.tensors.iter().map(|tensor| tensor.name.len() + size_of_val(tensor)).sum();
            let counted = size_of_val(&plan.chunks[..]) + slots * size_of_val(&plan.down_train[0]) + nodes + tensors;
            let estimate = planning_bytes(&job, &appliance);
            assert!(estimate > counted as u64, "{blocks} x {hidden}: {estimate} for {counted}");
        }
    }
}
