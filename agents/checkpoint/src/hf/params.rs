//! Writes params for a Hugging Face decoder: a YAML document with the model of `config.json`, and values to start
//! fine-tuning from.
//!
//! ```yaml
//! model:                  # as config.json has it: imported weights fit no other
//!     name: gpt2
//!     vocab_size: 50257
//! ```

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use super::config::Gpt2Config;
use super::json_file::read_json;
use super::model_params::{ModelParams, model_params};
use crate::error::Result;

/// Tokens of GPT-2's own encoding; vocabularies are often padded beyond this.
const GPT2_TOKENS: usize = 50_257;
/// Tokens of the tokenizer `bytes`.
const BYTE_TOKENS: usize = 256;

/// Maximum length of samples that is proposed for a model of many more positions.
const MAX_PROPOSED_LENGTH: usize = 2048;

/// Values that `config.json` does not contain.
#[derive(Clone, Copy, Debug)]
pub struct Choices<'a> {
    /// Directory of the imported checkpoint.
    pub model_dir: &'a str,
    /// Systems to train on.
    pub num_csx: u64,
}

/// Returns params, as YAML, that train the model described by `hf_dir/config.json`. Lines that the user must check are
/// marked `EDIT`.
///
/// # Errors
/// [`Error::NotImportable`](crate::Error::NotImportable) if the file can't be read, or with the key that requests
/// something Millrace can't train.
pub fn params_text(hf_dir: &Path, choices: Choices<'_>) -> Result<String> {
    let section = ModelSection::read(hf_dir)?;
    Ok(format!(
        "\
# Fine-tunes the model of {source}.
# Look at every line marked EDIT before you train.

{input}

eval_input:                                 # reads the part of train_input's files that is kept apart
    batch_size: 8

{model}
optimizer:
    optimizer_type: AdamW
    betas: [0.9, 0.999]
    eps: 1e-8
    weight_decay: 0.01                      # not on biases and norms
    max_gradient_norm: 1.0
    learning_rate:                          # EDIT: usual for fine-tuning; 100 steps up, 900 down
        - scheduler: Linear
          initial_learning_rate: 0.0
          end_learning_rate: 5e-5
          total_iters: 100
        - scheduler: CosineDecay
          initial_learning_rate: 5e-5
          end_learning_rate: 5e-6
          total_iters: 900

runconfig:
    mode: train_and_eval
{model_dir}
{num_csx}
    max_steps: 1000                         # EDIT: with the learning rate's steps
    log_steps: 10
    eval_frequency: 100
    eval_steps: 10                          # batches of an evaluation
    checkpoint_steps: 500
    seed: 1
",
        source = quoted(&hf_dir.to_string_lossy()),
        input = train_input(hf_dir, &section),
        model = section.text,
        model_dir =
            line(&format!("model_dir: {}", quoted(choices.model_dir)), "has the imported weights as checkpoint_0"),
        num_csx = line(&format!("num_csx: {}", choices.num_csx), "systems; changes no bit of the result"),
    ))
}

/// The section `model`, and what the section `train_input` must suit.
struct ModelSection {
    text: String,
    is_gpt2: bool,
    vocabulary: usize,
    positions: usize,
}

impl ModelSection {
    fn read(hf_dir: &Path) -> Result<Self> {
        let config = Gpt2Config::read(hf_dir)?;
        let document: Value = read_json(&hf_dir.join("config.json"), "download the directory again")?;
        if let Some(ModelParams { vocabulary, positions, keys }) = model_params(hf_dir, &document)? {
            let comment = "as config.json has it: the imported weights fit no other";
            let mut text = format!("{:<43} # {comment}\n", "model:");
            text.extend(keys.into_iter().map(|(key, value)| format!("    {key}: {value}\n")));
            return Ok(Self { text, is_gpt2: false, vocabulary, positions });
        }
        config.check_trainable(hf_dir)?;
        let (vocabulary, positions) = (config.vocab_size, config.n_positions);
        Ok(Self { text: model(&config), is_gpt2: true, vocabulary, positions })
    }
}

