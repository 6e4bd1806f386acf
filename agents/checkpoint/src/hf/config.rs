//! `config.json` of a Hugging Face GPT-2: the keys that affect the computation, with the defaults of `transformers`.

use std::path::Path;

use millrace_emulator::ops::Nonlinearity;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::json_file::read_json;
use crate::error::{Error, Result};

/// Bounds on sizes, equal to those of the corresponding params.
pub(super) const MAX_VOCABULARY: usize = 1 << 24;
pub(super) const MAX_WIDTH: usize = 1 << 20;
pub(super) const MAX_LAYERS: usize = 1 << 14;
pub(super) const MAX_POSITIONS: usize = 1 << 22;

/// Activations: the name in `config.json`, the name in params, and the function. Exports use the first name of a
/// function.
const ACTIVATIONS: &[(&str, &str, Nonlinearity)] = &[
    ("gelu", "gelu", Nonlinearity::Gelu),
    ("gelu_new", "gelu_new", Nonlinearity::GeluTanh),
    ("gelu_pytorch_tanh", "gelu_new", Nonlinearity::GeluTanh),
    ("quick_gelu", "quick_gelu", Nonlinearity::QuickGelu),
    ("relu", "relu", Nonlinearity::Relu),
    ("relu2", "relu2", Nonlinearity::SquaredRelu),
    ("silu", "silu", Nonlinearity::Silu),
    ("swish", "silu", Nonlinearity::Silu),
    ("sigmoid", "sigmoid", Nonlinearity::Sigmoid),
    ("tanh", "tanh", Nonlinearity::Tanh),
    ("linear", "linear", Nonlinearity::Identity),
];

/// Returns the name of a function in `config.json`; `None` if transformers does not have it.
pub(super) fn hf_activation_name(function: Nonlinearity) -> Option<&'static str> {
    ACTIVATIONS.iter().find(|(_, _, kind)| *kind == function).map(|(name, ..)| *name)
}

/// Returns the name of a function in params for that in `config.json`; `None` if Millrace does not have it.
pub(super) fn params_activation(name: &str) -> Option<&'static str> {
    ACTIVATIONS.iter().find(|(hf_name, ..)| *hf_name == name).map(|(_, nonlinearity, _)| *nonlinearity)
}

/// Returns the f64 with the decimal digits of `value`: 0.1, not 0.10000000149011612.
pub(super) fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// The configuration. Other keys have no effect on what Millrace computes.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub(super) struct Gpt2Config {
    pub model_type: String,
    pub vocab_size: usize,
    pub n_positions: usize,
    pub n_embd: usize,
    pub n_layer: usize,
    pub n_head: usize,
    pub n_inner: Option<usize>,
    pub activation_function: String,
    pub resid_pdrop: f64,
    pub embd_pdrop: f64,
    pub attn_pdrop: f64,
    pub layer_norm_epsilon: f32,
    pub tie_word_embeddings: bool,
    pub scale_attn_weights: bool,
    pub scale_attn_by_inverse_layer_idx: bool,
    pub add_cross_attention: bool,
    pub quantization_config: Option<IgnoredAny>,
}

impl Default for Gpt2Config {
    fn default() -> Self {
        Self {
            model_type: String::new(),
            vocab_size: 50_257,
            n_positions: 1024,
            n_embd: 768,
            n_layer: 12,
            n_head: 12,
            n_inner: None,
            activation_function: "gelu_new".into(),
            resid_pdrop: 0.1,
            embd_pdrop: 0.1,
            attn_pdrop: 0.1,
            layer_norm_epsilon: 1e-5,
            tie_word_embeddings: true,
            scale_attn_weights: true,
            scale_attn_by_inverse_layer_idx: false,
            add_cross_attention: false,
            quantization_config: None,
        }
    }
}

impl Gpt2Config {
    /// Reads `config.json` in `dir`.
    ///
    /// # Errors
    /// [`Error::NotImportable`] if it or `dir` is missing, or if it is too long, not JSON, or has a value of the wrong
    /// type.
    pub fn read(dir: &Path) -> Result<Self> {
        if !millrace_roots::is_dir(dir) {
            let hint = "check the spelling; relative paths start at the working directory";
            return Err(Error::not_importable(dir, "it is not a directory".to_owned(), hint));
        }
        read_json(&dir.join("config.json"), "copy the config.json that belongs to these weights into it")
    }

