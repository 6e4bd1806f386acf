//! Safetensors files with weights of other programs: reading several as one set of tensors, and writing one.
//!
//! Nothing in a file that is read is trusted. One tensor is in memory at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::dtype::widen;
use crate::error::{Error, ModelDifference, Result};
use crate::files::to_le_bytes;
use crate::layout::ELEMENT_BYTES;
use crate::safetensors_header::{self, TensorEntry, element_bytes};

/// The tensors of one or several files.
#[derive(Debug)]
pub(crate) struct WeightFiles {
    /// What the user has named: the file, or the directory of the files.
    path: PathBuf,
    files: Vec<(PathBuf, File, u64)>,
    tensors: BTreeMap<String, (usize, TensorEntry)>,
}

impl WeightFiles {
    /// Creates an empty set. `path` is the file or directory that the user has named.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), files: Vec::new(), tensors: BTreeMap::new() }
    }

    /// Adds the tensors of a file by the names that `rename` returns, without those for which it returns `None`.
    pub fn add(&mut self, path: &Path, rename: impl Fn(&str) -> Option<String>) -> Result<()> {
        let file = millrace_roots::open(path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => Error::not_importable(
                path,
                "it is missing".into(),
                "name safetensors weights; save others with safetensors.torch.save_file or \
                 `save_pretrained(..., safe_serialization=True)` first",
            ),
            _ => Error::io("read", path, e),
        })?;
        let (entries, data) = safetensors_header::read(&file).map_err(|e| match e.kind() {
            ErrorKind::InvalidData => Error::not_importable(path, e.to_string(), "create the file again"),
            _ => Error::io("read", path, e),
        })?;
        for (name, entry) in entries {
            if let Some(name) = rename(&name) {
                self.tensors.insert(name, (self.files.len(), entry));
            }
        }
        self.files.push((path.to_owned(), file, data));
        Ok(())
    }

    /// Returns the names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the names and shapes of all tensors.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|(name, (_, entry))| (name.as_str(), entry.shape.as_slice()))
    }

    /// Returns the shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|(_, entry)| entry.shape.as_slice())
    }

    /// Returns the error for a difference between these tensors and the model of the params.
    pub fn mismatch(&self, difference: ModelDifference) -> Error {
        Error::ModelMismatch { path: self.path.clone(), difference }
    }

    /// Returns the values of a tensor as f32.
    pub fn read(&self, name: &str) -> Result<Vec<f32>> {
        let missing = || self.mismatch(ModelDifference::Missing { name: name.into() });
        let (file, entry) = self.tensors.get(name).ok_or_else(missing)?;
        let (path, file, data) = self.files.get(*file).ok_or_else(missing)?;
        let size = element_bytes(&entry.dtype).ok_or_else(|| {
            let hint = "convert the weights to float32, float16 or bfloat16 first";
            Error::not_importable(path, format!("{name} is of type {}", entry.dtype), hint)
        })?;
        let (mut offset, end) = (data + entry.data_offsets.0, data + entry.data_offsets.1);
        let mut values = Vec::with_capacity(((end - offset) / size) as usize);
        let mut block = vec![0; 1 << 20];
        while offset < end {
            let part = (end - offset).min(block.len() as u64) as usize;
            file.read_exact_at(&mut block[..part], offset).map_err(|e| Error::io("read", path, e))?;
            widen(&entry.dtype, &block[..part], &mut values);
            offset += part as u64;
        }
        Ok(values)
    }
}

/// What an export wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExportSummary {
    /// The new file or directory.
    pub path: PathBuf,
    /// Number of tensors.
    pub tensors: usize,
    /// Length of the safetensors file.
    pub bytes: u64,
}

/// Writes a file of f32 tensors with these names and shapes, whose values `values` returns by index, and syncs it to
/// disk.
pub(crate) fn write_tensors(
    path: &Path,
    tensors: &[(String, Vec<usize>)],
    mut values: impl FnMut(usize) -> Result<Vec<f32>>,
) -> Result<ExportSummary> {
    let mut end = 0;
    let header = safetensors_header::write(tensors.iter().map(|(name, shape)| {
        let start = end;
        end += shape.iter().product::<usize>() as u64 * ELEMENT_BYTES;
        (name.as_str(), shape.clone(), start)
    }));
    let io = |e| Error::io("write", path, e);
    let mut out =
        BufWriter::with_capacity(1 << 20, millrace_roots::create(path).map_err(|e| Error::io("create", path, e))?);
    out.write_all(&header).map_err(io)?;
    for tensor in 0..tensors.len() {
        write_f32(&mut out, &values(tensor)?).map_err(io)?;
    }
    out.flush().and_then(|()| out.get_ref().sync_all()).map_err(io)?;
    Ok(ExportSummary { path: path.to_owned(), tensors: tensors.len(), bytes: header.len() as u64 + end })
}

fn write_f32(out: &mut impl Write, values: &[f32]) -> std::io::Result<()> {
    let mut block = Vec::new();
    for part in values.chunks(1 << 14) {
        to_le_bytes(part, &mut block);
        out.write_all(&block)?;
    }
    Ok(())
}
