//! Writes the section `model` of params for a decoder of `transformers` besides GPT-2, from its `config.json`.
//!
//! The import compares everything that is written here with the weights, so what a configuration has beyond these keys
//! is reported there.

use std::path::Path;

use serde_json::{Value, json};

use super::config::{MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH, params_activation, untrainable};
use super::families;
use super::settings::with_older_keys;
use crate::error::{Error, Result};

/// The section `model`: keys and values.
pub(super) struct ModelParams {
    pub vocabulary: usize,
    pub positions: usize,
    pub keys: Vec<(&'static str, Value)>,
}

/// The keys of a family for its sizes: width, blocks, heads, width of the network, positions, epsilon of norms.
type SizeKeys = [&'static str; 6];

const LLAMA_KEYS: SizeKeys = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "rms_norm_eps",
];
const GPT_KEYS: SizeKeys = ["n_embd", "n_layer", "n_head", "n_inner", "n_positions", "layer_norm_epsilon"];
const NEOX_KEYS: SizeKeys = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "layer_norm_eps",
];
const FALCON_KEYS: SizeKeys = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "ffn_hidden_size",
    "max_position_embeddings",
    "layer_norm_epsilon",
];
const BLOOM_KEYS: SizeKeys = ["hidden_size", "n_layer", "n_head", "", "seq_length", "layer_norm_epsilon"];
const MPT_KEYS: SizeKeys = ["d_model", "n_layers", "n_heads", "", "max_seq_len", "layer_norm_epsilon"];

/// Positions of a configuration that names none, because its model has no table of them.
const DEFAULT_POSITIONS: usize = 2048;

/// Returns the section `model` for the configuration in `dir`; `None` for a family without such params.
///
/// # Errors
/// [`Error::NotImportable`](crate::Error::NotImportable) with a key that requests something Millrace can't train.
pub(super) fn model_params(dir: &Path, config: &Value) -> Result<Option<ModelParams>> {
    let Some(family) = config["model_type"].as_str().and_then(families::find) else { return Ok(None) };
    let config = Configuration { dir, config: with_older_keys(config), defaults: (family.defaults)() };
    let params = match family.name {
        name @ ("llama" | "mistral") => llama(&config, name),
        "gptj" => gptj(&config),
        "gpt_neox" => gpt_neox(&config),
        "falcon" => falcon(&config),
        "bloom" => bloom(&config),
        "mpt" => mpt(&config),
        "gpt_bigcode" => gpt_bigcode(&config),
        _ => return Ok(None),
    };
    params.map(Some)
}

fn llama(config: &Configuration<'_>, name: &'static str) -> Result<ModelParams> {
    let mut params = config.sizes(name, LLAMA_KEYS)?;
    let heads = config.size(LLAMA_KEYS[2], MAX_WIDTH)?;
    let width = config.size(LLAMA_KEYS[0], MAX_WIDTH)?;
    let head_dim = config.optional_size("head_dim", MAX_WIDTH)?.unwrap_or((width / heads).max(1));
    let attention = heads.saturating_mul(head_dim);
    if attention != width {
        params.keys.push(("attention_inner_dim", attention.into()));
    }
    config.expect("hidden_act", &"silu".into())?;
    let [attention_bias, mlp_bias] = ["attention_bias", "mlp_bias"].map(|key| config.flag(key));
    params.keys.extend([
        ("nonlinearity", "swiglu".into()),
        ("norm_type", "rmsnorm".into()),
        ("use_projection_bias_in_attention", attention_bias.into()),
        ("use_ffn_bias_in_attention", attention_bias.into()),
        ("use_ffn_bias", mlp_bias.into()),
    ]);
    params.key_heads(heads, config.optional_size("num_key_value_heads", heads)?.unwrap_or(heads));
    params.rotary(config, head_dim)?;
    if let Some(window) = config.optional_size("sliding_window", MAX_POSITIONS)? {
        params.keys.push(("attention_sliding_window_length", window.into()));
    }
    Ok(params)
}

