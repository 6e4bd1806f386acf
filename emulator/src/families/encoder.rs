//! Encoders: BERT, RoBERTa and ESM-2, whose blocks attend in both directions.
//!
//! ```text
//! block        x = norm(x + attention(x));  x = norm(x + mlp(x))
//! norm_first   x = x + attention(norm(x));  x = x + mlp(norm(x));  a norm after the last block
//! pooler       p = tanh(linear(x of the first token))
//! pretraining  masked tokens from x, next sentence from p        two losses
//! classifier   class of the sample from p
//! token classifier   class of each token from x
//! summarization      class of each sentence from x of the token before it, 0 or 1
//! question answering    first and last token of the answer: over all tokens, softmax of two products with x
//! ```
//!
//! Layers are `embed`, `h.<i>.attn` and `h.<i>.mlp` for each block `h.<i>`, `head.nsp` (next sentence) and `head`.
//! Tensors are called as those of the [decoders](super::decoder()) where both have them. Parts without an effect, such
//! as a dropout of rate 0, are no operators.
//!
//! | input | shape | |
//! |---|---|---|
//! | `input_ids` | `[T]` | |
//! | `attention_mask` | `[T]` | 0 at padding |
//! | `token_type_ids` | `[T]` | 0 or 1, the segment; with segment embeddings |
//! | `masked_lm_positions` | `[P]` | with a maximum of P predictions |
//! | `cls_token_positions` | `[P]` | of P sentences |
//! | `sentence_ids`, `word_ids` | `[T]` | the sentence of each token, and its word, -1 where none begins; for ROUGE |
//! | `labels` | `[P]` or `[T]`, of a classifier `[]`, of answers `[2]` | -100 where there is nothing to predict |
//! | `attention_span`, `position_ids` | `[T]` | tokens of the same sequence after and before; of packed samples |
//! | `next_sentence_label` | `[]` | 0 or 1; if next sentences are predicted |

use millrace_params::{EncoderOptions, EncoderTask, InitializerSpec, ModelSpec, Nonlinearity, Positions};

use super::{PackedInputs, ZERO, add_table, add_weight};
use crate::graph::{
    DType, Graph, GraphBuilder, GraphError, INPUT_IDS, LABELS, MAX_METRIC_ELEMENTS, Shape, TensorId, TensorRole,
    ValueId,
};
use crate::ops::{
    Activation, Add, AddPosition, ArgMax, Attention, Cast, ClassCounts, CrossEntropy, Embedding, Gather, GatherRows,
    Linear, LogitsCrossEntropy, Metric, NgramOverlap, SelectRow, TokenDropout, Transpose,
};

/// Share of the tokens that are replaced by the mask in ESM-2's training: 80% of the 15% that are predicted.
const MASKED_IN_TRAINING: f32 = 0.15 * 0.8;
/// Number of segments of a sample.
const SEGMENTS: usize = 2;

/// Returns the graph of an encoder that reads samples of `sequence` tokens.
///
/// # Errors
/// The sequence is longer than the model supports, or the specification is inconsistent.
pub fn encoder(spec: &ModelSpec, options: &EncoderOptions, sequence: usize) -> Result<Graph, GraphError> {
    super::check_blocks(spec)?;
    let mut builder = GraphBuilder::new();
    let input_ids = builder.input(INPUT_IDS, Shape::integers(sequence));
    let attention_mask = builder.input("attention_mask", Shape::integers(sequence));
    let packing = spec.decoder.is_packed.then(|| PackedInputs::new(&mut builder, sequence));
    let mut encoder = Encoder { spec, options, builder, attention_mask, packing };
    let (table, mut stream) = encoder.embed(input_ids, options, sequence)?;
    for block in 0..spec.num_hidden_layers {
        stream = encoder.block(block, stream)?;
    }
    if options.norm_first {
        stream = encoder.norm("ln_out", stream)?;
        encoder.builder.end_layer("ln_out");
    }
    match options.task {
        EncoderTask::Pretraining { max_predictions, masked_token_weight, nonlinearity, predicts_next_sentence } => {
            if predicts_next_sentence {
                encoder.next_sentence(options.pooler_nonlinearity, stream)?;
            }
            let rows = encoder.predicted_rows(stream, max_predictions, sequence)?;
            encoder.masked_tokens(table, rows, nonlinearity, masked_token_weight)?;
        }
        EncoderTask::Classifier { classes, dropout_rate } => {
            let pooled = encoder.pooler(options.pooler_nonlinearity, stream)?;
            encoder.classifier(pooled, classes, dropout_rate, ClassifierMetric::None)?;
        }
        EncoderTask::TokenClassifier { classes, dropout_rate, .. } => {
            let counts_classes = spec.compute_eval_metrics && 3 * classes < MAX_METRIC_ELEMENTS as usize;
            let metric = if counts_classes { ClassifierMetric::ClassCounts } else { ClassifierMetric::None };
            encoder.classifier(stream, classes, dropout_rate, metric)?;
        }
        EncoderTask::Summarization { max_sentences, compares_words } => {
            let positions = encoder.builder.input("cls_token_positions", Shape::integers(max_sentences));
            let rows = encoder.builder.node(GatherRows, "head.rows", &[stream, positions], &[])?;
            let metric = if compares_words { ClassifierMetric::Summaries { sequence } } else { ClassifierMetric::None };
            encoder.classifier(rows, 2, 0.0, metric)?;
        }
        EncoderTask::QuestionAnswering {} => encoder.answer(stream)?,
    }
    encoder.builder.finish()
}

