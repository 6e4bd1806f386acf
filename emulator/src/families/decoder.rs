//! Decoders: GPT-2 and its descendants, whose blocks normalize their input.
//!
//! Layers are `embed`, `h.<i>.attn` and `h.<i>.mlp` for each block `h.<i>`, and `head`. Tensor names are those of the
//! Hugging Face GPT-2 without its `transformer.` prefix, except that the projections are named for what they do and are
//! `[out, in]`: `h.3.attn.qkv` (`attn.c_attn` there), `h.3.attn.proj` (`attn.c_proj`), `h.3.mlp.fc` (`mlp.c_fc`) and
//! `h.3.mlp.proj` (`mlp.c_proj`). A gated network also has `h.3.mlp.gate`. Parts without an effect, such as a dropout
//! of rate 0, are no operators.
//!
//! ```text
//! sequential   x = x + attention(norm(x));  x = x + mlp(norm(x))
//! parallel     x = x + attention(norm(x)) + mlp(norm(x))          one norm, or one for each part
//! sandwich     x = x + norm(attention(norm(x)));  x = x + norm(mlp(norm(x)))
//! ```

use millrace_params::{InitializerSpec, ModelSpec, ParallelBlocks, Positions};

use super::{PackedInputs, ZERO, add_table, add_weight};
use crate::graph::{Graph, GraphBuilder, GraphError, TensorId, TensorRole, ValueId};
use crate::ops::{Activation, Add, AddPosition, CausalAttention, CrossEntropy, Embedding, Gate};

/// Returns the graph of a decoder that reads samples of `sequence` tokens.
///
/// # Errors
/// The sequence is longer than the model supports, or the specification is inconsistent.
pub fn decoder(spec: &ModelSpec, sequence: usize) -> Result<Graph, GraphError> {
    super::check_blocks(spec)?;
    let mut builder = GraphBuilder::new();
    let [input_ids, labels] = builder.token_inputs(sequence);
    let packing = spec.decoder.is_packed.then(|| PackedInputs::new(&mut builder, sequence));
    let mut decoder = Decoder { spec, builder, input_ids, labels, packing };
    let (table, mut stream) = decoder.embed()?;
    for block in 0..spec.num_hidden_layers {
        stream = decoder.block(block, stream)?;
    }
    decoder.head(table, stream)?;
    decoder.builder.finish()
}

struct Decoder<'a> {
    spec: &'a ModelSpec,
    builder: GraphBuilder,
    input_ids: ValueId,
    labels: ValueId,
    /// The inputs of samples of several sequences.
    packing: Option<PackedInputs>,
}

