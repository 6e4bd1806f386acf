//! One open HDF5 file with a dataset `data`, and perhaps one of labels.
//!
//! * Opening reads the file's headers only. Reading reads the chunks that contain the requested values, by positional
//!   reads: a file of any size needs the memory of a few chunks.
//! * A panic of the reader does not leave this module: it is reported as a damaged file.
//! * Links to other files are not followed.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use hdf5_reader::error::Error as ReadError;
use hdf5_reader::{Dataset, Datatype, FileStorage, H5Type, Hdf5File, OpenOptions, SliceInfo, SliceInfoElem, Storage};

use super::problem::{Hdf5Problem, Hdf5ReadError};
use crate::DataError;
use crate::error::HDF5_FILE;
use crate::inspect::detect_format;

/// Name of the dataset in the root group.
pub(super) const DATASET: &str = "data";
/// Rows of a sample: input_ids, loss mask, labels.
pub(crate) const SAMPLE_ROWS: u64 = 3;
/// Rows of a sample of packed sequences: also attention spans and positions.
const PACKED_ROWS: u64 = 5;
/// Rows of a sample of an encoder whose labels are in a dataset of their own: input_ids, attention mask.
const UNLABELED_ROWS: u64 = 2;
/// Rows of such a sample of packed sequences.
const UNLABELED_PACKED_ROWS: u64 = 4;
/// Name of the dataset with the labels of these samples.
const LABELS: &str = "labels";
/// Rows of labels for all tokens.
const LABEL_ROWS: u64 = 1;
/// Rows of labels for some tokens: also their positions, and whether they count.
pub(super) const GATHERED_LABEL_ROWS: u64 = 3;
/// Decoded chunks that a file keeps. h5py chooses chunks of at most 1 MiB for a corpus.
const CHUNK_CACHE_BYTES: usize = 4 << 20;
/// Maximum bytes of a decoded chunk. Writers choose up to a few MiB; the bound keeps a damaged header from allocating
/// all memory.
const MAX_CHUNK_BYTES: usize = 256 << 20;
/// Maximum bytes of one read: a sample of 2^22 tokens, the longest that params accept, has 48 MiB.
const MAX_READ_BYTES: usize = 64 << 20;
/// Maximum bytes of the headers of an object; real ones have a few KiB.
const MAX_OBJECT_HEADER_BYTES: usize = 1 << 20;
/// An address that a file does not state.
const UNDEFINED_ADDRESS: u64 = u64::MAX;
/// Maximum names of other datasets in a message.
const MAX_LISTED_DATASETS: usize = 4;

/// The format and size of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileShape {
    /// Samples of three rows: int32 of shape (samples, 3, length).
    Samples { samples: u64, length: u64 },
    /// Samples of several sequences, of five rows: int32 of shape (samples, 5, length).
    Packed { samples: u64, length: u64 },
    /// Samples of an encoder whose labels are in a dataset of their own: int32 of shape (samples, 2, length), or of 4
    /// rows if they are packed.
    Unlabeled { samples: u64, length: u64, is_packed: bool },
    /// A stream of tokens: unsigned integers of shape (tokens).
    Corpus { tokens: u64, token_bytes: u32 },
}

impl FileShape {
    /// Returns the format as part of a sentence.
    pub(crate) fn format_name(self) -> &'static str {
        match self {
            Self::Samples { .. } => "samples",
            Self::Packed { .. } => "packed samples",
            Self::Unlabeled { is_packed: false, .. } => "samples of an encoder",
            Self::Unlabeled { is_packed: true, .. } => "packed samples of an encoder",
            Self::Corpus { .. } => "a corpus",
        }
    }

    /// Returns the rows of a sample; 0 for a corpus.
    pub(crate) fn rows(self) -> u64 {
        match self {
            Self::Samples { .. } => SAMPLE_ROWS,
            Self::Packed { .. } => PACKED_ROWS,
            Self::Unlabeled { is_packed: false, .. } => UNLABELED_ROWS,
            Self::Unlabeled { is_packed: true, .. } => UNLABELED_PACKED_ROWS,
            Self::Corpus { .. } => 0,
        }
    }
}

/// An open file.
pub(crate) struct DataFile {
    dataset: Dataset,
    /// The labels of an encoder's samples, if they are not among their rows.
    labels: Option<LabelDataset>,
    pub(crate) shape: FileShape,
}

struct LabelDataset {
    dataset: Dataset,
    rows: u64,
    /// Number of labels of a sample.
    count: u64,
}

