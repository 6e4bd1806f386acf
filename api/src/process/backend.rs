//! The process backend: stores jobs and runs the control loop over them.

use std::collections::HashSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use kube::ResourceExt;
use millrace_agents::dataset_epoch::DatasetEpoch;
use millrace_control::metrics::Metrics;
use millrace_control::record::resolved_job;
use millrace_control::watchdog::Watchdog;
use millrace_control::{ContextParts, ControllerContext, JobSite, WatchStreams, World};
use millrace_crds::{Appliance, ResolvedJob, TrainJob};
use millrace_params::{BlobDigest, JobSpec, LabelName, ObjectName};
use millrace_protocol::error_chain;
use millrace_store::{NamespaceVersion, Store};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::bucket_model_dirs::BucketModelDirs;
use super::claim::DataDirClaim;
use super::directories::ServerDirectories;
use super::fetching_site::FetchingSite;
use super::inputs::{InputError, LoaderPolicy, check_inputs};
use super::objects::{NewObject, ObjectStore};
use super::priorities;
use super::start_checkpoint::{StartCheckpointError, check_start_checkpoint};
use super::world::ProcessWorld;
use crate::backend::{Backend, JobChange, JobTarget, VolumeInfo};
use crate::blobs::{BlobFetcher, BlobNamespace, BlobStore};
use crate::compute::ComputePool;
use crate::document::job_of;
use crate::error::{ApiError, ErrorReason, Result};
use crate::files::{ExportCache, Files, Generator, LocalFiles};
use crate::plan::{JobPlan, Planner};
use crate::submission::{SubmitRequest, SubmitResult, UploadedFile};

/// Jobs that are deleted from the database at a time.
const DELETE_BATCH_JOBS: u32 = 16;
/// Time for coordinators to save their state when the server shuts down.
const SAVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for which a request waits for uploads that its check needs.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Note of a plan or a check of a job whose data is not uploaded yet.
const NOT_UPLOADED_NOTE: &str = "data files are not checked here, because they are not uploaded yet";

/// Settings of the backend.
pub struct ProcessSettings {
    /// The server's directories.
    pub directories: ServerDirectories,
    /// Whether the database is a file of the data directory.
    pub holds_database: bool,
    /// The appliance that is emulated; its name is `default`.
    pub appliance: Appliance,
    /// Threads for planning.
    pub compute: ComputePool,
    /// Limit on the bytes of exported checkpoints, all together.
    pub export_bytes: u64,
    /// Limit on the memory of one generation of a text, in bytes.
    pub generation_bytes: u64,
    /// The uploads.
    pub blobs: BlobStore,
    /// Fetches them into the server's directories; `None` if they are stored there.
    pub fetcher: Option<BlobFetcher>,
    /// Uploads model_dirs to a bucket; `None` if they are only in the server's directories.
    pub model_dirs: Option<BucketModelDirs>,
    /// Interpreter of Python datasets; `None` for that of the client.
    pub python: Option<PathBuf>,
}

/// The process backend.
pub struct ProcessBackend {
    objects: Arc<ObjectStore>,
    world: Arc<ProcessWorld>,
    control: Arc<ControllerContext<ProcessWorld>>,
    planner: Planner,
    compute: ComputePool,
    exports: ExportCache,
    generator: Generator,
    blobs: BlobStore,
    shutdown: watch::Sender<bool>,
    running: tokio::sync::Mutex<Vec<JoinHandle<()>>>,
    /// Held as long as the server lives.
    _claim: DataDirClaim,
}

