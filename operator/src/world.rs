//! Implements the world of the control loop with objects of an API server, and agents in pods.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::core::Status;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource, ResourceExt};
use millrace_cluster::address::{expected_coordinator, journal_address};
use millrace_cluster::archive;
use millrace_cluster::names::{APPLIANCE_LABEL, ChildNames, FIELD_MANAGER, JOB_UID_LABEL, SYSTEM_LABEL, cs2_selector};
use millrace_cluster::priorities::priorities;
use millrace_control::world::Error as Ended;
use millrace_control::{AgentsFound, AttemptContext, JournalEndpoint, PriorityValues, World};
use millrace_crds::{Appliance, ApplianceStatus, Grant, JobProgress, TrainJob, TrainJobStatus};
use millrace_lifecycle::{JobEvent, is_removal_overdue};
use serde::Serialize;
use serde_json::{Value, json};

use crate::apply::ChildCreator;
use crate::authority::CertificateManager;
use crate::chart_appliance::ChartAppliance;
use crate::children::EXTRA_TERMINATION_GRACE_SECONDS;
use crate::cli::OperatorArgs;
use crate::error::Error;
use crate::events::EventPublisher;
use crate::observe::{agent, termination_report};
use crate::{appliance_finalizer, missing_config_maps};

/// Grace period of the pods of a deleted job without state to save, in seconds.
const NO_STEPS_GRACE_SECONDS: u32 = 2;
/// Field manager of `status.progress`, which is written separately from decisions.
const PROGRESS_FIELD_MANAGER: &str = "millrace-progress";

/// The cluster as seen by the leader of one epoch.
pub struct ClusterWorld {
    /// The client, which writes nothing after the leader's term.
    client: Client,
    /// Issues certificates.
    certificates: Arc<CertificateManager>,
    events: EventPublisher,
    /// The fencing epoch of this leadership.
    epoch: u64,
    /// Whether a REST server copies the history of deleted jobs.
    rest_server: bool,
    /// The chart's values for the appliance.
    values: Option<ChartAppliance>,
    /// Creates the children of attempts.
    creator: ChildCreator,
}

impl ClusterWorld {
    /// Creates the world of the leader of this epoch. Reads from `args`: whether a REST server archives deleted jobs,
    /// the log format, and the trace collector for agents.
    pub fn new(
        client: Client,
        certificates: Arc<CertificateManager>,
        events: EventPublisher,
        epoch: u64,
        args: &OperatorArgs,
    ) -> Self {
        let creator = ChildCreator::new(client.clone(), certificates.clone(), args);
        Self { client, certificates, events, epoch, rest_server: args.rest_server, values: None, creator }
    }

    /// Sets the values to compare the appliance with.
    pub fn with_values(self, values: Option<ChartAppliance>) -> Self {
        Self { values, ..self }
    }

