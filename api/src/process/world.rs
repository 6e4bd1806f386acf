//! The world of one machine: jobs in a database, agents as processes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use millrace_agents::launch::{LocalRun, ProcessGroup};
use millrace_bucket::CopyEvent;
use millrace_control::launch::launch;
use millrace_control::record::ResolvedJobError;
use millrace_control::report::report_from_outcome;
use millrace_control::world::Error as Ended;
use millrace_control::{AgentsFound, AttemptContext, JournalEndpoint, PriorityValues, World};
use millrace_crds::{Appliance, ApplianceStatus, ConditionType, Grant, JobProgress, TrainJob, TrainJobStatus};
use millrace_lifecycle::{CoordinatorReport, JobEvent};
use millrace_params::ObjectName;
use millrace_protocol::error_chain;
use millrace_protocol::launch::LaunchDocument;
use millrace_store::Store;
use millrace_telemetry::journal::AttemptOutcome;
use tokio::sync::mpsc::UnboundedSender;

use super::bucket_model_dirs::{BucketModelDirs, event_reason};
use super::directories::ServerDirectories;
use super::objects::ObjectStore;
use super::observe::{lost_coordinator, observed_agent};
use super::path_error::PathError;
use super::start_checkpoint::{RESUMES_EARLIER_JOB, earlier_checkpoint_note};
use crate::blobs::BlobFetcher;
use crate::error::ApiError;
use crate::journal_copy;

/// Seconds in which the processes of a deleted job may end.
const DELETION_GRACE_SECONDS: u32 = 10;

/// Time for which a reconcile waits for uploads. Fetches continue after it, and a later reconcile starts the job.
const FETCH_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs jobs as processes of this machine.
pub struct ProcessWorld {
    /// Jobs and appliances.
    pub objects: Arc<ObjectStore>,
    /// The server's directories.
    pub directories: ServerDirectories,
    /// Interpreter of Python datasets; `None` for that of the client.
    pub python: Option<PathBuf>,
    /// Fetches uploads from the bucket; `None` if the server's directories have them.
    pub fetcher: Option<BlobFetcher>,
    /// Uploads model_dirs to a bucket; `None` if they are only in the server's directories.
    pub model_dirs: Option<BucketModelDirs>,
    reconcile_requests: UnboundedSender<ObjectRef<TrainJob>>,
    process_groups: Mutex<HashMap<String, RunningAttempt>>,
}

/// The processes of a job.
#[derive(Clone)]
struct RunningAttempt {
    attempt: u32,
    /// Number of systems that it has processes for.
    num_csx: u32,
    process_group: Option<Arc<ProcessGroup>>,
    /// Time at which processes that were requested to end are killed.
    kill_time: Option<Timestamp>,
}

/// The observed processes of a job.
#[derive(Clone, Debug, Default)]
pub struct FoundProcesses {
    attempt: Option<u32>,
}

impl ProcessWorld {
    /// Creates the world, without processes. Attempts that ran when the server ended are reported as agents that are
    /// lost; entries of their journal files that the database lacks are copied.
    ///
    /// # Errors
    /// The database fails.
    pub async fn new(
        objects: Arc<ObjectStore>,
        directories: ServerDirectories,
        python: Option<PathBuf>,
        fetcher: Option<BlobFetcher>,
        model_dirs: Option<BucketModelDirs>,
        reconcile_requests: UnboundedSender<ObjectRef<TrainJob>>,
    ) -> Result<Self, ApiError> {
        let mut running_attempts = HashMap::new();
        for job in objects.live_jobs().await? {
            let uid = job.uid().unwrap_or_default();
            let status = job.status.unwrap_or_default();
            if let Some(model_dir) = model_dir_of(&status) {
                copy_journal_files(objects.store(), &uid, model_dir).await;
            }
            if let Some(attempt) = status.attempt.filter(|_| status.is(ConditionType::Admitted)) {
                running_attempts
                    .insert(uid, RunningAttempt { attempt, num_csx: 0, process_group: None, kill_time: None });
            }
        }
        let process_groups = Mutex::new(running_attempts);
        Ok(Self { objects, directories, python, fetcher, model_dirs, reconcile_requests, process_groups })
    }

