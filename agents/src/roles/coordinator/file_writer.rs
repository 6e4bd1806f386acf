//! Writes the files of a run on a thread of its own, so that storage that does not respond stops neither the run nor
//! the answers to agents and users.
//!
//! ```text
//!  driver ── step, entry, record ──► queue ──► thread: RunFiles ──► metrics.jsonl, journal, event files, logs
//!     ▲                                          │
//!     └──────── number of finished writes ◄──────┘
//! ```
//!
//! * Writes happen in order.
//! * Before the driver handles an event, it waits for all writes but those of the event before it, see
//!   [`FileWriter::wait`]. A step takes several events, so a coordinator that is killed loses the newest step at most,
//!   and the thread has the time between two events to write.
//! * The driver waits for [`MAX_WAIT`] at most. Then the run continues, and up to [`MAX_QUEUED_WRITES`] writes are kept
//!   in memory until the storage responds. Further ones are dropped and counted.
//! * States of the run don't wait for the storage: followers of the journal see them while it does not respond.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use millrace_checkpoint::ResumeHistory;
use millrace_engine::coordinator::Evaluation;
use millrace_engine::types::CommitRecord;
use millrace_telemetry::journal::{AttemptOutcome, Dropped, JournalEvent, JournalWriter, ResumePoint, RunState};
use millrace_telemetry::logs::LogRecord;
use millrace_telemetry::progress::Rates;
use millrace_telemetry::prometheus::Counter;
use tokio::sync::watch;

use super::files::RunFiles;
use crate::error::AgentError;
use crate::roles::TerminationReport;
use crate::write_watch::{OngoingWrite, WriteWatch};

/// How long the driver waits for the storage before it continues without it.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Maximum writes that wait for the storage: several minutes of steps and log records, a few megabytes.
const MAX_QUEUED_WRITES: u64 = 16_384;
/// How long the end of a run waits for the storage.
const LAST_WRITES_TIMEOUT: Duration = Duration::from_secs(60);

type Write = Box<dyn FnOnce(&mut RunFiles) + Send>;

/// The files of one run; see the module documentation.
pub struct FileWriter {
    queue: Sender<Write>,
    /// Number of writes in the queue, finished ones included.
    queued: u64,
    /// The value of `queued` at the last call of [`FileWriter::wait`].
    queued_before: u64,
    /// Number of finished writes.
    finished: watch::Receiver<u64>,
    /// The write in progress.
    writes: WriteWatch,
    /// The write whose wait exceeded [`MAX_WAIT`]; `None` while the storage responds.
    stalled: Option<OngoingWrite>,
    /// Queued states before this write are out of date: a later one was announced.
    announced_state: Arc<AtomicU64>,
    /// [`MAX_WAIT`], which tests shorten.
    max_wait: Duration,
    /// Events that did not fit into the queue.
    dropped: Dropped,
    model_dir: PathBuf,
    journal: JournalWriter,
    last_report: TerminationReport,
}

