//! HDF5 files as the public model zoo writes them, joined to one sequence of samples or one stream of tokens.
//!
//! Each file has a dataset `data` in one of these formats, and all files of a source have the same:
//!
//! * *samples*: int32 of shape (samples, 3, length) with the rows input_ids, loss mask and labels;
//! * *packed samples* of several sequences: of shape (samples, 5, length), also with attention spans and positions;
//! * samples of an encoder, whose second row is the attention mask; they may have no labels (2 or 4 rows) if there is a
//!   dataset `labels` of shape (samples, 1, length), or (samples, 3, labels), also with positions and whether they
//!   count;
//! * *corpus*: uint8, uint16 or uint32 of shape (tokens), cut into windows as token files are.
//!
//! Guarantees:
//!
//! * Files are opened when they are needed, at most [`MAX_OPEN_FILES`] at a time, and read in place: memory does not
//!   grow with the data.
//! * A label whose mask is 0, or that is [`IGNORED_LABEL`], is returned as [`NO_LABEL`], which counts neither in the
//!   loss nor in the number of tokens.
//! * Every token and every label that counts is below the size of the vocabulary.

mod file;
mod problem;
mod write;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use file::GATHERED_LABEL_ROWS;
pub(crate) use file::{DataFile, FileShape};
pub use problem::{Hdf5Problem, Hdf5ReadError, SampleProblem};
pub use write::write_hdf5;

use crate::DataError;
use crate::encoder::Row;

/// Maximum files that are open at a time: a quarter of the usual limit of descriptors, and 256 MiB of decoded chunks.
const MAX_OPEN_FILES: usize = 64;
/// Distinguishes packed samples from others of the same length, which is always smaller, in the digest.
const PACKED_DIGEST: u64 = 1 << 63;
/// Likewise samples whose labels are in another dataset.
const UNLABELED_DIGEST: u64 = 1 << 62;
/// A label without a token.
pub(crate) const NO_LABEL: i32 = -1;
/// The label that PyTorch's cross-entropy ignores.
const IGNORED_LABEL: i32 = -100;

/// Number of samples or tokens in a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hdf5Size {
    /// Complete samples.
    Samples(u64),
    /// Tokens of a corpus.
    Tokens(u64),
}

/// HDF5 files, joined in order.
pub(crate) struct Hdf5Store {
    files: Vec<IndexedFile>,
    size: Hdf5Size,
    vocab_size: u32,
    /// Whether the samples are packed.
    is_packed: bool,
    /// Files with their position in `files`, the least recently used first.
    open: Mutex<Vec<(usize, Arc<DataFile>)>>,
    /// Digest of sizes and shapes: equal for copies of the same files.
    pub(crate) digest: [u8; 32],
}

/// The samples that are expected of files.
#[derive(Clone, Copy)]
pub(crate) struct ExpectedSamples {
    /// Number of tokens.
    pub length: usize,
    pub is_packed: bool,
    /// Whether they are those of an encoder. If the samples of an encoder may be packed, others are accepted, too.
    pub is_for_encoder: bool,
}

struct IndexedFile {
    path: PathBuf,
    /// Number of the first sample, or token, after this file.
    end: u64,
}

impl Hdf5Store {
    /// Opens every file to read its shape, which must be that of the expected samples, or of a corpus.
    pub(crate) fn open(paths: &[PathBuf], expected: ExpectedSamples, vocab_size: u32) -> Result<Self, DataError> {
        let mut hasher = blake3::Hasher::new_derive_key("millrace HDF5 files, version 1");
        let mut files: Vec<IndexedFile> = Vec::with_capacity(paths.len());
        let mut first: Option<FileShape> = None;
        let mut end = 0_u64;
        for path in paths {
            let shape = DataFile::open(path)?.shape;
            check_shape(shape, first, expected).map_err(|problem| DataError::Hdf5 { path: path.clone(), problem })?;
            first = first.or(Some(shape));
            let (count, unit) = match shape {
                FileShape::Samples { samples, length } => (samples, length),
                // The unit differs from that of other samples, as the digest does.
                FileShape::Packed { samples, length } => (samples, length | PACKED_DIGEST),
                FileShape::Unlabeled { samples, length, is_packed } => {
                    (samples, length | UNLABELED_DIGEST | if is_packed { PACKED_DIGEST } else { 0 })
                }
                FileShape::Corpus { tokens, token_bytes } => (tokens, token_bytes.into()),
            };
            end = end.saturating_add(count);
            hasher.update(&count.to_le_bytes()).update(&unit.to_le_bytes());
            files.push(IndexedFile { path: path.clone(), end });
        }
        let size = match first {
            None => return Err(DataError::NoPaths),
            Some(FileShape::Samples { .. } | FileShape::Packed { .. } | FileShape::Unlabeled { .. }) => {
                Hdf5Size::Samples(end)
            }
            Some(FileShape::Corpus { .. }) => Hdf5Size::Tokens(end),
        };
        let digest = *hasher.finalize().as_bytes();
        Ok(Self { files, size, vocab_size, is_packed: expected.is_packed, open: Mutex::default(), digest })
    }

