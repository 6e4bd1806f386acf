//! `plan`, and `--compile_only`: the plan, whether a run of it can be on this host, and what an epoch is.

use std::fmt;

use millrace_emulator::report::{PlanReport, human_bytes, rough_time};
use serde::Serialize;

use super::arguments::JobFlags;
use super::check::epoch;
use super::job::{Prepared, prepare, read_params};
use super::refusal::Refusal;
use crate::epoch::Epoch;
use crate::host::{self, Memory};
use crate::launch::Exit;

/// The answer of `plan`.
#[derive(Debug, Serialize)]
struct Answer {
    #[serde(flatten)]
    report: PlanReport,
    host: Host,
    /// Of the training data; none where nothing is trained, the data have no end, or a large text would have to be
    /// tokenised first.
    epoch: Option<Epoch>,
    /// Why the data can't be used here, if they can't. The plan does not depend on them.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_problem: Option<String>,
}

/// What a run would be on this host.
#[derive(Clone, Copy, Debug, Serialize)]
struct Host {
    /// Whether its processes have enough memory here; none where the system does not tell how much it has.
    fits: Option<bool>,
    /// Bytes that they need.
    needed_bytes: u64,
    /// Bytes of the machine, or of the control group that limits this process.
    total_bytes: Option<u64>,
    /// Bytes of these that are available now.
    available_bytes: Option<u64>,
    /// An estimate of the seconds of a training step.
    estimated_step_seconds: f64,
}

impl Host {
    fn new(report: &PlanReport) -> Self {
        let memory = Memory::read();
        Self {
            fits: memory.map(|memory| report.host_bytes <= memory.total),
            needed_bytes: report.host_bytes,
            total_bytes: memory.map(|memory| memory.total),
            available_bytes: memory.map(|memory| memory.available),
            estimated_step_seconds: report.host_work.seconds(host::rate()),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = human_bytes(self.needed_bytes);
        let memory = self.total_bytes.zip(self.available_bytes).map(|(total, available)| Memory { total, available });
        writeln!(f, "\nA run on this host")?;
        match memory {
            Some(memory) if self.fits == Some(true) => writeln!(f, "  fits            yes: {needed} needed; {memory}")?,
            Some(memory) => writeln!(f, "  fits            no on this host: {needed} needed; {memory}")?,
            None => writeln!(f, "  fits            unknown: {needed} needed; the system does not tell what there is")?,
        }
        let step = rough_time(self.estimated_step_seconds);
        writeln!(f, "  step            about {step}, an estimate from the host's measured arithmetic")
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.report, self.host)?;
        if let Some(why) = &self.data_problem {
            writeln!(f, "  data            can't be used: {why}")?;
        }
        match self.epoch {
            Some(epoch) => writeln!(f, "  epoch           {epoch}"),
            None => Ok(()),
        }
    }
}

/// `plan`.
pub fn print(flags: &JobFlags, json: bool) -> Result<Exit, Refusal> {
    print_prepared(&prepare(flags, &flags.machine.overrides(), read_params(&flags.params)?)?, json)
}

/// Prints the plan of `prepared`.
///
/// # Errors
/// The job can't be compiled.
pub fn print_prepared(prepared: &Prepared, json: bool) -> Result<Exit, Refusal> {
    let report = prepared.report()?;
    let (epoch, data_problem) = match epoch(&prepared.resolved.job) {
        Ok(epoch) => (epoch, None),
        Err(refusal) => (None, Some(refusal.summary())),
    };
    let answer = Answer { host: Host::new(&report), epoch, data_problem, report };
    if json {
        super::say(super::pretty(&answer)?);
    } else {
        prepared.print_notes();
        super::say(format_args!("{answer}"));
    }
    Ok(Exit::Done)
}
