//! The uploads of the model_dir of a run whose coordinator keeps it in a bucket.
//!
//! * Before the run, the newest checkpoint is fetched. A coordinator that continues a run needs none, and does not wait
//!   for the bucket.
//! * A run that is complete ends when its last checkpoint is uploaded. Until then its agents stay, so that no other
//!   process takes their end for a loss.
//! * A run that was stopped ends at once: its model_dir stays where it is, and the next attempt uploads the rest.

use std::sync::Arc;
use std::time::Duration;

use millrace_bucket::{BucketAddress, CopyEvent, Reporter};
use millrace_engine::coordinator::{CoordinatorCommand, RunOutcome};
use millrace_engine::message::AgentCommand;

use super::run_blocking;
use crate::error::AgentError;
use crate::launch::LaunchDocument;
use crate::model_dir_uploads::{ModelDirUploads, UploadSettings, bucket_failure, wanted_by};

/// How long a run waits at its beginning for a bucket that does not respond. A restart by the control loop costs about
/// as much.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts the uploads of the model_dir of a run, and waits until its checkpoint is fetched. If the run `is_held` by its
/// shards, waits for nothing.
///
/// # Errors
/// The bucket can't be used, or another run uses it.
pub async fn start(
    address: BucketAddress,
    launch: &LaunchDocument,
    is_held: bool,
) -> Result<ModelDirUploads, AgentError> {
    let (uploads, opened) = ModelDirUploads::start(UploadSettings {
        address,
        dir: launch.model_dir.clone(),
        wanted: vec![wanted_by(&launch.job.run)],
        max_checkpoints: launch.job.run.checkpoint_limit(),
        open_timeout: if is_held { Duration::MAX } else { OPEN_TIMEOUT },
        report: reporter(),
    })?;
    if !is_held {
        opened.await.map_err(AgentError::local)?.map_err(bucket_failure)?;
    }
    Ok(uploads)
}

/// Logs what happens to the copy of a run, for the files and the journal of the run.
fn reporter() -> Reporter {
    Arc::new(|event: CopyEvent| {
        if event.is_warning() {
            tracing::warn!("{event}");
        } else {
            tracing::info!("{event}");
        }
    })
}

/// Uploads the last entries of the journal, after the run has ended.
pub async fn finish(uploads: ModelDirUploads) {
    if let Err(failure) = run_blocking(|| uploads.finish()).await {
        tracing::warn!("{failure}");
    }
}

/// Waits until the uploads have ended, or, if the run `is_complete`, until everything is uploaded. Without uploads it
/// waits forever.
pub async fn next_event(uploads: Option<&mut ModelDirUploads>, is_complete: bool) {
    match uploads {
        Some(uploads) if is_complete => uploads.catch_up().await,
        Some(uploads) => uploads.ended().await,
        None => std::future::pending().await,
    }
}

/// Splits off the commands that end a run which is complete.
pub fn split_end(commands: &mut Vec<CoordinatorCommand>) -> Vec<CoordinatorCommand> {
    if !commands.iter().any(|command| matches!(command, CoordinatorCommand::End(RunOutcome::Complete))) {
        return Vec::new();
    }
    let ends = |command: &CoordinatorCommand| {
        matches!(command, CoordinatorCommand::End(_) | CoordinatorCommand::Send(_, AgentCommand::Finish))
    };
    let (end, others) = std::mem::take(commands).into_iter().partition(ends);
    *commands = others;
    end
}
