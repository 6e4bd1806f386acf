//! Reads the graph document that a job names instead of a model family.

use std::cell::OnceCell;

use millrace_crds::TrainJob;
use millrace_emulator::compile;
use millrace_emulator::graph::Graph;
use millrace_params::{BlobDigest, JobSpec};

use crate::plan_compiler::PlanBudget;
use crate::resolve_error::{InvalidJob, ResolveError};
use crate::world::JobSite;

/// Memory that reading a document takes for each of its bytes, measured with documents of GPT-2.
const GRAPH_BYTES_PER_DOCUMENT_BYTE: u64 = 8;

/// Returns the graph of the model of one job. A document is read at most once.
pub struct JobGraph<'a> {
    job: &'a TrainJob,
    site: &'a dyn JobSite,
    may_plan: &'a PlanBudget<'a>,
    document: OnceCell<Graph>,
}

impl<'a> JobGraph<'a> {
    /// Prepares to read the document of `job` in the world of `site`, if `may_plan` allows it.
    pub const fn new(job: &'a TrainJob, site: &'a dyn JobSite, may_plan: &'a PlanBudget<'a>) -> Self {
        Self { job, site, may_plan, document: OnceCell::new() }
    }

    /// Returns the limit on plans that the caller has chosen.
    pub(crate) const fn may_plan(&self) -> &'a PlanBudget<'a> {
        self.may_plan
    }

    /// Returns the graph of the document that `resolved` names; `None` if its model is one of a family.
    ///
    /// # Errors
    /// It names a file instead of an upload, the document can't be read, [`ResolveError::Unavailable`], or
    /// [`ResolveError::Overloaded`].
    pub fn of_document(&self, resolved: &JobSpec) -> Result<Option<&Graph>, ResolveError> {
        let Some(name) = &resolved.model.graph else { return Ok(None) };
        if let Some(graph) = self.document.get() {
            return Ok(Some(graph));
        }
        let Ok(digest) = BlobDigest::new(name.clone()) else {
            return Err(InvalidJob::GraphFile(name.clone()).into());
        };
        let document = self.site.graph_document(self.job, &digest)?;
        (self.may_plan)(document.len() as u64 * GRAPH_BYTES_PER_DOCUMENT_BYTE)?;
        let graph = Graph::read(&document).map_err(InvalidJob::GraphDocument)?;
        Ok(Some(self.document.get_or_init(|| graph)))
    }

