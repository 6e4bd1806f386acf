//! The uploads of a run's model_dir to a bucket, on a thread of their own, so that a bucket that does not respond never
//! delays the run.
//!
//! ```text
//!   run ──files──► copy of the model_dir ◄──fetch, upload──► thread ◄──► bucket
//!    └─────────────── catch_up, finish ────────────────────────┘
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millrace_bucket::{
    Bucket, BucketAddress, BucketError, CopyEvent, ModelDirCopy, ModelDirError, Reporter, UploadControl, UploadHandle,
    WantedCheckpoints, upload_handle,
};
use millrace_params::{Mode, RunSpec};
use millrace_telemetry::journal::OutcomeReason;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};

use crate::checkpoints::checkpoint_failure;
use crate::error::AgentError;
use crate::write_watch::{OngoingWrite, WriteWatch};

/// Interval between two tries to open a copy.
const OPEN_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// What is uploaded, and where.
pub struct UploadSettings {
    pub address: BucketAddress,
    /// The directory that the run works in.
    pub dir: PathBuf,
    /// The checkpoints that the run needs.
    pub wanted: Vec<WantedCheckpoints>,
    /// Maximum number of checkpoints in the bucket; 0 for all.
    pub max_checkpoints: usize,
    /// How long a bucket that does not respond is waited for before the run.
    pub open_timeout: Duration,
    pub report: Reporter,
}

/// Result of fetching what a run needs.
pub type Opened = oneshot::Receiver<Result<(), ModelDirError>>;

/// The uploads of a run. If this value is dropped, they end by themselves when everything is uploaded.
pub struct ModelDirUploads {
    run: UploadHandle,
    /// An upload that fails again and again.
    failing: WriteWatch,
    has_ended: watch::Receiver<bool>,
    thread: JoinHandle<Result<(), ModelDirError>>,
}

impl ModelDirUploads {
    /// Starts the thread, which fetches what the run needs, and then uploads. The run must not use the directory before
    /// the returned receiver has the result, unless it needs nothing that is fetched. If the receiver was dropped, an
    /// error ends the uploads.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(mut settings: UploadSettings) -> Result<(Self, Opened), AgentError> {
        let failing = WriteWatch::default();
        settings.report = watched(failing.clone(), &settings);
        let (run, control) = upload_handle();
        let (end, has_ended) = watch::channel(false);
        let (opened, opening) = oneshot::channel();
        let runtime = runtime()?;
        let work = move || {
            let uploaded = runtime.block_on(open_and_upload(settings, control, opened));
            let _ = end.send(true);
            uploaded
        };
        let thread = std::thread::Builder::new().name("bucket".to_owned()).spawn(work).map_err(AgentError::local)?;
        Ok((Self { run, failing, has_ended, thread }, opening))
    }

    /// Becomes true if the uploads have ended before the run, for example because another machine has taken the
    /// model_dir over.
    pub fn has_ended(&self) -> watch::Receiver<bool> {
        self.has_ended.clone()
    }

    /// Returns the upload that fails again and again, as a write to the address of the model_dir; `None` if the bucket
    /// responds.
    pub fn failing(&self) -> Option<OngoingWrite> {
        self.failing.ongoing()
    }

    /// Waits until the uploads have ended.
    pub async fn ended(&mut self) {
        // An error: the thread has ended.
        let _ = self.has_ended.wait_for(|has_ended| *has_ended).await;
    }

    /// Waits until everything that the run has written is uploaded, or the uploads have ended. The run must have
    /// written its last checkpoint.
    pub async fn catch_up(&mut self) {
        self.run.catch_up().await;
    }

    /// Uploads the rest, because the run has ended. Blocks.
    ///
    /// # Errors
    /// Not everything could be uploaded.
    pub fn finish(self) -> Result<(), AgentError> {
        self.run.end();
        // A panic was reported already.
        let uploaded = self.thread.join().map_err(|_| AgentError::local("the thread of uploads has panicked"))?;
        uploaded.map_err(bucket_failure)
    }
}