/// A file that a job reads can't be used.
#[derive(Debug, thiserror::Error)]
enum UnusableFiles {
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    StartCheckpoint(#[from] StartCheckpointError),
}

impl ProcessBackend {
    /// Starts the control loop. Unfinished jobs of an earlier server continue as a new attempt.
    ///
    /// # Errors
    /// The database or a directory can't be used.
    pub async fn start(store: Store, settings: ProcessSettings) -> Result<Self> {
        let ProcessSettings {
            directories,
            holds_database,
            appliance,
            compute,
            export_bytes,
            generation_bytes,
            blobs,
            fetcher,
            model_dirs,
            python,
        } = settings;
        let claim = DataDirClaim::acquire(&directories.data, holds_database)?;
        directories.make().map_err(|error| ApiError::internal("create the server's directories", error))?;
        let exports = ExportCache::new(directories.data.join("exports"), export_bytes);
        exports.clean_up().await;
        let generator = Generator::new(generation_bytes);
        let objects = Arc::new(ObjectStore::new(store));
        objects.ensure_appliance(appliance, &claim).await?;
        let (reconcile_requests, received_requests) = mpsc::unbounded_channel();
        let site: Arc<dyn JobSite> = match &fetcher {
            Some(fetcher) => Arc::new(FetchingSite::new(directories.clone(), fetcher.clone())),
            None => Arc::new(directories.clone()),
        };
        let requests = reconcile_requests.clone();
        let world = ProcessWorld::new(objects.clone(), directories, python, fetcher, model_dirs, requests).await?;
        let world = Arc::new(world);
        let (jobs, appliances) = (objects.watch_jobs().await?, objects.watch_appliances().await?);
        let deleted = objects.deleted_jobs();
        let parts = ContextParts {
            world: world.clone(),
            site,
            jobs: jobs.view,
            appliances: appliances.view,
            metrics: Arc::new(Metrics::default()),
            watchdog: Arc::new(Watchdog::default()),
            reconcile_requests,
            workers: compute.workers().clone(),
        };
        let control = Arc::new(ControllerContext::new(parts));
        let plan_cache = control.plan_cache.clone();
        let (jobs_view, appliances_view) = (control.jobs.clone(), control.appliances.clone());
        let planner = Planner::new(jobs_view, appliances_view, plan_cache, compute.clone())?.on_this_host();
        let streams = WatchStreams {
            jobs: jobs.applied,
            appliances: appliances.applied,
            touched_jobs: jobs.touched,
            touched_appliances: appliances.touched,
            reconcile_requests: received_requests,
        };
        let (shutdown, ended) = watch::channel(false);
        let reconciling = tokio::spawn(millrace_control::run(control.clone(), streams, ended, |jobs| jobs));
        let deleting_world = world.clone();
        let ending_jobs = tokio::spawn(deleted.for_each(move |uid| {
            deleting_world.end_deleted(&uid);
            std::future::ready(())
        }));
        let running = tokio::sync::Mutex::new(vec![reconciling, ending_jobs]);
        Ok(Self {
            objects,
            world,
            control,
            planner,
            compute,
            exports,
            generator,
            blobs,
            shutdown,
            running,
            _claim: claim,
        })
    }

    /// Rejects a job whose data files are missing, in any phase; returns the epoch of the training data of its first
    /// phase, and the last step of that phase, if they are known.
    async fn check_data(
        &self,
        request: &SubmitRequest,
        job: &TrainJob,
        resolution: &ResolvedJob,
    ) -> Result<(Option<DatasetEpoch>, Option<u64>)> {
        let (uploads, policy) = (request.uploads.clone(), self.loader_policy(request));
        self.check_resolved(&request.account, job, resolution, move |directories, job, resolved| {
            let mut first = None;
            for mut phase in resolved {
                let epoch = check_inputs(directories, job, &phase, uploads.as_ref(), policy)?;
                if let Some(epoch) = epoch {
                    phase.limit_by_epochs(epoch.samples);
                }
                first.get_or_insert((epoch, phase.run.known_max_steps()));
            }
            Ok::<_, InputError>(first.unwrap_or_default())
        })
        .await
    }

