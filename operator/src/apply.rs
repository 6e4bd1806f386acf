//! Creates the children of an attempt, and repairs them.
//!
//! * Pods, claims and other objects of one attempt are created once and not changed: the operator owns no mutable field
//!   of them, and their fixed names prevent a second set of objects.
//! * Service and NetworkPolicy are applied by every reconcile, which reverts changes by others.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::SystemTime;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use millrace_cluster::names::{ChildNames, FIELD_MANAGER};
use millrace_control::AttemptContext;
use millrace_crds::TrainJob;
use millrace_telemetry::logs::LogFormat;
use millrace_traces::TraceParent;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::agent_traces::AgentTraces;
use crate::authority::CertificateManager;
use crate::children::{self, Fetcher, UploadServer};
use crate::cli::OperatorArgs;
use crate::error::{ChildError, Error};

/// Creates the children of attempts.
pub struct ChildCreator {
    /// The client, which writes nothing after the leader's term.
    client: Client,
    certificates: Arc<CertificateManager>,
    /// Format of the agents' logs.
    log_format: LogFormat,
    /// How agents send traces; `None` if they send none.
    agent_traces: Option<AgentTraces>,
    /// Where pods fetch uploads from; `None` if the REST server stores none.
    upload_server: Option<UploadServer>,
}

impl ChildCreator {
    /// Creates it with the format of logs, the collector of traces and the server of uploads in `args`.
    pub fn new(client: Client, certificates: Arc<CertificateManager>, args: &OperatorArgs) -> Self {
        let collector = args.agents_collector.clone().filter(|_| millrace_traces::is_configured());
        let agent_traces = collector.and_then(|collector| {
            let traces = AgentTraces::from_environment(collector, |name| std::env::var(name).ok());
            traces.inspect_err(|error| tracing::warn!("{error}")).ok()
        });
        let (log_format, upload_server) = (args.log_format, args.upload_server());
        Self { client, certificates, log_format, agent_traces, upload_server }
    }

    /// Creates the missing children of `attempt`. `pods` are the pods that exist.
    ///
    /// # Errors
    /// The API server rejected a request or is unreachable, or a child can't be built.
    pub async fn ensure_attempt(&self, attempt: &AttemptContext<'_>, pods: &[Pod]) -> Result<(), Error> {
        let namespace = JobNamespace { client: &self.client, namespace: attempt.job.namespace().unwrap_or_default() };
        namespace.apply(&children::service(attempt)).await?;
        let mut policy = children::network_policy(attempt);
        let mut missing = children::pods(attempt);
        missing.iter_mut().for_each(|pod| children::set_log_format(pod, self.log_format));
        if let Some(traces) = &self.agent_traces {
            traces.open_egress(&mut policy);
            let parent = TraceParent::current();
            missing.iter_mut().for_each(|pod| traces.set_environment(pod, parent.as_ref()));
        }
        self.add_fetchers(attempt, &mut missing, &mut policy)?;
        namespace.apply(&policy).await?;
        if let Some(policy) = children::bucket_policy(attempt) {
            namespace.apply(&policy).await?;
        }
        missing.retain(|pod| !pods.iter().any(|other| other.metadata.name == pod.metadata.name));
        if missing.is_empty() {
            return namespace.delete_previous_attempt(attempt).await;
        }
        if let Some(claim) = children::claim(attempt) {
            namespace.create(&claim).await?;
        }
        let launch_uid = namespace.create_launch(&children::launch(attempt)?).await?;
        let identities = children::identities(attempt, &self.certificates.authorities(), launch_uid, SystemTime::now());
        namespace.create(&identities?).await?;
        for pod in &missing {
            if !namespace.create(pod).await? {
                namespace.delete_unlisted_pod(pod, attempt.job).await?;
            }
        }
        Ok(())
    }

    /// Adds what the pods of an attempt need to fetch its uploads, if there are any.
    fn add_fetchers(
        &self,
        attempt: &AttemptContext<'_>,
        pods: &mut [Pod],
        policy: &mut NetworkPolicy,
    ) -> Result<(), ChildError> {
        let Some(document) = children::fetch_document(attempt)? else { return Ok(()) };
        let server = self.upload_server.as_ref().ok_or(ChildError::NoUploadServer)?;
        server.open_egress(policy);
        let fetcher = Fetcher { attempt, server, document: &document };
        pods.iter_mut().for_each(|pod| fetcher.add_to(pod));
        Ok(())
    }
}

struct JobNamespace<'a> {
    client: &'a Client,
    namespace: String,
}

impl JobNamespace<'_> {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates `child` unless an object of that name exists; returns whether it did.
    async fn create<K>(&self, child: &K) -> Result<bool, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match self.api::<K>().create(&params, child).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
            Err(error) => Err(Error::api("create a child of the job")(error)),
        }
    }

    /// Creates the launch document unless it exists; returns its UID.
    async fn create_launch(&self, launch: &ConfigMap) -> Result<String, Error> {
        self.create(launch).await?;
        let found = self.api::<ConfigMap>().get_metadata(&launch.name_any()).await;
        Ok(found.map_err(Error::api("get the launch document"))?.uid().unwrap_or_default())
    }

    /// Deletes the job's pod that has the name of `pod` but was not listed: its labels were changed, so it would never
    /// be counted or removed.
    async fn delete_unlisted_pod(&self, pod: &Pod, job: &TrainJob) -> Result<(), Error> {
        let (pods, name) = (self.api::<Pod>(), pod.name_any());
        let by_name = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = pods.list_metadata(&by_name).await.map_err(Error::api("get a pod"))?.items;
        let Some(found) = found.first() else { return Ok(()) };
        if !found.owner_references().iter().any(|owner| Some(&owner.uid) == job.uid().as_ref()) {
            return Err(ChildError::PodNameTaken(name).into());
        }
        tracing::warn!(pod = %name, "replacing pod {name}, which lost its labels");
        self.delete::<Pod>(&name, found.uid()).await
    }

    /// Applies `child` with server-side apply.
    async fn apply<K>(&self, child: &K) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let applied = self.api::<K>().patch(&child.name_any(), &params, &Patch::Apply(child)).await;
        applied.map(drop).map_err(Error::api("apply a child of the job"))
    }

    /// Deletes the launch document of the previous attempt, and with it the certificates, which it owns.
    async fn delete_previous_attempt(&self, attempt: &AttemptContext<'_>) -> Result<(), Error> {
        let Some(before) = attempt.number.checked_sub(1).filter(|number| *number > 0) else { return Ok(()) };
        // The name contains the attempt, so no object of a later attempt has it.
        self.delete::<ConfigMap>(&ChildNames::for_job(attempt.job).launch(before), None).await
    }

    /// Deletes the object of this name, if it has this UID. Succeeds if it does not exist.
    async fn delete<K>(&self, name: &str, uid: Option<String>) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let preconditions = uid.map(|uid| Preconditions { uid: Some(uid), resource_version: None });
        match self.api::<K>().delete(name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(Error::api("delete a child of the job")(error)),
        }
    }
}
