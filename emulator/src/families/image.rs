//! Models that assign a class to each image: linear layers (`fc_mnist`), and the vision transformer.
//!
//! ```text
//! linear layers   x = dropout(f(linear(x)))  for each hidden layer
//! transformer     x = dropout(class row, linear(patches) + positions)
//!                 x = x + attention(norm(x));  x = x + mlp(norm(x))      for each block
//!                 x = norm(class row of x);  x = f(linear(x))            with a pooler
//! ```
//!
//! Layers are `fc.<i>` for each hidden layer and `head`; of a transformer `embed`, `h.<i>.attn` and `h.<i>.mlp` for
//! each block `h.<i>`, and `head`. Tensors of linear layers are `fc.<i>.weight` and `fc.<i>.bias`; those of a
//! transformer are called as those of the [decoders](super::decoder()) and [encoders](super::encoder()) where they have
//! them, with `patch.weight`, `cls.weight` and `wpe.weight` for the embedding. The output layer is `classifier`.
//!
//! | input | shape | |
//! |---|---|---|
//! | `image` | `[C, H, W]` | channels, rows and columns of pixels |
//! | `labels` | `[]` | the class |

use millrace_params::{ImageNetwork, ImageOptions, InitializerSpec, ModelSpec, Nonlinearity};

use super::{add_dropout, add_layer_norm, add_linear, add_table, add_weight};
use crate::graph::{DType, Graph, GraphBuilder, GraphError, IMAGE, Initializer, LABELS, Shape, TensorRole, ValueId};
use crate::ops::{
    Activation, Add, AddPosition, Attention, CrossEntropy, Flatten, Linear, Patches, PrependRow, SelectRow,
};

/// Returns the graph of a model of images.
///
/// # Errors
/// There are too many layers, or the specification is inconsistent.
pub fn image_classifier(spec: &ModelSpec, options: &ImageOptions) -> Result<Graph, GraphError> {
    super::check_blocks(spec)?;
    let mut classifier = Classifier { spec, builder: GraphBuilder::new() };
    let dimensions = options.shape.dimensions();
    let shape = Shape::new(DType::F32, &dimensions)
        .ok_or_else(|| GraphError::Dimensions { subject: IMAGE.to_owned(), dimensions: dimensions.to_vec() })?;
    let image = classifier.builder.input(IMAGE, shape);
    match &options.network {
        ImageNetwork::Mlp { hidden_sizes } => classifier.linear_layers(image, hidden_sizes),
        ImageNetwork::Transformer { patch_size, has_projection_bias, pooler_nonlinearity } => {
            let stream = classifier.embed(image, *patch_size, *has_projection_bias)?;
            classifier.transformer(stream, *pooler_nonlinearity)
        }
    }?;
    classifier.builder.finish()
}

struct Classifier<'a> {
    spec: &'a ModelSpec,
    builder: GraphBuilder,
}

