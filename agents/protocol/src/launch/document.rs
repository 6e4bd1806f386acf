//! The launch document: the resolved job and the parameters of the run that a coordinator is started with.
//!
//! The document names its [version](super::VERSION). A reader ignores unknown fields and uses defaults for fields that
//! later versions added. A field may therefore be added without a new version only if the job means the same to a
//! reader that ignores it.

use std::path::PathBuf;

use millrace_emulator::numerics::Isa;
use millrace_emulator::placement::swarm_nodes;
use millrace_engine::types::{AgentId, Role};
use millrace_params::{CheckpointStates, JobSpec, MachineSpec, MemoryXSpec, Mode, ResolveOutput};
use serde::{Deserialize, Serialize};

use super::version::{DocumentError, V1, VERSION, from_versioned_json, to_v1, v1};

/// One JSON document, passed to the coordinator by `--launch`. The other roles receive everything they need from the
/// coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchDocument {
    /// Version of the document; a document without it has [`V1`].
    #[serde(default = "v1")]
    pub version: u32,
    /// The resolved job.
    pub job: JobSpec,
    /// The appliance that the job is planned for.
    pub appliance: MachineSpec,
    /// Mode of the run; the same as `job.run.mode`.
    pub mode: Mode,
    /// Directory of checkpoints, metrics and logs.
    pub model_dir: PathBuf,
    /// Attempt of the job, which no other coordinator may use again. `None` uses the attempt after the last one of
    /// `model_dir`, once that one is known to have ended.
    #[serde(default)]
    pub attempt: Option<u32>,
    /// UID of the job, by which a newer attempt takes `model_dir` over from an older one. `None` for a run that nothing
    /// restarts.
    #[serde(default)]
    pub job_uid: Option<String>,
    /// Whether another phase of the job follows. If `model_dir` has a checkpoint beyond the last step of this run, an
    /// earlier job has completed the phase, and the run succeeds at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub precedes_phase: bool,
    /// State that the run continues from.
    pub resume: ResumeOptions,
    /// Number of agents that the coordinator waits for.
    #[serde(rename = "wanted")]
    pub agent_counts: AgentCounts,
    /// Instruction set to pin the numerics profile to; `None` uses the best one that all members support.
    #[serde(default)]
    pub isa: Option<Isa>,
    /// Notes for the user, each logged once.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Params that were given and have no effect, logged once.
    #[serde(rename = "without_effect", default)]
    pub ignored_keys: Vec<String>,
    /// The params as the user wrote them, stored with the results.
    #[serde(default)]
    pub params_yaml: String,
}

/// State that a run continues from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResumeOptions {
    /// Checkpoint named by the user.
    pub checkpoint_path: Option<PathBuf>,
    /// States of the checkpoint that are loaded.
    pub states: CheckpointStates,
    /// Whether the newest complete checkpoint of `model_dir` is used if none is named.
    pub autoload: bool,
    /// Whether a checkpoint of another numerics profile is accepted; the next manifest records that.
    pub accept_other_profile: bool,
}

/// Number of agents of each role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCounts {
    /// Number of systems.
    pub systems: usize,
    /// Minimum number of systems; with fewer the run does not continue.
    pub least_systems: usize,
    /// Number of MemoryX shards.
    pub shards: usize,
    /// Number of MemoryX agents that hold each shard.
    #[serde(default = "MemoryXSpec::one_replica", skip_serializing_if = "MemoryXSpec::is_one_replica")]
    pub replicas: usize,
    /// Number of SwarmX nodes.
    pub swarmx: usize,
    /// Maximum children of a SwarmX node.
    pub fan_out: u32,
    /// Number of activation servers.
    pub activation_servers: usize,
}

