//! The ledger: who uses what of an appliance. One driver for all jobs, so that two of them never get the same system.
//!
//! A grant is for one attempt of one job. It is written, from the version of the appliance it was decided on, before the
//! job takes it up by raising its `attempt`; it is taken out again when the job has let go of that attempt, which it does
//! when the attempt's last agent is gone, or when the job and all of its pods are gone. Each of these facts never becomes
//! false again once it is true, so that a view of the jobs that is behind can only let a grant stand too long.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Api, Resource, ResourceExt};
use millrace_crds::decide::{Ask, Place, schedule, used};
use millrace_crds::{Amounts, Appliance, ApplianceStatus, ConditionType, Grant, QueuePlace, TrainJob, set_condition};
use serde_json::json;

use crate::children::{MANAGER, UID};
use crate::context::Context;
use crate::error::Error;

/// An appliance is looked at so often though nothing is heard: what was missed is found.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// And so often while pods of a job that is gone hold something: nothing else tells when they are gone too.
const WHILE_PODS_LINGER: Duration = Duration::from_secs(2);

/// Brings an appliance's ledger up to date, and its queue.
///
/// # Errors
/// The API server refused or can't be reached.
pub async fn reconcile(appliance: Arc<Appliance>, context: Arc<Context>) -> Result<Action, Error> {
    context.forget_the_gone();
    let now = Timestamp::now();
    let old = appliance.status.clone().unwrap_or_default();
    let machine = match appliance.spec.machine.resolve() {
        Ok(machine) => machine,
        Err(error) => {
            let mut status = old;
            let wrong = error.report().trim_end().to_owned();
            set_condition(&mut status.conditions, accepted("False", "BadSpec", wrong, &appliance, now));
            update_status(&appliance, &context, status).await?;
            return Ok(Action::requeue(HEARTBEAT));
        }
    };
    let name = appliance.name_any();
    let jobs: Vec<Arc<TrainJob>> = context.jobs.state().into_iter().filter(|job| job.spec.appliance == name).collect();
    let capacity = Amounts {
        systems: u32::try_from(machine.systems).unwrap_or(u32::MAX),
        memoryx_bytes: machine.memoryx.memory_bytes,
        swarmx_nodes: machine.swarmx.nodes.map(|nodes| u32::try_from(nodes).unwrap_or(u32::MAX)),
    };
    let mut ledger = still_held(&old.grants, &jobs, &context).await?;
    let linger = ledger.iter().any(|grant| existing(&jobs, grant).is_none());
    let asks = asks(&jobs, &ledger, &appliance, &context).await?;
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
    if !update_status(&appliance, &context, status).await? {
        return Ok(Action::requeue(Duration::from_millis(100)));
    }
    tell_places(&jobs, decided.places, &context);
    Ok(Action::requeue(if linger { WHILE_PODS_LINGER } else { HEARTBEAT }))
}

/// Has every job visited whose place in the queue is another than before.
fn tell_places(jobs: &[Arc<TrainJob>], places: Vec<Place>, context: &Context) {
    let told = |place: Place| QueuePlace {
        position: place.position,
        reason: Some(place.reason.as_str().to_owned()),
        message: Some(place.message),
    };
    let mut places: HashMap<String, QueuePlace> =
        places.into_iter().map(|place| (place.uid.clone(), told(place))).collect();
    for job in jobs {
        let Some(uid) = job.uid() else { continue };
        if context.set_place(&uid, places.remove(&uid)) {
            context.visit(job);
        }
    }
}

