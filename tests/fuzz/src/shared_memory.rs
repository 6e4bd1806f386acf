//! The target for locations of payloads in shared memory.

use bytes::Bytes;
use millrace_engine::payload_memory::PayloadMemory;
use millrace_shared_memory::{LOCATION_BYTES, Location, SharedMemory};
use twox_hash::XxHash3_64;

/// Bytes of a location that name its arena.
const ARENA_BYTES: usize = 16;

/// Receives payloads at a location: as given, with a valid checksum, and in an arena of this process.
pub fn location(bytes: &[u8]) {
    let Some((given, _)) = bytes.split_first_chunk::<LOCATION_BYTES>() else { return };
    let memory = SharedMemory::new(1);
    memory.begin_epoch(4096, 2);
    let payload = memory.create(100, &mut |writer| writer.put(&[7; 100]));
    let valid = memory.share(&payload).expect("a slot is free").to_bytes();
    let in_arena = [&valid[..ARENA_BYTES], &given[ARENA_BYTES..]].concat();
    for bytes in [given.to_vec(), with_checksum(given), with_checksum(&in_arena)] {
        let Some(location) = Location::parse(&bytes) else { continue };
        assert_eq!(location.to_bytes()[..], bytes, "a location is written as it was read");
        let received = memory.receive(&location).unwrap_or_default();
        assert!(received.is_empty() || is_payload(&received, &payload), "{location:?}");
    }
}

/// Returns whether `received` are bytes of the only slot that was filled.
fn is_payload(received: &Bytes, payload: &Bytes) -> bool {
    received.iter().zip(payload).all(|(received, written)| received == written)
}

fn with_checksum(location: &[u8]) -> Vec<u8> {
    let fields = &location[..LOCATION_BYTES - 8];
    [fields, &XxHash3_64::oneshot(fields).to_le_bytes()].concat()
}
