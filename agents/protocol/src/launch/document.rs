//! What a coordinator is started with: the job, nothing left to decide, and what the run around it is.
//!
//! The document names its [version](super::VERSION). A reader passes over fields that it does not know and takes
//! defaults for those that later versions added, so a field may be added without a new version only if a job means the
//! same to a reader that ignores it.

use std::path::PathBuf;

use millrace_emulator::numerics::Isa;
use millrace_emulator::placement::swarm_nodes;
use millrace_params::{ApplianceSpec, CheckpointStates, Job, Mode, Resolved};
use serde::{Deserialize, Serialize};

use super::version::{DocumentError, FIRST_VERSION, VERSION, first_version, to_first_version};

/// One JSON document, given to the coordinator by `--launch`; the other roles learn all they need from the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Version of the document; one that names none is of [`FIRST_VERSION`].
    #[serde(default = "first_version")]
    pub version: u32,
    /// The resolved job.
    pub job: Job,
    /// The machine it is planned for.
    pub appliance: ApplianceSpec,
    /// What is done; the same as `job.run.mode`.
    pub mode: Mode,
    /// Where checkpoints, metrics and logs go.
    pub model_dir: PathBuf,
    /// The job's attempt, which no coordinator may use again; `None` takes the one after the last that used `model_dir`,
    /// once that is known to have ended.
    #[serde(default)]
    pub attempt: Option<u32>,
    /// The job's unique id, by which a newer attempt takes `model_dir` over from an older one; `None` for a run that
    /// nobody restarts.
    #[serde(default)]
    pub job_uid: Option<String>,
    /// What the run continues from.
    pub resume: Resume,
    /// How many agents the coordinator waits for.
    pub wanted: Wanted,
    /// Instruction set to pin the numerics profile to; `None` takes the best that all members share.
    #[serde(default)]
    pub isa: Option<Isa>,
    /// Sentences to tell the user once.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Keys that were given and have no effect, to be named once.
    #[serde(default)]
    pub without_effect: Vec<String>,
    /// The params as the user wrote them, kept beside the results.
    #[serde(default)]
    pub params_yaml: String,
}

/// What a run continues from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resume {
    /// The checkpoint named by the user.
    pub checkpoint_path: Option<PathBuf>,
    /// Which of its states are loaded.
    pub states: CheckpointStates,
    /// Whether the newest whole checkpoint of `model_dir` is taken when none is named.
    pub autoload: bool,
    /// Whether a checkpoint of another numerics profile may be continued, which the next manifest records.
    pub accept_other_profile: bool,
}

/// How many agents of each role take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Systems.
    pub systems: usize,
    /// Systems without which the run does not go on.
    pub least_systems: usize,
    /// MemoryX shards.
    pub shards: usize,
    /// SwarmX nodes.
    pub swarmx: usize,
    /// Most children of a SwarmX node.
    pub fan_out: u32,
    /// Activation servers.
    pub activation_servers: usize,
}

impl Wanted {
    /// What `job` asks of `appliance`. A job's own number of shards beats the appliance's. Of activation servers both say
    /// how many a system has at most; it reads from one at a time, so it gets one.
    pub fn of(job: &Job, appliance: &ApplianceSpec) -> Self {
        let run = &job.run;
        let fan_out = u32::try_from(appliance.swarmx.fan_out).unwrap_or(u32::MAX);
        Self {
            systems: run.num_csx,
            least_systems: run.num_csx,
            shards: if run.num_wgt_servers > 0 { run.num_wgt_servers } else { appliance.memoryx.shards },
            swarmx: swarm_nodes(run.num_csx, fan_out),
            fan_out,
            activation_servers: run.num_csx,
        }
    }
}

impl Launch {
    /// The launch of a resolved job on `appliance`, as a run that nobody restarts. Whoever restarts it sets `attempt` and
    /// `job_uid`.
    pub fn new(resolved: Resolved, appliance: ApplianceSpec, params_yaml: String) -> Self {
        let Resolved { job, notes, mut without_effect } = resolved;
        let run = &job.run;
        if run.num_act_servers > 1 {
            without_effect
                .push("num_act_servers above 1 (a system reads from one activation server at a time)".to_owned());
        }
        Self {
            version: VERSION,
            mode: run.mode,
            model_dir: PathBuf::from(&run.model_dir),
            attempt: None,
            job_uid: None,
            resume: Resume {
                checkpoint_path: run.checkpoint_path.as_ref().map(PathBuf::from),
                states: run.load_checkpoint_states,
                autoload: run.autoload_last_checkpoint,
                accept_other_profile: false,
            },
            wanted: Wanted::of(&job, &appliance),
            isa: None,
            notes,
            without_effect,
            params_yaml,
            appliance,
            job,
        }
    }

    /// The document on one line, as this version writes it.
    ///
    /// # Errors
    /// None for a launch made from a resolved job: JSON refuses only paths that are not UTF-8.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&Self { version: VERSION, ..self.clone() })
    }

    /// The document on one line, as agents of `version` read it: a job keeps the image of its first attempt, so that a
    /// newer operator may start older agents.
    ///
    /// # Errors
    /// [`DocumentError::Inexpressible`] where an agent of that version would not do what the document says,
    /// [`DocumentError::NewerVersion`] for a version that this program does not know.
    pub fn to_json_for(&self, version: u32) -> Result<String, DocumentError> {
        match version {
            VERSION => Ok(self.to_json()?),
            FIRST_VERSION => to_first_version(self),
            found => Err(DocumentError::NewerVersion { found }),
        }
    }

    /// Reads the document back, bit for bit; also one of an earlier version.
    ///
    /// # Errors
    /// [`DocumentError::NewerVersion`], and JSON of anything but a launch.
    pub fn from_json(json: &str) -> Result<Self, DocumentError> {
        #[derive(Deserialize)]
        struct Version {
            #[serde(default = "first_version")]
            version: u32,
        }
        let Version { version: found } = serde_json::from_str(json)?;
        if found > VERSION {
            return Err(DocumentError::NewerVersion { found });
        }
        Ok(serde_json::from_str(json)?)
    }
}
