//! Reads the tensors of a Hugging Face directory. Nothing in it is trusted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::config::Gpt2Config;
use super::dtype::widen;
use super::json_file::{not_importable, read_json};
use crate::error::{Error, ModelDifference, Result};
use crate::files::stays_inside;
use crate::safetensors_header::{self, TensorEntry, element_bytes};

#[derive(Deserialize)]
struct WeightIndex {
    weight_map: BTreeMap<String, String>,
}

/// A Hugging Face directory, with tensor names without the prefix `transformer.`.
#[derive(Debug)]
pub(super) struct HfDirectory {
    pub dir: PathBuf,
    pub config: Gpt2Config,
    files: Vec<(PathBuf, File, u64)>,
    tensors: BTreeMap<String, (usize, TensorEntry)>,
}

impl HfDirectory {
    /// Opens `dir` and reads all headers.
    pub fn open(dir: &Path) -> Result<Self> {
        let config = Gpt2Config::read(dir)?;
        let index = dir.join("model.safetensors.index.json");
        let names = if millrace_roots::is_file(&index) {
            read_json::<WeightIndex>(&index, "download the directory again")?.weight_map.into_values().collect()
        } else {
            BTreeSet::from(["model.safetensors".to_owned()])
        };
        let mut source = Self { dir: dir.to_owned(), config, files: Vec::new(), tensors: BTreeMap::new() };
        for name in names {
            if !stays_inside(&name) {
                return Err(not_importable(
                    &index,
                    format!("it names {name:?}, outside the directory"),
                    "download the directory again",
                ));
            }
            source.add(&dir.join(name))?;
        }
        Ok(source)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let file = millrace_roots::open(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => not_importable(
                path,
                "it is missing".into(),
                "name a directory with safetensors weights; save others with `save_pretrained(..., safe_serialization=True)` first",
            ),
            _ => Error::io("read", path, e),
        })?;
        let (entries, data) = safetensors_header::read(&file).map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => not_importable(path, e.to_string(), "download the file again"),
            _ => Error::io("read", path, e),
        })?;
        for (name, entry) in entries {
            let name = name.strip_prefix("transformer.").map_or(name.clone(), str::to_owned);
            // Causal masks, frequencies and positions, which older versions save as buffers.
            let is_buffer = [".attn.bias", ".masked_bias", ".attention.bias", ".inv_freq", "position_ids"];
            if !is_buffer.iter().any(|buffer| name.ends_with(buffer)) {
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

    /// Returns the shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|(_, entry)| entry.shape.as_slice())
    }

    /// Returns the values of a tensor as f32.
    pub fn read(&self, name: &str) -> Result<Vec<f32>> {
        let missing = || Error::ModelMismatch {
            path: self.dir.clone(),
            difference: ModelDifference::Missing { name: name.into() },
        };
        let (file, entry) = self.tensors.get(name).ok_or_else(missing)?;
        let (path, file, data) = self.files.get(*file).ok_or_else(missing)?;
        let size = element_bytes(&entry.dtype).ok_or_else(|| {
            let hint = "convert the weights to float32, float16 or bfloat16 first";
            not_importable(path, format!("{name} is of type {}", entry.dtype), hint)
        })?;
        let (mut at, end) = (data + entry.data_offsets.0, data + entry.data_offsets.1);
        let mut values = Vec::with_capacity(((end - at) / size) as usize);
        let mut block = vec![0; 1 << 20];
        while at < end {
            let part = (end - at).min(block.len() as u64) as usize;
            file.read_exact_at(&mut block[..part], at).map_err(|e| Error::io("read", path, e))?;
            widen(&entry.dtype, &block[..part], &mut values);
            at += part as u64;
        }
        Ok(values)
    }
}
