//! Follows coordinators: one task for each running attempt reads the coordinator's numbered stream and sends it
//! commands.
//!
//! * The newest state of each attempt is kept as a [`CoordinatorReport`]. Its job is enqueued if a change matters to a
//!   decision.
//! * Steps are written to the job's status at most every few seconds, separately from decisions.
//! * Other entries of the stream are ignored here.

mod progress;
mod task;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use millrace_crds::{JobProgress, TrainJob};
use millrace_lifecycle::CoordinatorReport;
use millrace_params::JobSpec;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::world::World;

/// The followed attempts, by the UID of their jobs.
pub struct JournalFollowers<W> {
    world: Arc<W>,
    visits: mpsc::UnboundedSender<ObjectRef<TrainJob>>,
    following: Mutex<HashMap<String, FollowedAttempt>>,
}

/// One attempt that is followed.
struct FollowedAttempt {
    attempt: u32,
    report: watch::Receiver<CoordinatorReport>,
    requests: watch::Sender<AttemptRequests>,
    task: JoinHandle<()>,
}

impl Drop for FollowedAttempt {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is requested of the coordinator of an attempt.
#[derive(Default)]
struct AttemptRequests {
    /// The reason to stop; `None` until the attempt is to stop.
    stop: Option<String>,
    /// The number of systems; `None` until it is known, or if the attempt can't be resized.
    size: Option<AttemptSize>,
}

/// The number of systems of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptSize {
    pub num_csx: u32,
    /// Minimum number with which the attempt continues.
    pub min_csx: u32,
}

/// The attempt to follow, and the job to enqueue.
struct FollowTarget {
    /// The job, to enqueue it and to write its progress.
    job: ObjectRef<TrainJob>,
    uid: String,
    attempt: u32,
    /// Samples of a step; `None` if the job's record can't be read.
    batch: Option<usize>,
    /// Whether the job trains; false if it only evaluates.
    trains: bool,
    /// The step that the job trains to; `None` if it is not known.
    total_steps: Option<u64>,
    /// The attempt's progress in the status, as written by the previous leader.
    known_progress: Option<JobProgress>,
}

impl<W: World> JournalFollowers<W> {
    /// Creates an empty set.
    pub fn new(world: Arc<W>, visits: mpsc::UnboundedSender<ObjectRef<TrainJob>>) -> Self {
        Self { world, visits, following: Mutex::default() }
    }

    fn following(&self) -> MutexGuard<'_, HashMap<String, FollowedAttempt>> {
        self.following.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows an attempt of `job`, and stops following an older attempt of the same job. Idempotent.
    pub fn follow(&self, job: &TrainJob, attempt: u32, resolved: Option<&JobSpec>) {
        let Some(uid) = job.uid() else { return };
        let mut all = self.following();
        if all.get(&uid).is_some_and(|followed| followed.attempt == attempt) {
            return;
        }
        let progress = job.status.as_ref().and_then(|status| status.progress.clone());
        let target = FollowTarget {
            job: ObjectRef::from_obj(job),
            uid: uid.clone(),
            attempt,
            batch: resolved.map(|job| job.train_input.batch_size),
            trains: resolved.is_some_and(|job| job.run.mode.trains()),
            total_steps: resolved.filter(|job| job.run.mode.trains()).and_then(|job| job.run.known_max_steps()),
            known_progress: progress.filter(|progress| progress.attempt == Some(attempt)),
        };
        let (reports, report) = watch::channel(CoordinatorReport { attempt, ..CoordinatorReport::default() });
        let (requests, received) = watch::channel(AttemptRequests::default());
        let task = tokio::spawn(task::run(self.world.clone(), self.visits.clone(), target, reports, received));
        all.insert(uid, FollowedAttempt { attempt, report, requests, task });
    }

    /// Returns the report of the attempt's coordinator so far; `None` if the attempt is not followed.
    pub fn report(&self, uid: &str, attempt: u32) -> Option<CoordinatorReport> {
        let all = self.following();
        let followed = all.get(uid).filter(|followed| followed.attempt == attempt)?;
        let report = followed.report.borrow().clone();
        Some(report)
    }

    /// Makes an attempt save its state and stop. Idempotent; the first reason is sent.
    pub fn stop(&self, uid: &str, attempt: u32, reason: &str) {
        if let Some(followed) = self.following().get(uid).filter(|followed| followed.attempt == attempt) {
            followed.requests.send_if_modified(|AttemptRequests { stop, .. }| {
                stop.is_none() && stop.replace(reason.to_owned()).is_none()
            });
        }
    }

    /// Makes an attempt continue on this number of systems. Idempotent.
    pub fn resize(&self, uid: &str, attempt: u32, size: AttemptSize) {
        if let Some(followed) = self.following().get(uid).filter(|followed| followed.attempt == attempt) {
            followed.requests.send_if_modified(|requests| requests.size.replace(size) != Some(size));
        }
    }

    /// Stops following all jobs but these.
    pub fn retain(&self, is_kept: impl Fn(&str) -> bool) {
        self.following().retain(|uid, _| is_kept(uid));
    }

    /// Stops following the job.
    pub fn end(&self, uid: &str) {
        self.following().remove(uid);
    }
}
