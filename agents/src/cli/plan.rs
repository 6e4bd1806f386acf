//! The command `plan`, and `--compile_only`: prints the plan, whether a run fits on this host, and the size of an
//! epoch.

use std::fmt;

use millrace_emulator::compile::CompileError;
use millrace_emulator::report::{PlanReport, format_thousands};
use millrace_emulator::sparsity::SparsityMasks;
use serde::Serialize;

use super::args::JobArgs;
use super::check::epoch;
use super::error::CliError;
use super::job::{PreparedJob, prepare_phases, read_params};
use crate::dataset_epoch::DatasetEpoch;
use crate::host::HostPlan;
use crate::launch::Exit;

#[derive(Debug, Serialize)]
struct PlanOutput {
    #[serde(flatten)]
    report: PlanReport,
    host: HostPlan,
    /// Epoch of the training data; `None` if the job does not train, the data are unlimited, or a large text would have
    /// to be tokenized.
    epoch: Option<DatasetEpoch>,
    /// Parameters that stay zero; `None` if the job has no `sparsity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    masked_parameters: Option<u64>,
    /// Why the data can't be used on this host, if so. The plan does not depend on them.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_problem: Option<String>,
}

impl fmt::Display for PlanOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.report, self.host)?;
        if let Some(masked) = self.masked_parameters {
            writeln!(f, "  masked          {} of the parameters are zero", format_thousands(masked))?;
        }
        if let Some(problem) = &self.data_problem {
            writeln!(f, "  data            can't be used: {problem}")?;
        }
        match self.epoch {
            Some(epoch) => writeln!(f, "  epoch           {epoch}"),
            None => Ok(()),
        }
    }
}

/// Executes `plan`. Fails, after printing the plan, if the run does not fit on this host.
pub fn print(flags: &JobArgs, json: bool) -> Result<Exit, CliError> {
    let phases = prepare_phases(flags, &flags.overrides(), read_params(&flags.params)?)?;
    let fits = print_phases(&phases, json)?;
    Ok(if fits { Exit::Success } else { Exit::Failed })
}

/// Prints the plans of all phases; of several as a list `phases` in JSON. Returns whether the run fits on this host.
///
/// # Errors
/// A phase can't be compiled.
pub fn print_phases(phases: &[PreparedJob], json: bool) -> Result<bool, CliError> {
    let plans = phases.iter().map(PlanOutput::new).collect::<Result<Vec<_>, _>>()?;
    match (&plans[..], json) {
        ([plan], true) => super::print_line(super::to_pretty_json(plan)?),
        (plans, true) => super::print_line(super::to_pretty_json(&serde_json::json!({ "phases": plans }))?),
        (plans, false) => {
            for (number, (plan, phase)) in plans.iter().zip(phases).enumerate() {
                if plans.len() > 1 {
                    super::print_line(format_args!("phase {} of {}", number + 1, plans.len()));
                }
                phase.print_notes();
                // The text ends with the end of a line.
                super::print_line(plan.to_string().trim_end());
            }
        }
    }
    Ok(plans.iter().all(|plan| plan.host.fits != Some(false)))
}

impl PlanOutput {
    /// Returns the plan of a phase.
    ///
    /// # Errors
    /// It can't be compiled.
    fn new(prepared: &PreparedJob) -> Result<Self, CliError> {
        let report = prepared.report()?;
        let (epoch, data_problem) = match epoch(prepared) {
            Ok(epoch) => (epoch, None),
            Err(error) => (None, Some(error.summary())),
        };
        let job = &prepared.resolved.job;
        let masked_parameters = match &job.sparsity {
            Some(_) => Some(SparsityMasks::new(job, &prepared.plan.graph).map_err(CompileError::from)?.zeros()),
            None => None,
        };
        let host = HostPlan::new(report.host_bytes, report.host_work);
        Ok(Self { masked_parameters, host, epoch, data_problem, report })
    }
}
