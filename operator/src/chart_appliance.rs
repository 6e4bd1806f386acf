//! Applies the appliance of the chart's values, once for each change of the values.
//!
//! * The chart itself can't create it: its kind is defined by the same release, and creating it again at an upgrade
//!   would lose its status, the ledger. Server-side apply changes the fields that the values name, removes those that
//!   they named before, and leaves the rest of the spec alone.
//! * A digest of the applied values is stored in an annotation of the appliance. If it matches, nothing is applied, so
//!   that manual edits survive restarts and changes of the leader.
//! * If changed values replace a manual edit, an event reports what it was.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::core::Status;
use kube::{Api, Client, Resource, ResourceExt};
use millrace_cluster::client::api_message;
use millrace_crds::{Appliance, ApplianceSpec};
use millrace_lifecycle::JobEvent;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::is_temporary;
use crate::events::EventPublisher;

/// Field manager of the fields in the chart's values.
const CHART_FIELD_MANAGER: &str = "millrace-chart";
/// Annotation of the appliance: digest of the values that were applied last, in hexadecimal.
pub const VALUES_DIGEST_ANNOTATION: &str = "millrace.dev/values-digest";
/// Delay between attempts while the API server does not serve the kind yet, or is unreachable.
const APPLY_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Why the chart's values were not applied.
#[derive(Debug, thiserror::Error)]
pub enum ChartApplianceError {
    /// The file can't be read.
    #[error("the appliance's file {} can't be read: {cause}", path.display())]
    File {
        path: PathBuf,
        /// The error of reading it.
        cause: std::io::Error,
    },
    /// The file is not an Appliance.
    #[error("{} contains no Appliance: {cause}", path.display())]
    Document {
        path: PathBuf,
        /// The error of parsing it.
        cause: serde_json::Error,
    },
    /// The API server rejected the Appliance.
    #[error("the Appliance {name} can't be applied: {cause}; correct `appliance` in the chart's values")]
    Refused { name: String, cause: kube::Error },
}

/// An Appliance without a status, because that is the ledger.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ApplianceFile {
    api_version: String,
    kind: String,
    metadata: Metadata,
    /// Unparsed, because a typed spec would add its defaults and take these fields away from other managers.
    spec: Value,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: String,
}

/// The chart's values for the appliance.
#[derive(Debug)]
pub struct ChartAppliance(ApplianceFile);

impl ChartAppliance {
    /// Reads the JSON file at `path`.
    ///
    /// # Errors
    /// [`ChartApplianceError::File`] and [`ChartApplianceError::Document`].
    pub fn read(path: &Path) -> Result<Self, ChartApplianceError> {
        let text = std::fs::read(path).map_err(|cause| ChartApplianceError::File { path: path.to_owned(), cause })?;
        let document = read(&text).map_err(|cause| ChartApplianceError::Document { path: path.to_owned(), cause })?;
        Ok(Self(document))
    }

    /// Returns the fields of `appliance` that differ from these values, each with both; `None` if it is another
    /// appliance, or these values have not been applied to it.
    pub fn manual_edits(&self, appliance: &Appliance) -> Option<Vec<String>> {
        let ApplianceFile { metadata, spec, .. } = &self.0;
        let applied = appliance.annotations().get(VALUES_DIGEST_ANNOTATION) == Some(&self.0.digest());
        if appliance.name_any() != metadata.name || !applied {
            return None;
        }
        // Converted by the type, so that equal sizes compare equal in any notation.
        let typed: ApplianceSpec = serde_json::from_value(spec.clone()).ok()?;
        let mut edits = Vec::new();
        differences(spec, &json!(typed), &json!(appliance.spec), "spec", &mut edits);
        Some(edits)
    }
}

/// Collects the fields that `values` has, and whose values in `desired` and `current` differ.
fn differences(values: &Value, desired: &Value, current: &Value, path: &str, edits: &mut Vec<String>) {
    if let (Value::Object(fields), Value::Object(_)) = (values, desired) {
        for (key, value) in fields {
            differences(value, &desired[key], &current[key], &format!("{path}.{key}"), edits);
        }
    } else if desired != current {
        edits.push(format!("{path} is {current}, but {desired} in the values"));
    }
}

/// Applies the Appliance in the JSON file at `path`, unless it was applied last. Waits while the API server does not
/// serve the kind yet, as in the first second after an install, or is unreachable.
///
/// # Errors
/// [`ChartApplianceError`]. The cluster's Appliance is unchanged then.
pub async fn apply(client: &Client, path: &Path, events: &EventPublisher) -> Result<(), ChartApplianceError> {
    let ChartAppliance(document) = ChartAppliance::read(path)?;
    let appliances: Api<Appliance> = Api::all(client.clone());
    loop {
        match apply_once(&appliances, &document, events).await {
            Ok(()) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                tracing::info!("the kind Appliance is not defined yet")
            }
            Err(error) if is_temporary(&error) => {
                tracing::warn!(
                    appliance = %document.metadata.name,
                    "can't apply the Appliance, retrying: {}",
                    api_message(&error)
                );
            }
            Err(cause) => return Err(ChartApplianceError::Refused { name: document.metadata.name, cause }),
        }
        tokio::time::sleep(APPLY_RETRY_INTERVAL).await;
    }
}

