//! Reads, resolves and compiles a job from files and flags.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Component, Path, PathBuf};

use millrace_data::stored_sample_length;
use millrace_emulator::compile::{compile, request};
use millrace_emulator::numerics::{Isa, NumericsProfile};
use millrace_emulator::placement::swarm_nodes;
use millrace_emulator::plan::StreamPlan;
use millrace_emulator::report::PlanReport;
use millrace_params::{FlagOverrides, JobSpec, MachineSpec, Params, PhasedParams, ResolveOutput};
use millrace_protocol::launch::AgentCounts;

use super::args::JobArgs;
use super::data_paths::resolve_beside_params;
use super::error::CliError;
use crate::input::source_spec;
use crate::model::job_graph;

/// Maximum bytes of a params file that another one names. The largest of the public model zoo has 10 kB.
const MAX_OTHER_PARAMS_BYTES: u64 = 1 << 20;

/// A job that was resolved and compiled, and so fits on the appliance.
#[derive(Debug)]
pub struct PreparedJob {
    /// The job, with notes for the user.
    pub resolved: ResolveOutput,
    /// The machine, with as many shards as the job uses.
    pub appliance: MachineSpec,
    pub plan: StreamPlan,
    /// The text of the params.
    pub params_yaml: String,
}

/// Reads a text file; `description` names its purpose in errors.
fn read(path: &Path, description: &str) -> Result<String, CliError> {
    std::fs::read_to_string(path).map_err(|error| {
        let (reason, hint) = match error.kind() {
            ErrorKind::NotFound => {
                (error.to_string(), "check the spelling; relative paths start at the working directory")
            }
            ErrorKind::IsADirectory => ("it is a directory".to_owned(), "name a file in it"),
            ErrorKind::InvalidData => ("it is not UTF-8 text".to_owned(), "name a YAML file in UTF-8"),
            ErrorKind::PermissionDenied => (error.to_string(), "give this user permission to read the file"),
            _ => (error.to_string(), "check that the file can be read"),
        };
        CliError::bad_input(format!("can't read the {description} {}: {reason}", path.display())).hint(hint)
    })
}

/// Returns whether a YAML text has nothing but blank lines and comments.
fn is_blank(text: &str) -> bool {
    text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#'))
}

/// Reads the params at `path`; returns their text and the parsed document.
pub fn read_params(path: &Path) -> Result<(String, PhasedParams), CliError> {
    let text = read(path, "params")?;
    if is_blank(&text) {
        let error = CliError::bad_input(format!("the params file {} is empty", path.display()));
        return Err(error.hint("the files in examples/ show how params are written"));
    }
    let params = PhasedParams::parse_yaml(&text, |other| read_beside(path, Path::new(other)));
    Ok((text, params.map_err(|error| CliError::from_params_error(path, &error))?))
}

/// Reads the params at `path`; returns their text and those of the phase `number`, counted from 1.
pub fn read_phase(path: &Path, number: u32) -> Result<(String, Params), CliError> {
    let (text, params) = read_params(path)?;
    let phase = params.iter().zip(1..).find(|(_, each)| *each == number).map(|(phase, _)| phase.clone());
    let phase = phase.ok_or_else(|| {
        let count = params.iter().count();
        CliError::bad_input(format!("{} has {count} phase(s), and no phase {number}", path.display()))
            .hint("leave --phase out to read the first one")
    })?;
    Ok((text, phase))
}

/// Reads another params file that the one at `params` names: in its directory, in the one above, which is that of the
/// zoo's programs, or else in the working directory.
fn read_beside(params: &Path, other: &Path) -> io::Result<String> {
    let dir = params.parent().unwrap_or(Path::new(""));
    let places = [Some(dir.join(other)), Some(dir.join("..").join(other)), flattened(params, other)];
    let beside = places.into_iter().flatten().find(|path| path.is_file());
    let path = beside.unwrap_or_else(|| other.to_owned());
    // The type is checked before the file is opened: to open a pipe waits for its writer.
    if path.exists() && !path.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut text = String::new();
    File::open(path)?.take(MAX_OTHER_PARAMS_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_OTHER_PARAMS_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_OTHER_PARAMS_BYTES} bytes")));
    }
    Ok(text)
}

