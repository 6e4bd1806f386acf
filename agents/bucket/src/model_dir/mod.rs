//! A model_dir whose files are objects of a bucket.
//!
//! Agents read and write files, some of them by memory maps, so a run works in a copy on this machine:
//!
//! ```text
//!              open: lease, files of the run, newest checkpoint
//!   s3://B/P ───────────────────────────────────────────────────►  copy  ◄── agents of the run
//!            ◄───────────────────────────────────────────────────
//!              upload: files that are new or changed
//! ```
//!
//! * The names of objects are those of files, so programs that read a model_dir read it in the bucket, too.
//! * A checkpoint in the bucket is complete if it has a manifest, and the files of the run lead up to it.
//! * The copy is a cache: a run that starts on another machine fetches what it needs. A copy whose machine was the last
//!   to write is used as it is, so a run that is started again fetches nothing.
//! * One machine at a time writes, see [`lease`].

mod fetch;
pub(crate) mod lease;
mod names;
mod progress;
#[cfg(test)]
mod tests;
mod upload;

use std::fmt;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_checkpoint::lock::random_token;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::address::BucketAddress;
use crate::bucket::Bucket;
use crate::error::BucketError;
use crate::transfer::TransferError;
use fetch::{RemoteFiles, fetch_run_files, fetch_wanted, remove_dir};
use lease::Lease;
use progress::RunProgress;
pub use progress::{UploadControl, UploadHandle, upload_handle};
use upload::Uploader;

/// File of a copy that says what it is a copy of. It is not uploaded, because its name begins with a dot.
const COPY_FILE: &str = ".millrace-bucket";
/// Exceeds the length of every such file.
const MAX_COPY_FILE_BYTES: u64 = 4096;
/// Interval of looks for new and changed files.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two tries of an upload that has failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long the end of a run waits for a bucket that does not respond.
const LAST_UPLOAD_TIMEOUT: Duration = Duration::from_secs(600);

/// Receives what happens to a copy.
pub type Reporter = Arc<dyn Fn(CopyEvent) + Send + Sync>;

/// What happened to a copy, as a sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages describe variants and fields")]
pub enum CopyEvent {
    OpenFailed(String),
    WaitingForLease(String),
    Fetched { name: String, bytes: u64 },
    Skipped { step: u64, reason: String },
    Uploaded { name: String, bytes: u64, address: String },
    UploadFailed(String),
    UploadsContinue,
    MovedAway { to: PathBuf },
}

impl CopyEvent {
    fn skipped(step: u64, error: &millrace_checkpoint::Error) -> Self {
        Self::Skipped { step, reason: error.to_string() }
    }

    /// Returns whether the user may have to do something.
    pub const fn is_warning(&self) -> bool {
        match self {
            Self::OpenFailed(_)
            | Self::Skipped { .. }
            | Self::UploadFailed(_)
            | Self::MovedAway { .. }
            | Self::WaitingForLease(_) => true,
            Self::Fetched { .. } | Self::Uploaded { .. } | Self::UploadsContinue => false,
        }
    }
}

impl fmt::Display for CopyEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenFailed(reason) => write!(f, "{reason}; trying again"),
            Self::WaitingForLease(in_use) => {
                write!(f, "{in_use}; waiting up to {} s for a sign of it", lease::LEASE_EXPIRY.as_secs())
            }
            Self::Fetched { name, bytes } => write!(f, "Fetched {name} from the bucket, {bytes} bytes."),
            Self::Skipped { step, reason } => write!(f, "Skipping checkpoint_{step} in the bucket: {reason}"),
            Self::Uploaded { name, bytes, address } => write!(f, "Uploaded {name} to {address}, {bytes} bytes."),
            Self::UploadFailed(reason) => {
                write!(f, "{reason}; training continues, and files are uploaded when that is possible again")
            }
            Self::UploadsContinue => f.write_str("Files are uploaded again."),
            Self::MovedAway { to } => write!(
                f,
                "another machine has written to the model_dir since this one; its former files on this machine are \
                 now in {}",
                to.display()
            ),
        }
    }
}

/// Why a model_dir in a bucket can't be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe variants and fields")]
pub enum ModelDirError {
    #[error(transparent)]
    Bucket(#[from] BucketError),
    #[error("{address} is in use by process {process} on host {host}")]
    InUse { address: String, host: String, process: u32 },
    #[error("the copy of {address} in {} is in use by another process of this machine", dir.display())]
    CopyInUse { address: String, dir: PathBuf },
    #[error("another machine has taken {address} over; this one writes nothing more to it")]
    LeaseLost { address: String },
    #[error("the object {object} is not a lease: delete it, if no run uses its model_dir")]
    NotALease { object: String },
    #[error("{} in the bucket was changed or removed by another program", file.display())]
    Changed { file: PathBuf },
    #[error("there is no undamaged checkpoint in {address}")]
    NoCheckpoint { address: String },
    #[error("not everything was uploaded to {address}, and is in {}: {reason}", dir.display())]
    NotUploaded { address: String, dir: PathBuf, reason: String },
    #[error("can't {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Checkpoint(#[from] millrace_checkpoint::Error),
}

impl ModelDirError {
    /// Returns whether opening the copy may succeed later without a change: the bucket does not respond, or a process
    /// that ends still uses the copy.
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Bucket(error) => error.is_temporary(),
            Self::CopyInUse { .. } => true,
            _ => false,
        }
    }
}

