//! Writes TensorBoard event files, in the format that the `tensorboard` package reads.
//!
//! * A file is a sequence of TFRecords (`record`), each with an `Event` message (`event`). The first one contains
//!   `file_version: "brain.Event:2"`.
//! * A file belongs to one attempt and is only appended to.
//! * The second event of a training run is a session start at the first step that the attempt trains. At this event
//!   TensorBoard discards what earlier files contain of that step and later ones, so a curve shows each step once after
//!   any number of resumes. TensorBoard takes the first session start of a run for the run's beginning and discards
//!   nothing; therefore every file of a training run has one. A run that only evaluates has none.

mod event;
mod record;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

use crate::backlog::Backlog;
use crate::error::{Error, Result};
use crate::jsonl::Appender;
use event::EventProto;

/// Names of the curves.
pub mod tags {
    /// Loss of a training step.
    pub const TRAIN_LOSS: &str = "train/loss";
    /// Learning rate of a training step.
    pub const TRAIN_LEARNING_RATE: &str = "train/learning_rate";
    /// Global gradient norm of a training step, before clipping.
    pub const TRAIN_GRAD_NORM: &str = "train/grad_norm";
    pub const EVAL_LOSS: &str = "eval/loss";
    /// Samples per second over the last log interval, smoothed.
    pub const LOCAL_SAMPLES_PER_SEC: &str = "local_samples_per_sec";
    /// Samples per second since the start.
    pub const AVG_SAMPLES_PER_SEC: &str = "avg_samples_per_sec";
    /// Steps per second since the start.
    pub const AVG_STEPS_PER_SEC: &str = "avg_steps_per_sec";
}

/// Beginning of the name of an event file.
const FILE_PREFIX: &str = "events.out.tfevents.";

/// Writes one event file. Every event has been passed to the operating system when a method returns without an error.
#[derive(Debug)]
pub struct EventWriter {
    file: Backlog,
}

impl EventWriter {
    /// Creates `events.out.tfevents.<seconds>.<host>.<pid>.<attempt>` in `directory`, which is created if it does not
    /// exist.
    ///
    /// The attempt continues after `resume_step` committed steps: readers discard later steps of earlier files. If
    /// `resume_step` is 0 they discard all steps.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(directory: &Path, attempt: u64, resume_step: u64) -> Result<Self> {
        let mut writer = Self::create_for_evaluation(directory, attempt)?;
        let first_step = if resume_step == 0 { 0 } else { resume_step.saturating_add(1) };
        writer.write(&EventProto::session_start(wall_time(), first_step))?;
        Ok(writer)
    }

    /// Creates a file like [`EventWriter::create`], for a run that does not train. Readers discard nothing, because the
    /// run may evaluate an earlier step than the newest.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create_for_evaluation(directory: &Path, attempt: u64) -> Result<Self> {
        millrace_roots::create_dir_all(directory).map_err(Error::io("create", directory))?;
        let now = wall_time();
        let name = file_name(now, &host_name(), std::process::id(), attempt);
        let file = Backlog::new(Appender::open(create_new(directory, &name)?)?);
        let mut writer = Self { file };
        writer.write(&EventProto::file_version(now))?;
        Ok(writer)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Adds a point at `step` to each of the named curves, with the current time.
    ///
    /// # Errors
    /// [`Error::Io`]. The event is then not in the file; it is kept in memory and written before the next one.
    pub fn scalars(&mut self, step: u64, values: &[(&str, f32)]) -> Result<()> {
        self.write(&EventProto::scalars(wall_time(), step, values))
    }

    fn write(&mut self, event: &EventProto<'_>) -> Result<()> {
        self.file.append(record::frame(&event.encode()))
    }

    /// Writes the events that could not be written before.
    ///
    /// # Errors
    /// [`Error::Io`]; events that are not written stay in memory.
    pub fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }

    /// Returns the number of events dropped because too many were waiting to be written (4 MiB).
    pub const fn dropped(&self) -> u64 {
        self.file.dropped()
    }
}

