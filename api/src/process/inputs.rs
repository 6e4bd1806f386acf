//! Checks before a job is queued that its data files exist.
//!
//! * Only files that the job's own agents may read are checked: [`ServerDirectories::locate`] resolves paths as for the
//!   agents, and `millrace_roots` opens files. So the result discloses nothing about other files of the machine.

use std::path::{Path, PathBuf};

use glob::Pattern;
use millrace_agents::dataset_epoch::DatasetEpoch;
use millrace_agents::input::{
    DataError, DataSummary, PythonPackage, SourceKind, check_tokenizer, source_spec, survey_source,
};
use millrace_crds::TrainJob;
use millrace_params::{DataSource, InputSpec, JobSpec, LabelName, ModelSpec, TokenizerName};

use super::directories::ServerDirectories;
use super::path_error::PathError;
use crate::submission::{UploadedFile, UploadedFiles};

/// An input of a job that can't be read, with a message for the user that has a remedy.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The job can't use the path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// All uploaded files that a path names are empty.
    #[error("{key}: the uploaded file {name} is empty: give a file with text")]
    EmptyUpload {
        /// Key of the input in the params.
        key: &'static str,
        /// Name of the first file, as the user wrote it.
        name: String,
    },
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
        "{key}: file {path} not found {location}: check the spelling, put the file there, upload it with the \
         params, or mount a volume that contains it"
    )]
    NotFound {
        /// Key of the input in the params.
        key: &'static str,
        /// The path in the params.
        path: String,
        /// Where the file was searched, as part of a sentence.
        location: String,
    },
    /// The job has code that this server does not run.
    #[error(
        "{key}: this server reads no Python dataset of this client, because its code would run with the rights of the \
         server's user: submit it as that user without a token, or start the server with --python PATH"
    )]
    LoaderDenied {
        /// Key of the input in the params.
        key: &'static str,
    },
    /// The interpreter of a Python dataset is missing.
    #[error(
        "{key}: the interpreter {} of the client does not exist on the server: start the server with --python PATH",
        .interpreter.display()
    )]
    NoInterpreter {
        /// Key of the input in the params.
        key: &'static str,
        /// The interpreter.
        interpreter: PathBuf,
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

/// With which interpreter Python datasets are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoaderPolicy {
    /// That of the server.
    OfServer,
    /// That of the client, which runs on the same machine as the same user.
    OfClient,
    /// They are rejected.
    Denied,
}

