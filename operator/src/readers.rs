//! Readers of jobs' files: pods that the REST server requests by a [`FileReader`], built from a template of the
//! operator's own.
//!
//! * A reader ends by itself when it is idle. Its FileReader is then deleted, and with it all objects that belong to
//!   it. The same happens if a reader does not listen in time.
//! * The definition of the kind rejects invalid requests, and the number of readers is bounded.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::runtime::controller::{Action, Config};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{Controller, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use millrace_cluster::address::{pod_address, ports};
use millrace_cluster::names::FIELD_MANAGER;
use millrace_cluster::watch::watch_selected;
use millrace_control::shutdown::wait_for_shutdown;
use millrace_crds::file_reader::{CLAIM_NOT_FOUND, TOO_MANY_READERS};
use millrace_crds::{Appliance, FileReader, FileReaderStatus};
use millrace_protocol::error_chain;
use millrace_protocol::security::MemberName;
use serde_json::json;
use tokio::sync::watch;

use crate::authority::CertificateManager;
use crate::children::{READER_LABEL, ReaderPod, reader_policy};
use crate::error::{ChildError, Error};
use crate::events::EventPublisher;
use crate::observe::{condition, has_condition};
use crate::watch::store_of;

/// Maximum number of readers in the whole cluster at the same time.
const MAX_READERS: usize = 64;
/// Time until a reader must listen: long enough to pull an image.
const READER_START_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval of reconciles of a reader without any change.
const READER_RESYNC_INTERVAL: Duration = Duration::from_secs(30);
const FAILURE_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The state that all reconciles of readers share.
pub struct ReaderController {
    pub client: Client,
    /// Issues certificates.
    pub certificates: Arc<CertificateManager>,
    pub appliances: Store<Appliance>,
    pub requests: Store<FileReader>,
    pub image: String,
}

/// The state of a reader's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ReaderState {
    /// It exists, but does not listen yet.
    Starting,
    /// It listens at this address.
    Ready(String),
    /// It can't start, because its claim does not exist: a sentence.
    ClaimMissing(String),
    Ended,
}

impl ReaderState {
    fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        if matches!(status.and_then(|status| status.phase.as_deref()), Some("Succeeded" | "Failed")) {
            return Self::Ended;
        }
        let unscheduled = condition(pod, "PodScheduled").filter(|condition| condition.status == "False");
        let message = unscheduled.and_then(|condition| condition.message.clone());
        if let Some(message) =
            message.filter(|message| message.contains("persistentvolumeclaim") && message.contains("not found"))
        {
            return Self::ClaimMissing(message);
        }
        let address = pod_address(pod, ports::READER_PORT).filter(|_| has_condition(pod, "Ready"));
        address.map_or(Self::Starting, Self::Ready)
    }
}

/// Runs the controller of readers until `shutdown` becomes true.
pub async fn run(
    client: Client,
    events: EventPublisher,
    certificates: Arc<CertificateManager>,
    appliances: Store<Appliance>,
    image: String,
    shutdown: watch::Receiver<bool>,
) {
    let (requests, changed) = store_of::<FileReader>(&client, events);
    let readers = Arc::new(ReaderController { client: client.clone(), certificates, appliances, requests, image });
    let controller = Controller::for_stream(changed, readers.requests.clone())
        .with_config(Config::default().concurrency(4))
        .owns_stream(reader_pods(&client))
        .graceful_shutdown_on(wait_for_shutdown(shutdown));
    let after_failure = |request: Arc<FileReader>, error: &Error, _: Arc<ReaderController>| {
        tracing::warn!(request = %ObjectRef::from_obj(&*request), "{}", error_chain(error));
        Action::requeue(FAILURE_RETRY_INTERVAL)
    };
    controller.run(reconcile, after_failure, readers).for_each(|_| std::future::ready(())).await;
}

/// Returns a stream of readers' pods that were created, changed or deleted.
fn reader_pods(client: &Client) -> BoxStream<'static, watcher::Result<PartialObjectMeta<Pod>>> {
    use kube::runtime::WatchStreamExt;
    let owned =
        watcher::Config::default().labels(&format!("{READER_LABEL},app.kubernetes.io/managed-by={FIELD_MANAGER}"));
    watch_selected::<PartialObjectMeta<Pod>>(client, owned).map(Ok).touched_objects().boxed()
}

async fn reconcile(request: Arc<FileReader>, readers: Arc<ReaderController>) -> Result<Action, Error> {
    if request.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let age = request.creation_timestamp().map(|created| Timestamp::now().duration_since(created.0));
    let is_overdue = age.is_some_and(|age| age.as_secs() >= READER_START_TIMEOUT.as_secs() as i64);
    let old = request.status.clone().unwrap_or_default();
    match readers.pod(&request).await?.as_ref().map(ReaderState::of) {
        // The pod existed and has ended: another use needs another request.
        None if old.address.is_some() || is_overdue => readers.delete(&request).await?,
        None if readers.position(&request) >= MAX_READERS => {
            let message = format!("{MAX_READERS} file readers are already running: try again in a moment");
            readers.refuse(&request, TOO_MANY_READERS, message).await?;
        }
        None => readers.create_reader(&request).await?,
        Some(ReaderState::Ended) => readers.delete(&request).await?,
        Some(ReaderState::Starting) if is_overdue => readers.delete(&request).await?,
        Some(ReaderState::Starting) => {}
        Some(ReaderState::ClaimMissing(message)) => readers.refuse(&request, CLAIM_NOT_FOUND, message).await?,
        Some(ReaderState::Ready(address)) => {
            let mut status = old;
            status.address = Some(address);
            readers.record(&request, status).await?;
        }
    }
    Ok(Action::requeue(READER_RESYNC_INTERVAL))
}