/// Returns the place of `other` in a directory into which the files of the zoo were copied with `__` for the `/` of
/// their paths: beside `a__fine_tuning__qa__configs__squad.yaml`, `../../configs/base.yaml` is `a__configs__base.yaml`.
/// `None` if the name of the params file has no such path, or `other` is not below it.
fn flattened(params: &Path, other: &Path) -> Option<PathBuf> {
    let name = params.file_name()?.to_str()?;
    // The directory above that of the file, which is that of the zoo's programs.
    let mut parts: Vec<&str> = name.split("__").collect();
    parts.truncate(parts.len().checked_sub(2)?);
    for component in other.components() {
        match component {
            Component::ParentDir => {
                parts.pop()?;
            }
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(params.with_file_name(parts.join("__")))
}

/// Resolves the params of the file at `path`. If the params do not give the length of samples, it is that of a graph
/// document, or of stored samples.
pub fn resolve_params(path: &Path, overrides: &FlagOverrides, params: &Params) -> Result<ResolveOutput, CliError> {
    let resolve = |params: &Params| -> Result<ResolveOutput, CliError> {
        let resolved = params.resolve(overrides);
        let mut resolved = resolved.map_err(|error| CliError::from_params_error(path, &error))?;
        resolve_beside_params(&mut resolved.job, path);
        Ok(resolved)
    };
    let resolved = resolve(params)?;
    match with_sample_length(params, &resolved.job)? {
        Some(params) => resolve(&params),
        None => Ok(resolved),
    }
}

/// Resolves and compiles a job of one phase.
pub fn prepare(
    flags: &JobArgs,
    overrides: &FlagOverrides,
    (params_yaml, params): (String, Params),
) -> Result<PreparedJob, CliError> {
    let resolved = resolve_params(&flags.params, overrides, &params)?;
    compile_resolved(flags, resolved, params_yaml)
}

/// Resolves and compiles all phases of a job.
pub fn prepare_phases(
    flags: &JobArgs,
    overrides: &FlagOverrides,
    (params_yaml, params): (String, PhasedParams),
) -> Result<Vec<PreparedJob>, CliError> {
    let path = &flags.params;
    let resolve = |params: &Params, overrides: &FlagOverrides| {
        let mode = mode_of(overrides.mode.as_deref(), params).map(str::to_owned);
        resolve_params(path, &FlagOverrides { mode, ..overrides.clone() }, params)
    };
    let phases = params.resolve_with(overrides, resolve, |error| CliError::from_params_error(path, &error))?;
    phases.into_iter().map(|resolved| compile_resolved(flags, resolved, params_yaml.clone())).collect()
}

/// Returns the mode that overrides the params. `train` does not override `mode: train_and_eval` of the params.
fn mode_of<'a>(flag: Option<&'a str>, params: &Params) -> Option<&'a str> {
    let params_mode = params.runconfig.as_ref().and_then(|run| run.mode.as_deref());
    if flag == Some("train") && params_mode == Some("train_and_eval") { None } else { flag }
}

