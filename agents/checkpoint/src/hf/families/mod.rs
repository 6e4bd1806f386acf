//! The decoder families of `transformers` besides GPT-2: for each a file with its `config.json` and its tensors.
//!
//! A family describes a [`Decoder`] as `transformers` would: settings, and for each of its tensors the rows of ours. An
//! export writes both; an import compares the settings and reads the tensors. A decoder that has a part which the
//! family lacks is rejected with a reason: its tensors must cover all of ours.

use millrace_emulator::graph::{Graph, TensorId};
use serde_json::{Map, Value, json};

use super::config::hf_activation_name;
use super::decoder::{BlockForm, Decoder, NormForm};
use crate::error::{Error, Result};

mod bloom;
mod falcon;
mod gpt_bigcode;
mod gpt_neox;
mod gptj;
mod llama;
mod mpt;

/// A family of `transformers`.
pub(super) struct HfFamily {
    /// `model_type` in `config.json`.
    pub name: &'static str,
    /// Describes a decoder; otherwise returns what the family does not have.
    describe: fn(&Decoder) -> Result<HfModel, Unsuitable>,
    /// Values of keys that a `config.json` may omit.
    pub defaults: fn() -> Value,
}

/// Completes "the family ...": a part that it has and the decoder does not, or the other way round.
type Unsuitable = &'static str;

/// Why a family can't describe a decoder: the rest of a sentence that begins with the family's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FamilyMismatch {
    #[error("{0}")]
    Part(Unsuitable),
    #[error("has no {0}")]
    Tensor(String),
}

const FAMILIES: &[HfFamily] = &[
    HfFamily { name: "llama", describe: llama::llama, defaults: llama::defaults },
    HfFamily { name: "mistral", describe: llama::mistral, defaults: llama::mistral_defaults },
    HfFamily { name: "gptj", describe: gptj::describe, defaults: gptj::defaults },
    HfFamily { name: "gpt_neox", describe: gpt_neox::describe, defaults: gpt_neox::defaults },
    HfFamily { name: "falcon", describe: falcon::describe, defaults: falcon::defaults },
    HfFamily { name: "bloom", describe: bloom::describe, defaults: bloom::defaults },
    HfFamily { name: "mpt", describe: mpt::describe, defaults: mpt::defaults },
    HfFamily { name: "gpt_bigcode", describe: gpt_bigcode::describe, defaults: gpt_bigcode::defaults },
];

/// A decoder as a family of `transformers` describes it.
#[derive(Debug)]
pub(super) struct HfModel {
    /// `config.json`.
    pub config: Value,
    /// All tensors.
    pub tensors: Vec<MappedTensor>,
}

/// A tensor of `transformers` and its rows in one of ours.
#[derive(Clone, Debug)]
pub(super) struct MappedTensor {
    pub name: String,
    pub shape: Vec<usize>,
    /// Our tensor; `None` for a bias that this model does not have: zeros.
    pub ours: Option<TensorId>,
    /// Row of ours that is the first row.
    first: usize,
    order: RowOrder,
    /// Number of rows at the start of ours that compute queries, and the factor by which exported ones are larger.
    queries: (usize, f32),
}

/// Order of the rows of queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowOrder {
    /// As ours: all queries, all keys, all values.
    Same,
    /// For each head of keys its queries, its keys and its values.
    ByKeyHead { group: usize, key_heads: usize, head_dim: usize },
}

impl MappedTensor {
    /// Returns our row for a row of `transformers`.
    fn our_row(&self, row: usize) -> usize {
        match self.order {
            RowOrder::Same => self.first + row,
            RowOrder::ByKeyHead { group, key_heads, head_dim } => {
                let (head, element) = (row / head_dim, row % head_dim);
                let (key_head, part) = (head / (group + 2), head % (group + 2));
                let head = match part.checked_sub(group) {
                    None => key_head * group + part,
                    Some(kind) => group * key_heads + kind * key_heads + key_head,
                };
                head * head_dim + element
            }
        }
    }

    fn columns(&self) -> usize {
        self.shape.get(1).copied().unwrap_or(1)
    }

    /// Returns the values for `transformers` from those of ours.
    pub fn export(&self, ours: &[f32]) -> Vec<f32> {
        let columns = self.columns();
        let mut theirs = Vec::with_capacity(self.shape.iter().product());
        for row in 0..self.shape.first().copied().unwrap_or(0) {
            let row = self.our_row(row);
            let factor = if row < self.queries.0 { self.queries.1 } else { 1.0 };
            theirs.extend(ours[row * columns..][..columns].iter().map(|value| value * factor));
        }
        theirs
    }

