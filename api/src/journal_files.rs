//! Reads a job's journal from the files of its model_dir: entries that were not copied because the coordinator or the
//! server died first.

use std::path::{Path, PathBuf};

use millrace_checkpoint::ModelDirLock;
use millrace_protocol::{journal, proto};
use millrace_telemetry::journal::JournalReader;
use tokio::sync::mpsc;

/// Entries that are read ahead of the receiver.
const MAX_READ_AHEAD_ENTRIES: usize = 256;

/// Returns the entries of the job `uid` from number `from` on, up to the last one or an error. There are none if the
/// model_dir belongs to another job by now. They are read as they are received.
pub fn entries(model_dir: PathBuf, uid: String, from: u64) -> mpsc::Receiver<Result<proto::Entry, String>> {
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
    sender: &mpsc::Sender<Result<proto::Entry, String>>,
) -> Result<(), String> {
    if !model_dir.is_dir() {
        // The coordinator never created it.
        return Ok(());
    }
    let owner = ModelDirLock::last_owner(model_dir).map_err(|error| error.to_string())?;
    let Some(owner) = owner.filter(|owner| owner.job.as_deref() == Some(uid)) else { return Ok(()) };
    let mut reader = JournalReader::open(model_dir, from).map_err(|error| error.to_string())?;
    while let Some(entry) = reader.next_entry().map_err(|error| error.to_string())? {
        let Some(attempt) = entry.attempt.checked_sub(owner.before.into()).filter(|attempt| *attempt > 0) else {
            continue;
        };
        if sender.blocking_send(Ok(journal::to_proto(&entry, attempt))).is_err() {
            break;
        }
    }
    Ok(())
}
