//! Packages of Python datasets: a directory that a client writes, and that workers in Python read samples of.
//!
//! ```text
//! train/manifest.json    what the samples consist of, and how the dataset is created
//! train/code.zip         the modules that the dataset needs
//! train/dataset.pickle   the dataset, unless a function creates it
//! ```
//!
//! The samples of a dataset have numbers, or it can only be iterated over: a *stream*, whose sample n is the n-th that
//! its iterator returns, which begins again at its end.
//!
//! Only `manifest.json` is read here: how many samples there are and what they contain is known without Python. The
//! samples themselves come from a [`SampleReader`], which only activation servers have.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::DataError;
use crate::dataset::{ElementType, SampleInput};
use crate::order::SampleOrder;
use crate::permute::key;

/// The file of a package that describes it.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Files of a package that are part of its fingerprint.
const CONTENT_FILES: [&str; 3] = [MANIFEST_FILE, "code.zip", "dataset.pickle"];
/// Version of the manifest of a dataset whose samples have numbers.
const NUMBERED_VERSION: u32 = 1;
/// Version of the manifest of a stream.
const STREAM_VERSION: u32 = 2;
/// Maximum number of samples, and that of a stream. Larger numbers have no exact f64, in which shares of the samples
/// are computed.
const MAX_SAMPLES: u64 = 1 << 53;
/// Maximum bytes of a manifest.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;
/// Maximum number of inputs: as many as a graph may have.
const MAX_INPUTS: usize = 64;
/// Maximum dimensions of an input.
const MAX_DIMENSIONS: usize = 64;
/// Maximum bytes of a sample. Every sample of a batch is in memory.
const MAX_SAMPLE_BYTES: usize = 1 << 30;
/// Maximum number of worker processes that a package may request.
const MAX_WORKERS: u16 = 256;
/// Number of worker processes of a package that requests none.
const DEFAULT_WORKERS: u16 = 2;
/// Time to read one sample, unless a package gives another, and at most.
const DEFAULT_SAMPLE_TIMEOUT: Duration = Duration::from_secs(300);
const MAX_SAMPLE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Why a Python dataset can't be used, as the end of a sentence that names its package.
#[derive(Debug, thiserror::Error)]
pub enum PythonProblem {
    #[error("is not a package of a Python dataset: {0}")]
    Manifest(serde_json::Error),
    #[error("has a manifest of more than {MAX_MANIFEST_BYTES} bytes")]
    ManifestSize,
    #[error("has a manifest of version {0}; this release reads versions {NUMBERED_VERSION} and {STREAM_VERSION}")]
    Version(u32),
    #[error("has no samples, or more than can be counted")]
    Samples,
    #[error("has {0} inputs; expected 1 to {MAX_INPUTS}")]
    Inputs(usize),
    #[error("has an input {0:?} without a usable name, type or shape")]
    Input(String),
    #[error("can only be iterated over, so that its samples can't be shuffled or divided")]
    StreamOrder,
    #[error("can only be read by activation servers")]
    NoReader,
    /// The worker processes can't be started, or the dataset can't be created.
    #[error("can't be opened: {0}")]
    Open(String),
    /// The code of the dataset raised an exception, or returned what the graph does not read.
    #[error("failed at sample {sample}: {message}")]
    Sample {
        /// Index of the sample in the dataset.
        sample: u64,
        /// The exception, with the Python traceback if there is one.
        message: String,
    },
}

impl PythonProblem {
    /// Returns what the user can do about the problem.
    pub(crate) const fn hint(&self) -> &'static str {
        match self {
            Self::Manifest(_) | Self::ManifestSize | Self::Samples | Self::Inputs(_) | Self::Input(_) => {
                "write the package with the Python client, for example by Appliance.train(data=dataset)"
            }
            Self::StreamOrder => {
                "set shuffle to False, and use the whole stream: shuffle and divide it in the iterator"
            }
            Self::Version(_) => "use a client of the appliance's release",
            Self::NoReader => "train with it, or look at its samples in Python",
            Self::Open(_) => "the interpreter needs the packages that the dataset imports, and its data files",
            Self::Sample { .. } => "correct the dataset's __getitem__, or the sample that it reads",
        }
    }
}

