//! Continues texts with the models of checkpoints on this machine.
//!
//! ```text
//! request ──► one of MAX_PENDING_GENERATIONS ──► thread: load the model, then one token at a time ──► events
//! ```
//!
//! * One text is generated at a time, by threads of low priority; the others wait. The model of a request is not kept
//!   for the next.
//! * A text whose client has disconnected ends with the next token. A client that does not read delays no other: the
//!   events of a text are queued.
//! * A model that needs more memory than the limit is rejected before its weights are read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::{StreamExt, stream};
use millrace_agents::generation::{Generation, GenerationError, GenerationResources, RunError};
use millrace_control::WorkerPool;
use millrace_protocol::error_chain;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use super::checkpoint::{job_of_checkpoint, open_checkpoint};
use super::errors::checkpoint_unreadable;
use crate::error::{ApiError, ErrorReason, Result};
use crate::generation::{GenerationEvent, GenerationRequest, GenerationStream, MAX_GENERATED_TOKENS};

/// Default limit on the memory of one generation. File readers on Kubernetes have a limit of 2 GiB.
pub const DEFAULT_MAX_GENERATION_BYTES: u64 = 3 << 29;
/// Limit on requests that generate a text or wait for it.
const MAX_PENDING_GENERATIONS: usize = 8;

/// Generates texts on this machine. Clones share the thread and the limits.
#[derive(Clone)]
pub struct Generator {
    workers: WorkerPool,
    pending: Arc<Semaphore>,
    max_bytes: u64,
}

impl std::fmt::Debug for Generator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generator").field("max_bytes", &self.max_bytes).finish_non_exhaustive()
    }
}

impl Generator {
    /// Creates a generator that uses at most `max_bytes` bytes of memory.
    pub fn new(max_bytes: u64) -> Self {
        let pending = Arc::new(Semaphore::new(MAX_PENDING_GENERATIONS));
        Self { workers: WorkerPool::new(1), pending, max_bytes }
    }

    /// Continues a text with a checkpoint in `model_dir`. Returns when the model has read the prompt.
    ///
    /// # Errors
    /// [`ErrorReason::NotFound`]: there is no such checkpoint. [`ErrorReason::Gone`]: it can't be read.
    /// [`ErrorReason::BadRequest`]: its model does not generate text, or not from this prompt.
    /// [`ErrorReason::PayloadTooLarge`]: it needs too much memory. [`ErrorReason::TooManyRequests`]: too many wait.
    pub async fn generate(&self, model_dir: PathBuf, request: GenerationRequest) -> Result<GenerationStream> {
        let pending = self.pending.clone().try_acquire_owned().map_err(|_| {
            let detail = "many texts are being generated: try again in a few seconds";
            ApiError::new(ErrorReason::TooManyRequests, detail)
        })?;
        // Start, end, an error and all tokens, so that a client that does not read delays no other.
        let max_events = request.options.max_tokens.min(MAX_GENERATED_TOKENS) as usize + 3;
        let (sender, mut receiver) = mpsc::channel(max_events);
        let (workers, max_bytes, owner) = (self.workers.clone(), self.max_bytes, model_dir.display().to_string());
        tokio::spawn(async move {
            let events = sender.clone();
            let generating = workers.run_heavy(&owner, move || {
                let _pending = pending;
                if let Err(error) = generate(&model_dir, &request, max_bytes, &events) {
                    // The client may have disconnected.
                    let _ = events.blocking_send(Err(error));
                }
            });
            tokio::select! {
                // If the generation has begun, it ends with the next token.
                () = sender.closed() => {}
                done = generating => if let Err(error) = done {
                    let _ = sender.send(Err(ApiError::internal("generate a text", error))).await;
                },
            }
        });
        let first = receiver.recv().await.unwrap_or_else(|| Err(ApiError::internal("generate a text", "no result")))?;
        Ok(stream::iter([Ok(first)]).chain(ReceiverStream::new(receiver)).boxed())
    }
}

/// The client has disconnected.
#[derive(Debug)]
struct Disconnected;

/// Generates a text in the calling thread, and sends its events.
fn generate(
    model_dir: &Path,
    request: &GenerationRequest,
    max_bytes: u64,
    events: &mpsc::Sender<Result<GenerationEvent>>,
) -> Result<()> {
    let checkpoint = open_checkpoint(model_dir, request.checkpoint)?;
    let job = job_of_checkpoint(&checkpoint)?;
    let GenerationRequest { prompt, options, .. } = request;
    let resources = GenerationResources::of_this_host(max_bytes);
    let generation =
        Generation::start(&checkpoint, &job, (prompt, None), *options, resources).map_err(generation_failure)?;
    let prompt_tokens = generation.prompt_tokens() as u64;
    let send = |event| events.blocking_send(Ok(event)).map_err(|_| Disconnected);
    if send(GenerationEvent::Start { checkpoint: checkpoint.step(), prompt_tokens }).is_err() {
        return Ok(());
    }
    match generation.run(|id, text| send(GenerationEvent::Token { id, text: text.to_owned() })) {
        Ok(finish) => {
            let _ = send(GenerationEvent::End { text: finish.text, reason: finish.reason });
            Ok(())
        }
        Err(RunError::Consumer(Disconnected)) => Ok(()),
        Err(RunError::Generation(error)) => Err(generation_failure(error)),
    }
}

fn generation_failure(error: GenerationError) -> ApiError {
    let chain = error_chain(&error);
    match error {
        GenerationError::Weights(error) => checkpoint_unreadable(&error),
        GenerationError::Threads(error) => ApiError::internal("generate a text", error),
        GenerationError::NoTokenizer => {
            ApiError::new(ErrorReason::BadRequest, format!("{error}: give the tokens of the prompt in promptTokens"))
        }
        GenerationError::Memory { .. } => ApiError::new(
            ErrorReason::PayloadTooLarge,
            format!("{error}: generate fewer tokens, or download the checkpoint and use `millrace-agent generate`"),
        ),
        _ => ApiError::new(ErrorReason::BadRequest, chain),
    }
}
