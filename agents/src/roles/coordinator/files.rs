//! The files that the coordinator writes to `model_dir`, except checkpoints.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use millrace_checkpoint::ResumeHistory;
use millrace_data::TOKENIZER_FILE;
use millrace_engine::coordinator::Evaluation;
use millrace_engine::types::CommitRecord;
use millrace_params::RunSpec;
use millrace_telemetry::journal::{
    AttemptOutcome, Dropped, JournalEvent, JournalReader, JournalWriter, OutcomeReason, ResumePoint,
};
use millrace_telemetry::logs::{LogFiles, LogRecord};
use millrace_telemetry::metrics_log::{self, EvalMetrics, MetricPoint, MetricsLog, TrainMetrics};
use millrace_telemetry::prometheus::Counter;
use millrace_telemetry::tensorboard::{self, EventWriter, tags};
use millrace_telemetry::{Error, atomic_file, progress::Rates};

use crate::checkpoint_tokenizer;
use crate::error::AgentError;
use crate::input::data_failure;
use crate::launch::LaunchDocument;
use crate::write_watch::WriteWatch;

/// Writes metrics, logs, the journal and event files of one run.
pub struct RunFiles {
    model_dir: PathBuf,
    summaries: PathBuf,
    trains: bool,
    points: Option<MetricSinks>,
    logs: LogFiles,
    journal: JournalWriter,
    summary_steps: u64,
    /// Whether the last write to a file failed.
    refusing: bool,
    /// Counts the lines and entries dropped in this attempt.
    dropped: Option<Counter>,
    /// The part of them that was reported to the user.
    reported_dropped: u64,
    /// The write in progress.
    writes: WriteWatch,
}

/// The files for metric points. They are opened when the first step of the run is known.
struct MetricSinks {
    metrics: MetricsLog,
    events: EventWriter,
    /// The newest training step in `metrics`.
    newest: u64,
    /// The evaluations that earlier event files have.
    evaluations: HashSet<EvaluationKey>,
}

/// Step, tokens and loss of an evaluation. Evaluating the same checkpoint on the same data again gives the same bits.
type EvaluationKey = (u64, u64, u32);

