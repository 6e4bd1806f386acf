//! Encoders: the blocks of BERT, RoBERTa and ESM-2, and the heads of their tasks.

use millrace_emulator::graph::{Graph, INPUT_IDS, ValueId};
use millrace_emulator::ops::{Attention, Nonlinearity, OpKind, Rotary, TokenDropout};

use super::refuse;
use super::walk::{DropoutRates, NamedTensors, Walk};
use crate::error::Result;

/// How an encoder knows the positions of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::hf) enum EncoderPositions {
    /// By a table with this number of rows.
    Learned(usize),
    Rotary(Rotary),
    Absent,
}

/// What an encoder predicts. Tensors of output layers are `lm_head` (tokens), `nsp` (next sentence) and `classifier`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::hf) enum EncoderHead {
    /// Masked tokens, from a layer `head.dense` with this activation and the norm `ln_f`; with a pooler of an
    /// activation also the next sentence.
    MaskedTokens { activation: Nonlinearity, next_sentence: Option<Nonlinearity> },
    /// The class of a sample, from a pooler with this activation.
    Classifier { pooler: Nonlinearity, dropout: f32 },
    /// The class of each token, or of some.
    TokenClassifier { dropout: f32 },
    /// First and last token of an answer.
    Answer,
}

/// What all blocks have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct EncoderBlock {
    pub heads: usize,
    /// Factor on query-key products.
    pub scale: f32,
    pub rotary: Option<Rotary>,
    pub activation: Nonlinearity,
}

/// An encoder.
#[derive(Clone, Debug)]
pub(in crate::hf) struct Encoder {
    pub vocabulary: usize,
    pub hidden: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    /// Factor on query-key products.
    pub scale: f32,
    pub activation: Nonlinearity,
    /// Tokens of a sample.
    pub sequence: usize,
    pub positions: EncoderPositions,
    /// The token without an embedding, if the others are scaled for it.
    pub token_dropout: Option<u32>,
    pub epsilon: f32,
    /// Whether blocks normalize their input, and the last one is followed by the norm `ln_out`.
    pub norm_first: bool,
    pub rates: DropoutRates,
    pub head: EncoderHead,
    /// Whether the output layer over the vocabulary is the token embedding.
    pub is_tied: bool,
    pub tensors: NamedTensors,
}

impl Encoder {
    /// Matches `graph` with the structure of an encoder.
    ///
    /// # Errors
    /// [`Error::NotExportable`](crate::Error::NotExportable) with the first operator that does not match.
    pub fn from_graph(graph: &Graph) -> Result<Self> {
        let mut walk = Walk::new(graph);
        let mask = walk.input("attention_mask")?;
        let (mut stream, token_dropout) = walk.encoder_embedding(mask)?;
        let norm_first = walk.is_norm_first(stream);
        if !norm_first && walk.is_norm(0) {
            stream = walk.norm(stream, "ln_embed")?;
        }
        let (mut stream, rate) = walk.dropout(stream)?;
        walk.rates.embedding = rate;
        let norm_first = norm_first || walk.is_norm_first(stream);
        let mut blocks = Vec::new();
        while walk.is_encoder_block() {
            let block = blocks.len();
            blocks.push(walk.encoder_block(block, &mut stream, Some(mask), norm_first)?);
        }
        if norm_first {
            stream = walk.norm(stream, "ln_out")?;
        }
        let head = walk.encoder_head(stream)?;
        walk.finish()?;
        let block = common_block(&blocks)?;
        let epsilon = walk.layer_norm_epsilon()?;
        let Walk { tensors, rates, .. } = walk;
        let [vocabulary, hidden] = tensors.matrix("wte.weight")?;
        let learned = tensors.get("wpe.weight").and_then(|(_, shape)| shape.first().copied());
        let positions = match (learned, block.rotary) {
            (Some(_), Some(_)) => return Err(refuse("it has learned and rotary positions")),
            (Some(rows), None) => EncoderPositions::Learned(rows),
            (None, Some(rotary)) => EncoderPositions::Rotary(rotary),
            (None, None) => EncoderPositions::Absent,
        };
        Ok(Self {
            vocabulary,
            hidden,
            inner: tensors.matrix("h.0.mlp.fc.weight")?[0],
            layers: blocks.len(),
            heads: block.heads,
            scale: block.scale,
            activation: block.activation,
            sequence: graph.sequence(),
            positions,
            token_dropout,
            epsilon,
            norm_first,
            rates,
            head,
            is_tied: tensors.are_same("lm_head.weight", "wte.weight"),
            tensors,
        })
    }
}

/// Returns what all blocks have.
pub(super) fn common_block(blocks: &[EncoderBlock]) -> Result<EncoderBlock> {
    let first = *blocks.first().ok_or_else(|| refuse("it has no blocks"))?;
    if first.heads > 0 && blocks.iter().all(|block| *block == first) {
        Ok(first)
    } else {
        Err(refuse("its blocks differ from each other"))
    }
}

