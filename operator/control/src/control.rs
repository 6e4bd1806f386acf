//! What every visit has at hand, and how the loop stands.

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

/// Several changes of one object within so long are one visit.
const GATHERING_INTERVAL: Duration = Duration::from_millis(50);

/// See the module text.
pub struct Control<W: World> {
    /// Where jobs are recorded and agents run.
    pub world: Arc<W>,
    /// Every job.
    pub jobs: Store<TrainJob>,
    /// Every appliance.
    pub appliances: Store<Appliance>,
    /// What follows the coordinators.
    pub followers: Followers<W>,
    /// Numbers for Prometheus.
    pub metrics: Arc<Metrics>,
    /// Finds out whether this loop is stuck.
    pub watchdog: Arc<Watchdog>,
    /// Shows that the threads of this loop run.
    pub(crate) heartbeat: Heartbeat,
    /// Which jobs wait for a visit, and which are being visited.
    pub(crate) job_activity: Activity<ObjectRef<TrainJob>>,
    /// The same of appliances, whose ledgers are updated.
    pub(crate) appliance_activity: Activity<ObjectRef<Appliance>>,
    /// Whether the view of jobs is whole.
    jobs_known: watch::Sender<bool>,
    /// Jobs to be visited.
    visits: mpsc::UnboundedSender<ObjectRef<TrainJob>>,
    /// Places in the queues, by UID; the ledger's last word.
    places: Mutex<HashMap<String, QueuePlace>>,
    /// Grants that this leader has confirmed and written, by appliance: jobs take up no others.
    confirmed: Mutex<HashMap<String, Vec<Grant>>>,
    /// What was said when something that an attempt needs could not be created: by UID, with the attempt.
    refusals: Mutex<HashMap<String, (u32, Refusal)>>,
    /// UIDs of jobs that are being visited, other than to delete them.
    visited: Mutex<HashSet<String>>,
    /// Gathers the changes of jobs, by UID. A new job is visited at once: its user soon sees what becomes of it.
    pub(crate) job_changes: Gathering,
    /// Gathers the changes that concern the ledgers of appliances, by the appliance's name.
    pub(crate) ledger_changes: Gathering,
    /// What jobs come to.
    pub understanding: Understanding,
    /// When this loop began.
    pub began: Timestamp,
}

/// A visit to a job, until it is dropped.
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
    // Maps of finished values: whole after any panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What [`Control::new`] is made from.
pub struct Parts<W> {
    /// See [`Control`].
    pub world: Arc<W>,
    /// What jobs' records depend on there.
    pub site: Arc<dyn Site>,
    /// See [`Control`].
    pub jobs: Store<TrainJob>,
    /// See [`Control`].
    pub appliances: Store<Appliance>,
    /// See [`Control`].
    pub metrics: Arc<Metrics>,
    /// See [`Control`].
    pub watchdog: Arc<Watchdog>,
    /// Where a world says which job is to be visited, too.
    pub visits: mpsc::UnboundedSender<ObjectRef<TrainJob>>,
    /// The threads that plan jobs.
    pub workers: Workers,
}