/// Converts a telemetry error to a failure with cause and hint.
pub fn file_failure(error: Error) -> AgentError {
    let hint = error.hint();
    let reason = match &error {
        Error::StaleAttempt { .. } => OutcomeReason::Superseded,
        full if full.is_full() => OutcomeReason::OutOfSpace,
        _ => OutcomeReason::Failed,
    };
    let failure = AgentError::with_reason(reason, error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

impl RunFiles {
    /// Opens journal and logs, and writes params.yaml and job.json. Copies the file of the tokenizer, so that the
    /// trained model can be used without the training data.
    ///
    /// # Errors
    /// A file can't be opened or written.
    pub fn open(launch: &LaunchDocument, attempt: u32) -> Result<Self, AgentError> {
        let dir = launch.model_dir.as_path();
        let run = &launch.job.run;
        let tokenizer = match launch.mode.trains() {
            true => checkpoint_tokenizer::content_to_keep(&launch.job).map_err(data_failure)?,
            false => None,
        };
        let open = || {
            if let Some(content) = &tokenizer {
                atomic_file::write(&dir.join(TOKENIZER_FILE), content)?;
            }
            atomic_file::write(&dir.join("params.yaml"), launch.params_yaml.as_bytes())?;
            atomic_file::write(&dir.join("job.json"), launch.job.to_json().as_bytes())?;
            Ok(Self {
                summaries: summary_dir(dir, run),
                trains: launch.mode.trains(),
                points: None,
                logs: LogFiles::open(dir, attempt.into())?,
                journal: JournalWriter::open(dir, attempt.into())?,
                summary_steps: run.summary_steps.max(1),
                refusing: false,
                dropped: None,
                reported_dropped: 0,
                writes: WriteWatch::default(),
                model_dir: dir.to_owned(),
            })
        };
        open().map_err(file_failure)
    }

    /// Opens the files of metric points for a run that continues after `step`, to which the steps `before` led. Removes
    /// points of steps that are not in `before`. Returns where the run resumes, if anything was trained before.
    ///
    /// # Errors
    /// A file can't be opened, read or written.
    pub fn begin(&mut self, step: u64, before: &ResumeHistory) -> Result<Option<ResumePoint>, AgentError> {
        let dir = self.model_dir.as_path();
        let open = || {
            let metrics =
                if self.trains { metrics_of_line(dir, before)? } else { MetricsLog::open_for_evaluation(dir)? };
            let (mut newest, mut evaluations) = (0, HashSet::new());
            for point in metrics_log::read(dir)? {
                match point {
                    MetricPoint::Train(point) => newest = newest.max(point.step),
                    MetricPoint::Eval(point) => {
                        evaluations.insert((point.step, point.tokens, point.loss.to_bits()));
                    }
                }
            }
            if !tensorboard::has_event_files(&self.summaries)? {
                evaluations.clear();
            }
            let attempt = self.journal.attempt();
            let events = if self.trains {
                EventWriter::create(&self.summaries, attempt, step)?
            } else {
                EventWriter::create_for_evaluation(&self.summaries, attempt)?
            };
            Ok(MetricSinks { metrics, events, newest, evaluations })
        };
        let points = open().map_err(file_failure)?;
        let last_step = points.metrics.opening().last_step;
        self.points = Some(points);
        let resumed = self.trains && step.max(last_step) > 0;
        Ok(resumed.then(|| ResumePoint { step, repeated_steps: last_step.saturating_sub(step) }))
    }

    /// Returns the numbered journal of the run.
    pub const fn journal(&self) -> &JournalWriter {
        &self.journal
    }

    /// Makes `counter` count what is dropped while the disk is full.
    pub fn count_dropped(&mut self, counter: Counter) {
        self.dropped = Some(counter);
    }

    /// Writes a committed step. A step that an earlier coordinator has already written to the metrics is not written
    /// there again, but it is appended to the journal, where it may be missing.
    pub fn step(&mut self, record: &CommitRecord, metrics: &[(String, f64)], seconds: f64, rates: Rates) {
        let metrics = in_f32(metrics);
        let point: MetricPoint = TrainMetrics {
            step: record.step,
            loss: record.loss,
            learning_rate: record.learning_rate,
            grad_norm: record.norm,
            tokens: record.tokens,
            seconds,
            rate: rates.rate,
            skipped_batches: record.history.skipped_batches,
            metrics: metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        }
        .into();
        self.point(point);
        if record.step.is_multiple_of(self.summary_steps) {
            let values = [
                (tags::TRAIN_LOSS, record.loss),
                (tags::TRAIN_LEARNING_RATE, record.learning_rate),
                (tags::TRAIN_GRAD_NORM, record.norm),
                (tags::LOCAL_SAMPLES_PER_SEC, rates.rate as f32),
                (tags::AVG_SAMPLES_PER_SEC, rates.global_rate as f32),
            ];
            let values: Vec<_> = values.into_iter().chain(metrics).collect();
            self.scalars(record.step, &values);
        }
    }

    /// Writes an evaluation. An equal one that an earlier run has written to the event files is not written there
    /// again.
    pub fn evaluation(
        &mut self,
        evaluation: &Evaluation,
        metrics: &[(String, f64)],
        loss: f32,
        seconds: f64,
        rates: Rates,
    ) {
        let metrics = in_f32(metrics);
        let (step, tokens) = (evaluation.step, evaluation.tokens);
        let by_name = metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        self.point(EvalMetrics { step, loss, tokens, seconds, rate: rates.global_rate, metrics: by_name }.into());
        // TensorBoard would show the point of an earlier run and this one, at the same place.
        let key = (step, tokens, loss.to_bits());
        let is_repeated = self.points.as_ref().is_some_and(|points| points.evaluations.contains(&key));
        if !is_repeated {
            let values: Vec<_> = std::iter::once((tags::EVAL_LOSS, loss)).chain(metrics).collect();
            self.scalars(step, &values);
        }
    }

    fn scalars(&mut self, step: u64, values: &[(&str, f32)]) {
        let Some(points) = &mut self.points else { return };
        let file = points.events.path().to_owned();
        let result = self.writes.watch(&file, || points.events.scalars(step, values));
        self.note(result);
    }

    fn point(&mut self, point: MetricPoint) {
        // Points come only with iterations, and iterations only after `begin`.
        if let Some(points) = &mut self.points {
            let is_repeated = matches!(point, MetricPoint::Train(_)) && point.step() <= points.newest;
            if !is_repeated {
                let file = points.metrics.path().to_owned();
                let result = self.writes.watch(&file, || points.metrics.append(&point));
                self.note(result);
            }
        }
        self.record(JournalEvent::Metric(point));
    }

    /// Appends to the journal.
    pub fn record(&mut self, event: JournalEvent) {
        let result = self.append(event);
        self.note(result);
    }

    fn append(&self, event: JournalEvent) -> Result<(), Error> {
        self.writes.watch(self.journal.path(), || self.journal.append(event)).map(drop)
    }

    /// Writes the outcome, as the last journal entry.
    pub fn outcome(&mut self, outcome: AttemptOutcome) {
        self.record(JournalEvent::Outcome(outcome));
        if self.refusing {
            let waiting = self.journal.waiting();
            tracing::error!(waiting, "the run ended, but its last metrics and journal entries could not be written");
        }
    }

    /// Counts events that were dropped before they reached a file.
    pub fn add_dropped(&mut self, dropped: Dropped) {
        self.journal.count_dropped(dropped);
    }

    /// Handles the result of a write. Data that a file did not accept stays in memory and is written before the next
    /// data, so that a full disk does not end a run. The user is warned once when writing fails, and once when it works
    /// again.
    fn note(&mut self, result: Result<(), Error>) {
        let result = if self.refusing { result.and_then(|()| self.flush()) } else { result };
        let dropped = self.dropped_so_far();
        if let Some(counter) = &self.dropped {
            counter.add(dropped.saturating_sub(counter.get()));
        }
        match result {
            Err(error) if !self.refusing => {
                self.refusing = true;
                let sentence = file_failure(error).message();
                tracing::warn!(
                    "{sentence}; training continues, and metrics are kept in memory until they can be written"
                );
            }
            Ok(()) if self.refusing => {
                self.refusing = false;
                let lost = dropped - std::mem::replace(&mut self.reported_dropped, dropped);
                tracing::warn!(dropped = lost, "metrics and the journal are written again");
            }
            _ => {}
        }
    }

    /// Writes the data that the files did not accept earlier.
    fn flush(&mut self) -> Result<(), Error> {
        if let Some(points) = &mut self.points {
            let (metrics, events) = (points.metrics.path().to_owned(), points.events.path().to_owned());
            self.writes.watch(&metrics, || points.metrics.flush())?;
            self.writes.watch(&events, || points.events.flush())?;
        }
        self.writes.watch(self.journal.path(), || self.journal.flush())
    }

    /// Returns the number of lines of `metrics.jsonl`, points of curves and journal entries that were dropped in this
    /// attempt.
    fn dropped_so_far(&self) -> u64 {
        let points = self.points.as_ref().map_or(0, |points| points.metrics.dropped() + points.events.dropped());
        self.journal.dropped() + points
    }

    /// Writes a log record. A log that can't be written never ends a run.
    pub fn log(&mut self, record: &LogRecord) {
        let _ = self.writes.watch(&self.logs.path(&record.agent), || self.logs.write(record));
        let _ = self.append(JournalEvent::Log(record.clone()));
    }

    /// Returns what tells which of these files is being written.
    pub const fn writes(&self) -> &WriteWatch {
        &self.writes
    }

    pub fn model_dir(&self) -> &Path {
        &self.model_dir
    }
}

/// Opens `metrics.jsonl` with each of the steps `before` this run once: points of other lineages are removed, and
/// missing points of this lineage are restored from the journal.
fn metrics_of_line(model_dir: &Path, before: &ResumeHistory) -> Result<MetricsLog, Error> {
    let mut metrics = MetricsLog::open(model_dir, before.shared)?;
    if before.made_by.is_empty() {
        return Ok(metrics);
    }
    let of_line = |attempt: u64, step: u64| {
        before.made_by.iter().any(|(maker, steps)| u64::from(*maker) == attempt && steps.contains(&step))
    };
    let mut journal = JournalReader::open(model_dir, 0)?;
    while let Some(entry) = journal.next_entry()? {
        match entry.event {
            JournalEvent::Metric(point) if of_line(entry.attempt, point.step()) => metrics.append(&point)?,
            _ => {}
        }
    }
    Ok(metrics)
}

/// Returns the directory of event files: `summary_dir`, or model_dir if `summary_dir` is empty or names it.
fn summary_dir(model_dir: &Path, run: &RunSpec) -> PathBuf {
    let summary = Path::new(&run.summary_dir);
    if run.summary_dir == run.model_dir || run.summary_dir.is_empty() {
        model_dir.to_owned()
    } else {
        summary.to_owned()
    }
}

fn in_f32(metrics: &[(String, f64)]) -> Vec<(&str, f32)> {
    metrics.iter().map(|(name, value)| (name.as_str(), *value as f32)).collect()
}

#[cfg(test)]
mod tests {
    use millrace_engine::types::TrainingHistory;
    use millrace_params::Mode;

    use super::*;
    use crate::launch::testing::local_run;

    #[test]
    fn step_is_written_once_across_coordinators() {
        let dir = tempfile::tempdir().unwrap();
        let mut launch = local_run().launch;
        launch.model_dir = dir.path().to_owned();
        let history = TrainingHistory::default();
        let record =
            |step| CommitRecord { step, scale: 1.0, learning_rate: 0.1, loss: 2.0, norm: 3.0, tokens: 4, history };
        let mut first = RunFiles::open(&launch, 1).unwrap();
        assert_eq!(first.begin(0, &ResumeHistory::default()).unwrap(), None);
        (1..=3).for_each(|step| first.step(&record(step), &[], 0.5, Rates::default()));
        drop(first);
        // Whether the earlier coordinator wrote step 3 or not, its successor receives the newest step.
        for (attempt, newest) in [(2, 3), (3, 4)] {
            let mut next = RunFiles::open(&launch, attempt).unwrap();
            let resumed = next.begin(newest, &ResumeHistory { shared: newest, ..ResumeHistory::default() }).unwrap();
            assert_eq!(resumed, Some(ResumePoint { step: newest, repeated_steps: 0 }));
            next.step(&record(newest), &[], 0.5, Rates::default());
        }
        let steps: Vec<u64> = metrics_log::read(dir.path()).unwrap().iter().map(MetricPoint::step).collect();
        assert_eq!(steps, [1, 2, 3, 4]);
        // A coordinator without a checkpoint begins at step 0 and reports the repeated steps.
        let mut reopened = RunFiles::open(&launch, 4).unwrap();
        let resumed = reopened.begin(0, &ResumeHistory::default()).unwrap();
        assert_eq!(resumed, Some(ResumePoint { step: 0, repeated_steps: 4 }));
    }

    #[test]
    fn repeated_evaluation_is_one_point_of_the_curve() {
        let dir = tempfile::tempdir().unwrap();
        let mut launch = local_run().launch;
        (launch.model_dir, launch.mode) = (dir.path().to_owned(), Mode::EvalAll);
        let evaluation =
            |loss| Evaluation { step: 3, loss, tokens: 8, correct: 1, batches: 2, ..Evaluation::default() };
        let event_bytes = |attempt, loss: f64| {
            let mut files = RunFiles::open(&launch, attempt).unwrap();
            files.begin(3, &ResumeHistory::default()).unwrap();
            files.evaluation(
                &evaluation(loss),
                &[("eval/accuracy".to_owned(), 0.125)],
                loss as f32,
                0.5,
                Rates::default(),
            );
            std::fs::metadata(files.points.unwrap().events.path()).unwrap().len()
        };
        let first = event_bytes(1, 2.5);
        let version_only = event_bytes(2, 2.5);
        assert!(version_only < first, "{version_only} {first}");
        assert_eq!(event_bytes(3, 2.25), first, "another value is another point");
        assert_eq!(metrics_log::read(dir.path()).unwrap().len(), 3, "metrics.jsonl has every evaluation");
    }

    /// Environment variable with a directory on a small file system, for [`begin_on_a_full_disk`].
    const SMALL_DISK: &str = "MILLRACE_TEST_SMALL_DISK";

    /// Runs [`begin_on_a_full_disk`] in a mount namespace with a file system of 64 KiB.
    #[test]
    fn full_disk_at_the_beginning_names_file_and_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("{}::begin_on_a_full_disk", module_path!().split_once("::").unwrap().1);
        let script = "mount -t tmpfs -o size=64k none \"$0\" || exit 99; exec \"$@\"";
        let output = std::process::Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
            .args([dir.path(), &std::env::current_exe().unwrap()])
            .args(["--exact", &name, "--ignored", "--nocapture"])
            .env(SMALL_DISK, dir.path())
            .output();
        match output {
            Ok(output) if output.status.code() != Some(99) && !output.stdout.is_empty() => {
                let stdout = String::from_utf8_lossy(&output.stdout);
                let stderr = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}\n{stderr}");
            }
            other => println!("SKIPPED full_disk_at_the_beginning_names_file_and_remedy: can't mount: {other:?}"),
        }
    }

    #[test]
    #[ignore = "is run by full_disk_at_the_beginning_names_file_and_remedy, in a mount namespace"]
    fn begin_on_a_full_disk() {
        let Some(dir) = std::env::var_os(SMALL_DISK).map(PathBuf::from) else { return };
        let mut launch = local_run().launch;
        launch.model_dir = dir.clone();
        std::fs::write(dir.join("metrics.jsonl"), "{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":1}\n").unwrap();
        let mut files = RunFiles::open(&launch, 1).unwrap();
        let mut filler = std::fs::File::create(dir.join("ballast")).unwrap();
        while std::io::Write::write_all(&mut filler, &[1; 512]).is_ok() {}
        let after = |step| ResumeHistory { shared: step, ..ResumeHistory::default() };
        // A run that continues after step 1 replaces metrics.jsonl without step 2; every run creates an event file.
        for (step, file) in [(1, "metrics.jsonl"), (2, "events.out.tfevents.")] {
            let error = files.begin(step, &after(step)).unwrap_err();
            assert_eq!((error.reason(), error.exit().code()), (OutcomeReason::OutOfSpace, 1), "{error}");
            let path = dir.join(file).display().to_string();
            assert!(error.message().contains(&path) && error.message().contains("No space left"), "{error}");
            assert!(error.hint.as_ref().unwrap().contains("free some space"), "{error}");
        }
        assert_eq!(metrics_log::read(&dir).unwrap().len(), 2);
        filler.set_len(0).unwrap();
        files.begin(2, &after(2)).unwrap();
    }
}