/// Whether `directory` has an event file; `false` if it does not exist.
///
/// # Errors
/// [`Error::Io`].
pub fn has_event_files(directory: &Path) -> Result<bool> {
    match millrace_roots::read_dir(directory) {
        Ok(entries) => Ok(entries.iter().any(|entry| {
            let name = entry.path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with(FILE_PREFIX)
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("list", directory)(error)),
    }
}

/// Creates a new file. If a file with the same second, host, process and attempt exists, a number is appended to the
/// name.
fn create_new(directory: &Path, name: &str) -> Result<PathBuf> {
    let mut path = directory.join(name);
    for copy in 1_u32.. {
        match millrace_roots::OpenOptions::new().append(true).create_new(true).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                path = directory.join(format!("{name}.{copy}"));
            }
            Ok(_) => return Ok(path),
            Err(e) => return Err(Error::io("create", &path)(e)),
        }
    }
    Err(Error::io("create", &path)(io::ErrorKind::AlreadyExists.into()))
}

/// Returns the name of a file, with ten digits of seconds so that names sort by time: TensorBoard reads files in this
/// order.
fn file_name(wall_time: f64, host: &str, process: u32, attempt: u64) -> String {
    format!("{FILE_PREFIX}{:010}.{host}.{process}.{attempt}", wall_time as u64)
}

/// Returns the seconds since 1970.
fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Returns the host name, reduced to characters that are safe in a file name; `localhost` if it is unknown.
fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String =
        name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).take(64).collect();
    if name.is_empty() { "localhost".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/golden/read_events.py` reads this file with the `tensorboard` package.
    const GOLDEN: &[u8] = include_bytes!("../../tests/golden/events.out.tfevents.golden");

    fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let (payload, rest) = record::unframe(bytes).expect("whole records with right sums");
            records.push(payload.to_vec());
            bytes = rest;
        }
        records
    }

    fn golden_events() -> Vec<EventProto<'static>> {
        let time = |second: u32| 1_700_000_000.0 + f64::from(second) / 4.0;
        vec![
            EventProto::file_version(time(0)),
            EventProto::session_start(time(0), 0),
            EventProto::scalars(time(1), 1, &[(tags::TRAIN_LOSS, 5.5), (tags::TRAIN_LEARNING_RATE, 6e-4)]),
            EventProto::scalars(time(2), 3, &[(tags::TRAIN_LOSS, 4.5)]),
            EventProto::session_start(time(3), 3),
            EventProto::scalars(time(4), 3, &[(tags::TRAIN_LOSS, 4.25)]),
            EventProto::scalars(time(5), 300, &[(tags::EVAL_LOSS, f32::INFINITY)]),
        ]
    }

    #[test]
    fn bytes_are_the_golden_ones() {
        let written: Vec<u8> = golden_events().iter().flat_map(|event| record::frame(&event.encode())).collect();
        if std::env::var_os("MILLRACE_BLESS").is_some() {
            fs::write("tests/golden/events.out.tfevents.golden", &written).unwrap();
        }
        assert_eq!(written, GOLDEN);
    }

    #[test]
    fn each_attempt_has_file_with_version_and_session() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = EventWriter::create(dir.path(), 1, 0).unwrap();
        first.scalars(1, &[(tags::TRAIN_LOSS, 1.0)]).unwrap();
        let second = EventWriter::create(dir.path(), 1, 1).unwrap();
        assert_ne!(first.path(), second.path());

        let name = second.path().file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("events.out.tfevents.1"), "{name}");
        assert_eq!(records(&fs::read(first.path()).unwrap()).len(), 3);
        let second = records(&fs::read(second.path()).unwrap());
        assert!(second[0].ends_with(b"brain.Event:2"));
        assert!(has_event_files(dir.path()).unwrap() && !has_event_files(&dir.path().join("none")).unwrap());
        assert_eq!(second.len(), 2);
        let evaluation = EventWriter::create_for_evaluation(dir.path(), 2).unwrap();
        assert_eq!(records(&fs::read(evaluation.path()).unwrap()).len(), 1, "no session start");
    }
}
