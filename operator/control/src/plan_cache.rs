//! Caches the record and needs of each job, by UID; computes them in the background.
//!
//! * An entry is for one number of systems and one phase of the job. The most recent entries of a job are kept; for a
//!   job without a record, those of the current specification of the appliance.
//! * A plan whose graph document can't be read at present is computed again after a backoff, when it is requested.
//! * Entries of deleted jobs are removed by [`PlanCache::retain`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::ResourceExt;
use millrace_crds::{ApplianceSpec, ResolvedJob, TrainJob, TrainJobStatus};

use crate::plan_compiler::{MAX_LIGHT_PLAN_BYTES, PlanBudget, PlanCompiler};
use crate::record::resolved_version;
use crate::requirements::ResourceRequirements;
use crate::resolve::resolve_and_plan;
use crate::resolve_error::{InvalidJob, OverBudget, ResolveError};
use crate::workers::WorkerPool;
use crate::world::JobSite;

/// Backoff after the first plan of a job whose graph document can't be read, which doubles with each; the server of
/// uploads may be starting.
const MIN_UNAVAILABLE_BACKOFF: Duration = Duration::from_secs(1);
/// Longest of these backoffs: such a job is planned soon after the server is back.
const MAX_UNAVAILABLE_BACKOFF: Duration = Duration::from_secs(15);

/// Maximum entries of a job. A job that is being resized needs those of the systems that it holds, uses, and requests.
const MAX_SIZES_PER_JOB: usize = 4;

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
    /// The job can't be planned at present.
    Unavailable {
        /// Why: [`ResolveError::Unavailable`].
        error: ResolveError,
        /// Time until it is planned again if that is requested; `None` while it is being planned.
        retry_after: Option<Duration>,
    },
}