impl Decoder<'_> {
    /// Adds the layer `embed`: the token table and the start of the residual stream.
    fn embed(&mut self) -> Result<(TensorId, ValueId), GraphError> {
        let (width, embedding) = (self.spec.hidden_size, self.spec.initializers.embedding);
        let table = add_table(&mut self.builder, "wte.weight", [self.spec.vocab_size, width], embedding);
        let mut stream = self.builder.node(Embedding, "embed.tokens", &[self.input_ids], &[table])?;
        if self.spec.use_position_embedding && self.spec.decoder.positions == Positions::Learned {
            let positions = [self.spec.max_position_embeddings, width];
            let table = add_table(&mut self.builder, "wpe.weight", positions, embedding);
            stream = match self.packing {
                None => self.builder.node(AddPosition, "embed.sum", &[stream], &[table])?,
                Some(packing) => {
                    let rows = self.builder.node(Embedding, "embed.positions", &[packing.positions], &[table])?;
                    self.builder.node(Add, "embed.sum", &[stream, rows], &[])?
                }
            };
        }
        if self.spec.decoder.is_embedding_normalized {
            stream = self.norm("ln_embed", stream)?;
        }
        stream = self.scale(self.spec.decoder.embeddings_scale, "embed.scale", stream)?;
        stream = self.dropout(self.spec.embedding_dropout_rate, "embed.drop", stream)?;
        self.builder.end_layer("embed");
        Ok((table, stream))
    }

    /// Adds the layers of `h.<block>`: attention and feed-forward network, both added to the residual stream.
    fn block(&mut self, block: usize, stream: ValueId) -> Result<ValueId, GraphError> {
        let name = format!("h.{block}");
        let part_name = |part: &str| format!("{name}.{part}");

        let normal = self.norm(&part_name("ln_1"), stream)?;
        let branch = self.attention(block, normal)?;
        let branch = self.branch_norm(&part_name("ln_1_post"), branch)?;
        let sum = self.builder.node(Add, part_name("attn.sum"), &[stream, branch], &[])?;
        self.builder.end_block_layer(&name, part_name("attn"));

        let normal = match self.spec.decoder.parallel_blocks {
            None => self.norm(&part_name("ln_2"), sum)?,
            Some(ParallelBlocks::OneNorm) => normal,
            Some(ParallelBlocks::TwoNorms) => self.norm(&part_name("ln_2"), stream)?,
        };
        let branch = self.feed_forward(&name, normal)?;
        let branch = self.branch_norm(&part_name("ln_2_post"), branch)?;
        let sum = self.builder.node(Add, part_name("mlp.sum"), &[sum, branch], &[])?;
        self.builder.end_block_layer(&name, part_name("mlp"));
        Ok(sum)
    }

    fn attention(&mut self, block: usize, x: ValueId) -> Result<ValueId, GraphError> {
        let part_name = |part: &str| format!("h.{block}.attn{part}");
        let (spec, width) = (self.spec, self.spec.hidden_size);
        let heads = spec.num_heads;
        let key_heads = spec.decoder.num_key_heads.unwrap_or(heads);
        let inner = spec.decoder.attention_width.unwrap_or(width);
        let head_dim = inner.checked_div(heads).unwrap_or(0);
        let columns = head_dim.saturating_mul(key_heads).saturating_mul(2).saturating_add(inner);
        let scale = spec.attention_scale / if spec.decoder.is_attention_scaled_by_block { block + 1 } else { 1 } as f64;
        let biased = spec.use_projection_bias_in_attention;
        let mut qkv = self.linear(&part_name(".qkv"), x, [columns, width], spec.initializers.hidden, biased)?;
        if let (true, Positions::Rotary(rotary)) = (spec.use_position_embedding, spec.decoder.positions) {
            let rotary = super::rotary_operator(rotary, heads.saturating_add(key_heads), head_dim);
            let positions = self.packing.map(|packing| packing.positions);
            let inputs: Vec<ValueId> = [Some(qkv), positions].into_iter().flatten().collect();
            qkv = self.builder.node(rotary, part_name(".rotary"), &inputs, &[])?;
        }
        let is_windowed = block.is_multiple_of(2) || !spec.decoder.is_window_alternating;
        let window = spec.decoder.attention_window.filter(|_| is_windowed);
        let attention = CausalAttention {
            key_heads: spec.decoder.num_key_heads,
            window,
            sinks: window.map_or(0, |_| spec.decoder.attention_sinks),
            softcap: spec.decoder.attention_softcap.map(|cap| cap as f32),
            alibi: spec.use_position_embedding && spec.decoder.positions == Positions::Alibi,
            ..CausalAttention::new(heads, scale as f32, spec.attention_dropout_rate as f32)
        };
        let spans = self.packing.map(|packing| packing.spans);
        let inputs: Vec<ValueId> = [Some(qkv), spans].into_iter().flatten().collect();
        let mixed = self.builder.node(attention, part_name(""), &inputs, &[])?;
        let biased = spec.use_ffn_bias_in_attention;
        let branch =
            self.linear(&part_name(".proj"), mixed, [width, inner], spec.initializers.residual_output, biased)?;
        self.dropout(spec.dropout_rate, &part_name(".drop"), branch)
    }

    fn feed_forward(&mut self, block: &str, x: ValueId) -> Result<ValueId, GraphError> {
        let part_name = |part: &str| format!("{block}.mlp.{part}");
        let (spec, width, inner) = (self.spec, self.spec.hidden_size, self.spec.filter_size);
        let initializers = &spec.initializers;
        let (hidden, output) = (
            initializers.ffn_hidden.unwrap_or(initializers.hidden),
            initializers.ffn_output.unwrap_or(initializers.residual_output),
        );
        let kind = spec.nonlinearity;
        let active = if spec.decoder.is_gated {
            let gate = self.linear(&part_name("gate"), x, [inner, width], hidden, spec.use_ffn_bias)?;
            let value = self.linear(&part_name("fc"), x, [inner, width], hidden, spec.use_ffn_bias)?;
            self.builder.node(Gate { kind }, part_name("act"), &[gate, value], &[])?
        } else {
            let fc = self.linear(&part_name("fc"), x, [inner, width], hidden, spec.use_ffn_bias)?;
            self.builder.node(Activation { kind }, part_name("act"), &[fc], &[])?
        };
        let branch = self.linear(&part_name("proj"), active, [width, inner], output, spec.use_ffn_bias)?;
        self.dropout(spec.dropout_rate, &part_name("drop"), branch)
    }

    /// Adds the layer `head`: final normalization and the loss over the vocabulary.
    fn head(&mut self, table: TensorId, stream: ValueId) -> Result<(), GraphError> {
        let normal = self.norm("ln_f", stream)?;
        let normal = self.scale(self.spec.decoder.logits_scale, "head.scale", normal)?;
        let (entries, width) = (self.spec.vocab_size, self.spec.hidden_size);
        let weight = if self.spec.share_embedding_weights {
            table
        } else {
            add_weight(&mut self.builder, "lm_head.weight", [entries, width], self.spec.initializers.lm_head)
        };
        let mut params = vec![weight];
        if self.spec.use_bias_in_output {
            params.push(self.builder.tensor("lm_head.bias", &[entries], ZERO, TensorRole::Bias));
        }
        let softcap = self.spec.decoder.logits_softcap.map(|cap| cap as f32);
        let loss = CrossEntropy { softcap, ..CrossEntropy::new() };
        self.builder.loss(loss, &[normal, self.labels], &params)?;
        self.builder.end_layer("head");
        Ok(())
    }

    /// Normalizes the output of a part of a block, if the model does.
    fn branch_norm(&mut self, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        if self.spec.decoder.is_branch_normalized { self.norm(name, x) } else { Ok(x) }
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

    fn scale(&mut self, factor: f64, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        super::add_scale(&mut self.builder, factor, name, x)
    }

    fn dropout(&mut self, rate: f64, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        super::add_dropout(&mut self.builder, rate, name, x)
    }
}

