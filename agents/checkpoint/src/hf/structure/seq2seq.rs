//! Encoders with a decoder whose blocks normalize their input: T5.

use millrace_emulator::graph::{Graph, INPUT_IDS, ValueId};
use millrace_emulator::ops::{CrossAttention, Nonlinearity, OpKind, RelativePositions};

use super::refuse;
use super::walk::{NamedTensors, NormForm, Walk};
use crate::error::Result;

/// What all blocks of encoder and decoder have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::hf) struct Seq2SeqBlock {
    pub heads: usize,
    /// Factor on query-key products.
    pub scale: f32,
    pub relative: Option<RelativePositions>,
    pub activation: Nonlinearity,
    pub is_gated: bool,
    /// Rate of all dropouts of attention scores.
    pub attention_dropout: f32,
}

/// An encoder with a decoder. Tensors begin with `encoder.` or `decoder.`; the output layer is `lm_head`.
#[derive(Clone, Debug)]
pub(in crate::hf) struct Seq2Seq {
    pub vocabulary: usize,
    pub hidden: usize,
    /// Width of all heads together.
    pub attention_width: usize,
    pub inner: usize,
    pub encoder_layers: usize,
    pub decoder_layers: usize,
    pub block: Seq2SeqBlock,
    pub norm: NormForm,
    pub epsilon: f32,
    pub residual_dropout: f32,
    /// Whether encoder and decoder have one token embedding.
    pub shares_embedding: bool,
    pub is_tied: bool,
    /// Factor on the decoder's output before the output layer.
    pub logits_scale: f32,
    pub tensors: NamedTensors,
}

/// The encoder or the decoder.
struct Stack {
    name: &'static str,
    ids: ValueId,
    mask: ValueId,
    /// Of a decoder: the output of the encoder, and its mask.
    memory: Option<(ValueId, ValueId)>,
}

impl Seq2Seq {
    /// Matches `graph` with the structure of an encoder with a decoder.
    ///
    /// # Errors
    /// [`Error::NotExportable`](crate::Error::NotExportable) with the first operator that does not match.
    pub fn from_graph(graph: &Graph) -> Result<Self> {
        let mut walk = Walk::new(graph);
        let [ids, mask, decoder_ids, decoder_mask] =
            [INPUT_IDS, "attention_mask", "decoder_input_ids", "decoder_attention_mask"].map(|name| walk.input(name));
        let (ids, mask, decoder_ids, decoder_mask) = (ids?, mask?, decoder_ids?, decoder_mask?);
        let mut blocks = Vec::new();
        let memory = walk.stack(&Stack { name: "encoder", ids, mask, memory: None }, &mut blocks)?;
        let encoder_layers = blocks.len();
        let decoder = Stack { name: "decoder", ids: decoder_ids, mask: decoder_mask, memory: Some((memory, mask)) };
        let stream = walk.stack(&decoder, &mut blocks)?;
        let (stream, logits_scale) = walk.scale(stream)?;
        if walk.output_layer(stream, "lm_head")?.is_some() {
            return Err(refuse("its logits are capped"));
        }
        walk.finish()?;
        let block = *blocks.first().ok_or_else(|| refuse("it has no blocks"))?;
        if blocks.iter().any(|other| *other != block) {
            return Err(refuse("its blocks differ from each other"));
        }
        let (norm, epsilon) = walk.norm_form()?;
        let Walk { tensors, rates, .. } = walk;
        let [vocabulary, hidden] = tensors.matrix("decoder.wte.weight")?;
        let [attention_width, _] = tensors.matrix("encoder.h.0.attn.q.weight")?;
        Ok(Self {
            vocabulary,
            hidden,
            attention_width,
            inner: tensors.matrix("encoder.h.0.mlp.fc.weight")?[0],
            encoder_layers,
            decoder_layers: blocks.len() - encoder_layers,
            block,
            norm,
            epsilon,
            residual_dropout: rates.residual,
            shares_embedding: tensors.are_same("encoder.wte.weight", "decoder.wte.weight"),
            is_tied: tensors.are_same("lm_head.weight", "decoder.wte.weight"),
            logits_scale,
            tensors,
        })
    }
}

impl Walk<'_> {
    /// Matches embedding, blocks and last norm, and appends what the blocks are.
    fn stack(&mut self, stack: &Stack, blocks: &mut Vec<Seq2SeqBlock>) -> Result<ValueId> {
        let part_name = |part: &str| format!("{}.{part}", stack.name);
        let mut stream = self.embedding(stack.ids, &part_name("wte"))?;
        // A model has up to two dropouts here, because some have one of their own for the embedding.
        for _ in 0..2 {
            (stream, _) = self.dropout(stream)?;
        }
        let first = blocks.len();
        while self.is_norm(0) && self.is_linear(1) && self.is_linear(2) {
            let name = part_name(&format!("h.{}", blocks.len() - first));
            blocks.push(self.seq2seq_block(stack, &name, &mut stream)?);
        }
        let stream = self.norm(stream, &part_name("ln_f"))?;
        Ok(self.dropout(stream)?.0)
    }

    fn seq2seq_block(&mut self, stack: &Stack, name: &str, stream: &mut ValueId) -> Result<Seq2SeqBlock> {
        let part_name = |part: &str| format!("{name}.{part}");
        let x = self.norm(*stream, &part_name("ln_1"))?;
        let attention = self.cross_attention(&part_name("attn"), stack.name, [x, x, stack.mask])?;
        if attention.0.causal != stack.memory.is_some() {
            return Err(refuse(format!("{name}.attn sees other tokens than in models of transformers")));
        }
        *stream = self.add(attention.1, *stream)?;
        if let Some((memory, mask)) = stack.memory {
            let x = self.norm(*stream, &part_name("ln_cross"))?;
            let (cross, x) = self.cross_attention(&part_name("cross"), "", [x, memory, mask])?;
            if cross != (CrossAttention { causal: false, relative: None, ..attention.0 }) {
                return Err(refuse(format!("{name}.cross differs from the other attention of the block")));
            }
            *stream = self.add(x, *stream)?;
        }
        let x = self.norm(*stream, &part_name("ln_2"))?;
        let (activation, is_gated, x) = self.gated_activation(x, &part_name("mlp"))?;
        let (x, _) = self.dropout(x)?;
        let x = self.linear(x, &part_name("mlp.proj"))?;
        *stream = self.add(x, *stream)?;
        let CrossAttention { heads, scale, dropout, relative, .. } = attention.0;
        Ok(Seq2SeqBlock { heads, scale, relative, activation, is_gated, attention_dropout: dropout })
    }

    /// Matches an attention of `[rows, key rows, mask of keys]` and the layer after it. The table of biases is
    /// `STACK.relative`.
    fn cross_attention(
        &mut self,
        name: &str,
        stack: &str,
        [x, keys, mask]: [ValueId; 3],
    ) -> Result<(CrossAttention, ValueId)> {
        let queries = self.linear(x, &format!("{name}.q"))?;
        let key_values = self.linear(keys, &format!("{name}.kv"))?;
        let kind = |op: &OpKind| if let OpKind::CrossAttention(op) = *op { Some(op) } else { None };
        let inputs = [queries, key_values, mask];
        let (attention, x) = self.take("attention", &inputs, &format!("{stack}.relative"), kind)?;
        Ok((attention, self.linear(x, &format!("{name}.proj"))?))
    }
}
