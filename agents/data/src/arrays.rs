//! NumPy arrays: a directory with a file `NAME.npy` for each input of a model.
//!
//! ```text
//! train/image.npy    float32 (60000, 1, 28, 28)
//! train/labels.npy   int64   (60000,)
//! ```
//!
//! The first dimension of every array counts samples. Floating-point numbers are converted to f32; integers and truth
//! values to i32, which must contain them. Several directories follow each other; all have the same arrays. Files are
//! read sample by sample and may be larger than the memory.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::DataError;
use crate::dataset::{ElementType, SampleInput};
use crate::hdf5::SampleProblem;
use crate::npy::{NpyElement, NpyProblem, is_npy, read_npy_header};

/// Maximum number of arrays: as many inputs as a graph may have.
const MAX_ARRAYS: usize = 64;
/// Maximum bytes of a sample in one file. Every sample of a batch is read into memory.
const MAX_SAMPLE_BYTES: u64 = 1 << 30;

/// Why directories of arrays can't be used, as the end of a sentence that names the directory.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrayProblem {
    #[error("are missing: it contains no .npy file")]
    None,
    #[error("are {0}; at most {MAX_ARRAYS} are supported")]
    TooMany(usize),
    #[error("have different numbers of samples: {array} has {found}, and the first array {expected}")]
    Samples { array: String, found: u64, expected: u64 },
    #[error("have samples of more than {MAX_SAMPLE_BYTES} bytes ({0})")]
    SampleBytes(String),
    #[error("have other names, types or shapes of samples than those of the first directory")]
    Different,
}

impl ArrayProblem {
    /// Returns what the user can do about the problem.
    pub(crate) const fn hint(&self) -> &'static str {
        match self {
            Self::None => "write a file NAME.npy for each input of the model's graph",
            Self::TooMany(_) => "keep the arrays that the model reads in a directory of their own",
            Self::Samples { .. } => "write all arrays with the same first dimension",
            Self::SampleBytes(_) => "the first dimension counts samples: add it",
            Self::Different => "write all directories alike",
        }
    }
}

/// Open directories of arrays.
pub(crate) struct ArrayStore {
    inputs: Vec<SampleInput>,
    directories: Vec<ArrayDirectory>,
    samples: u64,
}

struct ArrayDirectory {
    /// The arrays, in the order of `inputs`.
    files: Vec<ArrayFile>,
    samples: u64,
}

struct ArrayFile {
    path: PathBuf,
    file: File,
    /// Bytes before the first element.
    header: u64,
    element: NpyElement,
    samples: u64,
    /// Elements of a sample.
    width: usize,
}

impl ArrayStore {
    /// Opens the arrays in these directories, and reads their headers.
    pub(crate) fn open(paths: &[String]) -> Result<Self, DataError> {
        let mut store = Self { inputs: Vec::new(), directories: Vec::new(), samples: 0 };
        for path in paths.iter().map(Path::new) {
            let (inputs, directory) = open_directory(path)?;
            if store.directories.is_empty() {
                store.inputs = inputs;
            } else if store.inputs != inputs {
                return Err(DataError::Arrays { path: path.into(), problem: ArrayProblem::Different });
            }
            store.samples = store.samples.saturating_add(directory.samples);
            store.directories.push(directory);
        }
        if store.directories.is_empty() { Err(DataError::NoPaths) } else { Ok(store) }
    }

    /// Returns the number of samples.
    pub(crate) fn count(&self) -> u64 {
        self.samples
    }

    /// Returns the arrays of a sample, sorted by name.
    pub(crate) fn inputs(&self) -> &[SampleInput] {
        &self.inputs
    }

    /// Returns the number of files and their bytes.
    pub(crate) fn size(&self) -> [u64; 2] {
        let files = self.directories.iter().flat_map(|directory| &directory.files);
        files.fold([0, 0], |[count, bytes], file| {
            let elements = file.samples.saturating_mul(file.sample_bytes() as u64);
            [count + 1, bytes.saturating_add(file.header).saturating_add(elements)]
        })
    }

    /// Appends sample `number`, which must exist, to `arrays`: for each of [`ArrayStore::inputs`] its elements, each of
    /// four bytes, little-endian.
    pub(crate) fn read(&self, mut number: u64, arrays: &mut [Vec<u8>]) -> Result<(), DataError> {
        for directory in &self.directories {
            if number < directory.samples {
                let files = directory.files.iter().zip(arrays);
                return files.into_iter().try_for_each(|(file, array)| file.read(number, array));
            }
            number -= directory.samples;
        }
        Ok(())
    }

    /// Adds names, types, shapes and sizes of the arrays to `hasher`, but not their elements, which may be too many to
    /// be read.
    pub(crate) fn hash(&self, hasher: &mut blake3::Hasher) {
        for input in &self.inputs {
            hasher.update(format!("{input:?}").as_bytes());
        }
        for directory in &self.directories {
            hasher.update(&directory.samples.to_le_bytes());
            for file in &directory.files {
                hasher.update(format!("{:?}", file.element).as_bytes());
            }
        }
    }
}