    /// Writes the values of `transformers` to their rows in ours.
    pub fn import(&self, theirs: &[f32], ours: &mut [f32]) {
        let columns = self.columns();
        for (row, values) in theirs.chunks_exact(columns).enumerate() {
            let row = self.our_row(row);
            let factor = if row < self.queries.0 { self.queries.1 } else { 1.0 };
            ours[row * columns..][..columns].iter_mut().zip(values).for_each(|(ours, value)| *ours = value / factor);
        }
    }
}

/// Returns the family called `name`.
pub(super) fn family(name: &str) -> Option<&'static HfFamily> {
    FAMILIES.iter().find(|family| family.name == name)
}

/// Describes a graph by the first family that has all of its parts.
///
/// # Errors
/// [`Error::NotExportable`] with what the families lack.
pub(super) fn describe(graph: &Graph) -> Result<HfModel> {
    let decoder = Decoder::from_graph(graph)?;
    let mut reasons = Vec::new();
    for family in FAMILIES {
        match family.describe(graph, &decoder) {
            Ok(model) => return Ok(model),
            Err(reason) => reasons.push(format!("{} {reason}", family.name)),
        }
    }
    let reason = format!("no family of transformers has all of its parts: {}", reasons.join("; "));
    let hint = "use `checkpoint info` and the safetensors files of the checkpoint".into();
    Err(Error::NotExportable { reason, hint })
}

impl HfFamily {
    /// Describes a decoder.
    ///
    /// # Errors
    /// The first part in which they differ.
    pub fn describe(&self, graph: &Graph, decoder: &Decoder) -> Result<HfModel, FamilyMismatch> {
        let mut model = (self.describe)(decoder).map_err(FamilyMismatch::Part)?;
        let used = |id: usize| model.tensors.iter().any(|tensor| tensor.ours == Some(id));
        if let Some((_, tensor)) = graph.tensors.iter().enumerate().find(|(id, _)| !used(*id)) {
            return Err(FamilyMismatch::Tensor(tensor.name.clone()));
        }
        if let Value::Object(config) = &mut model.config {
            config.insert("model_type".into(), self.name.into());
            config.insert("vocab_size".into(), decoder.vocabulary.into());
            config.insert("tie_word_embeddings".into(), decoder.is_tied.into());
            config.insert("dtype".into(), "float32".into());
            config.insert("torch_dtype".into(), "float32".into());
        }
        Ok(model)
    }
}

/// Builds the list of a family's tensors.
struct Tensors<'a> {
    decoder: &'a Decoder,
    all: Vec<MappedTensor>,
}

impl<'a> Tensors<'a> {
    fn new(decoder: &'a Decoder) -> Self {
        Self { decoder, all: Vec::new() }
    }

    /// Adds the weight and the bias that we have.
    fn layer(&mut self, theirs: &str, ours: &str) {
        self.add(theirs, ours, "weight", None, RowOrder::Same);
        self.add(theirs, ours, "bias", None, RowOrder::Same);
    }

    /// Adds the weight and a bias, of zeros if we have none.
    fn biased_layer(&mut self, theirs: &str, ours: &str) {
        self.layer(theirs, ours);
        self.zero_bias(theirs, ours);
    }

    /// Adds queries, keys and values as one layer in the order of key heads.
    fn by_key_head(&mut self, theirs: &str, ours: &str, is_biased: bool) {
        let (block, head_dim) = (&self.decoder.block, self.decoder.head_dim);
        let (group, key_heads) = (block.heads / block.key_heads.max(1), block.key_heads);
        let order = RowOrder::ByKeyHead { group, key_heads, head_dim };
        self.add(theirs, ours, "weight", None, order);
        self.add(theirs, ours, "bias", None, order);
        if is_biased {
            self.zero_bias(theirs, ours);
        }
    }

    /// Adds queries, keys and values as layers of their own.
    fn split(&mut self, theirs: [&str; 3], ours: &str) {
        let (block, head_dim) = (&self.decoder.block, self.decoder.head_dim);
        let (queries, keys) = (block.heads * head_dim, block.key_heads * head_dim);
        for (theirs, rows) in theirs.into_iter().zip([(0, queries), (queries, keys), (queries + keys, keys)]) {
            self.add(theirs, ours, "weight", Some(rows), RowOrder::Same);
            self.add(theirs, ours, "bias", Some(rows), RowOrder::Same);
        }
    }

