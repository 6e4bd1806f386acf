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

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use millrace_crds::{
    Appliance, ApplianceStatus, ConditionType, Grant, QueueReason, QueueStatus, ResourceAmounts, TrainJob,
};
use millrace_lifecycle::ledger::{
    Allocations, JobAllocation, LedgerInputs, compute_allocations, describe_jobs, over_commitment_message,
};
use millrace_lifecycle::{
    JobEvent, QueueEntry, SchedulingDecision, SystemRequest, backoff_place, is_waiting, schedule,
    seconds_until_next_attempt, set_condition, used_resources,
};
use millrace_params::MachineSpec;
use tokio::time::timeout;
use tracing::Instrument;

use crate::context::ControllerContext;
use crate::world::{Error, PriorityValues, World};

/// Interval of reconciles of an appliance without any change: finds what a missed event would have shown.
const LEDGER_RESYNC_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum age at which `lastObservedTime` of an unchanged status is renewed: a little less than
/// [`LEDGER_RESYNC_INTERVAL`], so that every heartbeat writes it.
const STATUS_REFRESH_INTERVAL: Duration = Duration::from_secs(25);
/// Bounds an update. One that takes longer is aborted and repeated: every job of the appliance waits for it.
const LEDGER_UPDATE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of reconciles while agents of deleted jobs hold something: no event reports when these agents have ended.
const LINGERING_AGENTS_INTERVAL: Duration = Duration::from_secs(2);
/// Delay after a write conflict.
const CONFLICT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Interval of reconciles while a queued job is being planned: the job enters the queue after that.
const PLANNING_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// A loop that has just started plans all queued jobs again. During this time, no job is granted anything until all
/// plans are known, so that a job with a slow plan is not overtaken.
const QUEUE_PLANNING_TIMEOUT: Duration = Duration::from_secs(30);

/// Condition: the spec is valid, and jobs are admitted.
const CONDITION_ACCEPTED: &str = "Accepted";
/// Condition: jobs hold more than the appliance has.
const CONDITION_OVER_COMMITTED: &str = "OverCommitted";
/// Condition: the appliance is deleted, and jobs hold systems of it.
const CONDITION_DELETING: &str = "Deleting";
/// Condition: the spec equals the chart's values.
const CONDITION_MATCHES_VALUES: &str = "MatchesValues";

/// Updates an appliance's ledger and queue.
///
/// # Errors
/// The world's errors, or a timeout.
pub async fn reconcile<W: World>(
    appliance: Arc<Appliance>,
    control: Arc<ControllerContext<W>>,
) -> Result<Action, Error<W>> {
    let began = Instant::now();
    let _noted = control.appliance_activity.begin(ObjectRef::from_obj(&*appliance));
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
    let linger = ledger.iter().any(|grant| live_job_of(&jobs, grant).is_none());

    let machine = appliance.spec.machine.resolve();
    let capacity = machine.as_ref().map(capacity).ok();
    let LedgerDecision { schedule: decided, pending, incomplete, next_due } =
        decide(appliance, capacity.as_ref(), &jobs, &ledger, control).await?;
    ledger.extend(decided.grants.into_iter().map(|grant| Grant { since: Some(Time(now)), ..grant }));

    // The protection is set before the first grant is written, and kept until the ledger without grants is written.
    let in_use = !ledger.is_empty() || !old.grants.is_empty();
    if control.world.set_in_use(appliance, in_use).await? {
        return Ok(Action::requeue(CONFLICT_RETRY_INTERVAL));
    }
    let mut status = old.clone();
    let wrong = machine.err().map(|error| error.report().trim_end().to_owned());
    update_conditions(&mut status, appliance, capacity.as_ref(), &ledger, wrong, now);
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
    let again = match (pending, linger) {
        (true, _) => PLANNING_POLL_INTERVAL,
        (false, true) => LINGERING_AGENTS_INTERVAL,
        (false, false) => LEDGER_RESYNC_INTERVAL,
    };
    Ok(Action::requeue(next_due.map_or(again, |due| due.min(again))))
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
    let mut left = BTreeSet::new();
    for (uid, namespace) in records.departed_jobs() {
        // A reconcile that began before the deletion was seen may be creating agents.
        if control.is_reconciling(&uid) || control.world.has_leftover_agents(&namespace, &uid).await? {
            left.insert(uid);
        }
    }
    Ok(Some(compute_allocations(&records, &left)))
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
        since: status.attempt_start_time,
        ..JobAllocation::default()
    })
}

