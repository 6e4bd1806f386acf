//! What a frame carries: numbers, or a partial sum without its zeros.
//!
//! The gradient of an embedding's lookup has a row for each word of the vocabulary, of which a leaf's tokens touch few.
//! Such a sum is cut into spans of [`SPAN`] numbers, and one that is mostly zero travels as the spans that are not and a
//! bitmap that says which. Nothing is rounded or forgotten: a span is left out only where every bit of it is zero (-0.0
//! is kept), and whatever is added to one that was left out is added to +0.0, since the thread's arithmetic may change
//! what it is added to (-0.0, denormals, signalling NaNs).
//!
//! Invariant: sums of sparse payloads have the bits of the sums of the dense ones.

use bytes::{Bytes, BytesMut};

/// Numbers of a span; the last of a sum may have fewer.
pub const SPAN: usize = 64;
const SPAN_BYTES: usize = 4 * SPAN;
/// The spans that one byte of the bitmap speaks of, in numbers and bytes.
const OCTET: usize = 8 * SPAN;
const OCTET_BYTES: usize = 4 * OCTET;
static ZEROS: [u8; SPAN_BYTES] = [0; SPAN_BYTES];

/// The numbers of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// All of them, little-endian: weights as the plan encodes them, a partial sum in f32.
    Dense(Bytes),
    /// A partial sum without its spans of zeros.
    Sparse(Sparse),
}

/// A partial sum as it travels without its spans of zeros.
///
/// The bytes are: the other spans in order, f32 little-endian; a bitmap with one bit a span, from the lowest bit of the
/// first byte on, set where the span is there; the number of elements, u32 little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sparse {
    elements: usize,
    bytes: Bytes,
}

/// Bytes that are no sparse sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Too short for the bitmap of as many numbers as it claims to have.
    #[error("{bytes} bytes have no room for the bitmap of a sparse sum")]
    Bitmap {
        /// Bytes of the payload.
        bytes: usize,
    },
    /// A bit of a span that doesn't exist.
    #[error("a sparse sum of {elements} numbers has a span behind its end")]
    Beyond {
        /// Elements it claims to have.
        elements: usize,
    },
    /// The spans are not as long as the bitmap says.
    #[error("a sparse sum has {got} bytes of spans, its bitmap says {want}")]
    Spans {
        /// Bytes there.
        got: usize,
        /// Bytes by the bitmap.
        want: usize,
    },
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::Dense(bytes)
    }
}

impl Payload {
    /// The payload of a partial sum: sparse where at most half of its spans have a number that is not +0.0.
    ///
    /// Reads `sum` once: as long as no span is left out, what was written is the dense payload's beginning, and a sum that
    /// turns out not to be mostly zero late is written again from its start.
    pub fn of_sum(sum: &[f32]) -> Self {
        let spans = sum.len().div_ceil(SPAN);
        let (mut kept, mut bitmap) = (0, Vec::with_capacity(spans.div_ceil(8)));
        let (mut out, mut buffer) = (Vec::with_capacity(4 * sum.len()), [0; OCTET_BYTES]);
        for (octet, part) in sum.chunks(OCTET).enumerate() {
            let set = part.chunks(SPAN).enumerate().fold(0u8, |set, (at, span)| set | u8::from(!is_zero(span)) << at);
            if set.count_ones() as usize == part.len().div_ceil(SPAN) {
                write(part, &mut buffer, &mut out);
            } else {
                let spans = part.chunks(SPAN).enumerate().filter(|(at, _)| set >> at & 1 == 1);
                spans.for_each(|(_, span)| write(span, &mut buffer, &mut out));
            }
            bitmap.push(set);
            kept += set.count_ones() as usize;
            if 2 * kept > spans {
                let mut written = OCTET * octet + part.len();
                if out.len() != 4 * written {
                    out.clear();
                    written = 0;
                }
                sum[written..].chunks(OCTET).for_each(|part| write(part, &mut buffer, &mut out));
                return Self::Dense(out.into());
            }
        }
        out.extend_from_slice(&bitmap);
        out.extend_from_slice(&(sum.len() as u32).to_le_bytes());
        out.shrink_to_fit();
        Self::Sparse(Sparse { elements: sum.len(), bytes: out.into() })
    }

