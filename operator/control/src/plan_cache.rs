//! Caches the record and needs of each job, by UID; computes them in the background.
//!
//! * An entry is for one number of systems. It is replaced if another number is requested or, for a job without a
//!   record, if the specification of the appliance has changed.
//! * Entries of deleted jobs are removed by [`PlanCache::retain`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kube::ResourceExt;
use millrace_crds::{ApplianceSpec, ResolvedJob, TrainJob};

use crate::plan_compiler::{MAX_LIGHT_PLAN_BYTES, PlanBudget, PlanCompiler};
use crate::record::resolved_version;
use crate::requirements::ResourceRequirements;
use crate::resolve::resolve_and_plan;
use crate::resolve_error::{InvalidJob, OverBudget, ResolveError};
use crate::workers::WorkerPool;
use crate::world::JobSite;

/// A planned job.
#[derive(Clone, Debug)]
pub struct PlannedJob {
    /// The job's record, or the record that it would get.
    pub record: ResolvedJob,
    /// What an attempt needs.
    pub needs: ResourceRequirements,
}

/// The result of planning a job; an error says why it can never run.
pub type PlanResult = std::result::Result<Arc<PlannedJob>, ResolveError>;

/// State of planning a job.
#[derive(Clone, Debug)]
pub enum PlanStatus {
    /// The job is planned, or can never run.
    Ready(PlanResult),
    /// The plan is queued or being computed, since this time.
    Pending(Instant),
}

impl PlanStatus {
    /// Returns the result; `None` while it is pending.
    pub fn ready(self) -> Option<PlanResult> {
        match self {
            Self::Ready(result) => Some(result),
            Self::Pending(_) => None,
        }
    }
}

/// A limit for [`PlanCompiler::plan`] that admits only plans that are computed at once.
///
/// # Errors
/// It is a larger one, to be computed by [`WorkerPool::run_heavy`].
pub fn reject_heavy(bytes: u64) -> std::result::Result<(), OverBudget> {
    if bytes <= MAX_LIGHT_PLAN_BYTES { Ok(()) } else { Err(OverBudget::Heavy { bytes }) }
}

/// Callback for a computed result.
pub type OnPlanned = Box<dyn FnOnce() + Send>;

/// The cache of plans. Clones share it.
#[derive(Clone)]
pub struct PlanCache {
    shared: Arc<Shared>,
}

struct Shared {
    site: Arc<dyn JobSite>,
    workers: WorkerPool,
    plans: PlanCompiler,
    jobs: Mutex<HashMap<String, CacheEntry>>,
}

/// The cached result of a job.
struct CacheEntry {
    num_csx: u32,
    /// The appliance it was computed for.
    cluster: Arc<ApplianceSpec>,
    state: PlanStatus,
    done: Option<OnPlanned>,
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, HashMap<String, CacheEntry>> {
        // The map holds complete values only, so it is consistent after any panic.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PlanCache {
    /// Creates an empty cache for the jobs of `site`, whose plans are computed by `workers`.
    pub fn new(site: Arc<dyn JobSite>, workers: WorkerPool) -> Self {
        Self { shared: Arc::new(Shared { site, workers, plans: PlanCompiler::default(), jobs: Mutex::default() }) }
    }

    /// Returns the threads that compute plans.
    pub fn workers(&self) -> &WorkerPool {
        &self.shared.workers
    }

    /// Returns why the agents of the job's release are not supported, so that no attempt may begin; `None` if they are
    /// supported or the job has no record.
    pub fn unsupported_agents(&self, job: &TrainJob) -> Option<String> {
        let record = job.status.as_ref()?.resolved.as_ref()?;
        self.shared.site.unsupported_agents(resolved_version(record))
    }

    /// Returns the result for `job` on `num_csx` systems. If it is not cached, queues its computation and calls `done`
    /// afterwards; of several callbacks, only the first is called. Namespaces share the threads. Must be called within
    /// a Tokio runtime.
    pub fn get_or_plan(
        &self,
        job: &TrainJob,
        uid: &str,
        cluster: &ApplianceSpec,
        num_csx: u32,
        done: Option<OnPlanned>,
    ) -> PlanStatus {
        let record = job.status.as_ref().and_then(|status| status.resolved.clone());
        let mut jobs = self.shared.jobs();
        // A change of the appliance does not affect a record.
        let holds = |entry: &&CacheEntry| entry.num_csx == num_csx && (record.is_some() || *entry.cluster == *cluster);
        if jobs.get(uid).is_some_and(|entry| holds(&entry))
            && let Some(entry) = jobs.get_mut(uid)
        {
            if let PlanStatus::Pending(_) = entry.state {
                entry.done = entry.done.take().or(done);
            }
            return entry.state.clone();
        }
        let (began, cluster) = (Instant::now(), Arc::new(cluster.clone()));
        let state = PlanStatus::Pending(began);
        jobs.insert(uid.to_owned(), CacheEntry { num_csx, cluster: cluster.clone(), state: state.clone(), done });
        drop(jobs);
        let (shared, job, uid) = (self.shared.clone(), job.clone(), uid.to_owned());
        tokio::spawn(async move {
            let owner = format!("namespace/{}", job.namespace().unwrap_or_default());
            let (planner, planned_on) = (shared.clone(), cluster.clone());
            let job = Arc::new(job);
            let plan = move |may_plan: &PlanBudget<'_>| {
                let limits = (&planner.plans, may_plan);
                resolve_and_plan(&job, record.clone(), &planned_on, num_csx, &*planner.site, limits)
                    .map(|(record, needs)| Arc::new(PlannedJob { record, needs }))
            };
            let light = plan.clone();
            let light = shared.workers.run(&owner, move || light(&reject_heavy));
            let planned = match light.await {
                Ok(Err(ResolveError::Overloaded(_))) => {
                    shared.workers.run_heavy(&owner, move || plan(&|_| Ok(()))).await
                }
                planned => planned,
            };
            let result = planned.unwrap_or_else(|failed| {
                tracing::error!(%uid, "the job can't be planned: {failed}");
                Err(InvalidJob::Aborted(failed).into())
            });
            // The entry may have been removed with the job, or replaced for another number of systems or another
            // appliance.
            let mut jobs = shared.jobs();
            let entry = jobs.get_mut(&uid).filter(|entry| Arc::ptr_eq(&entry.cluster, &cluster));
            let done = entry.and_then(|entry| {
                entry.state = PlanStatus::Ready(result);
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
    /// The job can never run as it is, or [`ResolveError::Overloaded`].
    pub fn plan_uncached(
        &self,
        job: &TrainJob,
        cluster: &ApplianceSpec,
        may_plan: &PlanBudget<'_>,
    ) -> std::result::Result<(ResolvedJob, ResourceRequirements), ResolveError> {
        let Shared { site, plans, .. } = &*self.shared;
        resolve_and_plan(job, None, cluster, job.spec.num_csx, &**site, (plans, may_plan))
    }

    /// Removes all jobs but these.
    pub fn retain(&self, which: impl Fn(&str) -> bool) {
        self.shared.jobs().retain(|uid, _| which(uid));
    }
}
