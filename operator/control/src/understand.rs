//! Caches the record and needs of each job, by UID; computes them in the background.
//!
//! * An entry is for one number of systems. It is replaced if another number is requested or, for a job without a
//!   record, if the specification of the appliance has changed.
//! * Entries of deleted jobs are removed by [`Understanding::keep`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kube::ResourceExt;
use millrace_crds::{ClusterSpec, Resolution, TrainJob};

use crate::launch::version_of;
use crate::plans::{LIGHT_PLAN_BYTES, MayPlan, Plans};
use crate::resolve::{Needs, Unable, understand};
use crate::workers::Workers;
use crate::world::Site;

/// A job's record, or the record that it would get, and the needs of an attempt; or why it can never run.
pub type Result = std::result::Result<Arc<(Resolution, Needs)>, Unable>;

/// State of planning a job.
#[derive(Clone, Debug)]
pub enum Understood {
    /// It is done.
    Known(Result),
    /// It waits for a thread, or computes, since then.
    Pending(Instant),
}

impl Understood {
    /// Returns the result; `None` while it is pending.
    pub fn known(self) -> Option<Result> {
        match self {
            Self::Known(result) => Some(result),
            Self::Pending(_) => None,
        }
    }
}

/// A limit for [`Plans::plan`] that admits only plans that are computed at once.
///
/// # Errors
/// It is a larger one, to be computed by [`Workers::run_heavy`].
pub fn only_light(bytes: u64) -> std::result::Result<(), String> {
    if bytes <= LIGHT_PLAN_BYTES { Ok(()) } else { Err(format!("a plan of {bytes} bytes is heavy work")) }
}

/// Callback for a computed result.
pub type Done = Box<dyn FnOnce() + Send>;

/// The cache of plans. Clones share it.
#[derive(Clone)]
pub struct Understanding {
    shared: Arc<Shared>,
}

struct Shared {
    site: Arc<dyn Site>,
    workers: Workers,
    plans: Plans,
    jobs: Mutex<HashMap<String, Entry>>,
}

/// The cached result of a job.
struct Entry {
    num_csx: u32,
    /// The appliance it was computed for.
    cluster: Arc<ClusterSpec>,
    state: Understood,
    done: Option<Done>,
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // The map holds complete values only, so it is consistent after any panic.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Understanding {
    /// Creates an empty cache for the jobs of `site`, whose plans are computed by `workers`.
    pub fn new(site: Arc<dyn Site>, workers: Workers) -> Self {
        Self { shared: Arc::new(Shared { site, workers, plans: Plans::default(), jobs: Mutex::default() }) }
    }

    /// Returns the threads that compute plans.
    pub fn workers(&self) -> &Workers {
        &self.shared.workers
    }

    /// Returns why no further attempt of `job` may begin with the agents of its record; `None` if one may, or if it has
    /// no record.
    pub fn agents_refused(&self, job: &TrainJob) -> Option<String> {
        let record = job.status.as_ref()?.resolved.as_ref()?;
        self.shared.site.agents_refused(version_of(record))
    }

    /// Returns the result for `job` on `num_csx` systems. If it is not cached, queues its computation and calls `done`
    /// afterwards; of several callbacks, only the first is called. Namespaces share the threads. Must be called within
    /// a Tokio runtime.
    pub fn of(&self, job: &TrainJob, uid: &str, cluster: &ClusterSpec, num_csx: u32, done: Option<Done>) -> Understood {
        let record = job.status.as_ref().and_then(|status| status.resolved.clone());
        let mut jobs = self.shared.jobs();
        // A change of the appliance does not affect a record.
        let holds = |entry: &&Entry| entry.num_csx == num_csx && (record.is_some() || *entry.cluster == *cluster);
        if jobs.get(uid).is_some_and(|entry| holds(&entry))
            && let Some(entry) = jobs.get_mut(uid)
        {
            if let Understood::Pending(_) = entry.state {
                entry.done = entry.done.take().or(done);
            }
            return entry.state.clone();
        }
        let (began, cluster) = (Instant::now(), Arc::new(cluster.clone()));
        let state = Understood::Pending(began);
        jobs.insert(uid.to_owned(), Entry { num_csx, cluster: cluster.clone(), state: state.clone(), done });
        drop(jobs);
        let (shared, job, uid) = (self.shared.clone(), job.clone(), uid.to_owned());
        tokio::spawn(async move {
            let owner = format!("namespace/{}", job.namespace().unwrap_or_default());
            let (planner, planned_on) = (shared.clone(), cluster.clone());
            let job = Arc::new(job);
            let plan = move |may_plan: &MayPlan<'_>| {
                let limits = (&planner.plans, may_plan);
                understand(&job, record.clone(), &planned_on, num_csx, &*planner.site, limits).map(Arc::new)
            };
            let light = plan.clone();
            let light = shared.workers.run(&owner, move || light(&only_light));
            let planned = match light.await {
                Ok(Err(Unable::Busy(_))) => shared.workers.run_heavy(&owner, move || plan(&|_| Ok(()))).await,
                planned => planned,
            };
            let result = planned.unwrap_or_else(|failed| {
                tracing::error!(%uid, "the job can't be planned: {failed}");
                Err(Unable::BadParams(format!("planning the job failed in the appliance's own program: {failed}")))
            });
            // The entry may have been removed with the job, or replaced for another number of systems or another
            // appliance.
            let mut jobs = shared.jobs();
            let entry = jobs.get_mut(&uid).filter(|entry| Arc::ptr_eq(&entry.cluster, &cluster));
            let done = entry.and_then(|entry| {
                entry.state = Understood::Known(result);
                entry.done.take()
            });
            drop(jobs);
            if let Some(done) = done {
                done();
            }
        });
        state
    }

    /// Resolves and plans a job that does not exist yet, in the calling thread. Plans are computed only if `may_plan`
    /// allows it.
    ///
    /// # Errors
    /// The job can never run as it is, or [`Unable::Busy`].
    pub fn of_new(
        &self,
        job: &TrainJob,
        cluster: &ClusterSpec,
        may_plan: &MayPlan<'_>,
    ) -> std::result::Result<(Resolution, Needs), Unable> {
        let Shared { site, plans, .. } = &*self.shared;
        understand(job, None, cluster, job.spec.num_csx, &**site, (plans, may_plan))
    }

    /// Removes all jobs but these.
    pub fn keep(&self, which: impl Fn(&str) -> bool) {
        self.shared.jobs().retain(|uid, _| which(uid));
    }
}
