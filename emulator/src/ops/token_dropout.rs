//! `(x [R, H], tokens i32 [R], attention mask i32 [R]) -> [R, H]`: the embeddings of a sample without those of masked
//! tokens, scaled for the share that is left.
//!
//! ```text
//! y = 0                                    at a masked token
//! y = x (1 - expected) / (1 - observed)    elsewhere
//! ```
//!
//! `observed` is the number of masked tokens, divided by the number of tokens that are not padding. As in ESM-2, whose
//! `expected` is 0.15 * 0.8, evaluation does the same as training.

use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenDropout {
    /// The token that masks others.
    pub mask_token: u32,
    /// Share of masked tokens in training, in `[0, 1)`.
    pub expected: f32,
}

impl Operator for TokenDropout {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x, tokens, mask] = io.inputs([DType::F32, DType::I32, DType::I32])?;
        io.params(&[], 0)?;
        super::check_rate("expected", self.expected)?;
        if x.dimensions().len() != 2 {
            return Err(OpError::NotASequence { input: 0, found: x.to_string() });
        }
        let vector = x.one_integer_per_row();
        for (input, found) in [(1, tokens), (2, mask)] {
            if found != vector {
                return Err(OpError::input_shape(input, vector, found));
            }
        }
        Ok(Some(x))
    }

    fn saved(&self, _: &Signature<'_>) -> SavedForBackward {
        SavedForBackward { inputs: &[1, 2], ..SavedForBackward::default() }
    }

    fn has_input_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn gradient(&self, input: usize) -> GradientForm {
        if input == 0 { GradientForm::Overwrite } else { GradientForm::None }
    }

    fn in_place_inputs(&self) -> &'static [usize] {
        &[0]
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::TokenDropout;
    use crate::kernels::elementwise;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, OperatorInput};

    impl TokenDropout {
        pub(super) fn is_masked(&self, token: i32) -> bool {
            i64::from(token) == i64::from(self.mask_token)
        }

        /// Returns the factor on the rows of one sample that are not masked. If nothing but masked tokens is left, no
        /// such row counts.
        fn factor(&self, tokens: &[i32], mask: &[i32]) -> f32 {
            let masked = tokens.iter().filter(|&&token| self.is_masked(token)).count();
            let length = mask.iter().filter(|&&mask| mask != 0).count();
            if masked >= length {
                return 1.0;
            }
            ((1.0 - f64::from(self.expected)) / (1.0 - masked as f64 / length as f64)) as f32
        }

        /// Multiplies the rows of all samples by their factors, in place.
        fn multiply(
            &self,
            context: &OperatorContext<'_>,
            width: usize,
            tokens: OperatorInput<'_>,
            mask: OperatorInput<'_>,
            x: &mut [f32],
        ) {
            let (simd, tokens, mask) = (context.cx.simd, tokens.integers(), mask.integers());
            let length = tokens.len() / context.samples.max(1);
            let data = (rows_mut(x, length * width), rows(tokens, length), rows(mask, length));
            context.cx.pool.for_each_rows(context.samples, 1, data, |_, (x, tokens, mask)| {
                let samples = tokens.data.chunks_exact(length).zip(mask.data.chunks_exact(length));
                for ((tokens, mask), x) in samples.zip(x.data.chunks_exact_mut(length * width)) {
                    let factor = self.factor(tokens, mask);
                    for (&token, x) in tokens.iter().zip(x.chunks_exact_mut(width)) {
                        if self.is_masked(token) { x.fill(0.0) } else { elementwise::scale(simd, factor, x) }
                    }
                }
            });
        }
    }

    impl Executor for TokenDropout {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let [x, tokens, mask, ..] = io.inputs;
            if let OperatorInput::Values(x) = x {
                io.output.copy_from_slice(x);
            }
            self.multiply(context, io.shape.columns(), tokens, mask, io.output);
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [_, tokens, mask, ..] = io.inputs;
            self.multiply(context, io.shape.columns(), tokens, mask, io.gradient);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::TokenDropout;
    use crate::graph::{Graph, Shape};
    use crate::ops::testing::{OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, rejects};

    /// The sample of tests with two masked tokens: their integers are 0 to 3.
    const OP: TokenDropout = TokenDropout { mask_token: 1, expected: 0.12 };

    impl OperatorTests for TokenDropout {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let [x, tokens, mask] = args.inputs[..] else { unreachable!() };
            let is_masked = |token: f64| token == f64::from(self.mask_token);
            let masked = tokens.iter().filter(|&&token| is_masked(token)).count() as f64;
            let length = mask.iter().filter(|&&mask| mask != 0.0).count() as f64;
            let observed = if masked < length { masked / length } else { f64::from(self.expected) };
            let factor = (1.0 - f64::from(self.expected)) / (1.0 - observed);
            let rows = x.chunks(args.io.inputs[0].columns()).zip(tokens);
            let scaled =
                rows.flat_map(|(x, &token)| x.iter().map(move |x| if is_masked(token) { 0.0 } else { x * factor }));
            scaled.collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(OP, &[X, TOKENS, TOKENS], &[], X),
                rejects(OP, &[X, TOKENS], &[], "3 values"),
                rejects(OP, &[X, X, TOKENS], &[], "type i32"),
                rejects(OP, &[X, TOKENS, Shape::integers(3)], &[], "input 2 must be"),
                rejects(OP, &[X.row(), TOKENS, TOKENS], &[], "two dimensions"),
                rejects(TokenDropout { expected: 1.0, ..OP }, &[X, TOKENS, TOKENS], &[], "less than 1"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            // An input that nothing else reads, and one that an addition reads later.
            let inputs = |s: &mut TestGraph| [(); 2].map(|()| s.integers(Shape::integers(ROWS)));
            let single = TestGraph::build(|s, x| {
                let [tokens, mask] = inputs(s);
                s.node(OP, &[x, tokens, mask], &[])
            });
            let shared = TestGraph::build(|s, x| {
                let [tokens, mask] = inputs(s);
                let y = s.node(OP, &[x, tokens, mask], &[]);
                s.add(x, y)
            });
            vec![single, shared]
        }
    }
}