/// Reads samples of a Python dataset.
pub trait SampleReader: Send + Sync {
    /// Reads samples: for each input of the package its elements, sample after sample, each of four bytes,
    /// little-endian. Blocks.
    ///
    /// # Errors
    /// The dataset can't be opened, or a sample can't be read.
    fn read(&self, samples: &[SampleNumber]) -> Result<Vec<Vec<u8>>, PythonProblem>;
}

/// A sample of a Python dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleNumber {
    /// Index in the dataset.
    pub index: u64,
    /// Seed of the global random number generators while the sample is read. It differs between passes.
    pub seed: u64,
}

/// The package of a Python dataset.
#[derive(Clone, Debug)]
pub struct PythonPackage {
    directory: PathBuf,
    samples: u64,
    manifest: Manifest,
    inputs: Vec<SampleInput>,
}

/// The parts of `manifest.json` that this crate reads; the other parts are for the workers.
#[derive(Clone, Debug, Deserialize)]
struct Manifest {
    version: u32,
    python: Interpreter,
    /// Of a stream `None`.
    #[serde(default)]
    samples: Option<u64>,
    inputs: Vec<ManifestInput>,
    #[serde(default)]
    workers: Option<u16>,
    #[serde(default)]
    timeout_seconds: Option<u32>,
}

/// The interpreter that wrote a package.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Interpreter {
    /// Version, such as `3.12`. Pickled functions can be read by the same version only.
    pub version: String,
    /// Path on the machine of the client.
    pub executable: PathBuf,
}

#[derive(Clone, Debug, Deserialize)]
struct ManifestInput {
    name: String,
    #[serde(rename = "type")]
    element_type: String,
    shape: Vec<usize>,
}

