//! The Kubernetes backend: sends the requests of users to the API server.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, reflector};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::watcher::Event;
use kube::{Api, Client, Resource, ResourceExt};
use millrace_cluster::archive::ARCHIVE_FINALIZER;
use millrace_cluster::pod_site::{GraphDocuments, PodSite};
use millrace_cluster::priorities::priorities;
use millrace_cluster::watch::readable_events;
use millrace_control::watchdog::{ProgressSource, Watchdog};
use millrace_control::{PlanCache, PriorityValues};
use millrace_crds::{Appliance, TrainJob};
use millrace_params::LabelName;
use millrace_store::{NamespaceVersion, Store};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::api_errors::api_error;
use super::archivers::JobArchivers;
use super::blobs::{self, BlobSettings, FindNamespace as _, LocalDocuments};
use super::identity::IdentitySecret;
use super::loops::Loops;
use super::mirror::JobMirror;
use super::namespaces::Namespaces;
use super::readers::{ReaderFiles, ReaderPool};
use super::{API_MANAGER, events, uploads};
use crate::backend::{Backend, JobChange, JobTarget, VolumeInfo};
use crate::blobs::{BlobNamespace, BlobStore};
use crate::compute::ComputePool;
use crate::document::job_of;
use crate::error::{ApiError, ErrorReason, Result};
use crate::files::Files;
use crate::metrics::ClusterMetrics;
use crate::plan::{JobPlan, Planner};
use crate::submission::{BODY_DIGEST_ANNOTATION, KEY_ANNOTATION, SubmitRequest, SubmitResult};

/// Time for a deleted job of the same name to disappear.
const JOB_DELETION_TIMEOUT: Duration = Duration::from_secs(40);
/// Time for the first list of jobs and appliances.
const INITIAL_LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Jobs that are deleted from the database at a time.
const DELETE_BATCH_JOBS: u32 = 16;

pub struct KubernetesSettings {
    /// Namespace of this server and of the operator.
    pub namespace: String,
    /// Image of this server, for readers.
    pub image: String,
    /// Name of the Secret with this server's identity, which the operator writes.
    pub identity: String,
    /// Threads for planning.
    pub compute: ComputePool,
    /// Uploads; `None` if this server has neither a bucket nor a claim for them.
    pub blobs: Option<BlobSettings>,
}

pub struct KubernetesBackend {
    client: Client,
    store: Store,
    mirror: Arc<JobMirror<Namespaces>>,
    archivers: Arc<JobArchivers>,
    readers: Arc<ReaderPool>,
    namespaces: Namespaces,
    planner: Planner,
    /// The uploads; `None` if this server stores none.
    blobs: Option<BlobStore>,
    loops: Arc<Loops>,
    watchdog: Watchdog,
}

