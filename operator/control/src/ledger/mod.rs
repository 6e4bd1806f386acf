//! Reconciles appliances: maintains the ledger, which records the systems of every attempt, and the queue.
//!
//! One reconcile serves all jobs of an appliance, so that two of them never get the same system.
//!
//! * A grant is for one attempt of one job. It is written, with the version of the appliance that it was decided from,
//!   before the job uses it by raising its `attempt`.
//! * A grant is removed when the job has released that attempt, which happens when the attempt's last agent no longer
//!   exists, or when neither the job nor any of its agents exists. Once one of these facts is true it stays true, so a
//!   stale store of jobs can only keep a grant too long.
//! * The grants in the appliance's status are checked against the jobs each time ([`millrace_lifecycle::ledger`]):
//!   they may have been lost with the object, or edited.
//! * A job uses a grant only after this leader has confirmed it, never because of the appliance's status alone.

mod conditions;
mod grants;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use millrace_crds::{Appliance, ApplianceStatus, ConditionType, Grant, QueueStatus, TrainJob};
use millrace_lifecycle::ledger::{Allocations, JobAllocation, LedgerInputs, compute_allocations};
use millrace_lifecycle::{QueueEntry, used_resources};
use tokio::time::timeout;
use tracing::Instrument;

use self::conditions::{appliance_events, update_conditions, update_matches_values};
use self::grants::{LedgerDecision, decide};
pub use self::grants::{capacity, resized_grant, system_request};
use crate::context::ControllerContext;
use crate::world::{Error, World};

/// Interval of reconciles of an appliance without any change: corrects the effect of missed events.
const LEDGER_RESYNC_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum age at which `lastObservedTime` of an unchanged status is renewed: a little less than
/// [`LEDGER_RESYNC_INTERVAL`], so that every heartbeat writes it.
const STATUS_REFRESH_INTERVAL: Duration = Duration::from_secs(25);
/// Bounds an update. One that takes longer is aborted and repeated: every job of the appliance waits for it.
const LEDGER_UPDATE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of reconciles while agents of deleted jobs hold systems: their end causes no event.
const LINGERING_AGENTS_INTERVAL: Duration = Duration::from_secs(2);
/// Delay after a write conflict.
const CONFLICT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of reconciles while a queued job is being planned: the job enters the queue after that.
const PLANNING_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Updates an appliance's ledger and queue.
///
/// # Errors
/// The world's errors, or a timeout.
pub async fn reconcile<W: World>(
    appliance: Arc<Appliance>,
    control: Arc<ControllerContext<W>>,
) -> Result<Action, Error<W>> {
    let began = Instant::now();
    let _activity = control.appliance_activity.begin(ObjectRef::from_obj(&*appliance));
    if let Err(wait) = control.ledger_changes.begin_reconcile(&appliance.name_any(), began) {
        control.appliance_activity.changed(ObjectRef::from_obj(&*appliance));
        return Ok(Action::requeue(wait));
    }
    let span = tracing::info_span!("update ledger", appliance = appliance.name_any());
    let done = timeout(LEDGER_UPDATE_TIMEOUT, update(&appliance, &control).instrument(span)).await;
    let done = done.unwrap_or(Err(crate::Error::TimedOut(LEDGER_UPDATE_TIMEOUT)));
    control.metrics.record_appliance_reconcile(began.elapsed(), done.is_ok());
    done
}

