//! Reads the samples of one dataset with several workers.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};

use millrace_data::{PythonPackage, PythonProblem, SampleNumber, SampleReader};

use crate::error::{LoaderError, spawn};
use crate::server::LoaderServer;
use crate::worker::Worker;

/// Maximum number of samples of one message. Larger requests are divided among the workers.
pub(crate) const MAX_CHUNK_SAMPLES: usize = 256;
/// Number of chunks for each worker, so that workers with slow samples get fewer.
const CHUNKS_PER_WORKER: usize = 2;

/// The workers of one dataset. They are started with the first request, and end with the pool.
pub struct LoaderPool {
    /// Sends chunks to the workers, which end when it is dropped.
    chunks: Sender<Chunk>,
    workers: usize,
    /// Bytes of a sample of each input.
    widths: Vec<usize>,
}

/// Consecutive samples of a request.
#[derive(Debug)]
pub(crate) struct Samples {
    pub(crate) count: usize,
    /// The elements of each input, sample after sample.
    pub(crate) elements: Vec<u8>,
}

/// The samples of a chunk in one or more parts, in order; or why they can't be read.
pub(crate) type ChunkResult = Result<Vec<Samples>, PythonProblem>;

/// Samples to read.
pub(crate) struct Chunk {
    position: usize,
    pub(crate) samples: Vec<SampleNumber>,
    reply: Sender<(usize, ChunkResult)>,
}

impl Chunk {
    /// Sends the result to the pool.
    pub(crate) fn complete(self, result: ChunkResult) {
        // The reader of the samples may have been dropped.
        let _ = self.reply.send((self.position, result));
    }
}

impl LoaderPool {
    /// Creates a pool with as many workers as the package requests.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn new(server: &Arc<LoaderServer>, package: &PythonPackage) -> Result<Self, LoaderError> {
        // The worker that holds the lock takes the next chunk.
        let (chunks, waiting) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let widths = package.input_bytes().collect();
        let pool = Self { chunks, workers: package.workers().into(), widths };
        for _ in 0..pool.workers {
            let thread = Worker::new(server.clone(), package.clone());
            let waiting = waiting.clone();
            spawn("loader-worker", move || thread.run(&waiting))?;
        }
        Ok(pool)
    }

    /// Adds samples to `arrays`.
    fn append(&self, arrays: &mut [Vec<u8>], samples: &Samples) {
        let mut elements = samples.elements.as_slice();
        for (array, width) in arrays.iter_mut().zip(&self.widths) {
            let Some((values, rest)) = elements.split_at_checked(width.saturating_mul(samples.count)) else { return };
            array.extend_from_slice(values);
            elements = rest;
        }
    }
}

impl SampleReader for LoaderPool {
    fn read(&self, samples: &[SampleNumber]) -> Result<Vec<Vec<u8>>, PythonProblem> {
        let size = samples.len().div_ceil(self.workers * CHUNKS_PER_WORKER).clamp(1, MAX_CHUNK_SAMPLES);
        let (reply, replies) = mpsc::channel();
        for (position, samples) in samples.chunks(size).enumerate() {
            // A chunk that no worker takes has no result.
            let _ = self.chunks.send(Chunk { position, samples: samples.to_vec(), reply: reply.clone() });
        }
        drop(reply);
        // All of them are received, so that of several failures always the first one is reported.
        let mut results: Vec<_> = replies.into_iter().collect();
        results.sort_by_key(|(position, _)| *position);
        let bytes = |width: &usize| Vec::with_capacity(width.saturating_mul(samples.len()));
        let mut arrays: Vec<Vec<u8>> = self.widths.iter().map(bytes).collect();
        for (_, result) in results {
            result?.iter().for_each(|samples| self.append(&mut arrays, samples));
        }
        Ok(arrays)
    }
}
