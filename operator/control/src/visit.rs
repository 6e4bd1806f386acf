//! A visit to a job, in five steps: what is there (dereference), can it run (validate), what is to be (decide and build),
//! say so (update_status), make it so (apply).
//!
//! What was decided is recorded before anything is done about it: an attempt is in the status before its first agent
//! exists, with the version of the object that the decision was made from, so that of two who decide one is refused.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use millrace_crds::decide::{Command, Decision, Granted, Observed, Refusal, Report, decide, decide_leaving};
use millrace_crds::{
    Appliance, ClusterSpec, ConditionType, QueuePlace, QueueReason, Resolution, State, TRACEPARENT_ANNOTATION,
    TrainJob, TrainJobStatus,
};
use millrace_traces::TraceParent;
use tokio::time::timeout;
use tracing::Instrument;

use crate::control::Control;
use crate::launch::resolved_job;
use crate::ledger::waits;
use crate::understand::{self, Understood};
use crate::world::{Attempt, Error, Found, World};

/// After a record that was refused because somebody else wrote meanwhile.
const AFTER_CONFLICT: Duration = Duration::from_millis(200);

/// A visit that takes longer is given up, and made again. Creating many pods takes a while; those that exist by then
/// stay.
const VISIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Planning that takes longer than this is told in the job's status.
const UNTOLD_PLANNING: Duration = Duration::from_secs(2);

/// What is there of a job.
struct Seen<T> {
    uid: String,
    there: T,
    cluster: ClusterSpec,
    observed: Observed,
}

/// What a job comes to on its appliance.
struct Known {
    appliance: Option<Arc<Appliance>>,
    cluster: ClusterSpec,
    /// Nothing while it is being planned.
    understood: Option<understand::Result>,
}

/// Visits a job, if that is due.
///
/// # Errors
/// The world's, or the job can't be served.
pub async fn reconcile<W: World>(job: Arc<TrainJob>, control: Arc<Control<W>>) -> Result<Action, Error<W>> {
    let began = Instant::now();
    let Some(uid) = job.uid() else { return Ok(Action::await_change()) };
    let _noted = control.job_activity.begin(ObjectRef::from_obj(&*job));
    let known = match job.metadata.deletion_timestamp {
        Some(_) => None,
        None => match plan(&job, &uid, &control) {
            Ok(known) => Some(known),
            // The job is visited once its plan is there.
            Err(look_again) => return Ok(look_again.map_or_else(Action::await_change, Action::requeue)),
        },
    };
    if let Err(wait) = control.job_changes.begin_visit(&uid, began) {
        control.job_activity.changed(ObjectRef::from_obj(&*job));
        return Ok(Action::requeue(wait));
    }
    let visiting = async {
        match known {
            Some(known) => visit(&job, uid, known, &control).await,
            None => leave(&job, &uid, &control).await,
        }
    };
    let span = tracing::info_span!(
        "visit",
        job = %ObjectRef::from_obj(&*job),
        job.uid = job.uid(),
        attempt = tracing::field::Empty,
        state.before = tracing::field::Empty,
        state.after = tracing::field::Empty,
    );
    if let Some(parent) = submission(&job) {
        parent.adopt(&span);
    }
    let done =
        timeout(VISIT_TIMEOUT, visiting.instrument(span)).await.unwrap_or(Err(crate::Error::TimedOut(VISIT_TIMEOUT)));
    control.metrics.visited(began.elapsed(), done.is_ok());
    done
}

/// The span of the request that submitted the job, while its first attempt has not begun to train: later visits are
/// traces of their own, or one trace would grow as long as the job runs. Anybody who may write the job wrote it.
fn submission(job: &TrainJob) -> Option<TraceParent> {
    let begins = |status: &TrainJobStatus| status.attempt.unwrap_or(0) <= 1 && status.progress.is_none();
    job.status.as_ref().is_none_or(begins).then(|| job.annotations().get(TRACEPARENT_ANNOTATION)?.parse().ok())?
}