    pub(crate) fn size(&self) -> Hdf5Size {
        self.size
    }

    pub(crate) fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    pub(crate) fn is_packed(&self) -> bool {
        self.is_packed
    }

    /// Writes sample `sample`, which must exist, to slices of its length.
    pub(crate) fn read_sample(&self, sample: u64, input_ids: &mut [i32], labels: &mut [i32]) -> Result<(), DataError> {
        self.read_rows(sample, input_ids, labels).map(drop)
    }

    /// Writes packed sample `sample`, which must exist, to slices of its length: input_ids, labels, for each token the
    /// number of later tokens that attend to it, and its position in its sequence.
    pub(crate) fn read_packed(&self, sample: u64, rows: [&mut [i32]; 4]) -> Result<(), DataError> {
        let [input_ids, labels, spans, positions] = rows;
        let found = self.read_rows(sample, input_ids, labels)?;
        let length = spans.len();
        let packing = packing_rows(&found, 3, length).map_err(|problem| {
            let (index, number) = self.locate(sample);
            self.sample_error(index, "sample", number, problem)
        })?;
        for (to, from) in [spans, positions].into_iter().zip(packing) {
            to.copy_from_slice(from);
        }
        Ok(())
    }

    /// Writes input_ids and labels of sample `sample`, and returns all of its rows.
    fn read_rows(&self, sample: u64, input_ids: &mut [i32], labels: &mut [i32]) -> Result<Vec<i32>, DataError> {
        let (index, row) = self.locate(sample);
        let length = input_ids.len();
        let error = |problem| self.sample_error(index, "sample", row, problem);
        let read = self.file(index)?.read_sample(row, length);
        let rows = read.map_err(|cause| self.close_after(index, error(SampleProblem::Unreadable(cause))))?;
        let (tokens, rest) = rows.split_at(length);
        let (mask, targets) = rest.split_at(length);
        let targets = &targets[..length];
        for (to, token) in input_ids.iter_mut().zip(tokens) {
            if !self.is_token(*token) {
                let (token, vocab_size) = (i64::from(*token), self.vocab_size);
                return Err(error(SampleProblem::TokenOutsideVocabulary { token, vocab_size }));
            }
            *to = *token;
        }
        for ((to, mask), label) in labels.iter_mut().zip(mask).zip(targets) {
            *to = match mask {
                0 => NO_LABEL,
                1 if *label == IGNORED_LABEL => NO_LABEL,
                1 if self.is_token(*label) => *label,
                1 => {
                    let (label, vocab_size) = (i64::from(*label), self.vocab_size);
                    return Err(error(SampleProblem::LabelOutsideVocabulary { label, vocab_size }));
                }
                value => return Err(error(SampleProblem::MaskValue { value: *value })),
            };
        }
        Ok(rows)
    }

    /// Returns the file of sample `sample`, which must exist, and its number there.
    pub(crate) fn location(&self, sample: u64) -> (&Path, u64) {
        let (index, number) = self.locate(sample);
        (&self.files[index].path, number)
    }

