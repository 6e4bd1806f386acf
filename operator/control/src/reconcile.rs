//! Reconciles a job.
//!
//! ```text
//!  plan ──► dereference ──► decide ──► record_status ──► apply
//!   │                                       └─ write conflict: requeued, nothing is applied
//!   └─ not planned yet: the job is enqueued again when its plan is computed
//! ```
//!
//! * `plan` reads the cache of plans, `dereference` collects everything that the decision depends on,
//!   [`millrace_lifecycle::decide`] is pure, and `apply` carries out its commands.
//! * A decision is recorded before it is applied: the status names an attempt before its first agent exists.
//! * It is recorded with the version of the object that it was made from, so that one of two concurrent decisions is
//!   rejected.
//! * A job that is being deleted takes none of these steps: its agents are removed ([`World::finalize`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use millrace_crds::{
    Appliance, ApplianceSpec, ConditionType, Grant, JobState, QueueReason, QueueStatus, ResolvedJob,
    TRACEPARENT_ANNOTATION, TrainJob, TrainJobStatus,
};
use millrace_lifecycle::{
    CoordinatorReport, CreationError, JobCommand, JobDecision, JobObservation, LedgerEntry, ResizedAttempt,
    ResolutionError, decide, decide_deleted, is_waiting, target_systems,
};
use millrace_protocol::error_chain;
use millrace_traces::TraceParent;
use tokio::time::timeout;
use tracing::Instrument;

use crate::attempt::AttemptContext;
use crate::context::ControllerContext;
use crate::journal_follower::AttemptSize;
use crate::plan_cache::{self, PlanStatus};
use crate::record::{has_flexible_agents, resolved_job};
use crate::resolve_error::ResolveError;
use crate::world::{AgentsFound, Error, World};

/// Delay after a write conflict.
const CONFLICT_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Interval at which a job whose appliance is unknown is looked at again until all appliances are known.
const STORE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Bounds a reconcile. One that takes longer is aborted and repeated. Creating many pods takes a while; those that
/// exist by then stay.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(120);

/// Planning is shown in the job's status only if it takes longer than this.
const PLANNING_REPORT_DELAY: Duration = Duration::from_secs(2);

/// A job as it was dereferenced.
struct Dereferenced<T> {
    uid: String,
    found_agents: T,
    cluster: ApplianceSpec,
    observed: JobObservation,
}

/// The appliance of a job and the job's plan on it.
struct Validated {
    appliance: Option<Arc<Appliance>>,
    cluster: ApplianceSpec,
    /// `None` while the job is being planned.
    planned: Option<plan_cache::PlanResult>,
    /// Time until the plan is tried again, if the job can't be planned at present.
    retry_after: Option<Duration>,
}

/// Reconciles a job. Does nothing while its plan is being computed, or if the debouncer postpones it.
///
/// # Errors
/// The world's errors, or the job can't be run.
pub async fn reconcile<W: World>(job: Arc<TrainJob>, control: Arc<ControllerContext<W>>) -> Result<Action, Error<W>> {
    let began = Instant::now();
    let Some(uid) = job.uid() else { return Ok(Action::await_change()) };
    let _activity = control.job_activity.begin(ObjectRef::from_obj(&*job));
    let validated = match job.metadata.deletion_timestamp {
        Some(_) => None,
        None => match plan(&job, &uid, &control) {
            Ok(validated) => Some(validated),
            // The job is enqueued once its plan is computed.
            Err(requeue_after) => return Ok(requeue_after.map_or_else(Action::await_change, Action::requeue)),
        },
    };
    if let Err(wait) = control.job_changes.begin_reconcile(&uid, began) {
        control.job_activity.changed(ObjectRef::from_obj(&*job));
        return Ok(Action::requeue(wait));
    }
    let reconciling = async {
        match validated {
            Some(validated) => reconcile_job(&job, uid, validated, &control).await,
            None => finalize(&job, &uid, &control).await,
        }
    };
    let span = tracing::info_span!(
        "reconcile",
        job = %ObjectRef::from_obj(&*job),
        job.uid = job.uid(),
        attempt = tracing::field::Empty,
        state.before = tracing::field::Empty,
        state.after = tracing::field::Empty,
    );
    if let Some(parent) = submission(&job) {
        parent.adopt(&span);
    }
    let done = timeout(RECONCILE_TIMEOUT, reconciling.instrument(span))
        .await
        .unwrap_or(Err(crate::Error::TimedOut(RECONCILE_TIMEOUT)));
    control.metrics.record_reconcile(began.elapsed(), done.is_ok());
    done
}

