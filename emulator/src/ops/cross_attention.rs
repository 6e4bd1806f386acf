//! `(queries [rows x H], keys and values [keys x 2H], mask i32 [keys]?; biases [buckets, heads]?) -> [rows x H]`:
//! attention of each row to the rows of another sequence, or of the same one; columns are divided into heads of the
//! same width. No row attends to a key whose integer in the mask is 0. A row that attends to none gets 0.

use serde::{Deserialize, Serialize};

use super::heads::HeadLayout;
use super::relative_positions::RelativePositions;
use super::{Flops, OpError, Operator, SavedForBackward, Signature, check_rate};
use crate::graph::{DType, Shape};

/// See the module documentation. Saves its inputs, the output, and the log-sum-exp of each row and head; the backward
/// pass recomputes the probabilities, tile by tile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CrossAttention {
    /// Number of heads; divides H.
    pub heads: usize,
    /// Factor on query-key products.
    pub scale: f32,
    /// Dropout on probabilities.
    pub dropout: f32,
    /// Whether a row attends only to keys that are not after it; there are then as many keys as rows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub causal: bool,
    /// Trained biases of the scores by the distance of row and key; `None` for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative: Option<RelativePositions>,
}

impl CrossAttention {
    /// Returns attention to all rows without biases.
    pub const fn new(heads: usize, scale: f32, dropout: f32) -> Self {
        Self { heads, scale, dropout, causal: false, relative: None }
    }

    /// Divides rows of queries of `columns` into heads.
    fn layout(&self, columns: usize) -> Result<HeadLayout, OpError> {
        HeadLayout::of(self.heads, self.heads, columns.saturating_mul(3))
    }
}