/// Checks all files that `resolved`, the resolved `job`, reads; `uploads` are its uploads, which are not stored yet.
/// Returns the epoch of the training data, if its size is known.
///
/// # Errors
/// A mounted volume or a file is missing, or a file has another format.
pub fn check_inputs(
    directories: &ServerDirectories,
    job: &TrainJob,
    resolved: &JobSpec,
    uploads: Option<&UploadedFiles>,
    policy: LoaderPolicy,
) -> Result<Option<DatasetEpoch>, InputError> {
    directories.check_mounts(job)?;
    directories.make_job_files(job)?;
    let mut epoch = None;
    for (key, input) in resolved.active_inputs() {
        let samples = InputCheck { directories, job, key, policy }.at(input, &resolved.model, uploads)?;
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
    policy: LoaderPolicy,
}

impl InputCheck<'_> {
    /// Returns the number of samples of an epoch, if known.
    fn at(
        &self,
        input: &InputSpec,
        model: &ModelSpec,
        uploads: Option<&UploadedFiles>,
    ) -> Result<Option<u64>, InputError> {
        let kind = source_spec(input, model).kind;
        let mut found = LocatedPaths::default();
        for (index, params_path) in input.paths().iter().enumerate() {
            let path = self.directories.locate(self.job, params_path)?;
            let is_vocabulary = index >= input.paths().len() - input.vocabulary_paths();
            match (uploads.and_then(|uploads| self.uploaded_at(&path, uploads)), is_vocabulary) {
                (Some(files), _) if files.is_empty() => {
                    return Err(InputError::NotUploaded { key: self.key, path: params_path.clone() });
                }
                (Some(files), false) => found.add_uploads(&kind, &files),
                (Some(_), true) => found.has_uploaded_vocabulary = true,
                (None, false) => found.data.push((params_path.clone(), path)),
                (None, true) => found.vocabularies.push((params_path.clone(), path)),
            }
        }
        if let Some(name) = found.first_upload.as_ref().filter(|_| found.data.is_empty() && found.uploaded.bytes == 0) {
            return Err(InputError::EmptyUpload { key: self.key, name: name.clone() });
        }
        let Some(on_disk) = found.on_disk(input) else { return Ok(None) };
        let spec = source_spec(&on_disk, model);
        let checked = if found.has_uploaded_vocabulary { Ok(()) } else { check_tokenizer(&spec, model) };
        let summary = checked.and_then(|()| match found.data.is_empty() {
            true => Ok(DataSummary::default()),
            false => survey_source(&spec),
        });
        if let (SourceKind::Python { paths }, Ok(_)) = (&spec.kind, &summary) {
            self.check_interpreter(paths)?;
        }
        summary
            .and_then(|on_disk| on_disk.add(found.uploaded).epoch_samples(&spec))
            .map_err(|error| self.input_error(error, &found))
    }

    /// Checks that the Python dataset with this package may be read, and that its interpreter exists.
    fn check_interpreter(&self, paths: &[String]) -> Result<(), InputError> {
        let key = self.key;
        match self.policy {
            LoaderPolicy::OfServer => Ok(()),
            LoaderPolicy::Denied => Err(InputError::LoaderDenied { key }),
            LoaderPolicy::OfClient => {
                let packages = paths.iter().map(|path| PythonPackage::open(Path::new(path)));
                let packages = packages.collect::<Result<Vec<_>, _>>();
                let packages = packages.map_err(|error| InputError::Data { key, error })?;
                let mut interpreters = packages.iter().map(|package| &package.interpreter().executable);
                let missing = interpreters.find(|interpreter| !interpreter.is_file());
                missing.map_or(Ok(()), |interpreter| {
                    Err(InputError::NoInterpreter { key, interpreter: interpreter.clone() })
                })
            }
        }
    }

    /// Returns the matching files among the uploads; `None` if `path` is not in their directory.
    fn uploaded_at<'t>(&self, path: &Path, uploads: &'t UploadedFiles) -> Option<Vec<&'t UploadedFile>> {
        let namespace = LabelName::new(self.job.metadata.namespace.as_deref().unwrap_or_default()).ok()?;
        let name = path.strip_prefix(self.directories.uploads_dir(&namespace, &uploads.config_map)).ok()?.to_str()?;
        let pattern = Pattern::new(name).ok();
        let is_match = |file: &str| file == name || pattern.as_ref().is_some_and(|pattern| pattern.matches(file));
        Some(uploads.files.iter().filter(|file| is_match(file.name.as_str())).collect())
    }

    /// Returns the error of an input, with the path as the user wrote it.
    fn input_error(&self, error: DataError, found: &LocatedPaths) -> InputError {
        let missing = match &error {
            DataError::NotFound { path, .. } => Some(path.as_path()),
            DataError::NoMatch { pattern, .. } => Some(Path::new(pattern)),
            _ => None,
        };
        let mut located = found.data.iter().chain(&found.vocabularies);
        let params_path = missing.and_then(|path| located.find(|(_, location)| location == path));
        let Some((params_path, _)) = params_path else {
            return InputError::Data { key: self.key, error };
        };
        let location = self.directories.search_description(self.job, params_path);
        InputError::NotFound { key: self.key, path: params_path.clone(), location }
    }
}

/// The paths of an input, by where their files are.
#[derive(Default)]
struct LocatedPaths {
    /// Paths of data on disk: as the user wrote them, and where they are.
    data: Vec<(String, PathBuf)>,
    /// Paths of vocabularies and tokenizers on disk.
    vocabularies: Vec<(String, PathBuf)>,
    /// Data among the uploads, which are not stored yet.
    uploaded: DataSummary,
    /// The user's name of the first of them.
    first_upload: Option<String>,
    has_uploaded_vocabulary: bool,
}

impl LocatedPaths {
    fn add_uploads(&mut self, kind: &SourceKind, files: &[&UploadedFile]) {
        let first = files.first().map(|file| file.original_name().to_owned());
        self.first_upload = self.first_upload.take().or(first);
        // Empty files are not documents, as among files on disk.
        for file in files.iter().filter(|file| !file.content.is_empty()) {
            let (bytes, name) = (file.content.len() as u64, Path::new(file.name.as_str()));
            self.uploaded = self.uploaded.add(DataSummary::of_file(kind, name, bytes));
        }
    }

    /// Returns the input of the files that are on disk; `None` if these can't be read without an uploaded vocabulary.
    fn on_disk(&self, input: &InputSpec) -> Option<InputSpec> {
        let mut on_disk = input.clone();
        match &mut on_disk.source {
            // Their tokens are not counted, so any tokenizer of unknown lengths will do.
            DataSource::Text { tokenizer, .. } if self.has_uploaded_vocabulary => *tokenizer = TokenizerName::Gpt2,
            _ if self.has_uploaded_vocabulary => return None,
            _ => {}
        }
        if let Some(paths) = on_disk.paths_mut() {
            let located = self.data.iter().chain(&self.vocabularies);
            *paths = located.map(|(_, path)| path.display().to_string()).collect();
        }
        Some(on_disk)
    }
}