    fn running_attempts(&self) -> MutexGuard<'_, HashMap<String, RunningAttempt>> {
        self.process_groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running_attempt(&self, uid: &str) -> Option<RunningAttempt> {
        self.running_attempts().get(uid).cloned()
    }

    /// Ends the processes of a deleted job.
    pub fn end_deleted(self: &Arc<Self>, uid: &str) {
        let Some(group) = self.running_attempt(uid).and_then(|running| running.process_group) else {
            self.running_attempts().remove(uid);
            self.finish_model_dir(uid);
            return;
        };
        group.terminate();
        let (world, uid) = (self.clone(), uid.to_owned());
        tokio::spawn(async move {
            kill_after(&group, DELETION_GRACE_SECONDS).await;
            drop(world.running_attempts().remove(&uid));
            world.finish_model_dir(&uid);
        });
    }

    /// Makes every coordinator save its state, and waits at most `timeout` until all processes have ended.
    pub async fn shut_down(&self, timeout: Duration) {
        let groups: Vec<Arc<ProcessGroup>> =
            self.running_attempts().values().filter_map(|running| running.process_group.clone()).collect();
        groups.iter().for_each(|group| group.terminate());
        let all_ended = async {
            futures::future::join_all(groups.iter().map(|group| group.wait())).await;
            if let Some(model_dirs) = &self.model_dirs {
                model_dirs.shut_down().await;
            }
        };
        if tokio::time::timeout(timeout, all_ended).await.is_err() {
            let seconds = timeout.as_secs();
            tracing::warn!("not all agents have ended, or files were uploaded, within {seconds} s; agents are killed");
        }
    }

    /// Uploads the rest of the model_dir of a job that has finished or was deleted.
    fn finish_model_dir(&self, uid: &str) {
        if let Some(model_dirs) = &self.model_dirs {
            model_dirs.finish(uid);
        }
    }

    /// Makes sure that the files of the job's model_dir are in the server's directories, within [`FETCH_TIMEOUT`].
    async fn open_model_dir(&self, uid: &str, launch: &LaunchDocument) -> Result<(), Ended<Self>> {
        let Some(model_dirs) = &self.model_dirs else { return Ok(()) };
        let (objects, job) = (self.objects.clone(), uid.to_owned());
        let report = move |event: CopyEvent| {
            let Some(reason) = event_reason(&event) else { return };
            let (objects, job) = (objects.clone(), job.clone());
            tokio::spawn(async move {
                if let Err(error) = objects.add_event(&job, event.is_warning(), reason, &event.to_string()).await {
                    tracing::warn!(uid = %job, "can't publish the event {reason}: {}", error_chain(&error));
                }
            });
        };
        let max_checkpoints = launch.job.run.checkpoint_limit();
        let opened = model_dirs.open(uid, &launch.model_dir, max_checkpoints, Arc::new(report), FETCH_TIMEOUT).await;
        opened.map_err(|error| Ended::<Self>::Uploads(error.into()))
    }

    /// Adds an event to a new job that resumes from the checkpoint of an earlier job without having named it.
    async fn report_earlier_checkpoint(&self, uid: &str, launch: &LaunchDocument) {
        let launch = launch.clone();
        let found = tokio::task::spawn_blocking(move || earlier_checkpoint_note(&launch)).await;
        let Some(message) = found.ok().flatten() else { return };
        if let Err(error) = self.objects.add_event(uid, false, RESUMES_EARLIER_JOB, &message).await {
            tracing::warn!(%uid, "can't publish the event {RESUMES_EARLIER_JOB}: {}", error_chain(&error));
        }
    }

    /// Copies the rest of the journal of a job that finishes with the status of `decided`, so that the curve of a
    /// finished job is complete. The copy over the network lags if the coordinator was replaced shortly before.
    async fn complete_history(&self, old: &TrainJobStatus, decided: &TrainJob) {
        let Some(status) = decided.status.as_ref() else { return };
        let finishes = status.is(ConditionType::Finished) && !old.is(ConditionType::Finished);
        if let Some(model_dir) = model_dir_of(status).filter(|_| finishes) {
            let uid = decided.uid().unwrap_or_default();
            copy_journal_files(self.objects.store(), &uid, model_dir).await;
            self.finish_model_dir(&uid);
        }
    }

