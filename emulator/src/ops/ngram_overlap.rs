//! `(words i32 [T], first [T], second [T]) -> [3]`: how many sequences of `length` words two selections of the words of
//! a text have in common, how many the first has, and how many the second. ROUGE scores are computed from the sums.
//!
//! ```text
//! length 2      words    4  7 -1  4  7  5     -1: not the beginning of a word
//! first         x  x  x  x          4 7 4     47 74
//! second              x  x  x  x    4 7 5     47 75       -> [1, 2, 2]
//! ```
//!
//! A selection contains the words at positive numbers. A sequence that occurs several times in both is in common as
//! often as it occurs in the selection where it is rarer.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::{DType, Shape};

/// Maximum number of words of a sequence: the time to compare sequences is proportional to it.
const MAX_LENGTH: usize = 16;

/// See the module documentation. There is no gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NgramOverlap {
    /// Number of words of a sequence.
    pub length: usize,
}

impl Operator for NgramOverlap {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [words, first, second] = io.inputs([DType::I32, DType::F32, DType::F32])?;
        io.params(&[], 0)?;
        let &[count] = words.dimensions() else {
            return Err(OpError::NotAVector { input: 0, found: words.to_string() });
        };
        let expected = words.with_dtype(DType::F32);
        for (input, selection) in [(1, first), (2, second)] {
            if selection != expected {
                return Err(OpError::input_shape(input, expected, selection));
            }
        }
        if !(1..=count.min(MAX_LENGTH)).contains(&self.length) {
            let range = "from 1 to 16, and not greater than the number of words";
            return Err(OpError::Attribute { name: "length", value: self.length as f32, range });
        }
        Ok(Some(Shape::integers(3).with_dtype(DType::F32)))
    }

    fn has_input_gradient(&self, _: usize) -> bool {
        false
    }
}

#[cfg(feature = "kernels")]
mod run {
    use std::cmp::Ordering;

    use super::NgramOverlap;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext};

    impl Executor for NgramOverlap {
        fn forward(&self, _: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let count = io.shape.inputs[0].elements() as usize;
            let [words, first, second, ..] = io.inputs;
            let selections = first.values().chunks_exact(count).zip(second.values().chunks_exact(count));
            let samples = words.integers().chunks_exact(count).zip(selections);
            for ((words, (first, second)), counts) in samples.zip(io.output.chunks_exact_mut(3)) {
                let [first, second] = [first, second].map(|selection| select(words, selection));
                let [first, second] = [&first, &second].map(|words| sorted_sequences(words, self.length));
                let numbers = [in_common(&first, &second), first.len(), second.len()];
                counts.iter_mut().zip(numbers).for_each(|(count, number)| *count = number as f32);
            }
        }

        fn backward(&self, _: &mut OperatorContext<'_>, _: BackwardArgs<'_>) {}
    }

    /// Returns the words of a selection.
    fn select(words: &[i32], selection: &[f32]) -> Vec<i32> {
        let selected = words.iter().zip(selection).filter(|(word, selection)| **word >= 0 && **selection > 0.0);
        selected.map(|(word, _)| *word).collect()
    }

    fn sorted_sequences(words: &[i32], length: usize) -> Vec<&[i32]> {
        let mut sequences: Vec<&[i32]> = words.windows(length).collect();
        sequences.sort_unstable();
        sequences
    }

    /// Returns the number of elements that two sorted lists have in common.
    fn in_common(mut first: &[&[i32]], mut second: &[&[i32]]) -> usize {
        let mut count = 0;
        while let ([a, rest @ ..], [b, other @ ..]) = (first, second) {
            let order = a.cmp(b);
            count += usize::from(order == Ordering::Equal);
            if order != Ordering::Greater {
                first = rest;
            }
            if order != Ordering::Less {
                second = other;
            }
        }
        count
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use std::collections::HashMap;

    use super::NgramOverlap;
    use crate::graph::{Axes, DType, Graph, Shape};
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, accepts, f32_shape, rejects,
    };
    use crate::ops::{Reduce, Reduction};

    impl OperatorTests for NgramOverlap {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let count_all = |selection: &[f64]| {
                let words: Vec<i64> = args.inputs[0]
                    .iter()
                    .zip(selection)
                    .filter(|(word, selection)| **word >= 0.0 && **selection > 0.0)
                    .map(|(word, _)| *word as i64)
                    .collect();
                let mut counts: HashMap<Vec<i64>, u32> = HashMap::new();
                words.windows(self.length).for_each(|words| *counts.entry(words.to_vec()).or_default() += 1);
                counts
            };
            let [first, second] = [1, 2].map(|input| count_all(args.inputs[input]));
            let common: u32 =
                first.iter().map(|(words, count)| (*count).min(second.get(words).copied().unwrap_or(0))).sum();
            [common, first.values().sum(), second.values().sum()].map(f64::from).to_vec()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let of = |length| NgramOverlap { length };
            let selection = TOKENS.with_dtype(DType::F32);
            let (long, selected) = (Shape::integers(32), f32_shape(&[32]));
            vec![
                accepts(of(2), &[TOKENS, selection, selection], &[], f32_shape(&[3])),
                rejects(of(2), &[selection, selection, selection], &[], "type i32"),
                rejects(of(2), &[TOKENS, selection, f32_shape(&[7])], &[], "input 2"),
                rejects(of(2), &[TOKENS, selection], &[], "reads 3 values"),
                rejects(of(1), &[TOKENS.one_integer_per_row(), selection, selection], &[], "one dimension"),
                rejects(of(0), &[TOKENS, selection, selection], &[], "length is 0"),
                rejects(of(9), &[TOKENS, selection, selection], &[], "length is 9"),
                accepts(of(16), &[long, selected, selected], &[], f32_shape(&[3])),
                rejects(of(17), &[long, selected, selected], &[], "length is 17"),
                rejects(of(2), &[TOKENS, selection, selection], &[&[4]], "0 tensors"),
            ]
        }

        /// Factors that are the sums of the counts of pairs and of single words.
        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let words = s.integers(Shape::integers(ROWS));
                let [first, second] = [s.numbers(&[ROWS]), s.numbers(&[ROWS])];
                [1, 2].into_iter().fold(x, |x, length| {
                    let counts = s.node(NgramOverlap { length }, &[words, first, second], &[]);
                    let axes = Axes::new(&[0]).unwrap();
                    let sum = s.node(Reduce { reduction: Reduction::Sum, axes, keep: false }, &[counts], &[]);
                    s.mul(x, sum)
                })
            })]
        }
    }
}