#[cfg(test)]
mod tests {
    use millrace_params::Nonlinearity;

    use super::super::ONE;
    use super::*;
    use crate::graph::Initializer;
    use crate::ops::{Dropout, OpKind, Scale};
    use crate::testing::{Size, TINY};

    fn names(graph: &Graph) -> Vec<&str> {
        graph.tensors.iter().map(|tensor| tensor.name.as_str()).collect()
    }

    #[test]
    fn every_choice_of_the_params_shows_in_the_graph() {
        let size = Size { layers: 1, ..TINY };
        let full = ModelSpec {
            share_embedding_weights: false,
            use_bias_in_output: true,
            dropout_rate: 0.1,
            embedding_dropout_rate: 0.2,
            attention_dropout_rate: 0.3,
            nonlinearity: Nonlinearity::GeluTanh,
            ..size.spec()
        };
        let graph = decoder(&full, size.sequence).unwrap();
        let block = ["ln_1", "attn.qkv", "attn.proj", "ln_2", "mlp.fc", "mlp.proj"];
        let mut expected = vec!["wte.weight".to_owned(), "wpe.weight".to_owned()];
        expected.extend(block.iter().flat_map(|part| ["weight", "bias"].map(|kind| format!("h.0.{part}.{kind}"))));
        expected.extend(["ln_f.weight", "ln_f.bias", "lm_head.weight", "lm_head.bias"].map(str::to_owned));
        assert_eq!(names(&graph), expected);
        let rates = |graph: &Graph| -> Vec<f32> {
            let rate = |node: &crate::graph::OpNode| match node.op {
                OpKind::Dropout(Dropout { rate }) | OpKind::CausalAttention(CausalAttention { dropout: rate, .. }) => {
                    Some(rate)
                }
                _ => None,
            };
            graph.nodes.iter().filter_map(rate).collect()
        };
        assert_eq!(rates(&graph), [0.2, 0.3, 0.1, 0.1]);
        assert!(graph.nodes.iter().any(|node| node.op == Activation { kind: Nonlinearity::GeluTanh }.into()));

        let bare = ModelSpec {
            use_position_embedding: false,
            use_projection_bias_in_attention: false,
            use_ffn_bias_in_attention: false,
            use_ffn_bias: false,
            ..size.spec()
        };
        let graph = decoder(&bare, size.sequence).unwrap();
        let expected_names = expected.iter().filter(|name| {
            let bias = name.ends_with("bias") && !name.contains("ln_");
            !(bias || name.starts_with("wpe") || name.starts_with("lm_head"))
        });
        assert_eq!(names(&graph), expected_names.collect::<Vec<_>>());
        // The only attention dropout is the one inside the attention operator, of rate 0.
        assert_eq!(rates(&graph), [0.0]);
        let loss = graph.nodes.last().unwrap();
        assert_eq!(loss.params, [0], "the tied head uses the token table");
    }