    /// Returns the activation of the feed-forward network; `None` if Millrace does not have it.
    pub fn activation(&self) -> Option<Nonlinearity> {
        ACTIVATIONS.iter().find(|(name, ..)| *name == self.activation_function).map(|(_, _, kind)| *kind)
    }

    /// Returns the name of the activation in params; `None` if Millrace does not have it.
    pub fn params_activation(&self) -> Option<&'static str> {
        params_activation(&self.activation_function)
    }

    /// Returns the width of the feed-forward network.
    pub fn inner(&self) -> usize {
        self.n_inner.unwrap_or(self.n_embd.saturating_mul(4))
    }

    /// Checks that the model in `dir` is of this family.
    ///
    /// # Errors
    /// [`Error::NotImportable`].
    pub fn check_family(&self, dir: &Path) -> Result<()> {
        if self.model_type == "gpt2" {
            return Ok(());
        }
        let reason = format!("its config.json has model_type {:?}", self.model_type);
        Err(Error::not_importable(
            dir,
            reason,
            "give existing params with -p: --write_params writes those of decoders only",
        ))
    }

    /// Checks the model in `dir` for keys that request something Millrace can't train.
    ///
    /// # Errors
    /// [`Error::NotImportable`] with the first such key.
    pub fn check_trainable(&self, dir: &Path) -> Result<()> {
        self.check_family(dir)?;
        for (key, value, maximum) in [
            ("vocab_size", self.vocab_size, MAX_VOCABULARY),
            ("n_positions", self.n_positions, MAX_POSITIONS),
            ("n_embd", self.n_embd, MAX_WIDTH),
            ("n_layer", self.n_layer, MAX_LAYERS),
            ("n_head", self.n_head, MAX_WIDTH),
            ("n_inner", self.inner(), MAX_WIDTH),
        ] {
            if value == 0 || value > maximum {
                return Err(untrainable(dir, key, value, &format!("a number from 1 to {maximum}")));
            }
        }
        if !self.n_embd.is_multiple_of(self.n_head) {
            return Err(untrainable(dir, "n_head", self.n_head, &format!("a divisor of n_embd {}", self.n_embd)));
        }
        if self.activation().is_none() {
            let names: Vec<&str> = ACTIVATIONS.iter().map(|(name, ..)| *name).collect();
            let supported = format!("one of {}", names.join(", "));
            return Err(untrainable(dir, "activation_function", &self.activation_function, &supported));
        }
        for (key, rate) in
            [("resid_pdrop", self.resid_pdrop), ("embd_pdrop", self.embd_pdrop), ("attn_pdrop", self.attn_pdrop)]
        {
            if !(0.0..1.0).contains(&rate) {
                return Err(untrainable(dir, key, rate, "a number from 0 to less than 1"));
            }
        }
        let epsilon = self.layer_norm_epsilon;
        if !(epsilon.is_finite() && epsilon > 0.0) {
            return Err(untrainable(dir, "layer_norm_epsilon", epsilon, "a positive number"));
        }
        if self.add_cross_attention {
            return Err(untrainable(dir, "add_cross_attention", true, "false"));
        }
        if self.quantization_config.is_some() {
            let reason = "quantization_config of its config.json can't be trained: weights must have 16 or 32 bits";
            return Err(Error::not_importable(dir, reason.into(), "import the original model, without quantization"));
        }
        Ok(())
    }
}

/// Returns the error for `key` with the value `found`, where `expected` is supported.
pub(super) fn untrainable(dir: &Path, key: &str, found: impl std::fmt::Debug, expected: &str) -> Error {
    let found: String = format!("{found:?}").chars().take(80).collect();
    let reason = format!("{key} {found} of its config.json can't be trained: it must be {expected}");
    Error::not_importable(
        dir,
        reason,
        "import another model, or download the directory again if config.json is damaged",
    )
}
