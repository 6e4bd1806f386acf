//! `(qkv [rows x 3H]) -> [rows x H]`: causal multi-head attention; columns are queries, keys, values, each divided into
//! heads. Scores and probabilities exist as tiles only, never as a whole `rows x rows` matrix.

use super::{Flops, OpError, Operator, SavedForBackward, Shape, Signature, check_rate};
use crate::graph::ValueType;

/// See the module documentation. Saves input, output and the log-sum-exp of each row and head; the backward pass
/// recomputes the probabilities, tile by tile.
#[derive(Clone, Copy, Debug)]
pub struct CausalAttention {
    /// Number of heads; divides H.
    pub heads: usize,
    /// Factor on query-key products.
    pub scale: f32,
    /// Dropout on probabilities.
    pub dropout: f32,
}

impl Operator for CausalAttention {
    fn name(&self) -> &'static str {
        "CausalAttention"
    }

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
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, TargetMut};

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
        fn check_supported(&self, shape: &NodeShape) -> Result<(), String> {
            let head = shape.columns() / 3 / self.heads;
            if head <= GEMM_INNER_BLOCK {
                Ok(())
            } else {
                Err(format!("has heads of {head} elements; {GEMM_INNER_BLOCK} is the most"))
            }
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
