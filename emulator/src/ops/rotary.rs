//! `(qkv [rows x C], positions i32 [rows]?) -> [rows x C]`: rotary position embedding of the first heads of each row,
//! those of queries and keys. The other columns, those of values, stay. Without positions, that of a row is its number.

use millrace_params::RotaryScaling;
use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, RowDependency, SavedForBackward, Signature};
use crate::graph::Shape;

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RotaryPairing {
    /// Element i and element i + n/2 of n rotated elements (GPT-NeoX, LLaMA).
    Halves,
    /// Elements 2i and 2i + 1 (GPT-J).
    Adjacent,
}

/// See the module documentation. Saves nothing: the gradient is rotated back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rotary {
    /// Number of heads that are rotated, at the beginning of a row.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Number of rotated elements of a head, the first ones; even.
    pub dimensions: usize,
    /// Base of the frequencies: pair i of `dimensions / 2` has the frequency `base^(-2i / dimensions)`.
    pub base: f64,
    /// Which elements form a pair.
    pub pairing: RotaryPairing,
    /// Change of the frequencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<RotaryScaling>,
}

impl Rotary {
    /// Returns the angle by which pair `pair` of a head is rotated per position, in radians.
    pub fn frequency(&self, pair: usize) -> f64 {
        let frequency = libm::pow(self.base, -((2 * pair) as f64 / self.dimensions as f64));
        match self.scaling {
            None => frequency,
            Some(RotaryScaling::Linear { factor }) => frequency / factor,
            Some(RotaryScaling::Llama3 {
                factor,
                low_frequency_factor: low,
                high_frequency_factor: high,
                original_positions,
            }) => {
                let turns = original_positions * frequency / std::f64::consts::TAU;
                let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (share + (1.0 - share) / factor)
            }
        }
    }

    fn check_attributes(&self) -> Result<(), OpError> {
        let positive = |name: &'static str, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(OpError::Attribute { name, value: value as f32, range: "positive" }),
        };
        positive("base", self.base)?;
        match self.scaling {
            None => Ok(()),
            Some(RotaryScaling::Linear { factor }) => positive("scaling factor", factor),
            Some(RotaryScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_positions }) => {
                positive("scaling factor", factor)?;
                positive("low_frequency_factor", low_frequency_factor)?;
                positive("original_positions", original_positions)?;
                positive("difference of the frequency factors", high_frequency_factor - low_frequency_factor)
            }
        }
    }
}

