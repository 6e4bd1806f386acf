//! Recognizes a decoder in a graph: what the model families of `transformers` differ in, and tensors by their use.

use std::collections::HashMap;

use millrace_emulator::graph::{Graph, INPUT_IDS, OpNode, TensorId, ValueId};
use millrace_emulator::ops::{
    Activation, CausalAttention, CrossEntropy, Dropout, Gate, LayerNorm, Nonlinearity, OpKind, RmsNorm, Rotary,
};

use super::gpt2::DropoutRates;
use crate::error::{Error, Result};

/// How attention and feed-forward network follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockForm {
    Sequential,
    ParallelOneNorm,
    ParallelTwoNorms,
}

/// A kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormForm {
    Layer,
    BiaslessLayer,
    Rms,
}

/// What all blocks have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BlockOptions {
    pub heads: usize,
    pub key_heads: usize,
    /// Factor on query-key products.
    pub scale: f32,
    pub window: Option<usize>,
    pub alibi: bool,
    pub rotary: Option<Rotary>,
    pub form: BlockForm,
    pub activation: Nonlinearity,
    pub is_gated: bool,
}

/// A decoder. Tensors have the names of `emulator/src/families/decoder.rs`, whatever they are called in the graph.
#[derive(Clone, Debug)]
pub(super) struct Decoder {
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
    pub rates: DropoutRates,
    pub block: BlockOptions,
    pub is_tied: bool,
    tensors: HashMap<String, (TensorId, Vec<usize>)>,
}

impl Decoder {
    /// Matches `graph` with the structure of a decoder.
    ///
    /// # Errors
    /// [`Error::NotExportable`] with the first operator that does not match.
    pub fn from_graph(graph: &Graph) -> Result<Self> {
        let mut walk = Walk { graph, at: 0, tensors: HashMap::new(), norm: None, rates: DropoutRates::default() };
        let ids = graph.input(INPUT_IDS).ok_or_else(|| refuse("it does not read token ids".into()))?;
        let mut stream = walk.take("a token embedding", &[ids], "wte", is_embedding)?.1;
        if let Some((_, out)) = walk.take_if(&[stream], "wpe", is_position)? {
            stream = out;
        }
        let is_embedding_normalized = walk.is_norm(0) && !walk.is_linear(1);
        if is_embedding_normalized {
            stream = walk.norm(stream, "ln_embed")?;
        }
        let mut rate = walk.rates.embedding;
        stream = walk.dropout(stream, &mut rate)?;
        walk.rates.embedding = rate;
        let mut block = None;
        let mut layers = 0;
        while !(walk.is_norm(0) && walk.is_loss(1)) {
            let options = walk.block(layers, &mut stream)?;
            if *block.get_or_insert(options) != options {
                return Err(refuse("its blocks differ from each other".into()));
            }
            layers += 1;
        }
        let x = walk.norm(stream, "ln_f")?;
        walk.head(x)?;
        let block = block.ok_or_else(|| refuse("it has no blocks".into()))?;
        Self::from_walk(walk, block, layers, is_embedding_normalized)
    }

    fn from_walk(walk: Walk<'_>, block: BlockOptions, layers: usize, is_embedding_normalized: bool) -> Result<Self> {
        let Walk { graph, tensors, norm, rates, .. } = walk;
        let shape = |name: &str| tensors.get(name).map(|(_, shape)| shape.as_slice());
        let missing = || refuse("its tensors are not those of a decoder".into());
        let (Some(&[vocabulary, hidden]), Some(&[inner, _])) = (shape("wte.weight"), shape("h.0.mlp.fc.weight")) else {
            return Err(missing());
        };
        let Some(&[_, width]) = shape("h.0.attn.proj.weight") else { return Err(missing()) };
        let (norm, epsilon) = norm.ok_or_else(missing)?;
        let id = |name: &str| tensors.get(name).map(|(id, _)| *id);
        Ok(Self {
            vocabulary,
            hidden,
            head_dim: width.checked_div(block.heads).ok_or_else(missing)?,
            inner,
            layers,
            learned_positions: shape("wpe.weight").and_then(|shape| shape.first().copied()),
            sequence: graph.sequence(),
            norm,
            epsilon,
            is_embedding_normalized,
            rates,
            block,
            is_tied: id("lm_head.weight") == id("wte.weight"),
            tensors,
        })
    }

