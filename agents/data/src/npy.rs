//! The headers of NumPy's `.npy` files.
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
/// Maximum dimensions of an array in NumPy.
const MAX_DIMENSIONS: usize = 64;

/// Why a `.npy` file can't be read, as the end of a sentence that names the file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NpyProblem {
    #[error("is not a .npy file")]
    NotNpy,
    #[error("has elements of type {0}, which can't be read")]
    ElementType(String),
    #[error("has elements of type {0}; tokens are integers of 16, 32 or 64 bits")]
    NotTokens(&'static str),
    #[error("is a single number; the first dimension of an array counts samples")]
    NoDimensions,
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
            Self::ElementType(_) => {
                "write it again as little-endian numbers of float32, float64, bool, or an integer type"
            }
            Self::NoDimensions => "write it with np.save(file, samples), where samples has a row for each sample",
            _ => "write it with np.save(file, np.ascontiguousarray(tokens, dtype=np.uint32))",
        }
    }
}

/// Returns whether files of this name are NumPy arrays.
pub(crate) fn is_npy(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npy"))
}

/// Type of the elements of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NpyElement {
    Bool,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

impl NpyElement {
    /// All types, with the names that files have for them.
    const NAMES: [(Self, &'static str); 11] = [
        (Self::Bool, "|b1"),
        (Self::I8, "|i1"),
        (Self::U8, "|u1"),
        (Self::I16, "<i2"),
        (Self::U16, "<u2"),
        (Self::I32, "<i4"),
        (Self::U32, "<u4"),
        (Self::I64, "<i8"),
        (Self::U64, "<u8"),
        (Self::F32, "<f4"),
        (Self::F64, "<f8"),
    ];

    fn of(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(element, _)| *element)
    }

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(element, _)| *element == self).map_or("?", |(_, name)| name)
    }

    /// Returns the bytes of an element.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Returns whether the elements are floating-point numbers.
    pub(crate) const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

/// What the header of a file says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NpyHeader {
    /// Bytes of the header; the elements follow.
    pub(crate) bytes: usize,
    pub(crate) element: NpyElement,
    /// Dimensions, outermost first. Their product, in bytes, is the rest of the file.
    pub(crate) shape: Vec<u64>,
}

impl NpyHeader {
    /// Returns the length of the header, and the type of the elements, which must be one of tokens.
    fn of_tokens(&self) -> Result<(usize, TokenElement), NpyProblem> {
        let element = match self.element {
            NpyElement::U16 => TokenElement::U16,
            NpyElement::I32 | NpyElement::U32 => TokenElement::U32,
            NpyElement::I64 | NpyElement::U64 => TokenElement::U64,
            other => return Err(NpyProblem::NotTokens(other.name())),
        };
        Ok((self.bytes, element))
    }
}

/// Returns the length of the header and the type of the elements of a file of tokens.
pub(crate) fn npy_header(path: &Path) -> Result<(usize, TokenElement), DataError> {
    let header = read_npy_header(path)?;
    header.of_tokens().map_err(|problem| DataError::Npy { path: path.to_owned(), problem })
}

/// Reads the header of an array.
pub(crate) fn read_npy_header(path: &Path) -> Result<NpyHeader, DataError> {
    let read_error = |source| DataError::Read { path: path.to_owned(), source };
    let file = millrace_roots::open(path).map_err(read_error)?;
    let size = file.metadata().map_err(read_error)?.len();
    let mut begin = Vec::new();
    file.take(MAX_DESCRIPTION_BYTES as u64).read_to_end(&mut begin).map_err(read_error)?;
    parse(&begin, size).map_err(|problem| DataError::Npy { path: path.to_owned(), problem })
}

fn parse(begin: &[u8], size: u64) -> Result<NpyHeader, NpyProblem> {
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
    let element_type = element_type.ok_or(NpyProblem::NotNpy)?;
    let element = NpyElement::of(element_type).ok_or_else(|| NpyProblem::ElementType(element_type.to_owned()))?;
    if !value("fortran_order").is_some_and(|text| text.starts_with("False")) {
        return Err(NpyProblem::ColumnOrder);
    }
    let shape = value("shape").and_then(|text| text.strip_prefix('(')?.split(')').next()).ok_or(NpyProblem::Shape)?;
    let sides = shape.split(',').map(str::trim).filter(|side| !side.is_empty());
    let shape = sides.map(|side| side.parse().ok()).collect::<Option<Vec<u64>>>().ok_or(NpyProblem::Shape)?;
    let needed = shape.iter().try_fold(element.bytes() as u64, |bytes, side| bytes.checked_mul(*side));
    let needed = needed.filter(|_| shape.len() <= MAX_DIMENSIONS).ok_or(NpyProblem::Shape)?;
    let bytes = MAGIC.len() + 2 + prefix + length;
    let found = size.saturating_sub(bytes as u64);
    if found != needed {
        return Err(NpyProblem::Length { found, needed });
    }
    Ok(NpyHeader { bytes, element, shape })
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
        let header_text = |element_type: &str, shape: &str| {
            format!("{{'descr': '{element_type}', 'fortran_order': False, 'shape': {shape}, }}   \n")
        };
        for (element_type, shape, bytes, element) in [
            ("<u2", "(3,)", 6, TokenElement::U16),
            ("<i4", "(2, 3)", 24, TokenElement::U32),
            ("<i8", "()", 8, TokenElement::U64),
        ] {
            let (begin, size) = file(&header_text(element_type, shape), bytes);
            let header = parse(&begin, size).unwrap();
            assert_eq!(header.of_tokens(), Ok((begin.len(), element)), "{element_type} {shape}");
        }
        let (begin, size) = file(&header_text("<f4", "(3, 2)"), 24);
        let header = parse(&begin, size).unwrap();
        assert_eq!((&*header.shape, header.of_tokens()), ([3, 2].as_slice(), Err(NpyProblem::NotTokens("<f4"))));
        for (description, problem) in [
            (header_text("<f2", "(3,)"), NpyProblem::ElementType("<f2".into())),
            (header_text(">u2", "(3,)"), NpyProblem::ElementType(">u2".into())),
            (header_text("<u2", "(3,)").replace("False", "True"), NpyProblem::ColumnOrder),
            (header_text("<u2", "(3"), NpyProblem::Shape),
            (header_text("<u2", "(99999999999, 99999999999)"), NpyProblem::Shape),
            (header_text("<u2", "(4,)"), NpyProblem::Length { found: 6, needed: 8 }),
            ("{}".into(), NpyProblem::NotNpy),
        ] {
            let (begin, size) = file(&description, 6);
            assert_eq!(parse(&begin, size), Err(problem), "{description}");
        }
        let (begin, size) = file(&header_text("<u2", "(3,)"), 6);
        for end in 0..begin.len() {
            assert_eq!(parse(&begin[..end], size), Err(NpyProblem::NotNpy));
        }
    }
}
