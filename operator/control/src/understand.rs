//! What jobs come to: found out once for each number of systems, in the background, and remembered.

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

/// A job's record, or what it would become, and what an attempt needs; or why it can never run.
pub type Result = std::result::Result<Arc<(Resolution, Needs)>, Unable>;

/// How far the planning of a job is.
#[derive(Clone, Debug)]
pub enum Understood {
    /// It is done.
    Known(Result),
    /// It waits for its turn, or computes, since then.
    Pending(Instant),
}

impl Understood {
    /// What is known; nothing while it is pending.
    pub fn known(self) -> Option<Result> {
        match self {
            Self::Known(result) => Some(result),
            Self::Pending(_) => None,
        }
    }
}

/// Lets only those plans be made that are made at once.
///
/// # Errors
/// It is another one, to be made by [`Workers::run_heavy`].
pub fn only_light(bytes: u64) -> std::result::Result<(), String> {
    if bytes <= LIGHT_PLAN_BYTES { Ok(()) } else { Err(format!("a plan of {bytes} bytes is heavy work")) }
}

/// Called when something is found out.
pub type Done = Box<dyn FnOnce() + Send>;

/// See the module text. Clones share what is remembered.
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

/// What a job comes to on a number of systems.
struct Entry {
    num_csx: u32,
    /// The appliance it was understood on.
    cluster: Arc<ClusterSpec>,
    state: Understood,
    done: Option<Done>,
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // A map of finished values: whole after any panic.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Understanding {
    /// Of jobs whose paths lie at `site`, planned by `workers`.
    pub fn new(site: Arc<dyn Site>, workers: Workers) -> Self {
        Self { shared: Arc::new(Shared { site, workers, plans: Plans::default(), jobs: Mutex::default() }) }
    }

    /// The threads that plan.
    pub fn workers(&self) -> &Workers {
        &self.shared.workers
    }

    /// Why no other attempt of `job` may begin with the agents of its record, if it has a record and none may.
    pub fn agents_refused(&self, job: &TrainJob) -> Option<String> {
        let record = job.status.as_ref()?.resolved.as_ref()?;
        self.shared.site.agents_refused(version_of(record))
    }

    /// What `job` comes to on `num_csx` systems. Where that is not known yet it is found out from now on, jobs of each
    /// namespace in turn, and `done` is called then; of several the first. To be called within a runtime.
    pub fn of(&self, job: &TrainJob, uid: &str, cluster: &ClusterSpec, num_csx: u32, done: Option<Done>) -> Understood {
        let record = job.status.as_ref().and_then(|status| status.resolved.clone());
        let mut jobs = self.shared.jobs();
        // What is on record no change of the appliance concerns.
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
            // Unless the job is gone, or another number of systems is asked about by now.
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

    /// What a job that does not exist yet would come to, in the calling thread. Plans that must be made are made only
    /// if `may_plan` allows it.
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

    /// Remembers only these jobs any more.
    pub fn keep(&self, which: impl Fn(&str) -> bool) {
        self.shared.jobs().retain(|uid, _| which(uid));
    }
}
