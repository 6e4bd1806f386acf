//! Small texts that travel with a submission: a ConfigMap of the job's own, which goes with it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use millrace_crds::TrainJob;
use millrace_operator::children::API;

use super::answer::refused;
use crate::backend::Texts;
use crate::refusal::{Reason, Refusal, Result};

/// How often one that is in the way is looked at.
const TRIES: usize = 3;

/// Sees to it that the texts of `job` are there. Harmless to repeat.
///
/// # Errors
/// The API server's.
pub async fn keep(client: &Client, job: &TrainJob, texts: &Texts) -> Result<()> {
    let name = texts.config_map.as_str();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &job.namespace().unwrap_or_default());
    for _ in 0..TRIES {
        match maps.create(&PostParams::default(), &map(job, texts)).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(refused("keep the texts of a job")(error)),
        }
        let there = maps.get_opt(name).await.map_err(refused("look at the texts of a job"))?;
        let Some(there) = there else { continue };
        if there.owner_references().iter().any(|owner| Some(&owner.uid) == job.uid().as_ref()) {
            return Ok(());
        }
        if there.labels().get(LABEL.0).is_none_or(|value| value != LABEL.1) {
            let detail = format!("there is a ConfigMap {name} that is not a job's: delete it, or rename the job");
            return Err(Refusal::new(Reason::Conflict, detail));
        }
        // Of an earlier job of the name, with which it is about to go.
        let this_one = Preconditions { uid: there.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(this_one), ..DeleteParams::default() };
        match maps.delete(name, &params).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => return Err(refused("make room for the texts of a job")(error)),
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