    /// Adds the processes of a running attempt that was resized to more systems.
    fn add_processes(&self, attempt: &AttemptContext<'_>, uid: &str) -> Result<(), Ended<Self>> {
        let num_csx = attempt.system_count();
        let Some(RunningAttempt { process_group: Some(group), num_csx: before, .. }) = self.running_attempt(uid) else {
            return Ok(());
        };
        if before != num_csx {
            let run = self.local_run(attempt, uid).map_err(|error| Ended::<Self>::Refused(error.into()))?;
            group.add_agents(run);
            if let Some(running) = self.running_attempts().get_mut(uid) {
                running.num_csx = num_csx;
            }
        }
        Ok(())
    }

    /// Makes sure that the uploads of a job are in the server's directories, within [`FETCH_TIMEOUT`].
    async fn fetch_uploads(&self, job: &TrainJob) -> Result<(), Ended<Self>> {
        let Some(fetcher) = &self.fetcher else { return Ok(()) };
        fetcher.fetch_job(job, FETCH_TIMEOUT).await.map_err(|error| Ended::<Self>::Uploads(error.into()))
    }

    /// Returns the launch of an attempt, with the paths of this machine.
    fn local_run(&self, attempt: &AttemptContext<'_>, uid: &str) -> Result<LocalRun, LocalRunError> {
        let mut launch = launch(attempt)?;
        let locate = |path: &mut String| {
            *path = self.directories.locate(attempt.job, path)?.display().to_string();
            Ok::<(), PathError>(())
        };
        let inputs = [Some(&mut launch.job.train_input), launch.job.eval_input.as_mut()];
        let data = inputs.into_iter().flatten().filter_map(|input| input.paths_mut()).flatten();
        data.chain(&mut launch.job.model.graph).try_for_each(locate)?;
        if let Some(path) = launch.resume.checkpoint_path.take() {
            launch.resume.checkpoint_path = Some(self.directories.locate(attempt.job, &path.display().to_string())?);
        }
        let uid = ObjectName::new(uid).map_err(|source| PathError::Name { field: "metadata.uid", source })?;
        let last_report = self.directories.last_report(&uid, attempt.number);
        // With no roots, its agents could access nothing; this directory always exists.
        self.directories.make_model_dirs(attempt.job)?;
        self.directories.make_job_files(attempt.job)?;
        let roots = self.directories.roots_of(attempt.job);
        let python = self.python.clone();
        Ok(LocalRun { last_report: Some(last_report), python, roots, ..LocalRun::new(launch) })
    }
}

