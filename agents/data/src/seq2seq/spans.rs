//! Span corruption, the objective of T5: replaces spans of a text by sentinels, and predicts what they contained.
//!
//! ```text
//! tokens    a b c d e f g h          spans: [c d], [g]
//! inputs    a b <X> e f <Y> h
//! targets   <X> c d <Y> g
//! ```
//!
//! * 15% of the tokens are replaced, in spans of three tokens on average, as in the published code of T5. Spans of kept
//!   and of replaced tokens alternate, and the first one is kept.
//! * The spans are a function of (seed, number of the sample). All divisions into them are equally likely.
//! * Sentinels are the last tokens of a range, from its end: the first span has the last one.

use crate::encoder::SampleRandom;

/// Tokens at the end of both sequences beside those of the text and sentinels: the end.
const END_TOKENS: usize = 1;
/// Share of the tokens that is replaced.
const NOISE_DENSITY: f64 = 0.15;
/// Mean number of tokens in a replaced span.
const MEAN_SPAN_TOKENS: f64 = 3.0;

/// A text with replaced spans, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CorruptedText {
    pub inputs: Vec<i32>,
    pub targets: Vec<i32>,
}

/// Returns the number of replaced tokens and of their spans in a text of `length` tokens.
fn counts(length: usize) -> (usize, usize) {
    if length < 2 {
        return (0, 0);
    }
    let noise = ((length as f64 * NOISE_DENSITY).round_ties_even() as usize).clamp(1, length - 1);
    let spans = ((noise as f64 / MEAN_SPAN_TOKENS).round_ties_even() as usize).max(1);
    (noise, spans)
}

/// Returns the lengths of inputs and targets of a text of `length` tokens, with their ends.
fn lengths(length: usize) -> [usize; 2] {
    let (noise, spans) = counts(length);
    [length - noise + spans + END_TOKENS, noise + spans + END_TOKENS]
}

/// Returns the number of tokens of the longest text whose inputs and targets have room for; `None` if none has two.
pub(super) fn text_length(input_length: usize, target_length: usize) -> Option<usize> {
    let fits = |length: usize| {
        let [inputs, targets] = lengths(length);
        inputs <= input_length && targets <= target_length
    };
    // Neither length falls as that of the text grows, and the inputs have at least 85% of its tokens.
    let (mut fit, mut too_long) = (1, input_length.saturating_mul(2).saturating_add(3));
    while too_long - fit > 1 {
        let middle = fit + (too_long - fit) / 2;
        if fits(middle) { fit = middle } else { too_long = middle }
    }
    (fit >= 2).then_some(fit)
}

/// Returns the number of sentinels that texts of up to `length` tokens need.
pub(super) fn sentinels(length: usize) -> usize {
    counts(length).1
}

/// Replaces spans of `tokens` by sentinels, the first of which is `sentinel_end - 1`.
pub(super) fn corrupt(tokens: &[i32], sentinel_end: u32, random: &mut SampleRandom) -> CorruptedText {
    let (noise, spans) = counts(tokens.len());
    let mut corrupted = CorruptedText { inputs: Vec::with_capacity(tokens.len()), targets: Vec::new() };
    let replaced_lengths = divide(noise, spans, random);
    let kept_lengths = divide(tokens.len() - noise, spans, random);
    let mut rest = tokens;
    for (span, (kept_lengths, replaced_lengths)) in kept_lengths.into_iter().zip(replaced_lengths).enumerate() {
        let (kept_lengths, after) = rest.split_at(kept_lengths);
        let (replaced_lengths, after) = after.split_at(replaced_lengths);
        let sentinel = i64::from(sentinel_end).saturating_sub(1 + span as i64) as i32;
        corrupted.inputs.extend_from_slice(kept_lengths);
        corrupted.inputs.push(sentinel);
        corrupted.targets.push(sentinel);
        corrupted.targets.extend_from_slice(replaced_lengths);
        rest = after;
    }
    corrupted.inputs.extend_from_slice(rest);
    corrupted
}