impl Operator for Rotary {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let x = io.sequence_with_integers()?;
        io.params(&[], 0)?;
        self.check_attributes()?;
        let Self { heads, head_dim, dimensions, .. } = *self;
        let is_in_range = heads.checked_mul(head_dim).is_some_and(|columns| (1..=x.columns()).contains(&columns));
        if !is_in_range || dimensions == 0 || dimensions > head_dim || !dimensions.is_multiple_of(2) {
            return Err(OpError::RotatedHeads { columns: x.columns(), heads, head_dim, dimensions });
        }
        Ok(Some(x))
    }

    fn row_dependency(&self) -> RowDependency {
        RowDependency::Same
    }

    fn saved(&self, io: &Signature<'_>) -> SavedForBackward {
        SavedForBackward { inputs: if io.inputs.len() > 1 { &[1] } else { &[] }, ..SavedForBackward::default() }
    }

    /// A position is that of a row in a sequence of the sample.
    fn index_bound(&self, io: &Signature<'_>, input: usize) -> Option<usize> {
        io.inputs.first().map(|x| x.rows()).filter(|_| input == 1)
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
    use super::{Rotary, RotaryPairing};
    use crate::kernels::pool::rows_mut;
    use crate::kernels::rotary::{RotaryPairs, Rotation, rotate_row};
    use crate::ops::execute::{
        BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, OperatorInput, ROW_GRAIN,
    };

    impl Rotary {
        /// Rotates samples whose rows have these positions, or begin at position `first`.
        fn rotate(
            &self,
            context: &mut OperatorContext<'_>,
            shape: &NodeShape,
            (first, positions): (usize, OperatorInput<'_>),
            is_reverse: bool,
            x: &mut [f32],
        ) {
            context.rotary.prepare(first + shape.rows(), self.dimensions / 2, |pair| self.frequency(pair));
            let (simd, table, rows, width) = (context.cx.simd, &*context.rotary, shape.rows(), shape.columns());
            let pairs = match self.pairing {
                RotaryPairing::Halves => RotaryPairs::Halves,
                RotaryPairing::Adjacent => RotaryPairs::Adjacent,
            };
            let positions = positions.integers();
            let rotation = Rotation { pairs, head_dim: self.head_dim, heads: self.heads, is_reverse };
            context.cx.pool.for_each_rows(context.samples * rows, ROW_GRAIN, rows_mut(x, width), |row, x| {
                for (row, x) in (row..).zip(x.data.chunks_exact_mut(width)) {
                    let position = positions.get(row).map_or(first + row % rows, |position| *position as usize);
                    rotate_row(simd, table, rotation, position, x);
                }
            });
        }
    }

    impl Executor for Rotary {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            self.forward_rows(context, 0, io);
        }

        fn forward_rows(&self, context: &mut OperatorContext<'_>, first: usize, io: ForwardArgs<'_>) {
            if let OperatorInput::Values(x) = io.inputs[0] {
                io.output.copy_from_slice(x);
            }
            self.rotate(context, io.shape, (first, io.inputs[1]), false, io.output);
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            self.rotate(context, io.shape, (0, io.inputs[1]), true, io.gradient);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use millrace_params::RotaryScaling;

    use super::{Rotary, RotaryPairing};
    use crate::graph::{Graph, Shape};
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, rejects,
    };

    const ROTARY: Rotary =
        Rotary { heads: 2, head_dim: 5, dimensions: 4, base: 10.0, pairing: RotaryPairing::Halves, scaling: None };

    impl OperatorTests for Rotary {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let mut y = args.inputs[0].to_vec();
            for (row_number, row) in y.chunks_mut(args.io.inputs[0].columns()).enumerate() {
                let position = args.inputs.get(1).map_or(row_number as f64, |positions| positions[row_number]);
                for head in row.chunks_mut(self.head_dim).take(self.heads) {
                    for pair in 0..self.dimensions / 2 {
                        let (a, b) = match self.pairing {
                            RotaryPairing::Halves => (pair, pair + self.dimensions / 2),
                            RotaryPairing::Adjacent => (2 * pair, 2 * pair + 1),
                        };
                        let (sin, cos) = (position * self.frequency(pair)).sin_cos();
                        (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
                    }
                }
            }
            y
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let small = Rotary { heads: 1, head_dim: 4, ..ROTARY };
            let scaled = |factor| Rotary { scaling: Some(RotaryScaling::Linear { factor }), ..small };
            vec![
                accepts(small, &[X], &[], X),
                accepts(scaled(2.0), &[X], &[], X),
                accepts(small, &[X, TOKENS], &[], X),
                rejects(small, &[X, Shape::integers(7)], &[], "input 1"),
                rejects(Rotary { heads: 2, ..small }, &[X], &[], "2 heads of 4"),
                rejects(Rotary { heads: usize::MAX, ..small }, &[X], &[], "heads of 4"),
                rejects(Rotary { heads: 0, ..small }, &[X], &[], "0 heads"),
                rejects(Rotary { dimensions: 3, ..small }, &[X], &[], "3 rotated"),
                rejects(Rotary { dimensions: 6, ..small }, &[X], &[], "6 rotated"),
                rejects(Rotary { base: 0.0, ..small }, &[X], &[], "base"),
                rejects(scaled(-1.0), &[X], &[], "scaling factor"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            let rotated = |rotary: Rotary| {
                TestGraph::build(|s, x| {
                    let y = s.linear(x, WIDTH, true);
                    s.node(rotary, &[y], &[])
                })
            };
            let shared = TestGraph::build(|s, x| {
                let y = s.node(ROTARY, &[x], &[]);
                s.add(x, y)
            });
            let adjacent = Rotary { pairing: RotaryPairing::Adjacent, heads: 1, head_dim: 12, ..ROTARY };
            let with_positions = TestGraph::build(|s, x| {
                let y = s.linear(x, WIDTH, true);
                let positions = s.integers(Shape::integers(ROWS));
                s.node(ROTARY, &[y, positions], &[])
            });
            vec![rotated(ROTARY), rotated(adjacent), shared, with_positions]
        }
    }

    /// The frequencies that transformers computes for LLaMA 3.1 (`rope_type: llama3`) with these settings.
    #[test]
    fn long_wavelengths_are_scaled_and_short_ones_kept() {
        let scaling = RotaryScaling::Llama3 {
            factor: 8.0,
            low_frequency_factor: 1.0,
            high_frequency_factor: 4.0,
            original_positions: 8192.0,
        };
        let plain = Rotary { heads: 1, head_dim: 128, dimensions: 128, base: 500_000.0, ..ROTARY };
        let scaled = Rotary { scaling: Some(scaling), ..plain };
        assert_eq!(scaled.frequency(0), plain.frequency(0));
        assert_eq!(scaled.frequency(63), plain.frequency(63) / 8.0);
        // Pair 32: wavelength 4442.9, between 2048 and 8192.
        let share = (8192.0 * plain.frequency(32) / std::f64::consts::TAU - 1.0) / 3.0;
        let expected = plain.frequency(32) * (share + (1.0 - share) / 8.0);
        assert!((scaled.frequency(32) / expected - 1.0).abs() < 1e-12 && share > 0.0 && share < 1.0);
    }
}
