//! The model families of `transformers` besides GPT-2: for each a file with its `config.json` and its tensors.
//!
//! A family describes a [`Structure`] as `transformers` would: settings, and for each of its tensors the rows of a
//! tensor of the graph. An export writes both; an import compares the settings and reads the tensors. A model that has
//! a part which the family lacks is rejected with a reason: the family's tensors must cover all tensors of the graph.

use millrace_emulator::graph::Graph;
use millrace_emulator::ops::Nonlinearity;
use serde_json::{Value, json};

use super::config::{decimal, hf_activation_name};
use super::mapping::{MappedTensor, Tensors};
use super::structure::{
    BlockForm, Decoder, Encoder, EncoderHead, EncoderPositions, NormForm, Seq2Seq, Structure, VisionTransformer,
};
use crate::error::{Error, Result};

mod bert;
mod bloom;
mod esm;
mod falcon;
mod gemma2;
mod gpt_bigcode;
mod gpt_neox;
mod gptj;
mod llama;
mod mpt;
mod roberta;
mod t5;
mod vit;

/// A family of `transformers`.
pub(super) struct HfFamily {
    /// `model_type` in `config.json`.
    pub name: &'static str,
    /// Describes a model; otherwise returns what the family does not have.
    describe: Description,
    /// Values of keys that a `config.json` may omit.
    pub defaults: fn() -> Value,
    /// Prefix of the names of all tensors but those of the output layers. Directories of models without output layers
    /// lack it.
    pub base: Option<&'static str>,
    /// Parts of names of tensors that directories have and `transformers` ignores, or that do not affect the output.
    pub unused_tensors: &'static [&'static str],
    /// Keys of `config.json` that do not affect the output.
    pub unused_keys: &'static [&'static str],
}

/// Describes a model of one structure, or returns what the family does not have.
enum Description {
    /// A decoder without the parts of Gemma 2.
    PlainDecoder(fn(&Decoder) -> Result<HfModel, Unsuitable>),
    Decoder(fn(&Decoder) -> Result<HfModel, Unsuitable>),
    Encoder(fn(&Encoder) -> Result<HfModel, Unsuitable>),
    VisionTransformer(fn(&VisionTransformer) -> Result<HfModel, Unsuitable>),
    Seq2Seq(fn(&Seq2Seq) -> Result<HfModel, Unsuitable>),
}

/// Completes "the family ...": a part that it has and the model does not, or the other way round.
type Unsuitable = &'static str;

/// Why a family can't describe a model: the rest of a sentence that begins with the family's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FamilyMismatch {
    #[error("{0}")]
    Part(Unsuitable),
    #[error("has no {0}")]
    Tensor(String),
}

/// All families. An export uses the first one that has all parts of a model.
const FAMILIES: &[HfFamily] = &[
    decoder("llama", llama::llama, llama::defaults),
    decoder("mistral", llama::mistral, llama::mistral_defaults),
    decoder("gptj", gptj::describe, gptj::defaults),
    decoder("gpt_neox", gpt_neox::describe, gpt_neox::defaults),
    decoder("falcon", falcon::describe, falcon::defaults),
    decoder("bloom", bloom::describe, bloom::defaults),
    decoder("mpt", mpt::describe, mpt::defaults),
    decoder("gpt_bigcode", gpt_bigcode::describe, gpt_bigcode::defaults),
    family("gemma2", Description::Decoder(gemma2::describe), gemma2::defaults),
    encoder("bert", bert::describe, bert::defaults, "bert."),
    encoder("roberta", roberta::describe, roberta::defaults, "roberta."),
    HfFamily {
        unused_tensors: esm::UNUSED_TENSORS,
        unused_keys: esm::UNUSED_KEYS,
        ..encoder("esm", esm::describe, esm::defaults, "esm.")
    },
    HfFamily { base: Some("vit."), ..family("vit", Description::VisionTransformer(vit::describe), vit::defaults) },
    HfFamily {
        unused_tensors: t5::UNUSED_TENSORS,
        unused_keys: t5::UNUSED_KEYS,
        ..family("t5", Description::Seq2Seq(t5::describe), t5::defaults)
    },
];

const fn family(name: &'static str, describe: Description, defaults: fn() -> Value) -> HfFamily {
    HfFamily { name, describe, defaults, base: None, unused_tensors: &[], unused_keys: &[] }
}

const fn decoder(
    name: &'static str,
    describe: fn(&Decoder) -> Result<HfModel, Unsuitable>,
    defaults: fn() -> Value,
) -> HfFamily {
    family(name, Description::PlainDecoder(describe), defaults)
}

const fn encoder(
    name: &'static str,
    describe: fn(&Encoder) -> Result<HfModel, Unsuitable>,
    defaults: fn() -> Value,
    base: &'static str,
) -> HfFamily {
    HfFamily { base: Some(base), ..family(name, Description::Encoder(describe), defaults) }
}

