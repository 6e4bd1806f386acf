//! A params document with several phases: the `trainer` layout with a list, as the public model zoo has it.
//!
//! ```text
//! trainer:                                            model_dir
//! - trainer: {fit: short samples, max_steps: 1000}    steps 1 to 1000, checkpoint_1000
//! - trainer: {fit: long samples, max_steps: 1200}     steps 1001 to 1200, checkpoint_1200
//! ```
//!
//! * The phases are run one after the other. A phase is what a document with only its params is: it resumes from the
//!   newest checkpoint of model_dir, which is the last one of the phase before, and trains to its own `max_steps`.
//! * Therefore the phases of a document have one model_dir, and the last steps of those that train increase.
//! * A phase reads at step n what a run with its params would read at step n.

use std::iter::once;
use std::path::Path;

use crate::document::Params;
use crate::error::{ParamsError, ParamsProblem};
use crate::job::{CheckpointStates, ResolveOutput, RunSpec};
use crate::resolve::{FlagOverrides, ResolveContext};
use crate::yaml::YamlNode;

/// The params of every phase of a document. A document in the classic layout has one phase.
#[derive(Debug, Clone, PartialEq)]
pub struct PhasedParams {
    /// The params of the first phase.
    pub first: Params,
    /// The params of the other phases, in their order.
    pub later: Vec<Params>,
}

impl From<Params> for PhasedParams {
    fn from(first: Params) -> Self {
        Self { first, later: Vec::new() }
    }
}

impl PhasedParams {
    /// Reads a params document whose model may continue that of another file, which `load` returns; see
    /// `model.pretrain_params_path`.
    ///
    /// # Errors
    /// As [`Params::parse_yaml`], and what `load` fails with. A problem of the other file has the line of the key.
    pub fn parse_yaml(text: &str, load: impl FnOnce(&str) -> std::io::Result<String>) -> Result<Self, ParamsError> {
        Params::parse_phases(text, load)
    }

    /// Reads a params document from JSON, as strictly and with the same messages.
    ///
    /// # Errors
    /// As [`Params::parse_yaml`], without lines.
    pub fn read_json(json: &serde_json::Value) -> Result<Self, ParamsError> {
        Params::read_phases(&YamlNode::from(json))
    }

    /// Returns the params of all phases, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Params> {
        once(&self.first).chain(&self.later)
    }

    /// Resolves every phase by `resolve`, and checks that each can continue from the one before. A checkpoint that the
    /// command line names is where the first phase begins. A last step of the command line is that of all phases
    /// together: phases that would begin later are left out. The other values apply to each phase.
    ///
    /// # Errors
    /// What `resolve` fails with; `rejected` converts the error of a phase that can't continue from the one before.
    pub fn resolve_with<E>(
        &self,
        overrides: &FlagOverrides,
        mut resolve: impl FnMut(&Params, &FlagOverrides) -> Result<ResolveOutput, E>,
        rejected: impl Fn(ParamsError) -> E,
    ) -> Result<Vec<ResolveOutput>, E> {
        let mut phases = vec![resolve(&self.first, &self.overrides_of(0, overrides))?];
        for (index, params) in self.later.iter().enumerate() {
            let mut phase = resolve(params, &self.overrides_of(index + 1, overrides))?;
            let end = last_training(&phases).map(|run| run.max_steps);
            let is_beyond = end.zip(overrides.max_steps).is_some_and(|(end, last)| end >= last);
            if phase.job.run.mode.trains() && is_beyond {
                continue;
            }
            params.continue_from(&phases, &mut phase.job.run).map_err(&rejected)?;
            phases.push(phase);
        }
        Ok(phases)
    }

    /// Returns the values of the command line that apply to a phase.
    fn overrides_of(&self, index: usize, overrides: &FlagOverrides) -> FlagOverrides {
        let mut overrides = overrides.clone();
        if index > 0 {
            (overrides.checkpoint_path, overrides.load_checkpoint_states) = (None, None);
        }
        if index < self.later.len() {
            let params = self.iter().nth(index).and_then(|params| params.runconfig.as_ref());
            let own = params.and_then(|run| run.max_steps);
            overrides.max_steps = overrides.max_steps.zip(own).map(|(last, own)| last.min(own));
        }
        overrides
    }
}

