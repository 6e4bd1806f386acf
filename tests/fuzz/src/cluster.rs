//! Targets for documents of users (params files, custom resources) and for the record of a resolved job.

use std::path::PathBuf;
use std::sync::OnceLock;

use millrace_api::admission::AdmissionSchema;
use millrace_control::record::resolved_job;
use millrace_control::{DocumentError, JobSite, ModelDirLocation, SiteError};
use millrace_crds::{ApplianceSpec, ResolvedJob, TrainJob};
use millrace_params::{BlobDigest, FlagOverrides, JobSpec, MachineSpec, Params, PhasedParams};
use serde_json::Value;

/// Parses a params file, which may continue its own model, evaluates its learning rate and momentum, and parses the
/// same bytes as an appliance.
pub fn params(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let resolve = |params: &Params, overrides: &FlagOverrides| params.resolve(overrides);
    let read = PhasedParams::parse_yaml(text, |_| Ok(text.to_owned()));
    let phases = read.and_then(|read| read.resolve_with(&FlagOverrides::default(), resolve, |error| error));
    for resolved in phases.unwrap_or_default() {
        for step in [0, 1, 1000, u64::MAX] {
            resolved.job.optimizer.schedule.at(step);
            resolved.job.optimizer.momentum_schedule(Some(0)).map(|momentum| momentum.at(step));
        }
        let json = resolved.job.to_json();
        assert_eq!(JobSpec::from_json(&json).expect("a job reads back"), resolved.job);
    }
    drop(MachineSpec::parse_yaml(text));
}

/// A site at which all model_dirs and data are accepted. No path is accessed.
struct NoSite;

impl JobSite for NoSite {
    fn image(&self) -> Option<String> {
        None
    }

    fn model_dir(&self, _: &TrainJob, written: &str) -> Result<ModelDirLocation, SiteError> {
        Ok(ModelDirLocation { path: PathBuf::from(written), claim: None })
    }

    fn graph_document(&self, _: &TrainJob, digest: &BlobDigest) -> Result<Vec<u8>, DocumentError> {
        Err(DocumentError::Unusable(format!("no upload {digest}").into()))
    }

    fn check_readable(&self, _: &TrainJob, _: &str) -> Result<(), SiteError> {
        Ok(())
    }
}

/// Maximum layers of a model that is planned: planning more takes too much time for one input.
const MAX_LAYERS: u64 = 64;
/// Maximum size of other dimensions of a model that is planned, for the same reason.
const MAX_WIDTH: u64 = 4096;

fn is_small(object: &Value) -> bool {
    let params = &object["spec"]["params"];
    let small = |at: &str, most: u64| params.pointer(at).is_none_or(|value| value.as_u64().is_some_and(|n| n <= most));
    small("/model/num_hidden_layers", MAX_LAYERS)
        && ["/model/hidden_size", "/model/vocab_size", "/model/filter_size", "/model/max_position_embeddings"]
            .iter()
            .chain(&["/train_input/batch_size", "/eval_input/batch_size", "/train_input/max_sequence_length"])
            .all(|at| small(at, MAX_WIDTH))
}

/// Validates a TrainJob by its definition, reads it as its type, and resolves it.
pub fn trainjob(bytes: &[u8]) {
    static DEFINITION: OnceLock<AdmissionSchema> = OnceLock::new();
    let definition = DEFINITION.get_or_init(|| AdmissionSchema::load_all().expect("the definitions are ours").1);
    let Ok(object) = serde_json::from_slice::<Value>(bytes) else { return };
    if object.is_object() {
        drop(definition.admit(&object, None));
    }
    let small = is_small(&object);
    let Ok(job) = serde_json::from_value::<TrainJob>(object) else { return };
    if let Ok(params) = job.spec.params.read() {
        drop(params.resolve(&FlagOverrides::default()));
    }
    if small && let Ok(record) = millrace_control::resolve(&job, &ApplianceSpec::default(), &NoSite) {
        resolved_job(&record).expect("what was resolved here reads back");
    }
}

/// Reads the record of a resolved job.
pub fn record(bytes: &[u8]) {
    if let Ok(record) = serde_json::from_slice::<ResolvedJob>(bytes) {
        drop(resolved_job(&record));
    }
}
