//! Readers: a pod for as long as somebody asks for the files of a job, with nothing but model_dir, read-only.
//!
//! Only this server can talk to them: both ends show certificates of an authority that lives in its memory. A reader ends by
//! itself when nobody asks any more, and whoever finds one that has ended removes it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt};
use millrace_crds::{ClusterSpec, TrainJob};
use millrace_operator::authority::Authority;
use millrace_operator::children::{API, READER, Reader, ports, reader_name, reader_policy};
use millrace_operator::observe::{condition, is};
use millrace_protocol::journal::Tls;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::{sleep, timeout};

use super::answer::refused;
use crate::files::{CheckpointFiles, FileInfo, Files, Opened, RemoteFiles, Shelf};
use crate::reader::NAME;
use crate::refusal::{Reason, Refusal, Result};

/// After so long in which nobody asks, a reader ends.
const IDLE_SECONDS: u32 = 120;
/// For a reader to listen: an image may have to be fetched.
const BEGINNING: Duration = Duration::from_secs(50);
/// Readers that begin at a time.
const MOST: usize = 8;
/// Between two looks for readers that have ended.
const SWEEPING: Duration = Duration::from_secs(60);

/// See the module text.
pub struct Readers {
    client: Client,
    image: String,
    authority: Authority,
    identity: Tls,
    /// By the UID of the job; made when they are first asked for.
    open: Mutex<HashMap<String, Arc<OnceCell<RemoteFiles>>>>,
    beginning: Semaphore,
}

impl Readers {
    /// None yet; their pods run `image`.
    ///
    /// # Errors
    /// No certificate can be made.
    pub fn new(client: Client, image: String) -> Result<Self> {
        let broken = |error| Refusal::internal("make certificates", &error);
        let authority = Authority::new().map_err(broken)?;
        let identity = authority.client().map_err(broken)?;
        let (open, beginning) = (Mutex::default(), Semaphore::new(MOST));
        Ok(Self { client, image, authority, identity, open, beginning })
    }

    /// The reader of a job: the one there is, or a new one.
    ///
    /// # Errors
    /// The job has no files, or its reader can't begin.
    pub async fn open(&self, job: &TrainJob, cluster: &ClusterSpec) -> Result<RemoteFiles> {
        let uid = job.uid().unwrap_or_default();
        let cell = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.entry(uid).or_default().clone()
        };
        cell.get_or_try_init(|| self.begin(job, cluster)).await.cloned()
    }

    /// How many jobs have one, as far as is known.
    pub fn count(&self) -> usize {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Forgets the reader of a job that does not answer any more.
    fn forget(&self, uid: &str) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    async fn begin(&self, job: &TrainJob, cluster: &ClusterSpec) -> Result<RemoteFiles> {
        let resolution = job.status.as_ref().and_then(|status| status.resolved.as_ref());
        let resolution =
            resolution.filter(|resolution| resolution.model_dir.is_some()).ok_or_else(Refusal::no_files)?;
        // Nobody closes it.
        let _turn = self.beginning.acquire().await;
        let namespace = job.namespace().unwrap_or_default();
        let policies: Api<NetworkPolicy> = Api::namespaced(self.client.clone(), &namespace);
        let policy = reader_policy(&namespace);
        let applied =
            policies.patch(&policy.name_any(), &PatchParams::apply(API).force(), &Patch::Apply(&policy)).await;
        applied.map_err(|error| match error {
            // Of a namespace that is gone nothing is left.
            kube::Error::Api(status) if status.is_not_found() => {
                Refusal::new(Reason::Gone, "the job's files are gone: its namespace is")
            }
            error => refused("let a reader be reached")(error),
        })?;
        let tail = uuid::Uuid::new_v4().simple().to_string();
        let name = reader_name(job, &tail[..8]);
        let reader = Reader {
            job,
            resolution,
            cluster,
            name: &name,
            image: &self.image,
            idle_seconds: IDLE_SECONDS,
            owned: job.metadata.deletion_timestamp.is_none(),
        };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let pod = pods.create(&PostParams::default(), &reader.pod()).await.map_err(refused("make a reader"))?;
        let begun = async {
            let identity = self.authority.server(NAME);
            let identity = identity.map_err(|error| Refusal::internal("make certificates", &error))?;
            let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &namespace);
            let secret = reader.secret(&pod, &identity);
            secrets.create(&PostParams::default(), &secret).await.map_err(refused("make a reader's certificate"))?;
            let address = self.address(&pods, &name).await?;
            RemoteFiles::new(&address, &self.identity).map_err(|error| Refusal::internal("reach a reader", &error))
        }
        .await;
        if begun.is_err() {
            remove(&pods, &name).await;
        }
        begun
    }

    /// Where a reader listens, once it does.
    async fn address(&self, pods: &Api<Pod>, name: &str) -> Result<String> {
        let known =
            |pod: Option<&Pod>| pod.is_none_or(|pod| is(pod, "Ready") || is_over(pod) || missing(pod).is_some());
        let seen = timeout(BEGINNING, await_condition(pods.clone(), name, known)).await;
        let late = || {
            let detail =
                "the reader of the job's files has not begun in time: try again, or see `kubectl describe pod`";
            Refusal::new(Reason::Unavailable, format!("{detail} {name}"))
        };
        let pod = match seen {
            Err(_) => return Err(late()),
            Ok(Err(error)) => return Err(Refusal::internal("wait for a reader", &error)),
            Ok(Ok(pod)) => pod.ok_or_else(late)?,
        };
        if let Some(missing) = missing(&pod) {
            return Err(Refusal::new(Reason::Gone, format!("the job's files are gone: {missing}")));
        }
        let ip = pod.status.as_ref().filter(|_| is(&pod, "Ready")).and_then(|status| status.pod_ip.clone());
        let ip = ip.ok_or_else(late)?;
        Ok(address(&ip, ports::READER))
    }

    /// Removes readers that have ended, whoever made them, for ever.
    pub async fn sweep(self: Arc<Self>) {
        let ours = ListParams::default().labels(READER);
        loop {
            match Api::<Pod>::all(self.client.clone()).list(&ours).await {
                Ok(pods) => {
                    for pod in pods.items.iter().filter(|pod| is_over(pod)) {
                        let pods = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
                        remove(&pods, &pod.name_any()).await;
                        if let Some(uid) = pod.labels().get(READER) {
                            self.forget(uid);
                        }
                    }
                }
                Err(error) => log::warn!("readers that have ended can't be looked for at present: {error}"),
            }
            sleep(SWEEPING).await;
        }
    }
}

