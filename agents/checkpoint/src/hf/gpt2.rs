//! Recognizes GPT-2 in a graph: embeddings, pre-norm blocks of attention and MLP, a final norm, and the head.

use millrace_emulator::graph::{Graph, INPUT_IDS, OpNode, TensorId, ValueId};
use millrace_emulator::ops::{Activation, CausalAttention, CrossEntropy, Dropout, LayerNorm, Nonlinearity, OpKind};

use super::structure::DropoutRates;
use crate::error::{Error, Result};

/// A linear layer's weight `[out, in]` and bias.
pub(super) type LinearIds = (TensorId, Option<TensorId>);
/// A norm's gain and offset.
pub(super) type NormIds = (TensorId, TensorId);

#[derive(Clone, Debug)]
pub(super) struct TransformerBlock {
    pub ln_1: NormIds,
    pub qkv: LinearIds,
    pub proj: LinearIds,
    pub ln_2: NormIds,
    pub fc: LinearIds,
    pub mlp_proj: LinearIds,
    /// Factor on query-key products.
    pub scale: f32,
}

/// A graph that has the structure of GPT-2.
#[derive(Clone, Debug)]
pub(super) struct Gpt2 {
    pub wte: TensorId,
    pub wpe: TensorId,
    pub blocks: Vec<TransformerBlock>,
    pub ln_f: NormIds,
    pub head: TensorId,
    pub head_bias: Option<TensorId>,
    pub heads: usize,
    pub hidden: usize,
    pub inner: usize,
    pub positions: usize,
    pub vocabulary: usize,
    pub epsilon: f32,
    pub activation: Nonlinearity,
    pub rates: DropoutRates,
}

/// A tensor of a Hugging Face GPT-2 and its source.
#[derive(Clone, Debug)]
pub(super) struct TensorMapping {
    /// Name in the export, without the prefix `transformer.`.
    pub name: String,
    /// Shape in the export.
    pub shape: Vec<usize>,
    /// The graph's tensor; `None` for a bias that this model does not have.
    pub tensor: Option<TensorId>,
    /// Whether to transpose: the graph's tensor is `[out, in]`, that of Hugging Face `[in, out]`.
    pub transposed: bool,
    /// Number of elements at the start of the graph's tensor that compute queries, and the factor by which the exported
    /// ones are larger: GPT-2 always scales by `1 / sqrt(head)`.
    pub queries: Option<(usize, f32)>,
}

impl Gpt2 {
    /// Matches `graph` with the structure of GPT-2.
    ///
    /// # Errors
    /// [`Error::NotExportable`] with the first operator that does not match.
    pub fn from_graph(graph: &Graph) -> Result<Self> {
        let graph = &graph.without_packing();
        let mut matcher = GraphMatcher { graph, next: 0 };
        let (wte, tokens) = matcher.embedding()?;
        let (wpe, mut stream) = matcher.position(tokens)?;
        let mut rates =
            DropoutRates { embedding: matcher.dropout(&mut stream)?.unwrap_or(0.0), ..DropoutRates::default() };
        let (mut blocks, mut common) = (Vec::new(), None);
        let (ln_f, normed) = loop {
            let (norm, epsilon, normed) = matcher.norm(stream)?;
            matcher.same(&mut common, epsilon, "epsilon of the norms")?;
            if matcher.is_at_end() {
                break (norm, normed);
            }
            blocks.push(matcher.block(norm, normed, &mut stream, &mut rates)?);
        };
        let (head, head_bias) = matcher.head(normed)?;
        let first = blocks.first().ok_or_else(|| refuse("it has no transformer block".into()))?;
        let [vocabulary, hidden] = matcher.matrix(wte)?;
        let model = Self {
            inner: matcher.matrix(first.0.fc.0)?[0],
            positions: matcher.matrix(wpe)?[0],
            heads: first.1,
            activation: first.2,
            blocks: blocks.iter().map(|block| block.0.clone()).collect(),
            epsilon: common.unwrap_or_default(),
            wte,
            wpe,
            ln_f,
            head,
            head_bias,
            hidden,
            vocabulary,
            rates,
        };
        if blocks.iter().any(|block| (block.1, block.2) != (model.heads, model.activation)) {
            return Err(refuse("its blocks differ in heads or activation".into()));
        }
        model.check_shapes(graph)?;
        Ok(model)
    }

    /// Returns whether the head is the embedding table.
    pub fn tied(&self) -> bool {
        self.head == self.wte
    }

