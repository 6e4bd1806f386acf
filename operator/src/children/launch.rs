//! The launch document of an attempt: the resolved job, as its coordinator reads it.

use k8s_openapi::api::core::v1::ConfigMap;
use millrace_cluster::names::ChildNames;
use millrace_control::AttemptContext;
use millrace_control::launch::launch as document;
use millrace_control::record::ResolvedJobError;

use super::fetcher::{FETCH_DOCUMENT_KEY, fetch_document, locate_uploads};
use super::meta;
use crate::error::ChildError;

/// Builds the ConfigMap with the document of `attempt`, and the list of the uploads that its pods fetch.
///
/// # Errors
/// The record can't be read, or a document can't be written; see [`ChildError`].
pub fn launch(attempt: &AttemptContext<'_>) -> Result<ConfigMap, ChildError> {
    let mut document = document(attempt)?;
    locate_uploads(attempt, &mut document);
    let text = document.to_json_for(attempt.version()).map_err(ResolvedJobError::from)?;
    let uploads = fetch_document(attempt)?.map(|uploads| uploads.to_json()).transpose();
    let uploads = uploads.map_err(ResolvedJobError::from)?.map(|uploads| (FETCH_DOCUMENT_KEY.to_owned(), uploads));
    Ok(ConfigMap {
        metadata: meta(attempt, ChildNames::for_job(attempt.job).launch(attempt.number)),
        data: Some([("launch.json".to_owned(), text)].into_iter().chain(uploads).collect()),
        immutable: Some(true),
        ..ConfigMap::default()
    })
}