    /// The bytes that travel.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Dense(bytes) | Self::Sparse(Sparse { bytes, .. }) => bytes,
        }
    }

    /// Whether this is a partial sum of so many numbers.
    pub fn is_sum_of(&self, elements: usize) -> bool {
        match self {
            Self::Dense(bytes) => bytes.len() == 4 * elements,
            Self::Sparse(sparse) => sparse.elements == elements,
        }
    }

    /// `self + right` of two partial sums of as many numbers, element by element; of different numbers the shorter sum
    /// (callers have compared them with [`Payload::is_sum_of`]).
    #[must_use]
    pub fn join(self, right: Self) -> Self {
        match (self, right) {
            (Self::Sparse(left), Self::Sparse(right)) => left.join(&right),
            (Self::Dense(left), Self::Dense(right)) => {
                let mut sum = to_mut(left);
                add_into(&mut sum, &right);
                Self::Dense(sum.freeze())
            }
            (Self::Dense(dense), Self::Sparse(sparse)) | (Self::Sparse(sparse), Self::Dense(dense)) => {
                let mut sum = to_mut(dense);
                sparse.add_to(&mut sum);
                Self::Dense(sum.freeze())
            }
        }
    }
}

impl Sparse {
    /// A sparse sum out of the bytes of [`Payload::into_bytes`].
    ///
    /// # Errors
    /// The bytes contradict each other.
    pub fn parse(bytes: Bytes) -> Result<Self, PayloadError> {
        let cut = PayloadError::Bitmap { bytes: bytes.len() };
        let (rest, count) = bytes.split_last_chunk::<4>().ok_or(cut)?;
        let elements = u32::from_le_bytes(*count) as usize;
        let spans = elements.div_ceil(SPAN);
        let at = rest.len().checked_sub(spans.div_ceil(8)).ok_or(cut)?;
        let (numbers, bitmap) = rest.split_at(at);
        if (spans..8 * bitmap.len()).any(|span| is_set(bitmap, span)) {
            return Err(PayloadError::Beyond { elements });
        }
        let kept: usize = bitmap.iter().map(|set| set.count_ones() as usize).sum();
        let last_is_kept = spans.checked_sub(1).is_some_and(|last| is_set(bitmap, last));
        let missing = if last_is_kept { spans * SPAN_BYTES - 4 * elements } else { 0 };
        let want = kept * SPAN_BYTES - missing;
        if numbers.len() != want {
            return Err(PayloadError::Spans { got: numbers.len(), want });
        }
        Ok(Self { elements, bytes })
    }

    /// The spans that are kept, one after the other, and the bitmap.
    fn parts(&self) -> (&[u8], &[u8]) {
        let bitmap = self.elements.div_ceil(SPAN).div_ceil(8);
        let end = self.bytes.len().saturating_sub(4);
        self.bytes.get(..end).unwrap_or_default().split_at(end.saturating_sub(bitmap))
    }

    /// Every span in order, `None` for one that was left out.
    fn kept(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let (mut numbers, bitmap) = self.parts();
        let bits = bitmap.iter().flat_map(|set| (0..8).map(move |at| set >> at & 1 == 1));
        bits.take(self.elements.div_ceil(SPAN)).map(move |kept| {
            kept.then(|| {
                let (span, rest) = numbers.split_at(numbers.len().min(SPAN_BYTES));
                numbers = rest;
                span
            })
        })
    }

    /// Every span in order, [`SPAN`] f32 little-endian and in the last what is left; zeros for one that was left out.
    pub fn spans(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = 4 * self.elements;
        self.kept().map(move |span| {
            let length = left.min(SPAN_BYTES);
            left -= length;
            span.unwrap_or(&ZEROS[..length])
        })
    }

    /// `dense += self`; addition commutes, so this is also `self + dense`.
    fn add_to(&self, dense: &mut [u8]) {
        dense.chunks_mut(SPAN_BYTES).zip(self.spans()).for_each(|(dense, span)| add_into(dense, span));
    }

