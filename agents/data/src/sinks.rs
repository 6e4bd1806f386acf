//! Sink tokens, which are inserted into every sample: tokens that attention may always attend to, and that are not
//! predicted. Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (2023).

use crate::hdf5::NO_LABEL;

/// The tokens that are inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkTokens {
    /// The token.
    pub token: u32,
    /// How often it is inserted, at least 1.
    pub count: usize,
    /// Number of tokens of the sample before them.
    pub position: usize,
    /// Whether the sample keeps its length, so that as many tokens at its end are lost.
    pub keeps_length: bool,
}

impl SinkTokens {
    /// Returns the length of the samples that these tokens are inserted into, for a result of `length` tokens.
    pub(crate) fn length_without(self, length: usize) -> usize {
        if self.keeps_length { length } else { length.saturating_sub(self.count) }
    }

    /// Returns the length of a sample of `length` tokens with these tokens.
    pub(crate) fn length_with(self, length: usize) -> usize {
        if self.keeps_length { length } else { length.saturating_add(self.count) }
    }

    /// Writes a sample with the tokens inserted. `tokens` and `labels` are those of the sample without them.
    pub(crate) fn insert(self, [tokens, labels]: [&[i32]; 2], input_ids: &mut [i32], out_labels: &mut [i32]) {
        let sink = i32::try_from(self.token).unwrap_or(i32::MAX);
        for (out, sample, inserted) in [(input_ids, tokens, sink), (out_labels, labels, NO_LABEL)] {
            let (before, after) = sample.split_at(self.position.min(sample.len()));
            let sinks = std::iter::repeat_n(&inserted, self.count);
            out.iter_mut().zip(before.iter().chain(sinks).chain(after)).for_each(|(out, token)| *out = *token);
        }
    }

    pub(crate) fn hash(self, hasher: &mut blake3::Hasher) {
        for number in [u64::from(self.token), self.count as u64, self.position as u64, u64::from(self.keeps_length)] {
            hasher.update(&number.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinks_are_inserted_and_never_predicted() {
        let sinks = SinkTokens { token: 9, count: 2, position: 1, keeps_length: false };
        let with = |sinks: SinkTokens| {
            let mut arrays = [vec![0; sinks.length_with(3)], vec![0; sinks.length_with(3)]];
            let [input_ids, labels] = &mut arrays;
            sinks.insert([&[1, 2, 3], &[2, 3, 4]], input_ids, labels);
            assert_eq!(sinks.length_without(input_ids.len()), 3);
            arrays
        };
        assert_eq!(with(sinks), [[1, 9, 9, 2, 3], [2, -1, -1, 3, 4]]);
        assert_eq!(with(SinkTokens { position: 0, ..sinks }), [[9, 9, 1, 2, 3], [-1, -1, 2, 3, 4]]);
        assert_eq!(with(SinkTokens { keeps_length: true, ..sinks }), [[1, 9, 9], [2, -1, -1]]);
    }
}
