//! Readers: short-lived pods that serve the files of one job while clients request them, with its model_dir mounted
//! read-only and nothing else.
//!
//! * This server creates no pods: it creates a [`FileReader`], for which the operator creates the pod.
//! * Only this server can connect to its readers. Each accepts only the client certificate of its own authority, whose
//!   key is discarded after issuing that certificate. The reader itself has a certificate of the operator, for a name
//!   of its own.
//! * A reader ends by itself when it has been idle for some time.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, Resource, ResourceExt};
use millrace_cluster::model_dir::model_dir_mount;
use millrace_cluster::names::ChildNames;
use millrace_crds::file_reader::{CLAIM_NOT_FOUND, FileReaderStatus};
use millrace_crds::{FileReader, FileReaderSpec, ResolvedJob, TrainJob};
use millrace_protocol::security::{
    Authority, Credentials, ExpectedPeer, Identity, IssueError, MemberName, Service, Validity,
};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::{sleep, timeout};

use super::api_errors::api_error;
use crate::error::{ApiError, ErrorReason, Result};
use crate::files::{CheckpointFiles, FileInfo, FileSet, Files, OpenFile, RemoteFiles};
use crate::generation::{GenerationRequest, GenerationStream};

/// Time for a reader to listen: its image may have to be pulled.
const READER_START_TIMEOUT: Duration = Duration::from_secs(50);
/// Validity of the credentials of a reader; one that no longer responds is replaced by another.
const CREDENTIALS_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// Limit on readers that are being started.
const MAX_STARTING_READERS: usize = 8;
/// Interval of checks for readers that have ended.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct OpenReader {
    /// UID of its FileReader.
    request: String,
    files: RemoteFiles,
}

/// The readers of all jobs.
pub struct ReaderPool {
    client: Client,
    /// By the UID of the job; started at the first request.
    open: Mutex<HashMap<String, Arc<OnceCell<OpenReader>>>>,
    beginning: Semaphore,
}