impl FileWriter {
    /// Starts the thread that writes `files`. `last_report` receives the outcome of the run, too.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(mut files: RunFiles, last_report: TerminationReport) -> Result<Self, AgentError> {
        let (queue, writes) = mpsc::channel::<Write>();
        let (progress, finished) = watch::channel(0);
        let (model_dir, journal) = (files.model_dir().to_owned(), files.journal().clone());
        let watch = files.writes().clone();
        let write_all = move || {
            for write in writes {
                write(&mut files);
                progress.send_modify(|finished| *finished += 1);
            }
        };
        std::thread::Builder::new().name("files".to_owned()).spawn(write_all).map_err(AgentError::local)?;
        Ok(Self {
            queue,
            queued: 0,
            queued_before: 0,
            finished,
            writes: watch,
            stalled: None,
            announced_state: Arc::default(),
            max_wait: MAX_WAIT,
            dropped: Dropped::default(),
            model_dir,
            journal,
            last_report,
        })
    }

    /// Returns the numbered journal of the run.
    pub const fn journal(&self) -> &JournalWriter {
        &self.journal
    }

    /// Makes `counter` count what is dropped.
    pub fn count_dropped(&mut self, counter: Counter) {
        self.push(move |files| files.count_dropped(counter));
    }

    /// Calls [`RunFiles::begin`], and waits for its result.
    ///
    /// # Errors
    /// As [`RunFiles::begin`].
    pub fn begin(&mut self, step: u64, before: &ResumeHistory) -> Result<Option<ResumePoint>, AgentError> {
        let (result, begun) = mpsc::sync_channel(1);
        let before = before.clone();
        self.push(move |files| drop(result.send(files.begin(step, &before))));
        begun.recv().map_err(AgentError::local)?
    }

    /// Writes a committed step.
    pub fn step(&mut self, record: &CommitRecord, metrics: Vec<(String, f64)>, seconds: f64, rates: Rates) {
        let record = *record;
        if !self.try_push(move |files| files.step(&record, &metrics, seconds, rates)) {
            self.dropped.metrics += 1;
        }
    }

    /// Writes an evaluation.
    pub fn evaluation(
        &mut self,
        evaluation: &Evaluation,
        metrics: Vec<(String, f64)>,
        loss: f32,
        seconds: f64,
        rates: Rates,
    ) {
        let evaluation = evaluation.clone();
        if !self.try_push(move |files| files.evaluation(&evaluation, &metrics, loss, seconds, rates)) {
            self.dropped.metrics += 1;
        }
    }

    /// Appends to the journal.
    pub fn record(&mut self, event: JournalEvent) {
        self.record_if(event, || true);
    }

    /// Appends a state of the run to the journal, before all queued writes if the storage does not respond.
    pub fn state(&mut self, state: RunState) {
        let event = JournalEvent::State(state);
        if self.stalled.is_some() && self.journal.announce(event.clone()).unwrap_or(false) {
            self.announced_state.store(self.queued, Ordering::Relaxed);
            return;
        }
        let (number, announced) = (self.queued, self.announced_state.clone());
        self.record_if(event, move || number >= announced.load(Ordering::Relaxed));
    }

    /// Appends to the journal if `is_wanted` returns true when everything before is written.
    fn record_if(&mut self, event: JournalEvent, is_wanted: impl FnOnce() -> bool + Send + 'static) {
        let mut counted = Dropped::default();
        counted.count(&event);
        let append = move |files: &mut RunFiles| {
            if is_wanted() {
                files.record(event);
            }
        };
        if !self.try_push(append) {
            self.dropped.add(counted);
        }
    }

    /// Writes a log record.
    pub fn log(&mut self, record: LogRecord) {
        if !self.try_push(move |files| files.log(&record)) {
            self.dropped.logs += 1;
        }
    }

    /// Queues any other write.
    pub fn write(&mut self, write: impl FnOnce(&Path) + Send + 'static) {
        self.push(move |files| write(files.model_dir()));
    }

    /// Queues a write of which there may be any number. Returns false if too many wait already.
    fn try_push(&mut self, write: impl FnOnce(&mut RunFiles) + Send + 'static) -> bool {
        let has_room = self.queued - *self.finished.borrow() < MAX_QUEUED_WRITES;
        if has_room {
            self.push(write);
        }
        has_room
    }

    /// Queues a write, after the number of the events that were dropped before it.
    fn push(&mut self, write: impl FnOnce(&mut RunFiles) + Send + 'static) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped.total() > 0 {
            self.send(Box::new(move |files| files.add_dropped(dropped)));
        }
        self.send(Box::new(write));
    }

    fn send(&mut self, write: Write) {
        // The thread ends only if a write has panicked, which is reported already.
        let _ = self.queue.send(write);
        self.queued += 1;
    }

    /// Returns the write that the storage does not respond to; `None` while it responds. As of the last call of
    /// [`FileWriter::wait`].
    pub const fn stalled(&self) -> Option<&OngoingWrite> {
        self.stalled.as_ref()
    }

    /// Waits until everything is written that was queued before the last call, or the storage has not responded for
    /// [`MAX_WAIT`]. From then on, returns at once until it responds.
    pub async fn wait(&mut self) {
        let queued_before = std::mem::replace(&mut self.queued_before, self.queued);
        let is_written = |finished: &u64| *finished >= queued_before;
        if self.stalled.is_some() {
            self.stalled.take_if(|_| is_written(&self.finished.borrow()));
            return;
        }
        let began = Instant::now();
        if tokio::time::timeout(self.max_wait, self.finished.wait_for(is_written)).await.is_err() {
            let file = self.writes.ongoing().map_or_else(|| self.model_dir.clone(), |write| write.file);
            self.stalled = Some(OngoingWrite { file, began });
        }
    }

    /// Writes the outcome, as the last journal entry and as the last report. Waits until everything is written, at most
    /// for [`LAST_WRITES_TIMEOUT`].
    pub fn finish(mut self, outcome: AttemptOutcome) {
        let last_entry = outcome.clone();
        self.push(move |files| files.outcome(last_entry));
        self.close();
        self.last_report.write(&outcome);
    }

    /// Waits until everything is written, at most for [`LAST_WRITES_TIMEOUT`].
    pub fn close(&mut self) {
        let (written, end) = mpsc::sync_channel(1);
        self.push(move |_| {
            let _ = written.send(());
        });
        if end.recv_timeout(LAST_WRITES_TIMEOUT).is_err() {
            tracing::error!(
                "the run ended, but the storage of {} has not accepted its last metrics and journal entries",
                self.model_dir.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_engine::types::TrainingHistory;
    use millrace_telemetry::journal::{JournalReader, RunPhase};
    use millrace_telemetry::metrics_log::{self, MetricPoint};

    use super::*;
    use crate::launch::testing::local_run;

    /// Returns the writer of a run in `directory` whose only unfinished write stalls, and a sender whose end lets the
    /// storage respond.
    fn stalled_writer(directory: &Path) -> (FileWriter, mpsc::Sender<()>) {
        let mut launch = local_run().launch;
        launch.model_dir = directory.to_owned();
        let files = RunFiles::open(&launch, 1).unwrap();
        let mut writer = FileWriter::start(files, TerminationReport::default()).unwrap();
        assert_eq!(writer.begin(0, &ResumeHistory::default()).unwrap(), None);
        let (respond, responds) = mpsc::channel::<()>();
        let (stall, stalls) = mpsc::channel();
        writer.write(move |_| {
            stall.send(()).unwrap();
            let _ = responds.recv();
        });
        stalls.recv().unwrap();
        (writer, respond)
    }

    fn write_step(writer: &mut FileWriter, step: u64) {
        let history = TrainingHistory::default();
        let record = CommitRecord { step, scale: 1.0, learning_rate: 0.1, loss: 2.0, norm: 3.0, tokens: 4, history };
        writer.step(&record, Vec::new(), 0.5, Rates::default());
    }

    fn state(step: u64) -> RunState {
        RunState {
            state: RunPhase::Training,
            step,
            total_steps: None,
            num_csx: 1,
            requested_csx: None,
            epoch: None,
            lost_agents: [].into(),
            slow_agents: [].into(),
            storage_stall: None,
            resumed: None,
            note: None,
        }
    }

    /// Returns the steps of the states in the journal's file.
    fn states(directory: &Path) -> Vec<u64> {
        let mut journal = JournalReader::open(directory, 1).unwrap();
        let mut steps = Vec::new();
        while let Some(entry) = journal.next_entry().unwrap() {
            if let JournalEvent::State(state) = entry.event {
                steps.push(state.step);
            }
        }
        steps
    }

    /// Followers see the newest state although the storage does not respond, and no older one after it.
    #[tokio::test]
    async fn states_overtake_writes_that_stall() {
        let directory = tempfile::tempdir().unwrap();
        let (mut writer, respond) = stalled_writer(directory.path());
        writer.max_wait = Duration::from_millis(20);
        writer.state(state(1));
        writer.wait().await;
        writer.wait().await;
        assert_eq!(writer.stalled().unwrap().file, directory.path(), "no file of the run is being written");
        let mut follower = writer.journal().follow(1);
        assert_eq!(follower.poll(9).unwrap(), []);
        writer.state(state(2));
        let seen = follower.poll(9).unwrap();
        assert_eq!((seen.len(), &seen[0].event), (1, &JournalEvent::State(state(2))));
        drop(respond);
        writer.finished.wait_for(|finished| *finished == writer.queued).await.unwrap();
        writer.wait().await;
        assert_eq!(writer.stalled(), None);
        writer.state(state(3));
        writer.finish(outcome());
        assert_eq!(states(directory.path()), [2, 3]);
    }

    fn outcome() -> AttemptOutcome {
        AttemptOutcome::from(&AgentError::bad_input("an outcome"))
    }

    #[tokio::test]
    async fn run_continues_while_the_storage_does_not_respond() {
        let directory = tempfile::tempdir().unwrap();
        let (mut writer, respond) = stalled_writer(directory.path());
        for (step, is_stalled, max_wait) in [
            (1, false, Duration::MAX), // the first step may be written until the next event
            (2, true, Duration::from_millis(20)),
            (3, true, Duration::MAX), // the storage does not respond already
        ] {
            write_step(&mut writer, step);
            writer.max_wait = max_wait;
            writer.wait().await;
            assert_eq!(writer.stalled().is_some(), is_stalled, "step {step}");
        }
        assert_eq!(metrics_log::read(directory.path()).unwrap(), []);
        drop(respond);
        writer.finished.wait_for(|finished| *finished == writer.queued).await.unwrap();
        writer.wait().await;
        assert_eq!(writer.stalled(), None);
        write_step(&mut writer, 4);
        writer.finish(outcome());
        let steps: Vec<u64> = metrics_log::read(directory.path()).unwrap().iter().map(MetricPoint::step).collect();
        assert_eq!(steps, [1, 2, 3, 4]);
    }

    #[test]
    fn writes_beyond_the_queue_are_counted_in_the_journal() {
        let directory = tempfile::tempdir().unwrap();
        let (mut writer, respond) = stalled_writer(directory.path());
        // The write that stalls counts, too.
        for step in 1..MAX_QUEUED_WRITES + 7 {
            write_step(&mut writer, step);
        }
        assert_eq!(writer.dropped, Dropped { metrics: 7, ..Dropped::default() });
        drop(respond);
        writer.finish(outcome());
        let mut journal = JournalReader::open(directory.path(), 1).unwrap();
        let mut counted = Dropped::default();
        while let Some(entry) = journal.next_entry().unwrap() {
            if let JournalEvent::Dropped(dropped) = entry.event {
                counted.add(dropped);
            }
        }
        assert_eq!(counted, Dropped { metrics: 7, ..Dropped::default() });
    }
}
