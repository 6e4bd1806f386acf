//! Reference implementation of every operator in f64, and gradients by differences.

use std::collections::HashMap;

use millrace_emulator::graph::{ActivationKind, Graph, OpKind, OpNode};
use millrace_emulator::numerics::random::{DropoutMask, key, subkey};

/// Samples of a reference computation.
pub struct Batch<'a> {
    pub input_ids: &'a [i32],
    pub labels: &'a [i32],
    /// Number of the first sample.
    pub first: u64,
    pub seed: u64,
    /// Whether dropout is applied.
    pub training: bool,
}

/// The sum of losses over all samples, for tensors in f64.
pub fn loss(graph: &Graph, tensors: &[Vec<f64>], batch: &Batch<'_>) -> f64 {
    let sequence = graph.values[graph.tokens].rows;
    let samples = batch.input_ids.len() / sequence;
    (0..samples).map(|sample| sample_loss(graph, tensors, batch, sample, sequence)).sum()
}

fn sample_loss(graph: &Graph, tensors: &[Vec<f64>], batch: &Batch<'_>, sample: usize, sequence: usize) -> f64 {
    let at = sample * sequence..(sample + 1) * sequence;
    let (ids, labels) = (&batch.input_ids[at.clone()], &batch.labels[at]);
    let mut values: HashMap<usize, Vec<f64>> = HashMap::new();
    for (id, node) in graph.nodes.iter().enumerate() {
        let key = key(batch.seed, batch.first + sample as u64, id as u64);
        let op = Operation { graph, node, tensors, key, training: batch.training };
        let of = |input: usize| &values[&node.inputs[input]];
        let made = match node.op {
            OpKind::CrossEntropy => return op.cross_entropy(of(0), labels),
            OpKind::Embedding => op.embedding(ids),
            OpKind::Add => of(0).iter().zip(of(1)).map(|(a, b)| a + b).collect(),
            OpKind::AddPosition => of(0).iter().zip(&tensors[node.params[0]]).map(|(a, b)| a + b).collect(),
            OpKind::Dropout { rate } => op.dropout(of(0), rate, key),
            OpKind::LayerNorm { epsilon } => op.layer_norm(of(0), f64::from(epsilon)),
            OpKind::Linear => op.linear(of(0)),
            OpKind::Activation { kind } => of(0).iter().map(|&x| activation(kind, x)).collect(),
            OpKind::CausalAttention { heads, scale, dropout } => op.attention(of(0), heads, f64::from(scale), dropout),
        };
        values.insert(node.output.unwrap(), made);
    }
    unreachable!("a graph ends with its loss")
}

fn activation(kind: ActivationKind, x: f64) -> f64 {
    match kind {
        ActivationKind::Gelu => 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        ActivationKind::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
    }
}

struct Operation<'a> {
    graph: &'a Graph,
    node: &'a OpNode,
    tensors: &'a [Vec<f64>],
    key: u64,
    training: bool,
}

impl Operation<'_> {
    fn columns(&self, input: usize) -> usize {
        self.graph.values[self.node.inputs[input]].columns
    }

    fn tensor(&self, param: usize) -> Option<&[f64]> {
        self.node.params.get(param).map(|&tensor| self.tensors[tensor].as_slice())
    }

    fn factor(&self, rate: f32, key: u64, element: usize) -> f64 {
        let dropout = DropoutMask::new(f64::from(rate)).unwrap();
        if self.training { f64::from(dropout.factor(key, element as u32)) } else { 1.0 }
    }

    fn embedding(&self, ids: &[i32]) -> Vec<f64> {
        let width = self.graph.tensors[self.node.params[0]].shape[1];
        let table = self.tensor(0).unwrap();
        ids.iter().flat_map(|&id| table[id as usize * width..][..width].iter().copied()).collect()
    }

    fn dropout(&self, x: &[f64], rate: f32, key: u64) -> Vec<f64> {
        x.iter().enumerate().map(|(element, x)| x * self.factor(rate, key, element)).collect()
    }

    fn layer_norm(&self, x: &[f64], epsilon: f64) -> Vec<f64> {
        let (gain, offset) = (self.tensor(0).unwrap(), self.tensor(1).unwrap());
        let width = gain.len() as f64;
        let row = |row: &[f64]| -> Vec<f64> {
            let mean = row.iter().sum::<f64>() / width;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width;
            let scale = 1.0 / (variance + epsilon).sqrt();
            row.iter().zip(gain).zip(offset).map(|((x, gain), offset)| (x - mean) * scale * gain + offset).collect()
        };
        x.chunks(gain.len()).flat_map(row).collect()
    }

    fn linear(&self, x: &[f64]) -> Vec<f64> {
        let (inputs, weight, bias) = (self.columns(0), self.tensor(0).unwrap(), self.tensor(1));
        let row = |x: &[f64]| -> Vec<f64> {
            let product = |w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
            weight.chunks(inputs).enumerate().map(|(o, w)| product(w) + bias.map_or(0.0, |bias| bias[o])).collect()
        };
        x.chunks(inputs).flat_map(row).collect()
    }

    fn attention(&self, qkv: &[f64], heads: usize, scale: f64, rate: f32) -> Vec<f64> {
        let width = self.columns(0) / 3;
        let (dim, rows) = (width / heads, qkv.len() / (3 * width));
        let part = |row: usize, which: usize, head: usize| &qkv[row * 3 * width + which * width + head * dim..][..dim];
        let mut out = vec![0.0; rows * width];
        for head in 0..heads {
            let head_key = subkey(self.key, head as u64);
            for query in 0..rows {
                let score = |key: usize| {
                    part(query, 0, head).iter().zip(part(key, 1, head)).map(|(q, k)| q * k).sum::<f64>() * scale
                };
                let scores: Vec<f64> = (0..=query).map(score).collect();
                let most = scores.iter().fold(f64::MIN, |most, &score| most.max(score));
                let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
                for (key, score) in scores.iter().enumerate() {
                    let share = (score - most).exp() / sum * self.factor(rate, subkey(head_key, query as u64), key);
                    let to = &mut out[query * width + head * dim..][..dim];
                    to.iter_mut().zip(part(key, 2, head)).for_each(|(to, value)| *to += share * value);
                }
            }
        }
        out
    }

    fn cross_entropy(&self, x: &[f64], labels: &[i32]) -> f64 {
        let logits = self.linear(x);
        let row = |(row, &label): (&[f64], &i32)| {
            let most = row.iter().fold(f64::MIN, |most, &logit| most.max(logit));
            let sum: f64 = row.iter().map(|logit| (logit - most).exp()).sum();
            if label < 0 { 0.0 } else { most + sum.ln() - row[label as usize] }
        };
        logits.chunks(logits.len() / labels.len()).zip(labels).map(row).sum()
    }
}

/// The derivative of the loss by element `element` of tensor `tensor`: central differences with two steps,
/// extrapolated.
pub fn slope(graph: &Graph, tensors: &mut [Vec<f64>], batch: &Batch<'_>, tensor: usize, element: usize) -> f64 {
    let here = tensors[tensor][element];
    let mut at = |offset: f64| {
        tensors[tensor][element] = here + offset;
        let loss = loss(graph, tensors, batch);
        tensors[tensor][element] = here;
        loss
    };
    let mut central = |step: f64| (at(step) - at(-step)) / (2.0 * step);
    (4.0 * central(1e-4) - central(2e-4)) / 3.0
}
