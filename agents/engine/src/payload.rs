//! The payload of a frame: dense elements, or a sparse partial sum.
//!
//! The gradient of an embedding lookup has a row for each word of the vocabulary, but the tokens of a leaf touch only a
//! few of them. A sum is divided into blocks of [`SPARSE_BLOCK_ELEMENTS`] elements. A sum that is mostly zero is sent
//! as its non-zero blocks and a bitmap. Nothing is rounded or lost: a block is only omitted if all its bits are zero
//! (-0.0 is kept). A value that is added to an omitted block is added to +0.0, because the addition may change the
//! value (-0.0, denormals, signaling NaNs).
//!
//! * Sums of sparse payloads have the same bits as the sums of the corresponding dense ones.

use bytes::Bytes;

use crate::payload_memory::{PayloadMemory, PayloadWriter};

/// Elements per block; the last block of a sum may have fewer.
pub const SPARSE_BLOCK_ELEMENTS: usize = 64;
const SPARSE_BLOCK_BYTES: usize = 4 * SPARSE_BLOCK_ELEMENTS;
/// Elements and bytes of the blocks in one byte of the bitmap.
const BITMAP_BYTE_ELEMENTS: usize = 8 * SPARSE_BLOCK_ELEMENTS;
const BITMAP_BYTE_DATA_BYTES: usize = 4 * BITMAP_BYTE_ELEMENTS;
/// Bytes of the number of elements at the end of a sparse sum.
const COUNT_BYTES: usize = 4;
static ZEROS: [u8; SPARSE_BLOCK_BYTES] = [0; SPARSE_BLOCK_BYTES];

/// Returns the maximum bytes of a partial sum: a sum of few elements has more of them in its sparse form than in its
/// dense one.
pub const fn max_sum_bytes(elements: usize) -> usize {
    4 * elements + elements.div_ceil(SPARSE_BLOCK_ELEMENTS).div_ceil(8) + COUNT_BYTES
}

/// The data of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// All elements, little-endian: weights in the plan's encoding, a partial sum in f32.
    Dense(Bytes),
    /// A partial sum without its zero blocks.
    Sparse(BlockSparse),
}

/// A partial sum without its zero blocks, as it is sent.
///
/// The bytes are: the stored blocks in order, f32 little-endian; a bitmap with one bit per block, starting at the
/// lowest bit of the first byte, set for stored blocks; the number of elements, u32 little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSparse {
    elements: usize,
    bytes: Bytes,
}

/// Bytes are not a valid sparse sum.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Too short for the bitmap of the stated number of elements.
    #[error("{bytes} bytes are too short for the bitmap of a sparse sum")]
    Bitmap { bytes: usize },
    /// The bitmap has a bit for a block that does not exist.
    #[error("a sparse sum of {elements} elements has a block after its end")]
    BlockBeyondEnd {
        /// Stated number of elements.
        elements: usize,
    },
    /// The length of the blocks contradicts the bitmap.
    #[error("a sparse sum has {got} bytes of blocks, its bitmap says {want}")]
    BlockBytes {
        got: usize,
        /// Bytes according to the bitmap.
        want: usize,
    },
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::Dense(bytes)
    }
}

impl Payload {
    /// Creates the payload of a partial sum in `memory`: sparse if at most half of its blocks contain a value other
    /// than +0.0.
    ///
    /// Reads `sum` once. As long as no block is omitted, the bytes written so far are the beginning of the dense
    /// payload. A sum that turns out late not to be mostly zero is written again from its start.
    pub fn from_sum(sum: &[f32], memory: &dyn PayloadMemory) -> Self {
        let mut is_sparse = false;
        let bytes = memory.create(max_sum_bytes(sum.len()), &mut |out| is_sparse = write_sum(sum, out));
        if is_sparse { Self::Sparse(BlockSparse { elements: sum.len(), bytes }) } else { Self::Dense(bytes) }
    }

    /// Returns the bytes to send.
    pub const fn bytes(&self) -> &Bytes {
        match self {
            Self::Dense(bytes) | Self::Sparse(BlockSparse { bytes, .. }) => bytes,
        }
    }

