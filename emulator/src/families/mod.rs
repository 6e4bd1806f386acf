//! Model families: each builds a graph from the resolved `model` section. One file for each kind of architecture, and
//! one line in [`graph`].
//!
//! Names of layers and tensors are part of the format of checkpoints. `docs/dev/add-a-model-family.md` describes each
//! step.

use millrace_params::{InitializerSpec, ModelSpec, Norm, RotaryPositions};

use crate::graph::{
    ATTENTION_SPAN, Graph, GraphBuilder, GraphError, Initializer, POSITION_IDS, Shape, TensorId, TensorRole, ValueId,
};
use crate::ops::{Dropout, LayerNorm, Linear, RmsNorm, Rotary, RotaryPairing, Scale};
use initial_values::initial_values;

mod decoder;
mod encoder;
mod image;
mod initial_values;
mod seq2seq;

pub use decoder::decoder;
pub use encoder::encoder;
pub use image::image_classifier;
pub use seq2seq::seq2seq;

const ZERO: Initializer = Initializer::Constant { value: 0.0 };
const ONE: Initializer = Initializer::Constant { value: 1.0 };

/// Maximum number of blocks. A mistyped number must not exhaust memory.
const MAX_BLOCKS: usize = 10_000;

/// Returns the graph of a model that reads samples of `sequence` tokens, or images.
///
/// # Errors
/// The sequence is longer than the model supports, or the specification is inconsistent.
pub fn graph(spec: &ModelSpec, sequence: usize) -> Result<Graph, GraphError> {
    if let Some(options) = &spec.encoder {
        return encoder(spec, options, sequence);
    }
    if let Some(options) = &spec.seq2seq {
        return seq2seq(spec, options, sequence);
    }
    if let Some(options) = &spec.image {
        return image_classifier(spec, options);
    }
    decoder(spec, sequence)
}

/// What says where the sequences of a packed sample are.
#[derive(Clone, Copy)]
struct PackedInputs {
    /// For each token, the number of later tokens of its sequence.
    spans: ValueId,
    /// For each token, its position in its sequence.
    positions: ValueId,
}

impl PackedInputs {
    /// Adds the inputs.
    fn new(builder: &mut GraphBuilder, sequence: usize) -> Self {
        Self {
            spans: builder.input(ATTENTION_SPAN, Shape::integers(sequence)),
            positions: builder.input(POSITION_IDS, Shape::integers(sequence)),
        }
    }
}

/// Checks the number of blocks, before anything is allocated for each.
fn check_blocks(spec: &ModelSpec) -> Result<(), GraphError> {
    if spec.num_hidden_layers > MAX_BLOCKS {
        return Err(GraphError::TooManyLayers { layers: spec.num_hidden_layers, max: MAX_BLOCKS });
    }
    Ok(())
}

/// Adds a matrix of weights of `shape` [out, in].
fn add_weight(builder: &mut GraphBuilder, name: &str, shape: [usize; 2], weights: InitializerSpec) -> TensorId {
    builder.tensor(name, &shape, initial_values(weights, shape, TensorRole::Weight), TensorRole::Weight)
}

/// Adds a table with a row for each entry.
fn add_table(builder: &mut GraphBuilder, name: &str, shape: [usize; 2], rows: InitializerSpec) -> TensorId {
    builder.tensor(name, &shape, initial_values(rows, shape, TensorRole::Embedding), TensorRole::Embedding)
}

/// Adds a layer `x weight^T + bias` with the tensors `NAME.weight`, of `shape` [out, in], and `NAME.bias`.
fn add_linear(
    builder: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    shape: [usize; 2],
    weights: InitializerSpec,
    biased: bool,
) -> Result<ValueId, GraphError> {
    let mut params = vec![add_weight(builder, &format!("{name}.weight"), shape, weights)];
    if biased {
        params.push(builder.tensor(format!("{name}.bias"), &shape[..1], ZERO, TensorRole::Bias));
    }
    builder.node(Linear, name, &[x], &params)
}

/// Adds a layer norm over rows of `width` with the tensors `NAME.weight` and `NAME.bias`.
fn add_layer_norm(
    builder: &mut GraphBuilder,
    name: &str,
    x: ValueId,
    width: usize,
    epsilon: f64,
) -> Result<ValueId, GraphError> {
    let gain = builder.tensor(format!("{name}.weight"), &[width], ONE, TensorRole::Norm);
    let offset = builder.tensor(format!("{name}.bias"), &[width], ZERO, TensorRole::Norm);
    builder.node(LayerNorm { epsilon: epsilon as f32 }, name, &[x], &[gain, offset])
}

/// Adds the norm of a decoder over its width, with the tensors `NAME.weight` and, of a layer norm, `NAME.bias`.
fn add_norm(builder: &mut GraphBuilder, spec: &ModelSpec, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
    let (shape, epsilon) = ([spec.hidden_size], spec.layer_norm_epsilon as f32);
    let gain = builder.tensor(format!("{name}.weight"), &shape, ONE, TensorRole::Norm);
    match spec.decoder.norm {
        Norm::RmsNorm => builder.node(RmsNorm { epsilon }, name, &[x], &[gain]),
        Norm::BiaslessLayerNorm => builder.node(LayerNorm { epsilon }, name, &[x], &[gain]),
        Norm::LayerNorm => {
            let offset = builder.tensor(format!("{name}.bias"), &shape, ZERO, TensorRole::Norm);
            builder.node(LayerNorm { epsilon }, name, &[x], &[gain, offset])
        }
    }
}

/// Adds dropout, unless the rate is 0.
fn add_dropout(builder: &mut GraphBuilder, rate: f64, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
    if rate == 0.0 {
        return Ok(x);
    }
    builder.node(Dropout { rate: rate as f32 }, name, &[x], &[])
}

/// Adds a product with a number, unless it is 1.
fn add_scale(builder: &mut GraphBuilder, factor: f64, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
    if factor == 1.0 {
        return Ok(x);
    }
    builder.node(Scale { factor: factor as f32 }, name, &[x], &[])
}

fn rotary_operator(positions: RotaryPositions, heads: usize, head_dim: usize) -> Rotary {
    let RotaryPositions { dimensions, base, is_adjacent, scaling } = positions;
    let pairing = if is_adjacent { RotaryPairing::Adjacent } else { RotaryPairing::Halves };
    Rotary { heads, head_dim, dimensions, base, pairing, scaling }
}