/// Why an attempt can't be started on this machine.
#[derive(Debug, thiserror::Error)]
enum LocalRunError {
    /// The job's record can't be used.
    #[error(transparent)]
    Record(#[from] ResolvedJobError),
    /// The job can't use a path.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// Returns the model_dir of a resolved job.
fn model_dir_of(status: &TrainJobStatus) -> Option<&Path> {
    status.resolved.as_ref()?.model_dir.as_deref().map(Path::new)
}

/// Copies the entries of a job's journal that only its files have. A failure is logged.
async fn copy_journal_files(store: &Store, uid: &str, model_dir: &Path) {
    journal_copy::log_catch_up_failure(journal_copy::catch_up(store, uid, model_dir).await, uid);
}

/// Waits until all processes have ended, and kills those that have not after `grace` seconds.
async fn kill_after(group: &ProcessGroup, grace: u32) {
    if tokio::time::timeout(Duration::from_secs(grace.into()), group.wait()).await.is_err() {
        group.kill();
        group.wait().await;
    }
}

impl World for ProcessWorld {
    type Error = ApiError;
    type Handle = FoundProcesses;

    /// The process group of an attempt replaces its processes.
    const AGENTS_ARE_REPLACEABLE: bool = false;

    async fn observe(&self, job: &TrainJob) -> Result<AgentsFound<FoundProcesses>, ApiError> {
        let uid = job.uid().unwrap_or_default();
        let Some(RunningAttempt { attempt, process_group: group, kill_time, .. }) = self.running_attempt(&uid) else {
            return Ok(AgentsFound { agents: Vec::new(), termination_report: None, handle: FoundProcesses::default() });
        };
        let found = FoundProcesses { attempt: Some(attempt) };
        let Some(group) = group else {
            return Ok(AgentsFound {
                agents: vec![lost_coordinator(job, attempt)],
                termination_report: None,
                handle: found,
            });
        };
        let last = last_report(&self.directories, &uid, attempt).await;
        if kill_time.is_some() && group.has_ended() {
            self.running_attempts().remove(&uid);
            return Ok(AgentsFound { agents: Vec::new(), termination_report: last, handle: FoundProcesses::default() });
        }
        let outcome = last.as_ref().and_then(|report| report.outcome.as_ref());
        let agents = group
            .statuses()
            .into_iter()
            .map(|process| observed_agent(job, attempt, process, kill_time.is_some(), outcome))
            .collect();
        Ok(AgentsFound { agents, termination_report: last, handle: found })
    }

    async fn ensure_agents(&self, attempt: &AttemptContext<'_>, found: &FoundProcesses) -> Result<(), Ended<Self>> {
        let uid = attempt.job.uid().unwrap_or_default();
        if found.attempt.is_some() {
            return self.add_processes(attempt, &uid);
        }
        self.fetch_uploads(attempt.job).await?;
        let run = self.local_run(attempt, &uid).map_err(|error| Ended::<Self>::Refused(error.into()))?;
        self.open_model_dir(&uid, &run.launch).await?;
        if attempt.number == 1 {
            self.report_earlier_checkpoint(&uid, &run.launch).await;
        }
        let (reconcile_requests, job) = (self.reconcile_requests.clone(), ObjectRef::from_obj(attempt.job));
        let changed = Arc::new(move || {
            // The receiver is dropped when the server shuts down.
            let _ = reconcile_requests.send(job.clone());
        });
        let started = ProcessGroup::start(&run, changed).await;
        let group = Arc::new(started.map_err(|error| Ended::<Self>::Refused(error.into()))?);
        if let Some(journal) = group.journal().cloned() {
            let (store, uid) = (self.objects.store().clone(), uid.clone());
            let model_dir = PathBuf::from(attempt.resolution.model_dir.clone().unwrap_or_default());
            tokio::spawn(async move {
                journal_copy::copy(&store, &uid, &journal).await;
                copy_journal_files(&store, &uid, &model_dir).await;
            });
        }
        let (number, num_csx) = (attempt.number, attempt.system_count());
        let running = RunningAttempt { attempt: number, num_csx, process_group: Some(group), kill_time: None };
        self.running_attempts().insert(uid, running);
        Ok(())
    }

    async fn remove_agent(&self, job: &TrainJob, _: &FoundProcesses, name: &str, _: u32) -> Result<(), ApiError> {
        let group = self.running_attempt(&job.uid().unwrap_or_default()).and_then(|running| running.process_group);
        if let Some(group) = group {
            group.remove_agent(name);
        }
        Ok(())
    }

    async fn remove_agents(&self, job: &TrainJob, found: &FoundProcesses, grace: u32) -> Result<(), ApiError> {
        let uid = job.uid().unwrap_or_default();
        let now = Timestamp::now();
        let mut running_attempts = self.running_attempts();
        let Some(running) = running_attempts.get_mut(&uid).filter(|running| Some(running.attempt) == found.attempt)
        else {
            return Ok(());
        };
        let Some(group) = running.process_group.clone() else {
            // It has no processes, only the record that they are lost.
            running_attempts.remove(&uid);
            let _ = self.reconcile_requests.send(ObjectRef::from_obj(job));
            return Ok(());
        };
        let kill_time = now + Duration::from_secs(grace.into());
        if running.kill_time.is_none_or(|earlier| kill_time < earlier) {
            running.kill_time = Some(kill_time);
            group.terminate();
            let (reconcile_requests, job) = (self.reconcile_requests.clone(), ObjectRef::from_obj(job));
            tokio::spawn(async move {
                kill_after(&group, grace).await;
                let _ = reconcile_requests.send(job);
            });
        }
        Ok(())
    }

    async fn finalize(&self, _: &TrainJob) -> Result<Option<Duration>, ApiError> {
        // Here a deleted job disappears at once.
        Ok(None)
    }

    async fn has_leftover_agents(&self, _: &str, uid: &str) -> Result<bool, ApiError> {
        Ok(self.running_attempt(uid).and_then(|running| running.process_group).is_some_and(|group| !group.has_ended()))
    }

    async fn leftover_grants(&self, _: &str) -> Result<Vec<Grant>, ApiError> {
        // Processes end together with the server that started them.
        Ok(Vec::new())
    }

    async fn set_in_use(&self, _: &Appliance, _: bool) -> Result<bool, ApiError> {
        // Nothing here deletes an appliance.
        Ok(false)
    }

    async fn record_status(&self, job: &TrainJob, decided: &TrainJobStatus) -> Result<bool, ApiError> {
        let old = job.status.clone().unwrap_or_default();
        let mut status = decided.clone();
        status.progress.clone_from(&old.progress);
        if status == old {
            return Ok(true);
        }
        let decided = TrainJob { status: Some(status), ..job.clone() };
        self.complete_history(&old, &decided).await;
        Ok(self.objects.replace_job(decided).await?.is_some())
    }

    async fn record_progress(
        &self,
        _: &ObjectRef<TrainJob>,
        uid: &str,
        progress: &JobProgress,
    ) -> Result<(), ApiError> {
        let write = |job: &mut TrainJob| {
            job.status.get_or_insert_default().progress = Some(progress.clone());
            Ok(())
        };
        self.objects.change_job(uid, write).await.map(drop)
    }

    async fn record_ledger(&self, appliance: &Appliance, decided: ApplianceStatus) -> Result<bool, ApiError> {
        if appliance.status.as_ref() == Some(&decided) {
            return Ok(true);
        }
        let decided = Appliance { status: Some(decided), ..appliance.clone() };
        Ok(self.objects.replace_appliance(decided).await?.is_some())
    }

    async fn publish_job_event(&self, job: &TrainJob, event: &JobEvent) {
        let uid = job.uid().unwrap_or_default();
        if let Err(error) = self.objects.add_event(&uid, event.warning, &event.reason, &event.message).await {
            tracing::warn!(job = %job.name_any(), "can't publish the event {}: {}", event.reason, error_chain(&error));
        }
    }

    async fn publish_appliance_event(&self, appliance: &Appliance, event: &JobEvent) {
        tracing::warn!(appliance = %appliance.name_any(), reason = %event.reason, "{}", event.message);
    }

    async fn delete_job(&self, job: &TrainJob) -> Result<(), ApiError> {
        self.objects.delete_job(job).await?;
        self.directories.remove_termination_reports(job).await;
        if job.spec.volumes.iter().any(|volume| volume.config_map.is_some()) {
            self.directories.remove_uploads(job, &self.objects.live_jobs().await?).await;
        }
        Ok(())
    }

    async fn priorities(&self) -> Result<PriorityValues, ApiError> {
        Ok(super::priorities::all())
    }

    fn journal_endpoint(&self, _: &ObjectRef<TrainJob>, uid: &str, attempt: u32) -> Option<JournalEndpoint> {
        let running = self.running_attempt(uid).filter(|running| running.attempt == attempt)?;
        running.process_group?.journal().cloned()
    }
}

/// Returns the last report of an attempt's coordinator, if it wrote one.
async fn last_report(directories: &ServerDirectories, uid: &str, attempt: u32) -> Option<CoordinatorReport> {
    let uid = ObjectName::new(uid).ok()?;
    let text = tokio::fs::read_to_string(directories.last_report(&uid, attempt)).await.ok()?;
    let outcome = AttemptOutcome::from_termination_report(&text).ok()?;
    Some(report_from_outcome(attempt, outcome, Some(Timestamp::now())))
}