impl DataFile {
    /// Opens a file and checks the type and the shape of its dataset.
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let read = |source| DataError::Read { path: path.into(), source };
        let file = millrace_roots::open(path).map_err(read)?;
        let bytes = file.metadata().map_err(read)?.len();
        let problem = |problem| DataError::Hdf5 { path: path.into(), problem };
        let damaged = |error| problem(Hdf5Problem::Damaged(error));
        let storage: Arc<dyn Storage> = Arc::new(guarded(|| FileStorage::from_file(file)).map_err(damaged)?);
        let options = OpenOptions::default()
            .with_chunk_cache_bytes(CHUNK_CACHE_BYTES)
            .with_max_chunk_bytes(MAX_CHUNK_BYTES)
            .with_max_read_bytes(MAX_READ_BYTES)
            .with_max_object_header_bytes(MAX_OBJECT_HEADER_BYTES);
        let opened = guarded(|| Hdf5File::from_storage_with_options(storage, options));
        let file = opened.map_err(|error| match error {
            Hdf5ReadError::Rejected(error) if matches!(*error, ReadError::InvalidMagic) => not_hdf5(path),
            other => damaged(other),
        })?;
        let expected = file.superblock().eof_address;
        if expected != UNDEFINED_ADDRESS && expected > bytes {
            return Err(problem(Hdf5Problem::Truncated { bytes, expected }));
        }
        let dataset = guarded(|| file.dataset(DATASET)).map_err(|error| problem(missing_dataset(&file, error)))?;
        let shape = shape_of(&dataset).map_err(problem)?;
        let labels = match shape {
            FileShape::Unlabeled { samples, length, .. } => {
                let labels = guarded(|| file.dataset(LABELS)).map_err(|_| problem(Hdf5Problem::NoLabels))?;
                Some(labels_of(labels, samples, length).ok_or_else(|| problem(Hdf5Problem::NoLabels))?)
            }
            _ => None,
        };
        Ok(Self { dataset, labels, shape })
    }

    /// Returns the values of one sample, row after row.
    pub(crate) fn read_sample(&self, sample: u64, length: usize) -> Result<Vec<i32>, Hdf5ReadError> {
        let all = SliceInfoElem::Slice { start: 0, end: u64::MAX, step: 1 };
        let selection = vec![SliceInfoElem::Index(sample), all.clone(), all];
        self.read(&self.dataset, selection, self.shape.rows() as usize * length, |value| value)
    }

    /// Returns the labels of one sample, row after row, and the number of rows; `None` if they are among its rows.
    pub(crate) fn read_labels(&self, sample: u64) -> Result<Option<(u64, Vec<i32>)>, Hdf5ReadError> {
        let Some(LabelDataset { dataset, rows, count }) = &self.labels else { return Ok(None) };
        let all = SliceInfoElem::Slice { start: 0, end: u64::MAX, step: 1 };
        let selection = vec![SliceInfoElem::Index(sample), all.clone(), all];
        let values = self.read(dataset, selection, (rows * count) as usize, |value| value)?;
        Ok(Some((*rows, values)))
    }

    /// Returns the tokens of a range.
    pub(crate) fn read_tokens(&self, range: Range<u64>) -> Result<Vec<u32>, Hdf5ReadError> {
        let count = (range.end - range.start) as usize;
        let selection = vec![SliceInfoElem::Slice { start: range.start, end: range.end, step: 1 }];
        match self.shape {
            FileShape::Corpus { token_bytes: 1, .. } => self.read::<u8, _>(&self.dataset, selection, count, u32::from),
            FileShape::Corpus { token_bytes: 2, .. } => self.read::<u16, _>(&self.dataset, selection, count, u32::from),
            _ => self.read(&self.dataset, selection, count, |value: u32| value),
        }
    }

    fn read<T: H5Type + Copy, V>(
        &self,
        dataset: &Dataset,
        selections: Vec<SliceInfoElem>,
        expected: usize,
        convert: impl Fn(T) -> V,
    ) -> Result<Vec<V>, Hdf5ReadError> {
        let selection = SliceInfo { selections };
        let values = guarded(|| dataset.read_slice::<T>(&selection))?;
        if values.len() != expected {
            return Err(Hdf5ReadError::WrongCount { found: values.len(), expected });
        }
        Ok(values.iter().map(|value| convert(*value)).collect())
    }
}