/// Finds out what a job comes to. Where that is not known yet it is planned; the error is when to look again at the
/// latest.
fn plan<W: World>(job: &TrainJob, uid: &str, control: &Control<W>) -> Result<Known, Option<Duration>> {
    let appliance = control.appliance(&job.spec.appliance);
    let cluster = appliance.as_ref().map(|appliance| appliance.spec.clone()).unwrap_or_default();
    let num_csx = job.status.as_ref().and_then(|status| status.num_csx).unwrap_or(job.spec.num_csx);
    let understood = match control.understood(job, uid, &cluster, num_csx) {
        Understood::Known(result) => Some(result),
        Understood::Pending(_) if !waits(job) => return Err(None),
        Understood::Pending(since) => match UNTOLD_PLANNING.checked_sub(since.elapsed()) {
            Some(untold) => return Err(Some(untold)),
            None => None,
        },
    };
    Ok(Known { appliance, cluster, understood })
}

/// Visits a deleted job. The ledger takes its systems back once its agents are gone.
async fn leave<W: World>(job: &TrainJob, uid: &str, control: &Control<W>) -> Result<Action, Error<W>> {
    control.followers.end(uid);
    let again = control.world.leave(job).await?;
    if let Some(decision) = decide_leaving(job, Timestamp::now())
        && control.world.record(job, &decision.status).await?
    {
        for event in &decision.events {
            control.world.publish(job, event).await;
        }
    }
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

async fn visit<W: World>(job: &TrainJob, uid: String, known: Known, control: &Control<W>) -> Result<Action, Error<W>> {
    let _under_way = control.begin_visit(&uid);
    let seen = dereference(job, control, uid, known).await?;
    let decision = decide(job, &seen.observed);
    if !control.world.record(job, &decision.status).await? {
        // Somebody else wrote meanwhile: what was decided is of yesterday.
        return Ok(Action::requeue(AFTER_CONFLICT));
    }
    trace(job, &decision);
    let granted = control.grant(&job.spec.appliance, &seen.uid).and_then(|grant| Some(grant.since?.0));
    control.metrics.recorded(job, &decision.status, granted, seen.observed.now);
    for event in &decision.events {
        control.world.publish(job, event).await;
    }
    match carry_out(job, control, &seen, &decision).await {
        // Decided on at once. A job that works is only looked at again: what was refused is not its agents.
        Err(Error::<W>::Refused(why)) if !decision.status.is(ConditionType::Progressing) => {
            tracing::warn!(job = %ObjectRef::from_obj(job), "the API server refused a change: {why}");
            return Ok(Action::requeue(AFTER_CONFLICT));
        }
        done => done?,
    }
    Ok(decision.look_again.map_or_else(Action::await_change, |seconds| Action::requeue(Duration::from_secs(seconds))))
}

/// Puts into the span of a visit what came of it.
fn trace(job: &TrainJob, decision: &Decision) {
    let span = tracing::Span::current();
    let state = |status: Option<&TrainJobStatus>| status.and_then(TrainJobStatus::state).map(State::as_str);
    span.record("state.before", state(job.status.as_ref()));
    span.record("state.after", state(Some(&decision.status)));
    span.record("attempt", decision.status.attempt);
}

/// Finds out what is there.
async fn dereference<W: World>(
    job: &TrainJob,
    control: &Control<W>,
    uid: String,
    Known { appliance, cluster, understood }: Known,
) -> Result<Seen<W::There>, Error<W>> {
    let Found { agents, last, there } = control.world.find(job).await?;
    let grant = appliance.as_ref().and_then(|_| control.grant(&job.spec.appliance, &uid));
    let attempt = job.status.as_ref().and_then(|status| status.attempt).unwrap_or(0);
    let place = match &appliance {
        Some(_) => control.place(&uid),
        None => Some(no_appliance(&job.spec.appliance)),
    };
    let known = understood.as_ref().and_then(|known| known.as_ref().ok());
    let observed = Observed {
        now: Timestamp::now(),
        agents,
        grant: grant.map(|grant| Granted { attempt: grant.attempt, systems: grant.systems }),
        place,
        report: report(control.followers.report(&uid, attempt), last.filter(|last| last.attempt == attempt)),
        resolution: understood
            .as_ref()
            .map(|known| known.as_ref().map(|known| known.0.clone()).map_err(ToString::to_string)),
        refusal: control.refusal(&uid, attempt),
        max_deadlines: cluster.max_deadlines,
        agents_refused: control.understanding.agents_refused(job),
        largest_num_csx: known.map(|known| known.1.largest_num_csx),
        wanted: known.map(|known| known.1.wanted.clone()).unwrap_or_default(),
    };
    Ok(Seen { uid, there, cluster, observed })
}

fn no_appliance(name: &str) -> QueuePlace {
    QueuePlace {
        position: None,
        reason: Some(QueueReason::NoAppliance.as_str().to_owned()),
        message: Some(format!("there is no Appliance {name}: create it, or name another in spec.appliance")),
    }
}

/// What the coordinator said: as it was `heard` in its stream, or in what it left behind at its end.
fn report(heard: Option<Report>, last: Option<Report>) -> Option<Report> {
    match (heard, last) {
        (Some(heard), Some(last)) if heard.outcome.is_none() => {
            let checkpoint = last.checkpoint.or(heard.checkpoint.clone());
            Some(Report { outcome: last.outcome, saved: heard.saved || last.saved, checkpoint, ..heard })
        }
        (None, last) => last,
        (heard, _) => heard,
    }
}

async fn carry_out<W: World>(
    job: &TrainJob,
    control: &Control<W>,
    seen: &Seen<W::There>,
    decision: &Decision,
) -> Result<(), Error<W>> {
    for command in &decision.commands {
        match command {
            Command::Run { attempt, num_csx } => {
                let resolution = decision.status.resolved.as_ref();
                let resolution = resolution.ok_or_else(|| Error::<W>::Job("the job was never resolved".to_owned()))?;
                // Otherwise this command is decided on again by the visit that follows.
                let Some(known) = control.understood(job, &seen.uid, &seen.cluster, *num_csx).known() else { continue };
                let known = known.map_err(|why| Error::<W>::Job(why.to_string()))?;
                let number = *attempt;
                let systems = &decision.status.systems;
                let attempt = Attempt { job, resolution, cluster: &seen.cluster, number, needs: &known.1, systems };
                let span = tracing::info_span!("launch", attempt = number, systems = systems.len());
                let made = control.world.run(&attempt, &seen.there).instrument(span).await;
                control.set_refusal(&seen.uid, number, made.as_ref().err().map(refusal::<W>));
                made?;
                // Where its coordinator is may be known only now; a job of a second has told all before a second try.
                follow(job, control, Some(resolution), number);
            }
            Command::Follow { attempt } => follow(job, control, decision.status.resolved.as_ref(), *attempt),
            Command::Stop { attempt, reason } => {
                // A loop that has just begun follows nobody yet.
                follow(job, control, decision.status.resolved.as_ref(), *attempt);
                control.followers.stop(&seen.uid, *attempt, reason);
            }
            Command::Remove { grace } => control.world.remove(job, &seen.there, *grace).await?,
            Command::Forget => control.world.forget(job).await?,
        }
    }
    if decision.commands.is_empty() && decision.status.num_csx.is_none() {
        control.followers.end(&seen.uid);
    }
    Ok(())
}

/// What a job's user is told of an attempt that could not be made whole.
fn refusal<W: World>(error: &Error<W>) -> Refusal {
    Refusal { message: error.to_string(), is_temporary: !matches!(error, Error::<W>::Refused(_)) }
}

/// Follows the attempt's coordinator, if that is not done yet.
fn follow<W: World>(job: &TrainJob, control: &Control<W>, resolution: Option<&Resolution>, attempt: u32) {
    let Some(resolution) = resolution else { return };
    // What its coordinator tells is heard even if this program can't read the record.
    let resolved = resolved_job(resolution).ok().map(|(resolved, _)| resolved);
    control.followers.follow(job, attempt, resolved.as_ref());
}
