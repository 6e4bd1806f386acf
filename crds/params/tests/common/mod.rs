//! A small complete document, and functions that change one line of it.

#![allow(dead_code, reason = "every test file uses its own part")]

use millrace_params::{FlagOverrides, Params, ParamsError, ResolveOutput};

/// A document that resolves without a note; tests refer to its lines.
pub const SMALL: &str = "\
train_input:
  data_processor: GptTextDataProcessor
  data_files: [a.txt, b.txt]
  tokenizer: bytes
  batch_size: 8
  validation_fraction: 0.1
eval_input:
  batch_size: 4
model:
  vocab_size: 256
  hidden_size: 64
  num_hidden_layers: 2
  num_heads: 4
  max_position_embeddings: 256
optimizer:
  optimizer_type: AdamW
  learning_rate: 1e-3
runconfig:
  mode: train_and_eval
  max_steps: 100
";

/// Returns `SMALL` with `line` right after the section's head, instead of the line with the same key in that section.
pub fn with(section: &str, line: &str) -> String {
    let key = line.split(':').next().unwrap_or_default();
    let mut text = String::new();
    let mut inside = false;
    for old in SMALL.lines() {
        if !old.starts_with(' ') {
            inside = old.strip_suffix(':') == Some(section);
            text.push_str(&format!("{old}\n"));
            if inside {
                text.push_str(&format!("  {line}\n"));
            }
        } else if !(inside && old.trim_start().split(':').next() == Some(key)) {
            text.push_str(&format!("{old}\n"));
        }
    }
    text
}

/// Returns `SMALL` without a line.
pub fn without(line: &str) -> String {
    assert!(SMALL.contains(line));
    SMALL.replace(line, "")
}

pub fn resolve(text: &str) -> Result<ResolveOutput, ParamsError> {
    Params::parse_yaml(text)?.resolve(&FlagOverrides::default())
}

#[track_caller]
pub fn resolved(text: &str) -> ResolveOutput {
    match resolve(text) {
        Ok(resolved) => resolved,
        Err(e) => panic!("{}", e.report()),
    }
}

/// Returns an optimizer that has the key, for a key that AdamW does not have.
pub fn optimizer_with(path: &str) -> Option<&'static str> {
    Some(match path.strip_prefix("optimizer.")? {
        "momentum" | "dampening" | "nesterov" | "use_nesterov" => "SGD",
        "decoupled_weight_decay" => "RAdam",
        "rho" => "Adadelta",
        "alpha" | "centered" => "RMSprop",
        "lr_decay" | "initial_accumulator_value" => "Adagrad",
        "momentum_decay" => "NAdam",
        "adam" => "LAMB",
        "clip_threshold" | "decay_rate" | "scale_parameter" | "relative_step" | "warmup_init" => "AdaFactor",
        _ => return None,
    })
}

/// Keys that only models with an encoder and a decoder have.
pub const SEQUENCE_KEYS: &[&str] = &[
    "src_vocab_size",
    "tgt_vocab_size",
    "extra_ids",
    "d_model",
    "d_ff",
    "d_kv",
    "encoder_num_hidden_layers",
    "decoder_num_hidden_layers",
    "encoder_nonlinearity",
    "decoder_nonlinearity",
    "src_max_position_embeddings",
    "tgt_max_position_embeddings",
    "src_max_sequence_length",
    "tgt_max_sequence_length",
    "share_encoder_decoder_embedding",
    "use_t5_layer_norm",
    "use_relative_attention_bias",
    "relative_attention_num_buckets",
    "relu_dropout_rate",
    "use_pre_encoder_decoder_dropout",
    "use_pre_encoder_decoder_layer_norm",
    "use_dropout_outside_residual_path",
    "use_transformer_initialization",
    "lm_loss_weight",
    "mlm_loss_scaling",
    "src_data_dir",
    "src_vocab_file",
    "mup_base_d_model",
    "mup_base_d_ff",
    "mup_base_d_kv",
    "embeddings_alpha",
    "encoder_attention_logits_alpha",
    "decoder_attention_logits_alpha",
    "scale_encoder_qk_dot_by_d",
    "scale_decoder_qk_dot_by_d",
];
