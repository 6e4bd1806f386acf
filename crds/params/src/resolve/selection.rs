//! Resolves which samples of the data an input reads: `data_subset` and `num_samples`.

use super::check::ResolveContext;
use super::input_section::InputSection;

/// Maximum ranges of a subset.
const MAX_RANGES: usize = 100;
/// Maximum samples in an epoch, so that sums of sample numbers can't overflow.
const MAX_EPOCH_SAMPLES: u64 = 1 << 48;
const SUBSET_HINT: &str = "write ascending ranges of shares, for example 0.0-0.5 or 0-0.25,0.5-0.75";

/// Returns the ranges of `data_subset`; empty for all samples.
pub(super) fn data_subset(check: &mut ResolveContext<'_>, s: &InputSection<'_>) -> Vec<[f64; 2]> {
    let Some(text) = s.params.data_subset.as_deref() else { return Vec::new() };
    match parse_ranges(text) {
        Some(ranges) if ranges.as_slice() == [[0.0, 1.0]] => Vec::new(),
        Some(ranges) => ranges,
        None => {
            check.report_invalid(&s.key("data_subset"), format!("is \"{text}\", which is not a range"), SUBSET_HINT);
            Vec::new()
        }
    }
}

/// Returns the number of samples in an epoch, if given.
pub(super) fn num_samples(check: &mut ResolveContext<'_>, s: &InputSection<'_>) -> Option<u64> {
    let value = s.params.num_samples?;
    if !(1..=MAX_EPOCH_SAMPLES).contains(&value) {
        let hint = format!("give a whole number from 1 to {MAX_EPOCH_SAMPLES}");
        check.report_invalid(&s.key("num_samples"), format!("is {value}, which is out of range"), hint);
    }
    Some(value)
}

/// Parses ascending ranges of shares that do not overlap.
fn parse_ranges(text: &str) -> Option<Vec<[f64; 2]>> {
    let mut ranges: Vec<[f64; 2]> = Vec::new();
    for part in text.split(',') {
        let (begin, end) = part.split_once('-')?;
        let range = [begin.trim().parse().ok()?, end.trim().parse().ok()?];
        let least = ranges.last().map_or(0.0, |[_, end]| *end);
        // Comparisons are false for NaN.
        let is_valid = least <= range[0] && range[0] < range[1] && range[1] <= 1.0;
        if !is_valid || ranges.len() == MAX_RANGES {
            return None;
        }
        ranges.push(range);
    }
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_ascending_shares() {
        assert_eq!(parse_ranges("0.0-0.5"), Some(vec![[0.0, 0.5]]));
        assert_eq!(parse_ranges("0-0.25, 0.5-1"), Some(vec![[0.0, 0.25], [0.5, 1.0]]));
        for text in
            ["", "0.5", "0.5-0.5", "0.5-0.1", "0-1.5", "-0.5-1", "0-0.5,0.25-1", "a-b", "nan-1", "0-inf", "0-1,"]
        {
            assert_eq!(parse_ranges(text), None, "{text}");
        }
    }
}
