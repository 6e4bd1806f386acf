//! Resolves the params of a job into a record that never changes, once, at its first admission.

use std::collections::BTreeMap;

use millrace_crds::{ApplianceSpec, OverruledKey, ResolvedJob, Role, TrainJob};
use millrace_emulator::compile::CompileError;
use millrace_emulator::placement::swarm_nodes;
use millrace_emulator::plan::StreamPlan;
use millrace_emulator::report::{HostWork, RoleBytes, traffic};
use millrace_emulator::time::{nominal_placement, project_step};
use millrace_params::{DataSource, FlagOverrides, JobSpec, MachineSpec, Mode, Params, ResolveOutput};
use millrace_protocol::launch::VERSION;
use schemars::JsonSchema;
use serde::Serialize;

use crate::launch::{ResolvedJobError, resolved_job};
use crate::plan_compiler::{PlanBudget, PlanCompiler};
use crate::world::{JobSite, ModelDirLocation};

/// The needs of an attempt on a given number of systems.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceRequirements {
    /// Number of agents of each role.
    pub wanted: Vec<(Role, u32)>,
    /// Bytes of memory of a process of each role.
    pub bytes: BTreeMap<Role, u64>,
    /// Bytes of MemoryX, of all shards together.
    pub memoryx_bytes: u64,
    /// Nodes of the SwarmX tree.
    pub swarmx_nodes: u32,
    /// Largest number of systems that all have work: one leaf each.
    pub largest_num_csx: u32,
    /// Projected time on real systems.
    pub projected: ProjectedTime,
    /// Work of all agents together in a training step.
    pub host_work: HostWork,
}

impl ResourceRequirements {
    /// Returns the bytes of memory of all agents together.
    pub fn host_bytes(&self) -> u64 {
        let of =
            |(role, count): &(Role, u32)| self.bytes.get(role).copied().unwrap_or(0).saturating_mul(u64::from(*count));
        self.wanted.iter().map(of).fold(0, u64::saturating_add)
    }
}

/// By the time model: a projection, not a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProjectedTime {
    /// Of one step.
    pub step_seconds: f64,
    /// Of all steps of training; 0 where only the data tell how many there are.
    pub seconds: f64,
    /// Rate.
    pub samples_per_second: f64,
}

/// Why a job can't run, as a sentence for its user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// Its params are invalid or contradictory, or name something it may not use.
    #[error("{0}")]
    BadParams(String),
    /// Its model or its batch exceeds the machine.
    #[error("{0}")]
    TooLarge(String),
    /// It was not planned: the caller has to wait.
    #[error("{0}")]
    Overloaded(String),
}

impl From<String> for ResolveError {
    fn from(why: String) -> Self {
        Self::BadParams(why)
    }
}

impl From<ResolvedJobError> for ResolveError {
    fn from(record: ResolvedJobError) -> Self {
        Self::BadParams(record.to_string())
    }
}

impl From<CompileError> for ResolveError {
    fn from(error: CompileError) -> Self {
        let why = error.hint().map_or_else(|| error.to_string(), |hint| format!("{error}: {hint}"));
        match error {
            CompileError::MemoryXTooSmall { .. }
            | CompileError::DoesNotFit { .. }
            | CompileError::TooLargeToStream { .. } => Self::TooLarge(why),
            CompileError::Graph(_) | CompileError::Batch { .. } | CompileError::SequencesDiffer { .. } => {
                Self::BadParams(why)
            }
        }
    }
}