/// New grants and the queue.
struct LedgerDecision {
    schedule: SchedulingDecision,
    /// Whether some queued jobs are still being planned. They are not in the queue yet, and block no other job.
    pending: bool,
    /// Whether some jobs that were queued before this loop started are not planned yet, so that nothing is granted.
    incomplete: bool,
    /// Time until the first job's backoff ends.
    next_due: Option<Duration>,
}

/// Decides on new grants beyond `ledger`; see [`LedgerDecision`].
async fn decide<W: World>(
    appliance: &Appliance,
    capacity: Option<&ResourceAmounts>,
    jobs: &[Arc<TrainJob>],
    ledger: &[Grant],
    control: &ControllerContext<W>,
) -> Result<LedgerDecision, Error<W>> {
    let requests = pending_requests(jobs, ledger);
    // If no job requests systems, the cluster's priority classes are not needed.
    let priorities = if requests.is_empty() { PriorityValues::default() } else { control.world.priorities().await? };
    let now = Timestamp::now();
    let set_aside = |job: &Arc<TrainJob>| place_outside_queue(job, appliance, &priorities, now);
    let (refused, requests): (Vec<_>, Vec<_>) = requests.into_iter().partition(|job| set_aside(job).is_some());
    let seconds_left =
        refused.iter().filter_map(|job| seconds_until_next_attempt(job.status.as_ref()?.retry.as_ref()?, now));
    let next_due = seconds_left.min().map(Duration::from_secs);
    let refused = refused.into_iter().filter_map(set_aside);
    let Some(capacity) = capacity.filter(|_| !requests.is_empty()) else {
        let schedule = SchedulingDecision { places: refused.collect(), ..SchedulingDecision::default() };
        return Ok(LedgerDecision { schedule, pending: false, incomplete: false, next_due });
    };
    let beginning = Timestamp::now().duration_since(control.started_at).unsigned_abs() < QUEUE_PLANNING_TIMEOUT;
    let (mut asks, mut pending, mut incomplete) = (Vec::new(), false, false);
    for job in requests {
        let Some(uid) = job.uid() else { continue };
        if control.plan_cache.unsupported_agents(job).is_some() {
            // The job's own reconcile reports this to its user.
            continue;
        }
        match control.get_or_plan(job, &uid, &appliance.spec, job.spec.num_csx).ready() {
            Some(Ok(planned)) => {
                asks.extend(system_request(job, planned.needs.memoryx_bytes, planned.needs.swarmx_nodes, &priorities))
            }
            // The job's own reconcile reports this to its user.
            Some(Err(_)) => {}
            None => {
                pending = true;
                let old = job.creation_timestamp().is_some_and(|created| created.0 < control.started_at);
                incomplete |= beginning && old;
            }
        }
    }
    if incomplete {
        asks.clear();
    }
    let mut schedule = schedule(capacity, ledger, &asks);
    schedule.places.extend(refused);
    Ok(LedgerDecision { schedule, pending, incomplete, next_due })
}

/// Returns the place of a job that may not be admitted at present, outside the queue; `None` if the job may be queued.
fn place_outside_queue(
    job: &TrainJob,
    appliance: &Appliance,
    priorities: &PriorityValues,
    now: Timestamp,
) -> Option<QueueEntry> {
    let uid = job.uid()?;
    if let Some((reason, message)) = admission_error(job, appliance, priorities) {
        return Some(QueueEntry { uid, position: None, reason, message });
    }
    let message = backoff_place(job.status.as_ref()?, now)?.message.unwrap_or_default();
    Some(QueueEntry { uid, position: None, reason: QueueReason::BackingOff, message })
}