async fn update<W: World>(appliance: &Appliance, control: &ControllerContext<W>) -> Result<Action, Error<W>> {
    control.await_jobs().await;
    let name = appliance.name_any();
    control.prune_deleted_jobs();
    let now = Timestamp::now();
    let jobs: Vec<Arc<TrainJob>> = control.jobs.state().into_iter().filter(|job| job.spec.appliance == name).collect();
    let old = appliance.status.clone().unwrap_or_default();
    let Some(Allocations { grants: mut ledger, adopted, rejected }) =
        read_allocations(appliance, &jobs, control).await?
    else {
        return Ok(Action::requeue(PLANNING_POLL_INTERVAL));
    };
    let has_deleted_jobs = ledger.iter().any(|grant| live_job_of(&jobs, grant).is_none());

    let machine = appliance.spec.machine.resolve();
    let capacity = machine.as_ref().map(capacity).ok();
    let LedgerDecision { schedule: decided, pending, incomplete, next_due } =
        decide(appliance, capacity.as_ref(), &jobs, &ledger, control).await?;
    ledger.retain(|held| decided.grants.iter().all(|grant| grant.uid != held.uid));
    let since = |grant: &Grant| grant.since.clone().or(Some(Time(now)));
    ledger.extend(decided.grants.iter().map(|grant| Grant { since: since(grant), ..grant.clone() }));

    // The protection is set before the first grant is written, and kept until the ledger without grants is written.
    let in_use = !ledger.is_empty() || !old.grants.is_empty();
    if control.world.set_in_use(appliance, in_use).await? {
        return Ok(Action::requeue(CONFLICT_RETRY_INTERVAL));
    }
    let mut status = old.clone();
    let spec_error = machine.err().map(|error| error.report().trim_end().to_owned());
    update_conditions(&mut status, appliance, capacity.as_ref(), &ledger, spec_error, now);
    update_matches_values(&mut status, appliance, control.world.manual_edits(appliance), now);
    status.observed_generation = appliance.metadata.generation;
    status.capacity = capacity.or(status.capacity);
    status.used = Some(used_resources(&ledger));
    if !incomplete {
        status.waiting = u32::try_from(decided.places.len()).ok();
    }
    status.grants.clone_from(&ledger);
    status.last_observed_time = last_observed(&old, &status, now);
    let is_heartbeat = status.last_observed_time != old.last_observed_time;
    let events = appliance_events(&old, &status, &adopted, &rejected);
    if !control.world.record_ledger(appliance, status).await? {
        control.metrics.ledger_conflict();
        return Ok(Action::requeue(CONFLICT_RETRY_INTERVAL));
    }
    control.set_confirmed_ledger(&name, ledger.clone());
    control.metrics.record_ledger_update(&name);
    enqueue_granted(&jobs, &ledger, control);
    for event in &events {
        control.world.publish_appliance_event(appliance, event).await;
    }
    if !incomplete {
        enqueue_moved_in_queue(&jobs, decided.places, is_heartbeat, control);
    }
    let poll_interval = match (pending, has_deleted_jobs) {
        (true, _) => PLANNING_POLL_INTERVAL,
        (false, true) => LINGERING_AGENTS_INTERVAL,
        (false, false) => LEDGER_RESYNC_INTERVAL,
    };
    Ok(Action::requeue(next_due.map_or(poll_interval, |due| due.min(poll_interval))))
}

/// Returns the new `lastObservedTime`: now, unless the same status was written less than [`STATUS_REFRESH_INTERVAL`]
/// ago.
fn last_observed(old: &ApplianceStatus, new: &ApplianceStatus, now: Timestamp) -> Option<Time> {
    let is_recent = |time: &Time| now.duration_since(time.0).unsigned_abs() < STATUS_REFRESH_INTERVAL;
    match &old.last_observed_time {
        Some(time) if old == new && is_recent(time) => Some(time.clone()),
        _ => Some(Time(now)),
    }
}

