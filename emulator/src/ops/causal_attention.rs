//! `(qkv [rows x (H + 2K)], spans i32 [rows]?) -> [rows x H]`: causal attention; columns are queries (H), keys (K),
//! values (K), each divided into heads of the same width. With spans, `spans[i]` rows after row i attend to it, so that
//! sequences in one sample do not see each other. Scores and probabilities exist as tiles only, never as a whole `rows
//! x rows` matrix.

use serde::{Deserialize, Serialize};

use super::heads::HeadLayout;
use super::operator::check_softcap;
use super::{Flops, OpError, Operator, RowDependency, SavedForBackward, Signature, check_rate};
use crate::graph::Shape;

/// See the module documentation. Saves input, output and the log-sum-exp of each row and head; the backward pass
/// recomputes the probabilities, tile by tile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CausalAttention {
    /// Number of heads of queries; divides H.
    pub heads: usize,
    /// Factor on query-key products.
    pub scale: f32,
    /// Dropout on probabilities.
    pub dropout: f32,
    /// Number of heads of keys and values, which divides `heads`: adjacent heads of queries share one. `None` for one
    /// each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_heads: Option<usize>,
    /// Number of rows that a row attends to, itself included; `None` for all before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// Number of first rows, the sinks, that every later row attends to besides its window.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sinks: usize,
    /// Whether scores are decreased in proportion to the distance of query and key (ALiBi).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alibi: bool,
    /// Bound of the scores: a score s becomes `softcap` tanh(s / `softcap`). `None` for none. Not with `alibi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<f32>,
}

impl CausalAttention {
    /// Returns attention in which each head has its own keys and values and attends to all rows before it.
    pub const fn new(heads: usize, scale: f32, dropout: f32) -> Self {
        Self { heads, scale, dropout, key_heads: None, window: None, sinks: 0, alibi: false, softcap: None }
    }

    /// Returns the number of heads of keys and values.
    pub fn key_heads(&self) -> usize {
        self.key_heads.unwrap_or(self.heads)
    }

    /// Divides rows of `columns` into heads.
    fn layout(&self, columns: usize) -> Result<HeadLayout, OpError> {
        HeadLayout::of(self.heads, self.key_heads(), columns)
    }

    /// Returns the number of pairs of rows that attend to each other.
    fn pairs(&self, rows: u64) -> u64 {
        let window = self.window.map_or(rows, |window| rows.min(window as u64));
        let growing = window.saturating_mul(window + 1) / 2;
        let after = rows - window;
        // Row `window + i` attends to i + 1 rows before its window, but at most to the sinks.
        let sinks = after.min(self.sinks as u64);
        let of_sinks = (sinks.saturating_mul(sinks + 1) / 2).saturating_add((after - sinks).saturating_mul(sinks));
        growing.saturating_add(after.saturating_mul(window)).saturating_add(of_sinks)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Operator for CausalAttention {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let qkv = io.sequence_with_integers()?;
        io.params(&[], 0)?;
        check_rate("dropout", self.dropout)?;
        if !self.scale.is_finite() {
            return Err(OpError::Attribute { name: "scale", value: self.scale, range: "finite" });
        }
        check_softcap(self.softcap)?;
        if let Some(value) = self.softcap.filter(|_| self.alibi) {
            return Err(OpError::Attribute { name: "softcap", value, range: "absent if there are linear biases" });
        }
        if self.window == Some(0) {
            return Err(OpError::Attribute { name: "window", value: 0.0, range: "at least 1" });
        }
        if self.sinks > 0 && self.window.is_none() {
            return Err(OpError::Attribute { name: "sinks", value: self.sinks as f32, range: "0 without a window" });
        }
        Ok(Some(qkv.with_columns(self.layout(qkv.columns())?.width())))
    }

    fn row_dependency(&self) -> RowDependency {
        RowDependency::Earlier
    }

    fn flops(&self, io: &Signature<'_>) -> Flops {
        let (rows, columns) = io.input(0);
        self.layout(columns as usize).map_or(Flops::default(), |heads| heads.flops(rows, self.pairs(rows)))
    }

    fn saved(&self, io: &Signature<'_>) -> SavedForBackward {
        let (rows, _) = io.input(0);
        let inputs: &[usize] = if io.inputs.len() > 1 { &[0, 1] } else { &[0] };
        SavedForBackward { inputs, output: true, floats: rows * self.heads as u64 }
    }

    fn has_input_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn scratch(&self, io: &Signature<'_>) -> u64 {
        let (rows, columns) = io.input(0);
        self.layout(columns as usize).map_or(0, |heads| heads.scratch(rows))
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::CausalAttention;
    use crate::kernels::attention::{self, AttentionParams, Qkv, QkvGradient};
    use crate::numerics::random;
    use crate::ops::execute::{
        self, BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, OperatorInput, TargetMut,
        UnsupportedOperator,
    };

    impl CausalAttention {
        fn kernel<'a>(
            &self,
            shape: &NodeShape,
            training: bool,
            keys: &'a [u64],
            samples: usize,
            spans: OperatorInput<'a>,
        ) -> AttentionParams<'a> {
            let dropout =
                random::DropoutMask::new(f64::from(self.dropout)).filter(|factors| training && !factors.is_off());
            AttentionParams {
                samples,
                tokens: shape.rows(),
                key_tokens: shape.rows(),
                heads: self.heads,
                key_heads: self.key_heads(),
                head_dim: self.layout(shape.columns()).map_or(0, |heads| heads.head_dim),
                scale: self.scale,
                causal: true,
                window: self.window,
                sinks: self.sinks,
                alibi: self.alibi,
                softcap: self.softcap,
                relative: None,
                key_mask: None,
                spans: (shape.inputs.len() > 1).then(|| spans.integers()),
                earlier: None,
                dropout,
                sample_keys: keys,
            }
        }
    }