/// Returns why a job is not admitted, however much is free; `None` if it may be.
fn admission_error(
    job: &TrainJob,
    appliance: &Appliance,
    priorities: &PriorityValues,
) -> Option<(QueueReason, String)> {
    if appliance.metadata.deletion_timestamp.is_some() {
        let message = format!("the Appliance {} is being deleted and grants nothing", appliance.name_any());
        return Some((QueueReason::NoAppliance, message));
    }
    if let Some((_, message)) = appliance.spec.max_deadlines.find_violation(&job.spec) {
        return Some((QueueReason::DeadlineNotAllowed, message));
    }
    let class = job.spec.priority_class_name.as_deref();
    if let Some(message) = appliance.spec.priority_classes.rejection_message(class) {
        return Some((QueueReason::PriorityNotAllowed, message));
    }
    let missing = class.filter(|class| !priorities.values.contains_key(*class))?;
    let message = format!(
        "PriorityClass {missing} of spec.priorityClassName not found: create it, or set spec.priorityClassName to \
         another one"
    );
    Some((QueueReason::PriorityNotFound, message))
}

/// Returns the jobs that request systems and have no grant.
fn pending_requests<'a>(jobs: &'a [Arc<TrainJob>], ledger: &[Grant]) -> Vec<&'a Arc<TrainJob>> {
    let has_grant = |job: &TrainJob| ledger.iter().any(|grant| job.metadata.uid.as_ref() == Some(&grant.uid));
    jobs.iter().filter(|job| is_waiting(job) && !is_deleted(job) && !job.spec.suspend && !has_grant(job)).collect()
}

/// Updates the appliance's conditions. `wrong` is the error in its spec, if any.
fn update_conditions(
    status: &mut ApplianceStatus,
    appliance: &Appliance,
    capacity: Option<&ResourceAmounts>,
    ledger: &[Grant],
    wrong: Option<String>,
    now: Timestamp,
) {
    let mut set = |of: &str, status_word: &str, reason: &str, message: String| {
        let condition = Condition {
            type_: of.to_owned(),
            status: status_word.to_owned(),
            reason: reason.to_owned(),
            message,
            observed_generation: appliance.metadata.generation,
            last_transition_time: Time(now),
        };
        set_condition(&mut status.conditions, condition);
    };
    let systems = used_resources(ledger).systems;
    match (wrong, capacity) {
        (Some(wrong), _) => set(CONDITION_ACCEPTED, "False", "BadSpec", wrong),
        (None, capacity) => {
            let all = capacity.map_or(0, |capacity| capacity.systems);
            set(CONDITION_ACCEPTED, "True", "Ready", format!("in use: {systems} system(s) of {all}"));
        }
    }
    match capacity.and_then(|capacity| over_commitment_message(capacity, ledger)) {
        Some(why) => set(CONDITION_OVER_COMMITTED, "True", "Overcommitted", why),
        None => set(CONDITION_OVER_COMMITTED, "False", "Fits", "capacity covers the systems in use".to_owned()),
    }
    if appliance.metadata.deletion_timestamp.is_some() {
        let message = format!(
            "deletion waits until no job uses systems; used by {}: wait until these jobs end, suspend them or delete \
             them",
            describe_jobs(ledger)
        );
        set(CONDITION_DELETING, "True", "SystemsInUse", message);
    }
}

/// Updates the condition about fields that differ from the chart's values; removes it if the appliance has no values.
fn update_matches_values(
    status: &mut ApplianceStatus,
    appliance: &Appliance,
    edits: Option<Vec<String>>,
    now: Timestamp,
) {
    let Some(edits) = edits else {
        status.conditions.retain(|condition| condition.type_ != CONDITION_MATCHES_VALUES);
        return;
    };
    let (word, reason, message) = if edits.is_empty() {
        ("True", "MatchesChart", "the appliance matches the chart's values".to_owned())
    } else {
        let what = edits.join(", ");
        let message = format!(
            "edited manually since the chart's values were applied: {what}; the edit is kept until the values change"
        );
        ("False", "EditedManually", message)
    };
    let condition = Condition {
        type_: CONDITION_MATCHES_VALUES.to_owned(),
        status: word.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: appliance.metadata.generation,
        last_transition_time: Time(now),
    };
    set_condition(&mut status.conditions, condition);
}

