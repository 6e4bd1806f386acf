//! Tests the real control loop over a stub world: a stuck loop is detected; a loop that is idle, disconnected from its
//! API server, or not leading is not reported.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use futures::stream::{self, BoxStream, StreamExt};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use millrace_control::metrics::Metrics;
use millrace_control::watchdog::Watchdog;
use millrace_control::world::Error as Ended;
use millrace_control::{
    AgentsFound, AttemptContext, ContextParts, ControllerContext, DocumentError, JobSite, JournalEndpoint,
    ModelDirLocation, PriorityValues, SiteError, WatchStreams, WorkerPool, World,
};
use millrace_crds::{
    Appliance, ApplianceSpec, ApplianceStatus, Grant, JobProgress, StoredParams, TrainJob, TrainJobSpec, TrainJobStatus,
};
use millrace_lifecycle::JobEvent;
use millrace_params::BlobDigest;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

/// Maximum time without progress of the loops in these tests.
const STUCK_BOUND: Duration = Duration::from_secs(3);
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Behavior of the world's `find`.
enum Behaviour {
    Answers,
    /// Returns an error, as with an unreachable API server.
    Refuses,
    /// Blocks the thread until the sender is dropped.
    Blocks(Mutex<mpsc::Receiver<()>>),
}

struct StubWorld(Behaviour);

#[derive(Debug, thiserror::Error)]
#[error("the API server can't be reached")]
struct StubError;

impl World for StubWorld {
    type Error = StubError;
    type Handle = ();

    const AGENTS_ARE_REPLACEABLE: bool = false;

    async fn observe(&self, _: &TrainJob) -> Result<AgentsFound<()>, StubError> {
        match &self.0 {
            Behaviour::Answers => {}
            Behaviour::Refuses => return Err(StubError),
            Behaviour::Blocks(until) => drop(until.lock().unwrap().recv()),
        }
        Ok(AgentsFound { agents: Vec::new(), termination_report: None, handle: () })
    }

    async fn ensure_agents(&self, _: &AttemptContext<'_>, (): &()) -> Result<(), Ended<Self>> {
        Ok(())
    }

    async fn remove_agents(&self, _: &TrainJob, (): &(), _: u32) -> Result<(), StubError> {
        Ok(())
    }

    async fn remove_agent(&self, _: &TrainJob, (): &(), _: &str, _: u32) -> Result<(), StubError> {
        Ok(())
    }

    async fn finalize(&self, _: &TrainJob) -> Result<Option<Duration>, StubError> {
        Ok(None)
    }

    async fn has_leftover_agents(&self, _: &str, _: &str) -> Result<bool, StubError> {
        Ok(false)
    }

    async fn leftover_grants(&self, _: &str) -> Result<Vec<Grant>, StubError> {
        if matches!(self.0, Behaviour::Refuses) { Err(StubError) } else { Ok(Vec::new()) }
    }

    async fn set_in_use(&self, _: &Appliance, _: bool) -> Result<bool, StubError> {
        Ok(false)
    }

    async fn record_status(&self, _: &TrainJob, _: &TrainJobStatus) -> Result<bool, StubError> {
        Ok(true)
    }

    async fn record_progress(&self, _: &ObjectRef<TrainJob>, _: &str, _: &JobProgress) -> Result<(), StubError> {
        Ok(())
    }

    async fn record_ledger(&self, _: &Appliance, _: ApplianceStatus) -> Result<bool, StubError> {
        Ok(true)
    }

    async fn publish_job_event(&self, _: &TrainJob, _: &JobEvent) {}

    async fn publish_appliance_event(&self, _: &Appliance, _: &JobEvent) {}

    async fn delete_job(&self, _: &TrainJob) -> Result<(), StubError> {
        Ok(())
    }

    async fn priorities(&self) -> Result<PriorityValues, StubError> {
        Ok(PriorityValues::default())
    }

    fn journal_endpoint(&self, _: &ObjectRef<TrainJob>, _: &str, _: u32) -> Option<JournalEndpoint> {
        None
    }
}

struct StubSite;

impl JobSite for StubSite {
    fn image(&self) -> Option<String> {
        None
    }

    fn model_dir(&self, _: &TrainJob, written: &str) -> Result<ModelDirLocation, SiteError> {
        Ok(ModelDirLocation { path: written.into(), claim: None })
    }

    fn graph_document(&self, _: &TrainJob, digest: &BlobDigest) -> Result<Vec<u8>, DocumentError> {
        Err(DocumentError::Unusable(format!("no upload {digest}").into()))
    }

    fn check_readable(&self, _: &TrainJob, _: &str) -> Result<(), SiteError> {
        Ok(())
    }
}