impl ReaderController {
    fn api<K>(&self, request: &FileReader) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &request.namespace().unwrap_or_default())
    }

    /// Returns the pod of a request, if it exists.
    async fn pod(&self, request: &FileReader) -> Result<Option<Pod>, Error> {
        let by_name = ListParams::default().fields(&format!("metadata.name={}", request.name_any()));
        let pods = self.api::<Pod>(request).list(&by_name).await.map_err(Error::api("get a reader pod"))?;
        let owned = |pod: &Pod| pod.owner_references().iter().any(|owner| Some(&owner.uid) == request.uid().as_ref());
        Ok(pods.items.into_iter().find(owned))
    }

    /// Returns the number of requests that are older than this one.
    fn position(&self, request: &FileReader) -> usize {
        let age = |request: &FileReader| (request.creation_timestamp().map(|time| time.0), request.uid());
        self.requests.state().iter().filter(|other| age(other) < age(request)).count()
    }

    /// Creates everything that a request needs.
    async fn create_reader(&self, request: &FileReader) -> Result<(), Error> {
        let appliance = self.appliances.get(&ObjectRef::new(&request.spec.appliance));
        let cluster = appliance.map(|appliance| appliance.spec.clone()).unwrap_or_default();
        let reader = ReaderPod { request, cluster: &cluster, image: &self.image };
        let policy = reader_policy(&request.namespace().unwrap_or_default());
        let policies: Api<NetworkPolicy> = self.api(request);
        let applied = PatchParams::apply(FIELD_MANAGER).force();
        let applied = policies.patch(&policy.name_any(), &applied, &Patch::Apply(&policy)).await;
        applied.map_err(Error::api("create the network policy of a reader"))?;
        let name = reader.server_name();
        let certified = MemberName::for_reader(&name).map_err(ChildError::Name)?;
        let issued = self.certificates.authorities().issue_member(&certified, &[], SystemTime::now());
        let issued = issued.map_err(ChildError::Certificate)?;
        let status = FileReaderStatus {
            server_name: Some(name),
            server_authority: Some(issued.authority.clone()),
            ..FileReaderStatus::default()
        };
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let created = self.api::<Secret>(request).create(&params, &reader.secret(issued)).await;
        created.map(drop).or_else(ignore_already_exists).map_err(Error::api("make a reader's certificate"))?;
        let created = self.api::<Pod>(request).create(&params, &reader.pod()).await;
        created.map(drop).or_else(ignore_already_exists).map_err(Error::api("make a reader"))?;
        self.record(request, status).await
    }

    /// Records why the files can't be served.
    async fn refuse(&self, request: &FileReader, reason: &str, message: String) -> Result<(), Error> {
        let reason = Some(reason.to_owned());
        self.record(request, FileReaderStatus { reason, message: Some(message), ..FileReaderStatus::default() }).await
    }

    async fn record(&self, request: &FileReader, status: FileReaderStatus) -> Result<(), Error> {
        if request.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let patch = json!({
            "apiVersion": FileReader::api_version(&()), "kind": FileReader::kind(&()),
            "metadata": {"uid": request.uid()}, "status": status,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        match self.api::<FileReader>(request).patch_status(&request.name_any(), &params, &Patch::Apply(&patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(Error::api("record a reader's address")(error)),
        }
    }

    /// Deletes a request, and with it all objects that belong to it.
    async fn delete(&self, request: &FileReader) -> Result<(), Error> {
        let preconditions = Some(Preconditions { uid: request.uid(), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::background() };
        match self.api::<FileReader>(request).delete(&request.name_any(), &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(Error::api("delete a reader")(error)),
        }
    }
}

fn ignore_already_exists(error: kube::Error) -> Result<(), kube::Error> {
    match error {
        kube::Error::Api(status) if status.is_already_exists() => Ok(()),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_state_is_derived_from_its_pod() {
        let state_of = |status: serde_json::Value| {
            ReaderState::of(&serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap())
        };
        assert_eq!(state_of(json!({"phase": "Pending"})), ReaderState::Starting);
        assert_eq!(state_of(json!({"phase": "Succeeded"})), ReaderState::Ended);
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let listens = |ip: &str| state_of(json!({"phase": "Running", "podIP": ip, "conditions": ready}));
        assert_eq!(listens("10.0.0.1"), ReaderState::Ready("10.0.0.1:7200".to_owned()));
        let message = "persistentvolumeclaim \"results\" not found";
        let lost = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]);
        assert_eq!(
            state_of(json!({"phase": "Pending", "conditions": lost})),
            ReaderState::ClaimMissing(message.to_owned())
        );
    }
}
