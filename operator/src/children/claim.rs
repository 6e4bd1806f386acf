//! The claim of model_dir, for a job without a volume for it.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements};
use kube::ResourceExt;
use millrace_cluster::names::JOB_UID_LABEL;
use millrace_control::AttemptContext;
use millrace_crds::AccessMode;

use super::meta;

/// Builds the claim; `None` if one of the job's volumes contains model_dir. The claim has no owner, because checkpoints
/// are kept when their job is deleted.
pub fn claim(attempt: &AttemptContext<'_>) -> Option<PersistentVolumeClaim> {
    let name = attempt.resolution.model_dir_claim.clone()?;
    let storage = &attempt.cluster.storage;
    let mut metadata = meta(attempt, name);
    metadata.owner_references = None;
    if let Some(labels) = &mut metadata.labels {
        // The next job of this name uses the claim again, and has another UID.
        labels.remove(JOB_UID_LABEL);
    }
    let mode = match storage.access_mode {
        AccessMode::ReadWriteOnce => "ReadWriteOnce",
        AccessMode::ReadWriteMany => "ReadWriteMany",
    };
    debug_assert_eq!(metadata.namespace, attempt.job.namespace());
    Some(PersistentVolumeClaim {
        metadata,
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![mode.to_owned()]),
            storage_class_name: storage.storage_class_name.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), storage.size.clone())].into()),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    })
}
