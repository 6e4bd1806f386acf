//! Reads the tensors of a Hugging Face directory. Nothing in it is trusted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::config::Gpt2Config;
use super::json_file::read_json;
use crate::error::{Error, Result};
use crate::files::stays_inside;
use crate::weight_files::WeightFiles;

#[derive(Deserialize)]
struct WeightIndex {
    weight_map: BTreeMap<String, String>,
}

/// A Hugging Face directory, with tensor names without the prefix `transformer.`.
#[derive(Debug)]
pub(super) struct HfDirectory {
    pub dir: PathBuf,
    pub config: Gpt2Config,
    weights: WeightFiles,
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
        let mut source = Self { dir: dir.to_owned(), config, weights: WeightFiles::new(dir) };
        for name in names {
            if !stays_inside(&name) {
                return Err(Error::not_importable(
                    &index,
                    format!("it names {name:?}, outside the directory"),
                    "download the directory again",
                ));
            }
            source.weights.add(&dir.join(name), short_name)?;
        }
        Ok(source)
    }

    /// Returns the names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.weights.names()
    }

    /// Returns the shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.weights.shape(name)
    }

    /// Returns the values of a tensor as f32.
    pub fn read(&self, name: &str) -> Result<Vec<f32>> {
        self.weights.read(name)
    }
}

/// Returns the name of a tensor without the prefix that models with output layers have; `None` for causal masks,
/// frequencies and positions, which older versions save as buffers.
fn short_name(name: &str) -> Option<String> {
    let name = name.strip_prefix("transformer.").unwrap_or(name);
    let is_buffer = [".attn.bias", ".masked_bias", ".attention.bias", ".inv_freq", "position_ids"];
    (!is_buffer.iter().any(|buffer| name.ends_with(buffer))).then(|| name.to_owned())
}
