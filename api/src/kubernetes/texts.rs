//! Stores the uploads of a job in a ConfigMap, which is deleted together with the job.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use millrace_crds::TrainJob;
use millrace_operator::children::API;
use serde_json::json;

use super::answer::refused;
use crate::backend::Texts;
use crate::refusal::{Reason, Refusal, Result};

/// Tries to create a ConfigMap while an earlier one is being deleted.
const TRIES: usize = 3;

/// Makes sure that the ConfigMap with the uploads of `job` exists. Idempotent.
///
/// A ConfigMap of this name may exist already: from the same request, or of an earlier job of the same name, with which
/// it is about to be deleted. Its name contains a digest of its content, so it only needs `job` as its owner. The
/// admission policy of the chart decides whose ConfigMaps this server may change; it may read none.
///
/// # Errors
/// The API server fails, or a ConfigMap of that name belongs to something else.
pub async fn keep(client: &Client, job: &TrainJob, texts: &Texts) -> Result<()> {
    let name = texts.config_map.as_str();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &job.namespace().unwrap_or_default());
    for _ in 0..TRIES {
        match maps.create(&PostParams::default(), &map(job, texts)).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(refused("keep the texts of a job")(error)),
        }
        let owned = Patch::Merge(json!({"metadata": {"ownerReferences": [job.owner_ref(&())]}}));
        match maps.patch_metadata(name, &PatchParams::default(), &owned).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
                let detail = format!("there is a ConfigMap {name} that is not a job's: delete it, or rename the job");
                return Err(Refusal::new(Reason::Conflict, detail));
            }
            Err(error) => return Err(refused("keep the texts of a job")(error)),
        }
    }
    Err(Refusal::new(Reason::Conflict, "the texts of an earlier job of this name are still there: try again"))
}

const LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", API);

fn map(job: &TrainJob, texts: &Texts) -> ConfigMap {
    let files = texts.files.iter().map(|text| (text.name.to_string(), text.content.clone()));
    let labels = [LABEL, ("app.kubernetes.io/name", "millrace"), ("app.kubernetes.io/component", "texts")];
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(texts.config_map.to_string()),
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
