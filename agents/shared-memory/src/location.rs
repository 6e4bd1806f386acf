//! Where a payload lies, as it is sent.

use twox_hash::XxHash3_64;

/// Bytes of an encoded [`Location`].
///
/// | offset | bytes | field, little-endian |
/// |---|---|---|
/// | 0 | 4 + 4 | process that owns the arena, and the file descriptor of the arena in it |
/// | 8 | 8 | serial number of the arena |
/// | 16 | 4 + 4 | slot, and how many times the slot had been filled |
/// | 24 | 8 | bytes of the payload |
/// | 32 | 8 | xxh3 of the fields above |
pub const LOCATION_BYTES: usize = 40;
const FIELD_BYTES: usize = LOCATION_BYTES - 8;

/// The arena of one process in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ArenaId {
    /// The process that owns it.
    pub process: u32,
    /// The file descriptor of its memory in that process.
    pub descriptor: u32,
    /// Distinguishes it from other arenas that had this descriptor.
    pub serial: u64,
}

/// Where a payload lies. Holds a reference to it, which belongs to the receiver of the location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    pub(crate) arena: ArenaId,
    pub(crate) slot: u32,
    /// How many times the slot had been filled.
    pub(crate) fill: u32,
    pub(crate) length: u64,
}

impl Location {
    /// Returns the number of bytes of the payload.
    pub const fn payload_bytes(&self) -> u64 {
        self.length
    }

    /// Encodes the location.
    pub fn to_bytes(self) -> [u8; LOCATION_BYTES] {
        let Self { arena: ArenaId { process, descriptor, serial }, slot, fill, length } = self;
        let mut bytes = [0; LOCATION_BYTES];
        let [pair, serials, slots, lengths, checksum] = bytes.as_chunks_mut::<8>().0 else { return bytes };
        *pair = (u64::from(process) | u64::from(descriptor) << 32).to_le_bytes();
        *serials = serial.to_le_bytes();
        *slots = (u64::from(slot) | u64::from(fill) << 32).to_le_bytes();
        *lengths = length.to_le_bytes();
        let fields = [*pair, *serials, *slots, *lengths].concat();
        *checksum = XxHash3_64::oneshot(&fields).to_le_bytes();
        bytes
    }

    /// Decodes a location; `None` if the bytes are damaged.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LOCATION_BYTES] = bytes.try_into().ok()?;
        let (fields, checksum) = bytes.split_at(FIELD_BYTES);
        if XxHash3_64::oneshot(fields).to_le_bytes() != checksum {
            return None;
        }
        let [pair, serial, slots, length] = fields.as_chunks::<8>().0 else { return None };
        let halves = |bytes: &[u8; 8]| {
            let both = u64::from_le_bytes(*bytes);
            (both as u32, (both >> 32) as u32)
        };
        let ((process, descriptor), (slot, fill)) = (halves(pair), halves(slots));
        let arena = ArenaId { process, descriptor, serial: u64::from_le_bytes(*serial) };
        Some(Self { arena, slot, fill, length: u64::from_le_bytes(*length) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_round_trips_and_damage_is_detected() {
        let arena = ArenaId { process: 1, descriptor: u32::MAX, serial: 3 << 40 };
        let location = Location { arena, slot: 4, fill: 5, length: 6 << 33 };
        let bytes = location.to_bytes();
        assert_eq!(Location::parse(&bytes), Some(location));
        for byte in 0..LOCATION_BYTES {
            let mut damaged = bytes;
            damaged[byte] ^= 1;
            assert_eq!(Location::parse(&damaged), None, "byte {byte}");
        }
        assert_eq!(Location::parse(&bytes[1..]), None);
    }
}
