//! The frames of a TFRecord file, plain or compressed by gzip, and their checksums.
//!
//! ```text
//! length  u64        checksum of length  u32        data [length]        checksum of data  u32       little-endian
//! ```
//!
//! * Records are found by number: their offsets are in memory, 8 bytes each.
//! * Lengths and their checksums are verified when a file is opened, those of data when a record is read.
//! * A file that is compressed has no offsets, so that it is expanded in memory, up to a limit for all files.

use std::io::Read;
use std::path::{Path, PathBuf};

use crc::{CRC_32_ISCSI, Crc, Table};
use flate2::read::MultiGzDecoder;

use crate::DataError;
use crate::token_store::TokenBytes;

/// Maximum bytes of a record. The largest samples of the public model zoo have less than 100 kB.
const MAX_RECORD_BYTES: u64 = 64 << 20;
/// CRC-32C. Every byte of the files is checked, so its table is the fast one.
static CRC32C: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);
/// Maximum bytes of all compressed files of a source, expanded.
const MAX_EXPANDED_BYTES: u64 = 1 << 30;
const GZIP_SIGNATURE: &[u8] = b"\x1f\x8b";
/// Bytes before and after the data of a record.
const HEADER_BYTES: usize = 12;
const TRAILER_BYTES: usize = 4;

/// What is wrong with a TFRecord file, as the end of a sentence that names the file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TfRecordProblem {
    #[error("has no records")]
    Empty,
    #[error("ends inside record {record}")]
    Truncated { record: u64 },
    #[error("has a wrong checksum of the length of record {record}: it is damaged, or no TFRecord file")]
    LengthChecksum { record: u64 },
    #[error("has {bytes} bytes in record {record}, more than the {MAX_RECORD_BYTES} of a sample")]
    LargeRecord { record: u64, bytes: u64 },
    #[error("can't be expanded: it is damaged, or not compressed by gzip")]
    Gzip,
    #[error("has more than {MAX_EXPANDED_BYTES} bytes, together with the compressed files before it, when expanded")]
    LargeGzip,
}

impl TfRecordProblem {
    /// Returns what the user can do about it.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Empty | Self::LargeRecord { .. } => "name TFRecord files of samples, with one sample in a record",
            Self::Truncated { .. } | Self::LengthChecksum { .. } | Self::Gzip => "copy or write the file again",
            Self::LargeGzip => "expand the files with gunzip; those that are not compressed are read in place",
        }
        .to_owned()
    }
}

/// Files of records, joined in order.
pub(crate) struct TfRecordFiles {
    files: Vec<RecordFile>,
    /// Digest of lengths and checksums, and so of the content.
    pub digest: [u8; 32],
}

struct RecordFile {
    path: PathBuf,
    bytes: TokenBytes,
    /// Number of the first record of the next file.
    end: u64,
    offsets: Vec<u64>,
}

/// The data of a record, with its place for messages.
pub(crate) struct Record<'a> {
    pub path: &'a Path,
    /// Its number in the file, from 0.
    pub number: u64,
    pub data: &'a [u8],
    pub is_intact: bool,
}

impl TfRecordFiles {
    /// Opens the files and finds their records.
    pub fn open(paths: &[PathBuf]) -> Result<Self, DataError> {
        let mut hasher = blake3::Hasher::new_derive_key("millrace TFRecord files, version 1");
        let mut files: Vec<RecordFile> = Vec::with_capacity(paths.len());
        let (mut end, mut expanded) = (0_u64, 0);
        for path in paths {
            let problem = |problem| DataError::TfRecord { path: path.clone(), problem };
            let bytes = read_file(path, &mut expanded)?;
            let offsets = record_offsets(&bytes, &mut hasher).map_err(problem)?;
            if offsets.is_empty() {
                return Err(problem(TfRecordProblem::Empty));
            }
            end = end.saturating_add(offsets.len() as u64);
            files.push(RecordFile { path: path.clone(), bytes, end, offsets });
        }
        if files.is_empty() {
            Err(DataError::NoPaths)
        } else {
            Ok(Self { files, digest: *hasher.finalize().as_bytes() })
        }
    }

    /// Returns the number of records.
    pub fn records(&self) -> u64 {
        self.files.last().map_or(0, |file| file.end)
    }

    /// Returns record `number_in_files`, which must exist.
    pub fn record(&self, number_in_files: u64) -> Record<'_> {
        let index = self.files.partition_point(|file| file.end <= number_in_files).min(self.files.len() - 1);
        let file = &self.files[index];
        let first = if index == 0 { 0 } else { self.files[index - 1].end };
        let number = number_in_files - first;
        let begin = file.offsets[number as usize] as usize;
        // The length was verified when the file was opened, but another program may have changed the file since.
        let length = usize::try_from(read_u64(&file.bytes, begin)).unwrap_or(usize::MAX);
        let data = file.bytes.get(begin + HEADER_BYTES..).and_then(|rest| rest.get(..length)).unwrap_or_default();
        let checksum = read_u32(&file.bytes, begin + HEADER_BYTES + data.len());
        let is_intact = data.len() == length && checksum == masked_checksum(data);
        Record { path: &file.path, number, data, is_intact }
    }
}