impl Classifier<'_> {
    /// Adds the layers of `fc_mnist`. Weights and biases begin as those of PyTorch's linear layers.
    fn linear_layers(&mut self, image: ValueId, hidden_sizes: &[usize]) -> Result<(), GraphError> {
        let mut x = self.builder.node(Flatten, "flat", &[image], &[])?;
        for (index, &width) in hidden_sizes.iter().enumerate() {
            let name = format!("fc.{index}");
            let params = self.uniform_layer(&name, x, width);
            let y = self.builder.node(Linear, name.as_str(), &[x], &params)?;
            let kind = self.spec.nonlinearity;
            let y = self.builder.node(Activation { kind }, format!("{name}.act"), &[y], &[])?;
            x = add_dropout(&mut self.builder, self.spec.dropout_rate, &format!("{name}.drop"), y)?;
            self.builder.end_layer(name);
        }
        let params = self.uniform_layer("classifier", x, self.spec.vocab_size);
        self.loss(x, &params)
    }

    /// Adds weight and bias of a linear layer, uniform between -1 and 1 over the square root of its inputs.
    fn uniform_layer(&mut self, name: &str, x: ValueId, outputs: usize) -> [usize; 2] {
        let inputs = self.builder.shape(x).columns();
        let bound = (inputs.max(1) as f64).sqrt().recip();
        let init = Initializer::Uniform { low: -bound, high: bound };
        let weight = self.builder.tensor(format!("{name}.weight"), &[outputs, inputs], init, TensorRole::Weight);
        [weight, self.builder.tensor(format!("{name}.bias"), &[outputs], init, TensorRole::Bias)]
    }

    /// Adds the layer `embed`: the class row, and the projected patches, each with its position.
    fn embed(&mut self, image: ValueId, [height, width]: [usize; 2], biased: bool) -> Result<ValueId, GraphError> {
        let (hidden, init) = (self.spec.hidden_size, self.spec.initializers.embedding);
        let rows = self.builder.node(Patches { height, width }, "embed.patches", &[image], &[])?;
        let shape = [hidden, self.builder.shape(rows).columns()];
        let rows = add_linear(&mut self.builder, "patch", rows, shape, init, biased)?;
        let class = add_table(&mut self.builder, "cls.weight", [1, hidden], init);
        let rows = self.builder.node(PrependRow, "embed.class", &[rows], &[class])?;
        let count = self.builder.shape(rows).rows();
        let positions = add_table(&mut self.builder, "wpe.weight", [count, hidden], init);
        let stream = self.builder.node(AddPosition, "embed.positions.sum", &[rows], &[positions])?;
        let stream = add_dropout(&mut self.builder, self.spec.embedding_dropout_rate, "embed.drop", stream)?;
        self.builder.end_layer("embed");
        Ok(stream)
    }

    fn transformer(&mut self, mut stream: ValueId, pooler: Option<Nonlinearity>) -> Result<(), GraphError> {
        for block in 0..self.spec.num_hidden_layers {
            let name = format!("h.{block}");
            let branch = self.attention(&name, stream)?;
            stream = self.builder.node(Add, format!("{name}.attn.sum"), &[stream, branch], &[])?;
            self.builder.end_block_layer(&name, format!("{name}.attn"));
            let branch = self.feed_forward(&name, stream)?;
            stream = self.builder.node(Add, format!("{name}.mlp.sum"), &[stream, branch], &[])?;
            self.builder.end_block_layer(&name, format!("{name}.mlp"));
        }
        // The norm works on each row, so that of the class row alone is the same.
        let (width, init) = (self.spec.hidden_size, &self.spec.initializers);
        let class = self.builder.node(SelectRow { row: 0 }, "head.class", &[stream], &[])?;
        let mut x = self.norm("ln_f", class)?;
        if let Some(kind) = pooler {
            x = add_linear(&mut self.builder, "pooler", x, [width, width], init.hidden, true)?;
            x = self.builder.node(Activation { kind }, "pooler.act", &[x], &[])?;
        }
        let shape = [self.spec.vocab_size, width];
        let weight = add_weight(&mut self.builder, "classifier.weight", shape, init.lm_head);
        let bias = self.builder.tensor("classifier.bias", &shape[..1], super::ZERO, TensorRole::Bias);
        self.loss(x, &[weight, bias])
    }

    fn attention(&mut self, block: &str, stream: ValueId) -> Result<ValueId, GraphError> {
        let (spec, width) = (self.spec, self.spec.hidden_size);
        let name = format!("{block}.attn");
        let x = self.norm(&format!("{block}.ln_1"), stream)?;
        let qkv = self.linear(
            &format!("{name}.qkv"),
            x,
            [width.saturating_mul(3), width],
            spec.initializers.hidden,
            spec.use_projection_bias_in_attention,
        )?;
        let attention = Attention {
            heads: spec.num_heads,
            scale: spec.attention_scale as f32,
            dropout: spec.attention_dropout_rate as f32,
        };
        let mixed = self.builder.node(attention, name.as_str(), &[qkv], &[])?;
        let (init, biased) = (spec.initializers.residual_output, spec.use_ffn_bias_in_attention);
        let branch = self.linear(&format!("{name}.proj"), mixed, [width, width], init, biased)?;
        add_dropout(&mut self.builder, spec.dropout_rate, &format!("{name}.drop"), branch)
    }

    fn feed_forward(&mut self, block: &str, stream: ValueId) -> Result<ValueId, GraphError> {
        let part_name = |part: &str| format!("{block}.mlp.{part}");
        let (spec, width, inner) = (self.spec, self.spec.hidden_size, self.spec.filter_size);
        let init = &spec.initializers;
        let x = self.norm(&format!("{block}.ln_2"), stream)?;
        let first = init.ffn_hidden.unwrap_or(init.hidden);
        let fc = self.linear(&part_name("fc"), x, [inner, width], first, spec.use_ffn_bias)?;
        let active = self.builder.node(Activation { kind: spec.nonlinearity }, part_name("act"), &[fc], &[])?;
        let second = init.ffn_output.unwrap_or(init.residual_output);
        let branch = self.linear(&part_name("proj"), active, [width, inner], second, spec.use_ffn_bias)?;
        add_dropout(&mut self.builder, spec.dropout_rate, &part_name("drop"), branch)
    }

    /// Adds the loss, and ends the layer `head`.
    fn loss(&mut self, x: ValueId, params: &[usize]) -> Result<(), GraphError> {
        let labels = self.builder.shape(x).one_integer_per_row();
        let labels = self.builder.input(LABELS, labels);
        self.builder.loss(CrossEntropy::new(), &[x, labels], params)?;
        self.builder.end_layer("head");
        Ok(())
    }

    fn norm(&mut self, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        add_layer_norm(&mut self.builder, name, x, self.spec.hidden_size, self.spec.layer_norm_epsilon)
    }

    fn linear(
        &mut self,
        name: &str,
        x: ValueId,
        shape: [usize; 2],
        weights: InitializerSpec,
        biased: bool,
    ) -> Result<ValueId, GraphError> {
        add_linear(&mut self.builder, name, x, shape, weights, biased)
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use millrace_params::ImageShape;

    use super::*;
    use crate::common::{LARGE, plan, spec, with_dropout};
    use crate::compile::BatchSpec;
    use crate::ops::testing::check_plan;
    use crate::plan::Encoding;

    #[test]
    fn gradients_agree_with_the_reference() {
        let shape = ImageShape { channels: 3, height: 4, width: 6 };
        let transformer = |pooler_nonlinearity| ImageNetwork::Transformer {
            patch_size: [2, 3],
            has_projection_bias: true,
            pooler_nonlinearity,
        };
        for (name, network) in [
            ("fc_mnist", ImageNetwork::Mlp { hidden_sizes: vec![9, 7] }),
            ("vision_transformer", transformer(None)),
            ("vision_transformer with a pooler", transformer(Some(Nonlinearity::Tanh))),
        ] {
            let options = ImageOptions { shape, network };
            let graph = image_classifier(&with_dropout(spec(2, 12, 3, 5, 1), 0.1), &options).unwrap();
            let batch = BatchSpec { samples: 4, leaf_bound: 2 };
            check_plan(name, &plan(graph, batch, Encoding::F32, LARGE), 5);
        }
    }
}
