//! Archives the history of jobs: one task per job copies its journal into the database, and a finalizer holds a deleted
//! job until the copy is complete.
//!
//! | stage | what the task does |
//! |---|---|
//! | Queued | waits |
//! | Running | copies entries as the attempt's coordinator sends them |
//! | Finished | copies the missing entries from the journal's files, marks the job as archived, and ends |
//! | Deleting | copies the missing entries while the finalizer may hold the job, then removes the finalizer |
//!
//! * When a job enters another stage, the work of the old stage is dropped. That loses nothing: entries are stored with
//!   their numbers, and the next stage continues after the newest one.
//! * A coordinator has [`COORDINATOR_DRAIN_TIMEOUT`] to send its last entries after its attempt has ended, and up to
//!   [`SAVE_TIMEOUT`] if the job was deleted.
//! * A deleted job is held for at most a minute ([`archive::remaining_hold`]).

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::wait::{self, await_condition};
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use millrace_cluster::address::{expected_coordinator, pod_address, ports};
use millrace_cluster::archive;
use millrace_cluster::names::{ATTEMPT_LABEL, ChildNames};
use millrace_crds::{ConditionType, Role, TrainJob};
use millrace_protocol::proto::journal_client::JournalClient;
use millrace_protocol::{error_chain, journal};
use millrace_store::{ChangeNotice, EntryKind, EntryQuery, Store};
use tokio::sync::{broadcast, watch};
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::identity::{IdentitySecret, IdentitySecretError};
use super::mirror::JobMirror;
use super::namespaces::Namespaces;
use super::readers::ReaderPool;
use crate::error::{ApiError, ErrorReason};
use crate::journal_copy::{self, CopyError};

