//! Following coordinators: one task for each attempt that runs, which reads the numbered stream and gives commands.
//!
//! What is heard is kept as a [`Report`], by job; the job is visited when something in it matters to a decision. Steps go to
//! the status at most every few seconds, apart from what is decided; the rest of the stream is for others.

mod progress;
mod reader;

pub use reader::outcome_of;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use millrace_crds::decide::Report;
use millrace_crds::{Progress, TrainJob};
use millrace_params::Job;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::world::World;

/// See the module text.
pub struct Followers<W> {
    world: Arc<W>,
    visits: mpsc::UnboundedSender<ObjectRef<TrainJob>>,
    following: Mutex<HashMap<String, Following>>,
}

/// One attempt that is followed.
struct Following {
    attempt: u32,
    report: watch::Receiver<Report>,
    /// Why it is to stop, once it is.
    stop: watch::Sender<Option<String>>,
    task: JoinHandle<()>,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whom to follow, and whom to tell.
struct Target {
    /// The job, for visits and its status.
    job: ObjectRef<TrainJob>,
    uid: String,
    attempt: u32,
    /// Samples of a step; `None` where the job's record can't be read.
    batch: Option<usize>,
    /// Whether the job trains, rather than only evaluates.
    trains: bool,
    /// The step the job trains to.
    total_steps: Option<u64>,
    /// The attempt's progress in the status, written by the operator that led before.
    known_progress: Option<Progress>,
}

impl<W: World> Followers<W> {
    /// Nobody is followed yet.
    pub fn new(world: Arc<W>, visits: mpsc::UnboundedSender<ObjectRef<TrainJob>>) -> Self {
        Self { world, visits, following: Mutex::default() }
    }

    fn following(&self) -> MutexGuard<'_, HashMap<String, Following>> {
        self.following.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows an attempt of `job`, unless it is followed already; an older attempt of the job no more.
    pub fn follow(&self, job: &TrainJob, attempt: u32, resolved: Option<&Job>) {
        let Some(uid) = job.uid() else { return };
        let mut all = self.following();
        if all.get(&uid).is_some_and(|known| known.attempt == attempt) {
            return;
        }
        let progress = job.status.as_ref().and_then(|status| status.progress.clone());
        let target = Target {
            job: ObjectRef::from_obj(job),
            uid: uid.clone(),
            attempt,
            batch: resolved.map(|job| job.train_input.batch_size),
            trains: resolved.is_some_and(|job| job.run.mode.trains()),
            total_steps: resolved.filter(|job| job.run.mode.trains()).and_then(|job| job.run.known_max_steps()),
            known_progress: progress.filter(|progress| progress.attempt == Some(attempt)),
        };
        let (reports, report) = watch::channel(Report { attempt, ..Report::default() });
        let (stop, stopped) = watch::channel(None);
        let task = tokio::spawn(reader::run(self.world.clone(), self.visits.clone(), target, reports, stopped));
        all.insert(uid, Following { attempt, report, stop, task });
    }

    /// What the coordinator of the job's attempt has said so far.
    pub fn report(&self, uid: &str, attempt: u32) -> Option<Report> {
        let all = self.following();
        let known = all.get(uid).filter(|known| known.attempt == attempt)?;
        let report = known.report.borrow().clone();
        Some(report)
    }

    /// Has an attempt save its state and stop. Harmless to repeat.
    pub fn stop(&self, uid: &str, attempt: u32, reason: &str) {
        if let Some(known) = self.following().get(uid).filter(|known| known.attempt == attempt) {
            known.stop.send_if_modified(|stop| stop.is_none() && stop.replace(reason.to_owned()).is_none());
        }
    }

    /// Follows only these jobs any more.
    pub fn keep(&self, which: impl Fn(&str) -> bool) {
        self.following().retain(|uid, _| which(uid));
    }

    /// Follows the job no more.
    pub fn end(&self, uid: &str) {
        self.following().remove(uid);
    }
}
