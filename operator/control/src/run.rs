//! Runs the two controllers: one reconciles jobs, the other the ledgers of appliances.
//!
//! ```text
//!  a job changed ───────────────┬──► reconcile the job ◄── its agents changed, its coordinator reported,
//!                               │                          a delay is over, the ledger granted systems
//!                               └──► reconcile the ledger of its appliance
//!  an appliance changed ────────┬──► reconcile its ledger
//!  (its spec, or it was deleted)└──► reconcile its queued jobs
//! ```
//!
//! * At most `MAX_CONCURRENT_RECONCILES` jobs are reconciled at a time, and one object never twice at a time.
//! * A failed reconcile is retried after `FAILURE_RETRY_INTERVAL`.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, Stream, StreamExt, TryStreamExt};
use kube::runtime::controller::{Action, Config};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{Controller, watcher};
use millrace_crds::{Appliance, TrainJob};
use millrace_lifecycle::is_waiting;
use millrace_protocol::error_chain;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::context::ControllerContext;
use crate::shutdown::wait_for_shutdown;
use crate::world::World;
use crate::{ledger, reconcile};

/// Reconciles of different jobs at the same time.
const MAX_CONCURRENT_RECONCILES: u16 = 8;
/// Delay after a failed reconcile.
const FAILURE_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Streams of the changes of a world.
pub struct WatchStreams {
    /// Jobs that were created or changed; drives the store of jobs.
    pub jobs: BoxStream<'static, watcher::Result<TrainJob>>,
    /// Appliances that were created or changed; drives their store.
    pub appliances: BoxStream<'static, watcher::Result<Appliance>>,
    /// Jobs that were created, changed or deleted, for the ledger.
    pub touched_jobs: BoxStream<'static, watcher::Result<TrainJob>>,
    /// Appliances that were created, changed or deleted, for the queued jobs.
    pub touched_appliances: BoxStream<'static, watcher::Result<Appliance>>,
    /// Jobs to be reconciled.
    pub reconcile_requests: mpsc::UnboundedReceiver<ObjectRef<TrainJob>>,
}

/// Runs both controllers until `shutdown` becomes true; running reconciles are completed. `also` adds further triggers
/// of this world to the controller of jobs.
pub async fn run<W: World>(
    control: Arc<ControllerContext<W>>,
    streams: WatchStreams,
    shutdown: watch::Receiver<bool>,
    also: impl FnOnce(Controller<TrainJob>) -> Controller<TrainJob>,
) {
    let WatchStreams { jobs, appliances, touched_jobs, touched_appliances, reconcile_requests } = streams;
    let weak_control = Arc::downgrade(&control);
    control.metrics.set_snapshot_source(weak_control.clone());
    control.watchdog.watch(weak_control);
    let _beating = control.heartbeat.beat(control.watchdog.beat_interval());
    let store = control.jobs.clone();
    let versions = Mutex::default();
    let notes = control.clone();
    let jobs = jobs.inspect_ok(move |job| notes.job_activity.changed(ObjectRef::from_obj(job)));
    let notes = control.clone();
    let reconcile_requests =
        UnboundedReceiverStream::new(reconcile_requests).inspect(move |job| notes.job_activity.changed(job.clone()));
    let notes = control.clone();
    let appliances =
        appliances.inspect_ok(move |appliance| notes.appliance_activity.changed(ObjectRef::from_obj(appliance)));
    let notes = control.clone();
    // The reconciles combine changes themselves: kube's debounce waits for a pause between them, which may never come.
    let jobs = Controller::for_stream(jobs, control.jobs.clone())
        .with_config(Config::default().concurrency(MAX_CONCURRENT_RECONCILES))
        .watches_stream(touched_appliances, move |appliance| match is_new(&versions, &appliance) {
            true => jobs_affected_by(&store.state(), &appliance),
            false => Vec::new(),
        })
        .reconcile_on(reconcile_requests)
        .graceful_shutdown_on(wait_for_shutdown(shutdown.clone()));
    let jobs = drain(also(jobs).run(reconcile::reconcile, retry_policy, control.clone()));
    let appliances = Controller::for_stream(appliances, control.appliances.clone())
        .watches_stream(touched_jobs, move |job| {
            let appliance = ObjectRef::new(&job.spec.appliance);
            notes.appliance_activity.changed(appliance.clone());
            Some(appliance)
        })
        .graceful_shutdown_on(wait_for_shutdown(shutdown.clone()));
    let appliances = drain(appliances.run(ledger::reconcile, retry_policy, control.clone()));
    let watching = async move {
        tokio::select! {
            () = control.watch_stores() => {}
            () = wait_for_shutdown(shutdown) => {}
        }
    };
    futures::join!(jobs, appliances, watching);
}

fn drain<'a>(reconciles: impl Stream + Send + 'a) -> BoxFuture<'a, ()> {
    Box::pin(reconciles.for_each(|_| std::future::ready(())))
}

/// The part of an appliance that matters to queued jobs: its existence and its spec. The ledger notifies jobs of their
/// grants, and a heartbeat in the status concerns no job.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ApplianceVersion {
    uid: Option<String>,
    generation: Option<i64>,
    is_deleted: bool,
}

/// Returns whether `appliance` differs from the last one seen, in the part that matters to queued jobs.
fn is_new(versions: &Mutex<HashMap<String, ApplianceVersion>>, appliance: &Appliance) -> bool {
    let metadata = &appliance.metadata;
    let version = ApplianceVersion {
        uid: metadata.uid.clone(),
        generation: metadata.generation,
        is_deleted: metadata.deletion_timestamp.is_some(),
    };
    // The map holds complete values only, so it is consistent after any panic.
    let mut versions = versions.lock().unwrap_or_else(PoisonError::into_inner);
    versions.insert(metadata.name.clone().unwrap_or_default(), version.clone()) != Some(version)
}

/// Returns the jobs that a change of an appliance may concern: those that are queued.
fn jobs_affected_by(jobs: &[Arc<TrainJob>], appliance: &Appliance) -> Vec<ObjectRef<TrainJob>> {
    let name = appliance.metadata.name.as_deref();
    let waiting = jobs.iter().filter(|job| Some(&*job.spec.appliance) == name && is_waiting(job));
    waiting.map(|job| ObjectRef::from_obj(&**job)).collect()
}

fn retry_policy<K, E: Error, C>(object: Arc<K>, error: &E, _: Arc<C>) -> Action
where
    K: kube::Resource<DynamicType = ()>,
{
    tracing::warn!(object = %ObjectRef::from_obj(&*object), "the reconcile failed: {}", error_chain(error));
    Action::requeue(FAILURE_RETRY_INTERVAL)
}
