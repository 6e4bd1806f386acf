//! Reads the samples of a dataset that can only be iterated over.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use millrace_data::{PythonPackage, PythonProblem, SampleNumber, SampleReader};

use crate::pool::{MAX_CHUNK_SAMPLES, Samples};
use crate::server::LoaderServer;
use crate::worker::Worker;

/// Number of requests of the maximum size whose samples are kept: systems are at most two rounds apart, and request
/// samples of a step again when it is repeated.
const KEPT_REQUESTS: usize = 4;

/// The worker of a stream, and the samples that it has read last.
///
/// Sample n is the n-th that the iterator returns. The worker iterates once; a request for samples before those that
/// are kept, such as after a restart of the job or at the next evaluation, lets it begin again.
pub struct LoaderStream {
    state: Mutex<StreamState>,
    /// Bytes of a sample of each input.
    widths: Vec<usize>,
    /// Maximum number of samples that are kept.
    capacity: usize,
}

struct StreamState {
    worker: Worker,
    /// Number of the first sample that is kept.
    first: u64,
    /// The samples that are kept: the elements of all inputs of each.
    kept: VecDeque<Vec<u8>>,
}

impl LoaderStream {
    /// Creates the reader of a stream. `max_samples` is the maximum number of samples of a request.
    pub fn new(server: &Arc<LoaderServer>, package: &PythonPackage, max_samples: u64) -> Self {
        let widths = package.input_bytes().collect();
        let worker = Worker::new(server.clone(), package.clone());
        let capacity = usize::try_from(max_samples).unwrap_or(usize::MAX).max(1).saturating_mul(KEPT_REQUESTS);
        let state = StreamState { worker, first: 0, kept: VecDeque::new() };
        Self { state: Mutex::new(state), widths, capacity }
    }
}

impl SampleReader for LoaderStream {
    fn read(&self, samples: &[SampleNumber]) -> Result<Vec<Vec<u8>>, PythonProblem> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut arrays = vec![Vec::new(); self.widths.len()];
        // With a number of samples of a pass, a request may continue with the first sample.
        for run in samples.chunk_by(|left, right| left.index.checked_add(1) == Some(right.index)) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            state.advance(first.index, last.index, self)?;
            for sample in run {
                let mut elements = state.sample(sample.index);
                for (array, width) in arrays.iter_mut().zip(&self.widths) {
                    let Some((own, remaining)) = elements.split_at_checked(*width) else { continue };
                    array.extend_from_slice(own);
                    elements = remaining;
                }
            }
        }
        Ok(arrays)
    }
}

impl StreamState {
    /// Returns the number of the sample after those that are kept.
    fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// Returns the elements of a sample that is kept.
    fn sample(&self, number: u64) -> &[u8] {
        let position = number.checked_sub(self.first).and_then(|position| usize::try_from(position).ok());
        position.and_then(|position| self.kept.get(position)).map_or(&[], Vec::as_slice)
    }

    /// Reads until the samples from `first` up to `last` are kept. Drops earlier ones beyond the capacity.
    fn advance(&mut self, first: u64, last: u64, stream: &LoaderStream) -> Result<(), PythonProblem> {
        let capacity = stream.capacity as u64;
        // Other systems may request the samples shortly before these next.
        if first < self.first || first > self.end().saturating_add(capacity) {
            self.first = first.saturating_sub(capacity);
            self.kept.clear();
        }
        while self.end() <= last {
            let count = (last - self.end()).saturating_add(1).min(MAX_CHUNK_SAMPLES as u64);
            // Random numbers are not a function of the sample, so there is no seed.
            let numbers: Vec<_> =
                (self.end()..self.end() + count).map(|index| SampleNumber { index, seed: 0 }).collect();
            for samples in self.worker.read(&numbers)? {
                self.keep(&samples, stream);
                let surplus = self.kept.len().saturating_sub(stream.capacity) as u64;
                let surplus = surplus.min(first - self.first);
                self.kept.drain(..surplus as usize);
                self.first += surplus;
            }
        }
        Ok(())
    }

    /// Keeps samples after the others.
    fn keep(&mut self, samples: &Samples, stream: &LoaderStream) {
        for sample in 0..samples.count {
            let mut elements = Vec::new();
            let mut begin = 0;
            for width in &stream.widths {
                let position = begin + sample * width;
                elements.extend_from_slice(samples.elements.get(position..position + width).unwrap_or_default());
                begin += width * samples.count;
            }
            self.kept.push_back(elements);
        }
    }
}
