//! `(qkv [rows x 3H], mask i32 [rows]?; spans, positions i32 [rows]?) -> [rows x H]`: attention of each row to all
//! rows, in both directions; columns are queries, keys and values, each divided into heads of the same width. No row
//! attends to one whose integer in the mask is 0. A row that attends to none gets 0. With spans and positions,
//! `spans[i]` rows after row i and `positions[i]` rows before it attend to it, so that sequences in one sample do not
//! see each other.

use serde::{Deserialize, Serialize};

use super::heads::HeadLayout;
use super::{Flops, OpError, Operator, SavedForBackward, Signature, check_rate};
use crate::graph::{DType, Shape};

/// See the module documentation. Saves its inputs, the output, and the log-sum-exp of each row and head; the backward
/// pass recomputes the probabilities, tile by tile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attention {
    /// Number of heads; divides H.
    pub heads: usize,
    /// Factor on query-key products.
    pub scale: f32,
    /// Dropout on probabilities.
    pub dropout: f32,
}

impl Attention {
    /// Divides rows of `columns` into heads.
    fn layout(&self, columns: usize) -> Result<HeadLayout, OpError> {
        HeadLayout::of(self.heads, self.heads, columns)
    }
}

impl Operator for Attention {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let (qkv, integers) = match io.inputs.len() {
            1 => (io.inputs([DType::F32])?[0], Vec::new()),
            2 => {
                let [qkv, mask] = io.inputs([DType::F32, DType::I32])?;
                (qkv, vec![mask])
            }
            _ => {
                let [qkv, rest @ ..] = io.inputs([DType::F32, DType::I32, DType::I32, DType::I32])?;
                (qkv, rest.to_vec())
            }
        };
        for (input, found) in (1..).zip(integers) {
            if found != qkv.one_integer_per_row() {
                return Err(OpError::input_shape(input, qkv.one_integer_per_row(), found));
            }
        }
        if qkv.dimensions().len() != 2 {
            return Err(OpError::NotASequence { input: 0, found: qkv.to_string() });
        }
        io.params(&[], 0)?;
        check_rate("dropout", self.dropout)?;
        if !self.scale.is_finite() {
            return Err(OpError::Attribute { name: "scale", value: self.scale, range: "finite" });
        }
        Ok(Some(qkv.with_columns(self.layout(qkv.columns())?.width())))
    }

    fn flops(&self, io: &Signature<'_>) -> Flops {
        let (rows, columns) = io.input(0);
        self.layout(columns as usize).map_or(Flops::default(), |heads| heads.flops(rows, rows.saturating_mul(rows)))
    }

    fn saved(&self, io: &Signature<'_>) -> SavedForBackward {
        let (rows, _) = io.input(0);
        let inputs: &[usize] = match io.inputs.len() {
            1 => &[0],
            2 => &[0, 1],
            _ => &[0, 1, 2, 3],
        };
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
    use super::Attention;
    use crate::kernels::attention::{self, AttentionParams, Qkv, QkvGradient};
    use crate::numerics::random::DropoutMask;
    use crate::ops::execute::{
        self, BackwardArgs, Executor, ForwardArgs, MAX_INPUTS, NodeShape, OperatorContext, OperatorInput, TargetMut,
        UnsupportedOperator,
    };

    impl Attention {
        fn kernel<'a>(
            &self,
            shape: &NodeShape,
            [_, mask, spans, positions]: [OperatorInput<'a>; MAX_INPUTS],
            context: &OperatorContext<'a>,
        ) -> AttentionParams<'a> {
            let dropout = DropoutMask::new(f64::from(self.dropout)).filter(|mask| context.training && !mask.is_off());
            AttentionParams {
                samples: context.samples,
                tokens: shape.rows(),
                key_tokens: shape.rows(),
                heads: self.heads,
                key_heads: self.heads,
                head_dim: self.layout(shape.columns()).map_or(0, |heads| heads.head_dim),
                scale: self.scale,
                causal: false,
                window: None,
                sinks: 0,
                alibi: false,
                softcap: None,
                relative: None,
                key_mask: (shape.inputs.len() > 1).then(|| mask.integers()),
                spans: (shape.inputs.len() > 2).then(|| spans.integers()),
                earlier: (shape.inputs.len() > 2).then(|| positions.integers()),
                dropout,
                sample_keys: context.keys,
            }
        }
    }

    impl Executor for Attention {
        fn check_supported(&self, shape: &NodeShape) -> Result<(), UnsupportedOperator> {
            execute::check_head_width(self.layout(shape.columns()).map_or(usize::MAX, |heads| heads.head_dim))
        }

        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let params = self.kernel(io.shape, io.inputs, context);
            let qkv = Qkv::packed(&params, io.inputs[0].values());
            attention::forward(context.cx, &params, qkv, io.output, io.extra, context.attention);
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dqkv, _), ..] = io.targets else { return };
            let params = self.kernel(io.shape, io.inputs, context);
            let (qkv, dqkv) = (Qkv::packed(&params, io.inputs[0].values()), QkvGradient::Together(dqkv));
            let (out, dout, workspace) = (io.output, io.gradient, &mut *context.attention);
            attention::backward(context.cx, &params, qkv, out, io.extra, dout, dqkv, io.scratch, workspace);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Attention;
    use crate::graph::{Graph, Shape};
    use crate::numerics::random::subkey;
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDE, WIDTH, X, accepts, rejects,
    };

    impl OperatorTests for Attention {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let (qkv, columns) = (args.inputs[0], args.io.inputs[0].columns());
            let (width, rows) = (columns / 3, qkv.len() / columns);
            let dim = width / self.heads;
            let part = |row: usize, part: usize, head: usize| &qkv[row * columns + part * width + head * dim..][..dim];
            let attends = |query: usize, key: usize| {
                let is_within = |input: usize, distance: f64| args.inputs.get(input).is_none_or(|n| distance <= n[key]);
                let distance = query as f64 - key as f64;
                let is_token = args.inputs.get(1).is_none_or(|mask| mask[key] != 0.0);
                is_token && (distance <= 0.0 || is_within(2, distance)) && (distance >= 0.0 || is_within(3, -distance))
            };
            let mut out = vec![0.0; rows * width];
            for (head, query) in (0..self.heads).flat_map(|head| (0..rows).map(move |query| (head, query))) {
                let score = |key: usize| {
                    let product: f64 = part(query, 0, head).iter().zip(part(key, 1, head)).map(|(q, k)| q * k).sum();
                    attends(query, key).then_some(product * f64::from(self.scale))
                };
                let exps: Vec<f64> = (0..rows).map(|key| score(key).map_or(0.0, f64::exp)).collect();
                let sum: f64 = exps.iter().sum();
                for (key, exp) in exps.iter().enumerate().filter(|(_, exp)| **exp > 0.0) {
                    let dropout_key = subkey(subkey(args.key, head as u64), query as u64);
                    let share = exp / sum * args.dropout_factor(self.dropout, dropout_key, key);
                    let to = &mut out[query * width + head * dim..][..dim];
                    to.iter_mut().zip(part(key, 2, head)).for_each(|(to, value)| *to += share * value);
                }
            }
            out
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let attention = |heads| Attention { heads, scale: 0.5, dropout: 0.1 };
            vec![
                accepts(attention(2), &[WIDE], &[], X),
                accepts(attention(2), &[WIDE, TOKENS], &[], X),
                accepts(attention(2), &[WIDE, TOKENS, TOKENS, TOKENS], &[], X),
                rejects(attention(2), &[WIDE, TOKENS, TOKENS], &[], "4 values"),
                rejects(attention(2), &[WIDE, TOKENS, TOKENS, Shape::integers(7)], &[], "input 3"),
                rejects(attention(2), &[WIDE, Shape::integers(7)], &[], "input 1"),
                rejects(attention(2), &[WIDE, X], &[], "type i32"),
                rejects(attention(2), &[WIDE.row()], &[], "two dimensions"),
                rejects(attention(3), &[WIDE], &[], "3 heads of queries"),
                rejects(attention(0), &[WIDE], &[], "0 heads of queries"),
                rejects(Attention { scale: f32::NAN, ..attention(2) }, &[WIDE], &[], "scale"),
                rejects(Attention { dropout: 1.0, ..attention(2) }, &[WIDE], &[], "dropout"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            // A mask, and with it spans and positions, whose integers are 0 and 1 in tests.
            let build = |integers: usize| {
                TestGraph::build(|s, x| {
                    let qkv = s.linear(x, 3 * WIDTH, true);
                    let mut inputs = vec![qkv];
                    inputs.extend((0..integers).map(|_| s.integers(Shape::integers(ROWS))));
                    s.node(Attention { heads: 3, scale: 0.6, dropout: 0.2 }, &inputs, &[])
                })
            };
            vec![build(0), build(1), build(3)]
        }
    }
}
