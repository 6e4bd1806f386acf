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
use super::job::{PreparedJob, prepare, read_params};
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
    let prepared = prepare(flags, &flags.overrides(), read_params(&flags.params)?)?;
    let host = print_prepared(&prepared, json)?;
    Ok(if host.fits == Some(false) { Exit::Failed } else { Exit::Success })
}

/// Prints the plan of `prepared`; returns what the run would be on this host.
///
/// # Errors
/// The job can't be compiled.
pub fn print_prepared(prepared: &PreparedJob, json: bool) -> Result<HostPlan, CliError> {
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
    let output = PlanOutput {
        masked_parameters,
        host: HostPlan::new(report.host_bytes, report.host_work),
        epoch,
        data_problem,
        report,
    };
    if json {
        super::print_line(super::to_pretty_json(&output)?);
    } else {
        prepared.print_notes();
        // The text ends with the end of a line.
        super::print_line(output.to_string().trim_end());
    }
    Ok(output.host)
}
