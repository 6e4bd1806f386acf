//! `() -> [..]`: random numbers, others for each sample and step; in evaluation, their mean.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::{DType, Dimensions, Shape};

/// A distribution of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// From 0 to 1, without these.
    Uniform,
    /// The standard normal distribution, with mean 0 and variance 1.
    Normal,
}

/// See the module documentation. The numbers are a function of (seed, sample, node, element).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Random {
    /// Their distribution.
    pub distribution: Distribution,
    /// The dimensions of the output.
    pub dimensions: Dimensions,
}

impl Operator for Random {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        io.inputs([])?;
        io.params(&[], 0)?;
        let error = || OpError::TensorDimensions { found: self.dimensions.to_vec() };
        let shape = Shape::new(DType::F32, &self.dimensions).filter(|shape| shape.elements() > 0);
        shape.map(Some).ok_or_else(error)
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::{Distribution, Random};
    use crate::kernels::pool::rows_mut;
    use crate::numerics::random;
    use crate::ops::execute::{BackwardArgs, ELEMENT_GRAIN, Executor, ForwardArgs, OperatorContext};

    impl Executor for Random {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let sample = io.output.len() / context.samples;
            for (&key, y) in context.keys.iter().zip(io.output.chunks_exact_mut(sample)) {
                if !context.training {
                    y.fill(self.distribution.mean());
                    continue;
                }
                context.cx.pool.for_each_rows(sample, ELEMENT_GRAIN, rows_mut(y, 1), |first, y| {
                    for (element, y) in (first as u64..).zip(y.data) {
                        *y = self.distribution.number(key, element) as f32;
                    }
                });
            }
        }

        fn backward(&self, _: &mut OperatorContext<'_>, _: BackwardArgs<'_>) {}
    }

    impl Distribution {
        const fn mean(self) -> f32 {
            match self {
                Self::Uniform => 0.5,
                Self::Normal => 0.0,
            }
        }

        /// Returns the number of `element` under `key`.
        pub(super) fn number(self, key: u64, element: u64) -> f64 {
            // 23 bits: each number, and its distance from 1, is exact in f32.
            let unit = |number| ((random::hash64(key, number) >> 41) as f64 + 0.5) / f64::from(1u32 << 23);
            match self {
                Self::Uniform => unit(element),
                // One of the two numbers of the transform of Box and Muller.
                Self::Normal => {
                    (-2.0 * libm::log(unit(2 * element))).sqrt()
                        * libm::cos(std::f64::consts::TAU * unit(2 * element + 1))
                }
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::{Distribution, Random};
    use crate::graph::{Dimensions, Graph};
    use crate::numerics::random;
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TestGraph, WIDTH, X, accepts, f32_shape, rejects,
    };

    fn random(distribution: Distribution, dimensions: &[usize]) -> Random {
        Random { distribution, dimensions: Dimensions::new(dimensions).unwrap() }
    }

    impl OperatorTests for Random {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let number = |element| match (args.training, self.distribution) {
                (true, distribution) => distribution.number(args.key, element),
                (false, Distribution::Uniform) => 0.5,
                (false, Distribution::Normal) => 0.0,
            };
            (0..self.dimensions.elements()).map(number).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let normal = random(Distribution::Normal, &[2, 3]);
            vec![
                accepts(normal, &[], &[], f32_shape(&[2, 3])),
                rejects(random(Distribution::Uniform, &[2, 0]), &[], &[], "[2, 0]"),
                rejects(normal, &[X], &[], "reads 0 values, not 1"),
                rejects(normal, &[], &[&[4]], "0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            let graph = |distribution| {
                TestGraph::build(|s, x| {
                    let numbers = s.node(random(distribution, &[ROWS, WIDTH]), &[], &[]);
                    s.mul(x, numbers)
                })
            };
            [Distribution::Uniform, Distribution::Normal].map(graph).into()
        }
    }

    #[test]
    fn numbers_have_the_moments_of_their_distribution() {
        const COUNT: u32 = 1 << 18;
        let count = f64::from(COUNT);
        // Mean, variance, fourth moment around the mean.
        for (distribution, expected) in
            [(Distribution::Uniform, [0.5, 1.0 / 12.0, 1.0 / 80.0]), (Distribution::Normal, [0.0, 1.0, 3.0])]
        {
            let key = random::key(1, 2, 3);
            let numbers = || (0..COUNT).map(|element| distribution.number(key, element.into()));
            let moment = |power| numbers().map(|number| (number - expected[0]).powi(power)).sum::<f64>() / count;
            let mean = expected[0] + moment(1);
            for (found, expected) in [mean, moment(2), moment(4)].into_iter().zip(expected) {
                assert!((found - expected).abs() < 0.03 * expected.max(0.3), "{distribution:?}: {found} {expected}");
            }
            let neighbors = numbers().zip(numbers().skip(1)).map(|(a, b)| (a - expected[0]) * (b - expected[0]));
            let correlation = neighbors.sum::<f64>() / count / expected[1];
            assert!(correlation.abs() < 0.01, "{distribution:?}: {correlation}");
        }
    }
}
