//! Converts a resolved job to a [`CompileRequest`].

use millrace_params::{InputSpec, JobSpec, LinkSpec, MachineSpec};

use super::{BatchSpec, CompileError, CompileRequest, compile};
use crate::families;
use crate::graph::Graph;
use crate::plan::{DEFAULT_CHUNK_ELEMENTS, StreamPlan};
use crate::sparsity::{SparsityMasks, extra_state_tensors, whole_tensor_state};

/// Builds the graph of a job's model from its params.
///
/// # Errors
/// The model is inconsistent, or its graph is in a file.
pub fn graph(job: &JobSpec) -> Result<Graph, CompileError> {
    if let Some(path) = &job.model.graph {
        return Err(CompileError::GraphFile(path.clone()));
    }
    Ok(families::graph(&job.model, job.train_input.max_sequence_length)?)
}

/// Builds the compile request of a job whose model is `graph`.
///
/// # Errors
/// Samples have another length than those that the graph of a document reads, the two inputs differ in it, or sparsity
/// or a group of the optimizer names no tensor of the model.
pub fn request(job: &JobSpec, graph: Graph, appliance: &MachineSpec) -> Result<CompileRequest, CompileError> {
    let sequence = job.train_input.max_sequence_length;
    let eval = job.eval_input.as_ref().filter(|_| job.run.mode.evaluates());
    if let Some(eval) = eval.map(|eval| eval.max_sequence_length).filter(|&eval| eval != sequence) {
        return Err(CompileError::SequencesDiffer { train: sequence, eval });
    }
    let batch = |input: &InputSpec| BatchSpec { samples: input.batch_size, leaf_bound: input.micro_batch_size };
    if job.model.graph.is_some() && sequence != graph.sequence() {
        return Err(CompileError::SampleLength { found: sequence, expected: graph.sequence() });
    }
    SparsityMasks::new(job, &graph)?;
    let tensors = graph.tensors.iter().map(|tensor| tensor.name.as_str());
    if let Some(unknown) = job.optimizer.unknown_group_member(tensors) {
        return Err(CompileError::OptimizerGroup(unknown.to_owned()));
    }
    Ok(CompileRequest {
        graph,
        train: batch(&job.train_input),
        trains: job.run.mode.trains(),
        eval: eval.map(batch),
        encoding: job.model.precision.into(),
        wafer_memory: appliance.wafer.memory_bytes,
        chunk_elements: chunk_elements(&appliance.link),
        window_chunks: appliance.link.window_chunks,
        memoryx_memory: appliance.memoryx.bytes_per_copy(),
        whole_tensor_state: whole_tensor_state(job),
        extra_state_tensors: extra_state_tensors(job),
    })
}

/// Returns the maximum elements of a chunk for these links.
pub(super) fn chunk_elements(link: &LinkSpec) -> usize {
    usize::try_from(link.chunk_bytes / 4).unwrap_or(DEFAULT_CHUNK_ELEMENTS)
}

/// Compiles the plan of a job on an appliance. Of the appliance only the sizes of memories and chunks matter.
///
/// # Errors
/// See [`graph`], [`request`] and [`compile`].
pub fn compile_job(job: &JobSpec, appliance: &MachineSpec) -> Result<StreamPlan, CompileError> {
    compile(request(job, graph(job)?, appliance)?)
}

#[cfg(test)]
mod tests {
    use millrace_params::{FlagOverrides, OptimizerKind, Params};

    use super::*;
    use crate::report::PlanReport;

    fn example(name: &str) -> JobSpec {
        let path = format!("{}/../examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap();
        Params::parse_yaml(&text).and_then(|params| params.resolve(&FlagOverrides::default())).unwrap().job
    }

    /// Every example is planned on a wafer and links that can hold and stream it, with the parameter count in its name.
    #[test]
    fn examples_are_planned_unchanged() {
        let appliance = MachineSpec::default();
        for (name, millions) in [
            ("gpt2-tiny", 0..20),
            ("gpt2-kjv", 0..20),
            ("gpt2-small", 124..125),
            ("gpt3-xl", 1_300..1_330),
            ("gpt3-6p7b", 6_600..6_700),
            ("gpt3-13b", 12_800..13_100),
            ("gpt3-20b", 19_500..21_000),
        ] {
            let job = example(name);
            let plan = compile_job(&job, &appliance).unwrap();
            plan.check_streamable().unwrap();
            assert!(millions.contains(&(plan.parameters() / 1_000_000)), "{name}: {}", plan.parameters());
            assert_eq!(plan.leaves.batch(), job.train_input.batch_size as u64);
            assert!(plan.leaves.count as usize >= job.train_input.leaves(), "a leaf may only get smaller");
            let report = PlanReport::new(&plan, &appliance, job.run.num_csx as u32).unwrap();
            assert!(report.bytes.cs2.wafer.total() <= appliance.wafer.memory_bytes, "{name}");
        }
    }

    #[test]
    fn memory_of_a_third_state_tensor_is_planned() {
        let planned = |job: &JobSpec| {
            let plan = compile_job(job, &MachineSpec::default()).unwrap();
            (plan.parameters(), PlanReport::new(&plan, &MachineSpec::default(), 1).unwrap().bytes.memoryx)
        };
        let mut job = example("gpt2-tiny");
        let (parameters, with_two) = planned(&job);
        let OptimizerKind::AdamW(adamw) = &mut job.optimizer.kind else { panic!("{:?}", job.optimizer) };
        adamw.amsgrad = true;
        assert_eq!(planned(&job), (parameters, with_two + 4 * parameters));
    }

    #[test]
    fn inputs_of_different_length_are_refused() {
        let mut job = example("gpt2-kjv");
        let mut eval = job.train_input.clone();
        eval.max_sequence_length += 1;
        job.eval_input = Some(eval);
        job.run.mode = millrace_params::Mode::TrainAndEval;
        let error = compile_job(&job, &MachineSpec::default()).unwrap_err();
        assert!(matches!(error, CompileError::SequencesDiffer { .. }), "{error}");
        job.run.mode = millrace_params::Mode::Train;
        assert!(compile_job(&job, &MachineSpec::default()).is_ok());
    }
}