impl KubernetesBackend {
    /// Starts following the cluster. When it returns, the existing jobs and appliances are known.
    ///
    /// # Errors
    /// The cluster or the database can't be used.
    pub async fn start(client: Client, store: Store, settings: KubernetesSettings) -> Result<Self> {
        let KubernetesSettings { namespace, image, identity, compute, blobs: blob_settings } = settings;
        let (jobs, job_writer) = reflector::store::<TrainJob>();
        let (appliances, appliance_writer) = reflector::store::<Appliance>();
        let namespaces = Namespaces::new(client.clone());
        let blobs = blob_settings.as_ref().map(|settings| settings.store.clone());
        let documents = blobs
            .clone()
            .map(|store| Arc::new(LocalDocuments::new(store, namespaces.clone())) as Arc<dyn GraphDocuments>);
        let site = Arc::new(PodSite { image, documents });
        let plan_cache = PlanCache::new(site, compute.workers().clone());
        let planner = Planner::new(jobs.clone(), appliances.clone(), plan_cache, compute)?;
        let loops = Arc::new(Loops::default());
        let mirror = Arc::new(JobMirror::new(store.clone(), namespaces.clone(), loops.clone()));
        let readers = Arc::new(ReaderPool::new(client.clone()));
        let identity = Arc::new(IdentitySecret::new(client.clone(), namespace, identity));
        let archivers =
            JobArchivers::new(client.clone(), store.clone(), mirror.clone(), readers.clone(), identity.clone());
        let archivers = Arc::new(archivers);
        let seen_jobs = watch(&client, job_writer);
        let seen_appliances = watch(&client, appliance_writer);
        let starting = archivers.clone();
        let on_event = move |event: &Event<TrainJob>, listed: &HashSet<String>| starting.on_watch_event(event, listed);
        loops.run(vec![
            tokio::spawn(mirror.clone().follow(seen_jobs, on_event)),
            tokio::spawn(seen_appliances.for_each(|_| std::future::ready(()))),
            tokio::spawn(events::copy(client.clone(), store.clone(), jobs.clone(), mirror.clone(), loops.clone())),
            tokio::spawn(readers.clone().sweep()),
        ]);
        let listed = futures::future::try_join(jobs.wait_until_ready(), appliances.wait_until_ready());
        match timeout(INITIAL_LIST_TIMEOUT, listed).await {
            Ok(Ok(_)) => {}
            _ => {
                let detail =
                    "TrainJobs and Appliances can't be listed: are they defined, and may this server list them?";
                return Err(ApiError::new(ErrorReason::Unavailable, detail));
            }
        }
        if let Some(settings) = blob_settings {
            let serving = blobs::serve(settings, jobs.clone(), namespaces.clone(), identity);
            loops.run(vec![tokio::spawn(serving)]);
        }
        let watchdog = Watchdog::default();
        let watched: Weak<dyn ProgressSource> = Arc::downgrade(&(loops.clone() as Arc<dyn ProgressSource>));
        watchdog.watch(watched);
        Ok(Self { client, store, mirror, archivers, readers, namespaces, planner, blobs, loops, watchdog })
    }

    fn jobs(&self, namespace: &str) -> Api<TrainJob> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn priorities(&self) -> Result<PriorityValues> {
        priorities(&self.client).await.map_err(api_error("list priority classes"))
    }

    /// Posts the object unchanged, with strict validation: the API server rejects unknown fields.
    async fn post(&self, namespace: &str, object: &Value, dry_run: bool) -> Result<TrainJob, kube::Error> {
        let params = PostParams { dry_run, field_manager: Some(API_MANAGER.to_owned()) };
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
        let mut request = Request::new(TrainJob::url_path(&(), Some(namespace)))
            .create(&params, body)
            .map_err(kube::Error::BuildRequest)?;
        let strict = format!("{}&fieldValidation=Strict", request.uri());
        if let Ok(strict) = strict.parse() {
            *request.uri_mut() = strict;
        }
        self.client.request(request).await
    }

    /// Creates the job. If the name is taken, returns the existing job if the same request created it.
    async fn create_or_find(&self, request: &SubmitRequest, object: &Value) -> Result<SubmitResult> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let jobs = self.jobs(&request.namespace);
        for last in [false, true] {
            match self.post(&request.namespace, object, false).await {
                Ok(job) => return Ok(SubmitResult::New(Box::new(job))),
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                Err(error) => return Err(api_error("create a job")(error)),
            }
            let Some(existing) = jobs.get_opt(name).await.map_err(api_error("get a job"))? else { continue };
            if existing.metadata.deletion_timestamp.is_some() && !last {
                // The user has deleted it, and it is held until its history is archived.
                let uid = existing.uid().unwrap_or_default();
                let deleted = await_condition(jobs.clone(), name, conditions::is_deleted(&uid));
                // A timeout is reported by the next try.
                let _ = timeout(JOB_DELETION_TIMEOUT, deleted).await;
                continue;
            }
            if existing.metadata.deletion_timestamp.is_some() {
                let names = existing.finalizers().join(", ");
                let detail = format!(
                    "job {name} is being deleted, and its name is reserved until its finalizers are removed ({names}): \
                     choose another name"
                );
                return Err(ApiError::new(ErrorReason::AlreadyExists, detail));
            }
            return find_existing(request, existing);
        }
        Err(ApiError::name_taken(&request.namespace, name))
    }
}