/// Returns the reporter of `settings`, which also records in `failing` when uploads fail.
fn watched(failing: WriteWatch, settings: &UploadSettings) -> Reporter {
    let (report, address) = (settings.report.clone(), settings.address.to_string());
    Arc::new(move |event: CopyEvent| {
        match &event {
            CopyEvent::UploadFailed(_) => failing.begin(Path::new(&address)),
            CopyEvent::UploadsContinue => failing.end(),
            _ => {}
        }
        report(event);
    })
}

async fn open_and_upload(
    settings: UploadSettings,
    control: UploadControl,
    opened: oneshot::Sender<Result<(), ModelDirError>>,
) -> Result<(), ModelDirError> {
    match open(&settings).await {
        Ok(copy) => {
            let _ = opened.send(Ok(()));
            copy.upload(control, settings.max_checkpoints).await
        }
        Err(error) => opened.send(Err(error)).or_else(|unsent| unsent),
    }
}

/// Opens the copy. Tries again while the bucket does not respond, and while a process that ends still uses the copy.
async fn open(settings: &UploadSettings) -> Result<ModelDirCopy, ModelDirError> {
    let UploadSettings { address, dir, wanted, report, .. } = settings;
    let began = Instant::now();
    let mut is_reported = false;
    loop {
        let copy = async {
            let bucket = connect(address).await?;
            ModelDirCopy::open(bucket, address, dir, wanted, report.clone()).await
        };
        match copy.await {
            Err(error) if error.is_temporary() && began.elapsed() < settings.open_timeout => {
                if !std::mem::replace(&mut is_reported, true) {
                    report(CopyEvent::OpenFailed(error.to_string()));
                }
                tokio::time::sleep(OPEN_RETRY_INTERVAL).await;
            }
            opened => return opened,
        }
    }
}

/// Returns the checkpoints of its model_dir that a run needs.
pub fn wanted_by(run: &RunSpec) -> WantedCheckpoints {
    match run.mode {
        Mode::EvalAll if run.checkpoint_path.is_none() => WantedCheckpoints::All,
        _ => WantedCheckpoints::Newest,
    }
}

/// Connects to a bucket that responds.
///
/// # Errors
/// It does not respond, does not exist, or rejects the credentials.
pub async fn connect(address: &BucketAddress) -> Result<Bucket, ModelDirError> {
    let (bucket, no_response) = Bucket::connect(address, &format!("the bucket {}", address.bucket())).await?;
    match no_response {
        Some(error) => Err(error.into()),
        None => Ok(bucket),
    }
}

/// Creates the runtime of the requests to a bucket.
///
/// # Errors
/// The system has no resources for it.
pub fn runtime() -> Result<Runtime, AgentError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AgentError::local)
}

/// Converts an error of a model_dir in a bucket to a failure with cause and hint.
pub fn bucket_failure(error: ModelDirError) -> AgentError {
    match error {
        ModelDirError::InUse { .. } | ModelDirError::CopyInUse { .. } => {
            AgentError::with_reason(OutcomeReason::ModelDirInUse, error)
                .hint("choose another model_dir, or wait until that run has ended")
        }
        ModelDirError::LeaseLost { .. } => AgentError::with_reason(OutcomeReason::Superseded, error),
        ModelDirError::Bucket(BucketError::Unavailable { .. }) => AgentError::local(error),
        ModelDirError::Bucket(_) => AgentError::bad_input(error),
        ModelDirError::NoCheckpoint { .. } => AgentError::bad_input(error)
            .hint("name a checkpoint such as s3://BUCKET/RUN/checkpoint_100, or the directory of a run"),
        ModelDirError::NotUploaded { .. } => {
            AgentError::local(error).hint("start the run again when the bucket responds: it uploads what is missing")
        }
        ModelDirError::Checkpoint(error) => checkpoint_failure(error),
        error => AgentError::local(error),
    }
}
