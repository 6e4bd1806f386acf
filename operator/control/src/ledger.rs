//! The ledger: who uses what of an appliance. One driver for all jobs, so that two of them never get the same system.
//!
//! A grant is for one attempt of one job. It is written, from the version of the appliance it was decided on, before the
//! job takes it up by raising its `attempt`; it is taken out again when the job has let go of that attempt, which it does
//! when the attempt's last agent is gone, or when the job and all of its agents are gone. Each of these facts never becomes
//! false again once it is true, so that a view of the jobs that is behind can only let a grant stand too long.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use millrace_crds::decide::{Ask, Place, schedule, used};
use millrace_crds::{Amounts, Appliance, ConditionType, Grant, QueuePlace, TrainJob, set_condition};
use millrace_params::ApplianceSpec;

use crate::control::Control;
use crate::resolve::Needs;
use crate::understand::Understanding;
use crate::world::{Error, Priorities, World};

/// An appliance is looked at so often though nothing is heard: what was missed is found.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// And so often while agents of a job that is gone hold something: nothing else tells when they are gone too.
const WHILE_AGENTS_LINGER: Duration = Duration::from_secs(2);

/// Brings an appliance's ledger up to date, and its queue.
///
/// # Errors
/// The world's.
pub async fn reconcile<W: World>(appliance: Arc<Appliance>, control: Arc<Control<W>>) -> Result<Action, Error<W>> {
    control.forget_the_gone();
    let now = Timestamp::now();
    let old = appliance.status.clone().unwrap_or_default();
    let machine = match appliance.spec.machine.resolve() {
        Ok(machine) => machine,
        Err(error) => {
            let mut status = old;
            let wrong = error.report().trim_end().to_owned();
            set_condition(&mut status.conditions, accepted("False", "BadSpec", wrong, &appliance, now));
            control.world.record_ledger(&appliance, status).await?;
            return Ok(Action::requeue(HEARTBEAT));
        }
    };
    let name = appliance.name_any();
    let jobs: Vec<Arc<TrainJob>> = control.jobs.state().into_iter().filter(|job| job.spec.appliance == name).collect();
    let capacity = capacity(&machine);
    tell_granted(&jobs, &old.grants, &control);
    let mut ledger = still_held(&old.grants, &jobs, &control).await?;
    let linger = ledger.iter().any(|grant| existing(&jobs, grant).is_none());
    let asks = asks(&jobs, &ledger, &appliance, &control).await?;
    let decided = schedule(&capacity, &ledger, &asks);
    ledger.extend(decided.grants.into_iter().map(|grant| Grant { since: Some(Time(now)), ..grant }));

    let mut status = old;
    let words = format!("{} system(s) of {}", used(&ledger).systems, capacity.systems);
    set_condition(&mut status.conditions, accepted("True", "Ready", format!("in use: {words}"), &appliance, now));
    status.observed_generation = appliance.metadata.generation;
    status.capacity = Some(capacity);
    status.used = Some(used(&ledger));
    status.waiting = u32::try_from(decided.places.len()).ok();
    status.grants = ledger;
    if !control.world.record_ledger(&appliance, status).await? {
        return Ok(Action::requeue(Duration::from_millis(100)));
    }
    tell_places(&jobs, decided.places, &control);
    Ok(Action::requeue(if linger { WHILE_AGENTS_LINGER } else { HEARTBEAT }))
}

/// Has every job visited that has not taken up what it is granted. Its own watch may tell it of the grant before this program's
/// view of the appliance has it; this is called from that view, and again as long as the grant waits.
fn tell_granted<W: World>(jobs: &[Arc<TrainJob>], grants: &[Grant], control: &Control<W>) {
    for grant in grants {
        let waits =
            |job: &&Arc<TrainJob>| job.status.as_ref().and_then(|status| status.attempt).unwrap_or(0) < grant.attempt;
        if let Some(job) = existing(jobs, grant).filter(waits) {
            control.visit(job);
        }
    }
}

/// Has every job visited whose place in the queue is another than before.
fn tell_places<W: World>(jobs: &[Arc<TrainJob>], places: Vec<Place>, control: &Control<W>) {
    let told = |place: Place| QueuePlace {
        position: place.position,
        reason: Some(place.reason.as_str().to_owned()),
        message: Some(place.message),
    };
    let mut places: HashMap<String, QueuePlace> =
        places.into_iter().map(|place| (place.uid.clone(), told(place))).collect();
    for job in jobs {
        let Some(uid) = job.uid() else { continue };
        if control.set_place(&uid, places.remove(&uid)) {
            control.visit(job);
        }
    }
}

