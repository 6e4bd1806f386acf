//! Resolves the document to a job: fills in defaults, settles unions, and checks keys against each other.

mod check;
mod decoder;
mod encoder;
mod encoder_input;
mod graph;
mod image;
mod initializer;
mod input;
mod input_section;
mod line_input;
mod model;
mod momentum;
mod mup;
mod optimizer;
mod packing;
mod run;
mod sample_transforms;
mod schedule;
mod schedule_piece;
mod selection;
mod seq2seq;
mod seq2seq_scales;
mod source;
mod sparsity;
mod text_input;
mod transforms;

use crate::document::Params;
use crate::error::ParamsError;
use crate::job::{JobSpec, ResolveOutput};
pub(crate) use check::ResolveContext;

/// Values of the command line. A flag that is given takes precedence over the document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlagOverrides {
    /// `--model`: the family, for params that do not name it.
    pub model: Option<String>,
    /// `--mode`: `train`, `eval`, `train_and_eval` or `eval_all`.
    pub mode: Option<String>,
    /// `--model_dir`.
    pub model_dir: Option<String>,
    /// `--num_csx`.
    pub num_csx: Option<u64>,
    /// `--max_steps`.
    pub max_steps: Option<u64>,
    /// `--eval_steps`.
    pub eval_steps: Option<u64>,
    /// `--checkpoint_path`.
    pub checkpoint_path: Option<String>,
    /// `--load_checkpoint_states`.
    pub load_checkpoint_states: Option<String>,
    /// `--disable_strict_checkpoint_loading`.
    pub disable_strict_checkpoint_loading: Option<bool>,
    /// `--num_wgt_servers`.
    pub num_wgt_servers: Option<u64>,
    /// `--num_act_servers`.
    pub num_act_servers: Option<u64>,
    /// `--compile_only`.
    pub compile_only: Option<bool>,
    /// `--validate_only`.
    pub validate_only: Option<bool>,
    /// `--logging`.
    pub logging: Option<String>,
}

impl Params {
    /// Builds the job that these params and flags describe, with notes for the user.
    ///
    /// # Errors
    /// Missing keys, values out of range, contradictory keys, and values that are not supported yet. All of them are
    /// collected, with their lines if the document came from YAML.
    pub fn resolve(&self, overrides: &FlagOverrides) -> Result<ResolveOutput, ParamsError> {
        let mut check = ResolveContext::new(&self.origin.lines);
        let (model, ratios) = model::resolve(&mut check, self, overrides.model.as_deref());
        let optimizer = optimizer::resolve(&mut check, self.optimizer.as_ref(), ratios, &model);
        let mut run = run::resolve(&mut check, self.runconfig.as_ref(), overrides);
        if check.problems.is_empty() && run.mode.trains() {
            let steps = run.known_max_steps().unwrap_or(0);
            schedule::check_last_rate(&mut check, &optimizer.schedule, steps);
        }
        let inputs = input::resolve(&mut check, self, &model, &run);
        let sparsity = sparsity::resolve(&mut check, self.sparsity.as_ref());
        run::check_against_inputs(&mut check, &mut run, &inputs, overrides);
        let ResolveContext { problems, notes, .. } = check;
        let names = &self.origin.names;
        ParamsError::check(problems).map_err(|error| error.map_problems(|problem| names.rename(problem)))?;
        let notes = notes.iter().map(|note| names.rename_in(note)).collect();
        Ok(ResolveOutput {
            job: JobSpec { model, optimizer, train_input: inputs.train, eval_input: inputs.eval, run, sparsity },
            notes,
            ignored_keys: self.ignored_keys(),
        })
    }
}