impl AgentCounts {
    /// Returns the numbers that `job` needs on `appliance`. Both state a maximum of activation servers per system, but
    /// a system reads from one at a time, so it gets one.
    pub fn for_job(job: &JobSpec, appliance: &MachineSpec) -> Self {
        let run = &job.run;
        let fan_out = u32::try_from(appliance.swarmx.fan_out).unwrap_or(u32::MAX);
        Self {
            systems: run.num_csx,
            least_systems: 1,
            shards: job.memoryx_shards(appliance),
            replicas: appliance.memoryx.replicas,
            swarmx: swarm_nodes(run.num_csx, fan_out),
            fan_out,
            activation_servers: run.num_csx,
        }
    }

    /// Returns the numbers of the same job on `systems` systems, with at least `min_systems` of which it continues.
    #[must_use]
    pub fn resized(self, systems: usize, min_systems: usize) -> Self {
        Self {
            systems,
            least_systems: min_systems.min(systems).max(1),
            swarmx: swarm_nodes(systems, self.fan_out),
            activation_servers: systems,
            ..self
        }
    }

    /// Returns whether `agent` is one of these agents: those of each role are numbered from 0.
    pub const fn contains(&self, agent: AgentId) -> bool {
        (agent.index as usize) < self.of(agent.role)
    }

    /// Returns the number of agents of `role`.
    pub const fn of(&self, role: Role) -> usize {
        match role {
            Role::Coordinator => 1,
            Role::MemoryX => self.shards * self.replicas,
            Role::SwarmX => self.swarmx,
            Role::Activation => self.activation_servers,
            Role::Cs2 => self.systems,
        }
    }

    /// Returns all agents: by role, the coordinator first.
    pub fn agents(&self) -> impl Iterator<Item = AgentId> + use<> {
        let counts = *self;
        let indices = move |role| 0..u32::try_from(counts.of(role)).unwrap_or(u32::MAX);
        Role::ALL.into_iter().flat_map(move |role| indices(role).map(move |index| AgentId::new(role, index)))
    }
}

impl LaunchDocument {
    /// Returns the launch of a resolved job on `appliance`, as a run that nothing restarts. A program that restarts the
    /// job sets `attempt` and `job_uid`.
    pub fn new(resolved: ResolveOutput, appliance: MachineSpec, params_yaml: String) -> Self {
        let ResolveOutput { job, notes, mut ignored_keys } = resolved;
        let run = &job.run;
        if run.num_act_servers > 1 {
            ignored_keys
                .push("num_act_servers above 1 (a system reads from one activation server at a time)".to_owned());
        }
        Self {
            version: VERSION,
            mode: run.mode,
            model_dir: PathBuf::from(&run.model_dir),
            attempt: None,
            job_uid: None,
            precedes_phase: false,
            resume: ResumeOptions {
                checkpoint_path: run.checkpoint_path.as_ref().map(PathBuf::from),
                states: run.load_checkpoint_states,
                autoload: run.autoload_last_checkpoint,
                accept_other_profile: false,
            },
            agent_counts: AgentCounts::for_job(&job, &appliance),
            isa: None,
            notes,
            ignored_keys,
            params_yaml,
            appliance,
            job,
        }
    }

    /// Returns the document on one line, in this program's version.
    ///
    /// # Errors
    /// None for a launch made from a resolved job: serialization fails only for paths that are not UTF-8.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&Self { version: VERSION, ..self.clone() })
    }

    /// Returns the document on one line, as agents of `version` read it. A job keeps the image of its first attempt, so
    /// a newer operator may start older agents.
    ///
    /// # Errors
    /// [`DocumentError::Inexpressible`] if agents of that version would not do what the document says,
    /// [`DocumentError::NewerVersion`] for a version that this program does not know.
    pub fn to_json_for(&self, version: u32) -> Result<String, DocumentError> {
        match version {
            VERSION => Ok(self.to_json()?),
            V1 => to_v1(self),
            found => Err(DocumentError::NewerVersion { found }),
        }
    }

    /// Reads a document of this or an earlier version. Values are restored bit for bit.
    ///
    /// # Errors
    /// [`DocumentError::NewerVersion`], or [`DocumentError::Json`] if the text is not a launch document.
    pub fn from_json(json: &str) -> Result<Self, DocumentError> {
        from_versioned_json(json)
    }
}
