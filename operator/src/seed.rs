//! The appliance of the chart's values, applied whenever an operator starts.
//!
//! The chart can't make it: its kind is defined by the same release, and what would create it anew at an upgrade would lose
//! its status, the ledger. Server-side apply changes what the values name, takes back what they named before, and leaves the
//! rest of the spec to others.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use millrace_crds::Appliance;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Field manager of what the chart's values say.
const MANAGER: &str = "millrace-chart";
/// Between two tries while the API server does not serve the kind yet.
const RETRY: Duration = Duration::from_secs(1);

/// Why the appliance is not as the values say.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// There is no such file.
    #[error("the appliance's file {} can't be read: {cause}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What was said.
        cause: std::io::Error,
    },
    /// It holds something else.
    #[error("{} holds no Appliance: {cause}", path.display())]
    Document {
        /// Its path.
        path: PathBuf,
        /// What was said.
        cause: serde_json::Error,
    },
    /// The API server refused it.
    #[error("the Appliance {name} can't be applied: {cause}; correct `appliance` in the chart's values")]
    Refused {
        /// Its name.
        name: String,
        /// What the API server said.
        cause: kube::Error,
    },
}

/// An Appliance that has no place for a status: that is the ledger's.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    metadata: Metadata,
    /// As it is written: a typed spec would add its defaults, and take them away from others.
    spec: Value,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: String,
}

/// Applies the Appliance in the JSON file at `path`. Waits while the API server does not serve the kind yet, as in the first
/// second after an install.
///
/// # Errors
/// [`SeedError`]. The cluster's Appliance is then what it was.
pub async fn apply(client: &Client, path: &Path) -> Result<(), SeedError> {
    let text = std::fs::read(path).map_err(|cause| SeedError::File { path: path.to_owned(), cause })?;
    let document = read(&text).map_err(|cause| SeedError::Document { path: path.to_owned(), cause })?;
    let appliances: Api<Appliance> = Api::all(client.clone());
    let params = PatchParams::apply(MANAGER).force().validation_strict();
    let name = &document.metadata.name;
    loop {
        match appliances.patch(name, &params, &Patch::Apply(&document)).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => log::info!("Appliance is not a known kind yet"),
            Err(cause) => return Err(SeedError::Refused { name: name.clone(), cause }),
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn read(text: &[u8]) -> Result<Document, serde_json::Error> {
    serde_json::from_slice(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_applied_is_what_is_written_and_never_a_status() {
        let mut written = json!({
            "apiVersion": "millrace.dev/v1alpha1",
            "kind": "Appliance",
            "metadata": {"name": "default"},
            "spec": {"systems": 4},
        });
        let document = read(written.to_string().as_bytes()).unwrap();
        assert_eq!(serde_json::to_value(&document).unwrap(), written, "no defaults are added");
        written["status"] = json!({"grants": []});
        let error = read(written.to_string().as_bytes()).unwrap_err();
        assert!(error.to_string().contains("unknown field `status`"), "{error}");
    }
}