fn compile_resolved(flags: &JobArgs, resolved: ResolveOutput, params_yaml: String) -> Result<PreparedJob, CliError> {
    let mut appliance = match &flags.machine.appliance {
        None => MachineSpec::default(),
        Some(path) => MachineSpec::parse_yaml(&read(path, "appliance")?)
            .map_err(|error| CliError::from_params_error(path, &error))?,
    };
    let systems = resolved.job.run.num_csx;
    if systems > appliance.systems {
        let available = appliance.systems;
        let error =
            CliError::bad_input(format!("the job requests {systems} systems, but the appliance has {available}"));
        return Err(error.hint(format!("set num_csx to at most {available}, or describe a larger appliance")));
    }
    let nodes = swarm_nodes(systems, u32::try_from(appliance.swarmx.fan_out).unwrap_or(u32::MAX));
    if let Some(available) = appliance.swarmx.nodes.filter(|available| nodes > *available) {
        let error =
            CliError::bad_input(format!("the job needs {nodes} SwarmX nodes, but the appliance has {available}"));
        return Err(error.hint("set num_csx to a smaller number, or swarmx.nodes to a larger one"));
    }
    appliance.memoryx.shards = AgentCounts::for_job(&resolved.job, &appliance).shards;
    let graph = job_graph(&resolved.job)?;
    let plan = compile(request(&resolved.job, graph, &appliance)?)?;
    Ok(PreparedJob { resolved, appliance, plan, params_yaml })
}

/// Returns the params with the length of the samples that the graph reads, or of those in the training data, if the
/// params leave it out and it is not what they were resolved to.
fn with_sample_length(params: &Params, job: &JobSpec) -> Result<Option<Params>, CliError> {
    if params.states_sample_length() {
        return Ok(None);
    }
    let length = match job.model.graph {
        Some(_) => Some(job_graph(job)?.sequence()),
        None => stored_sample_length(&source_spec(&job.train_input, &job.model)),
    };
    let length = length.filter(|length| *length != job.train_input.max_sequence_length);
    Ok(length.map(|length| params.with_sample_length(length)))
}

impl PreparedJob {
    /// Returns the report on the plan with the job's systems.
    pub fn report(&self) -> Result<PlanReport, CliError> {
        let systems = u32::try_from(self.resolved.job.run.num_csx).unwrap_or(u32::MAX);
        PlanReport::new(&self.plan, &self.appliance, systems).map_err(CliError::bad_input)
    }

    /// Returns the numerics profile of a run on this machine; `isa` pins the instruction set.
    pub fn profile(&self, isa: Option<Isa>) -> NumericsProfile {
        NumericsProfile::new(isa.unwrap_or_else(Isa::detect), self.plan.encoding.into())
    }

    /// Prints how the params were interpreted if that differs from their text, and which of them have no effect.
    pub fn print_notes(&self) {
        self.resolved.notes.iter().for_each(|note| eprintln!("note: {note}"));
        if !self.resolved.ignored_keys.is_empty() {
            eprintln!("note: these keys have no effect here: {}", self.resolved.ignored_keys.join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_params_are_found_in_copies_of_the_zoo() {
        let params = Path::new("zoo/tf__bert__fine_tuning__qa__configs__squad.yaml");
        let found = |other: &str| flattened(params, Path::new(other)).map(|path| path.display().to_string());
        assert_eq!(found("../../configs/base.yaml").unwrap(), "zoo/tf__bert__configs__base.yaml");
        assert_eq!(found("./configs/base.yaml").unwrap(), "zoo/tf__bert__fine_tuning__qa__configs__base.yaml");
        for other in ["/base.yaml", "../../../../../base.yaml"] {
            assert_eq!(found(other), None, "{other}");
        }
        assert_eq!(flattened(Path::new("squad.yaml"), Path::new("base.yaml")), None);
    }

    #[test]
    fn params_that_cannot_be_read_are_explained() {
        let dir = tempfile::tempdir().unwrap();
        let read_error = |name: &str| read_params(&dir.path().join(name)).unwrap_err().to_string();
        std::fs::write(dir.path().join("latin1.yaml"), b"# \xe9t\xe9\n").unwrap();
        std::fs::write(dir.path().join("empty.yaml"), "\n# nothing yet\n").unwrap();
        for (name, message) in [
            ("gone.yaml", "check the spelling"),
            ("", "it is a directory\nhint: name a file in it"),
            ("latin1.yaml", "it is not UTF-8 text"),
            ("empty.yaml", "empty.yaml is empty"),
        ] {
            assert!(read_error(name).contains(message), "{name}: {}", read_error(name));
        }
    }
}