impl ReaderPool {
    pub fn new(client: Client) -> Self {
        Self { client, open: Mutex::default(), beginning: Semaphore::new(MAX_STARTING_READERS) }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<OnceCell<OpenReader>>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reader of a job; starts one if there is none.
    ///
    /// # Errors
    /// The job has no files, or its reader can't be started.
    pub async fn open(&self, job: &TrainJob) -> Result<RemoteFiles> {
        let cell = self.all().entry(job.uid().unwrap_or_default()).or_default().clone();
        cell.get_or_try_init(|| self.start(job)).await.map(|open| open.files.clone())
    }

    /// Returns the number of jobs with a reader, which may have ended meanwhile.
    pub fn count(&self) -> usize {
        self.all().len()
    }

    /// Removes the reader of a job, because it no longer responds.
    pub fn remove(&self, uid: &str) {
        self.all().remove(uid);
    }

    async fn start(&self, job: &TrainJob) -> Result<OpenReader> {
        let resolution = job.status.as_ref().and_then(|status| status.resolved.as_ref());
        let credentials = client_credentials().map_err(|error| ApiError::internal("issue certificates", error))?;
        let spec = resolution.and_then(|resolution| reader_spec(job, resolution, &credentials.authority));
        let spec = spec.ok_or_else(ApiError::files_not_found)?;
        // The semaphore is never closed.
        let _turn = self.beginning.acquire().await;
        let tail = uuid::Uuid::new_v4().simple().to_string();
        let mut request = FileReader::new(&ChildNames::for_job(job).reader(&tail[..8]), spec);
        request.metadata.namespace = job.namespace();
        // Deleted together with the job, unless the job is being deleted already.
        let owner = job.owner_ref(&()).filter(|_| job.metadata.deletion_timestamp.is_none());
        request.metadata.owner_references = owner.map(|owner| vec![owner]);
        let requests: Api<FileReader> = Api::namespaced(self.client.clone(), &job.namespace().unwrap_or_default());
        let created = requests.create(&PostParams::default(), &request).await.map_err(|error| match error {
            // The namespace is deleted, and all files with it.
            kube::Error::Api(status) if status.is_not_found() => {
                ApiError::new(ErrorReason::Gone, "the job's files were deleted with its namespace")
            }
            error => api_error("request a file reader")(error),
        })?;
        let connected = self.connect(&requests, &created, credentials).await;
        if connected.is_err() {
            remove(&requests, &created.name_any()).await;
        }
        connected.map(|files| OpenReader { request: created.uid().unwrap_or_default(), files })
    }

    /// Waits until a reader listens, and connects to it.
    async fn connect(
        &self,
        requests: &Api<FileReader>,
        request: &FileReader,
        credentials: Credentials,
    ) -> Result<RemoteFiles> {
        let name = request.name_any();
        let answered = |request: Option<&FileReader>| {
            let status = request.and_then(|request| request.status.as_ref());
            request.is_none() || status.is_some_and(|status| status.address.is_some() || status.reason.is_some())
        };
        let seen = timeout(READER_START_TIMEOUT, await_condition(requests.clone(), &name, answered)).await;
        let late = || {
            let detail = "the job's file reader did not start in time: try again, or see `kubectl describe pod`";
            ApiError::new(ErrorReason::Unavailable, format!("{detail} {name}"))
        };
        let request = match seen {
            Err(_) => return Err(late()),
            Ok(Err(error)) => return Err(ApiError::internal("wait for a file reader", error)),
            Ok(Ok(request)) => request.ok_or_else(late)?,
        };
        let FileReaderStatus { address, server_name, server_authority, reason, message } =
            request.status.unwrap_or_default();
        if let Some(reason) = reason {
            let message = message.unwrap_or_default();
            return Err(if reason == CLAIM_NOT_FOUND {
                ApiError::new(ErrorReason::Gone, format!("the job's files were deleted: {message}"))
            } else {
                ApiError::new(ErrorReason::Unavailable, message)
            });
        }
        let (Some(address), Some(server), Some(authority)) = (address, server_name, server_authority) else {
            return Err(late());
        };
        let identity = Identity::new(&Credentials { authority, ..credentials });
        let identity = identity.map_err(|error| ApiError::internal("use a reader's certificate", error))?;
        let reader =
            MemberName::for_reader(&server).map_err(|error| ApiError::internal("use a reader's name", error))?;
        RemoteFiles::new(&address, &identity, ExpectedPeer::new(reader))
            .map_err(|error| ApiError::internal("reach a reader", error))
    }

    /// Periodically removes readers that have ended; never returns.
    pub async fn sweep(self: Arc<Self>) {
        let requests: Api<FileReader> = Api::all(self.client.clone());
        loop {
            sleep(SWEEP_INTERVAL).await;
            // Taken before the list is requested: a reader that starts after that is not in it.
            let open: Vec<String> = self.all().keys().cloned().collect();
            match requests.list_metadata(&ListParams::default()).await {
                Ok(list) => {
                    let existing: HashSet<String> = list.items.iter().filter_map(ResourceExt::uid).collect();
                    let ended =
                        |cell: &OnceCell<OpenReader>| cell.get().is_some_and(|open| !existing.contains(&open.request));
                    self.all().retain(|uid, cell| !(open.contains(uid) && ended(cell)));
                }
                Err(error) => tracing::warn!("can't check for file readers that have ended: {error}"),
            }
        }
    }
}

/// Builds the request for the files of `job`; `None` if no claim contains them. The reader admits clients
/// with a certificate of `client_authority`.
fn reader_spec(job: &TrainJob, resolution: &ResolvedJob, client_authority: &str) -> Option<FileReaderSpec> {
    let mount = model_dir_mount(&job.spec, resolution)?;
    Some(FileReaderSpec {
        job_uid: job.uid().unwrap_or_default(),
        job_name: job.name_any(),
        appliance: job.spec.appliance.clone(),
        model_dir: resolution.model_dir.clone()?,
        claim_name: mount.claim_name,
        mount_path: mount.path,
        sub_path: mount.sub_path,
        client_authority: client_authority.to_owned(),
    })
}

/// Issues the certificate of the only client of a reader, by a new authority whose clients the reader accepts.
///
/// # Errors
/// A key or a certificate can't be generated.
pub fn client_credentials() -> std::result::Result<Credentials, IssueError> {
    let validity = Validity::starting(SystemTime::now(), CREDENTIALS_LIFETIME);
    Authority::new(validity)?.issue(&MemberName::Service(Service::RestServer), validity)
}

async fn remove(requests: &Api<FileReader>, name: &str) {
    match requests.delete(name, &DeleteParams::background()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => tracing::warn!(reader = %name, "can't delete the file reader: {error}"),
    }
}

/// The files of a job, read through its reader. If the reader has ended, another one is started.
pub struct ReaderFiles {
    readers: Arc<ReaderPool>,
    job: TrainJob,
}

impl ReaderFiles {
    /// Accesses the files of `job`.
    pub const fn new(readers: Arc<ReaderPool>, job: TrainJob) -> Self {
        Self { readers, job }
    }