    /// Returns the bytes to send.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Dense(bytes) | Self::Sparse(BlockSparse { bytes, .. }) => bytes,
        }
    }

    /// Returns whether this is a partial sum of `elements` elements.
    pub fn has_elements(&self, elements: usize) -> bool {
        match self {
            Self::Dense(bytes) => bytes.len() == 4 * elements,
            Self::Sparse(sparse) => sparse.elements == elements,
        }
    }

    /// Adds two partial sums of the same length, element by element; creates the result in `memory` unless it can take
    /// the place of one of them. If the lengths differ, the result has the shorter one (callers compare them with
    /// [`Payload::has_elements`]).
    #[must_use]
    pub fn join(self, right: Self, memory: &dyn PayloadMemory) -> Self {
        match (self, right) {
            (Self::Sparse(left), Self::Sparse(right)) => left.join(&right, memory),
            (Self::Dense(left), Self::Dense(right)) => Self::Dense(join_dense(left, &right, memory)),
            (Self::Dense(dense), Self::Sparse(sparse)) | (Self::Sparse(sparse), Self::Dense(dense)) => {
                Self::Dense(sparse.add_to(dense, memory))
            }
        }
    }
}

impl BlockSparse {
    /// Parses the bytes of [`Payload::into_bytes`].
    ///
    /// # Errors
    /// The bytes are inconsistent.
    pub fn parse(bytes: Bytes) -> Result<Self, PayloadError> {
        let too_short = PayloadError::Bitmap { bytes: bytes.len() };
        let (rest, count) = bytes.split_last_chunk::<4>().ok_or(too_short)?;
        let elements = u32::from_le_bytes(*count) as usize;
        let blocks = elements.div_ceil(SPARSE_BLOCK_ELEMENTS);
        let at = rest.len().checked_sub(blocks.div_ceil(8)).ok_or(too_short)?;
        let (numbers, bitmap) = rest.split_at(at);
        if (blocks..8 * bitmap.len()).any(|block| is_set(bitmap, block)) {
            return Err(PayloadError::BlockBeyondEnd { elements });
        }
        let kept: usize = bitmap.iter().map(|set| set.count_ones() as usize).sum();
        let last_is_kept = blocks.checked_sub(1).is_some_and(|last| is_set(bitmap, last));
        let missing = if last_is_kept { blocks * SPARSE_BLOCK_BYTES - 4 * elements } else { 0 };
        let want = kept * SPARSE_BLOCK_BYTES - missing;
        if numbers.len() != want {
            return Err(PayloadError::BlockBytes { got: numbers.len(), want });
        }
        Ok(Self { elements, bytes })
    }

    /// Returns the bytes of the stored blocks and the bitmap.
    fn bitmap_and_blocks(&self) -> (&[u8], &[u8]) {
        let bitmap = self.elements.div_ceil(SPARSE_BLOCK_ELEMENTS).div_ceil(8);
        let end = self.bytes.len().saturating_sub(4);
        self.bytes.get(..end).unwrap_or_default().split_at(end.saturating_sub(bitmap))
    }

    /// Returns every block in order, `None` for an omitted one.
    fn stored_blocks(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let (mut numbers, bitmap) = self.bitmap_and_blocks();
        let bits = bitmap.iter().flat_map(|set| (0..8).map(move |at| set >> at & 1 == 1));
        bits.take(self.elements.div_ceil(SPARSE_BLOCK_ELEMENTS)).map(move |kept| {
            kept.then(|| {
                let (block, rest) = numbers.split_at(numbers.len().min(SPARSE_BLOCK_BYTES));
                numbers = rest;
                block
            })
        })
    }

    /// Returns every block in order: [`SPARSE_BLOCK_ELEMENTS`] f32 little-endian, the remainder in the last block;
    /// zeros for an omitted one.
    pub fn blocks(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = 4 * self.elements;
        self.stored_blocks().map(move |block| {
            let length = left.min(SPARSE_BLOCK_BYTES);
            left -= length;
            block.unwrap_or(&ZEROS[..length])
        })
    }

