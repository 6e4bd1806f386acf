//! The samples of a split, and the order in which they are read.

use std::ops::Range;

use crate::order::SampleOrder;
use crate::{DataError, SourceSpec, SplitPart};

/// Returns the order in which `windows` of the split are read.
pub(crate) fn order_of(spec: &SourceSpec, windows: Range<u64>) -> Result<SampleOrder, DataError> {
    let shuffle = (spec.shuffle && spec.split == SplitPart::Train).then_some(spec.shuffle_seed);
    let order = SampleOrder::new(windows, &spec.subset, spec.num_samples, shuffle);
    order.ok_or(DataError::NoSamples { split: spec.split, has_subset: !spec.subset.is_empty() })
}

/// Returns the range of `total` tokens, or windows, that belongs to the split.
pub(crate) fn split_range(spec: &SourceSpec, total: u64) -> Range<u64> {
    // Rounded down, and limited to the total, which the f64 may exceed after rounding.
    let validation = ((total as f64 * spec.validation_fraction) as u64).min(total);
    match spec.split {
        SplitPart::Train => 0..total - validation,
        SplitPart::Validation => total - validation..total,
    }
}

/// Returns the first token of the split and its number of windows, in a source of `tokens` tokens.
pub(crate) fn windows_of_split(spec: &SourceSpec, tokens: u64) -> Result<(u64, u64), DataError> {
    let (part, seq_len) = (split_range(spec, tokens), spec.seq_len as u64);
    let tokens = part.end - part.start;
    match tokens.saturating_sub(1) / seq_len {
        0 => Err(DataError::TooShort { split: spec.split, tokens, needed: seq_len + 1 }),
        windows => Ok((part.start, windows)),
    }
}
