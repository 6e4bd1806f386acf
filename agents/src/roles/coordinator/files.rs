//! Everything the coordinator keeps in `model_dir` besides checkpoints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use millrace_engine::coordinator::Evaluation;
use millrace_engine::types::CommitRecord;
use millrace_params::RunSpec;
use millrace_telemetry::journal::{Event, Journal, Outcome};
use millrace_telemetry::logs::{LogFiles, Record};
use millrace_telemetry::metrics::{EvalPoint, MetricsLog, Point, TrainPoint};
use millrace_telemetry::tensorboard::{EventWriter, tags};
use millrace_telemetry::{Error, atomic_file, progress::Rates};

use crate::failure::Failure;
use crate::launch::Launch;

/// The run's files.
pub struct RunFiles {
    model_dir: PathBuf,
    metrics: MetricsLog,
    events: EventWriter,
    logs: LogFiles,
    journal: Journal,
    summary_steps: u64,
}

/// A telemetry error as a failure with its hint.
pub fn file_failure(error: &Error) -> Failure {
    let failure = Failure::own(error);
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

impl RunFiles {
    /// Opens them for a run that continues after `step`; keeps the params as used.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn open(launch: &Launch, attempt: u32, step: u64) -> Result<Self, Failure> {
        let dir = launch.model_dir.as_path();
        let run = &launch.job.run;
        let open = || {
            atomic_file::write(&dir.join("params.yaml"), launch.params_yaml.as_bytes())?;
            atomic_file::write(&dir.join("job.json"), launch.job.to_json().as_bytes())?;
            let metrics =
                if launch.mode.trains() { MetricsLog::open(dir, step)? } else { MetricsLog::open_for_evaluation(dir)? };
            let summaries = summary_dir(dir, run);
            Ok(Self {
                metrics,
                events: EventWriter::create(&summaries, attempt.into(), step)?,
                logs: LogFiles::open(dir, attempt.into())?,
                journal: Journal::open(dir, attempt.into())?,
                summary_steps: run.summary_steps.max(1),
                model_dir: dir.to_owned(),
            })
        };
        open().map_err(|error: Error| file_failure(&error))
    }

    /// The run's numbered stream.
    pub const fn journal(&self) -> &Journal {
        &self.journal
    }

    /// A committed step.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn step(&mut self, record: &CommitRecord, seconds: f64, rates: Rates) -> Result<(), Failure> {
        let point: Point = TrainPoint {
            step: record.step,
            loss: record.loss,
            learning_rate: record.learning_rate,
            grad_norm: record.norm,
            tokens: record.tokens,
            seconds,
        }
        .into();
        self.point(point)?;
        if record.step.is_multiple_of(self.summary_steps) {
            let values = [
                (tags::TRAIN_LOSS, record.loss),
                (tags::TRAIN_LEARNING_RATE, record.learning_rate),
                (tags::TRAIN_GRAD_NORM, record.norm),
                (tags::LOCAL_SAMPLES_PER_SEC, rates.rate as f32),
                (tags::AVG_SAMPLES_PER_SEC, rates.global_rate as f32),
            ];
            self.events.scalars(record.step, &values).map_err(|error| file_failure(&error))?;
        }
        Ok(())
    }

    /// A finished evaluation.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn evaluation(&mut self, evaluation: &Evaluation, loss: f32, seconds: f64) -> Result<(), Failure> {
        let share = evaluation.correct as f64 / evaluation.tokens.max(1) as f64;
        let perplexity = evaluation.loss.exp();
        let metrics = [("eval/lm_perplexity", perplexity as f32), ("eval/accuracy", share as f32)]
            .map(|(k, v)| (k.to_owned(), v));
        let (step, tokens) = (evaluation.step, evaluation.tokens);
        self.point(EvalPoint { step, loss, tokens, seconds, metrics: BTreeMap::from(metrics) }.into())?;
        let values =
            [(tags::EVAL_LOSS, loss), ("eval/lm_perplexity", perplexity as f32), ("eval/accuracy", share as f32)];
        self.events.scalars(step, &values).map_err(|error| file_failure(&error))
    }

    fn point(&mut self, point: Point) -> Result<(), Failure> {
        self.metrics.append(&point).map_err(|error| file_failure(&error))?;
        self.record(Event::Metric(point))
    }

    /// Appends to the journal.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn record(&self, event: Event) -> Result<(), Failure> {
        self.journal.append(event).map(drop).map_err(|error| file_failure(&error))
    }

    /// The run is in another state.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn state(&self, state: &str, detail: &[(&str, String)]) -> Result<(), Failure> {
        let detail = detail.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        self.record(Event::State { state: state.to_owned(), detail })
    }

    /// The last entry.
    pub fn outcome(&self, outcome: Outcome) {
        if let Err(error) = self.record(Event::Outcome(outcome)) {
            log::error!("the outcome could not be written: {error}");
        }
    }

    /// A line of an agent's log. A log that can't be written never ends a run.
    pub fn log(&mut self, record: &Record) {
        let _ = self.logs.write(record);
        let _ = self.journal.append(Event::Log(record.clone()));
    }

    /// The directory.
    pub fn model_dir(&self) -> &Path {
        &self.model_dir
    }
}

/// Where event files go: a relative `summary_dir` other than model_dir's own lies in model_dir.
fn summary_dir(model_dir: &Path, run: &RunSpec) -> PathBuf {
    let summary = Path::new(&run.summary_dir);
    if run.summary_dir == run.model_dir || run.summary_dir.is_empty() {
        model_dir.to_owned()
    } else {
        summary.to_owned()
    }
}
