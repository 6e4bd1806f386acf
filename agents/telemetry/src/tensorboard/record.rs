//! TFRecord framing: `length u64 | masked crc of length | payload | masked crc of payload`, all little-endian.
//!
//! The checksums are CRC-32C (Castagnoli), rotated and offset so that a record nested in a record does not pass the
//! check by accident.

use crc::{CRC_32_ISCSI, Crc};

static CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Returns `payload` framed as a record.
pub(super) fn frame(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(payload.len() + 16);
    record.extend(length);
    record.extend(masked_crc32c(&length).to_le_bytes());
    record.extend(payload);
    record.extend(masked_crc32c(payload).to_le_bytes());
    record
}

/// Returns the first record's payload and the remaining bytes; `None` if the record is damaged or incomplete.
#[cfg(test)]
pub(super) fn unframe(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let (payload, rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
    let (payload_sum, rest) = rest.split_first_chunk::<4>()?;
    let sound =
        u32::from_le_bytes(*sum) == masked_crc32c(length) && u32::from_le_bytes(*payload_sum) == masked_crc32c(payload);
    sound.then_some((payload, rest))
}

fn masked_crc32c(bytes: &[u8]) -> u32 {
    CRC32C.checksum(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, B.4, and the check value of the polynomial.
    #[test]
    fn published_check_values() {
        let ascending: Vec<u8> = (0..32).collect();
        for (bytes, crc) in [
            (b"123456789".as_slice(), 0xE306_9283),
            (&[0; 32], 0x8A91_36AA),
            (&[0xFF; 32], 0x62A8_AB43),
            (&ascending, 0x46DD_794E),
            (b"", 0),
        ] {
            assert_eq!(CRC32C.checksum(bytes), crc);
        }
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let record = frame(b"payload");
        assert_eq!(unframe(&record), Some((b"payload".as_slice(), &[][..])));
        for bit in 0..record.len() * 8 {
            let mut damaged = record.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unframe(&damaged), None, "bit {bit}");
        }
    }
}
