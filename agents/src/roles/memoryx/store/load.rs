//! Initial values of parameters, and loading them from checkpoints.

use millrace_checkpoint::{Checkpoint, Moments, PlanReader, Section};
use millrace_emulator::numerics::init::tensor_key;
use millrace_emulator::plan::StateShape;
use millrace_engine::chunk_store::StoreError;
use millrace_params::JobSpec;

use super::{ChunkArrays, OptimizerOps, ShardStore};
use crate::checkpoints::{checkpoint_failure, load_strictness};
use crate::error::AgentError;

impl ShardStore {
    /// Fills the parameters with their initial values. The moments stay zero.
    ///
    /// # Errors
    /// Does not fail for chunks of this shard, and only these are filled.
    pub fn initialise(&self) -> Result<(), StoreError> {
        let OptimizerOps { job, .. } = self.ops();
        let (plan, seed) = (&job.plan, job.job.run.seed);
        for cell in self.chunks.owned_chunks() {
            self.chunks.fill(cell, 0, |numbers| {
                for chunk in plan.chunks_updated_with(cell) {
                    let weights = &mut numbers.array(0)[self.ops().range_in_cell(chunk)];
                    for (tensor, first, range) in plan.chunk_pieces(chunk) {
                        let init = plan.graph.tensors[tensor].init;
                        init.fill(tensor_key(seed, tensor as u64), first as u64, &mut weights[range]);
                    }
                    self.ops().mask(chunk, weights);
                }
                self.ops().fill_masks(cell, numbers);
            })?;
        }
        Ok(())
    }

    /// Fills the parameters, and with `optimizer` the moments, from a checkpoint of `step` updates. Blocks.
    ///
    /// # Errors
    /// The checkpoint is damaged or of another model.
    pub fn restore(&self, path: &str, optimizer: bool, step: u64) -> Result<(), AgentError> {
        let OptimizerOps { job, moments, .. } = self.ops();
        let failed = checkpoint_failure;
        let checkpoint = Checkpoint::open(path).map_err(failed)?;
        let writer = JobSpec::from_json(checkpoint.job()).ok();
        let had_masks =
            writer.is_some_and(|writer| writer.sparsity == job.job.sparsity && writer.run.seed == job.job.run.seed);
        let moments = if optimizer { moments.clone() } else { Moments::none() };
        let strictness = load_strictness(&job.job);
        let mut reader = PlanReader::new(checkpoint, &job.plan, &moments, strictness).map_err(failed)?;
        // Masks that change are state. Without it, those of the first step apply.
        let saved = moments.sections().filter(|section| !self.ops().is_mask(*section) || reader.has_section(*section));
        let saved: Vec<Section> = saved.collect();
        let reads_masks = saved.iter().any(|section| self.ops().is_mask(*section));
        let is_masked = if self.ops().masks_change() { reads_masks } else { had_masks };
        if !reader.missing_tensors().is_empty() {
            // Tensors that the checkpoint lacks keep their initial values.
            self.initialise().map_err(AgentError::local)?;
        }
        for cell in self.chunks.owned_chunks() {
            let mut read = |numbers: &mut ChunkArrays| {
                let chunks = job.plan.chunks_updated_with(cell);
                let mut parts = chunks.flat_map(|chunk| saved.iter().map(move |section| (chunk, *section)));
                if !reads_masks {
                    self.ops().fill_masks(cell, numbers);
                }
                parts.try_for_each(|(chunk, section)| {
                    let range = self.ops().section_range(&moments, chunk, section);
                    let values = &mut numbers.array(section.index())[range];
                    reader.read_chunk(chunk, section, values)?;
                    if !is_masked && moments.shape(section) == StateShape::Full {
                        self.ops().mask(chunk, values);
                    }
                    Ok(())
                })
            };
            self.chunks.fill(cell, step, &mut read).map_err(AgentError::local)?.map_err(failed)?;
        }
        Ok(())
    }
}