/// Returns the span of the request that submitted the job, until its first attempt begins to train. Later reconciles
/// are traces of their own; otherwise one trace would grow for as long as the job runs. The annotation is untrusted:
/// every client that may write the job can set it.
fn submission(job: &TrainJob) -> Option<TraceParent> {
    let begins = |status: &TrainJobStatus| status.attempt.unwrap_or(0) <= 1 && status.progress.is_none();
    job.status.as_ref().is_none_or(begins).then(|| job.annotations().get(TRACEPARENT_ANNOTATION)?.parse().ok())?
}

/// Returns the plan of a job if it is cached. Otherwise queues it and returns, as the error, how long the reconcile may
/// be postponed; `None` means until the plan is computed. A waiting job that is planned for longer than
/// [`PLANNING_REPORT_DELAY`] is reconciled without a plan, so that its status shows it.
fn plan<W: World>(job: &TrainJob, uid: &str, control: &ControllerContext<W>) -> Result<Validated, Option<Duration>> {
    let appliance = control.appliance(&job.spec.appliance);
    if appliance.is_none() && !control.has_all_appliances() {
        // A new leader reads jobs and appliances at the same time: the appliance may exist.
        return Err(Some(STORE_POLL_INTERVAL));
    }
    let cluster = appliance.as_ref().map(|appliance| appliance.spec.clone()).unwrap_or_default();
    let num_csx = job.status.as_ref().and_then(|status| status.num_csx).unwrap_or(job.spec.num_csx);
    let (planned, retry_after) = match control.get_or_plan(job, uid, &cluster, num_csx) {
        PlanStatus::Ready(result) => (Some(result), None),
        PlanStatus::Unavailable { error, retry_after } => (Some(Err(error)), retry_after),
        PlanStatus::Pending(_) if !is_waiting(job) => return Err(None),
        PlanStatus::Pending(since) => match PLANNING_REPORT_DELAY.checked_sub(since.elapsed()) {
            Some(remaining) => return Err(Some(remaining)),
            None => (None, None),
        },
    };
    Ok(Validated { appliance, cluster, planned, retry_after })
}

/// Reconciles a deleted job. Its systems are released in the ledger once its agents no longer exist.
async fn finalize<W: World>(job: &TrainJob, uid: &str, control: &ControllerContext<W>) -> Result<Action, Error<W>> {
    control.followers.end(uid);
    let requeue_after = control.world.finalize(job).await?;
    if let Some(decision) = decide_deleted(job, Timestamp::now())
        && control.world.record_status(job, &decision.status).await?
    {
        for event in &decision.events {
            control.world.publish_job_event(job, event).await;
        }
    }
    Ok(requeue_after.map_or_else(Action::await_change, Action::requeue))
}

async fn reconcile_job<W: World>(
    job: &TrainJob,
    uid: String,
    validated: Validated,
    control: &ControllerContext<W>,
) -> Result<Action, Error<W>> {
    let _guard = control.begin_reconcile(&uid);
    let retry_after = validated.retry_after;
    let dereferenced = dereference(job, control, uid, validated).await?;
    let decision = decide(job, &dereferenced.observed);
    if !control.world.record_status(job, &decision.status).await? {
        // Write conflict: the decision was made from a stale version.
        return Ok(Action::requeue(CONFLICT_RETRY_INTERVAL));
    }
    record_span_fields(job, &decision);
    let granted = control.grant(&job.spec.appliance, &dereferenced.uid).and_then(|grant| Some(grant.since?.0));
    control.metrics.record_status_change(job, &decision.status, granted, dereferenced.observed.now);
    for event in &decision.events {
        control.world.publish_job_event(job, event).await;
    }
    match apply(job, control, &dereferenced, &decision).await {
        // The next reconcile, which is due at once, decides about a new rejection. If the attempt continues despite a
        // rejection, it has all its agents, and the rejected request was for another object: return the error, and
        // retry after an interval.
        Err(Error::<W>::Refused(error))
            if !decision.status.is(ConditionType::Progressing)
                && dereferenced.observed.creation_error.as_ref().is_none_or(|error| error.is_temporary) =>
        {
            let error = error_chain(&*error);
            tracing::warn!(job = %ObjectRef::from_obj(job), "an object of the attempt was rejected: {error}");
            return Ok(Action::requeue(CONFLICT_RETRY_INTERVAL));
        }
        done => done?,
    }
    let requeue_after = decision.requeue_after.map(Duration::from_secs);
    Ok(requeue_after.into_iter().chain(retry_after).min().map_or_else(Action::await_change, Action::requeue))
}