    /// `self + right`, sparse where that is mostly zero.
    fn join(&self, right: &Self) -> Payload {
        let spans = self.elements.div_ceil(SPAN);
        let union = self.parts().1.iter().zip(right.parts().1).map(|(left, right)| left | right);
        let kept: usize = union.clone().map(|set| set.count_ones() as usize).sum();
        if 2 * kept > spans {
            let mut sum = BytesMut::with_capacity(4 * self.elements);
            self.spans().for_each(|span| sum.extend_from_slice(span));
            right.add_to(&mut sum);
            return Payload::Dense(sum.freeze());
        }
        let mut sum = BytesMut::with_capacity(kept * SPAN_BYTES + spans.div_ceil(8) + 4);
        let both = self.kept().zip(right.kept()).zip(self.spans().zip(right.spans()));
        for ((left_kept, right_kept), (left, right)) in both {
            if left_kept.is_some() || right_kept.is_some() {
                let at = sum.len();
                sum.extend_from_slice(left);
                add_into(&mut sum[at..], right);
            }
        }
        sum.extend(union);
        sum.extend_from_slice(&(self.elements as u32).to_le_bytes());
        Payload::Sparse(Self { elements: self.elements, bytes: sum.freeze() })
    }
}

fn is_set(bitmap: &[u8], span: usize) -> bool {
    bitmap.get(span / 8).is_some_and(|set| set >> (span % 8) & 1 == 1)
}

/// Whether all bits of a span are zero. Most spans that have other numbers begin with one.
fn is_zero(span: &[f32]) -> bool {
    let bits = |all: u32, x: &f32| all | x.to_bits();
    span.first().is_none_or(|x| x.to_bits() == 0) && span.iter().fold(0, bits) == 0
}

/// Appends at most an octet of spans, by way of `buffer`: fresh memory is written once, never zeroed before.
fn write(numbers: &[f32], buffer: &mut [u8; OCTET_BYTES], out: &mut Vec<u8>) {
    let (words, _) = buffer.as_chunks_mut::<4>();
    words.iter_mut().zip(numbers).for_each(|(word, x)| *word = x.to_le_bytes());
    out.extend_from_slice(&buffer[..4 * numbers.len().min(OCTET)]);
}

fn to_mut(bytes: Bytes) -> BytesMut {
    bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]))
}

