//! Encoders with a decoder: T5 and the Transformer.
//!
//! Layers are `encoder.embed`, `encoder.h.<i>.attn` and `.mlp` for each block, `encoder.final`, `decoder.embed`,
//! `decoder.h.<i>.attn`, `.cross` and `.mlp`, and `head`. Tensors of a block are `ln_1` (before or after the
//! attention), `attn.q`, `attn.kv`, `attn.proj`, in a decoder also `ln_cross`, `cross.q`, `cross.kv` and `cross.proj`,
//! and `ln_2`, `mlp.fc`, `mlp.gate` (in a gated network) and `mlp.proj`. The tables of biases are
//! `encoder.relative.weight` and `decoder.relative.weight`, each shared by all blocks. Parts without an effect are no
//! operators.
//!
//! | input | shape | |
//! |---|---|---|
//! | `input_ids` | `[S]` | |
//! | `attention_mask` | `[S]` | 0 at padding |
//! | `decoder_input_ids` | `[T]` | |
//! | `decoder_attention_mask` | `[T]` | 0 at padding |
//! | `labels` | `[T]` | -100 where there is nothing to predict |

use millrace_params::{InitializerSpec, ModelSpec, Nonlinearity, Seq2SeqDecoder, Seq2SeqOptions, Seq2SeqPositions};

use super::{add_table, add_weight};
use crate::graph::{Graph, GraphBuilder, GraphError, INPUT_IDS, LABELS, Shape, TensorId, ValueId};
use crate::ops::{
    Activation, Add, AddSinusoids, CrossAttention, CrossEntropy, Embedding, Gate, RelativePositions, Scale,
};

/// Returns the graph of a model whose encoder reads `sequence` tokens.
///
/// # Errors
/// The specification is inconsistent.
pub fn seq2seq(spec: &ModelSpec, options: &Seq2SeqOptions, sequence: usize) -> Result<Graph, GraphError> {
    super::check_blocks(spec)?;
    super::check_blocks(&ModelSpec { num_hidden_layers: options.num_decoder_layers, ..spec.clone() })?;
    let mut builder = GraphBuilder::new();
    let [input_ids, attention_mask] =
        [INPUT_IDS, "attention_mask"].map(|name| builder.input(name, Shape::integers(sequence)));
    let [decoder_ids, decoder_mask, labels] = ["decoder_input_ids", "decoder_attention_mask", LABELS]
        .map(|name| builder.input(name, Shape::integers(options.target_length)));
    let mut model = Seq2Seq { spec, options, builder };
    let encoder = Stack {
        name: "encoder",
        kind: (spec.nonlinearity, spec.decoder.is_gated),
        blocks: spec.num_hidden_layers,
        mask: attention_mask,
        memory: None,
        settings: model.settings(None),
    };
    let table = model.table("encoder.wte.weight", spec.vocab_size);
    let (memory, _) = model.stack(&encoder, table, input_ids)?;
    model.builder.end_layer("encoder.final");

    let decoder = Stack {
        name: "decoder",
        kind: (options.decoder_nonlinearity, options.is_decoder_gated),
        blocks: options.num_decoder_layers,
        mask: decoder_mask,
        memory: Some((memory, attention_mask)),
        settings: model.settings(options.decoder),
    };
    let table = match options.shares_embedding {
        true => table,
        false => model.table("decoder.wte.weight", options.target_vocab_size),
    };
    let (stream, table) = model.stack(&decoder, table, decoder_ids)?;
    model.head(table, stream, labels)?;
    model.builder.finish()
}

struct Seq2Seq<'a> {
    spec: &'a ModelSpec,
    options: &'a Seq2SeqOptions,
    builder: GraphBuilder,
}

/// The encoder or the decoder.
struct Stack {
    name: &'static str,
    /// Activation, and whether it is multiplied by a second projection.
    kind: (Nonlinearity, bool),
    blocks: usize,
    /// Tokens of the own sequence that are not padding.
    mask: ValueId,
    /// Of a decoder: the output of the encoder, and its mask.
    memory: Option<(ValueId, ValueId)>,
    settings: Seq2SeqDecoder,
}

/// The keys of an attention: their rows, and which are not padding.
#[derive(Clone, Copy)]
struct Keys {
    rows: ValueId,
    mask: ValueId,
    /// Whether they are the rows that attend, and come from a decoder.
    causal: bool,
    biases: Option<(RelativePositions, TensorId)>,
}

