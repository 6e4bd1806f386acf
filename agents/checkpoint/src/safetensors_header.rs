//! The header of a safetensors file: eight bytes of length (little-endian), then JSON, then the data.
//!
//! Implemented here instead of using the `safetensors` crate, because shards fill a file in ranges, long after its
//! header was written. Headers are not trusted: everything is checked against the file's length before use.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

/// The key of a header that is not a tensor.
pub(crate) const METADATA_KEY: &str = "__metadata__";

/// Data begin at a multiple of this many bytes (the format allows spaces after the JSON). With chunks of 1 MiB, no two
/// shards write to the same page of a file, which network file systems would have to transfer between their clients.
const DATA_ALIGNMENT_BYTES: usize = 4096;

/// The format's limit on the JSON's length.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TensorEntry {
    /// The type: `F32`, `BF16` and so on.
    pub dtype: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// First and one past the last byte, counted from the end of the header.
    pub data_offsets: (u64, u64),
}

/// Creates the header of a file of f32 tensors: name, shape and first byte of each, without gaps, offsets ascending.
pub(crate) fn write<'a>(tensors: impl Iterator<Item = (&'a str, Vec<usize>, u64)>) -> Vec<u8> {
    let mut json = format!("{{\"{METADATA_KEY}\":{{\"format\":\"pt\"}}");
    for (name, shape, start) in tensors {
        let end = start + 4 * shape.iter().product::<usize>() as u64;
        let entry = TensorEntry { dtype: "F32".into(), shape, data_offsets: (start, end) };
        // Writing strings and numbers to memory can't fail.
        let text = |value: serde_json::Result<String>| value.unwrap_or_default();
        json += &format!(",{}:{}", text(serde_json::to_string(name)), text(serde_json::to_string(&entry)));
    }
    json.push('}');
    let length = (8 + json.len()).next_multiple_of(DATA_ALIGNMENT_BYTES);
    let mut header = ((length - 8) as u64).to_le_bytes().to_vec();
    header.extend_from_slice(json.as_bytes());
    header.resize(length, b' ');
    header
}

/// Reads the header of `file`, including its length.
pub(crate) fn read_bytes(file: &File) -> io::Result<Vec<u8>> {
    let invalid = |reason: &str| io::Error::new(io::ErrorKind::InvalidData, reason.to_owned());
    let total = file.metadata()?.len();
    let mut length = [0; 8];
    if total < 8 {
        return Err(invalid("it is too short to be a safetensors file"));
    }
    file.read_exact_at(&mut length, 0)?;
    let json = u64::from_le_bytes(length);
    if json > MAX_HEADER_BYTES || json > total - 8 {
        return Err(invalid("its header is longer than the file"));
    }
    let mut header = vec![0; 8 + json as usize];
    file.read_exact_at(&mut header, 0)?;
    Ok(header)
}

/// Reads the tensors of `file`, each within its data and of the length of its type and shape; and the position of the
/// data.
pub(crate) fn read(file: &File) -> io::Result<(BTreeMap<String, TensorEntry>, u64)> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let header = read_bytes(file)?;
    let data = file.metadata()?.len().saturating_sub(header.len() as u64);
    let json = header.get(8..).unwrap_or_default();
    let values: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(json).map_err(|error| invalid(format!("its header is not JSON: {error}")))?;
    let mut entries = BTreeMap::new();
    for (name, value) in values.into_iter().filter(|(name, _)| name != METADATA_KEY) {
        let entry: TensorEntry = serde_json::from_value(value)
            .map_err(|error| invalid(format!("its entry {name} is not valid: {error}")))?;
        let (start, end) = entry.data_offsets;
        let elements = entry.shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size as u64));
        let bytes = element_bytes(&entry.dtype).zip(elements).and_then(|(size, count)| count.checked_mul(size));
        let is_valid = start <= end && end <= data;
        // Unsupported types are allowed, but not read.
        if !is_valid || bytes.is_some_and(|bytes| bytes != end - start) || elements.is_none() {
            return Err(invalid(format!("its entry {name} does not fit the file")));
        }
        entries.insert(name, entry);
    }
    Ok((entries, header.len() as u64))
}

/// Returns the bytes of an element of a supported type.
pub(crate) fn element_bytes(dtype: &str) -> Option<u64> {
    match dtype {
        "F64" => Some(8),
        "F32" => Some(4),
        "F16" | "BF16" => Some(2),
        _ => None,
    }
}