fn gptj(config: &Configuration<'_>) -> Result<ModelParams> {
    let mut params = config.sizes("gptj", GPT_KEYS)?;
    params.keys.extend([
        ("nonlinearity", config.activation("activation_function")?),
        ("use_projection_bias_in_attention", false.into()),
        ("use_ffn_bias_in_attention", false.into()),
        ("use_bias_in_output", true.into()),
    ]);
    params.rotary(config, config.size("rotary_dim", MAX_WIDTH)?)?;
    Ok(params)
}

fn gpt_neox(config: &Configuration<'_>) -> Result<ModelParams> {
    let mut params = config.sizes("gptj", NEOX_KEYS)?;
    config.expect("use_parallel_residual", &true.into())?;
    config.expect("attention_bias", &true.into())?;
    let [width, heads] = [NEOX_KEYS[0], NEOX_KEYS[2]].map(|key| config.size(key, MAX_WIDTH));
    let share = config.get("rotary_pct").and_then(Value::as_f64).unwrap_or(0.25).clamp(0.0, 1.0);
    let dimensions = (((width? / heads?) as f64) * share).round() as usize;
    params.keys.extend([("nonlinearity", config.activation("hidden_act")?), ("use_untied_layer_norm", true.into())]);
    params.rotary(config, dimensions)?;
    Ok(params)
}

fn falcon(config: &Configuration<'_>) -> Result<ModelParams> {
    let mut params = config.sizes("falcon", FALCON_KEYS)?;
    for (key, value) in [("new_decoder_architecture", false), ("alibi", false), ("parallel_attn", true)] {
        config.expect(key, &value.into())?;
    }
    let [width, heads] = [FALCON_KEYS[0], FALCON_KEYS[2]].map(|key| config.size(key, MAX_WIDTH));
    let (width, heads, biased) = (width?, heads?, config.flag("bias"));
    params.keys.extend([
        ("nonlinearity", config.activation("activation")?),
        ("use_projection_bias_in_attention", biased.into()),
        ("use_ffn_bias_in_attention", biased.into()),
        ("use_ffn_bias", biased.into()),
    ]);
    params.key_heads(heads, if config.flag("multi_query") { 1 } else { heads });
    params.rotary(config, width / heads)?;
    Ok(params)
}

fn bloom(config: &Configuration<'_>) -> Result<ModelParams> {
    let mut params = config.sizes("bloom", BLOOM_KEYS)?;
    config.expect("apply_residual_connection_post_layernorm", &false.into())?;
    params.keys.extend([
        ("nonlinearity", "gelu_new".into()),
        ("position_embedding_type", "alibi".into()),
        ("embedding_layer_norm", true.into()),
    ]);
    Ok(params)
}

fn mpt(config: &Configuration<'_>) -> Result<ModelParams> {
    let mut params = config.sizes("mpt", MPT_KEYS)?;
    config.expect("no_bias", &true.into())?;
    params.keys.extend([
        ("nonlinearity", "gelu".into()),
        ("position_embedding_type", "alibi".into()),
        ("norm_type", "biasless-layernorm".into()),
        ("use_projection_bias_in_attention", false.into()),
        ("use_ffn_bias_in_attention", false.into()),
        ("use_ffn_bias", false.into()),
    ]);
    Ok(params)
}

fn gpt_bigcode(config: &Configuration<'_>) -> Result<ModelParams> {
    let mut params = config.sizes("starcoder", GPT_KEYS)?;
    let heads = config.size("n_head", MAX_WIDTH)?;
    params.keys.extend([
        ("nonlinearity", config.activation("activation_function")?),
        ("position_embedding_type", "learned".into()),
    ]);
    params.key_heads(heads, if config.flag("multi_query") { 1 } else { heads });
    Ok(params)
}

impl ModelParams {
    fn key_heads(&mut self, heads: usize, key_heads: usize) {
        if key_heads != heads {
            self.keys.push(("attention_module", "multiquery_attention".into()));
            self.keys.push(("extra_attention_params", json!({"num_kv_groups": key_heads})));
        }
    }

