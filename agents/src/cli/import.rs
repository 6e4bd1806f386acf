//! The command `checkpoint import`: converts a Hugging Face directory, or a safetensors file with the model's own
//! tensors, to `checkpoint_0` of a new model_dir.
//!
//! ```text
//! millrace-agent checkpoint import HF_DIR --write_params tuned.yaml -o tuned    # no params needed
//! millrace-agent checkpoint import HF_DIR -p tuned.yaml -o again                # with params that match
//! millrace-agent checkpoint import FILE --from safetensors -p params.yaml -o md # tensors by the graph's names
//! ```
//!
//! A failed import leaves no model_dir and no params file that did not exist before.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;

use millrace_checkpoint::hf::{Choices, import_hf, params_text};
use millrace_checkpoint::{Error, ImportSummary, LockRequest, ModelDirLock, import_weights, list};
use millrace_data::TOKENIZER_FILE;
use millrace_params::{FlagOverrides, Params};
use millrace_telemetry::atomic_file;

use super::args::{ImportParams, JobArgs, MachineFlags, WeightFormat};
use super::error::CliError;
use super::job::{PreparedJob, prepare, read_phase};
use crate::checkpoint_tokenizer;
use crate::checkpoints::imported_metadata;
use crate::error::AgentError;
use crate::input::data_failure;
use crate::launch::Exit;

/// The model_dir in params that the import writes, unless a flag names another.
const DEFAULT_MODEL_DIR: &str = "./model_dir";
/// The phase of the params whose model is imported, because a job begins with it.
const FIRST_PHASE: u32 = 1;

/// Imports the model in `path`, with existing params or params that are written.
pub fn import(
    path: &Path,
    format: WeightFormat,
    model_dir: Option<String>,
    params: &ImportParams,
    machine: &MachineFlags,
) -> Result<Exit, CliError> {
    let overrides = FlagOverrides { model_dir, ..machine.overrides() };
    let flags = |file: &Path| JobArgs { params: file.to_owned(), model: None, machine: machine.clone() };
    match (&params.write_params, &params.params) {
        (Some(_), _) if format == WeightFormat::Safetensors => {
            let error =
                CliError::bad_input("a safetensors file does not describe a model, so no params can be written");
            return Err(error.hint("give the params of the model with -p"));
        }
        (Some(file), _) => {
            let imported = import_with_new_params(path, &flags(file), &overrides)?;
            print_import(path, &imported);
            super::print_line(format_args!("Wrote the params {0}: edit its lines marked EDIT", file.display()));
            super::print_line(format_args!("Then train with: millrace-agent train -p {}", file.display()));
        }
        (None, Some(file)) => {
            let prepared = prepare(&flags(file), &overrides, read_phase(file, FIRST_PHASE)?)?;
            let hint = match format {
                WeightFormat::Hf => {
                    "give --write_params FILE instead of -p: it writes params that match, and imports with them"
                }
                WeightFormat::Safetensors => "name the params of the model that the file was saved for",
            };
            let imported = import_with_params(path, format, &prepared, hint)?;
            print_import(path, &imported);
        }
        (None, None) => return Err(CliError::bad_input("an import needs params").hint("give -p or --write_params")),
    }
    Ok(Exit::Success)
}

fn print_import(source: &Path, imported: &ImportSummary) {
    super::print_line(format_args!("Imported {} as {}", source.display(), imported.path.display()));
    if !imported.initialized.is_empty() {
        let names = imported.initialized.join(", ");
        super::print_line(format_args!("Not in the directory, and therefore with initial values: {names}"));
    }
    if !imported.unused.is_empty() {
        super::print_line(format_args!("Not in the model of the params: {}", imported.unused.join(", ")));
    }
}

/// Writes params for the model in `dir` to the file that `flags` name, and imports with them.
fn import_with_new_params(dir: &Path, flags: &JobArgs, overrides: &FlagOverrides) -> Result<ImportSummary, CliError> {
    let path = &flags.params;
    let choices = Choices {
        model_dir: overrides.model_dir.as_deref().unwrap_or(DEFAULT_MODEL_DIR),
        num_csx: overrides.num_csx.unwrap_or(1),
    };
    let text = params_text(dir, choices)?;
    let params = Params::parse_yaml(&text).map_err(|error| CliError::from_params_error(path, &error))?;
    let prepared = prepare(flags, overrides, (text.clone(), params))?;
    write_new(path, &text)?;
    let hint = "config.json and weights differ; download the directory again";
    import_with_params(dir, WeightFormat::Hf, &prepared, hint).inspect_err(|_| {
        // This command has created the file. A failure to remove it can't be handled further.
        let _ = std::fs::remove_file(path);
    })
}

/// Writes a file that must not exist.
fn write_new(path: &Path, text: &str) -> Result<(), CliError> {
    let mut file = File::create_new(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => CliError::bad_input(format!("{} already exists", path.display()))
            .hint("name another file for --write_params, or give the existing file with -p instead"),
        _ => CliError::bad_input(format!("can't create the params {}: {error}", path.display()))
            .hint("name a file in a directory that exists and that you may write to"),
    })?;
    file.write_all(text.as_bytes()).map_err(|error| {
        let _ = std::fs::remove_file(path);
        AgentError::local(error).context(format!("can't write the params {}", path.display())).into()
    })
}

/// Imports the weights in `path` into the job's model_dir. `mismatch_hint` is the hint if the model differs from the
/// params.
fn import_with_params(
    path: &Path,
    format: WeightFormat,
    prepared: &PreparedJob,
    mismatch_hint: &str,
) -> Result<ImportSummary, CliError> {
    let model_dir = Path::new(&prepared.resolved.job.run.model_dir);
    if let Some(newest) = list(model_dir)?.complete.last() {
        let error =
            CliError::bad_input(format!("{} already has a checkpoint of step {}", model_dir.display(), newest.step));
        return Err(error.hint("choose another model_dir with -o"));
    }
    let existed = model_dir.exists();
    let lock = ModelDirLock::acquire(model_dir, &LockRequest::local()).map_err(Error::from)?;
    let lock = Arc::new(lock);
    let read = match format {
        WeightFormat::Hf => import_hf,
        WeightFormat::Safetensors => import_weights,
    };
    let job = &prepared.resolved.job;
    let metadata = imported_metadata(job, &prepared.plan, &prepared.profile(None))?;
    let imported = read(path, &lock, &prepared.plan, metadata).map_err(|error| match error {
        Error::ModelMismatch { .. } => CliError::from(error).hint(mismatch_hint),
        _ => error.into(),
    });
    let imported = imported.and_then(|imported| copy_tokenizer(prepared, model_dir).map(|()| imported));
    if imported.is_err() && !existed {
        drop(lock);
        // Restores the state before the import: the failed import has created a directory without a checkpoint.
        let _ = std::fs::remove_dir_all(model_dir);
    }
    imported
}

/// Copies the file of the tokenizer, if the params name one, as a run does: `generate` looks for it there.
fn copy_tokenizer(prepared: &PreparedJob, model_dir: &Path) -> Result<(), CliError> {
    let content = checkpoint_tokenizer::content_to_keep(&prepared.resolved.job).map_err(data_failure)?;
    let Some(content) = content else { return Ok(()) };
    atomic_file::write(&model_dir.join(TOKENIZER_FILE), &content).map_err(|error| AgentError::local(error).into())
}
