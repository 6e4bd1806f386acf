//! Why a job can never run as it is, or is not planned yet.

use std::sync::Arc;

use millrace_emulator::compile::CompileError;
use millrace_emulator::graph::DocumentError as GraphDocumentError;
use millrace_emulator::placement::PlacementError;
use millrace_params::ParamsError;

use crate::plan_compiler::MAX_PLAN_BYTES;
use crate::record::ResolvedJobError;
use crate::workers::WorkError;
use crate::world::{DocumentError, SiteError};

/// Why a job can't run, with a message for its user. Clones share the cause.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ResolveError {
    /// Its params are invalid or contradictory, or name something it may not use.
    #[error(transparent)]
    BadParams(Arc<InvalidJob>),
    /// Its model or its batch exceeds the machine.
    #[error(transparent)]
    TooLarge(#[from] JobTooLarge),
    /// It was not planned: the caller has to wait.
    #[error(transparent)]
    Overloaded(#[from] OverBudget),
    /// Its graph document can't be read at present: planning it may succeed later.
    #[error(transparent)]
    Unavailable(Arc<DocumentUnavailable>),
}

/// The world can't read a graph document at present.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DocumentUnavailable(SiteError);

/// What makes a job invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidJob {
    /// Its params have mistakes.
    #[error("{}", report(.0))]
    Params(ParamsError),
    /// A phase can't continue from the one before.
    #[error("spec.laterPhases: {}", report(.0))]
    LaterPhases(ParamsError),
    /// The params of a phase that follows another one are invalid, or name something they may not use.
    #[error("phase {number}: {cause}")]
    InPhase {
        /// The phase, counted from 1.
        number: usize,
        /// What is wrong.
        cause: Arc<InvalidJob>,
    },
    /// Its params ask only for a plan or a check.
    #[error(
        "runconfig.compile_only and validate_only are for a local run: use `millrace-agent plan`, which needs no \
         cluster"
    )]
    LocalOnly,
    /// Its params name a bucket.
    #[error(
        "{0} is the address of a bucket, which only a local run can use: name a directory; an administrator decides \
         whether model_dirs are stored in a bucket"
    )]
    BucketPath(String),
    /// The world of the control loop can't provide a path of the job.
    #[error(transparent)]
    Site(SiteError),
    /// The spec of its appliance has mistakes.
    #[error("the appliance's spec is not valid: {}", report(.0))]
    Appliance(ParamsError),
    /// Its record can't be used.
    #[error(transparent)]
    Record(#[from] ResolvedJobError),
    /// Its model is in a file that was not uploaded.
    #[error(
        "model.graph names the file {0:?}, which the appliance can't read: submit the job with `millrace train`, which \
         uploads the file, or upload it and name its digest as spec.model.graph"
    )]
    GraphFile(String),
    /// Its graph document is not valid.
    #[error("the graph document {}", graph_report(.0))]
    GraphDocument(GraphDocumentError),
    /// It reads a Python dataset, and there is no image for that.
    #[error(
        "{0} is a Python dataset, and no image is named that reads it: set spec.loaderImage to an image with python3 \
         and the packages that the dataset imports, or have an administrator set loaderImage of the Appliance"
    )]
    NoLoaderImage(&'static str),
    /// It can't be compiled.
    #[error("{}", with_hint(.0))]
    Compile(CompileError),
    /// No placement of its plan exists.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// It can't be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The computation of its plan was aborted.
    #[error("planning the job failed because of an internal error")]
    Aborted(#[source] WorkError),
}

/// What makes a job too large.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JobTooLarge {
    /// Its model exceeds the machine.
    #[error("{}", with_hint(.0))]
    Model(CompileError),
    /// Its plan exceeds the memory for plans.
    #[error(
        "planning the job would take about {} MiB of memory, but a plan may take at most {} MiB: choose fewer layers, \
         or an appliance with larger chunks (link.chunkBytes)", bytes >> 20, MAX_PLAN_BYTES >> 20
    )]
    Plan {
        /// Estimated memory of the plan, in bytes.
        bytes: u64,
    },
    /// Its batch takes too many rounds.
    #[error(
        "a step would go through {layers} layers in {rounds} rounds, as {systems} system(s) hold {leaves_at_once} \
         leaves of the batch at once: choose a smaller batch_size, or more systems"
    )]
    Batch {
        /// Layers of the model.
        layers: usize,
        /// Rounds of a step.
        rounds: u64,
        /// Systems of the attempt.
        systems: u32,
        /// Leaves that all systems hold together.
        leaves_at_once: u64,
    },
}

/// Why a plan may not be computed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverBudget {
    /// The caller computes only light work, and this plan is heavy work.
    #[error("a plan of {bytes} bytes is heavy work")]
    Heavy {
        /// Estimated memory of the plan, in bytes.
        bytes: u64,
    },
    /// The account has requested too many plans.
    #[error("planning budget exceeded by many large jobs in a short time: try again in a few seconds")]
    Account,
}

/// Lists all mistakes, one on each line, with their remedies.
fn report(error: &ParamsError) -> String {
    error.report().trim_end().to_owned()
}

fn graph_report(error: &GraphDocumentError) -> String {
    format!("{error}: {}", error.hint())
}

fn with_hint(error: &CompileError) -> String {
    error.hint().map_or_else(|| error.to_string(), |hint| format!("{error}: {hint}"))
}

impl From<DocumentError> for ResolveError {
    fn from(error: DocumentError) -> Self {
        match error {
            DocumentError::Unusable(error) => InvalidJob::Site(error).into(),
            DocumentError::Unavailable(error) => Self::Unavailable(Arc::new(DocumentUnavailable(error))),
        }
    }
}

impl From<InvalidJob> for ResolveError {
    fn from(error: InvalidJob) -> Self {
        Self::BadParams(Arc::new(error))
    }
}

impl From<ResolvedJobError> for ResolveError {
    fn from(error: ResolvedJobError) -> Self {
        InvalidJob::Record(error).into()
    }
}

impl From<CompileError> for ResolveError {
    fn from(error: CompileError) -> Self {
        match error {
            CompileError::MemoryXTooSmall { .. }
            | CompileError::DoesNotFit { .. }
            | CompileError::TooLargeToStream { .. } => JobTooLarge::Model(error).into(),
            CompileError::Graph(_)
            | CompileError::Batch { .. }
            | CompileError::SequencesDiffer { .. }
            | CompileError::SampleLength { .. }
            | CompileError::GraphFile(_)
            | CompileError::OptimizerGroup(_)
            | CompileError::Sparsity(_) => InvalidJob::Compile(error).into(),
        }
    }
}
