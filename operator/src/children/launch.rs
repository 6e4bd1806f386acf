//! The launch document of an attempt: the job, nothing left to decide, as the coordinator reads it.

use k8s_openapi::api::core::v1::ConfigMap;
use millrace_control::Attempt;
use millrace_control::launch::{Unreadable, launch as document};

use super::{Names, meta};

/// The document of `attempt`.
///
/// # Errors
/// [`Unreadable`].
pub fn launch(attempt: &Attempt<'_>) -> Result<ConfigMap, Unreadable> {
    let text = document(attempt)?.to_json_for(attempt.version())?;
    Ok(ConfigMap {
        metadata: meta(attempt, Names::of(attempt.job).launch(attempt.number)),
        data: Some([("launch.json".to_owned(), text)].into()),
        immutable: Some(true),
        ..ConfigMap::default()
    })
}