impl From<TransferError> for ModelDirError {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Bucket(error) => Self::Bucket(error),
            TransferError::File { action, path, source } => Self::File { action, path, source },
        }
    }
}

/// Which checkpoints are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedCheckpoints {
    /// The newest one that is not damaged, if there is one.
    Newest,
    /// All of them.
    All,
    /// That of a step.
    Step(u64),
}

/// The content of [`COPY_FILE`].
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct CopyRecord {
    /// Identifies the copy in the lease.
    copy: String,
    /// Whether everything was fetched that the copy needs.
    is_complete: bool,
}

/// A directory in which a run works, whose files are uploaded to a bucket; see the module documentation.
pub struct ModelDirCopy {
    bucket: Bucket,
    address: BucketAddress,
    dir: PathBuf,
    record: CopyRecord,
    lease: Lease,
    files: RemoteFiles,
    report: Reporter,
    /// Locked as long as this value exists.
    _claim: File,
}

impl ModelDirCopy {
    /// Opens the copy in `dir` of the model_dir at `address`, which `bucket` is the connection to. Takes the lease, and
    /// fetches the files of the run and the `wanted` checkpoints, unless the copy has them.
    ///
    /// # Errors
    /// Another run uses the model_dir or the copy, a request failed, or an error of the file system.
    pub async fn open(
        bucket: Bucket,
        address: &BucketAddress,
        dir: &Path,
        wanted: &[WantedCheckpoints],
        report: Reporter,
    ) -> Result<Self, ModelDirError> {
        millrace_roots::create_dir_all(dir).map_err(TransferError::file("create", dir))?;
        let in_use = |_| ModelDirError::CopyInUse { address: address.to_string(), dir: dir.to_owned() };
        let (mut claim, mut record) = claim_copy(dir, FlockOperation::NonBlockingLockExclusive, in_use)?;
        let (lease, last) = Lease::acquire(&bucket, address, &record.copy, &report).await?;
        let files = RemoteFiles::list(&bucket).await?;
        let is_current = last.as_deref().map_or(files.is_empty(), |last| last == record.copy);
        let has_newest = record.is_complete && is_current;
        if !has_newest {
            if record.is_complete {
                move_away(dir, &report)?;
            }
            record.is_complete = false;
            write_record(&mut claim, dir, &record)?;
            fetch_run_files(&bucket, &files, dir).await?;
        }
        for wanted in wanted.iter().filter(|wanted| !has_newest || **wanted != WantedCheckpoints::Newest) {
            fetch_wanted(&bucket, &files, dir, *wanted, &report).await?;
        }
        record.is_complete = true;
        write_record(&mut claim, dir, &record)?;
        let (address, dir) = (address.clone(), dir.to_owned());
        Ok(Self { bucket, address, dir, record, lease, files, report, _claim: claim })
    }

    /// Returns the directory of the copy.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Uploads files until the run has ended and everything is uploaded, then gives the lease up. Keeps at most
    /// `max_checkpoints` checkpoints in the bucket (0: all), as [`millrace_checkpoint::retain`] does.
    ///
    /// # Errors
    /// The lease was lost, or not everything could be uploaded.
    pub async fn upload(mut self, run: UploadControl, max_checkpoints: usize) -> Result<(), ModelDirError> {
        let uploads = upload_until(
            (self.bucket.clone(), self.address.clone()),
            (self.dir.clone(), self.record.copy.clone()),
            self.report.clone(),
            &self.files,
            run,
            max_checkpoints,
        );
        let uploaded = tokio::select! {
            uploaded = uploads => uploaded,
            lost = self.lease.keep() => Err(lost),
        };
        uploaded?;
        self.lease.release().await
    }
}