    /// Returns `dense + self`; addition commutes, so this is also `self + dense`.
    fn add_to(&self, dense: Bytes, memory: &dyn PayloadMemory) -> Bytes {
        match dense.try_into_mut() {
            Ok(mut sum) => {
                sum.chunks_mut(SPARSE_BLOCK_BYTES).zip(self.blocks()).for_each(|(sum, block)| add_into(sum, block));
                sum.freeze()
            }
            Err(dense) => memory.create(dense.len(), &mut |out| {
                put_sums(dense.chunks(SPARSE_BLOCK_BYTES).zip(self.blocks()), out);
            }),
        }
    }

    /// Adds two sparse sums; the result is sparse if it is mostly zero.
    fn join(&self, right: &Self, memory: &dyn PayloadMemory) -> Payload {
        let blocks = self.elements.div_ceil(SPARSE_BLOCK_ELEMENTS);
        let (left_bitmap, right_bitmap) = (self.bitmap_and_blocks().1, right.bitmap_and_blocks().1);
        let union: Vec<u8> = left_bitmap.iter().zip(right_bitmap).map(|(left, right)| left | right).collect();
        let kept: usize = union.iter().map(|set| set.count_ones() as usize).sum();
        if 2 * kept > blocks {
            let sum = memory.create(4 * self.elements, &mut |out| put_sums(self.blocks().zip(right.blocks()), out));
            return Payload::Dense(sum);
        }
        let bytes = memory.create(kept * SPARSE_BLOCK_BYTES + union.len() + COUNT_BYTES, &mut |out| {
            let both = self.stored_blocks().zip(right.stored_blocks()).zip(self.blocks().zip(right.blocks()));
            let kept = both.filter(|((left, right), _)| left.is_some() || right.is_some());
            put_sums(kept.map(|(_, blocks)| blocks), out);
            out.put(&union);
            out.put(&(self.elements as u32).to_le_bytes());
        });
        Payload::Sparse(Self { elements: self.elements, bytes })
    }
}

/// Writes a partial sum; returns whether it is written in the sparse form, see [`Payload::from_sum`].
fn write_sum(sum: &[f32], out: &mut dyn PayloadWriter) -> bool {
    let blocks = sum.len().div_ceil(SPARSE_BLOCK_ELEMENTS);
    let (mut kept, mut bitmap) = (0, Vec::with_capacity(blocks.div_ceil(8)));
    for (group, part) in sum.chunks(BITMAP_BYTE_ELEMENTS).enumerate() {
        let set = part
            .chunks(SPARSE_BLOCK_ELEMENTS)
            .enumerate()
            .fold(0u8, |set, (at, block)| set | u8::from(!is_zero(block)) << at);
        if set.count_ones() as usize == part.len().div_ceil(SPARSE_BLOCK_ELEMENTS) {
            out.put_f32(part);
        } else {
            let blocks = part.chunks(SPARSE_BLOCK_ELEMENTS).enumerate().filter(|(at, _)| set >> at & 1 == 1);
            blocks.for_each(|(_, block)| out.put_f32(block));
        }
        bitmap.push(set);
        kept += set.count_ones() as usize;
        if 2 * kept > blocks {
            let mut written = BITMAP_BYTE_ELEMENTS * group + part.len();
            if out.written() != 4 * written {
                out.clear();
                written = 0;
            }
            out.put_f32(&sum[written..]);
            return false;
        }
    }
    out.put(&bitmap);
    out.put(&(sum.len() as u32).to_le_bytes());
    true
}

/// Returns `left + right`.
fn join_dense(left: Bytes, right: &Bytes, memory: &dyn PayloadMemory) -> Bytes {
    match left.try_into_mut() {
        Ok(mut sum) => {
            add_into(&mut sum, right);
            sum.freeze()
        }
        Err(left) => memory.create(left.len().min(right.len()), &mut |out| {
            put_sums(left.chunks(BITMAP_BYTE_DATA_BYTES).zip(right.chunks(BITMAP_BYTE_DATA_BYTES)), out);
        }),
    }
}

/// Appends the sum of each pair of parts, of at most [`BITMAP_BYTE_DATA_BYTES`] bytes.
fn put_sums<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>, out: &mut dyn PayloadWriter) {
    let mut buffer = [0; BITMAP_BYTE_DATA_BYTES];
    for (left, right) in pairs {
        let (words, _) = buffer.as_chunks_mut::<4>();
        let (left, right) = (left.as_chunks::<4>().0, right.as_chunks::<4>().0);
        for (word, (left, right)) in words.iter_mut().zip(left.iter().zip(right)) {
            *word = add(*left, *right);
        }
        out.put(&buffer[..4 * left.len().min(right.len()).min(BITMAP_BYTE_ELEMENTS)]);
    }
}

