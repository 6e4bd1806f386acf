//! Reads a job's journal from the files of its model_dir: entries that were not copied because the coordinator or the
//! server died first.

use std::path::{Path, PathBuf};

use millrace_checkpoint::{LockError, ModelDirLock};
use millrace_protocol::{journal, proto};
use millrace_telemetry::journal::JournalReader;
use tokio::sync::mpsc;

/// Why the files of a job's journal can't be read.
#[derive(Debug, thiserror::Error)]
pub enum JournalFileError {
    /// The owner of the model_dir is unknown.
    #[error(transparent)]
    Owner(#[from] LockError),
    /// The journal can't be read.
    #[error(transparent)]
    Journal(#[from] millrace_telemetry::Error),
}

/// Entries that are read ahead of the receiver.
const MAX_READ_AHEAD_ENTRIES: usize = 256;

/// Returns the entries of the job `uid` from number `from` on, up to the last one or an error. There are none if the
/// model_dir belongs to another job by now. They are read as they are received.
///
/// # Errors
/// Those of the items: the lock file or the journal can't be read. No entry follows an error.
pub fn entries(model_dir: PathBuf, uid: String, from: u64) -> mpsc::Receiver<Result<proto::Entry, JournalFileError>> {
    let (sender, entries) = mpsc::channel(MAX_READ_AHEAD_ENTRIES);
    tokio::task::spawn_blocking(move || {
        if let Err(error) = send_entries(&model_dir, &uid, from, &sender) {
            let _ = sender.blocking_send(Err(error));
        }
    });
    entries
}

/// Sends the entries until the receiver is dropped.
fn send_entries(
    model_dir: &Path,
    uid: &str,
    from: u64,
    sender: &mpsc::Sender<Result<proto::Entry, JournalFileError>>,
) -> Result<(), JournalFileError> {
    if !model_dir.is_dir() {
        // The coordinator never created it.
        return Ok(());
    }
    let owner = ModelDirLock::last_owner(model_dir)?;
    let Some(owner) = owner.filter(|owner| owner.job.as_deref() == Some(uid)) else { return Ok(()) };
    let mut reader = JournalReader::open(model_dir, from)?;
    while let Some(entry) = reader.next_entry()? {
        let Some(attempt) = owner.attempt_of_job(entry.attempt) else { continue };
        if sender.blocking_send(Ok(journal::to_proto(&entry, attempt))).is_err() {
            break;
        }
    }
    Ok(())
}