impl PythonPackage {
    /// Reads the manifest of the package in `directory`.
    ///
    /// # Errors
    /// It can't be read, or is not valid.
    pub fn open(directory: &Path) -> Result<Self, DataError> {
        let path = directory.join(MANIFEST_FILE);
        let read = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => {
                DataError::NotFound { path: path.clone(), cwd: crate::files::working_directory() }
            }
            _ => DataError::Read { path: path.clone(), source },
        };
        let mut text = Vec::new();
        let file = millrace_roots::open(&path).map_err(read)?;
        file.take(MAX_MANIFEST_BYTES + 1).read_to_end(&mut text).map_err(read)?;
        let checked = Self::parse(directory, &text);
        checked.map_err(|problem| DataError::Python { path: directory.to_owned(), problem })
    }

    /// Parses the manifest `text` of a package in `directory`.
    ///
    /// # Errors
    /// It is not valid.
    pub fn parse(directory: &Path, text: &[u8]) -> Result<Self, PythonProblem> {
        if text.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(PythonProblem::ManifestSize);
        }
        let manifest: Manifest = serde_json::from_slice(text).map_err(PythonProblem::Manifest)?;
        let samples = match (manifest.version, manifest.samples) {
            (NUMBERED_VERSION, Some(samples)) => samples,
            (STREAM_VERSION, None) => MAX_SAMPLES,
            (NUMBERED_VERSION | STREAM_VERSION, _) => return Err(PythonProblem::Samples),
            (version, _) => return Err(PythonProblem::Version(version)),
        };
        if !(1..=MAX_SAMPLES).contains(&samples) {
            return Err(PythonProblem::Samples);
        }
        if !(1..=MAX_INPUTS).contains(&manifest.inputs.len()) {
            return Err(PythonProblem::Inputs(manifest.inputs.len()));
        }
        let inputs = manifest.inputs.iter().map(sample_input).collect::<Result<Vec<_>, _>>()?;
        let bytes = inputs.iter().fold(0_usize, |bytes, input| bytes.saturating_add(input.bytes()));
        if let (true, Some(first)) = (bytes > MAX_SAMPLE_BYTES, inputs.first()) {
            return Err(PythonProblem::Input(first.name.clone()));
        }
        Ok(Self { directory: directory.to_owned(), samples, manifest, inputs })
    }

    /// Returns the directory of the package.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the interpreter that wrote the package.
    pub const fn interpreter(&self) -> &Interpreter {
        &self.manifest.python
    }

    /// Returns what a sample consists of.
    pub fn inputs(&self) -> &[SampleInput] {
        &self.inputs
    }

    /// Returns the bytes of a sample of each input.
    pub fn input_bytes(&self) -> impl Iterator<Item = usize> {
        self.inputs.iter().map(SampleInput::bytes)
    }

    /// Returns the number of samples of the dataset; of a stream, which does not end, the largest that is supported.
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns whether the dataset can only be iterated over.
    pub const fn is_stream(&self) -> bool {
        self.manifest.samples.is_none()
    }

    /// Returns the number of worker processes of each activation server, at least 1.
    pub fn workers(&self) -> u16 {
        self.manifest.workers.unwrap_or(DEFAULT_WORKERS).clamp(1, MAX_WORKERS)
    }

    /// Returns the time for reading one sample, after which a worker counts as hung; at least 1 s.
    pub fn sample_timeout(&self) -> Duration {
        let requested = self.manifest.timeout_seconds.map(|seconds| Duration::from_secs(seconds.max(1).into()));
        requested.unwrap_or(DEFAULT_SAMPLE_TIMEOUT).min(MAX_SAMPLE_TIMEOUT)
    }

    /// Adds the content of the package to `hasher`. Data files that the dataset reads are not part of it.
    fn hash(&self, hasher: &mut blake3::Hasher) -> Result<(), DataError> {
        for name in CONTENT_FILES {
            let path = self.directory.join(name);
            match millrace_roots::open(&path) {
                Ok(file) => {
                    let mut content = blake3::Hasher::new();
                    content.update_reader(file).map_err(|source| DataError::Read { path, source })?;
                    hasher.update(name.as_bytes()).update(content.finalize().as_bytes());
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(DataError::Read { path, source }),
            }
        }
        Ok(())
    }
}

fn sample_input(input: &ManifestInput) -> Result<SampleInput, PythonProblem> {
    let fault = || PythonProblem::Input(input.name.clone());
    let element_type = match input.element_type.as_str() {
        "f32" => ElementType::F32,
        "i32" => ElementType::I32,
        _ => return Err(fault()),
    };
    let is_named = !input.name.is_empty() && input.name.len() <= 256 && !input.name.contains(char::is_control);
    let is_empty = input.shape.contains(&0);
    if !is_named || is_empty || input.shape.len() > MAX_DIMENSIONS {
        return Err(fault());
    }
    Ok(SampleInput { name: input.name.clone(), element_type, shape: input.shape.clone() })
}

/// A Python dataset in the order in which its samples are read.
pub(crate) struct PythonSource {
    pub(crate) package: PythonPackage,
    pub(crate) order: SampleOrder,
    seed: u64,
    pub(crate) fingerprint: [u8; 32],
    pub(crate) reader: Option<Arc<dyn SampleReader>>,
}

impl PythonSource {
    /// Returns the dataset in this order, which must be that of the iterator for a stream.
    pub(crate) fn new(package: PythonPackage, order: SampleOrder, seed: u64) -> Result<Self, DataError> {
        let mut hasher = blake3::Hasher::new_derive_key("millrace python dataset, version 1");
        package.hash(&mut hasher)?;
        order.hash(&mut hasher);
        hasher.update(&seed.to_le_bytes());
        Ok(Self { package, order, seed, fingerprint: *hasher.finalize().as_bytes(), reader: None })
    }