/// Resolves and plans `job` on an appliance, in the world of `site`. Returns its `record`, or the record that it would
/// get, and the needs of an attempt on `num_csx` systems.
///
/// # Errors
/// The job can never run as it is, or [`ResolveError::Overloaded`].
pub fn resolve_and_plan(
    job: &TrainJob,
    record: Option<ResolvedJob>,
    cluster: &ApplianceSpec,
    num_csx: u32,
    site: &dyn JobSite,
    (plans, may_plan): (&PlanCompiler, &PlanBudget<'_>),
) -> Result<(ResolvedJob, ResourceRequirements), ResolveError> {
    let resolution = record.map_or_else(|| resolve_with(job, cluster, site, (plans, may_plan)), Ok)?;
    let (resolved, appliance) = resolved_job(&resolution)?;
    let needs = plans.plan(&resolved, &appliance, num_csx, may_plan)?.needs.clone();
    Ok((resolution, needs))
}

/// Resolves `job` on an appliance, in the world of `site`, without any cache.
///
/// # Errors
/// The job can never run as it is.
pub fn resolve(job: &TrainJob, cluster: &ApplianceSpec, site: &dyn JobSite) -> Result<ResolvedJob, ResolveError> {
    resolve_with(job, cluster, site, (&PlanCompiler::default(), &|_| Ok(())))
}

fn resolve_with(
    job: &TrainJob,
    cluster: &ApplianceSpec,
    site: &dyn JobSite,
    (plans, may_plan): (&PlanCompiler, &PlanBudget<'_>),
) -> Result<ResolvedJob, ResolveError> {
    let spec = &job.spec;
    let params = spec.params.read().map_err(|error| error.report().trim_end().to_owned())?;
    let overrides = FlagOverrides {
        num_csx: Some(spec.num_csx.into()),
        mode: spec.mode.map(|mode| mode_name(mode).to_owned()),
        ..FlagOverrides::default()
    };
    let ResolveOutput { job: mut resolved, mut notes, ignored_keys } =
        params.resolve(&overrides).map_err(|error| error.report().trim_end().to_owned())?;
    if resolved.run.compile_only || resolved.run.validate_only {
        return Err(
            "runconfig.compile_only and validate_only are for a local run: use `millrace-agent plan`, which needs no \
             cluster"
                .to_owned()
                .into(),
        );
    }
    if !ignored_keys.is_empty() {
        notes.push(format!("Without effect on this appliance: {}.", ignored_keys.join(", ")));
    }
    let ModelDirLocation { path: model_dir, claim } = site.model_dir(job, &resolved.run.model_dir)?;
    let run = &mut resolved.run;
    if !run.summary_dir.is_empty() && run.summary_dir != run.model_dir {
        run.summary_dir = site.model_dir(job, &run.summary_dir)?.path.display().to_string();
    }
    inputs(&resolved).try_for_each(|path| site.check_readable(job, path))?;
    let appliance = cluster
        .machine
        .resolve()
        .map_err(|error| format!("the appliance's spec is not valid: {}", error.report().trim_end()))?;
    let planned = plans.plan(&resolved, &appliance, spec.num_csx, may_plan)?;
    planned.streamable.clone()?;
    let text = serde_json::to_string(&resolved).map_err(|error| error.to_string())?;
    let document = serde_json::to_string(&appliance).map_err(|error| error.to_string())?;
    Ok(ResolvedJob {
        version: Some(VERSION),
        mode: Some(resolved.run.mode),
        num_csx: Some(spec.num_csx),
        model_dir: Some(model_dir.display().to_string()),
        model_dir_claim: claim,
        job: Some(text),
        plan_hash: Some(planned.hash.clone()),
        image: cluster.image.clone().or_else(|| site.image()),
        appliance: Some(appliance.to_document()),
        appliance_digest: Some(blake3::hash(document.as_bytes()).to_hex().to_string()),
        resources: cluster.resources.clone(),
        differences: overruled_keys(&params, job),
        notes,
    })
}

/// Returns the needs of an attempt of a resolved job on `num_csx` systems, without any cache.
///
/// # Errors
/// The record has a version that this program can't read, or no such placement exists.
pub fn requirements(resolution: &ResolvedJob, num_csx: u32) -> Result<ResourceRequirements, ResolveError> {
    let (job, appliance) = resolved_job(resolution)?;
    Ok(PlanCompiler::default().plan(&job, &appliance, num_csx, &|_| Ok(()))?.needs.clone())
}

/// Computes the needs of an attempt of `job` on `systems` systems from its plan.
///
/// # Errors
/// No such placement exists.
pub(crate) fn requirements_of_plan(
    plan: &StreamPlan,
    job: &JobSpec,
    appliance: &MachineSpec,
    systems: u32,
) -> Result<ResourceRequirements, ResolveError> {
    let placement = nominal_placement(plan, appliance, systems).map_err(|error| error.to_string())?;
    let bytes = RoleBytes::new(plan, &placement, &appliance.link);
    let projection = project_step(plan, appliance, systems).map_err(|error| error.to_string())?;
    let shards = shards(job, appliance);
    let fan_out = u32::try_from(appliance.swarmx.fan_out).unwrap_or(u32::MAX);
    let swarmx = swarm_nodes(systems as usize, fan_out) as u32;
    let of = |data: u64| data + bytes.process;
    let shard = bytes.memoryx_shards.iter().copied().max().unwrap_or(0);
    Ok(ResourceRequirements {
        wanted: vec![
            (Role::Coordinator, 1),
            (Role::MemoryX, shards),
            (Role::SwarmX, swarmx),
            (Role::Activation, systems),
            (Role::Cs2, systems),
        ],
        bytes: BTreeMap::from([
            (Role::Coordinator, of(0)),
            (Role::MemoryX, of(shard)),
            (Role::SwarmX, of(bytes.swarmx)),
            (Role::Activation, of(bytes.activation)),
            (Role::Cs2, of(bytes.cs2.host.total())),
        ]),
        memoryx_bytes: bytes.memoryx,
        swarmx_nodes: swarmx,
        largest_num_csx: largest_num_csx(job),
        projected: ProjectedTime {
            step_seconds: projection.step_seconds,
            seconds: projection.step_seconds * job.run.known_max_steps().unwrap_or(0) as f64,
            samples_per_second: projection.samples_per_second,
        },
        host_work: HostWork::new(plan, &placement, &traffic(plan, &placement)),
    })
}

/// Returns every path that agents of `job` read.
fn inputs(job: &JobSpec) -> impl Iterator<Item = &str> {
    let sources = [Some(&job.train_input), job.eval_input.as_ref()].into_iter().flatten().map(|input| &input.source);
    let paths = sources.flat_map(|source| match source {
        DataSource::Text { paths, .. } | DataSource::Tokens { paths } => paths.as_slice(),
        DataSource::Synthetic { .. } => &[],
    });
    paths.chain(&job.run.checkpoint_path).map(String::as_str)
}

fn shards(job: &JobSpec, appliance: &MachineSpec) -> u32 {
    let asked = job.run.num_wgt_servers;
    (if asked > 0 { asked } else { appliance.memoryx.shards }) as u32
}

/// Returns the number of leaves of the inputs that the mode reads, the smaller one of two, at least 1.
pub(crate) fn largest_num_csx(job: &JobSpec) -> u32 {
    let train = job.run.mode.trains().then(|| job.train_input.leaves());
    let eval = job.eval_input.as_ref().filter(|_| job.run.mode.evaluates()).map(|input| input.leaves());
    train.into_iter().chain(eval).min().unwrap_or(1).max(1) as u32
}

const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Train => "train",
        Mode::Eval => "eval",
        Mode::TrainAndEval => "train_and_eval",
        Mode::EvalAll => "eval_all",
    }
}

/// Returns the settings in which runconfig differs from the spec. The spec takes precedence.
fn overruled_keys(params: &Params, job: &TrainJob) -> Vec<OverruledKey> {
    let run = params.runconfig.clone().unwrap_or_default();
    let difference =
        |key: &str, params: String, spec: String| OverruledKey { key: format!("runconfig.{key}"), params, spec };
    let systems = run.num_csx.filter(|&given| given != u64::from(job.spec.num_csx));
    let mode = run.mode.zip(job.spec.mode).filter(|(given, spec)| given != mode_name(*spec));
    systems
        .map(|given| difference("num_csx", given.to_string(), job.spec.num_csx.to_string()))
        .into_iter()
        .chain(mode.map(|(given, spec)| difference("mode", given, mode_name(spec).to_owned())))
        .collect()
}
