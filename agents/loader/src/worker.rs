//! One worker: sends numbers of samples to the worker's process, receives their elements, and replaces the process when
//! it fails. A pool runs it in a thread of its own, a stream in the threads that read.

use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use millrace_data::{PythonPackage, PythonProblem, SampleNumber};

use crate::error::{LoaderError, exit_description};
use crate::message::{self, MAX_REPORT_BYTES, Message, RESIDENT_BYTES, ReceiveError, SampleError};
use crate::pool::{Chunk, ChunkResult, Samples};
use crate::server::LoaderServer;

/// Number of workers that may fail while they read one sample.
const MAX_ATTEMPTS: u32 = 3;
/// Growth of a worker's memory since its first samples from which on it counts as a leak, if the memory has doubled.
const MAX_GROWTH_BYTES: u64 = 1 << 30;

/// A worker, whose process is started with the first samples.
pub(crate) struct Worker {
    server: Arc<LoaderServer>,
    package: PythonPackage,
    /// Bytes of a sample.
    sample_bytes: usize,
    process: Option<WorkerProcess>,
}

/// A worker that has opened the dataset.
struct WorkerProcess {
    number: u64,
    stream: UnixStream,
    /// Memory after the first samples.
    first_resident_bytes: Option<u64>,
}

/// Why samples were not read.
enum ReadFailure {
    /// The code of the dataset failed: another worker would fail, too.
    Dataset(PythonProblem),
    /// The worker failed.
    Worker(String),
}

impl From<LoaderError> for ReadFailure {
    fn from(error: LoaderError) -> Self {
        match error {
            LoaderError::Ended { .. } => Self::Worker(error.to_string()),
            LoaderError::System { .. } | LoaderError::NotConnected { .. } => {
                Self::Dataset(PythonProblem::Open(error.to_string()))
            }
        }
    }
}

impl Worker {
    pub(crate) fn new(server: Arc<LoaderServer>, package: PythonPackage) -> Self {
        let sample_bytes = package.input_bytes().fold(0_usize, usize::saturating_add);
        Self { server, package, sample_bytes, process: None }
    }

    /// Reads chunks until the pool ends.
    pub(crate) fn run(mut self, chunks: &Mutex<Receiver<Chunk>>) {
        // The process ends with its connection, which this thread closes when it ends.
        while let Some(chunk) = next(chunks) {
            let result = self.read(&chunk.samples);
            chunk.complete(result);
        }
    }

    /// Reads samples. If a worker fails, reads them one by one, so that the sample at fault is known.
    pub(crate) fn read(&mut self, samples: &[SampleNumber]) -> ChunkResult {
        match self.attempt(samples) {
            Ok(samples) => Ok(vec![samples]),
            Err(ReadFailure::Dataset(problem)) => Err(problem),
            Err(ReadFailure::Worker(reason)) => {
                self.server.record_replacement(&reason, None);
                samples.iter().map(|sample| self.read_sample(*sample)).collect()
            }
        }
    }

    fn read_sample(&mut self, sample: SampleNumber) -> Result<Samples, PythonProblem> {
        let mut last = String::new();
        for _ in 0..MAX_ATTEMPTS {
            match self.attempt(&[sample]) {
                Ok(samples) => return Ok(samples),
                Err(ReadFailure::Dataset(problem)) => return Err(problem),
                Err(ReadFailure::Worker(reason)) => {
                    self.server.record_replacement(&reason, Some(sample.index));
                    last = reason;
                }
            }
        }
        let message = format!("{MAX_ATTEMPTS} workers failed while they read it; the last one: {last}");
        Err(PythonProblem::Sample { sample: sample.index, message })
    }

    /// Reads samples with the current worker, or with a new one. A worker that fails is ended.
    fn attempt(&mut self, samples: &[SampleNumber]) -> Result<Samples, ReadFailure> {
        let mut process = match self.process.take() {
            Some(process) => process,
            None => self.start()?,
        };
        match self.exchange(&mut process, samples) {
            Ok((elements, resident_bytes)) => {
                let first = *process.first_resident_bytes.get_or_insert(resident_bytes);
                let grown = resident_bytes.saturating_sub(first);
                if grown > MAX_GROWTH_BYTES.max(first) {
                    let (now, then) = (resident_bytes >> 20, first >> 20);
                    // It ends with its connection.
                    self.server.record_replacement(&format!("its memory grew from {then} to {now} MiB"), None);
                } else {
                    self.process = Some(process);
                }
                Ok(Samples { count: samples.len(), elements })
            }
            Err(ExchangeError::Failed(error)) => {
                self.process = Some(process);
                Err(ReadFailure::Dataset(sample_problem(error)))
            }
            Err(ExchangeError::Lost(error)) => Err(ReadFailure::Worker(self.end(process.number, &error))),
        }
    }

