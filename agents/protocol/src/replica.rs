//! The copy of a shard that one replica sends to another: every chunk in parts, in plan order.
//!
//! ```text
//!  new replica ── CopyRequest {plan, step} ──► replica
//!              ◄── ChunkPart {0} ChunkPart {0} ChunkPart {2} … (only the chunks of the shard)
//! ```
//!
//! * The receiver takes sizes from its own plan, never from the sender: a part of another chunk, beyond the end of its
//!   chunk, or with a wrong checksum ends the copy.
//! * Nothing is delivered of a chunk before its last part has arrived.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use twox_hash::XxHash3_64;

use crate::proto::ChunkPart;
use crate::samples::Checked;

/// Maximum elements of a part: 1 MiB.
pub const MAX_PART_ELEMENTS: usize = 1 << 18;

/// An error that ends a copy.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    #[error("a part of chunk {chunk} arrived damaged")]
    Damaged { chunk: u32 },
    #[error("received a part of chunk {found}, but {}", match .expected {
        Some(chunk) => format!("chunk {chunk} follows"),
        None => "the copy is complete".to_owned(),
    })]
    OutOfOrder { expected: Option<u32>, found: u32 },
    #[error("received {found} bytes of chunk {chunk}, which has {expected}")]
    Length { chunk: u32, expected: usize, found: usize },
    #[error("the copy ended before chunk {next}")]
    Incomplete { next: u32 },
}

impl Checked for ChunkPart {
    fn checksum(&self) -> u64 {
        let Self { chunk, ref elements, checksum: _ } = *self;
        XxHash3_64::oneshot_with_seed(chunk.into(), elements)
    }

    fn sealed(self) -> Self {
        Self { checksum: self.checksum(), ..self }
    }

    fn is_intact(&self) -> bool {
        self.checksum == self.checksum()
    }
}

/// Divides the elements of a chunk, as bytes, into parts.
pub fn parts(chunk: u32, elements: &Bytes) -> impl Iterator<Item = ChunkPart> {
    let starts = (0..elements.len()).step_by(4 * MAX_PART_ELEMENTS);
    starts.map(move |start| {
        let end = elements.len().min(start + 4 * MAX_PART_ELEMENTS);
        ChunkPart { chunk, elements: elements.slice(start..end), checksum: 0 }.sealed()
    })
}

/// Assembles the parts of a copy.
#[derive(Clone, Debug)]
pub struct CopyReader {
    /// Chunks that are not complete yet, with their bytes.
    remaining: VecDeque<(u32, usize)>,
    /// The bytes received of the first one.
    received: BytesMut,
}

impl CopyReader {
    /// Creates a reader of these chunks, with the bytes of each. Chunks without bytes have no parts.
    pub fn new(chunks: impl IntoIterator<Item = (u32, usize)>) -> Self {
        let remaining = chunks.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        Self { remaining, received: BytesMut::new() }
    }

    /// Takes the next part. Returns the chunk and its bytes if the part is its last one.
    ///
    /// # Errors
    /// The part is damaged, is not the next one, or exceeds its chunk.
    pub fn take(&mut self, part: &ChunkPart) -> Result<Option<(u32, Bytes)>, CopyError> {
        let chunk = part.chunk;
        if !part.is_intact() {
            return Err(CopyError::Damaged { chunk });
        }
        let expected = self.remaining.front().copied();
        let Some((_, bytes)) = expected.filter(|(expected, _)| *expected == chunk) else {
            return Err(CopyError::OutOfOrder { expected: expected.map(|(chunk, _)| chunk), found: chunk });
        };
        let found = self.received.len() + part.elements.len();
        if part.elements.is_empty() || found > bytes {
            return Err(CopyError::Length { chunk, expected: bytes, found });
        }
        self.received.extend_from_slice(&part.elements);
        if found < bytes {
            return Ok(None);
        }
        self.remaining.pop_front();
        Ok(Some((chunk, self.received.split().freeze())))
    }

    /// Checks that every chunk has arrived.
    ///
    /// # Errors
    /// A chunk is missing or incomplete.
    pub fn finish(&self) -> Result<(), CopyError> {
        self.remaining.front().map_or(Ok(()), |&(next, _)| Err(CopyError::Incomplete { next }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(length: usize) -> Bytes {
        (0..length).map(|index| index as u8).collect()
    }

    #[test]
    fn parts_of_all_sizes_are_assembled() {
        let largest = 4 * MAX_PART_ELEMENTS;
        let chunks = [(0, 4), (3, largest), (4, 0), (5, largest + 4), (9, 3 * largest)];
        let mut reader = CopyReader::new(chunks);
        for (chunk, length) in chunks {
            let sent = bytes(length);
            let received: Vec<_> = parts(chunk, &sent).filter_map(|part| reader.take(&part).unwrap()).collect();
            assert_eq!(received, if length == 0 { vec![] } else { vec![(chunk, sent)] });
        }
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn invalid_parts_end_the_copy() {
        let reader = CopyReader::new([(1, 8), (2, 8)]);
        let take = |chunk, length| {
            let part = ChunkPart { chunk, elements: bytes(length), checksum: 0 }.sealed();
            reader.clone().take(&part)
        };
        assert_eq!(take(1, 4), Ok(None));
        assert_eq!(take(2, 8), Err(CopyError::OutOfOrder { expected: Some(1), found: 2 }));
        for length in [0, 9] {
            assert_eq!(take(1, length), Err(CopyError::Length { chunk: 1, expected: 8, found: length }));
        }
        let part = ChunkPart { chunk: 1, elements: bytes(8), checksum: 0 }.sealed();
        for changed in [ChunkPart { elements: bytes(4), ..part.clone() }, ChunkPart { chunk: 2, ..part.clone() }] {
            assert_eq!(reader.clone().take(&changed), Err(CopyError::Damaged { chunk: changed.chunk }));
        }
        let mut reader = reader;
        assert_eq!(reader.take(&part), Ok(Some((1, bytes(8)))));
        assert_eq!(reader.finish(), Err(CopyError::Incomplete { next: 2 }));
    }
}
