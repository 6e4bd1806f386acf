//! Resolves the params of a job into a record that never changes, once, at its first admission.

use kube::ResourceExt;
use millrace_crds::{
    ApplianceSpec, ModelDirBucket, OverruledKey, ResolvedJob, ResolvedPhase, StoredParams, TrainJob, TrainJobSpec,
    TrainJobStatus, UploadedModel,
};
use millrace_params::{
    DataSource, FlagOverrides, InputSpec, JobSpec, LossSpikeAction, LossSpikeSpec, Mode, Params, PhasedParams,
    ResolveOutput, RunParams,
};
use millrace_protocol::launch::VERSION;

use crate::job_graph::JobGraph;
use crate::plan_compiler::{PlanBudget, PlanCompiler};
use crate::record::resolved_job;
use crate::requirements::ResourceRequirements;
use crate::resolve_error::{InvalidJob, ResolveError};
use crate::world::{JobSite, ModelDirLocation};

/// Maximum number of notes in a record, as in the definition of a TrainJob.
const MAX_NOTES: usize = 64;
/// Beginning of the address of a bucket.
const BUCKET_SCHEME: &str = "s3://";

/// Resolves and plans `job` on an appliance, in the world of `site`. Returns its `record`, or the record that it would
/// get, and the needs of an attempt of its current phase on `num_csx` systems.
///
/// # Errors
/// The job can never run as it is, [`ResolveError::Overloaded`], or [`ResolveError::Unavailable`].
pub fn resolve_and_plan(
    job: &TrainJob,
    record: Option<ResolvedJob>,
    cluster: &ApplianceSpec,
    num_csx: u32,
    site: &dyn JobSite,
    (plans, may_plan): (&PlanCompiler, &PlanBudget<'_>),
) -> Result<(ResolvedJob, ResourceRequirements), ResolveError> {
    let graph = JobGraph::new(job, site, may_plan);
    let resolution = record.map_or_else(|| resolve_with(job, cluster, site, (plans, &graph)), Ok)?;
    let completed = job.status.as_ref().map_or(0, TrainJobStatus::completed_phase_count);
    let needs = |completed| {
        let (resolved, appliance) = resolved_job(&resolution.without_phases(completed))?;
        Ok::<_, ResolveError>(plans.plan(&resolved, &appliance, num_csx, &graph)?.needs.clone())
    };
    let mut current = needs(completed)?;
    // The job keeps what the appliance grants it, so the grant suffices for the phases that follow.
    for later in completed + 1..resolution.phase_count() {
        current.reserve_for(&needs(later)?);
    }
    Ok((resolution, current))
}

/// Resolves `job` on an appliance, in the world of `site`, without any cache.
///
/// # Errors
/// The job can never run as it is.
pub fn resolve(job: &TrainJob, cluster: &ApplianceSpec, site: &dyn JobSite) -> Result<ResolvedJob, ResolveError> {
    resolve_with(job, cluster, site, (&PlanCompiler::default(), &JobGraph::new(job, site, &|_| Ok(()))))
}

fn resolve_with(
    job: &TrainJob,
    cluster: &ApplianceSpec,
    site: &dyn JobSite,
    (plans, graph): (&PlanCompiler, &JobGraph<'_>),
) -> Result<ResolvedJob, ResolveError> {
    let spec = &job.spec;
    if spec.uploads().next().is_some() {
        site.check_uploads_supported().map_err(InvalidJob::Site)?;
    }
    let params = params_with_model(spec)?;
    let mut phases = resolve_phases(spec, &params, graph)?;
    let is_one = phases.len() == 1;
    let first = phases.first().map(|phase| phase.job.run.model_dir.clone()).unwrap_or_default();
    let ModelDirLocation { path: model_dir, claim } = site.model_dir(job, &first).map_err(InvalidJob::Site)?;
    let appliance = cluster.machine.resolve().map_err(InvalidJob::Appliance)?;
    let (mut records, mut notes, mut loader) = (Vec::new(), Vec::new(), None);
    for (index, phase) in phases.iter_mut().enumerate() {
        let of_phase = |note: String| if is_one { note } else { format!("Phase {}: {note}", index + 1) };
        resolve_paths(job, phase, site)?;
        notes.extend(notes_of(phase).map(of_phase));
        loader = loader.or(loader_image(spec, &phase.job, cluster, site)?);
        let planned = plans.plan(&phase.job, &appliance, spec.num_csx, graph)?;
        planned.streamable.clone()?;
        let text = serde_json::to_string(&phase.job).map_err(InvalidJob::Json)?;
        let (mode, job, plan_hash) = (Some(phase.job.run.mode), Some(text), Some(planned.hash.clone()));
        records.push(ResolvedPhase { mode, job, plan_hash });
    }
    notes.truncate(MAX_NOTES);
    let ResolvedPhase { mode, job: text, plan_hash } = records.remove(0);
    let document = serde_json::to_string(&appliance).map_err(InvalidJob::Json)?;
    let bucket = cluster.storage.bucket.as_ref().filter(|_| claim.is_some());
    let of_job = |bucket: &ModelDirBucket| bucket.for_job(&job.namespace().unwrap_or_default(), &job.name_any());
    Ok(ResolvedJob {
        version: Some(VERSION),
        mode,
        num_csx: Some(spec.num_csx),
        model_dir: Some(model_dir.display().to_string()),
        model_dir_bucket: bucket.map(of_job),
        model_dir_claim: claim,
        job: text,
        plan_hash,
        later_phases: records,
        image: cluster.image.clone().or_else(|| site.image()),
        loader_image: loader,
        appliance: Some(appliance.to_document()),
        appliance_digest: Some(blake3::hash(document.as_bytes()).to_hex().to_string()),
        resources: cluster.resources.clone(),
        differences: overruled_keys(&params.first, job),
        notes,
    })
}

/// Returns the notes for the user on a phase, and one on its keys without effect.
fn notes_of(phase: &ResolveOutput) -> impl Iterator<Item = String> {
    let ignored = &phase.ignored_keys;
    let without_effect =
        (!ignored.is_empty()).then(|| format!("Without effect on this appliance: {}.", ignored.join(", ")));
    phase.notes.iter().cloned().chain(without_effect)
}

/// Resolves the params of all phases with the values of the spec that override them.
fn resolve_phases(
    spec: &TrainJobSpec,
    params: &PhasedParams,
    graph: &JobGraph<'_>,
) -> Result<Vec<ResolveOutput>, ResolveError> {
    let overrides = FlagOverrides {
        num_csx: Some(spec.num_csx.into()),
        mode: spec.mode.map(|mode| mode_name(mode).to_owned()),
        ..FlagOverrides::default()
    };
    let mut number = 0;
    let resolve = |params: &Params, overrides: &FlagOverrides| {
        number += 1;
        with_sample_length(params, overrides, graph).map_err(|error| in_phase(number, error))
    };
    let mut phases = params.resolve_with(&overrides, resolve, |error| InvalidJob::LaterPhases(error).into())?;
    for phase in &mut phases {
        if let Some(spike) = spec.failure_policy.loss_spike {
            phase.job.run.loss_spike = Some(spike.into());
        }
        if phase.job.run.compile_only || phase.job.run.validate_only {
            return Err(InvalidJob::LocalOnly.into());
        }
        let run = &phase.job.run;
        let paths = [&run.model_dir, &run.summary_dir].into_iter().chain(&run.checkpoint_path);
        if let Some(path) = paths.into_iter().find(|path| path.starts_with(BUCKET_SCHEME)) {
            return Err(InvalidJob::BucketPath(path.clone()).into());
        }
    }
    Ok(phases)
}

/// Sets the directory of a phase's summaries in the world of `site`, and checks that its agents can read their files
/// there.
fn resolve_paths(job: &TrainJob, phase: &mut ResolveOutput, site: &dyn JobSite) -> Result<(), ResolveError> {
    let run = &mut phase.job.run;
    if !run.summary_dir.is_empty() && run.summary_dir != run.model_dir {
        let summary_dir = site.model_dir(job, &run.summary_dir).map_err(InvalidJob::Site)?;
        run.summary_dir = summary_dir.path.display().to_string();
    }
    Ok(inputs(&phase.job).try_for_each(|path| site.check_readable(job, path)).map_err(InvalidJob::Site)?)
}

/// Returns the image of the container that reads the Python dataset of a job; `None` if the job reads none, or agents
/// do not run in pods.
fn loader_image(
    spec: &TrainJobSpec,
    job: &JobSpec,
    cluster: &ApplianceSpec,
    site: &dyn JobSite,
) -> Result<Option<String>, ResolveError> {
    let mut inputs = job.active_inputs();
    let Some((key, _)) = inputs.find(|(_, input)| matches!(input.source, DataSource::Python { .. })) else {
        return Ok(None);
    };
    match spec.loader_image.as_ref().or(cluster.loader_image.as_ref()) {
        Some(image) if site.runs_pods() => Ok(Some(image.clone())),
        None if site.runs_pods() => Err(InvalidJob::NoLoaderImage(key).into()),
        _ => Ok(None),
    }
}

/// Returns the params of all phases, with the uploads of `spec.model` where the params name files.
fn params_with_model(spec: &TrainJobSpec) -> Result<PhasedParams, ResolveError> {
    let mut first = spec.params.read().map_err(InvalidJob::Params)?;
    let read = |(index, params): (usize, &StoredParams)| {
        params.read().map_err(|error| in_phase(index + 2, InvalidJob::Params(error).into()))
    };
    let mut later = spec.later_phases.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
    let UploadedModel { graph, weights } = spec.model.clone().unwrap_or_default();
    if let Some(graph) = graph {
        let file = first.model.get_or_insert_default().graph.replace(graph.clone());
        let named = later.iter_mut().filter_map(|params| params.model.as_mut()?.graph.as_mut());
        named.filter(|name| file.as_ref() == Some(*name)).for_each(|name| name.clone_from(&graph));
    }
    if weights.is_some() {
        first.runconfig.get_or_insert_default().checkpoint_path = weights;
    }
    Ok(PhasedParams { first, later })
}

/// Names the phase in the error of params that follow the first ones.
fn in_phase(number: usize, error: ResolveError) -> ResolveError {
    match error {
        ResolveError::BadParams(cause) if number > 1 => InvalidJob::InPhase { number, cause }.into(),
        error => error,
    }
}

/// Resolves params. If they leave out the length of samples, it is that of the samples that a graph document reads.
fn with_sample_length(
    params: &Params,
    overrides: &FlagOverrides,
    graph: &JobGraph<'_>,
) -> Result<ResolveOutput, ResolveError> {
    let output = params.resolve(overrides).map_err(InvalidJob::Params)?;
    if params.states_sample_length() {
        return Ok(output);
    }
    let Some(graph) = graph.of_document(&output.job)? else { return Ok(output) };
    Ok(params.with_sample_length(graph.sequence()).resolve(overrides).map_err(InvalidJob::Params)?)
}

/// Returns the needs of an attempt of a resolved `job` on `num_csx` systems, without any cache.
///
/// # Errors
/// The record has a version that this program can't read, or no such placement exists.
pub fn requirements(
    job: &TrainJob,
    resolution: &ResolvedJob,
    num_csx: u32,
    site: &dyn JobSite,
) -> Result<ResourceRequirements, ResolveError> {
    let (resolved, appliance) = resolved_job(resolution)?;
    let graph = JobGraph::new(job, site, &|_| Ok(()));
    Ok(PlanCompiler::default().plan(&resolved, &appliance, num_csx, &graph)?.needs.clone())
}

/// Returns every path that agents of `job` read.
fn inputs(job: &JobSpec) -> impl Iterator<Item = &str> {
    let inputs = [Some(&job.train_input), job.eval_input.as_ref()].into_iter().flatten();
    inputs.flat_map(InputSpec::paths).chain(&job.run.checkpoint_path).map(String::as_str)
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
    let systems = run.num_csx.filter(|&params_value| params_value != u64::from(job.spec.num_csx));
    let mode = run.mode.clone().zip(job.spec.mode).filter(|(params_value, spec)| params_value != mode_name(*spec));
    systems
        .map(|params_value| difference("num_csx", params_value.to_string(), job.spec.num_csx.to_string()))
        .into_iter()
        .chain(mode.map(|(params_value, spec)| difference("mode", params_value, mode_name(spec).to_owned())))
        .chain(overruled_spikes(&run, job).into_iter().map(|(key, params, spec)| difference(key, params, spec)))
        .collect()
}

/// Returns the keys of runconfig about jumps of the loss that differ from `failurePolicy.lossSpike`, with both values.
fn overruled_spikes(run: &RunParams, job: &TrainJob) -> Vec<(&'static str, String, String)> {
    let Some(spike) = job.spec.failure_policy.loss_spike else { return Vec::new() };
    let LossSpikeSpec { factor, window, action } = spike.into();
    let action = match action {
        LossSpikeAction::Stop => "stop",
        LossSpikeAction::Skip => "skip",
    };
    let factor = factor.map_or_else(|| "no bound".to_owned(), |factor| factor.to_string());
    let values = [
        ("loss_spike_factor", run.loss_spike_factor.map(|factor| factor.to_string()), factor),
        ("loss_spike_window", run.loss_spike_window.map(|window| window.to_string()), window.to_string()),
        ("loss_spike_action", run.loss_spike_action.clone(), action.to_owned()),
    ];
    let differs = |(key, params, spec): (&'static str, Option<String>, String)| Some((key, params?, spec));
    values.into_iter().filter_map(differs).filter(|(_, params, spec)| params != spec).collect()
}

#[cfg(test)]
mod tests {
    use millrace_crds::{LossSpikePolicy, StoredParams, TrainJobSpec};
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_that_differ_from_the_spec_are_listed() {
        let params =
            json!({"runconfig": {"num_csx": 3, "mode": "train", "loss_spike_factor": 4.0, "loss_spike_window": 50}});
        let params: Params = serde_json::from_value(params).unwrap();
        let mut job = TrainJob::new("job", TrainJobSpec::new(2, StoredParams::default()));
        (job.spec.mode, job.spec.failure_policy.loss_spike) = (Some(Mode::Train), None);
        let keys = |job: &TrainJob| {
            let differences = overruled_keys(&params, job).into_iter();
            differences.map(|OverruledKey { key, params, spec }| format!("{key}: {params}, {spec}")).collect::<Vec<_>>()
        };
        assert_eq!(keys(&job), ["runconfig.num_csx: 3, 2"]);
        let action = millrace_crds::LossSpikeAction::Skip;
        job.spec.failure_policy.loss_spike = Some(LossSpikePolicy { factor: None, window_steps: 50, action });
        assert_eq!(keys(&job)[1..], ["runconfig.loss_spike_factor: 4, no bound"]);
    }
}
