//! Decoders: what the model families of `transformers` differ in.

use millrace_emulator::graph::{Graph, INPUT_IDS, ValueId};
use millrace_emulator::ops::{CausalAttention, CrossEntropy, Nonlinearity, OpKind, Rotary};

use super::refuse;
use super::walk::{DropoutRates, NamedTensors, NormForm, Walk};
use crate::error::Result;

/// How attention and feed-forward network follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hf) enum BlockForm {
    Sequential,
    ParallelOneNorm,
    ParallelTwoNorms,
}

/// What all blocks have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::hf) struct BlockOptions {
    pub heads: usize,
    pub key_heads: usize,
    /// Factor on query-key products.
    pub scale: f32,
    /// Tokens that attention sees. With `is_window_alternating` only in every other block, from the first on.
    pub window: Option<usize>,
    pub alibi: bool,
    pub softcap: Option<f32>,
    pub rotary: Option<Rotary>,
    pub form: BlockForm,
    /// Whether the outputs of attention and feed-forward network are normalized, too.
    pub is_branch_normalized: bool,
    pub activation: Nonlinearity,
    pub is_gated: bool,
}

/// A decoder.
#[derive(Clone, Debug)]
pub(in crate::hf) struct Decoder {
    pub vocabulary: usize,
    pub hidden: usize,
    pub head_dim: usize,
    pub inner: usize,
    pub layers: usize,
    /// Rows of the learned positions, if there are any.
    pub learned_positions: Option<usize>,
    /// Tokens of a sample.
    pub sequence: usize,
    pub norm: NormForm,
    pub epsilon: f32,
    pub is_embedding_normalized: bool,
    pub embedding_scale: f32,
    pub logits_softcap: Option<f32>,
    pub is_window_alternating: bool,
    pub rates: DropoutRates,
    pub block: BlockOptions,
    pub is_tied: bool,
    pub tensors: NamedTensors,
}

impl Decoder {
    /// Matches `graph` with the structure of a decoder.
    ///
    /// # Errors
    /// [`Error::NotExportable`](crate::Error::NotExportable) with the first operator that does not match.
    pub fn from_graph(graph: &Graph) -> Result<Self> {
        let mut walk = Walk::new(graph);
        let ids = walk.input(INPUT_IDS)?;
        let stream = walk.embedding(ids, "wte")?;
        let mut stream = walk.learned_positions(stream)?;
        let is_embedding_normalized = walk.is_norm(0) && !walk.is_linear(1);
        if is_embedding_normalized {
            stream = walk.norm(stream, "ln_embed")?;
        }
        let (stream, embedding_scale) = walk.scale(stream)?;
        let (mut stream, rate) = walk.dropout(stream)?;
        walk.rates.embedding = rate;
        let mut blocks = Vec::new();
        while !(walk.is_norm(0) && matches!(walk.op(1), Some(OpKind::CrossEntropy(CrossEntropy { .. })))) {
            let block = blocks.len();
            blocks.push(walk.decoder_block(block, &mut stream)?);
        }
        let x = walk.norm(stream, "ln_f")?;
        let logits_softcap = walk.output_layer(x, "lm_head")?;
        walk.finish()?;
        let (block, is_window_alternating) = common_options(&blocks)?;
        let (norm, epsilon) = walk.norm_form()?;
        let Walk { tensors, rates, .. } = walk;
        let [vocabulary, hidden] = tensors.matrix("wte.weight")?;
        let [_, width] = tensors.matrix("h.0.attn.proj.weight")?;
        Ok(Self {
            vocabulary,
            hidden,
            head_dim: width.checked_div(block.heads).ok_or_else(|| refuse("it has no heads"))?,
            inner: tensors.matrix("h.0.mlp.fc.weight")?[0],
            layers: blocks.len(),
            learned_positions: tensors.get("wpe.weight").and_then(|(_, shape)| shape.first().copied()),
            sequence: graph.sequence(),
            norm,
            epsilon,
            is_embedding_normalized,
            embedding_scale,
            logits_softcap,
            is_window_alternating,
            rates,
            block,
            is_tied: tensors.are_same("lm_head.weight", "wte.weight"),
            tensors,
        })
    }

    /// Returns whether a layer of the blocks has a bias. All blocks have the same.
    pub fn has_block_bias(&self) -> bool {
        let layers = ["attn.qkv", "attn.proj", "mlp.fc", "mlp.gate", "mlp.proj"];
        layers.iter().any(|layer| self.has(&format!("h.0.{layer}.bias")))
    }

    /// Returns whether the model has the tensor.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.has(name)
    }
}

/// Returns the options that all blocks have, and whether every other block has no window.
fn common_options(blocks: &[BlockOptions]) -> Result<(BlockOptions, bool)> {
    let first = *blocks.first().ok_or_else(|| refuse("it has no blocks"))?;
    let alternating = |(index, block): (usize, &BlockOptions)| {
        *block == BlockOptions { window: first.window.filter(|_| index.is_multiple_of(2)), ..first }
    };
    if blocks.iter().all(|block| *block == first) {
        Ok((first, false))
    } else if blocks.iter().enumerate().all(alternating) {
        Ok((first, true))
    } else {
        Err(refuse("its blocks differ from each other"))
    }
}

impl Walk<'_> {
    fn decoder_block(&mut self, block: usize, stream: &mut ValueId) -> Result<BlockOptions> {
        let name = |part: &str| format!("h.{block}.{part}");
        let normal = self.norm(*stream, &name("ln_1"))?;
        let qkv = self.linear(normal, &name("attn.qkv"))?;
        let (qkv, rotary) = self.rotary(qkv)?;
        let attention = |op: &OpKind| if let OpKind::CausalAttention(op) = *op { Some(op) } else { None };
        let (attention, x) = self.take("causal attention", &[qkv], "", attention)?;
        let CausalAttention { heads, scale, dropout, window, sinks, alibi, softcap, .. } = attention;
        if sinks > 0 {
            return Err(refuse("its attention has sinks"));
        }
        self.rates.attention = dropout;
        let x = self.linear(x, &name("attn.proj"))?;
        let x = self.branch_output(x, &name("ln_1_post"))?;
        let sum = self.add(x, *stream)?;

        let reads_sum = self.node(0).is_some_and(|node| node.inputs.first() == Some(&sum));
        let (form, normal) = match (self.is_norm(0), reads_sum) {
            (true, true) => (BlockForm::Sequential, self.norm(sum, &name("ln_2"))?),
            (true, false) => (BlockForm::ParallelTwoNorms, self.norm(*stream, &name("ln_2"))?),
            (false, _) => (BlockForm::ParallelOneNorm, normal),
        };
        let (activation, is_gated, x) = self.gated_activation(normal, &name("mlp"))?;
        let x = self.linear(x, &name("mlp.proj"))?;
        let x = self.branch_output(x, &name("ln_2_post"))?;
        *stream = self.add(x, sum)?;
        Ok(BlockOptions {
            heads,
            key_heads: attention.key_heads(),
            scale,
            window,
            alibi,
            softcap,
            rotary,
            form,
            is_branch_normalized: self.tensors.has(&name("ln_1_post.weight")),
            activation,
            is_gated,
        })
    }

    /// Matches the dropout and the norm of the output `x` of a part of a block, if they exist.
    fn branch_output(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        let (x, rate) = self.dropout(x)?;
        if rate != 0.0 {
            self.rates.residual = rate;
        }
        let is_read = self.node(0).is_some_and(|node| node.inputs == [x]);
        if self.is_norm(0) && is_read { self.norm(x, name) } else { Ok(x) }
    }
}