async fn upload_until(
    place: (Bucket, BucketAddress),
    (dir, copy): (PathBuf, String),
    report: Reporter,
    files: &RemoteFiles,
    mut run: UploadControl,
    max_checkpoints: usize,
) -> Result<(), ModelDirError> {
    let address = place.1.to_string();
    let mut uploader = None;
    let mut failing_since = None;
    loop {
        let progress = run.progress();
        // Everything that the run wrote is there then.
        let is_last = progress >= RunProgress::Finishing;
        let uploaded = async {
            let uploader = match &mut uploader {
                Some(uploader) => uploader,
                none => none.insert(
                    Uploader::new(place.clone(), (dir.clone(), copy.clone()), report.clone(), files, max_checkpoints)
                        .await?,
                ),
            };
            uploader.upload_changes(is_last).await
        };
        let pause = match uploaded.await {
            Ok(()) if progress == RunProgress::Ended => return Ok(()),
            Ok(()) => {
                if is_last {
                    run.report_caught_up();
                }
                if failing_since.take().is_some() {
                    report(CopyEvent::UploadsContinue);
                }
                SCAN_INTERVAL
            }
            Err(error @ ModelDirError::LeaseLost { .. }) => return Err(error),
            Err(error) => {
                let since = *failing_since.get_or_insert_with(|| {
                    report(CopyEvent::UploadFailed(error.to_string()));
                    Instant::now()
                });
                if is_last && since.elapsed() > LAST_UPLOAD_TIMEOUT {
                    return Err(ModelDirError::NotUploaded { address, dir, reason: error.to_string() });
                }
                RETRY_INTERVAL
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = run.wait_beyond(progress) => {}
        }
    }
}

/// Fetches checkpoints of the model_dir at `address` to `dir`, to be read only: no lease is taken. Returns the
/// directory of the newest one, or `dir` for [`WantedCheckpoints::All`].
///
/// # Errors
/// There is no undamaged checkpoint, a request failed, or an error of the file system.
pub async fn fetch_checkpoints(
    bucket: &Bucket,
    address: &BucketAddress,
    dir: &Path,
    wanted: WantedCheckpoints,
    report: &Reporter,
) -> Result<PathBuf, ModelDirError> {
    millrace_roots::create_dir_all(dir).map_err(TransferError::file("create", dir))?;
    let path = dir.join(COPY_FILE);
    // Waits for another command that fetches the same.
    let failed = |error: rustix::io::Errno| TransferError::file("lock", &path)(error.into()).into();
    let (_claim, _) = claim_copy(dir, FlockOperation::LockExclusive, failed)?;
    let files = RemoteFiles::list(bucket).await?;
    fetch_run_files(bucket, &files, dir).await?;
    let newest = fetch_wanted(bucket, &files, dir, wanted, report).await?;
    let step = newest.ok_or_else(|| ModelDirError::NoCheckpoint { address: address.to_string() })?;
    if wanted == WantedCheckpoints::All {
        return Ok(dir.to_owned());
    }
    Ok(dir.join(millrace_checkpoint::checkpoint_name(step)))
}

/// Locks the copy in `dir` for this process, and reads what it is a copy of.
fn claim_copy(
    dir: &Path,
    operation: FlockOperation,
    failed: impl FnOnce(rustix::io::Errno) -> ModelDirError,
) -> Result<(File, CopyRecord), ModelDirError> {
    let path = dir.join(COPY_FILE);
    let open = millrace_roots::OpenOptions::new().read(true).write(true).create(true).open(&path);
    let mut file = open.map_err(TransferError::file("open", &path))?;
    flock(&file, operation).map_err(failed)?;
    let mut text = Vec::new();
    let read = std::io::Read::by_ref(&mut file).take(MAX_COPY_FILE_BYTES).read_to_end(&mut text);
    read.map_err(TransferError::file("read", &path))?;
    let record =
        serde_json::from_slice(&text).unwrap_or_else(|_| CopyRecord { copy: random_token(), is_complete: false });
    Ok((file, record))
}

fn write_record(file: &mut File, dir: &Path, record: &CopyRecord) -> Result<(), TransferError> {
    let text = serde_json::to_vec(record).unwrap_or_default();
    let written = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.set_len(0))
        .and_then(|()| file.write_all(&text))
        .and_then(|()| file.sync_all());
    written.map_err(TransferError::file("write", &dir.join(COPY_FILE)))
}

/// Moves the files of a copy, of which the bucket has newer ones, to a directory beside it. Files that were moved there
/// before are removed.
fn move_away(dir: &Path, report: &Reporter) -> Result<(), ModelDirError> {
    let mut to = dir.as_os_str().to_owned();
    to.push(".former");
    let to = PathBuf::from(to);
    remove_dir(&to)?;
    millrace_roots::create_dir_all(&to).map_err(TransferError::file("create", &to))?;
    for entry in millrace_roots::read_dir(dir).map_err(TransferError::file("list", dir))? {
        if entry.name() != COPY_FILE {
            let target = to.join(entry.name());
            millrace_roots::rename(&entry.path, &target).map_err(TransferError::file("move", &entry.path))?;
        }
    }
    report(CopyEvent::MovedAway { to });
    Ok(())
}