    /// Starts a worker, and waits until it has opened the dataset.
    fn start(&self) -> Result<WorkerProcess, ReadFailure> {
        let (number, mut stream) = self.server.start_worker(self.package.directory())?;
        let expected = (!self.package.is_stream()).then_some(self.package.samples());
        let opened = stream.set_read_timeout(Some(self.package.sample_timeout())).map_err(ReceiveError::Io);
        let opened = opened.and_then(|()| message::receive(&mut stream, MAX_REPORT_BYTES));
        match opened {
            Ok(Message::Ready { samples }) if samples == expected => {
                Ok(WorkerProcess { number, stream, first_resident_bytes: None })
            }
            Ok(Message::Ready { samples }) => {
                self.server.end_worker(number);
                let count = |samples: Option<u64>| samples.map_or("no known".to_owned(), |samples| samples.to_string());
                let (samples, expected) = (count(samples), count(expected));
                let found = format!("it has {samples} samples here, and {expected} where it was packed");
                Err(ReadFailure::Dataset(PythonProblem::Open(found)))
            }
            Ok(Message::Error(SampleError { message, .. })) => {
                self.server.end_worker(number);
                Err(ReadFailure::Dataset(PythonProblem::Open(message)))
            }
            Ok(_) => Err(ReadFailure::Worker(self.end(number, &ReceiveError::Invalid))),
            Err(error) => Err(ReadFailure::Worker(self.end(number, &error))),
        }
    }

    /// Ends a worker that failed by `error`; returns a description of what happened.
    fn end(&self, number: u64, error: &ReceiveError) -> String {
        if let ReceiveError::Ended = error {
            let exit = self.server.await_end(number);
            return exit.map_or_else(|| error.to_string(), |exit| format!("it ended with {}", exit_description(&exit)));
        }
        let location = self.server.end_worker(number).and_then(|exit| innermost_frame(&exit.lines));
        location.map_or_else(|| error.to_string(), |location| format!("{error} ({location})"))
    }

    fn exchange(&self, process: &mut WorkerProcess, samples: &[SampleNumber]) -> Result<(Vec<u8>, u64), ExchangeError> {
        let expected = self.sample_bytes.saturating_mul(samples.len());
        message::send_read(&mut process.stream, samples).map_err(ReceiveError::from)?;
        loop {
            match message::receive(&mut process.stream, expected.saturating_add(RESIDENT_BYTES))? {
                Message::Progress => {}
                Message::Samples { resident_bytes, elements } if elements.len() == expected => {
                    return Ok((elements, resident_bytes));
                }
                Message::Error(error) => return Err(ExchangeError::Failed(error)),
                _ => return Err(ExchangeError::Lost(ReceiveError::Invalid)),
            }
        }
    }
}

/// Waits for the next chunk; returns `None` when the pool is dropped.
fn next(chunks: &Mutex<Receiver<Chunk>>) -> Option<Chunk> {
    chunks.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// Why a worker did not send samples.
enum ExchangeError {
    /// The code of the dataset raised an exception. The worker can read other samples.
    Failed(SampleError),
    /// The worker can't be used any more.
    Lost(ReceiveError),
}

impl From<ReceiveError> for ExchangeError {
    fn from(error: ReceiveError) -> Self {
        Self::Lost(error)
    }
}

fn sample_problem(error: SampleError) -> PythonProblem {
    match error.sample {
        Some(sample) => PythonProblem::Sample { sample, message: error.message },
        None => PythonProblem::Open(error.message),
    }
}

/// Returns the place at which a worker was when it was ended, from the traceback that it printed.
fn innermost_frame(lines: &[String]) -> Option<String> {
    let traceback = lines.iter().skip_while(|line| !line.contains("most recent call first"));
    traceback.skip(1).find_map(|line| line.trim().strip_prefix("File ")).map(str::to_owned)
}
