//! Why a job can't use a path on this server.

use std::io;
use std::path::PathBuf;

use millrace_params::{BlobDigest, InvalidName, LabelName, ObjectName};

/// A path that a job can't use, with a message for the user.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// It contains `..`.
    #[error("the path {0} leaves its directory by `..`: write a path without `..`")]
    ParentDirectory(String),
    /// It contains a NUL byte.
    #[error("the path {0:?} contains a NUL byte")]
    NulByte(String),
    /// It is relative, and the server has no directory for such paths.
    #[error(
        "the path {0} is relative, and this server offers no directory for such paths: upload the file with \
         the params, mount a volume, or start the server with --input-dir DIR"
    )]
    NoInputDirectory(String),
    /// It is in no mount of the job.
    #[error(
        "the path {path} is in none of spec.mountDirs: mount a volume there{}",
        relative_path_hint(.inputs.as_ref())
    )]
    NotMounted {
        /// The path in the params.
        path: String,
        /// The server's directory for relative paths.
        inputs: Option<PathBuf>,
    },
    /// The `subPath` of a mount is not below its volume.
    #[error("spec.mountDirs: subPath {0:?} leads out of its volume")]
    SubPath(PathBuf),
    /// It is in the server's data directory, and not in the part of the job's namespace.
    #[error(
        "the path {} is in the server's private directory {}: choose another path", .path.display(), .data.display()
    )]
    Private {
        /// The path on this machine.
        path: PathBuf,
        /// The server's data directory.
        data: PathBuf,
    },
    /// A mount names a volume that the job does not have.
    #[error("volume {0} not found")]
    VolumeNotFound(String),
    /// The server does not offer a volume to the job's namespace.
    #[error(
        "the server offers no volume {claim} to namespace {namespace} ({}): start it with --volume {claim}=DIR",
        list(.offered)
    )]
    VolumeNotOffered {
        /// The name in the job.
        claim: String,
        /// Namespace of the job.
        namespace: LabelName,
        /// The volumes that the server offers to this namespace.
        offered: Vec<ObjectName>,
    },
    /// The job writes to a volume that is read-only.
    #[error("the volume {0} is read-only: write to another volume, or give a relative path")]
    ReadOnlyVolume(ObjectName),
    /// The job writes to a shared volume outside of the directory of its namespace.
    #[error(
        "the volume {volume} is shared with other namespaces: write below its directory {namespace}/, give a relative \
         path, or have the server started with --volume {volume}=DIR:{namespace}"
    )]
    SharedVolume {
        /// The volume.
        volume: ObjectName,
        /// Namespace of the job.
        namespace: LabelName,
    },
    /// The job writes to a ConfigMap.
    #[error("a ConfigMap is read-only: mount a volume there")]
    ConfigMap,
    /// A field of the job is not a valid name.
    #[error("{field}")]
    Name {
        /// The field of the job.
        field: &'static str,
        /// The rule for its names.
        source: InvalidName,
    },
    /// The model_dir can't be at this path.
    #[error("runconfig.model_dir {path}")]
    ModelDir {
        /// The path in the params.
        path: String,
        /// Why the job can't write there.
        source: Box<Self>,
    },
    /// The path of an uploaded file is not below the directory of such files.
    #[error("spec.files: {0:?} is not a path below the directory of uploaded files")]
    FilePath(String),
    /// An upload that a file names does not exist.
    #[error("spec.files: {path} names the upload {digest}, which does not exist: upload it again")]
    UploadNotFound {
        /// Path of the file.
        path: String,
        /// Digest of the upload.
        digest: BlobDigest,
    },
    /// A directory of the server can't be created.
    #[error("can't make the directory {}", .directory.display())]
    CreateDirectory {
        /// The directory.
        directory: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
}

/// Returns the end of the sentence if the server has a directory for relative paths.
fn relative_path_hint(inputs: Option<&PathBuf>) -> String {
    inputs.map_or_else(String::new, |inputs| format!(", or give a path relative to {}", inputs.display()))
}

fn list(names: &[ObjectName]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().map(ObjectName::as_str).collect::<Vec<_>>().join(", ")
}
