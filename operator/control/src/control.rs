//! The state that all reconciles of the loop share, and its metrics and liveness.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::{ObjectRef, Store};
use millrace_crds::decide::Refusal;
use millrace_crds::{Appliance, ClusterSpec, Grant, QueuePlace, TrainJob};
use tokio::sync::{mpsc, watch};

use crate::activity::{Activity, Standing};
use crate::follow::Followers;
use crate::gathering::Gathering;
use crate::metrics::{CONTROLLERS, Live, Metrics};
use crate::metrics_snapshot::Snapshot;
use crate::understand::{Understanding, Understood};
use crate::watchdog::{Heartbeat, Watchdog, Watched};
use crate::workers::Workers;
use crate::world::{Site, World};

/// Changes of one object within this time are combined into one reconcile.
const GATHERING_INTERVAL: Duration = Duration::from_millis(50);

/// The state that the controllers of jobs and appliances share.
pub struct Control<W: World> {
    /// Where jobs are recorded and agents run.
    pub world: Arc<W>,
    /// Every job.
    pub jobs: Store<TrainJob>,
    /// Every appliance.
    pub appliances: Store<Appliance>,
    /// Follows the coordinators of jobs.
    pub followers: Followers<W>,
    /// Metrics for Prometheus.
    pub metrics: Arc<Metrics>,
    /// Detects that this loop is stuck.
    pub watchdog: Arc<Watchdog>,
    /// Shows that the threads of this loop run tasks.
    pub(crate) heartbeat: Heartbeat,
    /// Jobs that are queued for a reconcile, and jobs that are being reconciled.
    pub(crate) job_activity: Activity<ObjectRef<TrainJob>>,
    /// The same for appliances, whose ledgers are updated.
    pub(crate) appliance_activity: Activity<ObjectRef<Appliance>>,
    /// Whether the store of jobs is complete.
    jobs_known: watch::Sender<bool>,
    /// Enqueues jobs for a reconcile.
    visits: mpsc::UnboundedSender<ObjectRef<TrainJob>>,
    /// Queue places by UID, as of the newest ledger.
    places: Mutex<HashMap<String, QueuePlace>>,
    /// Grants that this leader has confirmed and written, by appliance. Jobs use no other grants.
    confirmed: Mutex<HashMap<String, Vec<Grant>>>,
    /// The last error of creating the objects of an attempt, by UID, with the attempt's number.
    refusals: Mutex<HashMap<String, (u32, Refusal)>>,
    /// UIDs of jobs that are being reconciled, except reconciles of deleted jobs.
    visited: Mutex<HashSet<String>>,
    /// Combines the changes of jobs, by UID. A new job is reconciled at once, so that its user soon sees its state.
    pub(crate) job_changes: Gathering,
    /// Combines the changes that concern the ledgers of appliances, by the appliance's name.
    pub(crate) ledger_changes: Gathering,
    /// Caches the plans of jobs.
    pub understanding: Understanding,
    /// Time at which this loop started.
    pub began: Timestamp,
}

/// Marks a job as being reconciled until it is dropped.
pub(crate) struct UnderWay<'a, W: World> {
    control: &'a Control<W>,
    uid: String,
}

