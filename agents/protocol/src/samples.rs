//! Checksums of requests for samples and of their replies. Connections of one machine, and of an appliance with
//! `encryptData: false`, are authenticated but not encrypted, so that nothing else detects a change of their data.

use twox_hash::XxHash3_64;

use crate::proto::{SamplesReply, SamplesRequest};

/// A message whose checksum is one of its fields.
pub trait Checked: Sized {
    /// Returns the checksum of all other fields.
    fn checksum(&self) -> u64;

    /// Returns the message with its checksum.
    #[must_use]
    fn sealed(self) -> Self;

    /// Returns whether the message arrived as it was sent.
    fn is_intact(&self) -> bool;
}

impl Checked for SamplesRequest {
    fn checksum(&self) -> u64 {
        let Self { iteration, round, evaluation, first, count, attempt, epoch, checksum: _ } = *self;
        let numbers = [iteration, round.into(), evaluation.into(), first, count.into(), attempt.into(), epoch.into()];
        XxHash3_64::oneshot(&numbers.map(u64::to_le_bytes).concat())
    }

    fn sealed(self) -> Self {
        Self { checksum: self.checksum(), ..self }
    }

    fn is_intact(&self) -> bool {
        self.checksum == self.checksum()
    }
}

impl Checked for SamplesReply {
    fn checksum(&self) -> u64 {
        let Self { iteration, round, attempt, epoch, ref inputs, checksum: _ } = *self;
        let of_inputs =
            inputs.iter().flat_map(|input| [input.name.as_bytes(), &input.elements].map(XxHash3_64::oneshot));
        let numbers = [iteration, round.into(), attempt.into(), epoch.into()].into_iter().chain(of_inputs);
        XxHash3_64::oneshot(&numbers.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
    }

    fn sealed(self) -> Self {
        Self { checksum: self.checksum(), ..self }
    }

    fn is_intact(&self) -> bool {
        self.checksum == self.checksum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::SampleInput;

    #[test]
    fn changed_field_is_detected() {
        let request =
            SamplesRequest { iteration: 1, round: 2, first: 3, count: 4, attempt: 5, epoch: 6, ..Default::default() };
        let request = request.sealed();
        assert!(request.is_intact() && !SamplesRequest::default().is_intact());
        for changed in [
            SamplesRequest { iteration: 9, ..request },
            SamplesRequest { round: 9, ..request },
            SamplesRequest { evaluation: true, ..request },
            SamplesRequest { first: 9, ..request },
            SamplesRequest { count: 9, ..request },
            SamplesRequest { attempt: 9, ..request },
            SamplesRequest { epoch: 9, ..request },
        ] {
            assert!(!changed.is_intact(), "{changed:?}");
        }
        let input =
            |name: &str, elements: &'static [u8]| SampleInput { name: name.to_owned(), elements: elements.into() };
        let inputs = vec![input("tokens", b"abcd"), input("labels", b"efgh")];
        let reply = SamplesReply { iteration: 1, round: 2, attempt: 3, epoch: 4, inputs, checksum: 0 }.sealed();
        assert!(reply.is_intact());
        for (at, other) in [(0, input("tokens", b"abcx")), (1, input("label", b"sefgh"))] {
            let mut changed = reply.clone();
            changed.inputs[at] = other;
            assert!(!changed.is_intact(), "{changed:?}");
        }
        assert!(!SamplesReply { round: 9, ..reply }.is_intact());
    }
}