fn is_set(bitmap: &[u8], block: usize) -> bool {
    bitmap.get(block / 8).is_some_and(|set| set >> (block % 8) & 1 == 1)
}

/// Returns whether all bits of a block are zero. Most non-zero blocks begin with a non-zero element.
fn is_zero(block: &[f32]) -> bool {
    let bits = |all: u32, x: &f32| all | x.to_bits();
    block.first().is_none_or(|x| x.to_bits() == 0) && block.iter().fold(0, bits) == 0
}

/// `left += right`, f32 little-endian.
fn add_into(left: &mut [u8], right: &[u8]) {
    let (left, _) = left.as_chunks_mut::<4>();
    let (right, _) = right.as_chunks::<4>();
    for (left, right) in left.iter_mut().zip(right) {
        *left = add(*left, *right);
    }
}

/// Returns `left + right`, f32 little-endian.
#[inline(always)]
fn add(left: [u8; 4], right: [u8; 4]) -> [u8; 4] {
    (f32::from_le_bytes(left) + f32::from_le_bytes(right)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use millrace_emulator::numerics::random::hash64;

    use super::*;
    use crate::payload_memory::HeapMemory;

    /// Sums of zero, one and many blocks, complete and partial.
    const LENGTHS: [usize; 9] = [
        0,
        1,
        SPARSE_BLOCK_ELEMENTS - 1,
        SPARSE_BLOCK_ELEMENTS,
        SPARSE_BLOCK_ELEMENTS + 1,
        BITMAP_BYTE_ELEMENTS,
        BITMAP_BYTE_ELEMENTS + 7,
        3 * BITMAP_BYTE_ELEMENTS - SPARSE_BLOCK_ELEMENTS,
        5 * BITMAP_BYTE_ELEMENTS + 63,
    ];
    /// Values that arithmetic treats specially.
    const SPECIAL: [f32; 6] = [0.0, -0.0, f32::from_bits(1), -f32::MIN_POSITIVE / 2.0, f32::NAN, -1.0];

    /// A sum in which `filled` percent of the blocks have a non-zero value, including special ones.
    fn sum(key: u64, length: usize, filled: u64) -> Vec<f32> {
        let number = |element: usize| {
            let hash = hash64(key, element as u64);
            let empty = hash64(!key, (element / SPARSE_BLOCK_ELEMENTS) as u64) % 100 >= filled;
            match hash % 8 {
                _ if empty => 0.0,
                0..6 => SPECIAL[hash as usize % 8],
                _ => (hash >> 40) as f32 - 8e6,
            }
        };
        (0..length).map(number).collect()
    }

    fn dense(sum: &[f32]) -> Payload {
        Payload::Dense(sum.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// Returns all elements of a payload, as bytes.
    fn expand(payload: &Payload) -> Vec<u8> {
        match payload {
            Payload::Dense(bytes) => bytes.to_vec(),
            Payload::Sparse(sparse) => sparse.blocks().flatten().copied().collect(),
        }
    }

    #[test]
    fn partial_sum_round_trips_and_is_sparse_when_mostly_zero() {
        let mut sparse = 0;
        for (length, filled) in
            LENGTHS.iter().flat_map(|length| [0, 5, 30, 49, 60, 100].map(|filled| (*length, filled)))
        {
            let sum = sum(filled, length, filled);
            let payload = Payload::from_sum(&sum, &HeapMemory);
            assert_eq!(expand(&payload), expand(&dense(&sum)), "{length} numbers, {filled}% of the blocks");
            assert!(payload.has_elements(length) && !payload.has_elements(length + 1));
            let kept = sum.chunks(SPARSE_BLOCK_ELEMENTS).filter(|block| block.iter().any(|x| x.to_bits() != 0)).count();
            assert_eq!(matches!(payload, Payload::Sparse(_)), 2 * kept <= length.div_ceil(SPARSE_BLOCK_ELEMENTS));
            if let Payload::Sparse(before) = &payload {
                sparse += 1;
                assert_eq!(BlockSparse::parse(payload.clone().into_bytes()).as_ref(), Ok(before));
                assert!(before.bytes.len() <= 2 * length + SPARSE_BLOCK_BYTES + length / BITMAP_BYTE_ELEMENTS + 5);
            }
        }
        assert!((LENGTHS.len()..5 * LENGTHS.len()).contains(&sparse), "{sparse} sums were sparse");
    }

    #[test]
    fn joining_is_bit_identical_to_dense_addition() {
        let mut forms = [0; 4];
        for (seed, length) in (0..8).flat_map(|seed| LENGTHS.map(|length| (seed, length))) {
            for (left, right) in [(4, 4), (40, 40), (4, 100), (100, 4), (100, 100)] {
                let [left, right] = [sum(2 * seed, length, left), sum(2 * seed + 1, length, right)];
                let [sparse_left, sparse_right] = [&left, &right].map(|sum| Payload::from_sum(sum, &HeapMemory));
                let both_sparse = matches!((&sparse_left, &sparse_right), (Payload::Sparse(_), Payload::Sparse(_)));
                let joined = sparse_left.join(sparse_right, &HeapMemory);
                assert_eq!(
                    expand(&joined),
                    expand(&dense(&left).join(dense(&right), &HeapMemory)),
                    "seed {seed}, {length} numbers"
                );
                let still_sparse = matches!(joined, Payload::Sparse(_));
                forms[2 * usize::from(both_sparse) + usize::from(still_sparse)] += 1;
                if let Payload::Sparse(sum) = joined {
                    assert_eq!(BlockSparse::parse(sum.bytes.clone()), Ok(sum));
                }
            }
        }
        // Dense sums stay dense; sparse ones may become dense.
        assert!(forms[0] > 0 && forms[1] == 0 && forms[2] > 0 && forms[3] > 0, "{forms:?}");
    }

    #[test]
    fn inconsistent_bytes_are_rejected() {
        let length = BITMAP_BYTE_ELEMENTS + SPARSE_BLOCK_ELEMENTS + 5;
        let mut numbers = vec![0.0; length];
        (numbers[0], numbers[length - 1]) = (1.0, 2.0);
        let good = Payload::from_sum(&numbers, &HeapMemory).into_bytes();
        let parse = |bytes: &[u8]| BlockSparse::parse(Bytes::copy_from_slice(bytes));
        assert!(parse(&good).is_ok());
        for too_short in 0..good.len() {
            assert!(parse(&good[..too_short]).is_err(), "too_short to {too_short} bytes");
            assert!(parse(&good[good.len() - too_short..]).is_err(), "the last {too_short} bytes");
        }
        let (bitmap, count) = (good.len() - 6, good.len() - 4);
        let with = |at: usize, value: u8| {
            let mut bytes = good.to_vec();
            bytes[at] = value;
            parse(&bytes).err()
        };
        let want = SPARSE_BLOCK_BYTES + 20;
        assert_eq!(with(bitmap, 0), Some(PayloadError::BlockBytes { got: want, want: 20 }));
        assert_eq!(with(bitmap + 1, 1), Some(PayloadError::BlockBytes { got: want, want: 2 * SPARSE_BLOCK_BYTES }));
        assert_eq!(with(bitmap + 1, 4 | 2), Some(PayloadError::BlockBeyondEnd { elements: length }));
        assert_eq!(
            with(count, 4 + SPARSE_BLOCK_ELEMENTS as u8),
            Some(PayloadError::BlockBytes { got: want, want: want - 4 })
        );
        assert_eq!(with(count + 3, 0xff), Some(PayloadError::Bitmap { bytes: good.len() }));
        // Inconsistencies that are detected too late would panic here.
        for (at, value) in (0..good.len()).flat_map(|at| (0..=255).map(move |value| (at, value))) {
            let mut bytes = good.to_vec();
            bytes[at] = value;
            if let Ok(sum) = parse(&bytes) {
                assert_eq!(sum.blocks().map(<[u8]>::len).sum::<usize>(), 4 * sum.elements);
            }
        }
    }
}
