//! Masks of attention that depend on positions only.

use std::collections::HashMap;

use super::matcher::Matcher;
use crate::graph::{DType, ValueId};
use crate::ops::{Compare, OpKind, Relation};

/// A score that leaves no probability: the exponential of its distance from any other score is 0.
const MASKED_SCORE: f32 = -1e4;

/// The pairs of rows that attend to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pairs {
    /// All.
    All,
    /// Each row, and those before it.
    Causal,
}

/// Pairs of rows of all masks that are compared with those that attention supports: the time of a graph with many
/// masks, or with large ones, is bounded. Masks beyond are not recognized.
const MAX_COMPARED_PAIRS: u64 = 1 << 28;

/// The masks that were looked at before: layers share them.
#[derive(Debug, Default)]
pub(super) struct MaskCache {
    cached: HashMap<(ValueId, usize, MaskForm), Option<Pairs>>,
    compared: u64,
}

/// What the elements of a mask mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MaskForm {
    /// True where a pair is kept.
    Kept,
    /// True where a pair is masked.
    Masked,
    /// 0 where a pair is kept, otherwise a [score](is_masked) that leaves no probability.
    Scores,
}

/// Returns whether a score of this size means that a pair is masked.
pub(super) fn is_masked(score: f32) -> bool {
    score <= MASKED_SCORE
}

/// Returns which pairs of `rows` rows a mask keeps, if `value` is a constant, or the relation of two constants, and
/// keeps all or the causal ones.
pub(super) fn pairs(matcher: &mut Matcher<'_>, value: ValueId, rows: usize, form: MaskForm) -> Option<Pairs> {
    if let Some(cached) = matcher.masks.cached.get(&(value, rows, form)) {
        return *cached;
    }
    let compared = matcher.masks.compared.saturating_add((rows as u64).saturating_mul(rows as u64));
    if compared > MAX_COMPARED_PAIRS {
        return None;
    }
    matcher.masks.compared = compared;
    let found = match form {
        MaskForm::Scores => of_scores(matcher, value, rows),
        MaskForm::Kept | MaskForm::Masked => Mask::of(matcher, value, rows)
            .and_then(|mask| classify(rows, |row, column| mask.holds(row, column) == (form == MaskForm::Kept))),
    };
    matcher.masks.cached.insert((value, rows, form), found);
    found
}

/// Returns which pairs are kept by a constant that is added to the scores.
fn of_scores(matcher: &Matcher<'_>, value: ValueId, rows: usize) -> Option<Pairs> {
    let scores = Plane::of(matcher, value, rows).filter(|scores| scores.dtype == DType::F32)?;
    let score = |row, column| f32::from_bits(scores.bits(row, column));
    let is_plain = |score: f32| score == 0.0 || is_masked(score);
    let all_plain = (0..rows).all(|row| (0..rows).all(|column| is_plain(score(row, column))));
    if all_plain { classify(rows, |row, column| score(row, column) == 0.0) } else { None }
}

fn classify(rows: usize, keeps: impl Fn(usize, usize) -> bool) -> Option<Pairs> {
    let matches_all = |expected: fn(usize, usize) -> bool| {
        (0..rows).all(|row| (0..rows).all(|column| keeps(row, column) == expected(row, column)))
    };
    if rows > 1 && matches_all(|row, column| column <= row) {
        return Some(Pairs::Causal);
    }
    matches_all(|_, _| true).then_some(Pairs::All)
}

/// A constant that is broadcast to `rows x rows`.
struct Plane<'a> {
    bits: &'a [u32],
    dtype: DType,
    strides: [usize; 2],
}

impl<'a> Plane<'a> {
    fn of(matcher: &Matcher<'a>, value: ValueId, rows: usize) -> Option<Self> {
        let (constant, shape) = (matcher.constant(value)?, matcher.graph.values[value].shape);
        let sizes = shape.dimensions();
        let (outer, last) = sizes.split_at(sizes.len().saturating_sub(2));
        let &[height, width] = match last {
            [] => &[1, 1],
            [width] => &[1, *width],
            [height, width] => &[*height, *width],
            _ => return None,
        };
        let is_one_or_rows = |size: usize| size == 1 || size == rows;
        let strides = [if height == 1 { 0 } else { width }, usize::from(width > 1)];
        let is_plane = outer.iter().all(|&size| size == 1) && is_one_or_rows(height) && is_one_or_rows(width);
        is_plane.then_some(Self { bits: &constant.bits, dtype: shape.dtype(), strides })
    }

    fn bits(&self, row: usize, column: usize) -> u32 {
        self.bits[row * self.strides[0] + column * self.strides[1]]
    }
}

/// A mask as constant, or as relation of two constants.
enum Mask<'a> {
    Constant(Plane<'a>),
    Relation(Relation, [Plane<'a>; 2]),
}

impl<'a> Mask<'a> {
    fn of(matcher: &Matcher<'a>, value: ValueId, rows: usize) -> Option<Self> {
        if let Some(plane) = Plane::of(matcher, value, rows) {
            return (plane.dtype == DType::Bool).then_some(Self::Constant(plane));
        }
        let node = matcher.producer(value)?;
        let OpKind::Compare(Compare { relation }) = node.op else { return None };
        let [a, b] = [0, 1].map(|input| Plane::of(matcher, *node.inputs.get(input)?, rows));
        Some(Self::Relation(relation, [a?, b?]))
    }

    fn holds(&self, row: usize, column: usize) -> bool {
        match self {
            Self::Constant(plane) => plane.bits(row, column) != 0,
            Self::Relation(relation, planes) => {
                let [a, b] = planes.each_ref().map(|plane| plane.bits(row, column));
                if planes[0].dtype == DType::F32 {
                    relation.holds(f32::from_bits(a), f32::from_bits(b))
                } else {
                    relation.holds(a.cast_signed(), b.cast_signed())
                }
            }
        }
    }
}