async fn apply_once(
    appliances: &Api<Appliance>,
    document: &ApplianceFile,
    events: &EventPublisher,
) -> Result<(), kube::Error> {
    let name = &document.metadata.name;
    let digest = document.digest();
    let current = appliances.get_metadata_opt(name).await?;
    if current.is_some_and(|current| current.annotations().get(VALUES_DIGEST_ANNOTATION) == Some(&digest)) {
        tracing::info!(
            appliance = %name,
            "the values of the Appliance were applied before: later edits are kept"
        );
        return Ok(());
    }
    let patch = Patch::Apply(document.with_digest(&digest));
    let params = PatchParams::apply(CHART_FIELD_MANAGER).validation_strict();
    match appliances.patch(name, &params, &patch).await {
        // Another field manager has set fields of the values differently.
        Err(kube::Error::Api(conflict)) if conflict.is_conflict() => {
            let appliance = appliances.patch(name, &params.force(), &patch).await?;
            let message = conflict_message(&conflict);
            tracing::warn!(appliance = %name, "Appliance: {message}");
            let reason = "ManualEditReplaced".to_owned();
            let event = JobEvent { warning: true, reason, message, ..JobEvent::default() };
            events.publish(appliance.object_ref(&()), &event);
            Ok(())
        }
        applied => applied.map(drop),
    }
}

/// Describes what the values replaced, from the API server's report of the conflict.
fn conflict_message(conflict: &Status) -> String {
    let causes = conflict.details.iter().flat_map(|details| &details.causes);
    let causes = causes.filter(|cause| !cause.field.contains(VALUES_DIGEST_ANNOTATION));
    let fields: Vec<String> =
        causes.map(|cause| format!("{} ({})", cause.field.trim_start_matches('.'), cause.message)).collect();
    let replaced = if fields.is_empty() { conflict.message.clone() } else { fields.join(", ") };
    format!("the chart's values have changed and replaced manual edits: {replaced}")
}

impl ApplianceFile {
    /// Returns the digest of the whole document.
    fn digest(&self) -> String {
        blake3::hash(json!(self).to_string().as_bytes()).to_hex().to_string()
    }

    fn with_digest(&self, digest: &str) -> Value {
        let mut document = json!(self);
        document["metadata"]["annotations"] = json!({VALUES_DIGEST_ANNOTATION: digest});
        document
    }
}

fn read(text: &[u8]) -> Result<ApplianceFile, serde_json::Error> {
    serde_json::from_slice(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn apply_sends_the_file_without_status() {
        let mut written = json!({
            "apiVersion": "millrace.dev/v1alpha1",
            "kind": "Appliance",
            "metadata": {"name": "default"},
            "spec": {"systems": 4},
        });
        let document = read(written.to_string().as_bytes()).unwrap();
        assert_eq!(serde_json::to_value(&document).unwrap(), written, "no defaults are added");
        let digest = document.digest();
        let applied = document.with_digest(&digest);
        assert_eq!(applied["metadata"]["annotations"][VALUES_DIGEST_ANNOTATION], digest);
        written["spec"]["systems"] = json!(5);
        assert_ne!(read(written.to_string().as_bytes()).unwrap().digest(), digest, "other values, another digest");
        written["status"] = json!({"grants": []});
        let error = read(written.to_string().as_bytes()).unwrap_err();
        assert!(error.to_string().contains("unknown field `status`"), "{error}");
    }

    #[test]
    fn differences_name_both_values() {
        let document = json!({
            "apiVersion": "millrace.dev/v1alpha1", "kind": "Appliance", "metadata": {"name": "default"},
            "spec": {"systems": 8, "wafer": {"memoryBytes": "4GiB"}, "storage": {"size": "1Gi"}},
        });
        let values = ChartAppliance(read(document.to_string().as_bytes()).unwrap());
        let mut appliance: Appliance = serde_json::from_value(values.0.with_digest(&values.0.digest())).unwrap();
        assert_eq!(values.manual_edits(&appliance), Some(Vec::new()), "defaults of what they do not name are no edits");
        appliance.spec.encrypt_data = Some(false);
        assert_eq!(values.manual_edits(&appliance), Some(Vec::new()), "nor is what they leave to others");
        appliance.spec.machine.systems = Some(3);
        assert_eq!(values.manual_edits(&appliance), Some(vec!["spec.systems is 3, but 8 in the values".to_owned()]));
        appliance.metadata.annotations = None;
        assert_eq!(values.manual_edits(&appliance), None, "these values were never applied");
    }

    #[test]
    fn replaced_manual_edits_are_reported() {
        let status = json!({
            "status": "Failure", "reason": "Conflict", "code": 409,
            "message": "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using millrace.dev/v1alpha1: .spec.systems",
            "details": {"causes": [{
                "reason": "FieldManagerConflict", "message": "conflict with \"kubectl-edit\" using millrace.dev/v1alpha1",
                "field": ".spec.systems",
            }]},
        });
        let message = conflict_message(&serde_json::from_value(status).unwrap());
        assert!(
            message
                .ends_with("manual edits: spec.systems (conflict with \"kubectl-edit\" using millrace.dev/v1alpha1)"),
            "{message}"
        );
    }
}