    /// Reads `count` samples from number `first` on; see [`Dataset::read`](crate::Dataset::read).
    pub(crate) fn read(&self, first: u64, count: u32) -> Result<Vec<Vec<u8>>, DataError> {
        let numbers = (0..u64::from(count)).map(|offset| first.saturating_add(offset));
        // The seed depends on the number of the sample since the start of training.
        let samples: Vec<_> =
            numbers.map(|n| SampleNumber { index: self.order.window(n), seed: key(self.seed, n) }).collect();
        let read = self.reader.as_ref().ok_or(PythonProblem::NoReader).and_then(|reader| reader.read(&samples));
        read.map_err(|problem| DataError::Python { path: self.package.directory.clone(), problem })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest() -> serde_json::Value {
        json!({
            "version": 1,
            "python": {"version": "3.12", "executable": "/usr/bin/python3"},
            "samples": 10,
            "inputs": [{"name": "x", "type": "f32", "shape": [3, 2]}, {"name": "labels", "type": "i32", "shape": []}],
            "dataset": {"pickle": "dataset.pickle"},
        })
    }

    #[test]
    fn invalid_manifests_are_rejected_by_their_fault() {
        let parse = |value: serde_json::Value| PythonPackage::parse(Path::new("train"), value.to_string().as_bytes());
        let package = parse(manifest()).unwrap();
        assert_eq!((package.samples(), package.workers(), package.inputs().len()), (10, DEFAULT_WORKERS, 2));
        for (pointer, value, part) in [
            ("/samples", json!(0), "no samples"),
            ("/samples", json!(u64::MAX), "no samples"),
            ("/samples", json!(null), "no samples"),
            ("/version", json!(2), "no samples"),
            ("/version", json!(3), "version 3"),
            ("/inputs", json!([]), "0 inputs"),
            ("/inputs/0/type", json!("f64"), "\"x\" without"),
            ("/inputs/0/shape", json!([0]), "\"x\" without"),
            ("/inputs/0/shape", json!([1_u64 << 40, 1_u64 << 40]), "\"x\" without"),
            ("/inputs/1/name", json!("a\nb"), "without a usable name"),
            ("/python", json!(null), "is not a package"),
        ] {
            let mut changed = manifest();
            *changed.pointer_mut(pointer).unwrap() = value;
            let error = parse(changed).unwrap_err().to_string();
            assert!(error.contains(part), "{error} does not contain {part:?}");
        }
        assert!(matches!(PythonPackage::parse(Path::new("train"), b"["), Err(PythonProblem::Manifest(_))));
        let mut stream = manifest();
        (stream["version"], stream["samples"]) = (json!(2), json!(null));
        assert!(parse(stream).unwrap().is_stream());
    }

    /// Returns the number and the seed of each sample as its elements.
    struct Numbers;

    impl SampleReader for Numbers {
        fn read(&self, samples: &[SampleNumber]) -> Result<Vec<Vec<u8>>, PythonProblem> {
            let bytes = |field: fn(&SampleNumber) -> u64| samples.iter().flat_map(|s| field(s).to_le_bytes()).collect();
            Ok(vec![bytes(|sample| sample.index), bytes(|sample| sample.seed)])
        }
    }

    #[test]
    fn sample_is_a_function_of_seed_and_number() {
        let source = |seed| {
            let package = PythonPackage::parse(Path::new("train"), manifest().to_string().as_bytes()).unwrap();
            let order = SampleOrder::new(0..10, &[], None, Some(seed)).unwrap();
            PythonSource { reader: Some(Arc::new(Numbers)), ..PythonSource::new(package, order, seed).unwrap() }
        };
        let all = source(1).read(0, 20).unwrap();
        let [first, second] = [source(1).read(0, 7).unwrap(), source(1).read(7, 13).unwrap()];
        for (index, array) in all.iter().enumerate() {
            assert_eq!(*array, [&*first[index], &*second[index]].concat());
        }
        assert_ne!(all[1][..80], all[1][80..], "another seed in each pass");
        assert_ne!(all[1], source(2).read(0, 20).unwrap()[1]);
        let closed = PythonSource { reader: None, ..source(1) };
        assert!(closed.read(0, 1).unwrap_err().to_string().contains("activation servers"));
    }
}