/// Records states and attempt in the span of a reconcile.
fn record_span_fields(job: &TrainJob, decision: &JobDecision) {
    let span = tracing::Span::current();
    let state = |status: Option<&TrainJobStatus>| status.and_then(TrainJobStatus::state).map(JobState::as_str);
    span.record("state.before", state(job.status.as_ref()));
    span.record("state.after", state(Some(&decision.status)));
    span.record("attempt", decision.status.attempt);
}

/// Collects the observation that the decision is made from.
async fn dereference<W: World>(
    job: &TrainJob,
    control: &ControllerContext<W>,
    uid: String,
    Validated { appliance, cluster, planned, .. }: Validated,
) -> Result<Dereferenced<W::Handle>, Error<W>> {
    let AgentsFound { agents, termination_report: last, handle: found_agents } = control.world.observe(job).await?;
    let grant = appliance.as_ref().and_then(|_| control.grant(&job.spec.appliance, &uid));
    let attempt = job.status.as_ref().and_then(|status| status.attempt).unwrap_or(0);
    let queue_place = match &appliance {
        Some(_) => control.queue_place(&uid),
        None => Some(no_appliance(&job.spec.appliance)),
    };
    let plan = planned.as_ref().and_then(|planned| planned.as_ref().ok());
    let grant = grant.map(|Grant { attempt, systems, resizes, .. }| LedgerEntry { attempt, systems, resizes });
    let resized_attempt = resized_attempt(job, control, (&uid, &cluster), grant.as_ref());
    let observed = JobObservation {
        now: Timestamp::now(),
        agents,
        are_agents_replaceable: W::AGENTS_ARE_REPLACEABLE && has_flexible_agents(job),
        is_resizable: has_flexible_agents(job),
        resized_attempt,
        grant,
        queue_place,
        report: report(control.followers.report(&uid, attempt), last.filter(|last| last.attempt == attempt)),
        resolution: planned
            .as_ref()
            .map(|planned| planned.as_ref().map(|planned| planned.record.clone()).map_err(resolution_error)),
        creation_error: control.creation_error(&uid, attempt),
        max_deadlines: cluster.max_deadlines,
        agents_refused: control.plan_cache.unsupported_agents(job),
        largest_num_csx: plan.map(|planned| planned.needs.largest_num_csx),
        desired_agents: plan.map(|planned| planned.needs.wanted.clone()).unwrap_or_default(),
        memoryx_shards: plan.map_or(0, |planned| planned.needs.memoryx_shards),
    };
    Ok(Dereferenced { uid, found_agents, cluster, observed })
}

/// Plans the running attempt of `job` on the number of systems that it is to have; `None` if no attempt runs, or while
/// the plan is computed.
fn resized_attempt<W: World>(
    job: &TrainJob,
    control: &ControllerContext<W>,
    (uid, cluster): (&str, &ApplianceSpec),
    grant: Option<&LedgerEntry>,
) -> Option<Result<ResizedAttempt, ResolutionError>> {
    let num_csx = target_systems(job, grant)?;
    let planned = control.get_or_plan(job, uid, cluster, num_csx).ready()?;
    let resized = planned.map(|planned| ResizedAttempt { num_csx, agents: planned.needs.wanted.clone() });
    Some(resized.map_err(|error| resolution_error(&error)))
}

/// Returns the message to the user about a job that can't be run.
fn resolution_error(error: &ResolveError) -> ResolutionError {
    ResolutionError { message: error_chain(error), is_temporary: matches!(error, ResolveError::Unavailable(_)) }
}