/// Returns the events to publish about the appliance.
fn appliance_events(
    old: &ApplianceStatus,
    new: &ApplianceStatus,
    adopted: &[String],
    rejected: &[Grant],
) -> Vec<JobEvent> {
    let is = |status: &ApplianceStatus, of: &str| {
        status.conditions.iter().find(|condition| condition.type_ == of && condition.status == "True").cloned()
    };
    let warning = |reason: &str, message: String| JobEvent {
        warning: true,
        reason: reason.to_owned(),
        message,
        ..JobEvent::default()
    };
    let begun = [CONDITION_OVER_COMMITTED, CONDITION_DELETING].into_iter().filter(|of| is(old, of).is_none());
    let mut events: Vec<JobEvent> =
        begun.filter_map(|of| is(new, of)).map(|it| warning(&it.reason, it.message)).collect();
    let edited = |status: &ApplianceStatus| {
        let mut conditions = status.conditions.iter();
        conditions.find(|condition| condition.type_ == CONDITION_MATCHES_VALUES && condition.status == "False").cloned()
    };
    let before = edited(old).map(|condition| condition.message);
    let edited = edited(new).filter(|condition| Some(&condition.message) != before.as_ref());
    events.extend(edited.map(|condition| warning(&condition.reason, condition.message)));
    if !adopted.is_empty() {
        let jobs = adopted.join(", ");
        let message = format!("rebuilt the ledger: it lacked systems that the status of {jobs} lists");
        events.push(warning("LedgerRebuilt", message));
    }
    events.extend(rejected.iter().map(|grant| {
        let message = format!("removed a grant to {}/{} of systems that other jobs use", grant.namespace, grant.name);
        warning("GrantRemoved", message)
    }));
    events
}

/// Enqueues every job that does not use its grant yet.
fn enqueue_granted<W: World>(jobs: &[Arc<TrainJob>], grants: &[Grant], control: &ControllerContext<W>) {
    for grant in grants {
        let waits =
            |job: &&Arc<TrainJob>| job.status.as_ref().and_then(|status| status.attempt).unwrap_or(0) < grant.attempt;
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
    let told = |place: QueueEntry| QueueStatus {
        position: place.position,
        reason: Some(place.reason.as_str().to_owned()),
        message: Some(place.message),
    };
    let mut places: HashMap<String, QueueStatus> =
        places.into_iter().map(|place| (place.uid.clone(), told(place))).collect();
    for job in jobs {
        let Some(uid) = job.uid() else { continue };
        let place = places.remove(&uid);
        let told = job.status.as_ref().and_then(|status| status.queue.as_ref());
        let is_behind = is_heartbeat && place.is_some() && told != place.as_ref();
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

/// Returns the capacity of an appliance.
pub fn capacity(machine: &MachineSpec) -> ResourceAmounts {
    ResourceAmounts {
        systems: u32::try_from(machine.systems).unwrap_or(u32::MAX),
        memoryx_bytes: machine.memoryx.memory_bytes,
        swarmx_nodes: machine.swarmx.nodes.map(|nodes| u32::try_from(nodes).unwrap_or(u32::MAX)),
    }
}

/// Builds a job's request with these needs; `None` if the job has no UID.
pub fn system_request(
    job: &TrainJob,
    memoryx_bytes: u64,
    swarmx_nodes: u32,
    priorities: &PriorityValues,
) -> Option<SystemRequest> {
    Some(SystemRequest {
        uid: job.uid()?,
        attempt: job.status.as_ref().and_then(|status| status.attempt).unwrap_or(0) + 1,
        namespace: job.namespace().unwrap_or_default(),
        name: job.name_any(),
        priority: priorities.of(job.spec.priority_class_name.as_deref()),
        created: job.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        systems: job.spec.num_csx,
        memoryx_bytes,
        swarmx_nodes,
    })
}