    /// Rejects a job whose data files are missing, or whose checkpoint to start from does not exist at present; returns
    /// a note for the user about a checkpoint of an earlier job.
    async fn check_data_and_start(
        &self,
        request: &SubmitRequest,
        job: &TrainJob,
        resolution: &ResolvedJob,
    ) -> Result<Option<String>> {
        let model_dir = PathBuf::from(resolution.model_dir.clone().unwrap_or_default());
        let (uploads, policy) = (request.uploads.clone(), self.loader_policy(request));
        self.check_resolved(&request.account, job, resolution, move |directories, job, resolved| {
            for phase in &resolved {
                check_inputs(directories, job, phase, uploads.as_ref(), policy)?;
            }
            let Some(first) = resolved.first() else { return Ok(None) };
            Ok::<_, UnusableFiles>(check_start_checkpoint(directories, job, first, &model_dir)?)
        })
        .await
    }

    /// Makes sure that the uploads of a job are in the server's directories, where its data are checked.
    async fn fetch_uploads(&self, job: &TrainJob) -> Result<()> {
        match &self.world.fetcher {
            Some(fetcher) => fetcher.fetch_job(job, FETCH_TIMEOUT).await,
            None => Ok(()),
        }
    }

    /// Returns with which interpreter a Python dataset of this job would be read.
    fn loader_policy(&self, request: &SubmitRequest) -> LoaderPolicy {
        match (&self.world.python, request.is_server_user) {
            (Some(_), _) => LoaderPolicy::OfServer,
            (None, true) => LoaderPolicy::OfClient,
            (None, false) => LoaderPolicy::Denied,
        }
    }

    /// Runs `check` with the resolved phases of the job on the pool of heavy work; its error rejects the job.
    async fn check_resolved<T: Send + 'static, E: Error + 'static>(
        &self,
        account: &str,
        job: &TrainJob,
        resolution: &ResolvedJob,
        check: impl FnOnce(&ServerDirectories, &TrainJob, Vec<JobSpec>) -> std::result::Result<T, E> + Send + 'static,
    ) -> Result<T> {
        let resolved = resolution.phases().map(|phase| resolved_job(&phase).map(|(job, _)| job));
        let resolved = resolved.collect::<std::result::Result<Vec<_>, _>>();
        let resolved = resolved.map_err(|error| ApiError::internal("plan a job", error))?;
        let (directories, job) = (self.world.directories.clone(), job.clone());
        let checked = self.compute.run_heavy(account, move || {
            check(&directories, &job, resolved)
                .map_err(|error| ApiError::new(ErrorReason::BadParams, error_chain(&error)))
        });
        checked.await
    }

    /// Returns the exported checkpoints of the job with this UID, which the server itself has assigned.
    fn exports_of(&self, uid: &str) -> Result<ExportCache> {
        let uid = ObjectName::new(uid).map_err(|error| ApiError::internal("find the exports of a job", error))?;
        Ok(self.exports.of_job(&uid))
    }
}

#[async_trait]
impl Backend for ProcessBackend {
    fn name(&self) -> &'static str {
        "process"
    }

    async fn dry_run(&self, request: &SubmitRequest) -> Result<TrainJob> {
        let (_, job) = self.planner.admitted(request, &priorities::all()).await?;
        if let Some(existing) = request.find_replay(self.objects.store(), None).await? {
            return job_of(&existing);
        }
        let mut resolution = self.planner.check_runnable(&request.account, &job).await?;
        self.fetch_uploads(&job).await?;
        let note = match self.world.directories.has_uploads(&job) {
            true => self.check_data_and_start(request, &job, &resolution).await?,
            false => Some(NOT_UPLOADED_NOTE.to_owned()),
        };
        resolution.notes.extend(note);
        let name = job.name_any();
        if self.objects.store().live_job(&request.namespace, &name).await?.is_some() {
            return Err(ApiError::name_taken(&request.namespace, &name));
        }
        Ok(self.planner.with_notes(job, resolution))
    }

