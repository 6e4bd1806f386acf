//! Hashes of the parts of a blob from which its BLAKE3 digest follows.
//!
//! ```text
//!              digest of the blob                    a blob of 3 windows
//!             /                  \
//!        (node)                   \
//!       /      \                   \
//!  window 0   window 1   window 2 (the last one may be shorter)
//! ```
//!
//! BLAKE3 is a tree over chunks of 1 KiB. A window of [`WINDOW_BYTES`], a power of two, is a complete subtree, so its
//! node depends on its content and position only.
//!
//! * [`WindowHashes::root`] is the digest of the blob if each hash is that of the window. So each window can be
//!   verified without the others.

use blake3::hazmat::{ChainingValue, HasherExt as _, Mode, merge_subtrees_non_root, merge_subtrees_root};
use blake3::{Hash, Hasher, OUT_LEN};
use bytes::{BufMut as _, Bytes, BytesMut};

/// Length of a window, except of the last one of a blob.
pub const WINDOW_BYTES: u64 = 8 << 20;

/// Hashes of the first windows of a blob, or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowHashes(Vec<Hash>);

/// Returns the number of windows of a blob.
pub const fn window_count(blob_bytes: u64) -> u64 {
    blob_bytes.div_ceil(WINDOW_BYTES)
}

/// Returns the length of window `number` of a blob; 0 after its end.
pub const fn window_bytes(blob_bytes: u64, number: u64) -> u64 {
    let rest = blob_bytes.saturating_sub(number.saturating_mul(WINDOW_BYTES));
    if rest < WINDOW_BYTES { rest } else { WINDOW_BYTES }
}

/// Returns the hash of window `number` of a blob of `blob_bytes` bytes. `content` has the length of that window.
pub fn window_hash(blob_bytes: u64, number: u64, content: &[u8]) -> Hash {
    let mut hasher = Hasher::new();
    if window_count(blob_bytes) == 1 {
        // The only window is the root.
        return hasher.update(content).finalize();
    }
    hasher.set_input_offset(number.saturating_mul(WINDOW_BYTES));
    Hash::from_bytes(hasher.update(content).finalize_non_root())
}

impl WindowHashes {
    /// Returns the number of windows.
    pub const fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// Returns the hash of a window.
    pub fn get(&self, number: u64) -> Option<Hash> {
        self.0.get(usize::try_from(number).ok()?).copied()
    }

    /// Adds the hash of the next window.
    pub fn push(&mut self, hash: Hash) {
        self.0.push(hash);
    }

    /// Returns the digest of the blob that has these windows.
    pub fn root(&self) -> Hash {
        match self.0.as_slice() {
            [] => blake3::hash(&[]),
            [only] => *only,
            hashes => {
                let (left, right) = hashes.split_at(left_count(hashes.len()));
                merge_subtrees_root(&node(left), &node(right), Mode::Hash)
            }
        }
    }

    /// Returns the length of [`WindowHashes::encode`] for a blob.
    pub const fn encoded_bytes(blob_bytes: u64) -> u64 {
        window_count(blob_bytes) * OUT_LEN as u64
    }

    /// Returns the bytes of all hashes.
    pub fn encode(&self) -> Bytes {
        let mut encoded = BytesMut::with_capacity(self.0.len() * OUT_LEN);
        self.0.iter().for_each(|hash| encoded.put_slice(hash.as_bytes()));
        encoded.freeze()
    }

    /// Reads the hashes of all windows of a blob; `None` if these are not as many as it has windows.
    pub fn decode(encoded: &[u8], blob_bytes: u64) -> Option<Self> {
        let (hashes, rest) = encoded.as_chunks::<OUT_LEN>();
        let is_whole = rest.is_empty() && hashes.len() as u64 == window_count(blob_bytes) && blob_bytes > 0;
        is_whole.then(|| Self(hashes.iter().map(|hash| Hash::from_bytes(*hash)).collect()))
    }
}

/// Returns how many of `count` windows, at least two, are below the left child of their common node: the largest power
/// of two that is less.
const fn left_count(count: usize) -> usize {
    1 << (count - 1).ilog2()
}

/// Returns the node above windows, at least one, which are not the whole blob.
fn node(hashes: &[Hash]) -> ChainingValue {
    match hashes {
        [only] => *only.as_bytes(),
        hashes => {
            let (left, right) = hashes.split_at(left_count(hashes.len()));
            merge_subtrees_non_root(&node(left), &node(right), Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_the_digest_of_the_content() {
        let window = usize::try_from(WINDOW_BYTES).unwrap();
        for length in [1, 1025, window - 1, window, window + 1, 2 * window, 3 * window, 4 * window + 7, 5 * window] {
            let content: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let bytes = length as u64;
            let mut hashes = WindowHashes::default();
            for (number, part) in (0..).zip(content.chunks(window)) {
                assert_eq!(part.len() as u64, window_bytes(bytes, number));
                hashes.push(window_hash(bytes, number, part));
            }
            assert_eq!(hashes.count(), window_count(bytes));
            assert_eq!(hashes.root(), blake3::hash(&content), "{length} bytes");
            assert_eq!(WindowHashes::decode(&hashes.encode(), bytes), Some(hashes.clone()));
            assert_eq!(WindowHashes::decode(&hashes.encode(), bytes + WINDOW_BYTES), None);
            assert_eq!(WindowHashes::decode(&hashes.encode()[1..], bytes), None);
        }
        assert_eq!(WindowHashes::decode(&[], 0), None);
        assert_eq!((window_bytes(5, 1), window_bytes(u64::MAX, u64::MAX)), (0, 0));
    }
}