    #[test]
    fn initial_values_follow_what_a_weight_is_for() {
        let normal = |std| InitializerSpec::Normal { mean: 0.0, std };
        let initializers = millrace_params::Initializers {
            embedding: normal(1.0),
            hidden: normal(2.0),
            residual_output: InitializerSpec::TruncatedNormal { mean: 0.0, std: 3.0, a: -6.0, b: 5.0 },
            lm_head: normal(4.0),
            ffn_hidden: Some(normal(5.0)),
            ffn_output: Some(normal(6.0)),
        };
        let spec = ModelSpec { initializers, share_embedding_weights: false, ..TINY.spec() };
        for tensor in decoder(&spec, TINY.sequence).unwrap().tensors {
            let expected = match tensor.name.as_str() {
                "wte.weight" | "wpe.weight" => Initializer::Normal { mean: 0.0, std: 1.0 },
                "lm_head.weight" => Initializer::Normal { mean: 0.0, std: 4.0 },
                name if name.ends_with("mlp.fc.weight") => Initializer::Normal { mean: 0.0, std: 5.0 },
                name if name.ends_with("mlp.proj.weight") => Initializer::Normal { mean: 0.0, std: 6.0 },
                name if name.ends_with("proj.weight") => {
                    Initializer::TruncatedNormal { mean: 0.0, std: 3.0, low: -6.0, high: 5.0 }
                }
                name if name.ends_with("qkv.weight") => Initializer::Normal { mean: 0.0, std: 2.0 },
                name if name.contains("ln_") && name.ends_with("weight") => ONE,
                _ => ZERO,
            };
            assert_eq!(tensor.init, expected, "{}", tensor.name);
            assert_eq!(tensor.role.decays(), !name_is_exempt(&tensor.name), "{}", tensor.name);
        }
    }

    #[test]
    fn width_and_scale_of_the_attention_follow_the_spec() {
        let decoder_options = millrace_params::DecoderOptions {
            attention_width: Some(48),
            num_key_heads: Some(1),
            is_attention_scaled_by_block: true,
            ..millrace_params::DecoderOptions::default()
        };
        let spec =
            ModelSpec { hidden_size: 32, num_heads: 4, attention_scale: 0.5, decoder: decoder_options, ..TINY.spec() };
        let graph = decoder(&ModelSpec { num_hidden_layers: 2, ..spec }, TINY.sequence).unwrap();
        let shape = |name: &str| &graph.tensors.iter().find(|tensor| tensor.name == name).unwrap().shape;
        // 4 heads of 12 for queries, one for keys and one for values.
        assert_eq!(shape("h.1.attn.qkv.weight"), &[72, 32]);
        assert_eq!(shape("h.1.attn.proj.weight"), &[32, 48]);
        let scale = |node: &crate::graph::OpNode| match node.op {
            OpKind::CausalAttention(CausalAttention { scale, .. }) => Some(scale),
            _ => None,
        };
        assert_eq!(graph.nodes.iter().filter_map(scale).collect::<Vec<_>>(), [0.5, 0.25]);
    }

