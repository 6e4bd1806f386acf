//! Protects the ledger: a finalizer holds an appliance while jobs hold systems of it, and labels of pods name their
//! systems.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use millrace_cluster::names::{ATTEMPT_LABEL, JOB_LABEL, JOB_UID_LABEL, SYSTEM_LABEL};
use millrace_crds::{Appliance, Grant};
use serde_json::json;

/// The finalizer. It is set only while systems are in use, so that an unused appliance can be deleted without an
/// operator.
pub const IN_USE_FINALIZER: &str = "millrace.dev/systems-in-use";

/// Returns the finalizers that `appliance` should have; `None` if no change is needed or, because it is deleted,
/// possible.
fn desired_finalizers(appliance: &Appliance, in_use: bool) -> Option<Vec<String>> {
    let current = appliance.finalizers();
    let protected = current.iter().any(|name| name == IN_USE_FINALIZER);
    match (protected, in_use) {
        (false, true) if appliance.metadata.deletion_timestamp.is_none() => {
            Some(current.iter().cloned().chain([IN_USE_FINALIZER.to_owned()]).collect())
        }
        (true, false) => Some(current.iter().filter(|name| *name != IN_USE_FINALIZER).cloned().collect()),
        _ => None,
    }
}

/// Sets or removes the finalizer; returns whether there was anything to do. Does nothing after a write conflict: the
/// newer version causes another reconcile.
///
/// # Errors
/// The API server rejected the request, or is unreachable.
pub async fn update_finalizer(client: &Client, appliance: &Appliance, in_use: bool) -> Result<bool, kube::Error> {
    let Some(finalizers) = desired_finalizers(appliance, in_use) else { return Ok(false) };
    let metadata = json!({
        "uid": appliance.uid(), "resourceVersion": appliance.resource_version(), "finalizers": finalizers,
    });
    let patch = Patch::Merge(json!({"metadata": metadata}));
    let appliances: Api<Appliance> = Api::all(client.clone());
    match appliances.patch_metadata(&appliance.name_any(), &PatchParams::default(), &patch).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns the grants that the labels of pods with the label [`SYSTEM_LABEL`] record, one for each job.
pub fn grants_of_pods<'a>(pods: impl Iterator<Item = &'a ObjectMeta>) -> Vec<Grant> {
    let mut grants: BTreeMap<String, Grant> = BTreeMap::new();
    for pod in pods {
        let label = |key: &str| pod.labels.as_ref()?.get(key).cloned();
        let (Some(uid), Some(system)) = (label(JOB_UID_LABEL), label(SYSTEM_LABEL)) else { continue };
        let grant = grants.entry(uid.clone()).or_insert_with(|| Grant {
            uid,
            namespace: pod.namespace.clone().unwrap_or_default(),
            name: label(JOB_LABEL).unwrap_or_default(),
            attempt: label(ATTEMPT_LABEL).and_then(|attempt| attempt.parse().ok()).unwrap_or(1),
            ..Grant::default()
        });
        grant.systems.push(system);
    }
    grants.into_values().collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use millrace_crds::ApplianceSpec;

    use super::*;

    #[test]
    fn finalizer_stays_while_appliance_is_in_use() {
        let mut appliance = Appliance::new("default", ApplianceSpec::default());
        let finalizers = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(desired_finalizers(&appliance, false), None);
        assert_eq!(desired_finalizers(&appliance, true), finalizers(&[IN_USE_FINALIZER]));
        appliance.metadata.finalizers = finalizers(&["other", IN_USE_FINALIZER]);
        assert_eq!(desired_finalizers(&appliance, true), None);
        assert_eq!(desired_finalizers(&appliance, false), finalizers(&["other"]));
        appliance.metadata.finalizers = finalizers(&["other"]);
        appliance.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(
            desired_finalizers(&appliance, true),
            None,
            "an API server takes no new one of an object that is deleted"
        );
    }

    #[test]
    fn systems_are_counted_by_their_pods() {
        let pod = |uid: &str, system: &str| ObjectMeta {
            namespace: Some("team".to_owned()),
            labels: Some(
                [(JOB_UID_LABEL, uid), (SYSTEM_LABEL, system), (ATTEMPT_LABEL, "3"), (JOB_LABEL, "job")]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
            ),
            ..ObjectMeta::default()
        };
        let pods = [pod("a", "csx-0"), pod("b", "csx-2"), pod("a", "csx-1"), ObjectMeta::default()];
        let grants = grants_of_pods(pods.iter());
        assert_eq!(grants.len(), 2);
        assert_eq!((grants[0].uid.as_str(), grants[0].attempt, grants[0].name.as_str()), ("a", 3, "job"));
        assert_eq!(grants[0].systems, ["csx-0", "csx-1"]);
    }
}