impl<W: World> Drop for UnderWay<'_, W> {
    fn drop(&mut self) {
        lock(&self.control.visited).remove(&self.uid);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The maps hold complete values only, so they are consistent after any panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Arguments of [`Control::new`].
pub struct Parts<W> {
    /// See [`Control`].
    pub world: Arc<W>,
    /// The properties of the world that jobs' records depend on.
    pub site: Arc<dyn Site>,
    /// See [`Control`].
    pub jobs: Store<TrainJob>,
    /// See [`Control`].
    pub appliances: Store<Appliance>,
    /// See [`Control`].
    pub metrics: Arc<Metrics>,
    /// See [`Control`].
    pub watchdog: Arc<Watchdog>,
    /// Enqueues jobs; a world may send to it, too.
    pub visits: mpsc::UnboundedSender<ObjectRef<TrainJob>>,
    /// The threads that plan jobs.
    pub workers: Workers,
}

impl<W: World> Control<W> {
    /// Creates the state with empty caches; no coordinator is followed yet.
    pub fn new(parts: Parts<W>) -> Self {
        let Parts { world, site, jobs, appliances, metrics, watchdog, visits, workers } = parts;
        let [visits_wait, ledgers_wait] = metrics.queued();
        let followers = Followers::new(world.clone(), visits.clone());
        Self {
            world,
            jobs,
            appliances,
            followers,
            metrics,
            watchdog,
            heartbeat: Heartbeat::default(),
            job_activity: Activity::new(visits_wait),
            appliance_activity: Activity::new(ledgers_wait),
            jobs_known: watch::Sender::new(false),
            visits,
            places: Mutex::default(),
            confirmed: Mutex::default(),
            refusals: Mutex::default(),
            visited: Mutex::default(),
            job_changes: Gathering::with_first_at_once(GATHERING_INTERVAL),
            // The store of jobs may be older than the change that requested this reconcile of the ledger.
            ledger_changes: Gathering::new(GATHERING_INTERVAL),
            understanding: Understanding::new(site, workers),
            began: Timestamp::now(),
        }
    }

    /// Waits until the store of jobs is complete, for [`Control::await_jobs`]. Only the task that drives the controller
    /// of jobs may poll it, and once: of several tasks that wait for a store of kube, only one is woken.
    pub(crate) async fn watch_jobs(&self) {
        if self.jobs.wait_until_ready().await.is_ok() {
            self.jobs_known.send_replace(true);
        }
    }

    /// Waits until the store of jobs is complete. An incomplete store lacks jobs that hold systems.
    pub(crate) async fn await_jobs(&self) {
        // The sender lives as long as `self`.
        let _ = self.jobs_known.subscribe().wait_for(|known| *known).await;
    }

    /// Returns the appliance `name`, if it exists.
    pub fn appliance(&self, name: &str) -> Option<Arc<Appliance>> {
        self.appliances.get(&ObjectRef::new(name))
    }

    /// Returns the plan of `job` on `num_csx` systems. If it is not cached, it is queued, and the job is enqueued once
    /// it is computed.
    pub fn understood(&self, job: &TrainJob, uid: &str, cluster: &ClusterSpec, num_csx: u32) -> Understood {
        let (visits, job_ref) = (self.visits.clone(), ObjectRef::from_obj(job));
        let visit = move || {
            // The receiver is dropped when the loop ends.
            let _ = visits.send(job_ref);
        };
        self.understanding.of(job, uid, cluster, num_csx, Some(Box::new(visit)))
    }

    /// Removes the cached state of deleted jobs and appliances.
    pub fn forget_the_gone(&self) {
        let jobs: HashSet<String> = self.jobs.state().iter().filter_map(|job| job.metadata.uid.clone()).collect();
        self.understanding.keep(|uid| jobs.contains(uid));
        lock(&self.places).retain(|uid, _| jobs.contains(uid));
        lock(&self.refusals).retain(|uid, _| jobs.contains(uid));
        self.job_changes.keep(|uid| jobs.contains(uid));
        self.followers.keep(|uid| jobs.contains(uid));
        self.metrics.keep_ledgers(|name| self.appliance(name).is_some());
    }

    /// Returns the last error of creating the objects of this attempt; `None` if the last try succeeded.
    pub(crate) fn refusal(&self, uid: &str, attempt: u32) -> Option<Refusal> {
        lock(&self.refusals).get(uid).filter(|(of, _)| *of == attempt).map(|(_, refusal)| refusal.clone())
    }

    /// Records whether all objects that an attempt of a job needs were created.
    pub(crate) fn set_refusal(&self, uid: &str, attempt: u32, refusal: Option<Refusal>) {
        match refusal {
            Some(refusal) => lock(&self.refusals).insert(uid.to_owned(), (attempt, refusal)),
            None => lock(&self.refusals).remove(uid),
        };
    }

    /// Returns the job's place in its queue; `None` if it is not queued.
    pub fn place(&self, uid: &str) -> Option<QueuePlace> {
        lock(&self.places).get(uid).cloned()
    }

    /// Records a job's place in its queue; returns whether it changed.
    pub fn set_place(&self, uid: &str, place: Option<QueuePlace>) -> bool {
        let mut places = lock(&self.places);
        let before = match &place {
            Some(place) => places.insert(uid.to_owned(), place.clone()),
            None => places.remove(uid),
        };
        before != place
    }

    /// Records the grants of an appliance as they were written.
    pub(crate) fn confirm(&self, appliance: &str, grants: Vec<Grant>) {
        lock(&self.confirmed).insert(appliance.to_owned(), grants);
    }

    /// Returns the grants of an appliance as this leader last wrote them; `None` before the first write.
    pub(crate) fn confirmed(&self, appliance: &str) -> Option<Vec<Grant>> {
        lock(&self.confirmed).get(appliance).cloned()
    }

    /// Returns the confirmed grant of `appliance` to the job of this UID.
    pub(crate) fn grant(&self, appliance: &str, uid: &str) -> Option<Grant> {
        lock(&self.confirmed).get(appliance)?.iter().find(|grant| grant.uid == uid).cloned()
    }

    /// Marks the job of this UID as being reconciled. A job has at most one reconcile at a time.
    pub(crate) fn begin_visit(&self, uid: &str) -> UnderWay<'_, W> {
        lock(&self.visited).insert(uid.to_owned());
        UnderWay { control: self, uid: uid.to_owned() }
    }

    /// Returns whether a job is being reconciled.
    pub(crate) fn is_visited(&self, uid: &str) -> bool {
        lock(&self.visited).contains(uid)
    }

    /// Enqueues a job.
    pub fn visit(&self, job: &TrainJob) {
        // The receiver is dropped when the loop ends.
        let _ = self.visits.send(ObjectRef::from_obj(job));
    }
}