/// Divides `items` into `parts` of at least one item each; all divisions are equally likely.
fn divide(items: usize, parts: usize, random: &mut SampleRandom) -> Vec<usize> {
    if parts == 0 {
        return Vec::new();
    }
    let mut lengths = Vec::with_capacity(parts);
    let (mut needed, mut begin) = (parts - 1, 0);
    // Selects `parts - 1` of the boundaries between two items, in order.
    for boundary in 1..items {
        if needed == 0 {
            break;
        }
        if random.below((items - boundary) as u64) < needed as u64 {
            lengths.push(boundary - begin);
            (begin, needed) = (boundary, needed - 1);
        }
    }
    lengths.push(items - begin);
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCABULARY: u32 = 1000;

    fn corrupted(tokens: &[i32], sample: u64) -> CorruptedText {
        corrupt(tokens, VOCABULARY, &mut SampleRandom::new(7, sample))
    }

    /// Puts the spans of the targets back where the inputs have their sentinels.
    fn restored(text: &CorruptedText) -> Vec<i32> {
        let is_sentinel = |token: &i32| *token >= 900;
        let mut spans = text.targets.chunk_by(|_, next| !is_sentinel(next));
        let mut tokens = Vec::new();
        for token in &text.inputs {
            match is_sentinel(token) {
                true => {
                    let span = spans.next().unwrap();
                    assert_eq!(span[0], *token, "{text:?}");
                    tokens.extend_from_slice(&span[1..]);
                }
                false => tokens.push(*token),
            }
        }
        assert_eq!(spans.next(), None, "{text:?}");
        tokens
    }

    #[test]
    fn every_token_is_in_inputs_or_targets_in_order() {
        for length in (0..70).chain([512, 568]) {
            let tokens: Vec<i32> = (0..length as i32).collect();
            for sample in 0..50 {
                let text = corrupted(&tokens, sample);
                assert_eq!(restored(&text), tokens, "{length} {sample}");
                let [inputs, targets] = lengths(length);
                assert_eq!([text.inputs.len() + 1, text.targets.len() + 1], [inputs, targets], "{length}");
                let sentinels: Vec<i32> = text.inputs.iter().copied().filter(|token| *token >= 900).collect();
                let expected = (0..sentinels.len() as i32).map(|span| 999 - span);
                assert!(sentinels.iter().copied().eq(expected), "{text:?}");
                assert!(length < 2 || text.inputs[0] == 0, "the first span is kept: {text:?}");
            }
        }
    }

    #[test]
    fn lengths_are_those_of_the_published_code() {
        // Of `random_spans_helper`: 568 tokens become 512 with 114 targets.
        assert_eq!(text_length(512, 114), Some(568));
        assert_eq!((lengths(568), counts(568)), ([512, 114], (85, 28)));
        assert_eq!(text_length(512, 60).map(lengths), Some([268, 60]));
        assert_eq!((text_length(2, 9), text_length(9, 2)), (None, None));
        assert_eq!(text_length(3, 3), Some(2));
    }

    #[test]
    fn spans_are_a_function_of_the_sample_and_equally_likely() {
        let tokens: Vec<i32> = (0..20).collect();
        assert_eq!(corrupted(&tokens, 3), corrupted(&tokens, 3));
        let mut replaced = [0_i32; 20];
        for sample in 0..8_000 {
            corrupted(&tokens, sample).targets[1..].iter().for_each(|token| replaced[*token as usize] += 1);
        }
        // A single span, of 3 tokens: it is at the end of the text, as in the published code.
        assert_eq!(replaced[17..], [8_000; 3], "{replaced:?}");
        let four: Vec<usize> = (0..6_000).map(|n| divide(4, 2, &mut SampleRandom::new(1, n))[0]).collect();
        for first in 1..4 {
            let count = four.iter().filter(|length| **length == first).count();
            assert!(count.abs_diff(2_000) < 200, "{first}: {count}");
        }
    }
}