impl Walk<'_> {
    /// Matches the sum of embeddings. Returns it, and the token whose embedding is left out.
    fn encoder_embedding(&mut self, mask: ValueId) -> Result<(ValueId, Option<u32>)> {
        let ids = self.input(INPUT_IDS)?;
        let mut stream = self.embedding(ids, "wte")?;
        let dropout = |op: &OpKind| if let OpKind::TokenDropout(op) = *op { Some(op) } else { None };
        let dropped = self.take_if(&[stream, ids, mask], "", dropout)?;
        let mut token = None;
        if let Some((TokenDropout { mask_token, .. }, out)) = dropped {
            (token, stream) = (Some(mask_token), out);
        }
        stream = self.learned_positions(stream)?;
        if let Some(segments) = self.graph.input("token_type_ids") {
            let segments = self.embedding(segments, "wse")?;
            stream = self.add(segments, stream)?;
        }
        Ok((stream, token))
    }

    /// Returns whether the next norm begins a block, because the block's first sum adds the norm's input.
    fn is_norm_first(&self, stream: ValueId) -> bool {
        let sum = self.rest().iter().find(|node| matches!(node.op, OpKind::Add(_)));
        self.is_norm(0) && sum.is_some_and(|sum| sum.inputs.contains(&stream))
    }

    /// Returns whether the next operators are those of a block, up to its attention.
    fn is_encoder_block(&self) -> bool {
        let linear = usize::from(self.is_norm(0));
        let rotary = usize::from(matches!(self.op(linear + 1), Some(OpKind::Rotary(_))));
        self.is_linear(linear) && matches!(self.op(linear + 1 + rotary), Some(OpKind::Attention(_)))
    }

    /// Matches a block, whose attention reads `mask`, if there is one.
    pub(super) fn encoder_block(
        &mut self,
        block: usize,
        stream: &mut ValueId,
        mask: Option<ValueId>,
        norm_first: bool,
    ) -> Result<EncoderBlock> {
        let name = |part: &str| format!("h.{block}.{part}");
        let x = if norm_first { self.norm(*stream, &name("ln_1"))? } else { *stream };
        let qkv = self.linear(x, &name("attn.qkv"))?;
        let (qkv, rotary) = self.rotary(qkv)?;
        let inputs: Vec<ValueId> = [qkv].into_iter().chain(mask).collect();
        let attention = |op: &OpKind| if let OpKind::Attention(op) = *op { Some(op) } else { None };
        let (Attention { heads, scale, dropout }, x) = self.take("attention", &inputs, "", attention)?;
        self.rates.attention = dropout;
        let x = self.linear(x, &name("attn.proj"))?;
        *stream = self.add(x, *stream)?;
        let normal = self.norm(*stream, &name(if norm_first { "ln_2" } else { "ln_1" }))?;
        if !norm_first {
            *stream = normal;
        }
        let fc = self.linear(normal, &name("mlp.fc"))?;
        let (activation, x) = self.activation(fc)?;
        let x = self.linear(x, &name("mlp.proj"))?;
        *stream = self.add(x, *stream)?;
        if !norm_first {
            *stream = self.norm(*stream, &name("ln_2"))?;
        }
        Ok(EncoderBlock { heads, scale, rotary, activation })
    }

    /// Matches the head.
    fn encoder_head(&mut self, stream: ValueId) -> Result<EncoderHead> {
        let mut next_sentence = None;
        if let Some(first) = self.first_row(stream)? {
            let x = self.linear(first, "pooler")?;
            let (activation, x) = self.activation(x)?;
            let (x, dropout) = self.dropout(x)?;
            if self.rest().len() == 1 {
                self.output_layer(x, "classifier")?;
                return Ok(EncoderHead::Classifier { pooler: activation, dropout });
            }
            self.output_layer(x, "nsp")?;
            next_sentence = Some(activation);
        }
        let mut rows = stream;
        if let (Some(OpKind::GatherRows(_)), Some(node)) = (self.op(0), self.node(0)) {
            let gather = |op: &OpKind| matches!(op, OpKind::GatherRows(_)).then_some(());
            let inputs: Vec<ValueId> = [stream].into_iter().chain(node.inputs.get(1).copied()).collect();
            rows = self.take("rows", &inputs, "", gather)?.1;
        }
        if !self.is_linear(0) {
            let (x, dropout) = self.dropout(rows)?;
            self.output_layer(x, "classifier")?;
            return Ok(EncoderHead::TokenClassifier { dropout });
        }
        if matches!(self.op(1), Some(OpKind::Transpose(_))) {
            return self.answer(rows);
        }
        let x = self.linear(rows, "head.dense")?;
        let (activation, x) = self.activation(x)?;
        let x = self.norm(x, "ln_f")?;
        self.output_layer(x, "lm_head")?;
        Ok(EncoderHead::MaskedTokens { activation, next_sentence })
    }

    fn answer(&mut self, rows: ValueId) -> Result<EncoderHead> {
        let scores = self.linear(rows, "classifier")?;
        let transpose = |op: &OpKind| matches!(op, OpKind::Transpose(_)).then_some(());
        let (_, scores) = self.take("a transposition", &[scores], "", transpose)?;
        match self.node(0) {
            Some(node) if matches!(node.op, OpKind::LogitsCrossEntropy(_)) && node.inputs.first() == Some(&scores) => {
                self.skip();
                Ok(EncoderHead::Answer)
            }
            _ => Err(self.unexpected("the loss of an answer")),
        }
    }
}
