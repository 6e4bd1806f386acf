//! Recognizes the architecture of a graph by its operators, whatever its tensors are called.
//!
//! ```text
//! graph reads               structure
//! image                     VisionTransformer
//! decoder_input_ids         Seq2Seq             encoder and decoder, pre-norm
//! attention_mask            Encoder             blocks attend in both directions; a head for one task
//! input_ids                 Decoder             causal blocks, pre-norm
//! ```
//!
//! A structure has the sizes and options in which the model families of `transformers` differ, and its tensors by the
//! names of `emulator/src/families`.

use millrace_emulator::graph::{Graph, IMAGE};

use crate::error::{Error, Result};

mod decoder;
mod encoder;
mod image;
mod seq2seq;
mod walk;

pub(super) use decoder::{BlockForm, Decoder};
pub(super) use encoder::{Encoder, EncoderHead, EncoderPositions};
pub(super) use image::VisionTransformer;
pub(super) use seq2seq::Seq2Seq;
pub(super) use walk::{DropoutRates, NamedTensors, NormForm};

/// The architecture of a graph.
#[derive(Clone, Debug)]
pub(super) enum Structure {
    Decoder(Decoder),
    Encoder(Encoder),
    VisionTransformer(VisionTransformer),
    Seq2Seq(Seq2Seq),
}

impl Structure {
    /// Matches `graph` with the structure for its inputs.
    ///
    /// # Errors
    /// [`Error::NotExportable`] with the first operator that does not match.
    pub fn from_graph(graph: &Graph) -> Result<Self> {
        let graph = &graph.without_metrics().without_packing();
        let reads = |input: &str| graph.input(input).is_some();
        if reads(IMAGE) {
            VisionTransformer::from_graph(graph).map(Self::VisionTransformer)
        } else if reads("decoder_input_ids") {
            Seq2Seq::from_graph(graph).map(Self::Seq2Seq)
        } else if reads("attention_mask") {
            Encoder::from_graph(graph).map(Self::Encoder)
        } else {
            Decoder::from_graph(graph).map(Self::Decoder)
        }
    }
}

fn refuse(reason: impl Into<String>) -> Error {
    let hint = "use `checkpoint info` and the safetensors files of the checkpoint";
    Error::NotExportable { reason: reason.into(), hint: hint.into() }
}