    /// Returns the graph of the model of `resolved`.
    ///
    /// # Errors
    /// Those of [`JobGraph::of_document`], or the model is inconsistent.
    pub(crate) fn read(&self, resolved: &JobSpec) -> Result<Graph, ResolveError> {
        match self.of_document(resolved)? {
            Some(graph) => Ok(graph.clone()),
            None => Ok(compile::graph(resolved)?),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::world::{DocumentError, ModelDirLocation, SiteError};

    /// Returns a job with its graph as an upload of the site.
    pub fn job_with_graph() -> (TrainJob, Uploads) {
        let (_, job, uploads) = super::tests::jobs();
        (job, uploads)
    }

    /// A site with uploads, where every path is available.
    #[derive(Default)]
    pub struct Uploads(pub HashMap<BlobDigest, Vec<u8>>);

    /// A site whose uploads can't be read for some tries.
    #[derive(Default)]
    pub struct FailingUploads {
        pub uploads: Uploads,
        /// Tries that fail.
        pub failures: AtomicU32,
    }

    impl JobSite for FailingUploads {
        fn image(&self) -> Option<String> {
            None
        }

        fn model_dir(&self, job: &TrainJob, written: &str) -> Result<ModelDirLocation, SiteError> {
            self.uploads.model_dir(job, written)
        }

        fn graph_document(&self, job: &TrainJob, digest: &BlobDigest) -> Result<Vec<u8>, DocumentError> {
            let remaining =
                self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |remaining| remaining.checked_sub(1));
            match remaining {
                Ok(_) => Err(DocumentError::Unavailable("the server does not answer".into())),
                Err(_) => self.uploads.graph_document(job, digest),
            }
        }

        fn check_readable(&self, _: &TrainJob, _: &str) -> Result<(), SiteError> {
            Ok(())
        }
    }

    impl JobSite for Uploads {
        fn image(&self) -> Option<String> {
            None
        }

        fn model_dir(&self, _: &TrainJob, written: &str) -> Result<ModelDirLocation, SiteError> {
            Ok(ModelDirLocation { path: written.into(), claim: None })
        }

        fn graph_document(&self, _: &TrainJob, digest: &BlobDigest) -> Result<Vec<u8>, DocumentError> {
            self.0.get(digest).cloned().ok_or_else(|| DocumentError::Unusable(format!("no upload {digest}").into()))
        }

        fn check_readable(&self, _: &TrainJob, _: &str) -> Result<(), SiteError> {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_crds::{ApplianceSpec, StoredParams, TrainJobSpec, UploadedModel};
    use millrace_params::{FlagOverrides, Params};
    use serde_json::json;

    use super::testing::Uploads;
    use super::*;
    use crate::plan_compiler::PlanCompiler;
    use crate::record::resolved_job;
    use crate::resolve::{resolve, resolve_and_plan};
    use crate::resolve_error::OverBudget;

    /// Returns a job of a family, and one with its graph as an upload of the site.
    pub(super) fn jobs() -> (TrainJob, TrainJob, Uploads) {
        let params = Params::parse_yaml(include_str!("../../../examples/gpt2-tiny.yaml")).unwrap();
        let resolved = params.resolve(&FlagOverrides::default()).unwrap().job;
        let graph = compile::graph(&resolved).unwrap();
        let document = serde_json::to_vec(&graph).unwrap();
        let digest = BlobDigest::new(format!("blake3:{}", blake3::hash(&document).to_hex())).unwrap();
        let family = TrainJob::new("family", TrainJobSpec::new(2, StoredParams::from(&params)));
        let mut uploaded = family.clone();
        let stored = uploaded.spec.params.0.as_object_mut().unwrap();
        for input in ["train_input", "eval_input"] {
            stored[input].as_object_mut().unwrap().remove("max_sequence_length");
        }
        let vocabulary = stored["model"]["vocab_size"].clone();
        stored["model"] = json!({"vocab_size": vocabulary});
        uploaded.spec.model = Some(UploadedModel { graph: Some(digest.to_string()), weights: None });
        (family, uploaded, Uploads([(digest, document)].into()))
    }

    #[test]
    fn uploaded_graph_of_a_family_has_its_plan() {
        let (family, mut own, site) = jobs();
        let cluster = ApplianceSpec::default();
        let [family, uploaded] = [&family, &own].map(|job| resolve(job, &cluster, &site).unwrap());
        assert_eq!(family.plan_hash, uploaded.plan_hash);
        let length = resolved_job(&family).unwrap().0.train_input.max_sequence_length;
        assert_eq!(resolved_job(&uploaded).unwrap().0.train_input.max_sequence_length, length, "that of the graph");
        let weights = format!("blake3:{}", "0".repeat(64));
        own.spec.model.as_mut().unwrap().weights = Some(weights.clone());
        let started = resolve(&own, &cluster, &site).unwrap();
        assert_eq!(resolved_job(&started).unwrap().0.run.checkpoint_path, Some(weights));
    }

    #[test]
    fn model_that_cannot_be_read_is_explained() {
        let (_, own, site) = jobs();
        let cluster = ApplianceSpec::default();
        let refused = |job: &TrainJob, site: &Uploads| resolve(job, &cluster, site).unwrap_err().to_string();
        assert!(refused(&own, &Uploads::default()).starts_with("no upload blake3:"));
        let damaged = Uploads(site.0.keys().map(|digest| (digest.clone(), b"{}".to_vec())).collect());
        let error = refused(&own, &damaged);
        assert!(error.starts_with("the graph document is not the document of a graph"), "{error}");
        let mut file = own.clone();
        file.spec.model = None;
        file.spec.params.0["model"]["graph"] = json!("net.json");
        let error = refused(&file, &site);
        assert!(error.contains("\"net.json\"") && error.contains("spec.model.graph"), "{error}");
        let limit: &PlanBudget<'_> = &|bytes| Err(OverBudget::Heavy { bytes });
        let rejected = resolve_and_plan(&own, None, &cluster, 1, &site, (&PlanCompiler::default(), limit));
        assert!(matches!(rejected, Err(ResolveError::Overloaded(_))), "a document is parsed within the budget");
    }

    /// The same uploads, where agents run in pods.
    struct InPods(Uploads);

    impl JobSite for InPods {
        fn image(&self) -> Option<String> {
            Some("millrace:1".to_owned())
        }

        fn runs_pods(&self) -> bool {
            true
        }

        fn model_dir(&self, job: &TrainJob, written: &str) -> Result<crate::ModelDirLocation, crate::SiteError> {
            self.0.model_dir(job, written)
        }

        fn graph_document(&self, job: &TrainJob, digest: &BlobDigest) -> Result<Vec<u8>, crate::DocumentError> {
            self.0.graph_document(job, digest)
        }

        fn check_readable(&self, job: &TrainJob, path: &str) -> Result<(), crate::SiteError> {
            self.0.check_readable(job, path)
        }
    }

    #[test]
    fn python_dataset_in_pods_needs_an_image() {
        let (_, mut job, site) = jobs();
        job.spec.params.0["train_input"]["data_processor"] = json!("PythonDataProcessor");
        let mut cluster = ApplianceSpec::default();
        assert_eq!(resolve(&job, &cluster, &site).unwrap().loader_image, None, "a process of the machine reads it");
        let site = InPods(site);
        let error = resolve(&job, &cluster, &site).unwrap_err().to_string();
        assert!(error.starts_with("train_input is a Python dataset, and no image is named"), "{error}");
        cluster.loader_image = Some("of-appliance:1".to_owned());
        assert_eq!(resolve(&job, &cluster, &site).unwrap().loader_image.as_deref(), Some("of-appliance:1"));
        job.spec.loader_image = Some("of-job:1".to_owned());
        assert_eq!(resolve(&job, &cluster, &site).unwrap().loader_image.as_deref(), Some("of-job:1"));
    }
}