impl PlanStatus {
    /// Returns the result, or why there is none at present; `None` while it is pending.
    pub fn ready(self) -> Option<PlanResult> {
        match self {
            Self::Ready(result) => Some(result),
            Self::Unavailable { error, .. } => Some(Err(error)),
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
    /// Entries of each job, the most recent ones last.
    jobs: Mutex<HashMap<String, Vec<CacheEntry>>>,
}

/// The cached result of a job.
struct CacheEntry {
    num_csx: u32,
    /// Phases of the job that were complete.
    completed_phases: u32,
    /// The appliance it was computed for.
    cluster: Arc<ApplianceSpec>,
    state: EntryState,
    done: Option<OnPlanned>,
}

/// State of an entry.
enum EntryState {
    /// Being computed, since this time.
    Pending(Instant),
    Ready(PlanResult),
    /// This many computations in a row have failed. The next may begin at this time; `None` while it runs.
    Unavailable {
        error: ResolveError,
        failures: u32,
        retry_at: Option<Instant>,
    },
}

impl EntryState {
    fn status(&self) -> PlanStatus {
        match self {
            Self::Pending(since) => PlanStatus::Pending(*since),
            Self::Ready(result) => PlanStatus::Ready(result.clone()),
            Self::Unavailable { error, retry_at, .. } => {
                let retry_after = retry_at.map(|time| time.saturating_duration_since(Instant::now()));
                PlanStatus::Unavailable { error: error.clone(), retry_after }
            }
        }
    }

    fn is_computed_now(&self) -> bool {
        matches!(self, Self::Pending(_) | Self::Unavailable { retry_at: None, .. })
    }

    /// Returns whether the next computation is due; marks it as running then.
    fn begin_retry(&mut self) -> bool {
        match self {
            Self::Unavailable { retry_at, .. } if retry_at.is_some_and(|at| at <= Instant::now()) => {
                *retry_at = None;
                true
            }
            _ => false,
        }
    }

    /// Returns the state after a computation.
    fn after(&self, result: PlanResult) -> Self {
        let Err(error @ ResolveError::Unavailable(_)) = result else { return Self::Ready(result) };
        let failures = if let Self::Unavailable { failures, .. } = self { failures.saturating_add(1) } else { 1 };
        let factor = 2_u32.saturating_pow(failures - 1);
        let backoff = MIN_UNAVAILABLE_BACKOFF.saturating_mul(factor).min(MAX_UNAVAILABLE_BACKOFF);
        Self::Unavailable { error, failures, retry_at: Some(Instant::now() + backoff) }
    }
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, HashMap<String, Vec<CacheEntry>>> {
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
        let completed_phases = job.status.as_ref().map_or(0, TrainJobStatus::completed_phase_count);
        let mut jobs = self.shared.jobs();
        let entries = jobs.entry(uid.to_owned()).or_default();
        // A change of the appliance does not affect a record.
        entries.retain(|entry| record.is_some() || *entry.cluster == *cluster);
        entries.retain(|entry| entry.completed_phases == completed_phases);
        if let Some(entry) = entries.iter_mut().find(|entry| entry.num_csx == num_csx) {
            let is_due = entry.state.begin_retry();
            if entry.state.is_computed_now() {
                entry.done = entry.done.take().or(done);
            }
            let (status, cluster) = (entry.state.status(), entry.cluster.clone());
            drop(jobs);
            if is_due {
                self.compute(job, uid, cluster, num_csx);
            }
            return status;
        }
        let (state, cluster) = (EntryState::Pending(Instant::now()), Arc::new(cluster.clone()));
        let status = state.status();
        if entries.len() >= MAX_SIZES_PER_JOB {
            entries.remove(0);
        }
        entries.push(CacheEntry { num_csx, completed_phases, cluster: cluster.clone(), state, done });
        drop(jobs);
        self.compute(job, uid, cluster, num_csx);
        status
    }

    /// Computes the plan of an entry in the background.
    fn compute(&self, job: &TrainJob, uid: &str, cluster: Arc<ApplianceSpec>, num_csx: u32) {
        let record = job.status.as_ref().and_then(|status| status.resolved.clone());
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
            // The entry may have been removed: with the job, for other numbers of systems, or for another appliance.
            let mut jobs = shared.jobs();
            let entries = jobs.get_mut(&uid).map(Vec::as_mut_slice).unwrap_or_default();
            let entry = entries.iter_mut().find(|entry| Arc::ptr_eq(&entry.cluster, &cluster));
            let done = entry.and_then(|entry| {
                entry.state = entry.state.after(result);
                entry.done.take()
            });
            drop(jobs);
            if let Some(done) = done {
                done();
            }
        });
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use tokio::sync::mpsc;

    use super::*;
    use crate::job_graph::testing::{FailingUploads, job_with_graph};

    #[tokio::test]
    async fn unreadable_document_delays_the_plan_only() {
        let (job, uploads) = job_with_graph();
        let site = Arc::new(FailingUploads { uploads, failures: AtomicU32::new(1) });
        let cache = PlanCache::new(site, WorkerPool::new(1));
        let (planned, mut computed) = mpsc::unbounded_channel();
        let request = || {
            let planned = planned.clone();
            let done: OnPlanned = Box::new(move || planned.send(()).unwrap());
            cache.get_or_plan(&job, "uid", &ApplianceSpec::default(), 2, Some(done))
        };
        assert!(matches!(request(), PlanStatus::Pending(_)));
        computed.recv().await.unwrap();
        let PlanStatus::Unavailable { error, retry_after: Some(retry_after) } = request() else { panic!("no backoff") };
        assert_eq!(error.to_string(), "the server does not answer");
        assert!(retry_after <= MIN_UNAVAILABLE_BACKOFF && computed.try_recv().is_err());
        let deadline = Instant::now() + 10 * MIN_UNAVAILABLE_BACKOFF;
        while !matches!(request(), PlanStatus::Unavailable { retry_after: None, .. }) {
            assert!(Instant::now() < deadline, "no retry");
            tokio::task::yield_now().await;
        }
        computed.recv().await.unwrap();
        assert!(matches!(request(), PlanStatus::Ready(Ok(_))), "the error is not cached");
    }

    #[test]
    fn backoff_of_an_unreadable_document_doubles() {
        let failed = || Err(crate::DocumentError::Unavailable("no".into()).into());
        let mut state = EntryState::Pending(Instant::now());
        let mut backoffs = Vec::new();
        for _ in 0..6 {
            state = state.after(failed());
            let PlanStatus::Unavailable { retry_after: Some(after), .. } = state.status() else { panic!("no backoff") };
            backoffs.push(after.as_secs_f64().round() as u64);
        }
        assert_eq!(backoffs, [1, 2, 4, 8, 15, 15]);
    }
}