/// Reads a file in place, or expands it, if it is compressed.
fn read_file(path: &Path, expanded: &mut u64) -> Result<TokenBytes, DataError> {
    let read = |source| DataError::Read { path: path.into(), source };
    let problem = |problem| DataError::TfRecord { path: path.into(), problem };
    let file = millrace_roots::open(path).map_err(read)?;
    if file.metadata().map_err(read)?.len() == 0 {
        return Err(problem(TfRecordProblem::Empty));
    }
    let bytes = TokenBytes::map(&file).map_err(read)?;
    if !bytes.starts_with(GZIP_SIGNATURE) {
        return Ok(bytes);
    }
    let limit = MAX_EXPANDED_BYTES - *expanded;
    let mut all = Vec::new();
    let decoder = MultiGzDecoder::new(&bytes[..]);
    decoder.take(limit + 1).read_to_end(&mut all).map_err(|_| problem(TfRecordProblem::Gzip))?;
    if all.len() as u64 > limit {
        return Err(problem(TfRecordProblem::LargeGzip));
    }
    *expanded += all.len() as u64;
    Ok(TokenBytes::Owned(all))
}

/// Returns the offset of each record, and adds lengths and checksums to the digest.
fn record_offsets(bytes: &[u8], hasher: &mut blake3::Hasher) -> Result<Vec<u64>, TfRecordProblem> {
    let mut offsets = Vec::new();
    let mut offset = 0_usize;
    while offset < bytes.len() {
        let record = offsets.len() as u64;
        let Some(header) = bytes.get(offset..offset + HEADER_BYTES) else {
            return Err(TfRecordProblem::Truncated { record });
        };
        let length = read_u64(header, 0);
        if read_u32(header, 8) != masked_checksum(&header[..8]) {
            return Err(TfRecordProblem::LengthChecksum { record });
        }
        if length > MAX_RECORD_BYTES {
            return Err(TfRecordProblem::LargeRecord { record, bytes: length });
        }
        let end = offset + HEADER_BYTES + length as usize;
        let Some(checksum) = bytes.get(end..end + TRAILER_BYTES) else {
            return Err(TfRecordProblem::Truncated { record });
        };
        hasher.update(&header[..8]).update(checksum);
        offsets.push(offset as u64);
        offset = end + TRAILER_BYTES;
    }
    Ok(offsets)
}

/// Returns the integer at `offset`, or 0 beyond the end.
fn read_u64(bytes: &[u8], offset: usize) -> u64 {
    bytes.get(offset..).and_then(<[u8]>::first_chunk).copied().map_or(0, u64::from_le_bytes)
}

fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..).and_then(<[u8]>::first_chunk).copied().map_or(0, u32::from_le_bytes)
}

/// Returns a record with its length and checksums, as it is in a file.
pub fn tfrecord_frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let checksum = |bytes: &[u8]| masked_checksum(bytes).to_le_bytes();
    [&length[..], &checksum(&length), data, &checksum(data)].concat()
}

/// Returns the CRC-32C of `data`, rotated and added to a constant, as TensorFlow stores it.
fn masked_checksum(data: &[u8]) -> u32 {
    const MASK_DELTA: u32 = 0xa282_ead8;
    CRC32C.checksum(data).rotate_right(15).wrapping_add(MASK_DELTA)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::{tfrecord_frame as frame, *};

    fn open(dir: &Path, bytes: &[u8]) -> Result<TfRecordFiles, String> {
        let path = dir.join("a.tfrecord");
        std::fs::write(&path, bytes).unwrap();
        TfRecordFiles::open(&[path]).map_err(|error| error.to_string())
    }

    #[test]
    fn records_are_found_by_number_in_any_file() {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("plain");
        std::fs::write(&plain, [frame(b"one"), frame(b"")].concat()).unwrap();
        let packed = dir.path().join("packed");
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&[frame(b"two"), frame(b"three")].concat()).unwrap();
        std::fs::write(&packed, encoder.finish().unwrap()).unwrap();
        let files = TfRecordFiles::open(&[plain, packed.clone()]).unwrap();
        let found: Vec<_> = (0..files.records()).map(|number| files.record(number)).collect();
        assert!(found.iter().all(|record| record.is_intact));
        assert_eq!(
            found.iter().map(|record| record.data).collect::<Vec<_>>(),
            [b"one".as_slice(), b"", b"two", b"three"]
        );
        assert_eq!((found[3].number, found[3].path), (1, packed.as_path()));
    }

    #[test]
    fn damaged_files_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let two = [frame(b"one"), frame(b"two")].concat();
        let large = [&(1_u64 << 40).to_le_bytes()[..], &masked_checksum(&(1_u64 << 40).to_le_bytes()).to_le_bytes()];
        let mut wrong = two.clone();
        wrong[8] ^= 1;
        for (bytes, message) in [
            (&two[..two.len() - 1], "ends inside record 1"),
            (&two[..25], "ends inside record 1"),
            (&wrong, "wrong checksum of the length of record 0"),
            (&large.concat(), "has 1099511627776 bytes in record 0"),
            (b"", "has no records"),
            (b"\x1f\x8b\x08", "can't be expanded"),
        ] {
            let error = open(dir.path(), bytes).err().unwrap();
            assert!(error.contains(message), "{message}: {error}");
        }
        let mut flipped = two;
        flipped[13] ^= 1;
        let files = open(dir.path(), &flipped).unwrap();
        assert!(!files.record(0).is_intact && files.record(1).is_intact);
    }
}
