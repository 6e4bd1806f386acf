//! The properties of this cluster that jobs' records depend on.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use millrace_control::{DocumentError, JobSite, ModelDirLocation, SiteError};
use millrace_crds::TrainJob;
use millrace_params::BlobDigest;
use millrace_protocol::launch::V1;

use crate::model_dir::MODEL_DIR_PATH;
use crate::names::ChildNames;

/// A model_dir that is in no mount of its job.
#[derive(Debug, thiserror::Error)]
#[error(
    "runconfig.model_dir {0} is in none of spec.mountDirs: mount a volume there, or give a relative path, which is \
     stored in a claim of the appliance's storage"
)]
struct ModelDirNotMounted(String);

/// A job names an upload, and the cluster stores none.
#[derive(Debug, thiserror::Error)]
#[error(
    "the job names uploads, and the REST server of this cluster stores none: put the files into a volume, or have an \
     administrator install the chart with a claim for the REST server (without api.database.secretName)"
)]
struct UploadsNotSupported;

/// The graph documents among the uploads of a cluster.
pub trait GraphDocuments: Send + Sync {
    /// Reads a document that `job` names, see [`JobSite::graph_document`]. Blocks for some seconds at most.
    ///
    /// # Errors
    /// There is no such upload, or it can't be read, perhaps only at present.
    fn read(&self, job: &TrainJob, digest: &BlobDigest) -> Result<Vec<u8>, DocumentError>;
}

/// A cluster in which pods run the agents.
#[derive(Clone)]
pub struct PodSite {
    /// Image of the pods if the appliance names none.
    pub image: String,
    /// The graph documents; `None` if the REST server stores no uploads.
    pub documents: Option<Arc<dyn GraphDocuments>>,
}

impl PodSite {
    /// Creates a cluster without uploads.
    pub const fn without_uploads(image: String) -> Self {
        Self { image, documents: None }
    }
}

impl JobSite for PodSite {
    fn image(&self) -> Option<String> {
        Some(self.image.clone())
    }

    fn model_dir(&self, job: &TrainJob, written: &str) -> Result<ModelDirLocation, SiteError> {
        let path = Path::new(written);
        if path.is_absolute() && !path.starts_with(MODEL_DIR_PATH) {
            return match job.spec.mount_holding(path) {
                Some(_) => Ok(ModelDirLocation { path: path.to_owned(), claim: None }),
                None => Err(ModelDirNotMounted(written.to_owned()).into()),
            };
        }
        let path = path.strip_prefix(MODEL_DIR_PATH).unwrap_or(path);
        // A path with `..` could leave the claim, and its files would be lost with the pod.
        let inside = path.components().filter(|part| matches!(part, Component::Normal(_)));
        let path = inside.fold(PathBuf::from(MODEL_DIR_PATH), |path, part| path.join(part));
        Ok(ModelDirLocation { path, claim: Some(ChildNames::for_job(job).model_dir_claim()) })
    }

    fn unsupported_agents(&self, version: u32) -> Option<String> {
        (version <= V1).then(|| {
            "agents of release 0.1.0, which created this job, can't authenticate, so no further attempt is started \
             with them: delete the job and create it again with the same name; agents of this release resume from the \
             newest checkpoint in its model_dir"
                .to_owned()
        })
    }

    fn runs_pods(&self) -> bool {
        true
    }

    fn check_uploads_supported(&self) -> Result<(), SiteError> {
        self.documents.as_ref().map(drop).ok_or_else(|| UploadsNotSupported.into())
    }

    fn graph_document(&self, job: &TrainJob, digest: &BlobDigest) -> Result<Vec<u8>, DocumentError> {
        let documents = self.documents.as_ref().ok_or_else(|| DocumentError::Unusable(UploadsNotSupported.into()))?;
        documents.read(job, digest)
    }

    fn check_readable(&self, _: &TrainJob, _: &str) -> Result<(), SiteError> {
        // A path that is not mounted does not exist in the pods: the agents report that.
        Ok(())
    }
}
