//! How the uploads of a copy follow the progress of the run that works in it.

use tokio::sync::watch;

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RunProgress {
    /// It writes checkpoints.
    Running,
    /// It has written its last checkpoint.
    Finishing,
    /// It writes nothing more.
    Ended,
}

/// The run's end of the connection between a run and the uploads of its model_dir. If it is dropped, the run has ended.
#[derive(Debug)]
pub struct UploadHandle {
    progress: watch::Sender<RunProgress>,
    has_caught_up: watch::Receiver<bool>,
}

/// The end that [`super::ModelDirCopy::upload`] has.
#[derive(Debug)]
pub struct UploadControl {
    progress: watch::Receiver<RunProgress>,
    has_caught_up: watch::Sender<bool>,
}

/// Creates both ends.
pub fn upload_handle() -> (UploadHandle, UploadControl) {
    let (progress, of_run) = watch::channel(RunProgress::Running);
    let (caught_up, has_caught_up) = watch::channel(false);
    (UploadHandle { progress, has_caught_up }, UploadControl { progress: of_run, has_caught_up: caught_up })
}

impl UploadHandle {
    /// Waits until everything that the run has written is uploaded, or the uploads have ended. The run must have
    /// written its last checkpoint.
    pub async fn catch_up(&mut self) {
        if *self.progress.borrow() == RunProgress::Running {
            self.progress.send_replace(RunProgress::Finishing);
        }
        // An error: the uploads have ended.
        let _ = self.has_caught_up.wait_for(|has_caught_up| *has_caught_up).await;
    }

    /// Requests the uploads to upload the rest and to end, because the run has ended.
    pub fn end(&self) {
        self.progress.send_replace(RunProgress::Ended);
    }

    /// Returns whether [`Self::end`] was called.
    pub fn has_ended(&self) -> bool {
        *self.progress.borrow() == RunProgress::Ended
    }
}

impl UploadControl {
    /// Returns how far the run is.
    pub(super) fn progress(&self) -> RunProgress {
        if self.progress.has_changed().is_err() { RunProgress::Ended } else { *self.progress.borrow() }
    }

    /// Waits until the run is further than `progress`. Ends also if the other end was dropped.
    pub(super) async fn wait_beyond(&mut self, progress: RunProgress) {
        if progress == RunProgress::Ended {
            return std::future::pending().await;
        }
        let _ = self.progress.wait_for(|current| *current > progress).await;
    }

    pub(super) fn report_caught_up(&self) {
        self.has_caught_up.send_replace(true);
    }
}
