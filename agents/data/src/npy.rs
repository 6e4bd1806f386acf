//! The headers of NumPy's `.npy` files, whose elements are read as tokens in their order in memory.
//!
//! ```text
//! \x93NUMPY  1 0  length (u16; u32 from version 2)  {'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }
//! ```

use std::io::Read;
use std::path::Path;

use crate::DataError;
use crate::token_store::TokenElement;

/// Description of the signature.
pub(crate) const NPY_SIGNATURE: &str = "a NumPy file";
const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Maximum length of the description; that of a plain array is shorter.
const MAX_DESCRIPTION_BYTES: usize = 4096;

/// Why a `.npy` file can't be read, as the end of a sentence that names the file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NpyProblem {
    #[error("is not a .npy file")]
    NotNpy,
    #[error("has elements of type {0}; tokens are integers of 16, 32 or 64 bits, little-endian")]
    ElementType(String),
    #[error("is stored column by column (fortran_order)")]
    ColumnOrder,
    #[error("has a shape that can't be read")]
    Shape,
    #[error("has {found} bytes of elements, but its shape needs {needed}")]
    Length { found: u64, needed: u64 },
}

impl NpyProblem {
    /// Returns what the user can do about the problem.
    pub(crate) const fn hint(&self) -> &'static str {
        match self {
            Self::Length { .. } => "copy the file again, or write it again",
            _ => "write it with np.save(file, np.ascontiguousarray(tokens, dtype=np.uint32))",
        }
    }
}

/// Returns whether files of this name are NumPy arrays.
pub(crate) fn is_npy(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npy"))
}

/// Returns the length of the header and the type of the elements.
pub(crate) fn npy_header(path: &Path) -> Result<(usize, TokenElement), DataError> {
    let read_error = |source| DataError::Read { path: path.to_owned(), source };
    let file = millrace_roots::open(path).map_err(read_error)?;
    let size = file.metadata().map_err(read_error)?.len();
    let mut begin = Vec::new();
    file.take(MAX_DESCRIPTION_BYTES as u64).read_to_end(&mut begin).map_err(read_error)?;
    parse(&begin, size).map_err(|problem| DataError::Npy { path: path.to_owned(), problem })
}

fn parse(begin: &[u8], size: u64) -> Result<(usize, TokenElement), NpyProblem> {
    let (version, rest) =
        begin.strip_prefix(MAGIC).and_then(|rest| rest.split_at_checked(2)).ok_or(NpyProblem::NotNpy)?;
    let prefix = if version[0] == 1 { 2 } else { 4 };
    let (length, rest) = rest.split_at_checked(prefix).ok_or(NpyProblem::NotNpy)?;
    let length = length.iter().rev().fold(0_usize, |length, byte| (length << 8) | usize::from(*byte));
    let description = rest.get(..length).and_then(|text| std::str::from_utf8(text).ok()).ok_or(NpyProblem::NotNpy)?;

    let value = |key: &str| {
        let (_, after) = description.split_once(&format!("'{key}':"))?;
        Some(after.trim_start())
    };
    let element_type = value("descr").and_then(|text| text.strip_prefix('\'')?.split('\'').next());
    let element = match element_type.ok_or(NpyProblem::NotNpy)? {
        "<u2" => TokenElement::U16,
        "<u4" | "<i4" => TokenElement::U32,
        "<u8" | "<i8" => TokenElement::U64,
        other => return Err(NpyProblem::ElementType(other.to_owned())),
    };
    if !value("fortran_order").is_some_and(|text| text.starts_with("False")) {
        return Err(NpyProblem::ColumnOrder);
    }
    let shape = value("shape").and_then(|text| text.strip_prefix('(')?.split(')').next()).ok_or(NpyProblem::Shape)?;
    let mut count = element.bytes() as u64;
    for side in shape.split(',').map(str::trim).filter(|side| !side.is_empty()) {
        count = side.parse().ok().and_then(|side| count.checked_mul(side)).ok_or(NpyProblem::Shape)?;
    }
    let header = MAGIC.len() + 2 + prefix + length;
    let found = size.saturating_sub(header as u64);
    if found != count {
        return Err(NpyProblem::Length { found, needed: count });
    }
    Ok((header, element))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(description: &str, elements: usize) -> (Vec<u8>, u64) {
        let mut bytes = [&MAGIC[..], &[1, 0], &(description.len() as u16).to_le_bytes()].concat();
        bytes.extend(description.as_bytes());
        let size = bytes.len() + elements;
        (bytes, size as u64)
    }

    #[test]
    fn arrays_of_integers_are_read_and_others_are_named() {
        let known = |element_type: &str, shape: &str| {
            format!("{{'descr': '{element_type}', 'fortran_order': False, 'shape': {shape}, }}   \n")
        };
        for (element_type, shape, bytes, element) in [
            ("<u2", "(3,)", 6, TokenElement::U16),
            ("<i4", "(2, 3)", 24, TokenElement::U32),
            ("<i8", "()", 8, TokenElement::U64),
        ] {
            let (begin, size) = file(&known(element_type, shape), bytes);
            assert_eq!(parse(&begin, size), Ok((begin.len(), element)), "{element_type} {shape}");
        }
        for (description, problem) in [
            (known("<f4", "(3,)"), NpyProblem::ElementType("<f4".into())),
            (known(">u2", "(3,)"), NpyProblem::ElementType(">u2".into())),
            (known("<u2", "(3,)").replace("False", "True"), NpyProblem::ColumnOrder),
            (known("<u2", "(3"), NpyProblem::Shape),
            (known("<u2", "(99999999999, 99999999999)"), NpyProblem::Shape),
            (known("<u2", "(4,)"), NpyProblem::Length { found: 6, needed: 8 }),
            ("{}".into(), NpyProblem::NotNpy),
        ] {
            let (begin, size) = file(&description, 6);
            assert_eq!(parse(&begin, size), Err(problem), "{description}");
        }
        let (begin, size) = file(&known("<u2", "(3,)"), 6);
        for end in 0..begin.len() {
            assert_eq!(parse(&begin[..end], size), Err(NpyProblem::NotNpy));
        }
    }
}
