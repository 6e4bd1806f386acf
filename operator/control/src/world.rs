//! The interface of the control loop to the place where jobs are recorded and agents run.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use millrace_crds::{Appliance, ApplianceStatus, Grant, JobProgress, TrainJob, TrainJobStatus};
use millrace_lifecycle::{CoordinatorReport, JobEvent, ObservedAgent};
use millrace_params::BlobDigest;
pub use millrace_protocol::journal::JournalEndpoint;

use crate::attempt::AttemptContext;

/// The objects of a job as they were found.
#[derive(Clone, Debug)]
pub struct AgentsFound<T> {
    /// Its agents, of any attempt.
    pub agents: Vec<ObservedAgent>,
    /// The last report of the coordinator, as stored when it ended. The loop needs it if it did not receive the report
    /// from the stream.
    pub termination_report: Option<CoordinatorReport>,
    /// The objects that run the agents, in the world's types.
    pub handle: T,
}

/// The directory of a job's checkpoints, metrics and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDirLocation {
    /// Its path as the job's agents see it.
    pub path: PathBuf,
    /// The storage claim that contains it, if the job has its own.
    pub claim: Option<String>,
}

/// Maximum bytes of a graph document.
pub const MAX_GRAPH_BYTES: u64 = millrace_emulator::graph::MAX_DOCUMENT_BYTES;

/// Values of the priority classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityValues {
    /// Values by name of the class.
    pub values: HashMap<String, i32>,
    /// Value for a job that names no class.
    pub default: i32,
}

impl PriorityValues {
    /// Returns the value of `class`; the default value for `None`, and 0 for an unknown class, with which the ledger
    /// admits no job.
    pub fn of(&self, class: Option<&str>) -> i32 {
        class.map_or(self.default, |name| self.values.get(name).copied().unwrap_or(0))
    }
}

/// Why the world can't provide a path of a job, with a message for the user. No caller matches on it.
pub type SiteError = Box<dyn std::error::Error + Send + Sync>;

/// Why a graph document can't be read.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The job can't be planned as it is: it names no such upload, or the world has none.
    #[error(transparent)]
    Unusable(SiteError),
    /// The world can't read it at present. That says nothing about the job: its plan has to wait.
    #[error(transparent)]
    Unavailable(SiteError),
}

/// The properties of a world that a job's record depends on: [`World`] acts, this only answers.
///
/// * Every reconcile and every plan of a request makes these calls, also at the same time, so they do no I/O and do not
///   block, except [`JobSite::graph_document`].
/// * The answers depend on the job and on the settings of the program only: two calls with the same job have the same
///   result until the program restarts. A plan is cached, so an answer that changes would not be noticed. The exception
///   is [`DocumentError::Unavailable`], which is not cached.
/// * Whether a path exists is not checked: it may appear before the agents start.
pub trait JobSite: Send + Sync {
    /// Returns the image of the agents if the appliance names none; `None` in a world whose agents have no image.
    fn image(&self) -> Option<String>;

    /// Returns the location of the model_dir that the params call `written`. A relative path is below a directory of
    /// the job's name, so that the next job of that name continues there; it can't leave that directory by `..`.
    ///
    /// # Errors
    /// The model_dir can't be there: an absolute path must lie in a mount of the job to which its namespace may write.
    fn model_dir(&self, job: &TrainJob, written: &str) -> Result<ModelDirLocation, SiteError>;

    /// Returns why no attempt may begin with agents of `version`, `None` if attempts may: a sentence for the user, with
    /// the remedy.
    fn unsupported_agents(&self, _version: u32) -> Option<String> {
        None
    }

    /// Returns whether agents run in pods, so that a container reads the Python dataset of a job.
    fn runs_pods(&self) -> bool {
        false
    }

    /// Checks that agents can read uploads.
    ///
    /// # Errors
    /// They can't.
    fn check_uploads_supported(&self) -> Result<(), SiteError> {
        Ok(())
    }

    /// Reads the graph document with this digest, one of the uploads of the job's namespace. Unlike the other calls, it
    /// may block for some seconds: it is made by the threads that compute plans only. At most
    /// [`MAX_GRAPH_BYTES`] and one more byte are read.
    ///
    /// # Errors
    /// There is no such upload, or it can't be read, perhaps only at present.
    fn graph_document(&self, job: &TrainJob, digest: &BlobDigest) -> Result<Vec<u8>, DocumentError>;

    /// Checks that the agents may read the path that the params call `written`. A world whose agents can see only what
    /// the job mounts need not check.
    ///
    /// # Errors
    /// They may not read it.
    fn check_readable(&self, job: &TrainJob, written: &str) -> Result<(), SiteError>;
}

