//! Stores the uploads of a job in a ConfigMap, which is deleted together with the job.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use millrace_crds::TrainJob;
use serde_json::json;

use super::API_MANAGER;
use super::api_errors::api_error;
use crate::error::{ApiError, ErrorReason, Result};
use crate::submission::UploadedFiles;

/// Tries to create a ConfigMap while an earlier one is being deleted.
const MAX_TRIES: usize = 3;

/// Makes sure that the ConfigMap with the uploads of `job` exists. Idempotent.
///
/// A ConfigMap of this name may exist already: from the same request, or of an earlier job of the same name, with which
/// it is about to be deleted. Its name contains a digest of its content, so it only needs `job` as its owner. The
/// admission policy of the chart decides whose ConfigMaps this server may change; it may read none.
///
/// # Errors
/// The API server fails, or a ConfigMap of that name belongs to something else.
pub async fn store_uploads(client: &Client, job: &TrainJob, uploads: &UploadedFiles) -> Result<()> {
    let name = uploads.config_map.as_str();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &job.namespace().unwrap_or_default());
    for _ in 0..MAX_TRIES {
        match maps.create(&PostParams::default(), &config_map(job, uploads)).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(api_error("store the files uploaded with a job")(error)),
        }
        let owned = Patch::Merge(json!({"metadata": {"ownerReferences": [job.owner_ref(&())]}}));
        match maps.patch_metadata(name, &PatchParams::default(), &owned).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
                let detail =
                    format!("a ConfigMap {name} exists that does not belong to the job: delete it, or rename the job");
                return Err(ApiError::new(ErrorReason::Conflict, detail));
            }
            Err(error) => return Err(api_error("store the files uploaded with a job")(error)),
        }
    }
    Err(ApiError::new(
        ErrorReason::Conflict,
        "the uploaded files of an earlier job with this name still exist: try again",
    ))
}

const MANAGED_BY_LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", API_MANAGER);

fn config_map(job: &TrainJob, uploads: &UploadedFiles) -> ConfigMap {
    let files = uploads.files.iter().map(|file| (file.name.to_string(), file.content.clone()));
    let labels = [MANAGED_BY_LABEL, ("app.kubernetes.io/name", "millrace"), ("app.kubernetes.io/component", "texts")];
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(uploads.config_map.to_string()),
            namespace: job.namespace(),
            labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
            owner_references: job.owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(files.collect::<BTreeMap<_, _>>()),
        immutable: Some(true),
        ..ConfigMap::default()
    }
}