/// Calls the reader. A panic becomes an error; the caller must not use the file again.
fn guarded<T>(read: impl FnOnce() -> Result<T, ReadError>) -> Result<T, Hdf5ReadError> {
    // The file is dropped after an error, so nothing observes a state that the panic left behind.
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(result) => result.map_err(|error| Hdf5ReadError::Rejected(Box::new(root_cause(error)))),
        Err(_) => Err(Hdf5ReadError::Panicked),
    }
}

/// Removes the names of objects from an error: there is only one dataset.
fn root_cause(mut error: ReadError) -> ReadError {
    while let ReadError::Context { source, .. } = error {
        error = *source;
    }
    error
}

fn not_hdf5(path: &Path) -> DataError {
    let found = detect_format(path).unwrap_or("of another format");
    DataError::WrongFormat { path: path.into(), found, expected: HDF5_FILE }
}

/// Finds out why the dataset can't be opened.
fn missing_dataset(file: &Hdf5File, error: Hdf5ReadError) -> Hdf5Problem {
    let members = guarded(|| file.root_group()?.member_names());
    match members {
        Ok((groups, _)) if groups.iter().any(|name| name == DATASET) => Hdf5Problem::IsGroup,
        Ok((_, datasets)) if !datasets.iter().any(|name| name == DATASET) => {
            let mut listed: Vec<String> = datasets.iter().map(|name| format!("{name:?}")).collect();
            if listed.len() > MAX_LISTED_DATASETS {
                let more = listed.split_off(MAX_LISTED_DATASETS).len();
                listed.push(format!("{more} more"));
            }
            let found = match listed.is_empty() {
                true => "it has none in its root group".to_owned(),
                false => format!("it has {}", listed.join(", ")),
            };
            Hdf5Problem::NoDataset { found }
        }
        _ => Hdf5Problem::Damaged(error),
    }
}

/// Checks type and shape of a dataset.
fn shape_of(dataset: &Dataset) -> Result<FileShape, Hdf5Problem> {
    let wrong_type = |expected| Hdf5Problem::WrongType { found: type_name(dataset.dtype()), expected };
    match (dataset.shape(), dataset.dtype()) {
        (&[samples, SAMPLE_ROWS, length], Datatype::FixedPoint { size: 4, signed: true, .. }) => {
            Ok(FileShape::Samples { samples, length })
        }
        (&[samples, PACKED_ROWS, length], Datatype::FixedPoint { size: 4, signed: true, .. }) => {
            Ok(FileShape::Packed { samples, length })
        }
        (
            &[samples, rows @ (UNLABELED_ROWS | UNLABELED_PACKED_ROWS), length],
            Datatype::FixedPoint { size: 4, signed: true, .. },
        ) => Ok(FileShape::Unlabeled { samples, length, is_packed: rows == UNLABELED_PACKED_ROWS }),
        (&[_, SAMPLE_ROWS | PACKED_ROWS | UNLABELED_ROWS | UNLABELED_PACKED_ROWS, _], _) => {
            Err(wrong_type("samples of int32"))
        }
        (&[tokens], Datatype::FixedPoint { size: size @ (1 | 2 | 4), signed: false, .. }) => {
            Ok(FileShape::Corpus { tokens, token_bytes: u32::from(*size) })
        }
        (&[_], _) => Err(wrong_type("a corpus of uint8, uint16 or uint32")),
        (shape, _) => Err(Hdf5Problem::WrongShape { found: shape.to_vec() }),
    }
}

/// Returns the labels of `samples` samples, if the dataset has their shape and type.
fn labels_of(dataset: Dataset, samples: u64, length: u64) -> Option<LabelDataset> {
    let Datatype::FixedPoint { size: 4, signed: true, .. } = dataset.dtype() else { return None };
    let (rows, count) = match *dataset.shape() {
        [found, LABEL_ROWS, count] if found == samples && count == length => (LABEL_ROWS, count),
        [found, GATHERED_LABEL_ROWS, count] if found == samples && count <= length => (GATHERED_LABEL_ROWS, count),
        _ => return None,
    };
    Some(LabelDataset { dataset, rows, count })
}

/// Returns NumPy's name of a type.
fn type_name(datatype: &Datatype) -> String {
    match datatype {
        Datatype::FixedPoint { size, signed, .. } => format!("{}int{}", if *signed { "" } else { "u" }, 8 * size),
        Datatype::FloatingPoint { size, .. } => format!("float{}", 8 * size),
        Datatype::String { .. } => "strings".to_owned(),
        _ => "values that are not numbers".to_owned(),
    }
}