/// Returns the run of the last phase that trains.
fn last_training(phases: &[ResolveOutput]) -> Option<&RunSpec> {
    phases.iter().rev().map(|phase| &phase.job.run).find(|run| run.mode.trains())
}

impl Params {
    /// Checks that this phase, whose run is `run`, can continue from the `earlier` ones, and makes it do so.
    fn continue_from(&self, earlier: &[ResolveOutput], run: &mut RunSpec) -> Result<(), ParamsError> {
        let mut check = ResolveContext::new(&self.origin.lines);
        let first = earlier.first().map(|phase| &phase.job.run);
        if let Some(first) = first.filter(|first| first.model_dir != run.model_dir) {
            let message = format!("is {}, but that of the first phase is {}", run.model_dir, first.model_dir);
            let hint = "give all phases one model_dir: each continues from the newest checkpoint there";
            check.report_invalid("runconfig.model_dir", message, hint);
        }
        if let Some(before) = last_training(earlier).filter(|_| run.mode.trains()) {
            check_last_step(&mut check, before, run);
            let written = self.runconfig.as_ref().and_then(|run| run.model_dir.as_deref());
            check_start(&mut check, before, run, written);
        }
        let names = &self.origin.names;
        let rename = |problem: ParamsProblem| names.rename(problem);
        ParamsError::check(check.problems).map_err(|error| error.map_problems(rename))
    }
}

/// Checks that a phase ends after the one `before` it.
fn check_last_step(check: &mut ResolveContext<'_>, before: &RunSpec, run: &RunSpec) {
    let key = "runconfig.max_steps";
    match (before.known_max_steps(), run.known_max_steps()) {
        (Some(end), Some(max_steps)) if max_steps <= end => {
            let hint = format!("give a step after {end}: steps are counted from the beginning of the first phase");
            check.report_invalid(
                key,
                format!("is {max_steps}, but the phase before trains to step {end} already"),
                hint,
            );
        }
        (Some(_), Some(_)) => {}
        _ => check.report_missing(
            key,
            "give the step to train to in every phase: epochs are counted from the beginning of the first phase",
        ),
    }
}

/// Checks that a phase starts from the last checkpoint of the one `before` it, with all of its states. The path of that
/// checkpoint may begin with the model_dir that is `written` in the params, even if the command line names another.
fn check_start(check: &mut ResolveContext<'_>, before: &RunSpec, run: &mut RunSpec, written: Option<&str>) {
    let hint = "leave it out: a phase continues from the last checkpoint of the phase before";
    if !run.autoload_last_checkpoint {
        check.report_invalid(
            "runconfig.autoload_last_checkpoint",
            "is false in a phase that follows another one",
            hint,
        );
    }
    if run.load_checkpoint_states != CheckpointStates::ALL {
        let message = "excludes states in a phase that follows another one";
        check.report_invalid("runconfig.load_checkpoint_states", message, hint);
    }
    let Some(path) = run.checkpoint_path.take() else { return };
    let name = Path::new(&path).file_stem().and_then(|name| name.to_str());
    let is_last = before.known_max_steps().is_some_and(|end| name == Some(&format!("checkpoint_{end}")));
    let directory = Path::new(&path).parent().map(without_dot);
    let model_dirs = [Some(&*run.model_dir), written].into_iter().flatten();
    let is_here = model_dirs.map(|dir| without_dot(Path::new(dir))).any(|dir| Some(dir) == directory);
    if !is_last || !is_here {
        let message = format!("names {path}, which is not the last checkpoint of the phase before");
        check.report_invalid("runconfig.checkpoint_path", message, hint);
    }
}

/// Removes the `.` at the beginning of a relative path.
fn without_dot(path: &Path) -> &Path {
    path.strip_prefix(".").unwrap_or(path)
}