    fn rotary(&mut self, config: &Configuration<'_>, dimensions: usize) -> Result<()> {
        self.keys.extend([("position_embedding_type", "rotary".into()), ("rotary_dim", dimensions.into())]);
        let number = |key: &'static str, value: &Value| match value.is_number() {
            true => Ok(value.clone()),
            false => Err(untrainable(config.dir, key, format_args!("{value}"), "a number")),
        };
        let base = ["rope_theta", "rotary_emb_base"].into_iter().find_map(|key| config.get(key));
        self.keys.push(("rope_theta", number("rope_theta", base.unwrap_or(&json!(10_000.0)))?));
        let Some(scaling) = config.get("rope_scaling") else { return Ok(()) };
        let kind = ["rope_type", "type"].into_iter().find_map(|key| scaling[key].as_str());
        self.keys.push(("pos_scaling_factor", number("rope_scaling", &scaling["factor"])?));
        match kind {
            Some("linear") => {}
            Some("llama3") => {
                let mut extra = json!({});
                for key in ["low_freq_factor", "high_freq_factor", "original_max_position_embeddings"] {
                    extra[key] = number("rope_scaling", &scaling[key])?;
                }
                self.keys.extend([("pos_scaling_type", "llama3".into()), ("pos_scaling_extra_args", extra)]);
            }
            _ => {
                return Err(untrainable(
                    config.dir,
                    "rope_scaling",
                    format_args!("{scaling}"),
                    "of type linear or llama3",
                ));
            }
        }
        Ok(())
    }
}

/// A `config.json`.
struct Configuration<'a> {
    dir: &'a Path,
    config: Value,
    /// Values of keys that it may omit.
    defaults: Value,
}

impl Configuration<'_> {
    /// Returns the value of a key, or its default, unless it is null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.config.get(key).or_else(|| self.defaults.get(key)).filter(|value| !value.is_null())
    }

    fn flag(&self, key: &str) -> bool {
        self.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    fn optional_size(&self, key: &str, maximum: usize) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        match size.filter(|size| (1..=maximum).contains(size)) {
            Some(size) => Ok(Some(size)),
            None => Err(untrainable(self.dir, key, format_args!("{value}"), &format!("a number from 1 to {maximum}"))),
        }
    }

    fn size(&self, key: &str, maximum: usize) -> Result<usize> {
        self.optional_size(key, maximum)?.ok_or_else(|| {
            let reason = format!("its config.json has no {key}");
            Error::not_importable(self.dir, reason, "download the directory again")
        })
    }

    /// Checks that a key has a value, if it is given.
    fn expect(&self, key: &str, expected: &Value) -> Result<()> {
        match self.get(key) {
            Some(value) if value != expected => {
                Err(untrainable(self.dir, key, format_args!("{value}"), &expected.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the name of an activation in params.
    fn activation(&self, key: &str) -> Result<Value> {
        let name = self.get(key).and_then(Value::as_str).unwrap_or("gelu");
        let supported = params_activation(name);
        supported.map(Value::from).ok_or_else(|| untrainable(self.dir, key, name, "an activation of Millrace"))
    }

    /// Returns the keys that all families have.
    fn sizes(&self, name: &'static str, keys: SizeKeys) -> Result<ModelParams> {
        let [width, layers, heads, network, positions, epsilon] = keys;
        let vocabulary = self.size("vocab_size", MAX_VOCABULARY)?;
        let hidden = self.size(width, MAX_WIDTH)?;
        let network = self.optional_size(network, MAX_WIDTH)?.unwrap_or(hidden.saturating_mul(4));
        let positions = self.optional_size(positions, MAX_POSITIONS)?.unwrap_or(DEFAULT_POSITIONS);
        let epsilon = self.get(epsilon).and_then(Value::as_f64).unwrap_or(1e-5);
        let keys = vec![
            ("name", name.into()),
            ("vocab_size", vocabulary.into()),
            ("hidden_size", hidden.into()),
            ("num_hidden_layers", self.size(layers, MAX_LAYERS)?.into()),
            ("num_heads", self.size(heads, MAX_WIDTH)?.into()),
            ("filter_size", network.into()),
            ("max_position_embeddings", positions.into()),
            ("share_embedding_weights", self.flag("tie_word_embeddings").into()),
            ("layer_norm_epsilon", epsilon.into()),
            ("dropout_rate", json!(0.0)),
            ("mixed_precision", false.into()),
        ];
        Ok(ModelParams { vocabulary, positions, keys })
    }
}