/// A port of a pod.
pub fn address(ip: &str, port: u16) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

async fn remove(pods: &Api<Pod>, name: &str) {
    match pods.delete(name, &DeleteParams::default()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => log::warn!("the reader {name} can't be removed: {error}"),
    }
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// What of its storage is no more.
fn missing(pod: &Pod) -> Option<String> {
    let scheduled = condition(pod, "PodScheduled").filter(|condition| condition.status == "False")?;
    scheduled
        .message
        .clone()
        .filter(|message| message.contains("persistentvolumeclaim") && message.contains("not found"))
}

/// The files of a job by way of its reader. One that has ended meanwhile is followed by another.
pub struct ReaderFiles {
    readers: Arc<Readers>,
    job: TrainJob,
    cluster: ClusterSpec,
}

impl ReaderFiles {
    /// Of `job`, on an appliance.
    pub const fn new(readers: Arc<Readers>, job: TrainJob, cluster: ClusterSpec) -> Self {
        Self { readers, job, cluster }
    }

    async fn reader(&self) -> Result<RemoteFiles> {
        self.readers.open(&self.job, &self.cluster).await
    }

    /// Whether the reader has ended meanwhile, so that another one is to be asked.
    fn has_ended<T>(&self, answer: &Result<T>) -> bool {
        let ended = matches!(answer, Err(refusal) if refusal.reason == Reason::Unavailable);
        if ended {
            self.readers.forget(&self.job.uid().unwrap_or_default());
        }
        ended
    }
}

#[async_trait]
impl Files for ReaderFiles {
    async fn checkpoints(&self) -> Result<Vec<CheckpointFiles>> {
        let answer = self.reader().await?.checkpoints().await;
        if self.has_ended(&answer) { self.reader().await?.checkpoints().await } else { answer }
    }

    async fn list(&self, shelf: &Shelf) -> Result<Vec<FileInfo>> {
        let answer = self.reader().await?.list(shelf).await;
        if self.has_ended(&answer) { self.reader().await?.list(shelf).await } else { answer }
    }

    async fn open(&self, shelf: &Shelf, path: &str) -> Result<Opened> {
        let answer = self.reader().await?.open(shelf, path).await;
        if self.has_ended(&answer) { self.reader().await?.open(shelf, path).await } else { answer }
    }
}