    /// Returns every tensor of the Hugging Face model; an untied head is last.
    pub fn mapping(&self) -> Vec<TensorMapping> {
        let (hidden, inner) = (self.hidden, self.inner);
        let plain = |name: String, shape: Vec<usize>, tensor| TensorMapping {
            name,
            shape,
            tensor: Some(tensor),
            transposed: false,
            queries: None,
        };
        let mut all = vec![
            plain("wte.weight".into(), vec![self.vocabulary, hidden], self.wte),
            plain("wpe.weight".into(), vec![self.positions, hidden], self.wpe),
        ];
        let norm = |name: String, (gain, offset): NormIds| {
            [plain(format!("{name}.weight"), vec![hidden], gain), plain(format!("{name}.bias"), vec![hidden], offset)]
        };
        let linear = |name: String, (weight, bias): LinearIds, shape: [usize; 2]| {
            let weight = TensorMapping { transposed: true, ..plain(format!("{name}.weight"), shape.to_vec(), weight) };
            [weight, TensorMapping { tensor: bias, ..plain(format!("{name}.bias"), vec![shape[1]], 0) }]
        };
        for (index, block) in self.blocks.iter().enumerate() {
            let mut qkv = linear(format!("h.{index}.attn.c_attn"), block.qkv, [hidden, hidden.saturating_mul(3)]);
            if let Some(factor) = self.query_factor(block.scale) {
                qkv[0].queries = Some((hidden.saturating_mul(hidden), factor));
                qkv[1].queries = Some((hidden, factor));
            }
            all.extend(norm(format!("h.{index}.ln_1"), block.ln_1));
            all.extend(qkv);
            all.extend(linear(format!("h.{index}.attn.c_proj"), block.proj, [hidden, hidden]));
            all.extend(norm(format!("h.{index}.ln_2"), block.ln_2));
            all.extend(linear(format!("h.{index}.mlp.c_fc"), block.fc, [hidden, inner]));
            all.extend(linear(format!("h.{index}.mlp.c_proj"), block.mlp_proj, [inner, hidden]));
        }
        all.extend(norm("ln_f".into(), self.ln_f));
        if !self.tied() {
            all.push(plain("lm_head.weight".into(), vec![self.vocabulary, hidden], self.head));
        }
        all
    }

    /// Returns the factor on queries if attention scales by `1 / sqrt(head)`; `None` for 1.
    fn query_factor(&self, scale: f32) -> Option<f32> {
        let head = (self.hidden / self.heads) as f64;
        let factor = f64::from(scale) * head.sqrt();
        // The scale itself is only an f32.
        ((factor - 1.0).abs() > 1e-6).then_some(factor as f32)
    }

    fn check_shapes(&self, graph: &Graph) -> Result<()> {
        if self.heads == 0 || !self.hidden.is_multiple_of(self.heads) {
            return Err(refuse(format!("its {} heads do not divide its {} features", self.heads, self.hidden)));
        }
        for mapped in self.mapping() {
            let Some(tensor) = mapped.tensor.and_then(|id| graph.tensors.get(id)) else { continue };
            let expected: Vec<usize> =
                if mapped.transposed { mapped.shape.iter().rev().copied().collect() } else { mapped.shape };
            if tensor.shape != expected {
                return Err(refuse(format!(
                    "{} has shape {:?}, where GPT-2 has {expected:?}",
                    tensor.name, tensor.shape
                )));
            }
        }
        Ok(())
    }
}

fn refuse(reason: String) -> Error {
    let hint = "GPT-2 has learned positions, pre-norm blocks of causal attention and MLP, and a head without a bias; use `checkpoint info` and the safetensors files of the checkpoint for other models";
    Error::NotExportable { reason, hint: hint.into() }
}

/// Matches operators in order.
struct GraphMatcher<'a> {
    graph: &'a Graph,
    next: usize,
}