/// The grants that have not been let go of.
async fn still_held(grants: &[Grant], jobs: &[Arc<TrainJob>], context: &Context) -> Result<Vec<Grant>, Error> {
    let mut held = Vec::with_capacity(grants.len());
    for grant in grants {
        let stays = match existing(jobs, grant) {
            Some(job) => holds(job, grant),
            None => has_pods(grant, context).await?,
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

/// Whether pods of a job that is gone are left. Asked of the API server itself.
async fn has_pods(grant: &Grant, context: &Context) -> Result<bool, Error> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &grant.namespace);
    let selector = ListParams::default().labels(&format!("{UID}={}", grant.uid)).limit(1);
    Ok(!pods.list_metadata(&selector).await.map_err(Error::api("list pods of a job that is gone"))?.items.is_empty())
}

/// What jobs ask for that hold nothing.
async fn asks(
    jobs: &[Arc<TrainJob>],
    ledger: &[Grant],
    appliance: &Appliance,
    context: &Context,
) -> Result<Vec<Ask>, Error> {
    let asking = |job: &&Arc<TrainJob>| {
        let status = job.status.clone().unwrap_or_default();
        let over = status.is(ConditionType::Finished) || status.is(ConditionType::Admitted);
        !over && !gone(job) && !job.spec.suspend && !ledger.iter().any(|grant| job.uid().as_ref() == Some(&grant.uid))
    };
    let asking: Vec<&Arc<TrainJob>> = jobs.iter().filter(asking).collect();
    if asking.is_empty() {
        return Ok(Vec::new());
    }
    let priorities = Priorities::read(context).await?;
    Ok(asking.into_iter().filter_map(|job| ask(job, appliance, context, &priorities)).collect())
}

/// What a job asks for; nothing, where it can never run: it is told so by its own visit.
fn ask(job: &TrainJob, appliance: &Appliance, context: &Context, priorities: &Priorities) -> Option<Ask> {
    let uid = job.uid()?;
    let known = context.understand(job, &uid, &appliance.spec, job.spec.num_csx).ok()?;
    let status = job.status.as_ref();
    Some(Ask {
        attempt: status.and_then(|status| status.attempt).unwrap_or(0) + 1,
        namespace: job.namespace().unwrap_or_default(),
        name: job.name_any(),
        priority: priorities.of(job.spec.priority_class_name.as_deref()),
        created: job.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        systems: job.spec.num_csx,
        memoryx_bytes: known.1.memoryx_bytes,
        swarmx_nodes: known.1.swarmx_nodes,
        uid,
    })
}

/// The cluster's priority classes.
struct Priorities {
    values: HashMap<String, i32>,
    default: i32,
}

impl Priorities {
    async fn read(context: &Context) -> Result<Self, Error> {
        let classes: Api<PriorityClass> = Api::all(context.client.clone());
        let classes = classes.list(&ListParams::default()).await.map_err(Error::api("list priority classes"))?.items;
        let default = classes.iter().find(|class| class.global_default == Some(true)).map_or(0, |class| class.value);
        Ok(Self { values: classes.iter().map(|class| (class.name_any(), class.value)).collect(), default })
    }

    /// A class that is not there counts as none: the pods, which name it too, say that it is missing.
    fn of(&self, class: Option<&str>) -> i32 {
        class.map_or(self.default, |name| self.values.get(name).copied().unwrap_or(0))
    }
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

/// Writes the ledger from the version it was decided on; whether it could be.
async fn update_status(appliance: &Appliance, context: &Context, mut status: ApplianceStatus) -> Result<bool, Error> {
    let old = appliance.status.clone().unwrap_or_default();
    status.leader_epoch = old.leader_epoch;
    if status == old {
        return Ok(true);
    }
    status.leader_epoch = Some(context.epoch);
    let appliances: Api<Appliance> = Api::all(context.client.clone());
    let patch = json!({
        "apiVersion": Appliance::api_version(&()),
        "kind": Appliance::kind(&()),
        "metadata": {"resourceVersion": appliance.resource_version(), "uid": appliance.uid()},
        "status": status,
    });
    let params = PatchParams::apply(MANAGER).force();
    match appliances.patch_status(&appliance.name_any(), &params, &Patch::Apply(&patch)).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(refused)) if refused.is_conflict() || refused.is_not_found() => Ok(false),
        Err(error) => Err(Error::api("write the ledger")(error)),
    }
}