    fn zero_bias(&mut self, theirs: &str, ours: &str) {
        let shape = self.decoder.tensor(&format!("{ours}.weight")).map(|(_, shape)| shape[..1].to_vec());
        if let (Some(shape), false) = (shape, self.decoder.has(&format!("{ours}.bias"))) {
            let (name, order) = (format!("{theirs}.bias"), RowOrder::Same);
            self.all.push(MappedTensor { name, shape, ours: None, first: 0, order, queries: (0, 1.0) });
        }
    }

    fn add(&mut self, theirs: &str, ours: &str, kind: &str, rows: Option<(usize, usize)>, order: RowOrder) {
        let Some((id, shape)) = self.decoder.tensor(&format!("{ours}.{kind}")) else { return };
        let mut shape = shape.to_vec();
        let (first, count) = rows.unwrap_or((0, shape[0]));
        shape[0] = count;
        let queries = self.decoder.block.heads * self.decoder.head_dim;
        let factor = self.decoder.query_factor();
        let queries = if ours.ends_with("attn.qkv") { (queries, factor) } else { (0, 1.0) };
        self.all.push(MappedTensor { name: format!("{theirs}.{kind}"), shape, ours: Some(id), first, order, queries });
    }

    /// Adds the output layer, unless it is the token embedding.
    fn head(&mut self, theirs: &str) {
        if !self.decoder.is_tied {
            self.layer(theirs, "lm_head");
        }
    }
}

/// Returns an error unless all conditions hold.
fn require(conditions: &[(bool, Unsuitable)]) -> Result<(), Unsuitable> {
    conditions.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, reason)| Err(*reason))
}

/// Returns the name of the activation.
fn activation(decoder: &Decoder) -> Result<&'static str, Unsuitable> {
    hf_activation_name(decoder.block.activation).ok_or("does not have the activation")
}

/// Returns the f64 with the decimal digits of `value`: 0.1, not 0.10000000149011612.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// Returns keys of `config.json` with which `theirs` differs from `ours`, with both values. Keys that neither affect
/// the computation nor can differ are not compared.
pub(super) fn differing_key(ours: &Value, theirs: &Value, defaults: &Value) -> Option<(String, Value, Value)> {
    const IGNORED: [&str; 6] =
        ["architectures", "dtype", "torch_dtype", "model_type", "max_position_embeddings", "max_seq_len"];
    let theirs = with_plain_rope(theirs);
    let empty = Map::new();
    for (key, ours) in ours.as_object().unwrap_or(&empty) {
        if IGNORED.contains(&key.as_str()) || key.ends_with("dropout") || key.ends_with("pdrop") {
            continue;
        }
        let Some(theirs) = theirs.get(key).or_else(|| defaults.get(key)) else { continue };
        if !is_same(ours, theirs) {
            return Some((key.clone(), theirs.clone(), ours.clone()));
        }
    }
    None
}

fn is_same(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Number(ours), Value::Number(theirs)) => {
            ours.as_f64().map(|value| value as f32) == theirs.as_f64().map(|value| value as f32)
        }
        (Value::Object(ours), Value::Object(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().all(|(key, value)| theirs.get(key).is_some_and(|other| is_same(value, other)))
        }
        // The names of one function.
        (Value::String(ours), Value::String(theirs)) => {
            ours == theirs
                || [ours, theirs].iter().all(|name| ["gelu_new", "gelu_pytorch_tanh"].contains(&name.as_str()))
        }
        (ours, theirs) => ours == theirs,
    }
}

/// Replaces `rope_parameters` of newer versions of transformers by the keys of older ones, which both read.
fn with_plain_rope(config: &Value) -> Value {
    let mut config = config.clone();
    let Some(Value::Object(mut rope)) = config.get("rope_parameters").cloned() else { return config };
    for (from, to) in [("rope_theta", "rope_theta"), ("partial_rotary_factor", "rotary_pct")] {
        if let Some(value) = rope.remove(from) {
            config[to] = value.clone();
            if from == "rope_theta" {
                config["rotary_emb_base"] = value;
            }
        }
    }
    let is_default = rope.get("rope_type").is_none_or(|kind| kind == "default");
    config["rope_scaling"] = if is_default { Value::Null } else { Value::Object(rope) };
    config
}
