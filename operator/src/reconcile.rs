//! A visit to a job, in five steps: what is there (dereference), can it run (validate), what is to be (decide and build),
//! say so (update_status), make it so (apply).
//!
//! What was decided is recorded before anything is done about it: an attempt is in the status before its first pod exists,
//! with the version of the object that the decision was made from, so that of two operators one is refused.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Api, Resource, ResourceExt};
use millrace_crds::decide::{Agent, Command, Decision, Granted, Observed, Report, decide};
use millrace_crds::{ClusterSpec, QueuePlace, QueueReason, Resolution, TrainJob, TrainJobStatus};
use serde_json::json;

use crate::children::{MANAGER, Names, cs2_selector};
use crate::context::Context;
use crate::error::Error;
use crate::events::publish;
use crate::observe::{agent, last_report};
use crate::resolve::Needs;
use crate::{apply, missing};

/// What is there of a job.
struct Seen {
    uid: String,
    pods: Vec<Pod>,
    cluster: ClusterSpec,
    observed: Observed,
    needs: Option<Arc<(Resolution, Needs)>>,
}

/// Visits a job.
///
/// # Errors
/// See [`Error`].
pub async fn reconcile(job: Arc<TrainJob>, context: Arc<Context>) -> Result<Action, Error> {
    let began = std::time::Instant::now();
    let done = visit(&job, &context).await;
    context.metrics.visited(began.elapsed(), done.is_ok());
    done
}

async fn visit(job: &TrainJob, context: &Context) -> Result<Action, Error> {
    let Some(uid) = job.uid() else { return Ok(Action::await_change()) };
    if job.metadata.deletion_timestamp.is_some() {
        // Its children go with it, and the ledger lets go of its systems once they are gone.
        context.followers.end(&uid);
        return Ok(Action::await_change());
    }
    let seen = dereference(job, context, uid).await?;
    let decision = decide(job, &seen.observed);
    if !update_status(job, context, &decision.status).await? {
        // Somebody else wrote meanwhile: what was decided is of yesterday.
        return Ok(Action::requeue(Duration::from_millis(200)));
    }
    for event in &decision.events {
        publish(&context.recorder, &job.object_ref(&()), event).await;
    }
    carry_out(job, context, &seen, &decision).await?;
    Ok(decision.look_again.map_or_else(Action::await_change, |seconds| Action::requeue(Duration::from_secs(seconds))))
}

/// Finds out what is there.
async fn dereference(job: &TrainJob, context: &Context, uid: String) -> Result<Seen, Error> {
    let status = job.status.clone().unwrap_or_default();
    let appliance = context.appliance(&job.spec.appliance);
    let cluster = appliance.as_ref().map(|appliance| appliance.spec.clone()).unwrap_or_default();
    let num_csx = status.num_csx.unwrap_or(job.spec.num_csx);
    let understood = context.understand(job, &uid, &cluster, num_csx);
    let pods = list_pods(job, context).await?;
    let mut agents: Vec<Agent> = pods.iter().filter_map(agent).collect();
    missing::tell(job, &context.client, &pods, &mut agents).await.map_err(Error::api("look for a ConfigMap"))?;
    let ledger = appliance.as_ref().and_then(|appliance| appliance.status.as_ref());
    let grant = ledger.and_then(|ledger| ledger.grants.iter().find(|grant| grant.uid == uid));
    let attempt = status.attempt.unwrap_or(0);
    let place = match &appliance {
        Some(_) => context.place(&uid),
        None => Some(no_appliance(&job.spec.appliance)),
    };
    let observed = Observed {
        now: Timestamp::now(),
        agents,
        grant: grant.map(|grant| Granted { attempt: grant.attempt, systems: grant.systems.clone() }),
        place,
        report: report(context, &uid, &pods, attempt),
        resolution: understood.as_ref().map(|known| known.0.clone()).map_err(Clone::clone),
        largest_num_csx: understood.as_ref().map(|known| known.1.largest_num_csx).ok(),
        wanted: understood.as_ref().map(|known| known.1.wanted.clone()).unwrap_or_default(),
    };
    Ok(Seen { uid, pods, cluster, observed, needs: understood.ok() })
}

fn no_appliance(name: &str) -> QueuePlace {
    QueuePlace {
        position: None,
        reason: Some(QueueReason::NoAppliance.as_str().to_owned()),
        message: Some(format!("there is no Appliance {name}: create it, or name another in spec.appliance")),
    }
}

