//! `(gate, value) -> f(gate) value`, pointwise: the gated linear units (SwiGLU, GeGLU, ...) between their projections.

use millrace_params::Nonlinearity;
use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, RowDependency, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. Saves both inputs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gate {
    /// The function of the gate.
    pub kind: Nonlinearity,
}

impl Operator for Gate {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [gate, value] = io.inputs([DType::F32; 2])?;
        io.params(&[], 0)?;
        if gate != value {
            return Err(OpError::input_shape(1, gate, value));
        }
        Ok(Some(gate))
    }

    fn row_dependency(&self) -> RowDependency {
        RowDependency::Same
    }

    fn saved(&self, _: &Signature<'_>) -> SavedForBackward {
        SavedForBackward { inputs: &[0, 1], ..SavedForBackward::default() }
    }

    fn gradient(&self, input: usize) -> GradientForm {
        if input == 0 { GradientForm::Store } else { GradientForm::Overwrite }
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Gate;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::activation::run::kernels;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, ROW_GRAIN, TargetMut};

    impl Executor for Gate {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (simd, width, kernel) = (context.cx.simd, io.shape.columns(), kernels(self.kind).gate_forward);
            let [gate, value, ..] = io.inputs.map(|input| rows(input.values(), width));
            let data = (gate, value, rows_mut(io.output, width));
            context.cx.pool.for_each_rows(context.samples * io.shape.rows(), ROW_GRAIN, data, |_, (gate, value, y)| {
                kernel(simd, gate.data, value.data, y.data);
            });
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dgate, _), ..] = io.targets else { return };
            let (simd, width, kernel) = (context.cx.simd, io.shape.columns(), kernels(self.kind).gate_backward);
            let [gate, value, ..] = io.inputs.map(|input| rows(input.values(), width));
            let data = (gate, value, rows_mut(io.gradient, width), rows_mut(dgate, width));
            context.cx.pool.for_each_rows(
                context.samples * io.shape.rows(),
                ROW_GRAIN,
                data,
                |_, (gate, value, dy, dgate)| kernel(simd, gate.data, value.data, dy.data, dgate.data),
            );
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use millrace_params::Nonlinearity;

    use super::Gate;
    use crate::graph::Graph;
    use crate::ops::activation::tests::{KINDS, function};
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TestGraph, WIDE, WIDTH, X, accepts, rejects};

    impl OperatorTests for Gate {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            args.inputs[0].iter().zip(args.inputs[1]).map(|(&gate, value)| function(self.kind, gate) * value).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let gate = Gate { kind: Nonlinearity::Silu };
            vec![
                accepts(gate, &[X, X], &[], X),
                rejects(gate, &[X, WIDE], &[], "input 1 must be"),
                rejects(gate, &[X, X], &[&[4]], "0 to 0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            let of_projections = |kind| {
                TestGraph::build(|s, x| {
                    let (gate, value) = (s.linear(x, WIDTH, false), s.linear(x, WIDTH, true));
                    s.node(Gate { kind }, &[gate, value], &[])
                })
            };
            // Both inputs the same value, and inputs that others read, too.
            let of_itself = TestGraph::build(|s, x| {
                let y = s.node(Gate { kind: Nonlinearity::Silu }, &[x, x], &[]);
                s.add(x, y)
            });
            KINDS.map(of_projections).into_iter().chain([of_itself]).collect()
        }
    }
}