impl<W: World> Control<W> {
    /// With empty caches, following nobody.
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
            // The view of jobs may be behind the change that the ledger is visited for.
            ledger_changes: Gathering::new(GATHERING_INTERVAL),
            understanding: Understanding::new(site, workers),
            began: Timestamp::now(),
        }
    }

    /// Waits until the view of jobs is whole, for [`Control::await_jobs`]. To be polled by the task that drives the
    /// controller of jobs, and once: of several tasks that wait for a store of kube's, only one is woken.
    pub(crate) async fn watch_jobs(&self) {
        if self.jobs.wait_until_ready().await.is_ok() {
            self.jobs_known.send_replace(true);
        }
    }

    /// Waits until the view of jobs is whole: one that is not shows jobs as gone that hold systems.
    pub(crate) async fn await_jobs(&self) {
        // The sender lives as long as this.
        let _ = self.jobs_known.subscribe().wait_for(|known| *known).await;
    }

    /// The appliance called `name`, if it exists.
    pub fn appliance(&self, name: &str) -> Option<Arc<Appliance>> {
        self.appliances.get(&ObjectRef::new(name))
    }

    /// What `job` comes to on `num_csx` systems. Where that has to be found out yet, the job is visited when it is
    /// known.
    pub fn understood(&self, job: &TrainJob, uid: &str, cluster: &ClusterSpec, num_csx: u32) -> Understood {
        let (visits, job_ref) = (self.visits.clone(), ObjectRef::from_obj(job));
        let visit = move || {
            // Nobody reads any more once the loop ends.
            let _ = visits.send(job_ref);
        };
        self.understanding.of(job, uid, cluster, num_csx, Some(Box::new(visit)))
    }

    /// Forgets what is known of jobs that are gone.
    pub fn forget_the_gone(&self) {
        let jobs: HashSet<String> = self.jobs.state().iter().filter_map(|job| job.metadata.uid.clone()).collect();
        self.understanding.keep(|uid| jobs.contains(uid));
        lock(&self.places).retain(|uid, _| jobs.contains(uid));
        lock(&self.refusals).retain(|uid, _| jobs.contains(uid));
        self.job_changes.keep(|uid| jobs.contains(uid));
        self.followers.keep(|uid| jobs.contains(uid));
        self.metrics.keep_ledgers(|name| self.appliance(name).is_some());
    }

    /// What was said when something that this attempt of a job needs could not be created the last time.
    pub(crate) fn refusal(&self, uid: &str, attempt: u32) -> Option<Refusal> {
        lock(&self.refusals).get(uid).filter(|(of, _)| *of == attempt).map(|(_, refusal)| refusal.clone())
    }

    /// Takes note of whether all could be created that an attempt of a job needs.
    pub(crate) fn set_refusal(&self, uid: &str, attempt: u32, refusal: Option<Refusal>) {
        match refusal {
            Some(refusal) => lock(&self.refusals).insert(uid.to_owned(), (attempt, refusal)),
            None => lock(&self.refusals).remove(uid),
        };
    }

    /// A job's place in its queue.
    pub fn place(&self, uid: &str) -> Option<QueuePlace> {
        lock(&self.places).get(uid).cloned()
    }

    /// Takes note of a job's place; whether it is another than before.
    pub fn set_place(&self, uid: &str, place: Option<QueuePlace>) -> bool {
        let mut places = lock(&self.places);
        let before = match &place {
            Some(place) => places.insert(uid.to_owned(), place.clone()),
            None => places.remove(uid),
        };
        before != place
    }

    /// Takes note of the ledger of an appliance as it was written.
    pub(crate) fn confirm(&self, appliance: &str, grants: Vec<Grant>) {
        lock(&self.confirmed).insert(appliance.to_owned(), grants);
    }

    /// The ledger of an appliance as this leader wrote it last; `None` before the first time.
    pub(crate) fn confirmed(&self, appliance: &str) -> Option<Vec<Grant>> {
        lock(&self.confirmed).get(appliance).cloned()
    }

    /// What the ledger of `appliance` has for the job of this UID.
    pub(crate) fn grant(&self, appliance: &str, uid: &str) -> Option<Grant> {
        lock(&self.confirmed).get(appliance)?.iter().find(|grant| grant.uid == uid).cloned()
    }

    /// A visit to the job of this UID begins. A job has one visit at a time.
    pub(crate) fn begin_visit(&self, uid: &str) -> UnderWay<'_, W> {
        lock(&self.visited).insert(uid.to_owned());
        UnderWay { control: self, uid: uid.to_owned() }
    }

    /// Whether a job is being visited.
    pub(crate) fn is_visited(&self, uid: &str) -> bool {
        lock(&self.visited).contains(uid)
    }

    /// Has a job visited soon.
    pub fn visit(&self, job: &TrainJob) {
        // Nobody reads any more once the loop ends.
        let _ = self.visits.send(ObjectRef::from_obj(job));
    }
}

impl<W: World> Control<W> {
    /// How the controllers stand, in the order of [`CONTROLLERS`].
    fn standings(&self) -> [Standing; 2] {
        [
            self.job_activity.standing(|job| self.jobs.get(job).is_some()),
            self.appliance_activity.standing(|appliance| self.appliances.get(appliance).is_some()),
        ]
    }

    /// Whether both views have been filled once. Until then nothing is visited, for as long as an API server is away.
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