    /// Returns a tensor and its shape by its name in `emulator/src/families/decoder.rs`.
    pub fn tensor(&self, name: &str) -> Option<(TensorId, &[usize])> {
        self.tensors.get(name).map(|(id, shape)| (*id, shape.as_slice()))
    }

    /// Returns whether the model has the tensor.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns the factor on queries if attention scales by `1 / sqrt(head_dim)`.
    pub fn query_factor(&self) -> f32 {
        let factor = f64::from(self.block.scale) * (self.head_dim as f64).sqrt();
        // The scale itself is only an f32.
        if (factor - 1.0).abs() > 1e-6 { factor as f32 } else { 1.0 }
    }
}

fn refuse(reason: String) -> Error {
    let hint = "use `checkpoint info` and the safetensors files of the checkpoint";
    Error::NotExportable { reason, hint: hint.into() }
}

fn is_embedding(op: &OpKind) -> Option<()> {
    matches!(op, OpKind::Embedding(_)).then_some(())
}

fn is_position(op: &OpKind) -> Option<()> {
    matches!(op, OpKind::AddPosition(_)).then_some(())
}

fn is_add(op: &OpKind) -> Option<()> {
    matches!(op, OpKind::Add(_)).then_some(())
}

fn is_linear(op: &OpKind) -> Option<()> {
    matches!(op, OpKind::Linear(_)).then_some(())
}

/// Matches operators in order.
struct Walk<'a> {
    graph: &'a Graph,
    at: usize,
    tensors: HashMap<String, (TensorId, Vec<usize>)>,
    norm: Option<(NormForm, f32)>,
    rates: DropoutRates,
}

