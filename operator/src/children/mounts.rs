//! The volumes and mounts of a pod, by the paths in the params.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, PersistentVolumeClaimVolumeSource, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use millrace_cluster::model_dir::MODEL_DIR_PATH;
use millrace_crds::{JobVolume, MountedDir, ResolvedJob, TrainJobSpec};

/// Name of the volume of the claim of the appliance's storage.
const MODEL_DIR_VOLUME: &str = "model-dir";

/// Volumes and mounts of a pod.
#[derive(Default)]
pub(super) struct Mounts {
    pub volumes: Vec<Volume>,
    pub mounts: Vec<VolumeMount>,
}

impl Mounts {
    /// Adds model_dir, writable.
    pub fn add_model_dir(&mut self, spec: &TrainJobSpec, resolution: &ResolvedJob) {
        let path = PathBuf::from(resolution.model_dir.clone().unwrap_or_default());
        match (&resolution.model_dir_claim, spec.mount_holding(&path)) {
            (Some(claim), _) => {
                self.volumes.push(claimed(MODEL_DIR_VOLUME, claim, false));
                self.mounts.push(VolumeMount {
                    name: MODEL_DIR_VOLUME.to_owned(),
                    mount_path: MODEL_DIR_PATH.to_owned(),
                    ..VolumeMount::default()
                });
            }
            (None, Some(mount)) => self.add(spec, mount, false),
            (None, None) => {}
        }
    }

    /// Adds every directory except model_dir's, read-only.
    pub fn add_data(&mut self, spec: &TrainJobSpec, resolution: &ResolvedJob) {
        let model_dir = self.model_dir_mount_dir(spec, resolution).cloned();
        for mount in spec.mount_dirs.iter().filter(|mount| model_dir.as_ref() != Some(mount)) {
            self.add(spec, mount, true);
        }
        if let Some(model_dir) = model_dir
            && !self.mounts.iter().any(|mount| mount.mount_path == model_dir.path)
        {
            // The volume of the checkpoints may also contain data.
            self.add(spec, &model_dir, true);
        }
    }

    /// Adds the directory that contains `path`, read-only, unless it is mounted already.
    pub fn add_containing(&mut self, spec: &TrainJobSpec, path: &Path) {
        if let Some(mount) = spec.mount_holding(path)
            && !self.mounts.iter().any(|other| other.mount_path == mount.path)
        {
            self.add(spec, mount, true);
        }
    }

    /// Adds a volume that belongs to the pod itself.
    pub fn add_volume(&mut self, name: &str, path: &str, volume: Volume, read_only: bool) {
        self.volumes.push(Volume { name: name.to_owned(), ..volume });
        self.mounts.push(VolumeMount {
            name: name.to_owned(),
            mount_path: path.to_owned(),
            read_only: read_only.then_some(true),
            ..VolumeMount::default()
        });
    }

    /// Adds an empty directory of the pod, whose size is limited so that one job can't fill its node's disk.
    pub fn add_empty_dir(&mut self, name: &str, path: &str, size_limit: &str, read_only: bool) {
        let size_limit = Some(Quantity(size_limit.to_owned()));
        let empty_dir = Some(EmptyDirVolumeSource { size_limit, ..EmptyDirVolumeSource::default() });
        self.add_volume(name, path, Volume { empty_dir, ..Volume::default() }, read_only);
    }

    fn model_dir_mount_dir<'a>(&self, spec: &'a TrainJobSpec, resolution: &ResolvedJob) -> Option<&'a MountedDir> {
        let path = PathBuf::from(resolution.model_dir.clone()?);
        if resolution.model_dir_claim.is_some() { None } else { spec.mount_holding(&path) }
    }

    fn add(&mut self, spec: &TrainJobSpec, mount: &MountedDir, read_only: bool) {
        let Some(index) = spec.volumes.iter().position(|volume| volume.name == mount.volume) else { return };
        // The volume's own name is not used, because with a prefix it can be longer than a pod allows.
        let name = format!("user-{index}");
        if !self.volumes.iter().any(|other| other.name == name) {
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