#[cfg(test)]
mod tests {
    use millrace_crds::{ConfigMapSource, JobVolume, MountedDir, StoredParams, TrainJobSpec};
    use millrace_params::{FileName, FlagOverrides, Mode, ObjectName, Params};

    use super::*;
    use crate::submission::UPLOADS_DIR;

    /// A job with uploads, on a server that offers a directory of inputs.
    struct Case {
        job: TrainJob,
        resolved: JobSpec,
        directories: ServerDirectories,
    }

    impl Case {
        fn new(inputs: Option<&Path>) -> Self {
            let params = Params::parse_yaml(include_str!("../../../examples/gpt2-tiny.yaml")).unwrap();
            let mut resolved = params.resolve(&FlagOverrides::default()).unwrap().job;
            resolved.run.mode = Mode::Train;
            let mut job = TrainJob::new("job", TrainJobSpec::new(1, StoredParams::default()));
            job.metadata.namespace = Some("team".to_owned());
            let config_map = Some(ConfigMapSource { name: "texts-1".to_owned() });
            job.spec.volumes = vec![JobVolume { name: "texts".to_owned(), persistent_volume_claim: None, config_map }];
            job.spec.mount_dirs =
                vec![MountedDir { path: UPLOADS_DIR.to_owned(), volume: "texts".to_owned(), sub_path: None }];
            let inputs = inputs.map(Path::to_owned);
            Self {
                job,
                resolved,
                directories: ServerDirectories { data: "/srv/data".into(), inputs, volumes: [].into() },
            }
        }

        /// Returns the result for these paths, and for uploads with these names and contents.
        fn check(&mut self, paths: &[String], uploads: &[(String, String)]) -> Result<Option<DatasetEpoch>, String> {
            *self.resolved.train_input.paths_mut().unwrap() = paths.to_vec();
            let file = |(name, content): &(String, String)| UploadedFile {
                name: FileName::new(name.clone()).unwrap(),
                content: content.clone(),
            };
            let files = uploads.iter().map(file).collect();
            let uploads = UploadedFiles { config_map: ObjectName::new("texts-1").unwrap(), files };
            check_inputs(&self.directories, &self.job, &self.resolved, Some(&uploads), LoaderPolicy::Denied)
                .map_err(|error| error.to_string())
        }
    }

    #[test]
    fn empty_upload_is_reported_by_its_own_name() {
        let mut case = Case::new(None);
        let mut check = |contents: &[String]| {
            let name = |index: usize| format!("0-{index:04}-empty-{index}.txt");
            let uploads: Vec<_> =
                contents.iter().enumerate().map(|(index, content)| (name(index), content.clone())).collect();
            let paths: Vec<_> = uploads.iter().map(|(name, _)| format!("{UPLOADS_DIR}/{name}")).collect();
            case.check(&paths, &uploads)
        };
        let error = check(&[String::new()]).unwrap_err();
        assert_eq!(error, "train_input: the uploaded file empty-0.txt is empty: give a file with text");
        assert!(check(&[String::new(), "text ".repeat(10_000)]).is_ok(), "an empty file among several, as on disk");
    }

    #[test]
    fn uploaded_tokenizer_does_not_replace_data() {
        let inputs = tempfile::tempdir().unwrap();
        std::fs::write(inputs.path().join("own.txt"), "text ".repeat(10_000)).unwrap();
        let mut case = Case::new(Some(inputs.path()));
        let DataSource::Text { tokenizer, .. } = &mut case.resolved.train_input.source else { panic!("no text") };
        *tokenizer = TokenizerName::File;
        let upload = ("1-0000-tokenizer.json".to_owned(), "{}".to_owned());
        let uploaded = format!("{UPLOADS_DIR}/{}", upload.0);
        let uploads = [upload];
        assert!(
            case.check(&["own.txt".to_owned(), uploaded.clone()], &uploads).is_ok(),
            "it is read when the job starts"
        );
        let error = case.check(&["gone.txt".to_owned(), uploaded], &uploads).unwrap_err();
        assert!(error.contains("file gone.txt not found"), "{error}");
        std::fs::write(inputs.path().join("tokenizer.json"), "{}").unwrap();
        let error = case.check(&["own.txt".to_owned(), "tokenizer.json".to_owned()], &[]).unwrap_err();
        assert!(error.contains("is not a tokenizer.json"), "{error}");
        let error = case.check(&["own.txt".to_owned(), "no.json".to_owned()], &[]).unwrap_err();
        assert!(error.contains("file no.json not found"), "{error}");
    }
}
