//! Following coordinators: one task for each attempt that runs, which reads the numbered stream and gives commands.
//!
//! What is heard is kept as a [`Report`], by job; the job is visited when something in it matters to a decision. Steps go to
//! the status at most every few seconds, under a field manager of their own; the rest of the stream is for others.

mod progress;
mod reader;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::runtime::reflector::ObjectRef;
use kube::{Client, ResourceExt};
use millrace_crds::TrainJob;
use millrace_crds::decide::Report;
use millrace_params::Job;
use millrace_protocol::journal::Tls;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::children::{Names, journal_address};

/// See the module text. Clones share everything.
#[derive(Clone)]
pub struct Followers {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    identity: Tls,
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
    namespace: String,
    name: String,
    uid: String,
    /// Host and port of its coordinator's journal.
    address: String,
    attempt: u32,
    /// Samples of a step.
    batch: usize,
    /// The step the job trains to.
    total_steps: Option<u64>,
}

impl Followers {
    /// Nobody is followed yet. `identity` is shown to coordinators.
    pub fn new(client: Client, identity: Tls, visits: mpsc::UnboundedSender<ObjectRef<TrainJob>>) -> Self {
        Self { shared: Arc::new(Shared { client, identity, visits, following: Mutex::default() }) }
    }

    fn following(&self) -> MutexGuard<'_, HashMap<String, Following>> {
        self.shared.following.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows an attempt of `job`, unless it is followed already; an older attempt of the job no more.
    pub fn follow(&self, job: &TrainJob, attempt: u32, resolved: &Job) {
        let Some(uid) = job.uid() else { return };
        let mut all = self.following();
        if all.get(&uid).is_some_and(|known| known.attempt == attempt) {
            return;
        }
        let namespace = job.namespace().unwrap_or_default();
        let target = Target {
            job: ObjectRef::from_obj(job),
            address: journal_address(&Names::of(job), &namespace),
            namespace,
            name: job.name_any(),
            uid: uid.clone(),
            attempt,
            batch: resolved.train_input.batch_size,
            total_steps: resolved.run.mode.trains().then_some(resolved.run.max_steps),
        };
        let (reports, report) = watch::channel(Report { attempt, ..Report::default() });
        let (stop, stopped) = watch::channel(None);
        let task = tokio::spawn(reader::run(self.shared.clone(), target, reports, stopped));
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