/// Returns a store of `objects`; an empty one, as before the first list, if not `filled`.
fn view<K>(objects: &[K], filled: bool) -> Store<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + 'static,
{
    let (view, mut writer) = reflector::store();
    if filled {
        writer.apply_watcher_event(&Event::Init);
        objects.iter().for_each(|object| writer.apply_watcher_event(&Event::InitApply(object.clone())));
        writer.apply_watcher_event(&Event::InitDone);
    }
    // Dropping the writer would end all waits for the store.
    std::mem::forget(writer);
    view
}

fn changes<K: Clone + Send + 'static>(objects: &[K]) -> BoxStream<'static, watcher::Result<K>> {
    let changed: Vec<_> = objects.iter().cloned().map(Ok).collect();
    stream::iter(changed).chain(stream::pending()).boxed()
}

fn job() -> TrainJob {
    let mut job = TrainJob::new("job", TrainJobSpec::new(1, StoredParams::default()));
    job.metadata.namespace = Some("team".to_owned());
    job.metadata.uid = Some("uid-of-a-job".to_owned());
    job.metadata.labels = Some(BTreeMap::new());
    job
}

/// A loop on threads of its own.
struct Running {
    watchdog: Arc<Watchdog>,
    metrics: Arc<Metrics>,
    runtime: Option<Runtime>,
    _ending: watch::Sender<bool>,
}

impl Running {
    fn start(behaviour: Behaviour, jobs: &[TrainJob], filled: bool) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (watchdog, metrics) = (Arc::new(Watchdog::new(STUCK_BOUND)), Arc::new(Metrics::default()));
        let appliances = [Appliance::new("default", ApplianceSpec::default())];
        let (reconcile_requests, received_requests) = tokio::sync::mpsc::unbounded_channel();
        let (shutdown, ended) = watch::channel(false);
        let control = ControllerContext::new(ContextParts {
            world: Arc::new(StubWorld(behaviour)),
            site: Arc::new(StubSite),
            jobs: view(jobs, filled),
            appliances: view(&appliances, filled),
            metrics: metrics.clone(),
            watchdog: watchdog.clone(),
            reconcile_requests,
            workers: WorkerPool::for_this_machine(),
        });
        let streams = WatchStreams {
            jobs: changes(jobs),
            appliances: changes(&appliances),
            touched_jobs: changes(jobs),
            touched_appliances: changes(&appliances),
            reconcile_requests: received_requests,
        };
        runtime.spawn(millrace_control::run(Arc::new(control), streams, ended, |jobs| jobs));
        Self { watchdog, metrics, runtime: Some(runtime), _ending: shutdown }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Does not wait for threads that are stuck.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Waits until `condition` returns something.
fn until<T>(what: &str, running: &Running, condition: impl Fn() -> Option<T>) -> T {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let began = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "{what} did not come about:\n{}", running.metrics.render());
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(20)).await });
    }
}

#[test]
fn stuck_loop_is_detected() {
    let (release, blocked) = mpsc::channel::<()>();
    let stuck = Running::start(Behaviour::Blocks(Mutex::new(blocked)), &[job()], true);
    let busy = Running::start(Behaviour::Answers, &[job()], true);
    let others = [
        ("idle", Running::start(Behaviour::Answers, &[], true)),
        ("cut off from its API server", Running::start(Behaviour::Refuses, &[job()], true)),
        ("waiting for its first list", Running::start(Behaviour::Answers, &[job()], false)),
    ];
    let candidate = Watchdog::new(STUCK_BOUND);

    let message = until("a stuck loop", &stuck, || stuck.watchdog.stuck());
    assert!(message.starts_with("reconciles of jobs: ") && message.contains("1 are running"), "{message}");
    assert!(!message.contains("job ") && !message.contains("team"), "probes ask for no token: {message}");
    let page = stuck.metrics.render();
    assert!(page.contains("controller_runtime_active_workers{controller=\"trainjob\"} 1\n"), "{page}");
    for (what, other) in &others {
        assert_eq!(other.watchdog.stuck(), None, "a loop that is {what} is not stuck");
    }
    assert_eq!(candidate.stuck(), None, "who does not lead has nothing to do");
    assert_eq!(busy.watchdog.stuck(), None);

    drop(release);
    until("the end of the visit that was stuck", &stuck, || stuck.watchdog.stuck().is_none().then_some(()));

    // Blocks all threads of a loop without work.
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    for _ in 0..2 {
        let blocked = blocked.clone();
        busy.runtime.as_ref().unwrap().spawn(async move { drop(blocked.lock().map(|blocked| blocked.recv())) });
    }
    let message = until("a runtime that is stuck", &busy, || busy.watchdog.stuck());
    assert!(message.contains("the threads of the control loop"), "{message}");
    busy.watchdog.clear();
    assert_eq!(busy.watchdog.stuck(), None, "it does not lead any more");
    drop(release);
}