/// Checks whether the existing job is the requested one by its annotations: the database may have been lost, but not
/// the job.
fn find_existing(request: &SubmitRequest, existing: TrainJob) -> Result<SubmitResult> {
    let annotation = |name: &str| existing.annotations().get(name).map(String::as_str);
    match &request.key {
        Some(key) if annotation(KEY_ANNOTATION) == Some(&key.key) => {
            if annotation(BODY_DIGEST_ANNOTATION) == Some(&key.body_hash) {
                Ok(SubmitResult::Replayed(Box::new(existing)))
            } else {
                Err(ApiError::idempotency_key_reused())
            }
        }
        _ => Err(ApiError::name_taken(&request.namespace, &existing.name_any())),
    }
}

/// Streams the changes of all objects of a kind. The view already contains the change of an event.
fn watch<K>(client: &Client, writer: Writer<K>) -> futures::stream::BoxStream<'static, Event<K>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    let events = readable_events(client, writer.as_reader(), |unreadable| {
        let name = unreadable.metadata.name.unwrap_or_default();
        let (kind, error) = (K::kind(&()), unreadable.error);
        tracing::warn!(%kind, object = %name, "skipping an object that can't be read: {error}");
    });
    let events = reflector(writer, events.map(Ok::<_, kube::runtime::watcher::Error>));
    events.filter_map(|event| std::future::ready(event.ok())).boxed()
}

#[async_trait]
impl Backend for KubernetesBackend {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    async fn dry_run(&self, request: &SubmitRequest) -> Result<TrainJob> {
        let (object, job) = self.planner.admitted(request, &self.priorities().await?).await?;
        if let Some(known) =
            request.find_replay(&self.store, self.current_namespace(&request.namespace).await?.as_ref()).await?
        {
            return job_of(&known).map(without_managed_fields);
        }
        let resolution = self.planner.check_runnable(&request.account, &job).await?;
        let mut job = self.post(&request.namespace, &object, true).await.map_err(api_error("try a job"))?;
        job.metadata.managed_fields = None;
        Ok(self.planner.with_notes(job, resolution))
    }

    async fn create(&self, request: SubmitRequest) -> Result<SubmitResult> {
        let (mut object, job) = self.planner.admitted(&request, &self.priorities().await?).await?;
        let made =
            match request.find_replay(&self.store, self.current_namespace(&request.namespace).await?.as_ref()).await? {
                Some(known) => SubmitResult::Replayed(Box::new(job_of(&known)?)),
                None => {
                    // A job that can never run is rejected now, not at its first reconcile.
                    self.planner.check_runnable(&request.account, &job).await?;
                    object["metadata"]["finalizers"] = json!([ARCHIVE_FINALIZER]);
                    self.create_or_find(&request, &object).await?
                }
            };
        let (SubmitResult::New(job) | SubmitResult::Replayed(job)) = &made;
        if job.metadata.deletion_timestamp.is_none() {
            // They may be missing after an interrupted request.
            if let Some(uploads) = &request.uploads {
                uploads::store_uploads(&self.client, job, uploads).await?;
            }
        }
        self.mirror.upsert(job).await?;
        Ok(match made {
            SubmitResult::New(job) => SubmitResult::New(Box::new(without_managed_fields(*job))),
            SubmitResult::Replayed(job) => SubmitResult::Replayed(Box::new(without_managed_fields(*job))),
        })
    }

