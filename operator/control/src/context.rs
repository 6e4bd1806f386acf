//! The state that all reconciles of the loop share, and its metrics and liveness.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::{ObjectRef, Store};
use millrace_crds::{Appliance, ApplianceSpec, Grant, QueueStatus, TrainJob};
use millrace_lifecycle::CreationError;
use tokio::sync::{mpsc, watch};

use crate::activity::{ControllerActivity, ControllerStatus};
use crate::debounce::Debouncer;
use crate::journal_follower::JournalFollowers;
use crate::lock::lock;
use crate::metrics::{CONTROLLERS, Metrics, SnapshotSource};
use crate::metrics_snapshot::ControllerSnapshot;
use crate::plan_cache::{PlanCache, PlanStatus};
use crate::watchdog::{ProgressSource, RuntimeHeartbeat, Watchdog};
use crate::workers::WorkerPool;
use crate::world::{JobSite, World};

/// Changes of one object within this time are combined into one reconcile.
const DEBOUNCE_INTERVAL: Duration = Duration::from_millis(50);

/// The state that the controllers of jobs and appliances share.
pub struct ControllerContext<W: World> {
    /// Where jobs are recorded and agents run.
    pub world: Arc<W>,
    pub jobs: Store<TrainJob>,
    pub appliances: Store<Appliance>,
    /// Follows the coordinators of jobs.
    pub followers: JournalFollowers<W>,
    pub metrics: Arc<Metrics>,
    /// Detects that this loop is stuck.
    pub watchdog: Arc<Watchdog>,
    /// Shows that the threads of this loop run tasks.
    pub(crate) heartbeat: RuntimeHeartbeat,
    /// Jobs that are queued for a reconcile, and jobs that are being reconciled.
    pub(crate) job_activity: ControllerActivity<ObjectRef<TrainJob>>,
    /// The same for appliances, whose ledgers are updated.
    pub(crate) appliance_activity: ControllerActivity<ObjectRef<Appliance>>,
    /// Whether the store of jobs is complete.
    jobs_synced: watch::Sender<bool>,
    /// Whether the store of appliances is complete.
    appliances_synced: watch::Sender<bool>,
    /// Enqueues jobs for a reconcile.
    reconcile_requests: mpsc::UnboundedSender<ObjectRef<TrainJob>>,
    /// Queue places by UID, as of the newest ledger.
    queue_places: Mutex<HashMap<String, QueueStatus>>,
    /// Grants that this leader has confirmed and written, by appliance. Jobs use no other grants.
    confirmed_ledgers: Mutex<HashMap<String, Vec<Grant>>>,
    /// The last error of creating the objects of an attempt, by UID, with the attempt's number.
    creation_errors: Mutex<HashMap<String, (u32, CreationError)>>,
    /// UIDs of jobs that are being reconciled, except reconciles of deleted jobs.
    reconciling: Mutex<HashSet<String>>,
    /// Combines the changes of jobs, by UID. A new job is reconciled at once, so that its user soon sees its state.
    pub(crate) job_changes: Debouncer,
    /// Combines the changes that concern the ledgers of appliances, by the appliance's name.
    pub(crate) ledger_changes: Debouncer,
    /// Caches the plans of jobs.
    pub plan_cache: PlanCache,
    /// Time at which this loop started.
    pub started_at: Timestamp,
}

/// Marks a job as being reconciled until it is dropped.
pub(crate) struct JobReconcileGuard<'a, W: World> {
    control: &'a ControllerContext<W>,
    uid: String,
}

impl<W: World> Drop for JobReconcileGuard<'_, W> {
    fn drop(&mut self) {
        lock(&self.control.reconciling).remove(&self.uid);
    }
}

/// Arguments of [`ControllerContext::new`].
pub struct ContextParts<W> {
    /// Where jobs are recorded and agents run.
    pub world: Arc<W>,
    /// The properties of the world that jobs' records depend on.
    pub site: Arc<dyn JobSite>,
    /// Every job of the world.
    pub jobs: Store<TrainJob>,
    /// Every appliance of the world.
    pub appliances: Store<Appliance>,
    /// Receives the metrics of the loop.
    pub metrics: Arc<Metrics>,
    /// Detects that the loop is stuck.
    pub watchdog: Arc<Watchdog>,
    /// Enqueues jobs; a world may send to it, too.
    pub reconcile_requests: mpsc::UnboundedSender<ObjectRef<TrainJob>>,
    /// The threads that plan jobs.
    pub workers: WorkerPool,
}