/// What the coordinator said: in its stream, or at its end in its pod's termination message.
fn report(context: &Context, uid: &str, pods: &[Pod], attempt: u32) -> Option<Report> {
    let heard = context.followers.report(uid, attempt);
    match (heard, last_report(pods, attempt)) {
        (Some(heard), Some(last)) if heard.outcome.is_none() => {
            let checkpoint = last.checkpoint.or(heard.checkpoint.clone());
            Some(Report { outcome: last.outcome, saved: heard.saved || last.saved, checkpoint, ..heard })
        }
        (None, last) => last,
        (heard, _) => heard,
    }
}

async fn list_pods(job: &TrainJob, context: &Context) -> Result<Vec<Pod>, Error> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &job.namespace().unwrap_or_default());
    let selector = ListParams::default().labels(&Names::of(job).selector_text());
    Ok(pods.list(&selector).await.map_err(Error::api("list the job's pods"))?.items)
}

/// Records what was decided; whether it could be, from the version of the object it was decided from.
async fn update_status(job: &TrainJob, context: &Context, decided: &TrainJobStatus) -> Result<bool, Error> {
    let mut status = decided.clone();
    status.selector = Some(cs2_selector(job));
    let old = job.status.clone().unwrap_or_default();
    // Progress is another field manager's.
    status.progress.clone_from(&old.progress);
    status.leader_epoch = old.leader_epoch;
    if status == old {
        return Ok(true);
    }
    status.progress = None;
    status.leader_epoch = Some(context.epoch);
    let jobs: Api<TrainJob> = Api::namespaced(context.client.clone(), &job.namespace().unwrap_or_default());
    let patch = json!({
        "apiVersion": TrainJob::api_version(&()),
        "kind": TrainJob::kind(&()),
        "metadata": {"resourceVersion": job.resource_version(), "uid": job.uid()},
        "status": status,
    });
    let params = PatchParams::apply(MANAGER).force();
    match jobs.patch_status(&job.name_any(), &params, &Patch::Apply(&patch)).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(refused)) if refused.is_conflict() || refused.is_not_found() => Ok(false),
        Err(error) => Err(Error::api("record the job's status")(error)),
    }
}

async fn carry_out(job: &TrainJob, context: &Context, seen: &Seen, decision: &Decision) -> Result<(), Error> {
    for command in &decision.commands {
        match command {
            Command::Run { attempt, num_csx } => {
                let resolution = decision.status.resolved.as_ref();
                let resolution = resolution.ok_or_else(|| Error::Child("the job was never resolved".to_owned()))?;
                let known = context.understand(job, &seen.uid, &seen.cluster, *num_csx).map_err(Error::Child)?;
                apply::run(job, context, &seen.cluster, resolution, &known.1, *attempt, &seen.pods).await?;
            }
            Command::Stop { attempt, reason } => {
                // An operator that has just begun to lead follows nobody yet.
                apply::follow(job, context, decision.status.resolved.as_ref(), *attempt)?;
                context.followers.stop(&seen.uid, *attempt, reason);
            }
            Command::Remove { grace } => remove(job, context, &seen.pods, *grace).await?,
            Command::Forget => forget(job, context).await?,
        }
    }
    if decision.commands.is_empty() && decision.status.num_csx.is_none() {
        context.followers.end(&seen.uid);
    }
    debug_assert!(seen.needs.is_some() || seen.observed.resolution.is_err());
    Ok(())
}

/// Ends every pod that is not ending yet, or not soon enough.
async fn remove(job: &TrainJob, context: &Context, there: &[Pod], grace: u32) -> Result<(), Error> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &job.namespace().unwrap_or_default());
    for pod in there {
        let ends_in = pod.metadata.deletion_grace_period_seconds.filter(|_| pod.metadata.deletion_timestamp.is_some());
        if ends_in.is_some_and(|seconds| seconds <= i64::from(grace)) {
            continue;
        }
        let params = DeleteParams { grace_period_seconds: Some(grace), ..DeleteParams::default() };
        match pods.delete(&pod.name_any(), &params).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(Error::api("delete a pod")(error)),
        }
    }
    Ok(())
}

/// Deletes the job, whose time to live is over.
async fn forget(job: &TrainJob, context: &Context) -> Result<(), Error> {
    let jobs: Api<TrainJob> = Api::namespaced(context.client.clone(), &job.namespace().unwrap_or_default());
    let of_this_one = kube::api::Preconditions { uid: job.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(of_this_one), ..DeleteParams::background() };
    match jobs.delete(&job.name_any(), &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(Error::api("delete the job")(error)),
    }
}