impl GraphMatcher<'_> {
    fn peek(&self) -> Result<&OpNode> {
        self.graph.nodes.get(self.next).ok_or_else(|| refuse("its operators end early".into()))
    }

    fn unexpected(&self, expected: &str) -> Error {
        let found = self.graph.nodes.get(self.next).map_or("nothing".into(), |node| format!("{:?}", node.op));
        refuse(format!("operator {} is {found}, where GPT-2 has {expected}", self.next))
    }

    /// Takes the next operator if `accept` accepts its kind and it reads exactly `inputs`.
    fn expect_op<T>(
        &mut self,
        expected: &str,
        inputs: &[ValueId],
        accept: impl Fn(&OpKind) -> Option<T>,
    ) -> Result<(T, Vec<TensorId>, ValueId)> {
        let node = self.peek()?;
        let reads_inputs = node.inputs.len() == inputs.len() && inputs.iter().all(|input| node.inputs.contains(input));
        match (accept(&node.op), reads_inputs, node.output) {
            (Some(kind), true, Some(output)) => {
                let params = node.params.clone();
                self.next += 1;
                Ok((kind, params, output))
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    fn embedding(&mut self) -> Result<(TensorId, ValueId)> {
        let Some(input_ids) = self.graph.input(INPUT_IDS) else { return Err(self.unexpected("token ids")) };
        let (_, params, out) =
            self.expect_op("the token embedding", &[input_ids], |op| matches!(op, OpKind::Embedding(_)).then_some(()))?;
        Ok((self.one(&params)?, out))
    }

    fn position(&mut self, x: ValueId) -> Result<(TensorId, ValueId)> {
        let (_, params, out) =
            self.expect_op("learned positions", &[x], |op| matches!(op, OpKind::AddPosition(_)).then_some(()))?;
        Ok((self.one(&params)?, out))
    }

    /// Returns the rate of a dropout of `x`, if there is one here.
    fn dropout(&mut self, x: &mut ValueId) -> Result<Option<f32>> {
        let OpKind::Dropout(Dropout { rate }) = self.peek()?.op else { return Ok(None) };
        let (_, _, out) = self.expect_op("a dropout of the same value", &[*x], |_| Some(()))?;
        *x = out;
        Ok(Some(rate))
    }

    fn norm(&mut self, x: ValueId) -> Result<(NormIds, f32, ValueId)> {
        let epsilon = |op: &OpKind| match *op {
            OpKind::LayerNorm(LayerNorm { epsilon }) => Some(epsilon),
            _ => None,
        };
        let (epsilon, params, out) = self.expect_op("a layer norm", &[x], epsilon)?;
        match params.as_slice() {
            &[gain, offset] => Ok(((gain, offset), epsilon, out)),
            _ => Err(refuse("a layer norm has no offset".into())),
        }
    }

    fn linear(&mut self, x: ValueId) -> Result<(LinearIds, ValueId)> {
        let (_, params, out) =
            self.expect_op("a linear layer", &[x], |op| matches!(op, OpKind::Linear(_)).then_some(()))?;
        match *params.as_slice() {
            [weight] => Ok(((weight, None), out)),
            [weight, bias] => Ok(((weight, Some(bias)), out)),
            _ => Err(self.unexpected("a linear layer of a weight and a bias")),
        }
    }

    /// Matches the end of a residual branch after `branch`: dropout and addition.
    fn residual_add(&mut self, mut branch: ValueId, stream: &mut ValueId, rates: &mut DropoutRates) -> Result<()> {
        if let Some(rate) = self.dropout(&mut branch)? {
            rates.residual = rate;
        }
        let (_, _, out) = self
            .expect_op("the residual addition", &[branch, *stream], |op| matches!(op, OpKind::Add(_)).then_some(()))?;
        *stream = out;
        Ok(())
    }

    /// Matches a block after its first norm; returns heads and activation.
    fn block(
        &mut self,
        ln_1: NormIds,
        normed: ValueId,
        stream: &mut ValueId,
        rates: &mut DropoutRates,
    ) -> Result<(TransformerBlock, usize, Nonlinearity)> {
        let (qkv, x) = self.linear(normed)?;
        let attention = |op: &OpKind| match *op {
            OpKind::CausalAttention(CausalAttention {
                heads,
                scale,
                dropout,
                key_heads: None,
                window: None,
                sinks: 0,
                alibi: false,
                softcap: None,
            }) => Some((heads, scale, dropout)),
            _ => None,
        };
        let ((heads, scale, dropout), _, x) = self.expect_op("causal attention", &[x], attention)?;
        rates.attention = dropout;
        let (proj, x) = self.linear(x)?;
        self.residual_add(x, stream, rates)?;
        let (ln_2, _, x) = self.norm(*stream)?;
        let (fc, x) = self.linear(x)?;
        let activation = |op: &OpKind| match *op {
            OpKind::Activation(Activation { kind }) => Some(kind),
            _ => None,
        };
        let (kind, _, x) = self.expect_op("the activation", &[x], activation)?;
        let (mlp_proj, x) = self.linear(x)?;
        self.residual_add(x, stream, rates)?;
        Ok((TransformerBlock { ln_1, qkv, proj, ln_2, fc, mlp_proj, scale }, heads, kind))
    }

    fn is_at_end(&self) -> bool {
        let plain = |op: &OpKind| matches!(op, OpKind::CrossEntropy(CrossEntropy { softcap: None, .. }));
        self.graph.nodes.get(self.next).is_some_and(|node| plain(&node.op))
    }

    fn head(&self, x: ValueId) -> Result<LinearIds> {
        let node = self.peek()?;
        let last = self.next + 1 == self.graph.nodes.len();
        match *node.params.as_slice() {
            _ if !last || node.inputs.first() != Some(&x) => Err(self.unexpected("the head, last, over the last norm")),
            [weight] => Ok((weight, None)),
            [weight, bias] => Ok((weight, Some(bias))),
            _ => Err(self.unexpected("a head of a weight and a bias")),
        }
    }

    fn one(&self, params: &[TensorId]) -> Result<TensorId> {
        params.first().copied().ok_or_else(|| refuse("an embedding has no table".into()))
    }

    fn matrix(&self, tensor: TensorId) -> Result<[usize; 2]> {
        let shape = self.graph.tensors.get(tensor).and_then(|tensor| tensor.shape.as_slice().try_into().ok());
        shape.ok_or_else(|| refuse(format!("tensor {tensor} is not a matrix")))
    }

    fn same(&self, common: &mut Option<f32>, value: f32, attribute: &str) -> Result<()> {
        if *common.get_or_insert(value) == value {
            Ok(())
        } else {
            Err(refuse(format!("the {attribute} differs between layers")))
        }
    }
}
