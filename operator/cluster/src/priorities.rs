//! The values of the cluster's PriorityClasses, by which jobs are ordered in the queue.

use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use millrace_control::PriorityValues;

/// Reads the values of the cluster's priority classes.
///
/// # Errors
/// The API server rejected the request, or is unreachable.
pub async fn priorities(client: &Client) -> Result<PriorityValues, kube::Error> {
    let classes: Api<PriorityClass> = Api::all(client.clone());
    let classes = classes.list(&ListParams::default()).await?.items;
    let default = classes.iter().find(|class| class.global_default == Some(true)).map_or(0, |class| class.value);
    Ok(PriorityValues { values: classes.iter().map(|class| (class.name_any(), class.value)).collect(), default })
}