/// `left += right`, f32 little-endian.
fn add_into(left: &mut [u8], right: &[u8]) {
    let (left, _) = left.as_chunks_mut::<4>();
    let (right, _) = right.as_chunks::<4>();
    for (left, right) in left.iter_mut().zip(right) {
        *left = (f32::from_le_bytes(*left) + f32::from_le_bytes(*right)).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use millrace_emulator::numerics::random::hash64;

    use super::*;

    /// Sums of none, one and many spans, whole and not.
    const LENGTHS: [usize; 9] = [0, 1, SPAN - 1, SPAN, SPAN + 1, OCTET, OCTET + 7, 3 * OCTET - SPAN, 5 * OCTET + 63];
    /// What arithmetic treats in its own way.
    const SPECIAL: [f32; 6] = [0.0, -0.0, f32::from_bits(1), -f32::MIN_POSITIVE / 2.0, f32::NAN, -1.0];

    /// A sum in which of a hundred spans so many have a number, special ones among them.
    fn sum(key: u64, length: usize, filled: u64) -> Vec<f32> {
        let number = |element: usize| {
            let hash = hash64(key, element as u64);
            let empty = hash64(!key, (element / SPAN) as u64) % 100 >= filled;
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

    /// All the numbers of a payload, as bytes.
    fn expand(payload: &Payload) -> Vec<u8> {
        match payload {
            Payload::Dense(bytes) => bytes.to_vec(),
            Payload::Sparse(sparse) => sparse.spans().flatten().copied().collect(),
        }
    }

    #[test]
    fn a_sum_survives_its_wire_form_and_is_sparse_when_mostly_zero() {
        let mut sparse = 0;
        for (length, filled) in
            LENGTHS.iter().flat_map(|length| [0, 5, 30, 49, 60, 100].map(|filled| (*length, filled)))
        {
            let sum = sum(filled, length, filled);
            let payload = Payload::of_sum(&sum);
            assert_eq!(expand(&payload), expand(&dense(&sum)), "{length} numbers, {filled}% of the spans");
            assert!(payload.is_sum_of(length) && !payload.is_sum_of(length + 1));
            let kept = sum.chunks(SPAN).filter(|span| span.iter().any(|x| x.to_bits() != 0)).count();
            assert_eq!(matches!(payload, Payload::Sparse(_)), 2 * kept <= length.div_ceil(SPAN));
            if let Payload::Sparse(before) = &payload {
                sparse += 1;
                assert_eq!(Sparse::parse(payload.clone().into_bytes()).as_ref(), Ok(before));
                assert!(before.bytes.len() <= 2 * length + SPAN_BYTES + length / OCTET + 5);
            }
        }
        assert!((LENGTHS.len()..5 * LENGTHS.len()).contains(&sparse), "{sparse} sums were sparse");
    }

    #[test]
    fn joining_has_the_bits_of_dense_addition_whatever_the_forms() {
        let mut forms = [0; 4];
        for (seed, length) in (0..8).flat_map(|seed| LENGTHS.map(|length| (seed, length))) {
            for (left, right) in [(4, 4), (40, 40), (4, 100), (100, 4), (100, 100)] {
                let [left, right] = [sum(2 * seed, length, left), sum(2 * seed + 1, length, right)];
                let [sparse_left, sparse_right] = [&left, &right].map(|sum| Payload::of_sum(sum));
                let both_sparse = matches!((&sparse_left, &sparse_right), (Payload::Sparse(_), Payload::Sparse(_)));
                let joined = sparse_left.join(sparse_right);
                assert_eq!(expand(&joined), expand(&dense(&left).join(dense(&right))), "seed {seed}, {length} numbers");
                let still_sparse = matches!(joined, Payload::Sparse(_));
                forms[2 * usize::from(both_sparse) + usize::from(still_sparse)] += 1;
                if let Payload::Sparse(sum) = joined {
                    assert_eq!(Sparse::parse(sum.bytes.clone()), Ok(sum));
                }
            }
        }
        // Dense ones stay dense; sparse ones stay so or do not.
        assert!(forms[0] > 0 && forms[1] == 0 && forms[2] > 0 && forms[3] > 0, "{forms:?}");
    }

    #[test]
    fn bytes_that_contradict_each_other_are_refused() {
        let length = OCTET + SPAN + 5;
        let mut numbers = vec![0.0; length];
        (numbers[0], numbers[length - 1]) = (1.0, 2.0);
        let good = Payload::of_sum(&numbers).into_bytes();
        let parse = |bytes: &[u8]| Sparse::parse(Bytes::copy_from_slice(bytes));
        assert!(parse(&good).is_ok());
        for cut in 0..good.len() {
            assert!(parse(&good[..cut]).is_err(), "cut to {cut} bytes");
            assert!(parse(&good[good.len() - cut..]).is_err(), "the last {cut} bytes");
        }
        let (bitmap, count) = (good.len() - 6, good.len() - 4);
        let with = |at: usize, value: u8| {
            let mut bytes = good.to_vec();
            bytes[at] = value;
            parse(&bytes).err()
        };
        let want = SPAN_BYTES + 20;
        assert_eq!(with(bitmap, 0), Some(PayloadError::Spans { got: want, want: 20 }));
        assert_eq!(with(bitmap + 1, 1), Some(PayloadError::Spans { got: want, want: 2 * SPAN_BYTES }));
        assert_eq!(with(bitmap + 1, 4 | 2), Some(PayloadError::Beyond { elements: length }));
        assert_eq!(with(count, 4 + SPAN as u8), Some(PayloadError::Spans { got: want, want: want - 4 }));
        assert_eq!(with(count + 3, 0xff), Some(PayloadError::Bitmap { bytes: good.len() }));
        // Any lie that is noticed too late would panic here.
        for (at, value) in (0..good.len()).flat_map(|at| (0..=255).map(move |value| (at, value))) {
            let mut bytes = good.to_vec();
            bytes[at] = value;
            if let Ok(sum) = parse(&bytes) {
                assert_eq!(sum.spans().map(<[u8]>::len).sum::<usize>(), 4 * sum.elements);
            }
        }
    }
}
