//! `(x) -> x'`: zeroes elements with probability `rate`, scales the rest by `1 / (1 - rate)`; identity in evaluation.

use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, RowDependency, Signature, check_rate};
use crate::graph::{DType, Shape};

/// See the module documentation. The mask is a function of (seed, sample, node, element); the backward pass recomputes
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Dropout {
    /// Probability of zero, in `[0, 1)`.
    pub rate: f32,
}

impl Operator for Dropout {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        io.params(&[], 0)?;
        check_rate("rate", self.rate)?;
        Ok(Some(x))
    }

    fn row_dependency(&self) -> RowDependency {
        RowDependency::Same
    }

    fn gradient(&self, _: usize) -> GradientForm {
        GradientForm::Overwrite
    }

    fn in_place_inputs(&self) -> &'static [usize] {
        &[0]
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Dropout;
    use crate::kernels::dropout;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::numerics::random;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, OperatorInput, ROW_GRAIN};

    impl Executor for Dropout {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let source = if let OperatorInput::Values(values) = io.inputs[0] { Some(values) } else { None };
            let factors =
                random::DropoutMask::new(f64::from(self.rate)).filter(|factors| context.training && !factors.is_off());
            match (factors, source) {
                (Some(factors), None) => apply(context, factors, io.shape.columns(), io.output),
                (Some(factors), Some(source)) => apply_from(context, factors, io.shape.columns(), source, io.output),
                (None, Some(source)) => io.output.copy_from_slice(source),
                (None, None) => {}
            }
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            if let Some(factors) = random::DropoutMask::new(f64::from(self.rate)).filter(|factors| !factors.is_off()) {
                apply(context, factors, io.shape.columns(), io.gradient);
            }
        }
    }

    /// Multiplies the elements of each sample, numbered within the sample, by their factors.
    fn apply(context: &OperatorContext<'_>, factors: random::DropoutMask, width: usize, x: &mut [f32]) {
        let simd = context.cx.simd;
        let sample = x.len() / context.samples;
        for (&key, x) in context.keys.iter().zip(x.chunks_exact_mut(sample)) {
            context.cx.pool.for_each_rows(sample / width, ROW_GRAIN, rows_mut(x, width), |first, x| {
                dropout::apply(simd, factors, key, (first * width) as u32, x.data);
            });
        }
    }

    /// Like `apply`, from a source to a destination.
    fn apply_from(context: &OperatorContext<'_>, factors: random::DropoutMask, width: usize, x: &[f32], y: &mut [f32]) {
        let simd = context.cx.simd;
        let sample = x.len() / context.samples;
        for ((&key, x), y) in context.keys.iter().zip(x.chunks_exact(sample)).zip(y.chunks_exact_mut(sample)) {
            let data = (rows(x, width), rows_mut(y, width));
            context.cx.pool.for_each_rows(sample / width, ROW_GRAIN, data, |first, (x, y)| {
                dropout::forward(simd, factors, key, (first * width) as u32, x.data, y.data);
            });
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Dropout;
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TestGraph, X, accepts, rejects};

    impl OperatorTests for Dropout {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let drop = |(element, x): (usize, &f64)| x * args.dropout_factor(self.rate, args.key, element);
            args.inputs[0].iter().enumerate().map(drop).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(Dropout { rate: 0.0 }, &[X], &[], X),
                rejects(Dropout { rate: 1.0 }, &[X], &[], "less than 1"),
                rejects(Dropout { rate: f32::NAN }, &[X], &[], "less than 1"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| s.node(Dropout { rate: 0.3 }, &[x], &[]))]
        }
    }
}