impl<W: World> Control<W> {
    /// Returns the activity of the controllers, in the order of [`CONTROLLERS`].
    fn standings(&self) -> [Standing; 2] {
        [
            self.job_activity.standing(|job| self.jobs.get(job).is_some()),
            self.appliance_activity.standing(|appliance| self.appliances.get(appliance).is_some()),
        ]
    }

    /// Returns whether both stores have been filled once. Until then nothing is reconciled, for as long as the API
    /// server is unreachable.
    fn has_begun(&self) -> bool {
        let ready = |outcome: Option<Result<(), _>>| matches!(outcome, Some(Ok(())));
        ready(self.jobs.wait_until_ready().now_or_never()) && ready(self.appliances.wait_until_ready().now_or_never())
    }
}

impl<W: World> Live for Control<W> {
    fn render(&self) -> String {
        let [visits, ledgers] = self.standings();
        let [trainjob, appliance] = CONTROLLERS;
        let snapshot = Snapshot {
            jobs: &self.jobs.state(),
            appliances: &self.appliances.state(),
            ledgers: &self.metrics.ledgers(),
            controllers: [(trainjob, visits), (appliance, ledgers)],
            now: Timestamp::now(),
        };
        snapshot.render()
    }
}

impl<W: World> Watched for Control<W> {
    fn stuck(&self, bound: Duration) -> Option<String> {
        let silent = self.heartbeat.silent_for();
        if silent > bound {
            return Some(format!("the threads of the control loop have run no task for {} s", silent.as_secs()));
        }
        if !self.has_begun() {
            return None;
        }
        let mut standings = ["visits to jobs", "updates of ledgers"].into_iter().zip(self.standings());
        let (what, standing) = standings.find(|(_, standing)| standing.is_stuck(bound))?;
        let Standing { waiting, visited, longest_visit, without_progress } = standing;
        Some(format!(
            "{what}: {waiting} wait and {visited} are under way, the longest for {} s; none has begun or ended for {} s",
            longest_visit.as_secs(),
            without_progress.as_secs()
        ))
    }
}