/// Writes `train_input`: text if the model has a tokenizer, or the vocabulary is that of a known one; otherwise token
/// files.
fn train_input(hf_dir: &Path, model: &ModelSection) -> String {
    let file = hf_dir.join("tokenizer.json");
    let tokenizer = match model.vocabulary {
        _ if millrace_roots::is_file(&file) => {
            Some(line(&format!("tokenizer_file: {}", quoted(&file.to_string_lossy())), "that of the model"))
        }
        BYTE_TOKENS => Some(line("tokenizer: bytes", "a token is a byte")),
        GPT2_TOKENS.. if model.is_gpt2 => {
            Some(line("tokenizer: gpt2", "EDIT: tokenizer_file: FILE, if the model has its own"))
        }
        _ => None,
    };
    let mut lines = vec!["train_input:".to_owned()];
    if let Some(tokenizer) = tokenizer {
        lines.push(line("data_processor: GptTextDataProcessor", "UTF-8 text; GptTokenDataProcessor reads token files"));
        lines.push(line("data_files: data/*.txt", "EDIT: your text, relative to this file or the working directory"));
        lines.push(tokenizer);
    } else {
        let comment = "token files: .npy or little-endian u16, made with the model's own tokenizer";
        lines.push(line("data_processor: GptTokenDataProcessor", comment));
        lines.push(line("data_files: data/*.bin", "EDIT: your files, relative to this file or the working directory"));
    }
    let length = if model.is_gpt2 { model.positions } else { model.positions.min(MAX_PROPOSED_LENGTH) };
    let length = format!("max_sequence_length: {length}");
    lines.push(line(&length, "EDIT: tokens of a sample, at most max_position_embeddings"));
    lines.push(line("validation_fraction: 0.05", "the last 5% of the tokens are kept for eval_input"));
    lines.push(line("shuffle: True", "another order in each epoch"));
    lines.push(line("batch_size: 8", "EDIT: samples in a batch, over all systems together"));
    lines.join("\n")
}

/// Writes `model`.
fn model(config: &Gpt2Config) -> String {
    let nonlinearity = config.params_activation().unwrap_or("gelu_new");
    format!(
        "\
model:                                      # as config.json has it: the imported weights fit no other
    name: gpt2
    vocab_size: {vocab}
    hidden_size: {hidden}
    num_hidden_layers: {layers}
    num_heads: {heads}
    filter_size: {filter}
    max_position_embeddings: {positions}
    share_embedding_weights: {tied}
    nonlinearity: {nonlinearity}
    layer_norm_epsilon: {epsilon:?}
{dropout}
    embedding_dropout_rate: {embedding:?}
    attention_dropout_rate: {attention:?}
    mixed_precision: False                  # True computes with bfloat16 weights
",
        vocab = config.vocab_size,
        hidden = config.n_embd,
        layers = config.n_layer,
        heads = config.n_head,
        filter = config.inner(),
        positions = config.n_positions,
        tied = if config.tie_word_embeddings { "True" } else { "False" },
        epsilon = config.layer_norm_epsilon,
        dropout = line(&format!("dropout_rate: {:?}", config.resid_pdrop), "the three rates may be changed"),
        embedding = config.embd_pdrop,
        attention = config.attn_pdrop,
    )
}

/// Formats a line of a section with a comment.
fn line(key: &str, comment: &str) -> String {
    format!("    {key:<39} # {comment}")
}

/// Formats a string in YAML double quotes, on one line for any content.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            ' '..='~' => quoted.push(character),
            _ if character.is_alphanumeric() => quoted.push(character),
            // Writing to a String can't fail.
            _ => drop(write!(quoted, "\\U{:08X}", u32::from(character))),
        }
    }
    quoted + "\""
}
