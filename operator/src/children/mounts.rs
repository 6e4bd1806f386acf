//! Which directories of a pod hold what, by the paths in the params.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ConfigMapVolumeSource, PersistentVolumeClaimVolumeSource, Volume, VolumeMount};
use millrace_crds::{JobVolume, MountDir, Resolution, TrainJobSpec};

/// Where the claim of the appliance's storage is mounted; relative output paths lie in it.
pub const MODEL_DIR: &str = "/var/lib/millrace/model_dir";
/// Volume of that claim.
const CLAIM: &str = "model-dir";

/// A claim, and where of it model_dir lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelDirMount {
    pub claim_name: String,
    pub path: String,
    pub sub_path: Option<String>,
}

/// What model_dir lies in; `None` where that is no claim.
pub(super) fn model_dir_mount(spec: &TrainJobSpec, resolution: &Resolution) -> Option<ModelDirMount> {
    let model_dir = PathBuf::from(resolution.model_dir.clone()?);
    if let Some(claim_name) = resolution.model_dir_claim.clone() {
        return Some(ModelDirMount { claim_name, path: MODEL_DIR.to_owned(), sub_path: None });
    }
    let mount = spec.mount_holding(&model_dir)?;
    let volume = spec.volumes.iter().find(|volume| volume.name == mount.volume)?;
    let claim_name = volume.persistent_volume_claim.as_ref()?.claim_name.to_string();
    Some(ModelDirMount { claim_name, path: mount.path.clone(), sub_path: mount.sub_path.clone() })
}

/// What a pod mounts.
#[derive(Default)]
pub(super) struct Mounts {
    pub volumes: Vec<Volume>,
    pub mounts: Vec<VolumeMount>,
}

impl Mounts {
    /// Adds model_dir, to be written.
    pub fn model_dir(&mut self, spec: &TrainJobSpec, resolution: &Resolution) {
        let path = PathBuf::from(resolution.model_dir.clone().unwrap_or_default());
        match (&resolution.model_dir_claim, spec.mount_holding(&path)) {
            (Some(claim), _) => {
                self.volumes.push(claimed(CLAIM, claim, false));
                self.mounts.push(VolumeMount {
                    name: CLAIM.to_owned(),
                    mount_path: MODEL_DIR.to_owned(),
                    ..VolumeMount::default()
                });
            }
            (None, Some(mount)) => self.add(spec, mount, false),
            (None, None) => {}
        }
    }

    /// Adds every directory that is not model_dir's, read-only.
    pub fn data(&mut self, spec: &TrainJobSpec, resolution: &Resolution) {
        let own = self.holder_of_model_dir(spec, resolution).cloned();
        for mount in spec.mount_dirs.iter().filter(|mount| own.as_ref() != Some(mount)) {
            self.add(spec, mount, true);
        }
        if let Some(own) = own
            && !self.mounts.iter().any(|mount| mount.mount_path == own.path)
        {
            // Data may lie beside the checkpoints.
            self.add(spec, &own, true);
        }
    }

    /// Adds the directory that holds `path`, read-only, unless it is there.
    pub fn holding(&mut self, spec: &TrainJobSpec, path: &Path) {
        if let Some(mount) = spec.mount_holding(path)
            && !self.mounts.iter().any(|there| there.mount_path == mount.path)
        {
            self.add(spec, mount, true);
        }
    }

    /// Adds a volume of the pod's own.
    pub fn own(&mut self, name: &str, path: &str, volume: Volume, read_only: bool) {
        self.volumes.push(Volume { name: name.to_owned(), ..volume });
        self.mounts.push(VolumeMount {
            name: name.to_owned(),
            mount_path: path.to_owned(),
            read_only: read_only.then_some(true),
            ..VolumeMount::default()
        });
    }

    fn holder_of_model_dir<'a>(&self, spec: &'a TrainJobSpec, resolution: &Resolution) -> Option<&'a MountDir> {
        let path = PathBuf::from(resolution.model_dir.clone()?);
        if resolution.model_dir_claim.is_some() { None } else { spec.mount_holding(&path) }
    }

    fn add(&mut self, spec: &TrainJobSpec, mount: &MountDir, read_only: bool) {
        let Some(index) = spec.volumes.iter().position(|volume| volume.name == mount.volume) else { return };
        // Not the volume's own name: with a prefix it can be longer than a pod allows.
        let name = format!("user-{index}");
        if !self.volumes.iter().any(|there| there.name == name) {
            self.volumes.push(source(&name, &spec.volumes[index]));
        }
        self.mounts.push(VolumeMount {
            name,
            mount_path: mount.path.clone(),
            sub_path: mount.sub_path.clone(),
            read_only: read_only.then_some(true),
            ..VolumeMount::default()
        });
    }
}

fn source(name: &str, volume: &JobVolume) -> Volume {
    if let Some(claim) = &volume.persistent_volume_claim {
        return claimed(name, &claim.claim_name, false);
    }
    Volume {
        name: name.to_owned(),
        config_map: volume
            .config_map
            .as_ref()
            .map(|source| ConfigMapVolumeSource { name: source.name.clone(), ..ConfigMapVolumeSource::default() }),
        ..Volume::default()
    }
}

fn claimed(name: &str, claim: &str, read_only: bool) -> Volume {
    Volume {
        name: name.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.to_owned(),
            read_only: read_only.then_some(true),
        }),
        ..Volume::default()
    }
}