fn no_appliance(name: &str) -> QueueStatus {
    QueueStatus {
        position: None,
        reason: Some(QueueReason::NoAppliance.as_str().to_owned()),
        message: Some(format!("Appliance {name} not found: create it, or name another in spec.appliance")),
    }
}

/// Merges the coordinator's report: `received` is from its stream, `last` is the report that it wrote when it ended.
fn report(received: Option<CoordinatorReport>, last: Option<CoordinatorReport>) -> Option<CoordinatorReport> {
    match (received, last) {
        (Some(received), Some(last)) if received.outcome.is_none() => {
            let checkpoint = last.checkpoint.or(received.checkpoint.clone());
            Some(CoordinatorReport {
                outcome: last.outcome,
                saved: received.saved || last.saved,
                checkpoint,
                ..received
            })
        }
        (None, last) => last,
        (received, _) => received,
    }
}

async fn apply<W: World>(
    job: &TrainJob,
    control: &ControllerContext<W>,
    dereferenced: &Dereferenced<W::Handle>,
    decision: &JobDecision,
) -> Result<(), Error<W>> {
    for command in &decision.commands {
        match command {
            JobCommand::RunAgents { attempt, num_csx } => {
                let resolution = &decision.status.current_phase().ok_or(Error::<W>::Unresolved)?;
                // If the plan is not cached, the next reconcile decides on this command again.
                let Some(planned) =
                    control.get_or_plan(job, &dereferenced.uid, &dereferenced.cluster, *num_csx).ready()
                else {
                    continue;
                };
                let planned = planned.map_err(Error::<W>::Resolve)?;
                let number = *attempt;
                let systems = &decision.status.systems;
                let attempt = AttemptContext {
                    job,
                    resolution,
                    cluster: &dereferenced.cluster,
                    number,
                    needs: &planned.needs,
                    systems,
                };
                let span = tracing::info_span!("launch", attempt = number, systems = systems.len());
                let created = control.world.ensure_agents(&attempt, &dereferenced.found_agents).instrument(span).await;
                control.set_creation_error(&dereferenced.uid, number, created.as_ref().err().map(creation_error::<W>));
                created?;
                // The coordinator's address may be known only now. A job that runs for a second has reported everything
                // before a second reconcile.
                follow(job, control, Some(resolution), number);
                if has_flexible_agents(job) {
                    let size = AttemptSize { num_csx: *num_csx, min_csx: job.spec.min_csx };
                    control.followers.resize(&dereferenced.uid, number, size);
                }
            }
            JobCommand::FollowCoordinator { attempt } => {
                follow(job, control, decision.status.current_phase().as_ref(), *attempt)
            }
            JobCommand::StopAttempt { attempt, reason } => {
                // After a restart of the control loop, the coordinator is not followed yet.
                follow(job, control, decision.status.current_phase().as_ref(), *attempt);
                control.followers.stop(&dereferenced.uid, *attempt, reason);
            }
            JobCommand::RemoveAgents { grace } => {
                control.world.remove_agents(job, &dereferenced.found_agents, *grace).await?
            }
            JobCommand::RemoveAgent { instance, grace } => {
                control.world.remove_agent(job, &dereferenced.found_agents, instance, *grace).await?
            }
            JobCommand::DeleteJob => control.world.delete_job(job).await?,
        }
    }
    if decision.commands.is_empty() && decision.status.num_csx.is_none() {
        control.followers.end(&dereferenced.uid);
    }
    Ok(())
}

/// Returns the message to the user about an attempt whose objects could not all be created.
fn creation_error<W: World>(error: &Error<W>) -> CreationError {
    CreationError {
        message: error_chain(error),
        is_temporary: !matches!(error, Error::<W>::Refused(_)),
        is_of_uploads: matches!(error, Error::<W>::Uploads(_)),
    }
}

/// Follows the attempt's coordinator, if it is not followed yet.
fn follow<W: World>(job: &TrainJob, control: &ControllerContext<W>, resolution: Option<&ResolvedJob>, attempt: u32) {
    let Some(resolution) = resolution else { return };
    // The coordinator's reports are received even if this program can't read the record.
    let resolved = resolved_job(resolution).ok().map(|(resolved, _)| resolved);
    control.followers.follow(job, attempt, resolved.as_ref());
}