    async fn change(&self, account: &str, target: JobTarget<'_>, change: JobChange) -> Result<TrainJob> {
        let JobTarget { namespace, name, uid } = target;
        let spec = match change {
            JobChange::Suspend(suspend) => json!({"suspend": suspend}),
            JobChange::Scale(num_csx) => {
                if let Some(job) = self.planner.jobs.get(&ObjectRef::new(name).within(namespace)) {
                    let mut scaled = TrainJob::clone(&job);
                    scaled.spec.num_csx = num_csx;
                    // A job that can never run with this number is rejected.
                    self.planner.check_runnable(account, &scaled).await?;
                }
                json!({"numCsx": num_csx})
            }
        };
        // The UID makes the patch fail for another job that has the name by now.
        let patch = Patch::Merge(json!({"metadata": {"uid": uid}, "spec": spec}));
        let params = PatchParams { field_manager: Some(API_MANAGER.to_owned()), ..PatchParams::default() };
        match self.jobs(namespace).patch(name, &params, &patch).await {
            Ok(job) => {
                self.mirror.upsert(&job).await?;
                Ok(without_managed_fields(job))
            }
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                Err(ApiError::job_not_found(namespace, name))
            }
            Err(error) => Err(api_error("change a job")(error)),
        }
    }

    async fn delete(&self, namespace: &str, name: &str, uid: &str) -> Result<TrainJob> {
        let jobs = self.jobs(namespace);
        let this_one = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { preconditions: Some(this_one), ..DeleteParams::background() };
        let row = self.store.job(uid).await?.ok_or_else(|| ApiError::job_not_found(namespace, name))?;
        match jobs.delete(name, &params).await {
            // The job as it is now, held until its history is archived.
            Ok(either) => {
                if let Some(job) = either.left() {
                    self.mirror.upsert(&job).await?;
                }
            }
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                self.mirror.mark_deleted(uid).await?;
            }
            Err(error) => return Err(api_error("delete a job")(error)),
        }
        job_of(&row)
    }

    async fn appliance(&self, name: &str) -> Result<Option<Appliance>> {
        let found = self.planner.appliances.get(&ObjectRef::new(name));
        Ok(found.map(|appliance| Appliance::clone(&appliance)))
    }

    async fn plan(&self, request: &SubmitRequest) -> Result<JobPlan> {
        let priorities = self.priorities().await?;
        let (_, job) = self.planner.admitted(request, &priorities).await?;
        self.planner.plan(&request.account, job, &priorities).await
    }

    async fn volumes(&self, namespace: &str) -> Result<Vec<VolumeInfo>> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let claims = claims.list(&ListParams::default()).await.map_err(api_error("list claims"))?.items;
        Ok(claims.iter().map(|claim| VolumeInfo { name: claim.name_any(), message: describe_claim(claim) }).collect())
    }

    async fn current_namespace(&self, namespace: &str) -> Result<Option<NamespaceVersion>> {
        self.namespaces.current(namespace).await
    }

    fn stuck_loop(&self) -> Option<String> {
        self.watchdog.stuck()
    }

    fn metrics(&self) -> String {
        let (archivers, readers) = (self.archivers.count(), self.readers.count());
        ClusterMetrics { trainjobs: self.planner.jobs.len(), archivers, readers }.render()
    }

    async fn blobs(&self, namespace: LabelName) -> Result<(&BlobStore, BlobNamespace)> {
        let store = self.blobs.as_ref().ok_or_else(blobs::no_uploads)?;
        let found = self.namespaces.find(&namespace).await?;
        let missing = || ApiError::new(ErrorReason::NotFound, format!("namespace {namespace} not found"));
        Ok((store, found.ok_or_else(missing)?))
    }

    async fn remove_unused_blobs(&self) -> Result<usize> {
        let Some(store) = &self.blobs else { return Ok(0) };
        blobs::remove_unused(store, &self.namespaces, &self.planner.jobs.state()).await
    }

    async fn files(&self, job: &TrainJob) -> Result<Arc<dyn Files>> {
        Ok(Arc::new(ReaderFiles::new(self.readers.clone(), job.clone())))
    }

    async fn delete_history_before(&self, before_ms: i64) -> Result<usize> {
        Ok(self.store.delete_deleted_before(before_ms, DELETE_BATCH_JOBS).await?.len())
    }

    async fn shut_down(&self) {
        self.loops.end();
    }
}

/// Removes the managed fields of a job.
fn without_managed_fields(mut job: TrainJob) -> TrainJob {
    job.metadata.managed_fields = None;
    job
}

/// Describes a claim for the user: size, access modes, phase.
fn describe_claim(claim: &PersistentVolumeClaim) -> String {
    let spec = claim.spec.as_ref();
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
    let requests = spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let size = |amounts: &BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>| {
        amounts.get("storage").map(|size| size.0.clone())
    };
    let modes = spec.and_then(|spec| spec.access_modes.as_ref()).map(|modes| modes.join(", "));
    let phase = claim.status.as_ref().and_then(|status| status.phase.clone());
    let parts = [capacity.and_then(size).or_else(|| requests.and_then(size)), modes, phase];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