/// A model as a family of `transformers` describes it.
#[derive(Debug)]
pub(super) struct HfModel {
    /// `config.json`.
    pub config: Value,
    /// All tensors.
    pub tensors: Vec<MappedTensor>,
}

/// Returns the family called `name`.
pub(super) fn find(name: &str) -> Option<&'static HfFamily> {
    FAMILIES.iter().find(|family| family.name == name)
}

/// Returns the names of all families.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.name)
}

/// Describes a graph by the first family that has all of its parts.
///
/// # Errors
/// [`Error::NotExportable`] with what the families for its structure lack.
pub(super) fn describe(graph: &Graph) -> Result<HfModel> {
    let structure = Structure::from_graph(graph)?;
    let mut reasons = Vec::new();
    for family in FAMILIES.iter().filter(|family| family.describe.fits(&structure)) {
        match family.describe(graph, &structure) {
            Ok(model) => return Ok(model),
            Err(reason) => reasons.push(format!("{} {reason}", family.name)),
        }
    }
    let reason = format!("no family of transformers has all of its parts: {}", reasons.join("; "));
    let hint = "use `checkpoint info` and the safetensors files of the checkpoint".into();
    Err(Error::NotExportable { reason, hint })
}

impl Description {
    fn fits(&self, structure: &Structure) -> bool {
        matches!(
            (self, structure),
            (Self::PlainDecoder(_) | Self::Decoder(_), Structure::Decoder(_))
                | (Self::Encoder(_), Structure::Encoder(_))
                | (Self::VisionTransformer(_), Structure::VisionTransformer(_))
                | (Self::Seq2Seq(_), Structure::Seq2Seq(_))
        )
    }
}

impl HfFamily {
    /// Describes the model of `graph`, whose structure is `structure`.
    ///
    /// # Errors
    /// The first part in which they differ.
    pub fn describe(&self, graph: &Graph, structure: &Structure) -> Result<HfModel, FamilyMismatch> {
        let model = match (&self.describe, structure) {
            (Description::PlainDecoder(describe), Structure::Decoder(decoder)) => {
                require_plain(decoder).and_then(|()| describe(decoder))
            }
            (Description::Decoder(describe), Structure::Decoder(decoder)) => describe(decoder),
            (Description::Encoder(describe), Structure::Encoder(encoder)) => describe(encoder),
            (Description::VisionTransformer(describe), Structure::VisionTransformer(model)) => describe(model),
            (Description::Seq2Seq(describe), Structure::Seq2Seq(model)) => describe(model),
            (Description::PlainDecoder(_) | Description::Decoder(_), _) => Err("is a decoder"),
            (Description::Encoder(_), _) => Err("is an encoder"),
            (Description::VisionTransformer(_), _) => Err("reads images"),
            (Description::Seq2Seq(_), _) => Err("is an encoder with a decoder"),
        };
        let mut model = model.map_err(FamilyMismatch::Part)?;
        let used = |id: usize| model.tensors.iter().any(|tensor| tensor.tensor == Some(id));
        if let Some((_, tensor)) = graph.tensors.iter().enumerate().find(|(id, _)| !used(*id)) {
            return Err(FamilyMismatch::Tensor(tensor.name.clone()));
        }
        if let Value::Object(config) = &mut model.config {
            config.insert("model_type".into(), self.name.into());
            config.insert("dtype".into(), "float32".into());
            config.insert("torch_dtype".into(), "float32".into());
        }
        if let Structure::Decoder(decoder) = structure {
            model.config["vocab_size"] = decoder.vocabulary.into();
            model.config["tie_word_embeddings"] = decoder.is_tied.into();
            // Without a value, transformers assumes the token of the family's original vocabulary.
            model.config["bos_token_id"] = Value::Null;
            model.config["eos_token_id"] = Value::Null;
        }
        Ok(model)
    }
}

/// Checks that a decoder has no part that only Gemma 2 has.
fn require_plain(decoder: &Decoder) -> Result<(), Unsuitable> {
    require(&[
        (!decoder.block.is_branch_normalized, "does not normalize the outputs of attention and network"),
        (decoder.block.softcap.is_none(), "does not cap scores of attention"),
        (decoder.logits_softcap.is_none(), "does not cap logits"),
        (!decoder.is_window_alternating, "has the same window in all blocks"),
        (decoder.embedding_scale == 1.0, "does not scale embeddings"),
    ])
}

/// Returns an error unless all conditions hold.
fn require(conditions: &[(bool, Unsuitable)]) -> Result<(), Unsuitable> {
    conditions.iter().find(|(is_met, _)| !is_met).map_or(Ok(()), |(_, reason)| Err(*reason))
}

/// Returns the name of the activation.
fn activation(kind: Nonlinearity) -> Result<&'static str, Unsuitable> {
    hf_activation_name(kind).ok_or("does not have the activation")
}
