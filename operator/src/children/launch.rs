//! The launch document of an attempt: the resolved job, as its coordinator reads it.

use k8s_openapi::api::core::v1::ConfigMap;
use millrace_cluster::names::ChildNames;
use millrace_control::AttemptContext;
use millrace_control::launch::launch as document;
use millrace_control::record::ResolvedJobError;

use super::meta;

/// Builds the ConfigMap with the document of `attempt`.
///
/// # Errors
/// The record can't be read, or the document can't be written for the attempt's version; see [`ResolvedJobError`].
pub fn launch(attempt: &AttemptContext<'_>) -> Result<ConfigMap, ResolvedJobError> {
    let text = document(attempt)?.to_json_for(attempt.version())?;
    Ok(ConfigMap {
        metadata: meta(attempt, ChildNames::for_job(attempt.job).launch(attempt.number)),
        data: Some([("launch.json".to_owned(), text)].into()),
        immutable: Some(true),
        ..ConfigMap::default()
    })
}
