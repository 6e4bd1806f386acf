//! Resolves the params of a job into a record that never changes, once, at its first admission.

use millrace_crds::{ApplianceSpec, OverruledKey, ResolvedJob, TrainJob, TrainJobSpec, UploadedModel};
use millrace_params::{
    DataSource, FlagOverrides, InputSpec, JobSpec, LossSpikeAction, LossSpikeSpec, Mode, Params, ResolveOutput,
    RunParams,
};
use millrace_protocol::launch::VERSION;

use crate::job_graph::JobGraph;
use crate::plan_compiler::{PlanBudget, PlanCompiler};
use crate::record::resolved_job;
use crate::requirements::ResourceRequirements;
use crate::resolve_error::{InvalidJob, ResolveError};
use crate::world::{JobSite, ModelDirLocation};

/// Resolves and plans `job` on an appliance, in the world of `site`. Returns its `record`, or the record that it would
/// get, and the needs of an attempt on `num_csx` systems.
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
    let (resolved, appliance) = resolved_job(&resolution)?;
    let needs = plans.plan(&resolved, &appliance, num_csx, &graph)?.needs.clone();
    Ok((resolution, needs))
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
    let overrides = FlagOverrides {
        num_csx: Some(spec.num_csx.into()),
        mode: spec.mode.map(|mode| mode_name(mode).to_owned()),
        ..FlagOverrides::default()
    };
    let ResolveOutput { job: mut resolved, mut notes, ignored_keys } = with_sample_length(&params, &overrides, graph)?;
    if let Some(spike) = spec.failure_policy.loss_spike {
        resolved.run.loss_spike = Some(spike.into());
    }
    if resolved.run.compile_only || resolved.run.validate_only {
        return Err(InvalidJob::LocalOnly.into());
    }
    if !ignored_keys.is_empty() {
        notes.push(format!("Without effect on this appliance: {}.", ignored_keys.join(", ")));
    }
    let ModelDirLocation { path: model_dir, claim } =
        site.model_dir(job, &resolved.run.model_dir).map_err(InvalidJob::Site)?;
    let run = &mut resolved.run;
    if !run.summary_dir.is_empty() && run.summary_dir != run.model_dir {
        let summary_dir = site.model_dir(job, &run.summary_dir).map_err(InvalidJob::Site)?;
        run.summary_dir = summary_dir.path.display().to_string();
    }
    inputs(&resolved).try_for_each(|path| site.check_readable(job, path)).map_err(InvalidJob::Site)?;
    let loader_image = loader_image(spec, &resolved, cluster, site)?;
    let appliance = cluster.machine.resolve().map_err(InvalidJob::Appliance)?;
    let planned = plans.plan(&resolved, &appliance, spec.num_csx, graph)?;
    planned.streamable.clone()?;
    let text = serde_json::to_string(&resolved).map_err(InvalidJob::Json)?;
    let document = serde_json::to_string(&appliance).map_err(InvalidJob::Json)?;
    Ok(ResolvedJob {
        version: Some(VERSION),
        mode: Some(resolved.run.mode),
        num_csx: Some(spec.num_csx),
        model_dir: Some(model_dir.display().to_string()),
        model_dir_claim: claim,
        job: Some(text),
        plan_hash: Some(planned.hash.clone()),
        image: cluster.image.clone().or_else(|| site.image()),
        loader_image,
        appliance: Some(appliance.to_document()),
        appliance_digest: Some(blake3::hash(document.as_bytes()).to_hex().to_string()),
        resources: cluster.resources.clone(),
        differences: overruled_keys(&params, job),
        notes,
    })
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

/// Returns the params of a job, with the uploads of `spec.model` where the params name files.
fn params_with_model(spec: &TrainJobSpec) -> Result<Params, ResolveError> {
    let mut params = spec.params.read().map_err(InvalidJob::Params)?;
    let UploadedModel { graph, weights } = spec.model.clone().unwrap_or_default();
    if graph.is_some() {
        params.model.get_or_insert_default().graph = graph;
    }
    if weights.is_some() {
        params.runconfig.get_or_insert_default().checkpoint_path = weights;
    }
    Ok(params)
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