/// The place where jobs are recorded and agents run: a cluster (`operator/src/world.rs`) or one machine
/// (`api/src/process/world.rs`).
///
/// Called by the reconciles of jobs and appliances, and by the tasks that follow coordinators. Reconciles of different
/// objects run at the same time; one object has at most one.
///
/// * Every call is idempotent: it is repeated after failures and after restarts of the loop.
/// * A call may be dropped at any `.await`, because a reconcile has a timeout. The next reconcile observes what the
///   dropped call left behind.
/// * A write that was decided from an object ([`World::record_status`], [`World::record_ledger`]) succeeds only if that
///   object is still the newest version.
/// * An error ends the reconcile, and the object is requeued.
pub trait World: Send + Sync + 'static {
    /// An error, as one sentence.
    type Error: std::error::Error + Send + Sync + 'static;
    /// The agents as found, in the world's own types: pods, or the number of the running attempt.
    type Handle: Send + Sync;

    /// Whether a lost agent is replaced by [`World::remove_agent`] and [`World::ensure_agents`]. A world that replaces
    /// agents itself reports an agent as ended only if it is given up.
    const AGENTS_ARE_REPLACEABLE: bool;

    /// Finds the objects of `job`.
    fn observe(&self, job: &TrainJob) -> impl Future<Output = Result<AgentsFound<Self::Handle>, Self::Error>> + Send;

    /// Creates the missing agents of `attempt`, and the objects they need.
    fn ensure_agents(
        &self,
        attempt: &AttemptContext<'_>,
        found: &Self::Handle,
    ) -> impl Future<Output = Result<(), Error<Self>>> + Send;

    /// Ends every agent in `found` that is not ending yet, or that was given more than `grace` seconds to end.
    fn remove_agents(
        &self,
        job: &TrainJob,
        found: &Self::Handle,
        grace: u32,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Ends the agent in `found` that has this [`ObservedAgent::instance`] within `grace` seconds. With 0 seconds,
    /// removes it without waiting for its node. Succeeds if it does not exist.
    fn remove_agent(
        &self,
        job: &TrainJob,
        found: &Self::Handle,
        instance: &str,
        grace: u32,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Ends the agents of a job that is being deleted. Removes the finalizer if nothing has to be archived, or if the
    /// time for that is over. Returns when to reconcile again if no event triggers it.
    fn finalize(&self, job: &TrainJob) -> impl Future<Output = Result<Option<Duration>, Self::Error>> + Send;

    /// Returns whether agents of a deleted job exist.
    fn has_leftover_agents(&self, namespace: &str, uid: &str)
    -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Returns the grants of an appliance that agents of deleted jobs still hold, as recorded at the agents.
    fn leftover_grants(&self, appliance: &str) -> impl Future<Output = Result<Vec<Grant>, Self::Error>> + Send;

    /// Protects `appliance` from deletion while it is `in_use`, and removes the protection otherwise. Returns true if
    /// it wrote; `appliance` is then a stale version.
    fn set_in_use(&self, appliance: &Appliance, in_use: bool)
    -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Records a decision that was made from `job`, without changing its progress. Returns false if `job` is no longer
    /// the newest version; nothing is recorded then.
    fn record_status(
        &self,
        job: &TrainJob,
        decided: &TrainJobStatus,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Records the progress of the job of this UID, at any version of the job.
    fn record_progress(
        &self,
        job: &ObjectRef<TrainJob>,
        uid: &str,
        progress: &JobProgress,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Records a ledger that was decided from `appliance`; returns false as [`World::record_status`] does.
    fn record_ledger(
        &self,
        appliance: &Appliance,
        decided: ApplianceStatus,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Publishes an event of a job to its user. A failure is only logged: nothing depends on events.
    fn publish_job_event(&self, job: &TrainJob, event: &JobEvent) -> impl Future<Output = ()> + Send;

    /// Returns the fields of `appliance` that differ from the chart values it was created from, each with both values;
    /// `None` for an appliance without such values.
    fn manual_edits(&self, _appliance: &Appliance) -> Option<Vec<String>> {
        None
    }

    /// Publishes an event of an appliance to its administrator, like [`World::publish_job_event`].
    fn publish_appliance_event(&self, appliance: &Appliance, event: &JobEvent) -> impl Future<Output = ()> + Send;

    /// Deletes `job`, whose time to live has elapsed.
    fn delete_job(&self, job: &TrainJob) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Returns the current values of the priority classes.
    fn priorities(&self) -> impl Future<Output = Result<PriorityValues, Self::Error>> + Send;

    /// Returns the address of the coordinator of this attempt of the job of this UID; `None` while it is not known.
    fn journal_endpoint(&self, job: &ObjectRef<TrainJob>, uid: &str, attempt: u32) -> Option<JournalEndpoint>;
}

/// An error that prevents an attempt from being run.
pub type Error<W> = crate::Error<<W as World>::Error>;