impl Seq2Seq<'_> {
    /// Returns the settings that a decoder may have for itself; those of the encoder, if there are none.
    fn settings(&self, of_decoder: Option<Seq2SeqDecoder>) -> Seq2SeqDecoder {
        let initializers = &self.spec.initializers;
        of_decoder.unwrap_or(Seq2SeqDecoder {
            attention_scale: self.spec.attention_scale,
            residual_output: initializers.residual_output,
            ffn_output: initializers.ffn_output.unwrap_or(initializers.residual_output),
        })
    }

    fn table(&mut self, name: &str, entries: usize) -> TensorId {
        let init = self.spec.initializers.embedding;
        add_table(&mut self.builder, name, [entries, self.spec.hidden_size], init)
    }

    /// Adds embedding, blocks and last norm. The last layer is not ended. Returns the output, and the table.
    fn stack(&mut self, stack: &Stack, table: TensorId, ids: ValueId) -> Result<(ValueId, TensorId), GraphError> {
        let part_name = |part: &str| format!("{}.{part}", stack.name);
        let mut stream = self.builder.node(Embedding, part_name("embed.tokens"), &[ids], &[table])?;
        if self.options.positions == Seq2SeqPositions::Fixed {
            stream = self.builder.node(AddSinusoids, part_name("embed.sum"), &[stream], &[])?;
        }
        let factor = self.spec.decoder.embeddings_scale;
        stream = super::add_scale(&mut self.builder, factor, &part_name("embed.scale"), stream)?;
        stream = self.dropout(self.options.input_dropout_rate, &part_name("embed.drop_1"), stream)?;
        stream = self.dropout(self.spec.embedding_dropout_rate, &part_name("embed.drop_2"), stream)?;
        self.builder.end_layer(part_name("embed"));
        let biases = self.biases(stack);
        for block in 0..stack.blocks {
            stream = self.block(stack, block, biases, stream)?;
        }
        let stream = self.norm(&part_name("ln_f"), stream)?;
        let stream = self.dropout(self.options.output_dropout_rate, &part_name("drop_f"), stream)?;
        Ok((stream, table))
    }

    /// Adds the table of biases by relative position, if the model has them.
    fn biases(&mut self, stack: &Stack) -> Option<(RelativePositions, TensorId)> {
        let Seq2SeqPositions::Relative { buckets, max_distance, initializer } = self.options.positions else {
            return None;
        };
        let (name, shape) = (format!("{}.relative.weight", stack.name), [buckets, self.spec.num_heads]);
        // Without blocks there would be nothing that uses it.
        (stack.blocks > 0).then(|| {
            let table = add_table(&mut self.builder, &name, shape, initializer);
            (RelativePositions { buckets, max_distance }, table)
        })
    }

    /// Adds the layers of a block.
    fn block(
        &mut self,
        stack: &Stack,
        block: usize,
        biases: Option<(RelativePositions, TensorId)>,
        stream: ValueId,
    ) -> Result<ValueId, GraphError> {
        let name = format!("{}.h.{block}", stack.name);
        let part_name = |part: &str| format!("{name}.{part}");
        let mask = stack.mask;
        let causal = stack.memory.is_some();
        let settings = &stack.settings;
        let mut stream = self.part(&part_name("ln_1"), &part_name("attn"), stream, |model, x| {
            model.attention(&part_name("attn"), x, Keys { rows: x, mask, causal, biases }, settings)
        })?;
        self.builder.end_block_layer(&name, part_name("attn"));
        if let Some((rows, mask)) = stack.memory {
            stream = self.part(&part_name("ln_cross"), &part_name("cross"), stream, |model, x| {
                model.attention(&part_name("cross"), x, Keys { rows, mask, causal: false, biases: None }, settings)
            })?;
            self.builder.end_block_layer(&name, part_name("cross"));
        }
        stream =
            self.part(&part_name("ln_2"), &part_name("mlp"), stream, |model, x| model.feed_forward(&name, stack, x))?;
        self.builder.end_block_layer(&name, part_name("mlp"));
        Ok(stream)
    }

    /// Adds the result of `branch` to the stream, and normalizes its input or the sum.
    fn part(
        &mut self,
        norm: &str,
        name: &str,
        stream: ValueId,
        branch: impl FnOnce(&mut Self, ValueId) -> Result<ValueId, GraphError>,
    ) -> Result<ValueId, GraphError> {
        let x = if self.options.norm_first { self.norm(norm, stream)? } else { stream };
        let x = branch(self, x)?;
        let x = self.dropout(self.spec.dropout_rate, &format!("{name}.drop"), x)?;
        let sum = self.builder.node(Add, format!("{name}.sum"), &[stream, x], &[])?;
        if self.options.norm_first { Ok(sum) } else { self.norm(norm, sum) }
    }

    fn attention(
        &mut self,
        name: &str,
        x: ValueId,
        keys: Keys,
        settings: &Seq2SeqDecoder,
    ) -> Result<ValueId, GraphError> {
        let part_name = |part: &str| format!("{name}.{part}");
        let (spec, width) = (self.spec, self.spec.hidden_size);
        let inner = spec.decoder.attention_width.unwrap_or(width);
        let biased = spec.use_projection_bias_in_attention;
        let queries = self.linear(&part_name("q"), x, [inner, width], self.options.query_initializer, biased)?;
        let shape = [inner.saturating_mul(2), width];
        let key_values = self.linear(&part_name("kv"), keys.rows, shape, spec.initializers.hidden, biased)?;
        let attention = CrossAttention {
            causal: keys.causal,
            relative: keys.biases.map(|(positions, _)| positions),
            ..CrossAttention::new(spec.num_heads, settings.attention_scale as f32, spec.attention_dropout_rate as f32)
        };
        let table = keys.biases.map(|(_, table)| table);
        let mixed = self.builder.node(attention, name, &[queries, key_values, keys.mask], table.as_slice())?;
        let init = settings.residual_output;
        self.linear(&part_name("proj"), mixed, [width, inner], init, spec.use_ffn_bias_in_attention)
    }

    fn feed_forward(&mut self, block: &str, stack: &Stack, x: ValueId) -> Result<ValueId, GraphError> {
        let (kind, is_gated) = stack.kind;
        let part_name = |part: &str| format!("{block}.mlp.{part}");
        let (spec, width, inner) = (self.spec, self.spec.hidden_size, self.spec.filter_size);
        let hidden = spec.initializers.ffn_hidden.unwrap_or(spec.initializers.hidden);
        let output = stack.settings.ffn_output;
        let active = if is_gated {
            let gate = self.linear(&part_name("gate"), x, [inner, width], hidden, spec.use_ffn_bias)?;
            let value = self.linear(&part_name("fc"), x, [inner, width], hidden, spec.use_ffn_bias)?;
            self.builder.node(Gate { kind }, part_name("act"), &[gate, value], &[])?
        } else {
            let fc = self.linear(&part_name("fc"), x, [inner, width], hidden, spec.use_ffn_bias)?;
            self.builder.node(Activation { kind }, part_name("act"), &[fc], &[])?
        };
        let active = self.dropout(self.options.ffn_dropout_rate, &part_name("act.drop"), active)?;
        self.linear(&part_name("proj"), active, [width, inner], output, spec.use_ffn_bias)
    }

    /// Adds the loss over the vocabulary of the decoder.
    fn head(&mut self, table: TensorId, stream: ValueId, labels: ValueId) -> Result<(), GraphError> {
        let scale = self.spec.decoder.logits_scale;
        let stream = match scale == 1.0 {
            true => stream,
            false => self.builder.node(Scale { factor: scale as f32 }, "head.scale", &[stream], &[])?,
        };
        let weight = if self.spec.share_embedding_weights {
            table
        } else {
            let shape = [self.options.target_vocab_size, self.spec.hidden_size];
            add_weight(&mut self.builder, "lm_head.weight", shape, self.spec.initializers.lm_head)
        };
        self.builder.loss(CrossEntropy::new(), &[stream, labels], &[weight])?;
        self.builder.end_layer("head");
        Ok(())
    }

    fn norm(&mut self, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        super::add_norm(&mut self.builder, self.spec, name, x)
    }

    fn linear(
        &mut self,
        name: &str,
        x: ValueId,
        shape: [usize; 2],
        weights: InitializerSpec,
        biased: bool,
    ) -> Result<ValueId, GraphError> {
        super::add_linear(&mut self.builder, name, x, shape, weights, biased)
    }

    fn dropout(&mut self, rate: f64, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        super::add_dropout(&mut self.builder, rate, name, x)
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::*;
    use crate::common::{LARGE, plan, spec};
    use crate::compile::BatchSpec;
    use crate::ops::testing::check_plan;
    use crate::plan::Encoding;

    #[test]
    fn gradients_agree_with_the_reference() {
        let base = spec(2, 12, 3, 24, 10);
        let initializer = InitializerSpec::Normal { mean: 0.0, std: 0.5 };
        let options = Seq2SeqOptions {
            target_vocab_size: 24,
            target_length: 6,
            num_decoder_layers: 2,
            shares_embedding: true,
            positions: Seq2SeqPositions::Relative { buckets: 6, max_distance: 9, initializer },
            norm_first: true,
            decoder_nonlinearity: Nonlinearity::Gelu,
            is_decoder_gated: true,
            ffn_dropout_rate: 0.1,
            input_dropout_rate: 0.1,
            output_dropout_rate: 0.1,
            query_initializer: initializer,
            decoder: Some(Seq2SeqDecoder {
                attention_scale: 0.4,
                residual_output: initializer,
                ffn_output: initializer,
            }),
        };
        let mut spec = ModelSpec { share_embedding_weights: false, seq2seq: Some(options), ..base };
        spec.decoder.embeddings_scale = 1.5;
        let graph = crate::families::graph(&spec, 8).unwrap();
        let batch = BatchSpec { samples: 4, leaf_bound: 2 };
        check_plan("seq2seq", &plan(graph, batch, Encoding::F32, LARGE), 41);
    }
}
