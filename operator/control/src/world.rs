//! What the control loop stands on: where jobs are recorded, and what runs their agents.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use millrace_crds::decide::{Agent, Event, Report, Role};
use millrace_crds::{Appliance, ApplianceStatus, ClusterSpec, Grant, Progress, Resolution, TrainJob, TrainJobStatus};
use millrace_params::{ApplianceSpec, Job};
pub use millrace_protocol::journal::Journal;

use crate::launch::{Unreadable, resolved_job, version_of};
use crate::resolve::Needs;

/// One attempt of a job, with all that its agents are made from.
#[derive(Clone, Debug)]
pub struct Attempt<'a> {
    /// The job.
    pub job: &'a TrainJob,
    /// What was resolved at its first admission.
    pub resolution: &'a Resolution,
    /// The appliance, for what may change between attempts.
    pub cluster: &'a ClusterSpec,
    /// Its number, from 1.
    pub number: u32,
    /// Its agents and their bytes.
    pub needs: &'a Needs,
    /// The names of its systems, in the order of their agents.
    pub systems: &'a [String],
}

impl Attempt<'_> {
    /// How many systems the attempt has.
    pub fn system_count(&self) -> u32 {
        self.needs.wanted.iter().find(|(role, _)| *role == Role::Cs2).map_or(0, |(_, count)| *count)
    }

    /// The version of its agents: what they understand of a launch document and of arguments, and how their ports are
    /// authenticated; see [`millrace_protocol::launch::VERSION`].
    pub fn version(&self) -> u32 {
        version_of(self.resolution)
    }

    /// The job with nothing left to decide, and the machine it is planned for.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn resolved(&self) -> Result<(Job, ApplianceSpec), Unreadable> {
        resolved_job(self.resolution)
    }

    /// The checkpoint to start from, where the params name one.
    pub fn checkpoint_path(&self) -> Option<PathBuf> {
        Some(PathBuf::from(self.resolved().ok()?.0.run.checkpoint_path?))
    }
}

/// What is there of a job.
#[derive(Clone, Debug)]
pub struct Found<T> {
    /// Its agents, of whatever attempt.
    pub agents: Vec<Agent>,
    /// What its coordinator left behind when it ended, for who did not hear it.
    pub last: Option<Report>,
    /// What runs them, as the world knows it.
    pub there: T,
}

/// Where a job's checkpoints, metrics and logs go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDir {
    /// As its agents see it.
    pub path: PathBuf,
    /// The claim of storage it lies in, where it has one of its own.
    pub claim: Option<String>,
}

/// What priority classes are worth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Priorities {
    /// By name.
    pub values: HashMap<String, i32>,
    /// Of a job that names none.
    pub default: i32,
}

impl Priorities {
    /// A class that is not there counts as none: who runs the agents says that it is missing.
    pub fn of(&self, class: Option<&str>) -> i32 {
        class.map_or(self.default, |name| self.values.get(name).copied().unwrap_or(0))
    }
}

/// What of a world a job's record depends on. No I/O: it is asked whenever a job is looked at.
pub trait Site: Send + Sync {
    /// What agents run where the appliance names nothing.
    fn image(&self) -> Option<String>;

    /// Where the model_dir lies that the params call `written`.
    ///
    /// # Errors
    /// It can't lie there: a sentence for the user.
    fn model_dir(&self, job: &TrainJob, written: &str) -> Result<ModelDir, String>;

    /// Why no attempt may begin with agents of `version`, if none may: a sentence for the user with what to do.
    fn agents_refused(&self, _version: u32) -> Option<String> {
        None
    }

    /// Whether the agents may read what the params call `written`.
    ///
    /// # Errors
    /// They may not: a sentence for the user.
    fn readable(&self, job: &TrainJob, written: &str) -> Result<(), String>;
}

/// See the module text. Every call may be repeated, and is, after a failure and after a restart of the loop.
pub trait World: Send + Sync + 'static {
    /// Why something could not be done: one sentence.
    type Error: std::error::Error + Send + Sync + 'static;
    /// What runs a job's agents, as it was found.
    type There: Send + Sync;

    /// What is there of `job`.
    fn find(&self, job: &TrainJob) -> impl Future<Output = Result<Found<Self::There>, Self::Error>> + Send;

    /// Sees to it that every agent of `attempt` exists, and what they need.
    fn run(&self, attempt: &Attempt<'_>, there: &Self::There) -> impl Future<Output = Result<(), Error<Self>>> + Send;

    /// Ends every agent that was found and is not ending yet, or not within `grace` seconds.
    fn remove(
        &self,
        job: &TrainJob,
        there: &Self::There,
        grace: u32,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Ends the agents of `job`, which is deleted and not gone yet, and what else holds it longer than it may; when to look
    /// again, where nothing else tells.
    fn leave(&self, job: &TrainJob) -> impl Future<Output = Result<Option<Duration>, Self::Error>> + Send;

    /// Whether agents of a job that is gone are left.
    fn any_left(&self, namespace: &str, uid: &str) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// What agents of jobs that are gone hold of an appliance, as they themselves say.
    fn left_behind(&self, appliance: &str) -> impl Future<Output = Result<Vec<Grant>, Self::Error>> + Send;

    /// Sees to it that `appliance` can't go while it is `in_use`, and can when it is not. Whether that took a write, so
    /// that
    /// `appliance` is not the newest version any more.
    fn protect(&self, appliance: &Appliance, in_use: bool) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Records what was decided from `job`, whose progress it leaves alone; false where `job` is not its newest version any
    /// more, and nothing was recorded.
    fn record(
        &self,
        job: &TrainJob,
        decided: &TrainJobStatus,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Records how far the job of this UID is, whatever its version.
    fn record_progress(
        &self,
        job: &ObjectRef<TrainJob>,
        uid: &str,
        progress: &Progress,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Records a ledger that was decided from `appliance`; false as for [`World::record`].
    fn record_ledger(
        &self,
        appliance: &Appliance,
        decided: ApplianceStatus,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Tells the job's user of something. That it can't be told is logged: nothing depends on it.
    fn publish(&self, job: &TrainJob, event: &Event) -> impl Future<Output = ()> + Send;

    /// The fields of `appliance` that are not as the values say that it was made from, each with both; `None` for one
    /// that is of no values.
    fn edits(&self, _appliance: &Appliance) -> Option<Vec<String>> {
        None
    }

    /// Tells whoever runs the appliance of something, as [`World::publish`] does of a job.
    fn publish_of_appliance(&self, appliance: &Appliance, event: &Event) -> impl Future<Output = ()> + Send;

    /// Deletes `job`, whose time to live is over.
    fn forget(&self, job: &TrainJob) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// What priority classes are worth now.
    fn priorities(&self) -> impl Future<Output = Result<Priorities, Self::Error>> + Send;

    /// Where the coordinator of this attempt of the job of this UID is followed; `None` while that is not known.
    fn journal(&self, job: &ObjectRef<TrainJob>, uid: &str, attempt: u32) -> Option<Journal>;
}

/// What keeps an attempt from being run.
pub type Error<W> = crate::Error<<W as World>::Error>;
