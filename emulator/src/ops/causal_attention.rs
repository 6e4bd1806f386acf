//! `(qkv [rows x 3H]) -> [rows x H]`: causal multi-head attention; columns are queries, keys, values, each divided into
//! heads. Scores and probabilities exist as tiles only, never as a whole `rows x rows` matrix.

use serde::{Deserialize, Serialize};

use super::{Flops, OpError, Operator, SavedForBackward, Shape, Signature, check_rate};
use crate::graph::ValueType;

/// See the module documentation. Saves input, output and the log-sum-exp of each row and head; the backward pass
/// recomputes the probabilities, tile by tile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CausalAttention {
    /// Number of heads; divides H.
    pub heads: usize,
    /// Factor on query-key products.
    pub scale: f32,
    /// Dropout on probabilities.
    pub dropout: f32,
}

impl Operator for CausalAttention {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [qkv] = io.inputs([ValueType::Float])?;
        io.params(&[], 0)?;
        check_rate("dropout", self.dropout)?;
        if !self.scale.is_finite() {
            return Err(OpError::Attribute { name: "scale", value: self.scale, range: "finite" });
        }
        let width = qkv.columns / 3;
        if !qkv.columns.is_multiple_of(3) || self.heads == 0 || !width.is_multiple_of(self.heads) {
            return Err(OpError::Heads { columns: qkv.columns, heads: self.heads });
        }
        Ok(Some(Shape::float(qkv.rows, width)))
    }

    fn flops(&self, io: &Signature<'_>) -> Flops {
        // Row i attends to i + 1 rows. Each pair takes a product of H for the score and one for the value.
        let (rows, columns) = io.input(0);
        let pairs = rows.saturating_mul(rows + 1) / 2;
        let width = columns / 3;
        let forward = 4u64.saturating_mul(pairs).saturating_mul(width);
        // The features of a head are on 1 / heads of the cores of the whole width, so the sums of its scores cost
        // proportionally less: all heads together cost one number per pair. Values and the gradients of queries, keys
        // and values are summed over rows.
        let (row, pair) = (rows.saturating_mul(width), pairs);
        Flops {
            forward,
            backward: forward.saturating_mul(2),
            forward_sums: pair.saturating_add(row),
            backward_sums: pair.saturating_add(row.saturating_mul(3)),
        }
    }

    fn saved(&self, io: &Signature<'_>) -> SavedForBackward {
        let (rows, _) = io.input(0);
        SavedForBackward { inputs: &[0], output: true, floats: rows * self.heads as u64 }
    }

    fn scratch(&self, io: &Signature<'_>) -> u64 {
        // Backward: the product of output and its gradient, for each row and head.
        let (rows, _) = io.input(0);
        rows * self.heads as u64
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::CausalAttention;
    use crate::kernels::attention::{self, AttentionParams, QkvLayout};
    use crate::numerics::{GEMM_INNER_BLOCK, random};
    use crate::ops::execute::{
        BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, TargetMut, UnsupportedOperator,
    };

    impl CausalAttention {
        fn kernel<'a>(
            &self,
            shape: &NodeShape,
            training: bool,
            keys: &'a [u64],
            samples: usize,
        ) -> AttentionParams<'a> {
            let dropout =
                random::DropoutMask::new(f64::from(self.dropout)).filter(|factors| training && !factors.is_off());
            AttentionParams {
                samples,
                tokens: shape.rows(),
                heads: self.heads,
                head_dim: shape.columns() / 3 / self.heads,
                scale: self.scale,
                dropout,
                sample_keys: keys,
            }
        }
    }

    impl Executor for CausalAttention {
        fn check_supported(&self, shape: &NodeShape) -> Result<(), UnsupportedOperator> {
            let elements = shape.columns() / 3 / self.heads;
            if elements <= GEMM_INNER_BLOCK { Ok(()) } else { Err(UnsupportedOperator::WideHeads { elements }) }
        }

        fn forward(&self, kit: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let what = self.kernel(io.shape, kit.training, kit.keys, kit.samples);
            let layout = QkvLayout::packed(what.hidden());
            attention::forward(kit.cx, &what, io.inputs[0].values(), layout, io.output, io.extra, kit.attention);
        }

        fn backward(&self, kit: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dqkv, _), _] = io.targets else { return };
            let what = self.kernel(io.shape, kit.training, kit.keys, kit.samples);
            let layout = QkvLayout::packed(what.hidden());
            let qkv = io.inputs[0].values();
            attention::backward(kit.cx, &what, qkv, layout, io.output, io.extra, io.gradient, dqkv, kit.attention);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::CausalAttention;
    use crate::graph::Graph;
    use crate::numerics::random::subkey;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TestGraph, WIDE, WIDTH, X, accepts, rejects};
    use crate::ops::{Operator, Shape, Signature};

    impl OperatorTests for CausalAttention {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let (qkv, width, heads) = (args.inputs[0], args.io.inputs[0].columns / 3, self.heads);
            let (dim, rows) = (width / heads, qkv.len() / (3 * width));
            let part =
                |row: usize, which: usize, head: usize| &qkv[row * 3 * width + which * width + head * dim..][..dim];
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let mut out = vec![0.0; rows * width];
            for head in 0..heads {
                let head_key = subkey(args.key, head as u64);
                for query in 0..rows {
                    let score = |key: usize| dot(part(query, 0, head), part(key, 1, head)) * f64::from(self.scale);
                    let scores: Vec<f64> = (0..=query).map(score).collect();
                    let most = scores.iter().fold(f64::MIN, |most, &score| most.max(score));
                    let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
                    for (key, score) in scores.iter().enumerate() {
                        let factor = args.dropout_factor(self.dropout, subkey(head_key, query as u64), key);
                        let share = (score - most).exp() / sum * factor;
                        let to = &mut out[query * width + head * dim..][..dim];
                        to.iter_mut().zip(part(key, 2, head)).for_each(|(to, value)| *to += share * value);
                    }
                }
            }
            out
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let attention = |heads, dropout| CausalAttention { heads, scale: 0.5, dropout };
            vec![
                accepts(attention(2, 0.1), &[WIDE], &[], X),
                rejects(attention(3, 0.1), &[WIDE], &[], "3 equal heads"),
                rejects(attention(0, 0.1), &[WIDE], &[], "0 equal heads"),
                rejects(attention(2, -0.1), &[WIDE], &[], "dropout"),
                rejects(CausalAttention { heads: 2, scale: f32::NAN, dropout: 0.0 }, &[WIDE], &[], "scale"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let qkv = s.linear(x, 3 * WIDTH, true);
                s.node(CausalAttention { heads: 3, scale: 0.6, dropout: 0.2 }, &[qkv], &[])
            })]
        }
    }

    #[test]
    fn half_of_the_pairs_of_rows_count() {
        let op = CausalAttention { heads: 2, scale: 0.5, dropout: 0.0 };
        let flops = op.flops(&Signature { inputs: vec![Shape::float(8, 12)], params: vec![] });
        // 8 rows attend to 1, 2, ... 8 rows: 36 pairs, scores and values over 4 features.
        assert_eq!(flops.forward, 36 * 2 * 2 * 4);
    }
}