    /// Reads sample `sample`, which must exist, of an encoder: rows of input_ids, attention mask and labels. Labels of
    /// -100 do not count.
    pub(crate) fn read_masked(&self, sample: u64, length: usize) -> Result<Row, DataError> {
        let (index, number) = self.locate(sample);
        let error = |problem| self.sample_error(index, "sample", number, problem);
        let file = self.file(index)?;
        let read = file.read_sample(number, length).and_then(|rows| Ok((rows, file.read_labels(number)?)));
        let (rows, labels) = read.map_err(|cause| self.close_after(index, error(SampleProblem::Unreadable(cause))))?;
        encoder_row(&rows, labels.as_ref().map(|(rows, labels)| (*rows, labels.as_slice())), length).map_err(error)
    }

    /// Writes the tokens from index `token`, and for each the next one to `labels`. The tokens must exist.
    pub(crate) fn read_window(&self, token: u64, input_ids: &mut [i32], labels: &mut [i32]) -> Result<(), DataError> {
        self.copy_tokens(token, input_ids)?;
        if let (Some((last, labels)), Some(inputs)) = (labels.split_last_mut(), input_ids.get(1..)) {
            labels.copy_from_slice(inputs);
            self.copy_tokens(token + input_ids.len() as u64, std::slice::from_mut(last))?;
        }
        Ok(())
    }

    /// Copies the tokens from index `start` to `out`. The tokens must exist.
    fn copy_tokens(&self, mut start: u64, mut out: &mut [i32]) -> Result<(), DataError> {
        while !out.is_empty() {
            let (index, first) = self.locate(start);
            let in_file = (self.files[index].end - start).min(out.len() as u64);
            let (chunk, remaining) = out.split_at_mut(in_file as usize);
            let error = |number, problem| self.sample_error(index, "token", number, problem);
            let read = self.file(index)?.read_tokens(first..first + in_file);
            let tokens =
                read.map_err(|cause| self.close_after(index, error(first, SampleProblem::Unreadable(cause))))?;
            for (number, (to, token)) in (first..).zip(chunk.iter_mut().zip(tokens)) {
                let vocab_size = self.vocab_size;
                *to = i32::try_from(token).ok().filter(|token| self.is_token(*token)).ok_or_else(|| {
                    error(number, SampleProblem::TokenOutsideVocabulary { token: token.into(), vocab_size })
                })?;
            }
            start += in_file;
            out = remaining;
        }
        Ok(())
    }

    fn is_token(&self, token: i32) -> bool {
        u32::try_from(token).is_ok_and(|token| token < self.vocab_size)
    }

    /// Returns the file that contains sample, or token, `number`, and its number there.
    fn locate(&self, number: u64) -> (usize, u64) {
        let index = self.files.partition_point(|file| file.end <= number);
        let begin = index.checked_sub(1).map_or(0, |previous| self.files[previous].end);
        (index, number - begin)
    }

    /// Returns an open file.
    fn file(&self, index: usize) -> Result<Arc<DataFile>, DataError> {
        if let Some(file) = self.take_recent(index) {
            return Ok(file);
        }
        let file = Arc::new(DataFile::open(&self.files[index].path)?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MAX_OPEN_FILES {
            open.remove(0);
        }
        open.push((index, file.clone()));
        Ok(file)
    }

    /// Returns a file that is open, and marks it as the most recently used.
    fn take_recent(&self, index: usize) -> Option<Arc<DataFile>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let position = open.iter().position(|(open, _)| *open == index)?;
        let entry = open.remove(position);
        let file = entry.1.clone();
        open.push(entry);
        Some(file)
    }

    /// Closes a file that could not be read, and returns the error.
    fn close_after(&self, index: usize, error: DataError) -> DataError {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|(open, _)| *open != index);
        error
    }

    fn sample_error(&self, index: usize, unit: &'static str, number: u64, problem: SampleProblem) -> DataError {
        DataError::BadSample { path: self.files[index].path.clone(), unit, number, problem }
    }
}

