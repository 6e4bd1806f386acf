//! New grants of an appliance's systems, and the queue of the jobs that wait for one.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use millrace_crds::{Appliance, ConditionType, Grant, QueueReason, ResourceAmounts, TrainJob};
use millrace_lifecycle::{
    QueueEntry, SchedulingDecision, SystemRequest, backoff_place, is_waiting, schedule, seconds_until_next_attempt,
};
use millrace_params::MachineSpec;

use super::is_deleted;
use crate::context::ControllerContext;
use crate::record::has_flexible_agents;
use crate::world::{Error, PriorityValues, World};

/// A loop that has just started plans all queued jobs again. During this time, no job is granted anything until all
/// plans are known, so that a job with a slow plan is not overtaken.
const QUEUE_PLANNING_TIMEOUT: Duration = Duration::from_secs(30);

/// New grants and the queue.
pub(super) struct LedgerDecision {
    pub schedule: SchedulingDecision,
    /// Whether some queued jobs are still being planned. Such a job is not in the queue yet and does not block other
    /// jobs.
    pub pending: bool,
    /// Whether some jobs that were queued before this loop started are not planned yet, so that nothing is granted.
    pub incomplete: bool,
    /// Time until the first job's backoff ends.
    pub next_due: Option<Duration>,
}

/// Decides on new grants beyond `ledger`; see [`LedgerDecision`].
pub(super) async fn decide<W: World>(
    appliance: &Appliance,
    capacity: Option<&ResourceAmounts>,
    jobs: &[Arc<TrainJob>],
    ledger: &[Grant],
    control: &ControllerContext<W>,
) -> Result<LedgerDecision, Error<W>> {
    let resized = jobs.iter().filter(|job| resized_grant(job, ledger).is_some());
    let requests: Vec<_> = pending_requests(jobs, ledger).into_iter().chain(resized).collect();
    // If no job requests systems, the cluster's priority classes are not needed.
    let priorities = if requests.is_empty() { PriorityValues::default() } else { control.world.priorities().await? };
    let now = Timestamp::now();
    let queue_entry = |job: &Arc<TrainJob>| place_outside_queue(job, appliance, &priorities, now);
    let (excluded, requests): (Vec<_>, Vec<_>) = requests.into_iter().partition(|job| queue_entry(job).is_some());
    let seconds_left =
        excluded.iter().filter_map(|job| seconds_until_next_attempt(job.status.as_ref()?.retry.as_ref()?, now));
    let next_due = seconds_left.min().map(Duration::from_secs);
    let excluded = excluded.into_iter().filter_map(queue_entry);
    let Some(capacity) = capacity.filter(|_| !requests.is_empty()) else {
        let schedule = SchedulingDecision { places: excluded.collect(), ..SchedulingDecision::default() };
        return Ok(LedgerDecision { schedule, pending: false, incomplete: false, next_due });
    };
    let beginning = Timestamp::now().duration_since(control.started_at).unsigned_abs() < QUEUE_PLANNING_TIMEOUT;
    let (mut system_requests, mut pending, mut incomplete) = (Vec::new(), false, false);
    for job in requests {
        let Some(uid) = job.uid() else { continue };
        if control.plan_cache.unsupported_agents(job).is_some() {
            // The job's own reconcile reports this to its user.
            continue;
        }
        match control.get_or_plan(job, &uid, &appliance.spec, job.spec.num_csx).ready() {
            // The job's own reconcile reports a number of systems that do not all have work.
            Some(Ok(planned)) if job.spec.num_csx > planned.needs.largest_num_csx && !is_waiting(job) => {}
            Some(Ok(planned)) => system_requests.extend(system_request(
                job,
                resized_grant(job, ledger).cloned(),
                planned.needs.memoryx_bytes,
                planned.needs.swarmx_nodes,
                &priorities,
            )),
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
        system_requests.clear();
    }
    let mut schedule = schedule(capacity, ledger, &system_requests);
    schedule.places.extend(excluded);
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
    if let Some((field, message)) = appliance.spec.max_deadlines.find_violation(&job.spec) {
        return Some((QueueReason::DeadlineNotAllowed, format!("{field}: {message}")));
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

/// Returns the grant of a job whose running attempt requests more systems than it has; `None` if it requests none, or
/// has been granted them already.
pub fn resized_grant<'a>(job: &TrainJob, ledger: &'a [Grant]) -> Option<&'a Grant> {
    let status = job.status.as_ref()?;
    let is_running = status.num_csx.is_some() && status.stop_time.is_none() && !status.is(ConditionType::Finished);
    let is_wanted = !is_deleted(job) && !job.spec.suspend && job.spec.num_csx as usize > status.systems.len();
    let is_its_grant =
        |grant: &&Grant| job.metadata.uid.as_ref() == Some(&grant.uid) && grant.systems == status.systems;
    ledger.iter().find(is_its_grant).filter(|_| is_running && is_wanted && has_flexible_agents(job))
}

/// Returns the capacity of an appliance.
pub fn capacity(machine: &MachineSpec) -> ResourceAmounts {
    ResourceAmounts {
        systems: u32::try_from(machine.systems).unwrap_or(u32::MAX),
        memoryx_bytes: machine.memoryx.memory_bytes,
        swarmx_nodes: machine.swarmx.nodes.map(|nodes| u32::try_from(nodes).unwrap_or(u32::MAX)),
    }
}

/// Builds a job's request with these needs: for its next attempt, or for more systems than in `held`. Returns `None` if
/// the job has no UID.
pub fn system_request(
    job: &TrainJob,
    held: Option<Grant>,
    memoryx_bytes: u64,
    swarmx_nodes: u32,
    priorities: &PriorityValues,
) -> Option<SystemRequest> {
    Some(SystemRequest {
        uid: job.uid()?,
        attempt: job.status.as_ref().and_then(|status| status.attempt).unwrap_or(0) + u32::from(held.is_none()),
        held,
        namespace: job.namespace().unwrap_or_default(),
        name: job.name_any(),
        priority: priorities.of(job.spec.priority_class_name.as_deref()),
        created: job.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        systems: job.spec.num_csx,
        memoryx_bytes,
        swarmx_nodes,
    })
}