    impl Executor for CausalAttention {
        fn check_supported(&self, shape: &NodeShape) -> Result<(), UnsupportedOperator> {
            execute::check_head_width(self.layout(shape.columns()).map_or(usize::MAX, |heads| heads.head_dim))
        }

        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let params = self.kernel(io.shape, context.training, context.keys, context.samples, io.inputs[1]);
            let qkv = Qkv::packed(&params, io.inputs[0].values());
            attention::forward(context.cx, &params, qkv, io.output, io.extra, context.attention);
        }

        fn forward_rows(&self, context: &mut OperatorContext<'_>, first: usize, io: ForwardArgs<'_>) {
            let params = self.kernel(io.shape, false, &[], 1, io.inputs[1]);
            let qkv = Qkv::packed(&params, io.inputs[0].values());
            attention::forward_rows(context.cx, &params, first, qkv, io.output, context.attention);
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dqkv, _), ..] = io.targets else { return };
            let params = self.kernel(io.shape, context.training, context.keys, context.samples, io.inputs[1]);
            let (qkv, dqkv) = (Qkv::packed(&params, io.inputs[0].values()), QkvGradient::Together(dqkv));
            let (out, dout, workspace) = (io.output, io.gradient, &mut *context.attention);
            attention::backward(context.cx, &params, qkv, out, io.extra, dout, dqkv, io.scratch, workspace);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::CausalAttention;
    use crate::graph::Graph;
    use crate::graph::Shape;
    use crate::kernels::attention::alibi_slope;
    use crate::numerics::random::subkey;
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TestGraph, WIDE, WIDTH, X, accepts, rejects,
    };
    use crate::ops::{Operator, Signature};

    impl OperatorTests for CausalAttention {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let (qkv, columns, heads) = (args.inputs[0], args.io.inputs[0].columns(), self.heads);
            let (dim, group) = (self.layout(columns).unwrap().head_dim, heads / self.key_heads());
            let (width, rows) = (heads * dim, qkv.len() / columns);
            let part = |row: usize, first: usize, head: usize| &qkv[row * columns + first + head * dim..][..dim];
            let (keys, values) = (width, width + self.key_heads() * dim);
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let mut out = vec![0.0; rows * width];
            for head in 0..heads {
                let head_key = subkey(args.key, head as u64);
                let slope = if self.alibi { f64::from(alibi_slope(heads, head)) } else { 0.0 };
                for query in 0..rows {
                    let score = |key: usize| {
                        let product = dot(part(query, 0, head), part(key, keys, head / group));
                        let product = product * f64::from(self.scale);
                        let cap = |cap: f32| f64::from(cap) * (product / f64::from(cap)).tanh();
                        self.softcap.map_or(product, cap) - slope * (query - key) as f64
                    };
                    let first = self.window.map_or(0, |window| (query + 1).saturating_sub(window));
                    let in_span =
                        |key: &usize| args.inputs.get(1).is_none_or(|spans| (query - key) as f64 <= spans[*key]);
                    let attended = (0..self.sinks.min(first)).chain(first..=query).filter(in_span);
                    let attended: Vec<usize> = attended.collect();
                    let scores: Vec<f64> = attended.iter().map(|&key| score(key)).collect();
                    let max = scores.iter().fold(f64::MIN, |max, &score| max.max(score));
                    let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
                    for (&key, score) in attended.iter().zip(&scores) {
                        let factor = args.dropout_factor(self.dropout, subkey(head_key, query as u64), key);
                        let share = (score - max).exp() / sum * factor;
                        let to = &mut out[query * width + head * dim..][..dim];
                        let value = part(key, values, head / group);
                        to.iter_mut().zip(value).for_each(|(to, value)| *to += share * value);
                    }
                }
            }
            out
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let attention = |heads, dropout| CausalAttention::new(heads, 0.5, dropout);
            let grouped = |heads, key_heads| CausalAttention { key_heads: Some(key_heads), ..attention(heads, 0.0) };
            vec![
                accepts(attention(2, 0.1), &[WIDE], &[], X),
                accepts(grouped(4, 1), &[WIDE], &[], Shape::matrix(8, 8)),
                accepts(CausalAttention { window: Some(3), alibi: true, ..attention(2, 0.0) }, &[WIDE], &[], X),
                rejects(attention(3, 0.1), &[WIDE], &[], "3 heads of queries"),
                rejects(attention(0, 0.1), &[WIDE], &[], "0 heads of queries"),
                rejects(grouped(2, 0), &[WIDE], &[], "0 each of keys"),
                rejects(grouped(2, 4), &[WIDE], &[], "4 each of keys"),
                rejects(grouped(usize::MAX, usize::MAX), &[WIDE], &[], "heads of queries"),
                rejects(attention(2, -0.1), &[WIDE], &[], "dropout"),
                rejects(CausalAttention::new(2, f32::NAN, 0.0), &[WIDE], &[], "scale"),
                rejects(CausalAttention { window: Some(0), ..attention(2, 0.0) }, &[WIDE], &[], "window"),
                accepts(CausalAttention { window: Some(2), sinks: 3, ..attention(2, 0.0) }, &[WIDE], &[], X),
                rejects(CausalAttention { sinks: 3, ..attention(2, 0.0) }, &[WIDE], &[], "sinks"),
                rejects(CausalAttention { softcap: Some(-1.0), ..attention(2, 0.0) }, &[WIDE], &[], "softcap"),
                rejects(
                    CausalAttention { softcap: Some(1.0), alibi: true, ..attention(2, 0.0) },
                    &[WIDE],
                    &[],
                    "softcap",
                ),
            ]
        }

        fn graphs() -> Vec<Graph> {
            let build = |attention: CausalAttention, columns: usize| {
                TestGraph::build(|s, x| {
                    let qkv = s.linear(x, columns, true);
                    s.node(attention, &[qkv], &[])
                })
            };
            let plain = CausalAttention::new(3, 0.6, 0.2);
            // Spans of tests are 0 and 1.
            let with_spans = TestGraph::build(|s, x| {
                let qkv = s.linear(x, 3 * WIDTH, true);
                let spans = s.integers(Shape::integers(ROWS));
                s.node(plain, &[qkv, spans], &[])
            });
            vec![
                with_spans,
                build(plain, 3 * WIDTH),
                build(CausalAttention { heads: 4, key_heads: Some(2), alibi: true, ..plain }, WIDTH * 2),
                build(CausalAttention { key_heads: Some(1), window: Some(2), ..plain }, WIDTH / 3 * 5),
                build(CausalAttention { window: Some(2), sinks: 1, ..plain }, 3 * WIDTH),
                build(CausalAttention { softcap: Some(0.7), key_heads: Some(1), ..plain }, WIDTH / 3 * 5),
            ]
        }
    }

    #[test]
    fn half_of_the_pairs_of_rows_count() {
        let op = CausalAttention::new(2, 0.5, 0.0);
        let flops = op.flops(&Signature { inputs: vec![Shape::matrix(8, 12)], params: vec![] });
        // 8 rows attend to 1, 2, ... 8 rows: 36 pairs, scores and values over 4 features.
        assert_eq!(flops.forward, 36 * 2 * 2 * 4);
        // With a window of 3 rows: 1 + 2 + 6 times 3.
        let op = CausalAttention { window: Some(3), ..op };
        let flops = op.flops(&Signature { inputs: vec![Shape::matrix(8, 12)], params: vec![] });
        assert_eq!(flops.forward, 21 * 2 * 2 * 4);
        // With 2 sinks: one more row for row 4, and two for rows 5 to 8.
        let op = CausalAttention { sinks: 2, ..op };
        let flops = op.flops(&Signature { inputs: vec![Shape::matrix(8, 12)], params: vec![] });
        assert_eq!(flops.forward, 30 * 2 * 2 * 4);
    }
}