/// Converts rows of input_ids, attention mask and labels, unless these are given beside them with the number of their
/// rows. Packed samples have two further rows.
fn encoder_row(rows: &[i32], labels: Option<(u64, &[i32])>, length: usize) -> Result<Row, SampleProblem> {
    let row = |index: usize| rows.get(index * length..(index + 1) * length).unwrap_or_default();
    let (tokens, mask) = (row(0), row(1));
    let own_rows = if labels.is_none() { 3 } else { 2 };
    let packing = (rows.len() > own_rows * length).then(|| packing_rows(rows, own_rows, length)).transpose()?;
    let used = mask.iter().take_while(|mask| **mask != 0).count();
    if mask[used..].iter().any(|mask| *mask != 0) {
        let expected = "a mask of tokens that are followed by padding";
        return Err(SampleProblem::Malformed { column: "attention_mask", expected });
    }
    let predictions = match labels {
        None => predictions_at_all(row(2)),
        Some((GATHERED_LABEL_ROWS, labels)) => gathered_predictions(labels)?,
        Some((_, labels)) => predictions_at_all(labels),
    };
    let packing = packing.map(|packing| packing.map(|integers| integers[..used].to_vec()));
    Ok(Row { tokens: tokens[..used].to_vec(), predictions, packing, ..Row::default() })
}

/// Returns the labels that count, of one for each token.
fn predictions_at_all(labels: &[i32]) -> Vec<(usize, i32)> {
    let counted = labels.iter().enumerate().filter(|(_, label)| **label != IGNORED_LABEL);
    counted.map(|(position, label)| (position, *label)).collect()
}

/// Returns the labels that count, of rows of labels, positions, and whether they count.
fn gathered_predictions(rows: &[i32]) -> Result<Vec<(usize, i32)>, SampleProblem> {
    let (labels, rest) = rows.split_at(rows.len() / 3);
    let (positions, flags) = rest.split_at(rest.len() / 2);
    let counted =
        labels.iter().zip(positions).zip(flags).filter(|((label, _), flag)| **flag != 0 && **label != IGNORED_LABEL);
    let prediction = |((label, position), _): ((&i32, &i32), &i32)| {
        let expected = "a list of positions of the sample";
        let malformed = SampleProblem::Malformed { column: "masked_lm_positions", expected };
        usize::try_from(*position).map(|position| (position, *label)).map_err(|_| malformed)
    };
    counted.map(prediction).collect()
}

/// Returns the attention spans and the positions of a packed sample, which begin at row `first`.
fn packing_rows(rows: &[i32], first: usize, length: usize) -> Result<[&[i32]; 2], SampleProblem> {
    let mut packing = [&rows[..0]; 2];
    for ((index, name), to) in (first..).zip(["attention span", "position"]).zip(&mut packing) {
        *to = rows.get(index * length..(index + 1) * length).unwrap_or_default();
        if let Some((position, &value)) = to.iter().enumerate().find(|(_, value)| !is_below(**value, length)) {
            return Err(SampleProblem::PackingValue { row: name, position, value, max: length - 1 });
        }
    }
    Ok(packing)
}

fn is_below(value: i32, bound: usize) -> bool {
    usize::try_from(value).is_ok_and(|value| value < bound)
}

/// Compares the shape of a file with that of the first file and with the samples of the job.
fn check_shape(
    shape: FileShape,
    first: Option<FileShape>,
    ExpectedSamples { length, is_packed, is_for_encoder }: ExpectedSamples,
) -> Result<(), Hdf5Problem> {
    let (found, expected) = (shape.format_name(), first.unwrap_or(shape).format_name());
    if found != expected {
        return Err(Hdf5Problem::MixedFormats { found, expected });
    }
    let is_file_packed = matches!(shape, FileShape::Packed { .. } | FileShape::Unlabeled { is_packed: true, .. });
    match shape {
        FileShape::Unlabeled { .. } if !is_for_encoder => Err(Hdf5Problem::ForEncoders),
        _ if is_file_packed && !is_packed => Err(Hdf5Problem::Packed { rows: shape.rows() }),
        _ if is_packed && !is_file_packed && !is_for_encoder => Err(Hdf5Problem::NotPacked { found }),
        FileShape::Samples { length: found, .. }
        | FileShape::Packed { length: found, .. }
        | FileShape::Unlabeled { length: found, .. }
            if found != length as u64 =>
        {
            Err(Hdf5Problem::WrongLength { found, expected: length })
        }
        _ => Ok(()),
    }
}
