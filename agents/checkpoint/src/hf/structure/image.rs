//! The vision transformer: pre-norm blocks over patches of an image and a trained row, whose output is classified.

use millrace_emulator::graph::{Graph, IMAGE};
use millrace_emulator::ops::{Nonlinearity, OpKind, Patches};

use super::encoder::common_block;
use super::refuse;
use super::walk::{DropoutRates, NamedTensors, Walk};
use crate::error::Result;

/// A vision transformer. Its patches are projected by `patch`, the trained row is `cls`, and the output layer is
/// `classifier`.
#[derive(Clone, Debug)]
pub(in crate::hf) struct VisionTransformer {
    /// Channels, rows and columns of pixels.
    pub image: [usize; 3],
    /// Rows and columns of pixels of a patch.
    pub patch: [usize; 2],
    pub hidden: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    /// Factor on query-key products.
    pub scale: f32,
    pub activation: Nonlinearity,
    pub epsilon: f32,
    pub classes: usize,
    /// Activation of a layer before the output layer, if there is one.
    pub pooler: Option<Nonlinearity>,
    pub rates: DropoutRates,
    pub tensors: NamedTensors,
}

impl VisionTransformer {
    /// Matches `graph` with the structure of a vision transformer.
    ///
    /// # Errors
    /// [`Error::NotExportable`](crate::Error::NotExportable) with the first operator that does not match.
    pub fn from_graph(graph: &Graph) -> Result<Self> {
        let mut walk = Walk::new(graph);
        let input = walk.input(IMAGE)?;
        let dimensions = graph.values.get(input).and_then(|value| value.shape.dimensions().try_into().ok());
        let image: [usize; 3] = dimensions.ok_or_else(|| refuse("it reads no images"))?;
        let patches = |op: &OpKind| if let OpKind::Patches(patches) = *op { Some(patches) } else { None };
        let (Patches { height, width }, rows) = walk.take("patches", &[input], "", patches)?;
        let rows = walk.linear(rows, "patch")?;
        let prepend = |op: &OpKind| matches!(op, OpKind::PrependRow(_)).then_some(());
        let (_, rows) = walk.take("the row of the class", &[rows], "cls", prepend)?;
        let rows = walk.learned_positions(rows)?;
        let (mut stream, rate) = walk.dropout(rows)?;
        walk.rates.embedding = rate;
        let mut blocks = Vec::new();
        while walk.is_norm(0) {
            let block = blocks.len();
            blocks.push(walk.encoder_block(block, &mut stream, None, true)?);
        }
        let class = walk.first_row(stream)?.ok_or_else(|| walk.unexpected("the row of the class"))?;
        let mut x = walk.norm(class, "ln_f")?;
        let mut pooler = None;
        if walk.is_linear(0) {
            let y = walk.linear(x, "pooler")?;
            let (activation, y) = walk.activation(y)?;
            (pooler, x) = (Some(activation), y);
        }
        walk.output_layer(x, "classifier")?;
        walk.finish()?;
        let block = common_block(&blocks)?;
        let epsilon = walk.layer_norm_epsilon()?;
        let Walk { tensors, rates, .. } = walk;
        let [classes, hidden] = tensors.matrix("classifier.weight")?;
        Ok(Self {
            image,
            patch: [height, width],
            hidden,
            inner: tensors.matrix("h.0.mlp.fc.weight")?[0],
            layers: blocks.len(),
            heads: block.heads,
            scale: block.scale,
            activation: block.activation,
            epsilon,
            classes,
            pooler,
            rates,
            tensors,
        })
    }
}
