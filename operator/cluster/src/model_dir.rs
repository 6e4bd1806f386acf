//! Where the model_dir of a job lies: in which claim, and at which path of its pods.

use std::path::PathBuf;

use millrace_crds::{ResolvedJob, TrainJobSpec};

/// Mount path of the claim of the appliance's storage; contains relative output paths.
pub const MODEL_DIR_PATH: &str = "/var/lib/millrace/model_dir";

/// A claim, with the mount path and sub-path of model_dir's volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDirMount {
    pub claim_name: String,
    /// Path at which pods mount it.
    pub path: String,
    /// Directory of the claim that is mounted; `None` for all of it.
    pub sub_path: Option<String>,
}

/// Returns the mount that contains model_dir; `None` if it is no claim.
pub fn model_dir_mount(spec: &TrainJobSpec, resolution: &ResolvedJob) -> Option<ModelDirMount> {
    let model_dir = PathBuf::from(resolution.model_dir.clone()?);
    if let Some(claim_name) = resolution.model_dir_claim.clone() {
        return Some(ModelDirMount { claim_name, path: MODEL_DIR_PATH.to_owned(), sub_path: None });
    }
    let mount = spec.mount_holding(&model_dir)?;
    let volume = spec.volumes.iter().find(|volume| volume.name == mount.volume)?;
    let claim_name = volume.persistent_volume_claim.as_ref()?.claim_name.to_string();
    Some(ModelDirMount { claim_name, path: mount.path.clone(), sub_path: mount.sub_path.clone() })
}
