//! `(x [rows x H]) -> [rows x H]`: adds sines and cosines of the position to each row, with wavelengths from 2 pi to
//! 20,000 pi.

use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, Signature};
use crate::graph::Shape;

/// See the module documentation. Columns 2i and 2i + 1 get sine and cosine of the position divided by
/// 10,000^(i / (H / 2 - 1)); an odd last column gets nothing. Source: the published code of Vaswani et al., "Attention
/// Is All You Need" (2017).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AddSinusoids;

impl Operator for AddSinusoids {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let x = io.sequence()?;
        io.params(&[], 0)?;
        Ok(Some(x))
    }

    fn gradient(&self, _: usize) -> GradientForm {
        GradientForm::Same
    }

    fn in_place_inputs(&self) -> &'static [usize] {
        &[0]
    }
}

/// Returns the frequency of the pair of columns `pair` of rows of `columns`.
#[cfg(feature = "kernels")]
fn frequency(pair: usize, columns: usize) -> f64 {
    let last = (columns / 2).saturating_sub(1).max(1) as f64;
    libm::exp(-libm::log(10_000.0) * pair as f64 / last)
}

#[cfg(feature = "kernels")]
mod run {
    use super::AddSinusoids;
    use crate::kernels::pool::rows_mut;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, OperatorInput, ROW_GRAIN};

    impl Executor for AddSinusoids {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (width, length) = (io.shape.columns(), io.shape.rows());
            if let OperatorInput::Values(x) = io.inputs[0] {
                io.output.copy_from_slice(x);
            }
            // In f64, because a product of a long position and a frequency has few correct digits in f32.
            for (pair, column) in (0..width / 2).map(|pair| (pair, 2 * pair)) {
                let frequency = super::frequency(pair, width);
                let rows = rows_mut(io.output, width);
                context.cx.pool.for_each_rows(context.samples * length, ROW_GRAIN, rows, |first, rows| {
                    for (row, out) in (first..).zip(rows.data.chunks_exact_mut(width)) {
                        let (sine, cosine) = libm::sincos((row % length) as f64 * frequency);
                        out[column] += sine as f32;
                        out[column + 1] += cosine as f32;
                    }
                });
            }
        }

        fn backward(&self, _: &mut OperatorContext<'_>, _: BackwardArgs<'_>) {}
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::AddSinusoids;
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TestGraph, X, accepts, rejects};

    impl OperatorTests for AddSinusoids {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let width = args.io.inputs[0].columns();
            let add = |(index, x): (usize, &f64)| {
                let (row, column) = ((index / width) as f64, index % width);
                let angle = row * 10_000f64.powf(-((column / 2) as f64) / (width as f64 / 2.0 - 1.0));
                x + if column % 2 == 0 { angle.sin() } else { angle.cos() }
            };
            args.inputs[0].iter().enumerate().map(add).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![accepts(AddSinusoids, &[X], &[], X), rejects(AddSinusoids, &[X.row()], &[], "two dimensions")]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| s.node(AddSinusoids, &[x], &[]))]
        }
    }
}
