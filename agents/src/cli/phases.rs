//! Where a job with several phases continues.

use std::path::Path;

use millrace_checkpoint::{VerificationLevel, newest_complete};
use millrace_params::RunSpec;

use super::error::CliError;
use super::job::PreparedJob;
use crate::checkpoints::checkpoint_failure;

/// Returns the index of the phase that a run begins with: the first one that is not complete by the newest checkpoint
/// of model_dir. A run that starts from something else begins with the first phase.
///
/// # Errors
/// Checkpoints can't be read.
pub fn next_phase(phases: &[PreparedJob]) -> Result<usize, CliError> {
    let [first, _, ..] = phases else { return Ok(0) };
    let run = &first.resolved.job.run;
    if run.checkpoint_path.is_some() || (run.mode.trains() && !run.autoload_last_checkpoint) {
        return Ok(0);
    }
    let (newest, _) =
        newest_complete(Path::new(&run.model_dir), VerificationLevel::Quick).map_err(checkpoint_failure)?;
    let Some(newest) = newest else { return Ok(0) };
    Ok(first_incomplete(phases.iter().map(|phase| &phase.resolved.job.run), newest.step()))
}

/// Returns the index of the first of these runs that is not complete if the newest checkpoint is of `step`; the last
/// index if all are. A run that also evaluates may have been interrupted between its last checkpoint and its last
/// evaluation, so it is complete once a later phase has saved a step. A phase that does not train follows a phase that
/// does, and ends with it.
fn first_incomplete<'a>(runs: impl ExactSizeIterator<Item = &'a RunSpec>, step: u64) -> usize {
    let (last, mut end) = (runs.len() - 1, 0);
    for (index, run) in runs.enumerate() {
        if run.mode.trains() {
            end = run.max_steps;
        }
        let is_complete = step > end || (step == end && !run.mode.evaluates());
        if index == last || !is_complete {
            return index;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use millrace_params::Mode;

    use super::*;
    use crate::launch::testing::local_run;

    #[test]
    fn newest_checkpoint_decides_on_the_phase() {
        let phase = |mode, max_steps| RunSpec { mode, max_steps, ..local_run().launch.job.run };
        let phases =
            [phase(Mode::Train, 10), phase(Mode::TrainAndEval, 20), phase(Mode::Eval, 0), phase(Mode::Train, 30)];
        for (step, index) in [(0, 0), (9, 0), (10, 1), (19, 1), (20, 1), (21, 3), (30, 3), (40, 3)] {
            assert_eq!(first_incomplete(phases.iter(), step), index, "step {step}");
        }
    }
}
