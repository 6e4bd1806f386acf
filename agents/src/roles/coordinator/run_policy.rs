//! Derives the engine's policy from the params of a job.

use std::sync::Arc;

use millrace_engine::coordinator::{EvalPolicy, LossScaling, RunPolicy, SpikePolicy};
use millrace_params::{JobSpec, LossSpikeAction, Mode};

use crate::control::job::CompiledJob;

/// Returns how the job scales the loss over `batches` batches of `samples` samples.
pub fn scaling(job: &JobSpec, samples: u64, batches: u64) -> LossScaling {
    let batch = samples * batches.max(1);
    match job.model.loss_scaling {
        millrace_params::LossScaling::NumTokens => LossScaling::Tokens,
        millrace_params::LossScaling::BatchSize => LossScaling::BatchSize { weight: job.model.loss_weight, batch },
        // The mean of the sums of the batches.
        millrace_params::LossScaling::Sum => LossScaling::BatchSize { weight: samples as f64, batch },
    }
}

/// Returns the policy of a run in `mode`, with `eval_batches` batches per evaluation.
pub fn policy(compiled: &CompiledJob, mode: Mode, eval_batches: u64) -> RunPolicy {
    let run = &compiled.job.run;
    let schedule = compiled.job.optimizer.schedule.clone();
    let train = mode.trains();
    RunPolicy {
        train,
        max_steps: run.max_steps,
        eval: mode
            .evaluates()
            .then(|| EvalPolicy { every: train.then_some(run.eval_frequency), batches: eval_batches }),
        checkpoint_every: (run.checkpoint_steps > 0).then_some(run.checkpoint_steps),
        initial_checkpoint: run.save_initial_checkpoint,
        scaling: scaling(&compiled.job, compiled.plan.leaves.batch(), 1),
        spikes: run.loss_spike.map(|spike| SpikePolicy {
            factor: spike.factor,
            window: spike.window,
            skip: spike.action == LossSpikeAction::Skip,
        }),
        clip: compiled.job.optimizer.max_gradient_norm,
        learning_rate: Arc::new(move |step| schedule.at(step)),
    }
}