/// The grants that have not been let go of.
async fn still_held<W: World>(
    grants: &[Grant],
    jobs: &[Arc<TrainJob>],
    control: &Control<W>,
) -> Result<Vec<Grant>, Error<W>> {
    let mut held = Vec::with_capacity(grants.len());
    for grant in grants {
        let stays = match existing(jobs, grant) {
            Some(job) => holds(job, grant),
            None => control.world.any_left(&grant.namespace, &grant.uid).await?,
        };
        if stays {
            held.push(grant.clone());
        }
    }
    Ok(held)
}

/// The job that was granted something, unless it is gone or going.
fn existing<'a>(jobs: &'a [Arc<TrainJob>], grant: &Grant) -> Option<&'a Arc<TrainJob>> {
    jobs.iter().find(|job| job.uid().as_deref() == Some(&grant.uid) && !gone(job))
}

/// Whether a job that exists may still be using what it was granted, or take it up: a grant it wants no more is declined
/// by the job itself, which passes that attempt over.
fn holds(job: &TrainJob, grant: &Grant) -> bool {
    let Some(status) = &job.status else { return true };
    if status.attempt.unwrap_or(0) < grant.attempt {
        return !status.is(ConditionType::Finished);
    }
    status.is(ConditionType::Admitted)
}

fn gone(job: &TrainJob) -> bool {
    job.metadata.deletion_timestamp.is_some()
}

/// What jobs ask for that hold nothing.
async fn asks<W: World>(
    jobs: &[Arc<TrainJob>],
    ledger: &[Grant],
    appliance: &Appliance,
    control: &Control<W>,
) -> Result<Vec<Ask>, Error<W>> {
    let asking = |job: &&Arc<TrainJob>| {
        waits(job)
            && !gone(job)
            && !job.spec.suspend
            && !ledger.iter().any(|grant| job.uid().as_ref() == Some(&grant.uid))
    };
    let asking: Vec<&Arc<TrainJob>> = jobs.iter().filter(asking).collect();
    if asking.is_empty() {
        return Ok(Vec::new());
    }
    let priorities = control.world.priorities().await?;
    Ok(asking.into_iter().filter_map(|job| ask(job, appliance, &control.understanding, &priorities)).collect())
}

/// What an appliance has.
pub fn capacity(machine: &ApplianceSpec) -> Amounts {
    Amounts {
        systems: u32::try_from(machine.systems).unwrap_or(u32::MAX),
        memoryx_bytes: machine.memoryx.memory_bytes,
        swarmx_nodes: machine.swarmx.nodes.map(|nodes| u32::try_from(nodes).unwrap_or(u32::MAX)),
    }
}

/// Whether a job holds nothing and is not over.
pub fn waits(job: &TrainJob) -> bool {
    !job.status.as_ref().is_some_and(|status| status.is(ConditionType::Finished) || status.is(ConditionType::Admitted))
}

/// What a job asks for on `appliance`; nothing, where it can never run: it is told so by its own visit.
pub fn ask(
    job: &TrainJob,
    appliance: &Appliance,
    understanding: &Understanding,
    priorities: &Priorities,
) -> Option<Ask> {
    let known = understanding.of(job, &job.uid()?, &appliance.spec, job.spec.num_csx).ok()?;
    ask_for(job, &known.1, priorities)
}

/// What a job asks for that needs so much; nothing, where it has no UID.
pub fn ask_for(job: &TrainJob, needs: &Needs, priorities: &Priorities) -> Option<Ask> {
    Some(Ask {
        uid: job.uid()?,
        attempt: job.status.as_ref().and_then(|status| status.attempt).unwrap_or(0) + 1,
        namespace: job.namespace().unwrap_or_default(),
        name: job.name_any(),
        priority: priorities.of(job.spec.priority_class_name.as_deref()),
        created: job.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        systems: job.spec.num_csx,
        memoryx_bytes: needs.memoryx_bytes,
        swarmx_nodes: needs.swarmx_nodes,
    })
}

fn accepted(status: &str, reason: &str, message: String, appliance: &Appliance, now: Timestamp) -> Condition {
    Condition {
        type_: ConditionType::Accepted.as_str().to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: appliance.metadata.generation,
        last_transition_time: Time(now),
    }
}