    async fn create(&self, request: SubmitRequest) -> Result<SubmitResult> {
        let (object, job) = self.planner.admitted(&request, &priorities::all()).await?;
        if request.find_replay(self.objects.store(), None).await?.is_none() {
            // A job that can never run is rejected now, not at its first reconcile.
            let resolution = self.planner.check_runnable(&request.account, &job).await?;
            self.fetch_uploads(&job).await?;
            self.check_data(&request, &job, &resolution).await?;
        }
        if let Some(uploads) = &request.uploads {
            let namespace = LabelName::new(&*request.namespace)
                .map_err(|error| ApiError::new(ErrorReason::Invalid, format!("metadata.namespace: {error}")))?;
            let dir = self.world.directories.uploads_dir(&namespace, &uploads.config_map);
            let result = write_uploads(&dir, &uploads.files).await;
            result.map_err(|error| ApiError::internal("store the files uploaded with a job", error))?;
        }
        let created =
            self.objects.create_job(object, NewObject { submitter: request.submitter, key: request.key }).await;
        if !matches!(created, Ok(SubmitResult::New(_))) && request.uploads.is_some() {
            // No job was created. Another job may have the same uploads.
            self.world.directories.remove_uploads(&job, &self.objects.live_jobs().await?).await;
        }
        created
    }

    async fn change(&self, account: &str, target: JobTarget<'_>, change: JobChange) -> Result<TrainJob> {
        let JobTarget { namespace, name, uid } = target;
        if let (JobChange::Scale(num_csx), Some(mut job)) = (change, self.objects.job(uid).await?) {
            job.spec.num_csx = num_csx;
            // A job that can never run with this number is rejected.
            self.planner.check_runnable(account, &job).await?;
        }
        let changed = self.objects.change_job(uid, |job| {
            let before = serde_json::to_value(&*job).unwrap_or_default();
            match change {
                JobChange::Suspend(suspend) => job.spec.suspend = suspend,
                JobChange::Scale(num_csx) => job.spec.num_csx = num_csx,
            }
            let after = serde_json::to_value(&*job).unwrap_or_default();
            if after["spec"] != before["spec"] {
                self.planner.definition.admit(&after, Some(&before))?;
                job.metadata.generation = job.metadata.generation.map(|generation| generation + 1);
            }
            Ok(())
        });
        changed.await?.ok_or_else(|| ApiError::job_not_found(namespace, name))
    }

    async fn delete(&self, namespace: &str, name: &str, uid: &str) -> Result<TrainJob> {
        let job = self.objects.job(uid).await?.ok_or_else(|| ApiError::job_not_found(namespace, name))?;
        self.world.delete_job(&job).await?;
        self.exports_of(uid)?.remove().await;
        Ok(job)
    }

    async fn appliance(&self, name: &str) -> Result<Option<Appliance>> {
        self.objects.appliance(name).await
    }

    async fn plan(&self, request: &SubmitRequest) -> Result<JobPlan> {
        let priorities = priorities::all();
        let (_, job) = self.planner.admitted(request, &priorities).await?;
        let (plan, resolution) = self.planner.plan_and_resolve(&request.account, job.clone(), &priorities).await?;
        self.fetch_uploads(&job).await?;
        match resolution.filter(|_| request.may_create) {
            Some(_) if !self.world.directories.has_uploads(&job) => {
                let notes = plan.notes.into_iter().chain([NOT_UPLOADED_NOTE.to_owned()]).collect();
                Ok(JobPlan { notes, ..plan })
            }
            Some(resolution) => {
                let (epoch, last_step) = self.check_data(request, &job, &resolution).await?;
                Ok(plan.with_epoch(epoch, last_step))
            }
            None => Ok(plan),
        }
    }

    async fn volumes(&self, namespace: &str) -> Result<Vec<VolumeInfo>> {
        // No volume is granted to what is not a namespace.
        let Ok(namespace) = LabelName::new(namespace) else { return Ok(Vec::new()) };
        let granted = self.world.directories.volumes_for(&namespace).into_iter();
        Ok(granted.map(|(name, volume)| VolumeInfo { name: name.to_string(), message: volume.description() }).collect())
    }