    #[test]
    fn embedding_and_logits_are_scaled() {
        let decoder_options = millrace_params::DecoderOptions {
            is_embedding_normalized: true,
            embeddings_scale: 10.0,
            logits_scale: 0.25,
            ..millrace_params::DecoderOptions::default()
        };
        let spec = ModelSpec { decoder: decoder_options, ..TINY.spec() };
        let graph = decoder(&spec, TINY.sequence).unwrap();
        let value = |name: &str| graph.values.iter().position(|value| value.name == name).unwrap();
        let scales: Vec<_> = graph.nodes.iter().filter(|node| matches!(node.op, OpKind::Scale(_))).collect();
        let [embedding, logits] = scales.as_slice() else { panic!("{scales:?}") };
        assert_eq!((embedding.op, &embedding.inputs), (Scale { factor: 10.0 }.into(), &vec![value("ln_embed")]));
        assert_eq!((logits.op, &logits.inputs), (Scale { factor: 0.25 }.into(), &vec![value("ln_f")]));
        assert_eq!(graph.nodes.last().unwrap().inputs[0], logits.output.unwrap());
    }

    /// The groups of `optimizer.adjust_learning_rate` name the tensors of this file.
    #[test]
    fn groups_of_learning_rates_cover_their_tensors() {
        let text = "train_input: {data_processor: GptTokenDataProcessor, data_files: x, batch_size: 8}\n\
                    model: {vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_heads: 4, nonlinearity: swiglu,\
                    \x20embedding_layer_norm: True, share_embedding_weights: False}\n\
                    optimizer: {optimizer_type: AdamW, learning_rate: 0.1, adjust_learning_rate: {embedding: 2,\
                    \x20decoder_attention: 3, decoder_input_ffn: 4, decoder_output_ffn: 5}}\n\
                    runconfig: {max_steps: 1}\n";
        let params = millrace_params::Params::parse_yaml(text).unwrap();
        let job = params.resolve(&millrace_params::FlagOverrides::default()).unwrap().job;
        for tensor in decoder(&job.model, 16).unwrap().tensors {
            let expected = match tensor.name.rsplit_once("h.1.").map_or(tensor.name.as_str(), |(_, part)| part) {
                "wte.weight" | "wpe.weight" | "ln_embed.weight" => 2.0,
                "attn.qkv.weight" | "attn.proj.weight" => 3.0,
                "mlp.fc.weight" | "mlp.gate.weight" => 4.0,
                "mlp.proj.weight" => 5.0,
                name if name.starts_with("h.0.") => continue,
                _ => 1.0,
            };
            assert_eq!(job.optimizer.learning_rate_scale(&tensor.name), expected, "{}", tensor.name);
        }
    }

    fn name_is_exempt(name: &str) -> bool {
        name.ends_with("bias") || name.contains("ln_")
    }

    #[test]
    fn absurd_sizes_are_rejected_without_allocating() {
        let refuse = |spec: ModelSpec| decoder(&spec, TINY.sequence).unwrap_err();
        let error = refuse(ModelSpec { num_hidden_layers: usize::MAX, ..TINY.spec() });
        assert!(matches!(error, GraphError::TooManyLayers { .. }), "{error}");
        for hidden_size in [0, usize::MAX / 2] {
            refuse(ModelSpec { hidden_size, ..TINY.spec() });
        }
        refuse(ModelSpec { num_heads: 3, ..TINY.spec() });
    }
}
