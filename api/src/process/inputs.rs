//! Checks before a job is queued that its data files exist.
//!
//! * Only files that the job's own agents may read are checked: [`ServerDirectories::locate`] resolves paths as for the
//!   agents, and `millrace_roots` opens files. So the result discloses nothing about other files of the machine.

use std::path::{Path, PathBuf};

use glob::Pattern;
use millrace_agents::dataset_epoch::DatasetEpoch;
use millrace_agents::input::{DataError, DataSummary, source_spec, survey_source};
use millrace_crds::TrainJob;
use millrace_params::{InputSpec, JobSpec, LabelName};

use super::directories::ServerDirectories;
use super::path_error::PathError;
use crate::submission::UploadedFiles;

/// An input of a job that can't be read, with a message for the user that has a remedy.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The job can't use the path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A file that should have been uploaded was not.
    #[error("{key}: no file with this name was uploaded: {path}")]
    NotUploaded {
        /// Key of the input in the params.
        key: &'static str,
        /// The path in the params.
        path: String,
    },
    /// A file does not exist. Its path on this machine is not part of the message.
    #[error(
        "{key}: file {path} not found {place}: check the spelling, put the file there, upload a text file of less than \
         1 MiB with the params, or mount a volume that contains it"
    )]
    NotFound {
        /// Key of the input in the params.
        key: &'static str,
        /// The path in the params.
        path: String,
        /// Where the file was searched, as part of a sentence.
        place: String,
    },
    /// The data can't be used.
    #[error("{key}: {error}: {}", .error.hint())]
    Data {
        /// Key of the input in the params.
        key: &'static str,
        /// What is wrong with the data.
        error: DataError,
    },
}

/// Checks all files that `resolved`, the resolved `job`, reads; `texts` are its uploads, which are not stored yet.
/// Returns the epoch of the training data, if its size is known.
///
/// # Errors
/// A file is missing or has another format.
pub fn check_inputs(
    directories: &ServerDirectories,
    job: &TrainJob,
    resolved: &JobSpec,
    texts: Option<&UploadedFiles>,
) -> Result<Option<DatasetEpoch>, InputError> {
    let mut epoch = None;
    for (key, input) in resolved.active_inputs() {
        let samples = InputCheck { directories, job, key }.at(input, resolved.model.vocab_size, texts)?;
        if key == "train_input" {
            epoch = samples.map(|samples| DatasetEpoch::new(samples, input));
        }
    }
    Ok(epoch)
}

/// The check of one input.
struct InputCheck<'a> {
    directories: &'a ServerDirectories,
    job: &'a TrainJob,
    /// The input's key in the params.
    key: &'static str,
}

impl InputCheck<'_> {
    /// Returns the number of samples of an epoch, if known.
    fn at(
        &self,
        input: &InputSpec,
        vocab_size: usize,
        texts: Option<&UploadedFiles>,
    ) -> Result<Option<u64>, InputError> {
        let (mut travelling, mut placed) = (DataSummary::default(), Vec::new());
        for written in input.paths() {
            let path = self.directories.locate(self.job, written)?;
            match texts.and_then(|texts| self.uploaded_at(&path, texts)) {
                Some(found) if found.files > 0 => travelling = travelling.add(found),
                Some(_) => return Err(InputError::NotUploaded { key: self.key, path: written.clone() }),
                None => placed.push((written.as_str(), path)),
            }
        }
        let mut on_disk = input.clone();
        if let Some(paths) = on_disk.paths_mut() {
            *paths = placed.iter().map(|(_, path)| path.display().to_string()).collect();
        }
        let spec = source_spec(&on_disk, vocab_size);
        let found = match placed.is_empty() {
            true => Ok(DataSummary::default()),
            false => survey_source(&spec),
        };
        found.and_then(|found| found.add(travelling).samples(&spec)).map_err(|error| self.input_error(error, &placed))
    }

    /// Returns the matching files among the uploads; `None` if `path` is not in their directory.
    fn uploaded_at(&self, path: &Path, texts: &UploadedFiles) -> Option<DataSummary> {
        let namespace = LabelName::new(self.job.metadata.namespace.as_deref().unwrap_or_default()).ok()?;
        let name = path.strip_prefix(self.directories.uploads_dir(&namespace, &texts.config_map)).ok()?.to_str()?;
        let pattern = Pattern::new(name).ok();
        let is_meant = |text: &str| text == name || pattern.as_ref().is_some_and(|pattern| pattern.matches(text));
        let meant = texts.files.iter().filter(|text| is_meant(text.name.as_str()) && !text.content.is_empty());
        let sizes = meant.map(|text| DataSummary { files: 1, bytes: text.content.len() as u64 });
        Some(sizes.fold(DataSummary::default(), DataSummary::add))
    }

    /// Returns the error of an input, with the path as the user wrote it.
    fn input_error(&self, error: DataError, placed: &[(&str, PathBuf)]) -> InputError {
        let missing = match &error {
            DataError::NotFound { path, .. } => Some(path.as_path()),
            DataError::NoMatch { pattern, .. } => Some(Path::new(pattern)),
            _ => None,
        };
        let written = missing.and_then(|path| placed.iter().find(|(_, place)| place == path));
        let Some((written, _)) = written else {
            return InputError::Data { key: self.key, error };
        };
        let place = self.directories.search_description(self.job, written);
        InputError::NotFound { key: self.key, path: (*written).to_owned(), place }
    }
}