fn open_directory(path: &Path) -> Result<(Vec<SampleInput>, ArrayDirectory), DataError> {
    let fault = |problem| DataError::Arrays { path: path.into(), problem };
    let read = |source| DataError::Read { path: path.into(), source };
    let entries = millrace_roots::read_dir(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => {
            DataError::NotFound { path: path.into(), cwd: crate::files::working_directory() }
        }
        _ => read(source),
    })?;
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path).filter(|path| is_npy(path)).collect();
    paths.sort();
    if paths.is_empty() || paths.len() > MAX_ARRAYS {
        return Err(fault(if paths.is_empty() { ArrayProblem::None } else { ArrayProblem::TooMany(paths.len()) }));
    }
    let arrays = paths.iter().map(|path| ArrayFile::open(path)).collect::<Result<Vec<_>, _>>()?;
    let (inputs, files): (Vec<SampleInput>, Vec<ArrayFile>) = arrays.into_iter().unzip();
    let named_files = || inputs.iter().zip(&files);
    if let Some((input, _)) = named_files().find(|(_, file)| file.sample_bytes() as u64 > MAX_SAMPLE_BYTES) {
        return Err(fault(ArrayProblem::SampleBytes(input.name.clone())));
    }
    let samples = files.first().map_or(0, |file| file.samples);
    if let Some((input, file)) = named_files().find(|(_, file)| file.samples != samples) {
        let (array, found) = (input.name.clone(), file.samples);
        return Err(fault(ArrayProblem::Samples { array, found, expected: samples }));
    }
    Ok((inputs, ArrayDirectory { files, samples }))
}

impl ArrayFile {
    /// Opens an array, whose name is that of its file.
    fn open(path: &Path) -> Result<(SampleInput, Self), DataError> {
        let header = read_npy_header(path)?;
        let fault = |problem| DataError::Npy { path: path.into(), problem };
        let (&samples, shape) = header.shape.split_first().ok_or_else(|| fault(NpyProblem::NoDimensions))?;
        let shape = shape.iter().map(|&size| usize::try_from(size)).collect::<Result<Vec<_>, _>>();
        let shape = shape.map_err(|_| fault(NpyProblem::Shape))?;
        let width = shape.iter().try_fold(1usize, |width, size| width.checked_mul(*size));
        let width = width.ok_or_else(|| fault(NpyProblem::Shape))?;
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let element_type = if header.element.is_float() { ElementType::F32 } else { ElementType::I32 };
        let file = millrace_roots::open(path).map_err(|source| DataError::Read { path: path.into(), source })?;
        let (header, element) = (header.bytes as u64, header.element);
        let array = Self { path: path.into(), file, header, element, samples, width };
        Ok((SampleInput { name, element_type, shape }, array))
    }

    /// Returns the bytes of a sample in the file.
    fn sample_bytes(&self) -> usize {
        self.width.saturating_mul(self.element.bytes())
    }

    /// Appends the elements of sample `number` to `array`.
    fn read(&self, number: u64, array: &mut Vec<u8>) -> Result<(), DataError> {
        let mut bytes = vec![0; self.sample_bytes()];
        let offset = self.header.saturating_add(number.saturating_mul(bytes.len() as u64));
        let read = |source| DataError::Read { path: self.path.clone(), source };
        self.file.read_exact_at(&mut bytes, offset).map_err(read)?;
        append_elements(self.element, &bytes, array).map_err(|value| DataError::BadSample {
            path: self.path.clone(),
            unit: "sample",
            number,
            problem: SampleProblem::IntegerTooLarge { value },
        })
    }
}

/// Appends elements as f32 or i32.
///
/// # Errors
/// An integer does not fit; returns it.
fn append_elements(element: NpyElement, bytes: &[u8], array: &mut Vec<u8>) -> Result<(), i128> {
    fn each<const N: usize>(bytes: &[u8], array: &mut Vec<u8>, convert: impl Fn([u8; N]) -> [u8; 4]) {
        array.extend(bytes.as_chunks::<N>().0.iter().flat_map(|bytes| convert(*bytes)));
    }
    fn wide<const N: usize>(bytes: &[u8], array: &mut Vec<u8>, number: impl Fn([u8; N]) -> i128) -> Result<(), i128> {
        for bytes in bytes.as_chunks::<N>().0 {
            let number = number(*bytes);
            array.extend(i32::try_from(number).map_err(|_| number)?.to_le_bytes());
        }
        Ok(())
    }
    match element {
        NpyElement::F32 | NpyElement::I32 => array.extend_from_slice(bytes),
        NpyElement::F64 => each(bytes, array, |bytes| (f64::from_le_bytes(bytes) as f32).to_le_bytes()),
        NpyElement::Bool => each(bytes, array, |[byte]| i32::from(byte != 0).to_le_bytes()),
        NpyElement::U8 => each(bytes, array, |[byte]| i32::from(byte).to_le_bytes()),
        NpyElement::I8 => each(bytes, array, |bytes| i32::from(i8::from_le_bytes(bytes)).to_le_bytes()),
        NpyElement::I16 => each(bytes, array, |bytes| i32::from(i16::from_le_bytes(bytes)).to_le_bytes()),
        NpyElement::U16 => each(bytes, array, |bytes| i32::from(u16::from_le_bytes(bytes)).to_le_bytes()),
        NpyElement::U32 => return wide(bytes, array, |bytes| u32::from_le_bytes(bytes).into()),
        NpyElement::I64 => return wide(bytes, array, |bytes| i64::from_le_bytes(bytes).into()),
        NpyElement::U64 => return wide(bytes, array, |bytes| u64::from_le_bytes(bytes).into()),
    }
    Ok(())
}