impl Operator for CrossAttention {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [queries, keys] = if io.inputs.len() == 2 {
            io.inputs([DType::F32; 2])?
        } else {
            let [queries, keys, mask] = io.inputs([DType::F32, DType::F32, DType::I32])?;
            if mask != keys.one_integer_per_row() {
                return Err(OpError::input_shape(2, keys.one_integer_per_row(), mask));
            }
            [queries, keys]
        };
        for (input, shape) in [queries, keys].into_iter().enumerate() {
            if shape.dimensions().len() != 2 {
                return Err(OpError::NotASequence { input, found: shape.to_string() });
            }
        }
        let expected = keys.with_columns(queries.columns().saturating_mul(2));
        if keys != expected {
            return Err(OpError::input_shape(1, expected, keys));
        }
        if self.causal && keys.rows() != queries.rows() {
            let expected = Shape::matrix(queries.rows(), expected.columns());
            return Err(OpError::input_shape(1, expected, keys));
        }
        RelativePositions::check(self.relative, self.heads, io)?;
        check_rate("dropout", self.dropout)?;
        if !self.scale.is_finite() {
            return Err(OpError::Attribute { name: "scale", value: self.scale, range: "finite" });
        }
        self.layout(queries.columns())?;
        Ok(Some(queries))
    }

    fn flops(&self, io: &Signature<'_>) -> Flops {
        let ((rows, columns), (keys, _)) = (io.input(0), io.input(1));
        let pairs = if self.causal { rows.saturating_mul(rows + 1) / 2 } else { rows.saturating_mul(keys) };
        self.layout(columns as usize).map_or(Flops::default(), |heads| heads.flops(rows, pairs))
    }

    fn saved(&self, io: &Signature<'_>) -> SavedForBackward {
        let (rows, _) = io.input(0);
        let inputs: &[usize] = if io.inputs.len() == 2 { &[0, 1] } else { &[0, 1, 2] };
        SavedForBackward { inputs, output: true, floats: rows * self.heads as u64 }
    }

    fn has_input_gradient(&self, input: usize) -> bool {
        input < 2
    }

    fn scratch(&self, io: &Signature<'_>) -> u64 {
        let (rows, columns) = io.input(0);
        let biases = RelativePositions::scratch(self.relative, self.heads);
        self.layout(columns as usize).map_or(0, |heads| heads.scratch(rows).saturating_add(biases))
    }

    fn backward_reads_param(&self, _: usize) -> bool {
        true
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::CrossAttention;
    use crate::kernels::attention::{self, AttentionParams, Qkv, QkvGradient, QkvLayout};
    use crate::numerics::random::DropoutMask;
    use crate::ops::execute::{
        self, BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, OperatorInput, TargetMut,
        UnsupportedOperator,
    };

    impl CrossAttention {
        fn kernel<'a>(
            &self,
            shape: &NodeShape,
            mask: OperatorInput<'a>,
            table: &'a [f32],
            context: &OperatorContext<'a>,
        ) -> AttentionParams<'a> {
            let dropout = DropoutMask::new(f64::from(self.dropout)).filter(|mask| context.training && !mask.is_off());
            AttentionParams {
                samples: context.samples,
                tokens: shape.rows(),
                key_tokens: shape.inputs[1].rows(),
                heads: self.heads,
                key_heads: self.heads,
                head_dim: self.layout(shape.columns()).map_or(0, |heads| heads.head_dim),
                scale: self.scale,
                causal: self.causal,
                window: None,
                sinks: 0,
                alibi: false,
                softcap: None,
                relative: self.relative.map(|relative| relative.bias(table, !self.causal)),
                key_mask: (shape.inputs.len() > 2).then(|| mask.integers()),
                spans: None,
                earlier: None,
                dropout,
                sample_keys: context.keys,
            }
        }
    }

    impl Executor for CrossAttention {
        fn check_supported(&self, shape: &NodeShape) -> Result<(), UnsupportedOperator> {
            execute::check_head_width(self.layout(shape.columns()).map_or(usize::MAX, |heads| heads.head_dim))
        }

        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let [queries, keys, mask, ..] = io.inputs;
            let params = self.kernel(io.shape, mask, io.weights.tensors[0], context);
            let layout = QkvLayout::separate(&params);
            let qkv = Qkv { queries: queries.values(), keys: keys.values(), layout };
            attention::forward(context.cx, &params, qkv, io.output, io.extra, context.attention);
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dqueries, _), TargetMut::Memory(dkeys, _), ..] = io.targets else { return };
            let [queries, keys, mask, ..] = io.inputs;
            let params = self.kernel(io.shape, mask, io.weights.tensors[0], context);
            let layout = QkvLayout::separate(&params);
            let qkv = Qkv { queries: queries.values(), keys: keys.values(), layout };
            let gradient = QkvGradient::Separate { queries: dqueries, keys: dkeys };
            let (out, dout, workspace) = (io.output, io.gradient, &mut *context.attention);
            attention::backward(context.cx, &params, qkv, out, io.extra, dout, gradient, io.scratch, workspace);
            let [biases, _] = io.tensors;
            if let (Some(relative), Some(biases)) = (params.relative, biases) {
                let (partial, adds) = (&io.scratch[..params.partial_len()], biases.adds());
                relative.sum_samples(self.heads, partial, biases.data, adds);
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::CrossAttention;
    use crate::graph::{Graph, Shape};
    use crate::numerics::random::subkey;
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, rejects,
    };
    use crate::ops::{Embedding, RelativePositions};

    impl OperatorTests for CrossAttention {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let width = args.io.inputs[0].columns();
            let (rows, keys) = (args.inputs[0].len() / width, args.inputs[1].len() / width / 2);
            let dim = width / self.heads;
            let query = |row: usize, head: usize| &args.inputs[0][row * width + head * dim..][..dim];
            let key = |row: usize, part: usize, head: usize| {
                &args.inputs[1][row * 2 * width + part * width + head * dim..][..dim]
            };
            let attends = |key: usize| args.inputs.get(2).is_none_or(|mask| mask[key] != 0.0);
            let mut out = vec![0.0; rows * width];
            for (head, row) in (0..self.heads).flat_map(|head| (0..rows).map(move |row| (head, row))) {
                let bias = |column: usize| {
                    let bucket = self.relative?.reference_bucket(column as f64 - row as f64, !self.causal);
                    Some(args.params[0][bucket * self.heads + head])
                };
                let score = |column: usize| {
                    let product: f64 = query(row, head).iter().zip(key(column, 0, head)).map(|(q, k)| q * k).sum();
                    let score = product * f64::from(self.scale) + bias(column).unwrap_or(0.0);
                    if attends(column) && (!self.causal || column <= row) { score.exp() } else { 0.0 }
                };
                let exps: Vec<f64> = (0..keys).map(score).collect();
                let sum: f64 = exps.iter().sum();
                for (column, exp) in exps.iter().enumerate().filter(|(_, exp)| **exp > 0.0) {
                    let dropout_key = subkey(subkey(args.key, head as u64), row as u64);
                    let share = exp / sum * args.dropout_factor(self.dropout, dropout_key, column);
                    let to = &mut out[row * width + head * dim..][..dim];
                    to.iter_mut().zip(key(column, 1, head)).for_each(|(to, value)| *to += share * value);
                }
            }
            out
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let cross = |heads| CrossAttention::new(heads, 0.5, 0.1);
            let causal = CrossAttention { causal: true, ..cross(2) };
            let relative = |buckets, max_distance| CrossAttention {
                relative: Some(RelativePositions { buckets, max_distance }),
                ..cross(2)
            };
            let keys = Shape::matrix(5, 8);
            vec![
                accepts(cross(2), &[X, keys], &[], X),
                accepts(cross(2), &[X, keys, Shape::integers(5)], &[], X),
                rejects(cross(2), &[X, keys, TOKENS], &[], "input 2"),
                rejects(cross(2), &[X, X], &[], "input 1"),
                rejects(cross(2), &[X], &[], "3 values, not 1"),
                rejects(cross(2), &[X.row(), keys], &[], "two dimensions"),
                rejects(cross(3), &[X, keys], &[], "3 heads of queries"),
                rejects(cross(0), &[X, keys], &[], "0 heads of queries"),
                rejects(CrossAttention { scale: f32::NAN, ..cross(2) }, &[X, keys], &[], "scale"),
                rejects(CrossAttention { dropout: 1.0, ..cross(2) }, &[X, keys], &[], "dropout"),
                accepts(causal, &[X, Shape::matrix(8, 8)], &[], X),
                rejects(causal, &[X, keys], &[], "input 1 must be f32 [8, 8]"),
                accepts(relative(4, 9), &[X, keys], &[&[4, 2]], X),
                rejects(relative(4, 9), &[X, keys], &[&[2, 4]], "must be [4, 2]"),
                rejects(relative(4, 9), &[X, keys], &[], "1 to 1 tensors"),
                rejects(relative(5, 9), &[X, keys], &[&[5, 2]], "buckets"),
                rejects(relative(4, 4), &[X, keys], &[&[4, 2]], "max_distance"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            const KEYS: usize = ROWS + 3;
            let build = |attention: CrossAttention, is_masked: bool| {
                TestGraph::build(|s, x| {
                    let tokens = s.integers(Shape::integers(KEYS));
                    let mask = is_masked.then(|| s.integers(Shape::integers(KEYS)));
                    let table = s.tensor(&[2, WIDTH]);
                    let other = s.node(Embedding, &[tokens], &[table]);
                    let keys = s.linear(other, 2 * WIDTH, true);
                    let queries = s.linear(x, WIDTH, false);
                    let inputs: Vec<usize> = [queries, keys].into_iter().chain(mask).collect();
                    let table = attention.relative.map(|relative| s.tensor(&[relative.buckets, 3]));
                    let mixed = s.node(attention, &inputs, table.as_slice());
                    s.add(x, mixed)
                })
            };
            // Two layers of attention of a sequence to itself, with the same biases.
            let of_itself = |attention: CrossAttention| {
                TestGraph::build(|s, x| {
                    let table = s.tensor(&[attention.relative.map_or(0, |relative| relative.buckets), 3]);
                    let mut x = x;
                    for _ in 0..2 {
                        let (queries, keys) = (s.linear(x, WIDTH, false), s.linear(x, 2 * WIDTH, true));
                        x = s.node(attention, &[queries, keys], &[table]);
                        s.end_layer();
                    }
                    s.norm(x)
                })
            };
            let plain = CrossAttention::new(3, 0.6, 0.2);
            let relative = Some(RelativePositions { buckets: 6, max_distance: 7 });
            let causal = CrossAttention { causal: true, relative, ..plain };
            vec![
                build(plain, false),
                build(plain, true),
                build(CrossAttention { relative, ..plain }, true),
                of_itself(causal),
                of_itself(CrossAttention { relative, ..plain }),
            ]
        }
    }
}