    async fn reader(&self) -> Result<RemoteFiles> {
        self.readers.open(&self.job).await
    }

    /// Whether the reader has ended, so that the request has to be repeated with another one.
    fn has_ended<T>(&self, response: &Result<T>) -> bool {
        let ended = matches!(response, Err(error) if error.reason == ErrorReason::Unavailable);
        if ended {
            self.readers.remove(&self.job.uid().unwrap_or_default());
        }
        ended
    }
}

#[async_trait]
impl Files for ReaderFiles {
    async fn checkpoints(&self) -> Result<Vec<CheckpointFiles>> {
        let response = self.reader().await?.checkpoints().await;
        if self.has_ended(&response) { self.reader().await?.checkpoints().await } else { response }
    }

    async fn list(&self, file_set: &FileSet) -> Result<Vec<FileInfo>> {
        let response = self.reader().await?.list(file_set).await;
        if self.has_ended(&response) { self.reader().await?.list(file_set).await } else { response }
    }

    async fn open(&self, file_set: &FileSet, path: &str) -> Result<OpenFile> {
        let response = self.reader().await?.open(file_set, path).await;
        if self.has_ended(&response) { self.reader().await?.open(file_set, path).await } else { response }
    }

    async fn generate(&self, request: GenerationRequest) -> Result<GenerationStream> {
        let response = self.reader().await?.generate(request.clone()).await;
        if self.has_ended(&response) { self.reader().await?.generate(request).await } else { response }
    }
}

#[cfg(test)]
mod tests {
    use millrace_crds::{
        ConfigMapSource, JobVolume, MountedDir, PersistentVolumeClaimSource, StoredParams, TrainJobSpec,
    };

    use super::*;

    #[test]
    fn reader_gets_the_claim_of_model_dir_and_no_other_volume() {
        let mut job = TrainJob::new("job", TrainJobSpec::new(1, StoredParams::default()));
        job.spec.volumes = vec![JobVolume {
            name: "results".to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimSource { claim_name: "my-results".to_owned() }),
            config_map: None,
        }];
        let (path, sub_path) = ("/results".to_owned(), Some("a/b".to_owned()));
        job.spec.mount_dirs = vec![MountedDir { path, volume: "results".to_owned(), sub_path: sub_path.clone() }];
        let record = ResolvedJob { model_dir: Some("/results/run".to_owned()), ..ResolvedJob::default() };
        let spec = reader_spec(&job, &record, "CLIENTS").unwrap();
        assert_eq!((spec.claim_name.as_str(), spec.mount_path.as_str()), ("my-results", "/results"));
        assert_eq!((spec.sub_path, spec.client_authority.as_str()), (sub_path, "CLIENTS"));
        job.spec.volumes[0].persistent_volume_claim = None;
        job.spec.volumes[0].config_map = Some(ConfigMapSource { name: "texts".to_owned() });
        assert_eq!(reader_spec(&job, &record, "CLIENTS"), None);
    }
}