/// Delay between tries. [`retry_catch_up`] doubles it up to [`MAX_RETRY_INTERVAL`].
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum delay between tries to complete a history.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(300);
/// Time for the coordinator of a finished attempt to send its last entries.
const COORDINATOR_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to complete the history of a finished job before it is shown as finished.
const ARCHIVE_TIMEOUT: Duration = Duration::from_secs(60);
/// How much longer completing the history is tried after the job is shown as finished.
const ARCHIVE_RETRY_TIMEOUT: Duration = Duration::from_secs(3600);
/// Tries to remove the finalizer of a job that is being changed concurrently.
const MAX_RELEASE_TRIES: usize = 10;
/// Time for the coordinator of a deleted job to save its state and report it; after that the journal's files are read.
const SAVE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to write what was read from a coordinator that has ended.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a coordinator can't be followed at present.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    /// Its pod can't be watched.
    #[error(transparent)]
    Watch(#[from] wait::Error),
    /// Its pod was deleted.
    #[error("the coordinator's pod was deleted")]
    PodDeleted,
    /// Its certificate can't be checked, because the job has no valid UID.
    #[error("the job's UID is not valid")]
    InvalidUid,
    /// This server has no identity.
    #[error(transparent)]
    Identity(#[from] IdentitySecretError),
    /// Its journal can't be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

/// Why the entries in a job's journal files can't be copied at present.
#[derive(Debug, thiserror::Error)]
enum CatchUpError {
    /// The files can't be reached.
    #[error(transparent)]
    Reader(#[from] ApiError),
    /// The entries can't be read or written.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

impl CatchUpError {
    /// Returns whether no later try can succeed: deleted files do not come back, and damaged files stay damaged.
    fn is_permanent(&self) -> bool {
        match self {
            Self::Reader(error) => matches!(error.reason, ErrorReason::Gone | ErrorReason::NotFound),
            Self::Copy(CopyError::Stream(status)) => status.code() == Code::DataLoss,
            Self::Copy(CopyError::Store(error)) => !error.is_temporary(),
            Self::Copy(_) => false,
        }
    }
}

/// The archiving tasks of all jobs.
pub struct JobArchivers {
    client: Client,
    store: Store,
    mirror: Arc<JobMirror<Namespaces>>,
    readers: Arc<ReaderPool>,
    identity: Arc<IdentitySecret>,
    /// Whether the missing identity is already logged.
    missing_identity_logged: AtomicBool,
    archivers: Mutex<HashMap<String, watch::Sender<Arc<TrainJob>>>>,
}

/// What has to be done for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArchiveStage {
    /// The job holds no systems: it has no coordinator.
    Queued,
    /// This attempt runs, or will soon.
    Running(u32),
    /// The job has finished: the last attempt has sent its entries or left them in files.
    Finished(u32),
    /// The job is deleted, and may be held by our finalizer.
    Deleting,
}

impl ArchiveStage {
    fn of(job: &TrainJob) -> Self {
        let status = job.status.as_ref();
        let attempt = status.and_then(|status| status.attempt).unwrap_or(0);
        let is = |condition| status.is_some_and(|status| status.is(condition));
        match () {
            () if job.metadata.deletion_timestamp.is_some() => Self::Deleting,
            () if is(ConditionType::Finished) => Self::Finished(attempt),
            () if is(ConditionType::Admitted) => Self::Running(attempt),
            () => Self::Queued,
        }
    }
}

impl JobArchivers {
    /// Creates the archivers without tasks.
    pub fn new(
        client: Client,
        store: Store,
        mirror: Arc<JobMirror<Namespaces>>,
        readers: Arc<ReaderPool>,
        identity: Arc<IdentitySecret>,
    ) -> Self {
        Self {
            client,
            store,
            mirror,
            readers,
            identity,
            missing_identity_logged: AtomicBool::new(false),
            archivers: Mutex::default(),
        }
    }

    fn archivers(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<Arc<TrainJob>>>> {
        self.archivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of jobs with a task.
    pub fn count(&self) -> usize {
        self.archivers().len()
    }

    /// Handles a watch event. `listed` are the UIDs of the current list, complete at [`Event::InitDone`].
    pub fn on_watch_event(self: &Arc<Self>, event: &Event<TrainJob>, listed: &HashSet<String>) {
        match event {
            Event::Init => {}
            Event::InitDone => self.archivers().retain(|uid, _| listed.contains(uid)),
            Event::Delete(job) => drop(self.archivers().remove(&job.uid().unwrap_or_default())),
            Event::InitApply(job) | Event::Apply(job) => {
                let (uid, job) = (job.uid().unwrap_or_default(), Arc::new(job.clone()));
                let mut all = self.archivers();
                if let Some(archiver) = all.get(&uid) {
                    archiver.send_replace(job);
                    return;
                }
                let (archiver, versions) = watch::channel(job);
                all.insert(uid, archiver);
                tokio::spawn(self.clone().run_archiver(versions));
            }
        }
    }

    /// Runs the task of a job, until the job is deleted or nothing is left to be done for this version of it.
    async fn run_archiver(self: Arc<Self>, mut versions: watch::Receiver<Arc<TrainJob>>) {
        loop {
            let job = versions.borrow_and_update().clone();
            let stage = ArchiveStage::of(&job);
            if stage != ArchiveStage::Deleting && !archive::has_finalizer(&job) {
                self.add_finalizer(&job).await;
            }
            let work = self.run_stage(&job, stage);
            tokio::pin!(work);
            let next = tokio::select! {
                () = &mut work => None,
                next = next_relevant_version(&mut versions, &job, stage) => match next {
                    Some(next) => Some(next),
                    None => return,
                },
            };
            let Some(next) = next else { if self.is_done(&job, &versions) { return } else { continue } };
            let is_deleting = ArchiveStage::of(&next) == ArchiveStage::Deleting;
            if matches!(stage, ArchiveStage::Running(_))
                && ArchiveStage::of(&next) != stage
                && (!is_deleting || archive::has_steps(&next))
            {
                // The coordinator may still be sending its last entries.
                let drain_timeout = archive::remaining_hold(&next, Timestamp::now())
                    .map_or(COORDINATOR_DRAIN_TIMEOUT, |left| left.min(SAVE_TIMEOUT));
                if timeout(drain_timeout, self.drain_attempt(&job, &mut work)).await.is_err() {
                    let job = ObjectRef::from_obj(&*job);
                    tracing::info!(%job, "the coordinator's journal was not complete in time");
                }
            }
        }
    }

    /// Removes the task of a job, unless a newer version of the job has arrived; returns whether it did.
    fn is_done(&self, job: &TrainJob, versions: &watch::Receiver<Arc<TrainJob>>) -> bool {
        let mut all = self.archivers();
        let done = versions.borrow().metadata.resource_version == job.metadata.resource_version;
        if done {
            all.remove(&job.uid().unwrap_or_default());
        }
        done
    }

    /// Does the work of a stage. Returns if the task is not needed until the job changes; otherwise never.
    async fn run_stage(&self, job: &TrainJob, stage: ArchiveStage) {
        match stage {
            ArchiveStage::Queued => {}
            ArchiveStage::Running(attempt) => self.copy(job, attempt).await,
            ArchiveStage::Finished(_) => {
                // A client that waits for the end of the job then finds all of its history.
                let is_complete = self.complete_history(job, ARCHIVE_TIMEOUT).await;
                let _ = timeout(COORDINATOR_DRAIN_TIMEOUT, self.wait_for_end_event(job)).await;
                while self.mirror.upsert_archived(job).await.is_err() {
                    sleep(RETRY_INTERVAL).await;
                }
                if !is_complete {
                    self.complete_history(job, ARCHIVE_RETRY_TIMEOUT).await;
                }
                // Finished jobs are many and change rarely, so their tasks end.
                if archive::has_finalizer(job) {
                    return;
                }
            }
            ArchiveStage::Deleting => {
                let left = archive::remaining_hold(job, Timestamp::now()).unwrap_or_default();
                if archive::has_finalizer(job) {
                    // A job without steps has nothing in its files that is worth a reader.
                    if archive::has_steps(job) {
                        self.complete_history(job, left).await;
                    }
                    self.remove_finalizer(job).await;
                }
            }
        }
        pending().await
    }

    /// Continues the work on a running attempt until its coordinator has sent everything or has ended.
    async fn drain_attempt(&self, job: &TrainJob, work: &mut (impl Future<Output = ()> + Unpin)) {
        let attempt = job.status.as_ref().and_then(|status| status.attempt).unwrap_or(0);
        let (uid, mut changes) = (job.uid().unwrap_or_default(), self.store.changes());
        let ended = async {
            self.coordinator_ended(job, attempt).await;
            sleep(FINAL_WRITE_TIMEOUT).await;
        };
        tokio::pin!(ended);
        loop {
            if self.is_attempt_complete(job, attempt).await {
                return;
            }
            tokio::select! {
                () = &mut *work => return,
                () = &mut ended => return,
                () = wait_for_change(&mut changes, &uid) => {}
            }
        }
    }

    /// Waits until the coordinator's pod of an attempt has ended or is deleted.
    async fn coordinator_ended(&self, job: &TrainJob, attempt: u32) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &job.namespace().unwrap_or_default());
        let name = ChildNames::for_job(job).pod(Role::Coordinator, 0);
        let ended = |pod: Option<&Pod>| pod.is_none_or(|pod| has_ended(pod, attempt));
        while let Err(error) = await_condition(pods.clone(), &name, ended).await {
            tracing::debug!(pod = %name, "can't watch the coordinator, retrying: {error}");
            sleep(RETRY_INTERVAL).await;
        }
    }

    async fn is_attempt_complete(&self, job: &TrainJob, attempt: u32) -> bool {
        let query = EntryQuery {
            kinds: vec![EntryKind::Outcome],
            attempt: Some(attempt.into()),
            limit: 1,
            ..EntryQuery::default()
        };
        let found = self.store.entries(&job.uid().unwrap_or_default(), &query).await;
        found.is_ok_and(|found| !found.is_empty())
    }

    /// Copies the entries of an attempt's coordinator, until it has sent everything.
    async fn copy(&self, job: &TrainJob, attempt: u32) {
        let uid = job.uid().unwrap_or_default();
        while !self.is_attempt_complete(job, attempt).await {
            match self.follow(job, &uid, attempt).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(%uid, attempt, "can't copy the journal, retrying: {}", error_chain(&error))
                }
            }
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Copies entries until the stream ends; returns whether the last one was the outcome.
    async fn follow(&self, job: &TrainJob, uid: &str, attempt: u32) -> Result<bool, FollowError> {
        let (names, namespace) = (ChildNames::for_job(job), job.namespace().unwrap_or_default());
        let address = self.coordinator(&names, &namespace, attempt).await?;
        let identity = self.identity.get().await.inspect_err(|error| {
            if !self.missing_identity_logged.swap(true, Ordering::Relaxed) {
                tracing::warn!("can't follow coordinators until this is fixed: {}", error_chain(error));
            }
        })?;
        self.missing_identity_logged.store(false, Ordering::Relaxed);
        let coordinator = expected_coordinator(&names, &namespace, uid, attempt).ok_or(FollowError::InvalidUid)?;
        let channel = journal::channel(&address, &identity, coordinator).map_err(CopyError::Connect)?;
        Ok(journal_copy::follow(&self.store, uid, JournalClient::new(channel)).await?)
    }

    /// Returns the address of an attempt's coordinator, as soon as it runs. It is read from the pod, not resolved by
    /// name, because name servers cache that a name did not exist.
    async fn coordinator(&self, names: &ChildNames, namespace: &str, attempt: u32) -> Result<String, FollowError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let runs = |pod: Option<&Pod>| pod.and_then(|pod| address_of(pod, attempt)).is_some();
        let pod = await_condition(pods, &names.pod(Role::Coordinator, 0), runs).await?;
        pod.and_then(|pod| address_of(&pod, attempt)).ok_or(FollowError::PodDeleted)
    }

    /// Completes the history of a job from its journal's files, and retries for at most `limit`: an obstacle such as a
    /// quota may be temporary. Returns false if entries may be missing that a later try could copy.
    async fn complete_history(&self, job: &TrainJob, limit: Duration) -> bool {
        let uid = job.uid().unwrap_or_default();
        let is_done = retry_catch_up(limit, &uid, || self.catch_up(job)).await;
        if !is_done {
            let (job, seconds) = (ObjectRef::from_obj(job), limit.as_secs());
            tracing::warn!(%job, "the job's history could not be completed within {seconds} s");
        }
        is_done
    }

    /// Copies the entries in the journal's files that are not in the database.
    async fn catch_up(&self, job: &TrainJob) -> Result<(), CatchUpError> {
        let Some(status) = job.status.as_ref().filter(|status| status.resolved.is_some()) else { return Ok(()) };
        let Some(attempt) = status.attempt else { return Ok(()) };
        if self.is_attempt_complete(job, attempt).await {
            return Ok(());
        }
        let uid = job.uid().unwrap_or_default();
        let reader = self.readers.open(job).await?;
        let copied = journal_copy::follow(&self.store, &uid, reader.journal()).await.map_err(CatchUpError::from);
        if let Err(error @ CatchUpError::Copy(CopyError::Stream(_))) = &copied
            && !error.is_permanent()
        {
            // The reader no longer responds: the next try starts another one.
            self.readers.remove(&uid);
        }
        copied.map(drop)
    }

    /// Waits for the event of the job's end.
    async fn wait_for_end_event(&self, job: &TrainJob) {
        let status = job.status.as_ref();
        let end = status.and_then(|status| status.condition(ConditionType::Succeeded)).map(|end| end.reason.clone());
        let Some(end) = end else { return };
        let (uid, mut changes) = (job.uid().unwrap_or_default(), self.store.changes());
        while !self.store.has_event(&uid, &end).await.unwrap_or(false) {
            wait_for_change(&mut changes, &uid).await;
        }
    }

    /// Adds the finalizer to a job, so that it is held until it is archived.
    async fn add_finalizer(&self, job: &TrainJob) {
        if let Err(error) = archive::add_finalizer(&self.client, job).await {
            let job = ObjectRef::from_obj(job);
            tracing::warn!(%job, "can't add the finalizer that keeps the job until it is archived: {error}");
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Removes the finalizer from the current version of the job. If this fails, the operator does it.
    async fn remove_finalizer(&self, job: &TrainJob) {
        let jobs: Api<TrainJob> = Api::namespaced(self.client.clone(), &job.namespace().unwrap_or_default());
        for _ in 0..MAX_RELEASE_TRIES {
            let released = match jobs.get_opt(&job.name_any()).await {
                Ok(Some(now)) if now.uid() == job.uid() && archive::has_finalizer(&now) => {
                    archive::remove_finalizer(&self.client, &now).await
                }
                Ok(_) => return,
                Err(error) => Err(error),
            };
            match released {
                Ok(true) => return,
                // Write conflict: the job was changed concurrently.
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(job = %ObjectRef::from_obj(job), "archived, but the finalizer can't be removed: \
                        {error}");
                    sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }
}

/// Repeats `catch_up` for `limit`, until it succeeds or fails permanently. Returns false if a later try could succeed.
async fn retry_catch_up<T>(limit: Duration, uid: &str, catch_up: impl Fn() -> T) -> bool
where
    T: Future<Output = Result<(), CatchUpError>>,
{
    let mut delay = RETRY_INTERVAL;
    let trying = async {
        while let Err(error) = catch_up().await {
            if error.is_permanent() {
                return journal_copy::log_catch_up_failure(Err(error), uid);
            }
            tracing::debug!(%uid, "can't copy the job's journal files, retrying: {}", error_chain(&error));
            sleep(delay).await;
            delay = MAX_RETRY_INTERVAL.min(delay * 2);
        }
    };
    timeout(limit, trying).await.is_ok()
}

/// Returns the journal's address of this attempt's coordinator, if it runs.
fn address_of(pod: &Pod, attempt: u32) -> Option<String> {
    let status = pod.status.as_ref()?;
    let this_one =
        pod.labels().get(ATTEMPT_LABEL) == Some(&attempt.to_string()) && status.phase.as_deref() == Some("Running");
    pod_address(pod, ports::JOURNAL_PORT).filter(|_| this_one)
}

/// Whether a coordinator's pod has ended, or belongs to another attempt than this.
fn has_ended(pod: &Pod, attempt: u32) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.labels().get(ATTEMPT_LABEL) != Some(&attempt.to_string()) || matches!(phase, Some("Succeeded" | "Failed"))
}

/// Waits for a change of the job's records, or until changes were missed.
async fn wait_for_change(changes: &mut broadcast::Receiver<ChangeNotice>, uid: &str) {
    while changes.recv().await.is_ok_and(|change| change.uid != uid) {}
}

/// Waits for a version of the job that needs other work: a version in another stage or, while the job has no finalizer,
/// any newer version. `None` if the task has to end.
async fn next_relevant_version(
    versions: &mut watch::Receiver<Arc<TrainJob>>,
    job: &TrainJob,
    stage: ArchiveStage,
) -> Option<Arc<TrainJob>> {
    let another = |next: &Arc<TrainJob>| {
        let newer = next.metadata.resource_version != job.metadata.resource_version;
        let keeps_finalizer = archive::has_finalizer(job) && archive::has_finalizer(next);
        ArchiveStage::of(next) != stage || newer && stage != ArchiveStage::Deleting && !keeps_finalizer
    };
    versions.wait_for(another).await.ok().map(|next| next.clone())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tonic::Status;

    use super::*;

    /// Catches up with these results, then successfully; returns the result and the number of tries.
    async fn catch_up_with(results: impl IntoIterator<Item = CatchUpError>) -> (bool, usize) {
        let (results, tries) = (RefCell::new(results.into_iter()), RefCell::new(0));
        let is_done = retry_catch_up(ARCHIVE_TIMEOUT, "uid", || async {
            *tries.borrow_mut() += 1;
            results.borrow_mut().next().map_or(Ok(()), Err)
        });
        (is_done.await, tries.into_inner())
    }

    fn broken() -> CatchUpError {
        CopyError::Stream(Status::unavailable("the reader has ended")).into()
    }

    #[tokio::test(start_paused = true)]
    async fn failed_copy_is_retried_until_the_time_is_over() {
        let busy = CopyError::Store(millrace_store::Error::Busy).into();
        assert_eq!(catch_up_with([broken(), busy]).await, (true, 3));
        // After 0, 2, 6, 14 and 30 s; the next try would be after 62 s.
        assert_eq!(catch_up_with(std::iter::repeat_with(broken)).await, (false, 5));
    }

    #[tokio::test]
    async fn deleted_and_damaged_files_are_tried_once() {
        let deleted = ApiError::new(ErrorReason::Gone, "deleted").into();
        assert_eq!(catch_up_with([deleted]).await, (true, 1));
        let damaged = CopyError::Stream(Status::data_loss("line 3 is damaged")).into();
        assert_eq!(catch_up_with([damaged]).await, (true, 1));
    }
}