/// Returns the grants that hold before new ones are decided; `None` while that depends on a plan that is being
/// computed.
async fn read_allocations<W: World>(
    appliance: &Appliance,
    jobs: &[Arc<TrainJob>],
    control: &ControllerContext<W>,
) -> Result<Option<Allocations>, Error<W>> {
    let name = appliance.name_any();
    let confirmed = control.confirmed_ledger(&name);
    let left_behind = match &confirmed {
        Some(_) => Vec::new(),
        // This leader has confirmed nothing yet: only the agents of deleted jobs record what these hold.
        None => control.world.leftover_grants(&name).await?,
    };
    let mut holders: Vec<JobAllocation> = jobs.iter().filter_map(|job| job_allocation(job)).collect();
    let recorded = appliance.status.as_ref().map(|status| status.grants.clone()).unwrap_or_default();
    let confirmed = confirmed.unwrap_or_default();
    let known =
        LedgerInputs { jobs: &[], confirmed: &confirmed, recorded: &recorded, departed_agents_grants: &left_behind };
    for (holder, job) in holders.iter_mut().zip(jobs.iter().filter(|job| job.uid().is_some())) {
        if !holder.systems.is_empty() && !known.has(holder) {
            let num_csx = u32::try_from(holder.systems.len()).unwrap_or(u32::MAX);
            match control.get_or_plan(job, &holder.uid, &appliance.spec, num_csx).ready() {
                Some(Ok(planned)) => {
                    (holder.memoryx_bytes, holder.swarmx_nodes) =
                        (planned.needs.memoryx_bytes, planned.needs.swarmx_nodes);
                }
                Some(Err(_)) => {}
                None => return Ok(None),
            }
        }
    }
    let records = LedgerInputs { jobs: &holders, ..known };
    let mut still_running = BTreeSet::new();
    for (uid, namespace) in records.departed_jobs() {
        // A reconcile that began before the deletion was seen may be creating agents.
        if control.is_reconciling(&uid) || control.world.has_leftover_agents(&namespace, &uid).await? {
            still_running.insert(uid);
        }
    }
    Ok(Some(compute_allocations(&records, &still_running)))
}

/// Returns the ledger's view of a job; `None` for an object without a UID, which no API server returns.
fn job_allocation(job: &TrainJob) -> Option<JobAllocation> {
    let status = job.status.clone().unwrap_or_default();
    Some(JobAllocation {
        uid: job.uid()?,
        namespace: job.namespace().unwrap_or_default(),
        name: job.name_any(),
        attempt: status.attempt.unwrap_or(0),
        finished: status.is(ConditionType::Finished),
        is_deleted: is_deleted(job),
        systems: status.systems,
        resizes: status.resizes.unwrap_or(0),
        since: status.attempt_start_time,
        ..JobAllocation::default()
    })
}

/// Enqueues every job that does not use its grant yet.
fn enqueue_granted<W: World>(jobs: &[Arc<TrainJob>], grants: &[Grant], control: &ControllerContext<W>) {
    for grant in grants {
        let waits = |job: &&Arc<TrainJob>| {
            let used = job.status.as_ref().map(|status| (status.attempt.unwrap_or(0), status.resizes.unwrap_or(0)));
            used.unwrap_or_default() < (grant.attempt, grant.resizes)
        };
        if let Some(job) = live_job_of(jobs, grant).filter(waits) {
            control.enqueue(job);
        }
    }
}

/// Enqueues every job whose place in the queue has changed; with each heartbeat also jobs whose status has another
/// place, so that a missed update is repaired.
fn enqueue_moved_in_queue<W: World>(
    jobs: &[Arc<TrainJob>],
    places: Vec<QueueEntry>,
    is_heartbeat: bool,
    control: &ControllerContext<W>,
) {
    let queue_status = |place: QueueEntry| QueueStatus {
        position: place.position,
        reason: Some(place.reason.as_str().to_owned()),
        message: Some(place.message),
    };
    let mut places: HashMap<String, QueueStatus> =
        places.into_iter().map(|place| (place.uid.clone(), queue_status(place))).collect();
    for job in jobs {
        let Some(uid) = job.uid() else { continue };
        let place = places.remove(&uid);
        let recorded = job.status.as_ref().and_then(|status| status.queue.as_ref());
        let is_behind = is_heartbeat && place.is_some() && recorded != place.as_ref();
        if control.set_queue_place(&uid, place) || is_behind {
            control.enqueue(job);
        }
    }
}

/// Returns the job of a grant, unless it is deleted.
fn live_job_of<'a>(jobs: &'a [Arc<TrainJob>], grant: &Grant) -> Option<&'a Arc<TrainJob>> {
    jobs.iter().find(|job| job.uid().as_deref() == Some(&grant.uid) && !is_deleted(job))
}

fn is_deleted(job: &TrainJob) -> bool {
    job.metadata.deletion_timestamp.is_some()
}
