//! The container that reads a Python dataset, beside the agent of an activation server.
//!
//! ```text
//!   activation server ──program, socket──► emptyDir ──read-only──► loader (image of the job or the appliance)
//!                                                                     │ read-only
//!                                          data, uploads ◄────────────┘
//! ```
//!
//! * The container runs code of a user: it has no token and no certificate, writes to a directory of its own only, and
//!   denies itself the network before that code runs.
//! * It is an init container that restarts (a sidecar), so it starts before the agent and ends after it.

use std::path::Path;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, VolumeMount};
use millrace_control::AttemptContext;
use millrace_protocol::launch::loader_command;

use super::mounts::Mounts;
use super::pod::{container_security, pull_policy};
use super::resources::loader_resources;

/// Name of the container.
pub const LOADER_NAME: &str = "loader";
/// Directory that the agent and the container share.
pub(super) const LOADER_DIR: &str = "/run/millrace/loader";
const LOADER_VOLUME: &str = "loader";
/// Directory of the container's own files: the modules of the dataset, and temporary files of its code.
const SCRATCH_DIR: &str = "/tmp";
/// Maximum size of that directory.
const SCRATCH_SIZE_LIMIT: &str = "16Gi";
/// Maximum size of the shared directory, which has one small file.
const SHARED_SIZE_LIMIT: &str = "1Mi";

/// Adds the container to the pod of an activation server, if the job reads a Python dataset.
pub(super) fn add_loader(attempt: &AttemptContext<'_>, pod: &mut Pod) {
    let (Some(image), Some(spec)) = (&attempt.resolution.loader_image, pod.spec.as_mut()) else { return };
    let mut data = Mounts::default();
    data.add_data(&attempt.job.spec, attempt.resolution);
    let mut mounts = Mounts::default();
    mounts.add_empty_dir(LOADER_VOLUME, LOADER_DIR, SHARED_SIZE_LIMIT, true);
    mounts.add_empty_dir("loader-scratch", SCRATCH_DIR, SCRATCH_SIZE_LIMIT, false);
    spec.volumes.get_or_insert_default().extend(mounts.volumes);
    let shared =
        VolumeMount { name: LOADER_VOLUME.to_owned(), mount_path: LOADER_DIR.to_owned(), ..VolumeMount::default() };
    spec.containers.iter_mut().for_each(|agent| agent.volume_mounts.get_or_insert_default().push(shared.clone()));
    let mounts = mounts.mounts.into_iter().chain(data.mounts).collect();
    spec.init_containers.get_or_insert_default().push(container(attempt, image, mounts));
}

fn container(attempt: &AttemptContext<'_>, image: &str, mounts: Vec<VolumeMount>) -> Container {
    let resources = attempt.job.spec.resources.as_ref().or(attempt.resolution.resources.as_ref());
    let home = EnvVar { name: "HOME".to_owned(), value: Some(SCRATCH_DIR.to_owned()), ..EnvVar::default() };
    Container {
        name: LOADER_NAME.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: attempt.cluster.image_pull_policy.map(|policy| pull_policy(policy).to_owned()),
        command: Some(loader_command(Path::new(LOADER_DIR), Path::new(SCRATCH_DIR))),
        env: Some(vec![home]),
        resources: Some(loader_resources(resources)),
        restart_policy: Some("Always".to_owned()),
        volume_mounts: Some(mounts),
        security_context: Some(container_security()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    }
}