struct Encoder<'a> {
    spec: &'a ModelSpec,
    options: &'a EncoderOptions,
    builder: GraphBuilder,
    attention_mask: ValueId,
    /// The inputs of samples of several sequences.
    packing: Option<PackedInputs>,
}

/// What a classifier reports in evaluations, beside what its loss counts.
#[derive(Clone, Copy)]
enum ClassifierMetric {
    None,
    /// How often each class is predicted, correctly or not, and occurs.
    ClassCounts,
    /// How many words the predicted and the actual summary have in common. Samples have `sequence` tokens.
    Summaries {
        sequence: usize,
    },
}

/// The rows whose tokens are predicted, and their labels.
struct PredictedRows {
    rows: ValueId,
    labels: ValueId,
}

impl Encoder<'_> {
    /// Adds the layer `embed`: the sum of the embeddings of tokens, positions and segments, normalized. Returns the
    /// token table and the start of the stream.
    fn embed(
        &mut self,
        input_ids: ValueId,
        options: &EncoderOptions,
        sequence: usize,
    ) -> Result<(TensorId, ValueId), GraphError> {
        let (width, init) = (self.spec.hidden_size, self.spec.initializers.embedding);
        let table = add_table(&mut self.builder, "wte.weight", [self.spec.vocab_size, width], init);
        let mut stream = self.builder.node(Embedding, "embed.tokens", &[input_ids], &[table])?;
        if let (true, Some(mask_token)) = (options.has_token_dropout, options.mask_token) {
            let dropout = TokenDropout { mask_token, expected: MASKED_IN_TRAINING };
            stream = self.builder.node(dropout, "embed.tokens.drop", &[stream, input_ids, self.attention_mask], &[])?;
        }
        if self.spec.use_position_embedding && self.spec.decoder.positions == Positions::Learned {
            let shape = [self.spec.max_position_embeddings, width];
            let table = add_table(&mut self.builder, "wpe.weight", shape, init);
            let name = "embed.positions.sum";
            stream = match self.packing {
                None => self.builder.node(AddPosition, name, &[stream], &[table])?,
                Some(packing) => {
                    let rows = self.builder.node(Embedding, "embed.positions", &[packing.positions], &[table])?;
                    self.builder.node(Add, name, &[stream, rows], &[])?
                }
            };
        }
        if options.use_segment_embedding {
            let segment_ids = self.builder.input("token_type_ids", Shape::integers(sequence));
            let segments = add_table(&mut self.builder, "wse.weight", [SEGMENTS, width], init);
            let segments = self.builder.node(Embedding, "embed.segments", &[segment_ids], &[segments])?;
            stream = self.builder.node(Add, "embed.segments.sum", &[stream, segments], &[])?;
        }
        if !options.is_embedding_plain {
            stream = self.norm("ln_embed", stream)?;
        }
        stream = super::add_scale(&mut self.builder, self.spec.decoder.embeddings_scale, "embed.scale", stream)?;
        stream = self.dropout(self.spec.embedding_dropout_rate, "embed.drop", stream)?;
        self.builder.end_layer("embed");
        Ok((table, stream))
    }

    /// Adds the layers of `h.<block>`: attention and feed-forward network, each added to its input. The sums, or the
    /// inputs, are normalized.
    fn block(&mut self, block: usize, stream: ValueId) -> Result<ValueId, GraphError> {
        let name = format!("h.{block}");
        let part_name = |part: &str| format!("{name}.{part}");
        let mut stream = stream;
        for (part, norm) in [("attn", part_name("ln_1")), ("mlp", part_name("ln_2"))] {
            let input = if self.options.norm_first { self.norm(&norm, stream)? } else { stream };
            let branch = match part {
                "attn" => self.attention(&name, input)?,
                _ => self.feed_forward(&name, input)?,
            };
            stream = self.builder.node(Add, part_name(&format!("{part}.sum")), &[stream, branch], &[])?;
            if !self.options.norm_first {
                stream = self.norm(&norm, stream)?;
            }
            self.builder.end_block_layer(&name, part_name(part));
        }
        Ok(stream)
    }

    fn attention(&mut self, block: &str, x: ValueId) -> Result<ValueId, GraphError> {
        let part_name = |part: &str| format!("{block}.attn{part}");
        let (spec, width) = (self.spec, self.spec.hidden_size);
        let init = spec.initializers.hidden;
        let qkv = [width.saturating_mul(3), width];
        let mut qkv = self.linear(&part_name(".qkv"), x, qkv, init, spec.use_projection_bias_in_attention)?;
        if let (true, Positions::Rotary(rotary)) = (spec.use_position_embedding, spec.decoder.positions) {
            let rotated = spec.num_heads.saturating_mul(2);
            let rotary = super::rotary_operator(rotary, rotated, width.checked_div(spec.num_heads).unwrap_or(0));
            let positions = self.packing.map(|packing| packing.positions);
            let inputs: Vec<ValueId> = [Some(qkv), positions].into_iter().flatten().collect();
            qkv = self.builder.node(rotary, part_name(".rotary"), &inputs, &[])?;
        }
        let attention = Attention {
            heads: spec.num_heads,
            scale: spec.attention_scale as f32,
            dropout: spec.attention_dropout_rate as f32,
        };
        let mut inputs = vec![qkv, self.attention_mask];
        inputs.extend(self.packing.into_iter().flat_map(|packing| [packing.spans, packing.positions]));
        let mixed = self.builder.node(attention, part_name(""), &inputs, &[])?;
        let init = spec.initializers.residual_output;
        let branch = self.linear(&part_name(".proj"), mixed, [width, width], init, spec.use_ffn_bias_in_attention)?;
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
        let fc = self.linear(&part_name("fc"), x, [inner, width], hidden, spec.use_ffn_bias)?;
        let active = self.builder.node(Activation { kind: spec.nonlinearity }, part_name("act"), &[fc], &[])?;
        let branch = self.linear(&part_name("proj"), active, [width, inner], output, spec.use_ffn_bias)?;
        self.dropout(spec.dropout_rate, &part_name("drop"), branch)
    }

    /// Adds the pooler: a layer over the row of the first token.
    fn pooler(&mut self, kind: Nonlinearity, stream: ValueId) -> Result<ValueId, GraphError> {
        let (width, init) = (self.spec.hidden_size, self.spec.initializers.hidden);
        let first = self.builder.node(SelectRow { row: 0 }, "pooler.first", &[stream], &[])?;
        let pooled = self.linear("pooler", first, [width, width], init, true)?;
        self.builder.node(Activation { kind }, "pooler.act", &[pooled], &[])
    }

    /// Adds the layer `head.nsp`: pooler, and the loss of the prediction whether the second segment follows the first.
    fn next_sentence(&mut self, pooler: Nonlinearity, stream: ValueId) -> Result<(), GraphError> {
        let pooled = self.pooler(pooler, stream)?;
        let label = self.builder.input("next_sentence_label", scalar());
        let params = self.output_tensors("nsp", 2);
        self.builder.loss(CrossEntropy::with_factor(1.0), &[pooled, label], &params)?;
        self.builder.end_layer("head.nsp");
        Ok(())
    }

    /// Returns the rows of the stream whose tokens are predicted: all, or those of an input of positions.
    fn predicted_rows(
        &mut self,
        stream: ValueId,
        max_predictions: Option<usize>,
        sequence: usize,
    ) -> Result<PredictedRows, GraphError> {
        let Some(count) = max_predictions else {
            return Ok(PredictedRows { rows: stream, labels: self.builder.input(LABELS, Shape::integers(sequence)) });
        };
        let positions = self.builder.input("masked_lm_positions", Shape::integers(count));
        let rows = self.builder.node(GatherRows, "head.rows", &[stream, positions], &[])?;
        Ok(PredictedRows { rows, labels: self.builder.input(LABELS, Shape::integers(count)) })
    }

    /// Adds the layer `head`: the loss of the prediction of tokens.
    fn masked_tokens(
        &mut self,
        table: TensorId,
        PredictedRows { rows, labels }: PredictedRows,
        kind: Nonlinearity,
        factor: f64,
    ) -> Result<(), GraphError> {
        let (width, entries) = (self.spec.hidden_size, self.spec.vocab_size);
        let dense = self.linear("head.dense", rows, [width, width], self.spec.initializers.hidden, true)?;
        let active = self.builder.node(Activation { kind }, "head.act", &[dense], &[])?;
        let normal = self.norm("ln_f", active)?;
        let normal = super::add_scale(&mut self.builder, self.spec.decoder.logits_scale, "head.scale", normal)?;
        let weight = if self.spec.share_embedding_weights {
            table
        } else {
            add_weight(&mut self.builder, "lm_head.weight", [entries, width], self.spec.initializers.lm_head)
        };
        let bias = self.builder.tensor("lm_head.bias", &[entries], ZERO, TensorRole::Bias);
        self.builder.loss(CrossEntropy::with_factor(factor as f32), &[normal, labels], &[weight, bias])?;
        self.builder.end_layer("head");
        Ok(())
    }

    /// Adds the layer `head`: the loss of the prediction of one of `classes` for each row of `x`; a vector is one row.
    fn classifier(
        &mut self,
        x: ValueId,
        classes: usize,
        dropout_rate: f64,
        metric: ClassifierMetric,
    ) -> Result<(), GraphError> {
        let x = self.dropout(dropout_rate, "head.drop", x)?;
        let labels = self.builder.shape(x).one_integer_per_row();
        let labels = self.builder.input(LABELS, labels);
        let params = self.output_tensors("classifier", classes);
        // The loss computes the logits itself, and does not return them.
        let mut logits = || self.builder.node(Linear, "head.logits", &[x], &params);
        match metric {
            ClassifierMetric::None => {}
            ClassifierMetric::ClassCounts => {
                let logits = logits()?;
                let counts = self.builder.node(ClassCounts, "head.counts", &[logits, labels], &[])?;
                self.builder.node(Metric, "class_counts", &[counts], &[])?;
            }
            ClassifierMetric::Summaries { sequence } => {
                let logits = logits()?;
                self.compare_summaries(logits, labels, sequence)?;
            }
        }
        self.builder.loss(CrossEntropy::with_factor(1.0), &[x, labels], &params)?;
        self.builder.end_layer("head");
        Ok(())
    }

    /// Adds the metrics `rouge1` and `rouge2`: the words, and the pairs of words, of sentences that are predicted to
    /// belong to the summary, compared with those of the sentences whose labels are 1.
    fn compare_summaries(&mut self, logits: ValueId, labels: ValueId, sequence: usize) -> Result<(), GraphError> {
        let sentences = self.builder.input("sentence_ids", Shape::integers(sequence));
        let words = self.builder.input("word_ids", Shape::integers(sequence));
        let predicted = self.builder.node(ArgMax { axis: 1 }, "head.predicted", &[logits], &[])?;
        let mut tokens_of = |classes, name: &str| {
            let classes = self.builder.node(Cast { to: DType::F32 }, format!("{name}.sentences"), &[classes], &[])?;
            self.builder.node(Gather { axis: 0 }, format!("{name}.tokens"), &[classes, sentences], &[])
        };
        let (predicted, actual) = (tokens_of(predicted, "head.predicted")?, tokens_of(labels, "head.actual")?);
        for (length, name) in [(1, "rouge1"), (2, "rouge2")] {
            let inputs = [words, predicted, actual];
            let overlap = self.builder.node(NgramOverlap { length }, format!("head.{name}"), &inputs, &[])?;
            self.builder.node(Metric, name, &[overlap], &[])?;
        }
        Ok(())
    }

    /// Adds the layer `head`: the mean of the losses of the first and the last position of an answer.
    fn answer(&mut self, stream: ValueId) -> Result<(), GraphError> {
        let (width, init) = (self.spec.hidden_size, self.spec.initializers.lm_head);
        let scores = self.linear("classifier", stream, [2, width], init, true)?;
        let scores = self.builder.node(Transpose, "head.scores", &[scores], &[])?;
        let labels = self.builder.input(LABELS, Shape::integers(2));
        self.builder.loss(LogitsCrossEntropy { factor: 0.5 }, &[scores, labels], &[])?;
        self.builder.end_layer("head");
        Ok(())
    }

    /// Adds the weight and the bias of an output layer.
    fn output_tensors(&mut self, name: &str, classes: usize) -> [TensorId; 2] {
        let (shape, init) = ([classes, self.spec.hidden_size], self.spec.initializers.lm_head);
        let weight = add_weight(&mut self.builder, &format!("{name}.weight"), shape, init);
        [weight, self.builder.tensor(format!("{name}.bias"), &[classes], ZERO, TensorRole::Bias)]
    }

    fn norm(&mut self, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        let (width, epsilon) = (self.spec.hidden_size, self.spec.layer_norm_epsilon);
        super::add_layer_norm(&mut self.builder, name, x, width, epsilon)
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

/// Returns the shape of one integer per sample.
fn scalar() -> Shape {
    Shape::integers(1).one_integer_per_row()
}