impl Walk<'_> {
    fn node(&self, ahead: usize) -> Option<&OpNode> {
        self.graph.nodes.get(self.at + ahead)
    }

    fn is_norm(&self, ahead: usize) -> bool {
        matches!(self.node(ahead).map(|node| node.op), Some(OpKind::LayerNorm(_) | OpKind::RmsNorm(_)))
    }

    fn is_linear(&self, ahead: usize) -> bool {
        self.node(ahead).is_some_and(|node| is_linear(&node.op).is_some())
    }

    fn is_loss(&self, ahead: usize) -> bool {
        matches!(self.node(ahead).map(|node| node.op), Some(OpKind::CrossEntropy(_)))
    }

    /// Takes the next operator if `fits` accepts its kind and it reads exactly `inputs`, and records its tensors.
    fn take_if<T>(
        &mut self,
        inputs: &[ValueId],
        name: &str,
        fits: impl Fn(&OpKind) -> Option<T>,
    ) -> Result<Option<(T, ValueId)>> {
        let Some(node) = self.graph.nodes.get(self.at) else { return Ok(None) };
        let reads = node.inputs.len() == inputs.len() && inputs.iter().all(|input| node.inputs.contains(input));
        let (Some(kind), true, Some(output)) = (fits(&node.op), reads, node.output) else { return Ok(None) };
        self.record(&node.params, name)?;
        self.at += 1;
        Ok(Some((kind, output)))
    }

    fn take<T>(
        &mut self,
        wanted: &str,
        inputs: &[ValueId],
        name: &str,
        fits: impl Fn(&OpKind) -> Option<T>,
    ) -> Result<(T, ValueId)> {
        let taken = self.take_if(inputs, name, fits)?;
        taken.ok_or_else(|| {
            let found = self.node(0).map_or("nothing".into(), |node| format!("{:?}", node.op));
            refuse(format!("operator {} is {found}, where decoders of transformers have {wanted}", self.at))
        })
    }

    fn record(&mut self, params: &[TensorId], name: &str) -> Result<()> {
        for (&id, kind) in params.iter().zip(["weight", "bias"]) {
            let tensor = self.graph.tensors.get(id).ok_or_else(|| refuse(format!("tensor {id} does not exist")))?;
            self.tensors.insert(format!("{name}.{kind}"), (id, tensor.shape.clone()));
        }
        Ok(())
    }

    fn norm(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        let kind = |op: &OpKind| match *op {
            OpKind::LayerNorm(LayerNorm { epsilon }) => Some((NormForm::Layer, epsilon)),
            OpKind::RmsNorm(RmsNorm { epsilon }) => Some((NormForm::Rms, epsilon)),
            _ => None,
        };
        let ((mut form, epsilon), out) = self.take("a norm", &[x], name, kind)?;
        if form == NormForm::Layer && !self.tensors.contains_key(&format!("{name}.bias")) {
            form = NormForm::BiaslessLayer;
        }
        if *self.norm.get_or_insert((form, epsilon)) != (form, epsilon) {
            return Err(refuse("its norms differ from each other".into()));
        }
        Ok(out)
    }

    fn dropout(&mut self, x: ValueId, rate: &mut f32) -> Result<ValueId> {
        let kind = |op: &OpKind| if let OpKind::Dropout(Dropout { rate }) = *op { Some(rate) } else { None };
        let Some((found, out)) = self.take_if(&[x], "", kind)? else { return Ok(x) };
        *rate = found;
        Ok(out)
    }

    fn linear(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        Ok(self.take("a linear layer", &[x], name, is_linear)?.1)
    }

    /// Matches the end of a residual branch: dropout and addition to `onto`.
    fn add(&mut self, branch: ValueId, onto: ValueId) -> Result<ValueId> {
        let mut rate = self.rates.residual;
        let branch = self.dropout(branch, &mut rate)?;
        self.rates.residual = rate;
        Ok(self.take("the residual addition", &[branch, onto], "", is_add)?.1)
    }

    fn block(&mut self, block: usize, stream: &mut ValueId) -> Result<BlockOptions> {
        let at = |part: &str| format!("h.{block}.{part}");
        let normal = self.norm(*stream, &at("ln_1"))?;
        let qkv = self.linear(normal, &at("attn.qkv"))?;
        let rotary = |op: &OpKind| if let OpKind::Rotary(rotary) = *op { Some(rotary) } else { None };
        let (rotary, qkv) = self.take_if(&[qkv], "", rotary)?.map_or((None, qkv), |(op, out)| (Some(op), out));
        let attention = |op: &OpKind| if let OpKind::CausalAttention(op) = *op { Some(op) } else { None };
        let (attention, x) = self.take("causal attention", &[qkv], "", attention)?;
        let CausalAttention { heads, scale, dropout, window, sinks, alibi, softcap, .. } = attention;
        if sinks > 0 {
            return Err(refuse("its attention has sinks".into()));
        }
        if softcap.is_some() {
            return Err(refuse("its attention scores are capped".into()));
        }
        self.rates.attention = dropout;
        let x = self.linear(x, &at("attn.proj"))?;
        let sum = self.add(x, *stream)?;

        let reads_sum = self.node(0).is_some_and(|node| node.inputs.first() == Some(&sum));
        let (form, normal) = match (self.is_norm(0), reads_sum) {
            (true, true) => (BlockForm::Sequential, self.norm(sum, &at("ln_2"))?),
            (true, false) => (BlockForm::ParallelTwoNorms, self.norm(*stream, &at("ln_2"))?),
            (false, _) => (BlockForm::ParallelOneNorm, normal),
        };
        let (activation, is_gated, x) = self.activation(block, normal)?;
        let x = self.linear(x, &at("mlp.proj"))?;
        *stream = self.add(x, sum)?;
        let key_heads = attention.key_heads();
        Ok(BlockOptions { heads, key_heads, scale, window, alibi, rotary, form, activation, is_gated })
    }

    /// Matches the first layer of a feed-forward network and its activation.
    fn activation(&mut self, block: usize, x: ValueId) -> Result<(Nonlinearity, bool, ValueId)> {
        let at = |part: &str| format!("h.{block}.mlp.{part}");
        if self.is_linear(1) {
            let gate = self.linear(x, &at("gate"))?;
            let value = self.linear(x, &at("fc"))?;
            let kind = |op: &OpKind| if let OpKind::Gate(Gate { kind }) = *op { Some(kind) } else { None };
            let (kind, out) = self.take("a gate", &[gate, value], "", kind)?;
            return Ok((kind, true, out));
        }
        let fc = self.linear(x, &at("fc"))?;
        let kind = |op: &OpKind| if let OpKind::Activation(Activation { kind }) = *op { Some(kind) } else { None };
        let (kind, out) = self.take("an activation", &[fc], "", kind)?;
        Ok((kind, false, out))
    }

    fn head(&mut self, x: ValueId) -> Result<()> {
        let last = self.at + 1 == self.graph.nodes.len();
        if let Some(OpKind::CrossEntropy(CrossEntropy { softcap: Some(_), .. })) = self.node(0).map(|node| node.op) {
            return Err(refuse("its logits are capped".into()));
        }
        match self.graph.nodes.get(self.at) {
            Some(node) if last && node.inputs.first() == Some(&x) => self.record(&node.params, "lm_head"),
            _ => Err(refuse("its last operator is not an output layer over the last norm".into())),
        }
    }
}
