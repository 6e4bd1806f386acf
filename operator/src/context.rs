//! What every visit has at hand.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::Client;
use kube::runtime::events::Recorder;
use kube::runtime::reflector::{ObjectRef, Store};
use millrace_crds::{Appliance, ClusterSpec, QueuePlace, Resolution, TrainJob};
use tokio::sync::mpsc;

use crate::authority::Authority;
use crate::follow::Followers;
use crate::metrics::Metrics;
use crate::resolve::{self, Needs};

/// See the module text.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// Every job.
    pub jobs: Store<TrainJob>,
    /// Every appliance.
    pub appliances: Store<Appliance>,
    /// What follows the coordinators.
    pub followers: Followers,
    /// Makes certificates.
    pub authority: Authority,
    /// Publishes events.
    pub recorder: Recorder,
    /// Image of the pods, where the appliance names none.
    pub image: String,
    /// The epoch of this leadership.
    pub epoch: u64,
    /// Numbers for Prometheus.
    pub metrics: Arc<Metrics>,
    /// Jobs to be visited.
    pub visits: mpsc::UnboundedSender<ObjectRef<TrainJob>>,
    /// Places in the queues, by UID; the ledger's last word.
    places: Mutex<HashMap<String, QueuePlace>>,
    /// What jobs come to, by UID.
    understood: Mutex<HashMap<String, Understood>>,
}

/// What a job comes to on a number of systems.
#[derive(Clone)]
struct Understood {
    num_csx: u32,
    /// The appliance it was understood on.
    cluster: ClusterSpec,
    result: Result<Arc<(Resolution, Needs)>, String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Maps of finished values: whole after any panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What [`Context::new`] is made from.
pub struct Parts {
    /// See [`Context`].
    pub client: Client,
    /// See [`Context`].
    pub jobs: Store<TrainJob>,
    /// See [`Context`].
    pub appliances: Store<Appliance>,
    /// See [`Context`].
    pub followers: Followers,
    /// See [`Context`].
    pub authority: Authority,
    /// See [`Context`].
    pub recorder: Recorder,
    /// See [`Context`].
    pub image: String,
    /// See [`Context`].
    pub epoch: u64,
    /// See [`Context`].
    pub metrics: Arc<Metrics>,
    /// See [`Context`].
    pub visits: mpsc::UnboundedSender<ObjectRef<TrainJob>>,
}

impl Context {
    /// With empty caches.
    pub fn new(parts: Parts) -> Self {
        let Parts { client, jobs, appliances, followers, authority, recorder, image, epoch, metrics, visits } = parts;
        Self {
            client,
            jobs,
            appliances,
            followers,
            authority,
            recorder,
            image,
            epoch,
            metrics,
            visits,
            places: Mutex::default(),
            understood: Mutex::default(),
        }
    }

    /// The appliance called `name`, if it exists.
    pub fn appliance(&self, name: &str) -> Option<Arc<Appliance>> {
        self.appliances.get(&ObjectRef::new(name))
    }

    /// What `job` comes to on `num_csx` systems: its record, or what it would become. Compiled once for each number.
    ///
    /// # Errors
    /// A sentence for the user, whose job can never run as it is.
    pub fn understand(
        &self,
        job: &TrainJob,
        uid: &str,
        cluster: &ClusterSpec,
        num_csx: u32,
    ) -> Result<Arc<(Resolution, Needs)>, String> {
        let record = job.status.as_ref().and_then(|status| status.resolved.clone());
        // What is on record no change of the appliance concerns.
        let holds = |known: &&Understood| known.num_csx == num_csx && (record.is_some() || known.cluster == *cluster);
        if let Some(known) = lock(&self.understood).get(uid).filter(holds) {
            return known.result.clone();
        }
        let resolution = record.map_or_else(|| resolve::resolve(job, cluster, &self.image), Ok);
        let result = resolution.and_then(|resolution| {
            let needs = resolve::needs(&resolution, num_csx)?;
            Ok(Arc::new((resolution, needs)))
        });
        lock(&self.understood)
            .insert(uid.to_owned(), Understood { num_csx, cluster: cluster.clone(), result: result.clone() });
        result
    }

    /// Forgets what is known of jobs that are gone.
    pub fn forget_the_gone(&self) {
        let jobs: HashSet<String> = self.jobs.state().iter().filter_map(|job| job.metadata.uid.clone()).collect();
        lock(&self.understood).retain(|uid, _| jobs.contains(uid));
        lock(&self.places).retain(|uid, _| jobs.contains(uid));
        self.followers.keep(|uid| jobs.contains(uid));
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

    /// Has a job visited soon.
    pub fn visit(&self, job: &TrainJob) {
        // Nobody reads any more once the operator ends.
        let _ = self.visits.send(ObjectRef::from_obj(job));
    }
}