    fn jobs(&self, job: &TrainJob) -> Api<TrainJob> {
        Api::namespaced(self.client.clone(), &job.namespace().unwrap_or_default())
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

impl World for ClusterWorld {
    type Error = Error;
    type Handle = Vec<Pod>;

    const AGENTS_ARE_REPLACEABLE: bool = true;

    async fn observe(&self, job: &TrainJob) -> Result<AgentsFound<Vec<Pod>>, Error> {
        let selector = ListParams::default().labels(&ChildNames::for_job(job).selector_text());
        let pods = self.pods(&job.namespace().unwrap_or_default()).list(&selector).await;
        let existing = pods.map_err(Error::api("list the job's pods"))?.items;
        let mut agents: Vec<_> = existing.iter().filter_map(agent).collect();
        missing_config_maps::report_missing_config_maps(job, &self.client, &existing, &mut agents)
            .await
            .map_err(Error::api("get a ConfigMap"))?;
        let attempt = job.status.as_ref().and_then(|status| status.attempt).unwrap_or(0);
        Ok(AgentsFound { agents, termination_report: termination_report(&existing, attempt), handle: existing })
    }

    async fn ensure_agents(&self, attempt: &AttemptContext<'_>, pods: &Vec<Pod>) -> Result<(), Ended<Self>> {
        self.creator.ensure_attempt(attempt, pods).await.map_err(|error| match error.into_rejection() {
            Ok(rejection) => Ended::<Self>::Refused(rejection.into()),
            Err(error) => error.into(),
        })
    }

    async fn remove_agents(&self, job: &TrainJob, existing: &Vec<Pod>, grace: u32) -> Result<(), Error> {
        remove_pods(&self.pods(&job.namespace().unwrap_or_default()), existing, grace).await
    }

    async fn remove_agent(&self, job: &TrainJob, existing: &Vec<Pod>, instance: &str, grace: u32) -> Result<(), Error> {
        let pods = self.pods(&job.namespace().unwrap_or_default());
        match existing.iter().find(|pod| pod.metadata.uid.as_deref() == Some(instance)) {
            Some(pod) => remove_pods(&pods, std::slice::from_ref(pod), grace).await,
            None => Ok(()),
        }
    }

    async fn finalize(&self, job: &TrainJob) -> Result<Option<Duration>, Error> {
        let AgentsFound { handle: pods, .. } = self.observe(job).await?;
        let has_steps = archive::has_steps(job);
        let grace = if has_steps {
            job.spec.checkpoint.grace_period_seconds.saturating_add(EXTRA_TERMINATION_GRACE_SECONDS)
        } else {
            NO_STEPS_GRACE_SECONDS
        };
        // Garbage collection deletes the pods only after the finalizers are removed, so they are deleted here.
        self.remove_agents(job, &pods, grace).await?;
        if !archive::has_finalizer(job) {
            return Ok(None);
        }
        let remaining = archive::remaining_hold(job, Timestamp::now()).filter(|_| has_steps && self.rest_server);
        if remaining.is_some_and(|remaining| !remaining.is_zero()) {
            return Ok(remaining);
        }
        let released = archive::remove_finalizer(&self.client, job)
            .await
            .map_err(Error::api("remove the finalizers of a deleted job"))?;
        if released && remaining.is_some() {
            tracing::warn!(job = %ObjectRef::from_obj(job), "the job's history was not archived in time");
        }
        Ok(None)
    }

    async fn has_leftover_agents(&self, namespace: &str, uid: &str) -> Result<bool, Error> {
        let selector = ListParams::default().labels(&format!("{JOB_UID_LABEL}={uid}")).limit(1);
        let remaining = self.pods(namespace).list_metadata(&selector).await;
        Ok(!remaining.map_err(Error::api("list pods of a deleted job"))?.items.is_empty())
    }

    async fn leftover_grants(&self, appliance: &str) -> Result<Vec<Grant>, Error> {
        let selector = ListParams::default().labels(&format!("{APPLIANCE_LABEL}={appliance},{SYSTEM_LABEL}"));
        let pods = Api::<Pod>::all(self.client.clone()).list_metadata(&selector).await;
        let pods = pods.map_err(Error::api("list pods that use systems"))?.items;
        Ok(appliance_finalizer::grants_of_pods(pods.iter().map(|pod| &pod.metadata)))
    }

    async fn set_in_use(&self, appliance: &Appliance, in_use: bool) -> Result<bool, Error> {
        let action = if in_use { "add the appliance's finalizer" } else { "remove the appliance's finalizer" };
        appliance_finalizer::update_finalizer(&self.client, appliance, in_use).await.map_err(Error::api(action))
    }

    async fn record_status(&self, job: &TrainJob, decided: &TrainJobStatus) -> Result<bool, Error> {
        let old = job.status.clone().unwrap_or_default();
        let mut status = decided.clone();
        status.selector = Some(cs2_selector(job));
        status.progress.clone_from(&old.progress);
        status.leader_epoch = old.leader_epoch;
        if status == old {
            return Ok(true);
        }
        status.progress = None;
        status.leader_epoch = Some(self.epoch);
        write(&self.jobs(job), job, &status).await.map_err(Error::api("record the job's status"))
    }

    async fn record_progress(&self, job: &ObjectRef<TrainJob>, uid: &str, progress: &JobProgress) -> Result<(), Error> {
        let jobs: Api<TrainJob> = Api::namespaced(self.client.clone(), job.namespace.as_deref().unwrap_or_default());
        let patch = progress_patch(uid, progress).map_err(Error::api("record the job's progress"))?;
        let params = PatchParams { field_manager: Some(PROGRESS_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        match jobs.patch_status(&job.name, &params, &patch).await {
            Ok(_) => Ok(()),
            // A deleted job, or a new job of the same name.
            Err(kube::Error::Api(status)) if status.is_not_found() || is_failed_test(&status, "/metadata/uid") => {
                Ok(())
            }
            Err(error) => Err(Error::api("record the job's progress")(error)),
        }
    }

    async fn record_ledger(&self, appliance: &Appliance, mut status: ApplianceStatus) -> Result<bool, Error> {
        let old = appliance.status.clone().unwrap_or_default();
        status.leader_epoch = old.leader_epoch;
        if status == old {
            return Ok(true);
        }
        status.leader_epoch = Some(self.epoch);
        let appliances = Api::all(self.client.clone());
        write(&appliances, appliance, &status).await.map_err(Error::api("write the ledger"))
    }

    async fn publish_job_event(&self, job: &TrainJob, event: &JobEvent) {
        self.events.publish(job.object_ref(&()), event);
    }

    async fn publish_appliance_event(&self, appliance: &Appliance, event: &JobEvent) {
        self.events.publish(appliance.object_ref(&()), event);
    }

    fn manual_edits(&self, appliance: &Appliance) -> Option<Vec<String>> {
        self.values.as_ref()?.manual_edits(appliance)
    }

    async fn delete_job(&self, job: &TrainJob) -> Result<(), Error> {
        let of_this_one = Preconditions { uid: job.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(of_this_one), ..DeleteParams::background() };
        match self.jobs(job).delete(&job.name_any(), &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(Error::api("delete the job")(error)),
        }
    }

    async fn priorities(&self) -> Result<PriorityValues, Error> {
        priorities(&self.client).await.map_err(Error::api("list priority classes"))
    }

    fn journal_endpoint(&self, job: &ObjectRef<TrainJob>, uid: &str, attempt: u32) -> Option<JournalEndpoint> {
        let (names, namespace) = (ChildNames::new(&job.name, uid), job.namespace.as_deref().unwrap_or_default());
        let identity =
            self.certificates.operator().inspect_err(|error| tracing::error!(%job, "can't follow the job: {error}"));
        Some(JournalEndpoint {
            address: journal_address(&names, namespace),
            identity: identity.ok()?,
            coordinator: expected_coordinator(&names, namespace, uid, attempt)?,
        })
    }
}

/// Deletes the pods in `found` whose own deletion does not end within `grace` seconds; a pod on a lost node, whose
/// deletion is overdue, at once and without waiting for its node. Deletes by UID, so that a pod of the next attempt,
/// which has the same name, is not deleted.
async fn remove_pods(pods: &Api<Pod>, found: &[Pod], grace: u32) -> Result<(), Error> {
    let now = Timestamp::now();
    for pod in found {
        let ends = pod.metadata.deletion_timestamp.as_ref();
        let is_overdue = ends.is_some_and(|ends| is_removal_overdue(ends.0, now));
        let grace = if is_overdue { 0 } else { grace };
        let is_terminating = pod.metadata.deletion_timestamp.is_some();
        let ends_in = pod.metadata.deletion_grace_period_seconds.filter(|_| is_terminating);
        if ends_in.is_some_and(|seconds| seconds <= i64::from(grace)) {
            continue;
        }
        let preconditions = Some(Preconditions { uid: pod.uid(), resource_version: None });
        let params = DeleteParams { grace_period_seconds: Some(grace), preconditions, ..DeleteParams::default() };
        match pods.delete(&pod.name_any(), &params).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => return Err(Error::api("delete a pod")(error)),
        }
    }
    Ok(())
}

/// Writes a status to the version of the object that it was decided from; returns false after a write conflict or if
/// the object no longer exists.
async fn write<K>(objects: &Api<K>, object: &K, status: &impl Serialize) -> Result<bool, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let metadata = json!({"resourceVersion": object.resource_version(), "uid": object.uid()});
    let patch = document::<K>(metadata, &json!(status));
    match objects
        .patch_status(&object.name_any(), &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&patch))
        .await
    {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the JSON patch that replaces the progress of the job with this UID. In patches of other types the UID has no
/// effect, because a patch of a status cannot change the metadata.
fn progress_patch(uid: &str, progress: &JobProgress) -> Result<Patch<()>, kube::Error> {
    let operations = json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status/progress", "value": progress},
    ]);
    serde_json::from_value(operations).map(Patch::Json).map_err(kube::Error::SerdeError)
}

/// Whether a JSON patch was rejected because its test of `path` failed.
fn is_failed_test(status: &Status, path: &str) -> bool {
    status.is_invalid() && status.message.contains(path)
}

fn document<K: Resource<DynamicType = ()>>(metadata: Value, status: &Value) -> Value {
    json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": metadata, "status": status})
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::client::Body;

    use super::*;

    /// Builds a pod as an API server returns it. `deletion` has its grace period and the end of that, if it is being
    /// deleted.
    fn pod(name: &str, uid: &str, deletion: Option<(u32, &str)>) -> Pod {
        let mut metadata = json!({"name": name, "namespace": "team", "uid": uid});
        if let Some((seconds, ends)) = deletion {
            metadata["deletionTimestamp"] = json!(ends);
            metadata["deletionGracePeriodSeconds"] = json!(seconds);
        }
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})).unwrap()
    }

    /// Returns a client of an API server that has a pod `name` of `uid`, and the bodies of the deletions that it
    /// receives.
    fn server(uid: &'static str) -> (Client, Arc<Mutex<Vec<Value>>>) {
        let deletions = Arc::new(Mutex::new(Vec::new()));
        let recorded = deletions.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let recorded = recorded.clone();
            async move {
                assert_eq!(request.method(), Method::DELETE);
                let body = request.into_body().collect_bytes().await?;
                let options: Value = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
                let expected_uid = options["preconditions"]["uid"].as_str().map(str::to_owned);
                recorded.lock().unwrap().push(options);
                let conflict = expected_uid.is_some_and(|expected_uid| expected_uid != uid);
                let (code, reason) = if conflict { (409, "Conflict") } else { (200, "") };
                let status = json!({
                    "apiVersion": "v1", "kind": "Status", "metadata": {}, "code": code, "reason": reason,
                    "status": if conflict { "Failure" } else { "Success" }, "message": "",
                });
                let response = Response::builder().status(code).header("content-type", "application/json");
                Ok::<_, kube::Error>(response.body(Body::from(status.to_string().into_bytes())).unwrap())
            }
        });
        (Client::new(service, "team"), deletions)
    }

    #[tokio::test]
    async fn pod_is_deleted_by_uid() {
        let (client, deletions) = server("new");
        let pods: Api<Pod> = Api::namespaced(client, "team");
        let (later, long_ago) = ("2100-01-01T00:00:00Z", "2026-01-01T00:00:00Z");
        let found = [
            pod("a", "new", None),
            pod("b", "old", None),
            pod("c", "new", Some((5, later))),
            pod("d", "new", Some((60, later))),
            pod("e", "new", Some((5, long_ago))),
        ];
        remove_pods(&pods, &found, 10).await.unwrap();
        let deletions = deletions.lock().unwrap();
        let uids: Vec<_> = deletions.iter().map(|options| options["preconditions"]["uid"].as_str()).collect();
        assert_eq!(uids, [Some("new"), Some("old"), Some("new"), Some("new")], "the third ends in time by itself");
        let grace = deletions.iter().map(|options| options["gracePeriodSeconds"].as_u64());
        assert!(grace.eq([10, 10, 10, 0].map(Some)), "the node of the last one is lost");
    }
}