impl<W: World> ControllerContext<W> {
    /// Creates the state with empty caches; no coordinator is followed yet.
    pub fn new(parts: ContextParts<W>) -> Self {
        let ContextParts { world, site, jobs, appliances, metrics, watchdog, reconcile_requests, workers } = parts;
        let [jobs_wait, ledgers_wait] = metrics.queued();
        let followers = JournalFollowers::new(world.clone(), reconcile_requests.clone());
        Self {
            world,
            jobs,
            appliances,
            followers,
            metrics,
            watchdog,
            heartbeat: RuntimeHeartbeat::default(),
            job_activity: ControllerActivity::new(jobs_wait),
            appliance_activity: ControllerActivity::new(ledgers_wait),
            jobs_synced: watch::Sender::new(false),
            appliances_synced: watch::Sender::new(false),
            reconcile_requests,
            queue_places: Mutex::default(),
            confirmed_ledgers: Mutex::default(),
            creation_errors: Mutex::default(),
            reconciling: Mutex::default(),
            job_changes: Debouncer::with_immediate_first(DEBOUNCE_INTERVAL),
            // The store of jobs may be older than the change that requested this reconcile of the ledger.
            ledger_changes: Debouncer::new(DEBOUNCE_INTERVAL),
            plan_cache: PlanCache::new(site, workers),
            started_at: Timestamp::now(),
        }
    }

    /// Waits until the stores of jobs and appliances are complete, and notes each. Must be polled by the task that
    /// drives the controllers, and only once: of several tasks that wait for a store of kube, only one is woken.
    pub(crate) async fn watch_stores(&self) {
        let jobs = async {
            if self.jobs.wait_until_ready().await.is_ok() {
                self.jobs_synced.send_replace(true);
            }
        };
        let appliances = async {
            if self.appliances.wait_until_ready().await.is_ok() {
                self.appliances_synced.send_replace(true);
            }
        };
        futures::join!(jobs, appliances);
    }

    /// Returns whether the store of appliances is complete. Until then, an appliance that it lacks may exist.
    pub(crate) fn has_all_appliances(&self) -> bool {
        *self.appliances_synced.borrow()
    }

    /// Waits until the store of jobs is complete. An incomplete store lacks jobs that hold systems.
    pub(crate) async fn await_jobs(&self) {
        // The sender lives as long as `self`.
        let _ = self.jobs_synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Returns the appliance `name`, if it exists.
    pub fn appliance(&self, name: &str) -> Option<Arc<Appliance>> {
        self.appliances.get(&ObjectRef::new(name))
    }

    /// Returns the plan of `job` on `num_csx` systems. If it is not cached, it is queued, and the job is enqueued once
    /// it is computed.
    pub fn get_or_plan(&self, job: &TrainJob, uid: &str, cluster: &ApplianceSpec, num_csx: u32) -> PlanStatus {
        let (requests, job_ref) = (self.reconcile_requests.clone(), ObjectRef::from_obj(job));
        let on_planned = move || {
            // The receiver is dropped when the loop ends.
            let _ = requests.send(job_ref);
        };
        self.plan_cache.get_or_plan(job, uid, cluster, num_csx, Some(Box::new(on_planned)))
    }

    /// Removes the cached state of deleted jobs and appliances.
    pub fn prune_deleted_jobs(&self) {
        let jobs: HashSet<String> = self.jobs.state().iter().filter_map(|job| job.metadata.uid.clone()).collect();
        self.plan_cache.retain(|uid| jobs.contains(uid));
        lock(&self.queue_places).retain(|uid, _| jobs.contains(uid));
        lock(&self.creation_errors).retain(|uid, _| jobs.contains(uid));
        self.job_changes.retain(|uid| jobs.contains(uid));
        self.followers.retain(|uid| jobs.contains(uid));
        self.metrics.retain_ledgers(|name| self.appliance(name).is_some());
    }

    /// Returns the last error of creating the objects of this attempt; `None` if the last try succeeded.
    pub(crate) fn creation_error(&self, uid: &str, attempt: u32) -> Option<CreationError> {
        lock(&self.creation_errors)
            .get(uid)
            .filter(|(entry_attempt, _)| *entry_attempt == attempt)
            .map(|(_, error)| error.clone())
    }

    /// Records whether all objects that an attempt of a job needs were created.
    pub(crate) fn set_creation_error(&self, uid: &str, attempt: u32, error: Option<CreationError>) {
        match error {
            Some(error) => lock(&self.creation_errors).insert(uid.to_owned(), (attempt, error)),
            None => lock(&self.creation_errors).remove(uid),
        };
    }

    /// Returns the job's place in its queue; `None` if it is not queued.
    pub fn queue_place(&self, uid: &str) -> Option<QueueStatus> {
        lock(&self.queue_places).get(uid).cloned()
    }

    /// Records a job's place in its queue; returns whether it changed.
    pub fn set_queue_place(&self, uid: &str, entry: Option<QueueStatus>) -> bool {
        let mut places = lock(&self.queue_places);
        let before = match &entry {
            Some(entry) => places.insert(uid.to_owned(), entry.clone()),
            None => places.remove(uid),
        };
        before != entry
    }

    /// Records the grants of an appliance as they were written.
    pub(crate) fn set_confirmed_ledger(&self, appliance: &str, grants: Vec<Grant>) {
        lock(&self.confirmed_ledgers).insert(appliance.to_owned(), grants);
    }

    /// Returns the grants of an appliance as this leader last wrote them; `None` before the first write.
    pub(crate) fn confirmed_ledger(&self, appliance: &str) -> Option<Vec<Grant>> {
        lock(&self.confirmed_ledgers).get(appliance).cloned()
    }

    /// Returns the confirmed grant of `appliance` to the job of this UID.
    pub(crate) fn grant(&self, appliance: &str, uid: &str) -> Option<Grant> {
        lock(&self.confirmed_ledgers).get(appliance)?.iter().find(|grant| grant.uid == uid).cloned()
    }

    /// Marks the job of this UID as being reconciled. A job has at most one reconcile at a time.
    pub(crate) fn begin_reconcile(&self, uid: &str) -> JobReconcileGuard<'_, W> {
        lock(&self.reconciling).insert(uid.to_owned());
        JobReconcileGuard { control: self, uid: uid.to_owned() }
    }