    /// Always `None`: namespaces are only names in tokens and paths, and can't be recreated.
    async fn current_namespace(&self, _: &str) -> Result<Option<NamespaceVersion>> {
        Ok(None)
    }

    fn metrics(&self) -> String {
        self.control.metrics.render()
    }

    fn stuck_loop(&self) -> Option<String> {
        self.control.watchdog.stuck()
    }

    /// Deletes the jobs themselves, too; their files stay.
    async fn delete_history_before(&self, before_ms: i64) -> Result<usize> {
        let uids = self.objects.store().delete_finished_before(before_ms, DELETE_BATCH_JOBS).await?;
        let is_deleted = |job: &Arc<TrainJob>| job.uid().is_some_and(|uid| uids.contains(&uid));
        let (deleted_jobs, others): (Vec<_>, Vec<_>) = self.control.jobs.state().into_iter().partition(is_deleted);
        let others: Vec<TrainJob> = others.into_iter().map(|job| TrainJob::clone(&job)).collect();
        for uid in &uids {
            self.exports_of(uid)?.remove().await;
        }
        for job in deleted_jobs {
            self.world.directories.remove_termination_reports(&job).await;
            self.world.directories.remove_uploads(&job, &others).await;
            self.objects.publish_deleted(&job);
        }
        Ok(uids.len())
    }

    /// Stops the control loop, and then all jobs: they save their state and their processes end.
    async fn shut_down(&self) {
        let _ = self.shutdown.send(true);
        let mut running = self.running.lock().await;
        let reconciling = running.remove(0);
        // A reconcile in progress may start processes, so it has to end first.
        let _ = reconciling.await;
        running.drain(..).for_each(|task| task.abort());
        self.world.shut_down(SAVE_TIMEOUT).await;
    }

    async fn blobs(&self, namespace: LabelName) -> Result<(&BlobStore, BlobNamespace)> {
        Ok((&self.blobs, namespace.into()))
    }

    async fn remove_unused_blobs(&self) -> Result<usize> {
        let jobs = self.objects.live_jobs().await?;
        let used: HashSet<(String, String)> = jobs.iter().flat_map(uploads_of).collect();
        let is_used =
            |namespace: &LabelName, digest: &BlobDigest| used.contains(&(namespace.to_string(), digest.to_string()));
        self.world.directories.job_files().remove_unused(&jobs).await;
        if let Some(fetcher) = &self.world.fetcher {
            fetcher.files().remove_unused(is_used).await?;
        }
        self.blobs.remove_unused(is_used).await
    }

    async fn files(&self, job: &TrainJob) -> Result<Arc<dyn Files>> {
        let written = job.status.as_ref().and_then(|status| status.resolved.as_ref()?.model_dir.clone());
        let model_dir = written.ok_or_else(ApiError::files_not_found)?;
        if !self.world.directories.is_readable(job, Path::new(&model_dir)) {
            return Err(ApiError::new(
                ErrorReason::Gone,
                "the job's files are in a volume that its namespace may no longer use",
            ));
        }
        let exports = self.exports_of(&job.uid().unwrap_or_default())?;
        Ok(Arc::new(LocalFiles::new(model_dir.into(), exports, self.generator.clone())))
    }
}

/// Returns the uploads that a job names, each with its namespace.
fn uploads_of(job: &TrainJob) -> Vec<(String, String)> {
    let namespace = job.namespace().unwrap_or_default();
    job.spec.uploads().map(|digest| (namespace.clone(), digest.to_owned())).collect()
}

async fn write_uploads(dir: &std::path::Path, files: &[UploadedFile]) -> std::io::Result<()> {
    tokio::fs::create_dir_all(dir).await?;
    for file in files {
        tokio::fs::write(dir.join(&file.name), &file.content).await?;
    }
    Ok(())
}