    /// Returns whether a job is being reconciled.
    pub(crate) fn is_reconciling(&self, uid: &str) -> bool {
        lock(&self.reconciling).contains(uid)
    }

    pub fn enqueue(&self, job: &TrainJob) {
        // The receiver is dropped when the loop ends.
        let _ = self.reconcile_requests.send(ObjectRef::from_obj(job));
    }
}

impl<W: World> ControllerContext<W> {
    /// Returns the activity of the controllers, in the order of [`CONTROLLERS`].
    fn statuses(&self) -> [ControllerStatus; 2] {
        [
            self.job_activity.status(|job| self.jobs.get(job).is_some()),
            self.appliance_activity.status(|appliance| self.appliances.get(appliance).is_some()),
        ]
    }

    /// Returns whether both stores have been filled once. Until then nothing is reconciled, for as long as the API
    /// server is unreachable.
    fn has_begun(&self) -> bool {
        let ready = |outcome: Option<Result<(), _>>| matches!(outcome, Some(Ok(())));
        ready(self.jobs.wait_until_ready().now_or_never()) && ready(self.appliances.wait_until_ready().now_or_never())
    }
}

impl<W: World> SnapshotSource for ControllerContext<W> {
    fn render(&self) -> String {
        let [jobs, ledgers] = self.statuses();
        let [trainjob, appliance] = CONTROLLERS;
        let snapshot = ControllerSnapshot {
            jobs: &self.jobs.state(),
            appliances: &self.appliances.state(),
            ledgers: &self.metrics.ledgers(),
            controllers: [(trainjob, jobs), (appliance, ledgers)],
            now: Timestamp::now(),
        };
        snapshot.render()
    }
}

impl<W: World> ProgressSource for ControllerContext<W> {
    fn stuck(&self, bound: Duration) -> Option<String> {
        let elapsed = self.heartbeat.time_since_beat();
        if elapsed > bound {
            return Some(format!("the threads of the control loop have run no task for {} s", elapsed.as_secs()));
        }
        if !self.has_begun() {
            return None;
        }
        let mut statuses = ["reconciles of jobs", "updates of ledgers"].into_iter().zip(self.statuses());
        let (name, status) = statuses.find(|(_, status)| status.is_stuck(bound))?;
        let ControllerStatus { waiting, visited, longest_reconcile, without_progress } = status;
        Some(format!(
            "{name}: {waiting} are waiting and {visited} are running, the longest for {} s; none has begun or ended \
             for {} s",
            longest_reconcile.as_secs(),
            without_progress.as_secs()
        ))
    }
}
