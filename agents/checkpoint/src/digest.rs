//! blake3 digests of chunks and of checkpoints.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::{Error, Result};
use crate::files::to_le_bytes;
use crate::layout::{Layout, Moments};
use crate::section::Section;

/// A blake3 digest, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Returns the digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Returns the digest of the little-endian bytes of `values`: the digest of a checkpoint chunk.
    pub fn of_f32(values: &[f32]) -> Self {
        let (mut hasher, mut block) = (blake3::Hasher::new(), Vec::new());
        for part in values.chunks(1 << 14) {
            to_le_bytes(part, &mut block);
            hasher.update(&block);
        }
        Self::finish(&hasher)
    }

    /// Returns the digest of concatenated digests, 32 bytes each.
    pub fn of_all(digests: impl IntoIterator<Item = Self>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for digest in digests {
            hasher.update(&digest.0);
        }
        Self::finish(&hasher)
    }

    pub(crate) fn finish(hasher: &blake3::Hasher) -> Self {
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a digest.
#[derive(Clone, Debug, thiserror::Error)]
#[error("a digest has 64 hexadecimal digits")]
pub struct InvalidDigest(#[from] blake3::HexError);

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let hash = blake3::Hash::from_hex(text)?;
        Ok(Self(*hash.as_bytes()))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// The digests of a checkpoint's chunks, collected from the reports of the shards.
#[derive(Clone, Debug)]
pub struct CheckpointDigests {
    /// `[section][chunk]`, the parameters first.
    sections: Vec<Vec<Option<Digest>>>,
}

impl CheckpointDigests {
    /// Creates an empty table for the chunks of `layout` and their `moments`.
    pub fn new(layout: &Layout, moments: &Moments) -> Self {
        Self { sections: vec![vec![None; layout.chunks().len()]; 1 + moments.len()] }
    }

    /// Records the digest of one chunk. Recording the same digest again has no effect.
    ///
    /// # Errors
    /// There is no such chunk or section, or another digest is recorded for it.
    pub fn set(&mut self, section: Section, chunk: usize, digest: Digest) -> Result<()> {
        let slot = self.sections.get_mut(section.index()).and_then(|chunks| chunks.get_mut(chunk));
        let Some(slot) = slot else {
            return Err(Error::argument(format!("{section} of chunk {chunk}")));
        };
        if slot.is_some_and(|present| present != digest) {
            return Err(Error::argument(format!("two different digests for {section} of chunk {chunk}")));
        }
        *slot = Some(digest);
        Ok(())
    }

    /// Returns the first chunk without a digest.
    pub fn missing(&self) -> Option<(Section, usize)> {
        self.sections.iter().enumerate().find_map(|(section, chunks)| {
            let chunk = chunks.iter().position(Option::is_none)?;
            Some((Section::from_index(section), chunk))
        })
    }

    /// Returns the recorded digests of a section in plan order.
    pub(crate) fn section(&self, section: Section) -> Vec<Digest> {
        self.sections.get(section.index()).into_iter().flatten().copied().flatten().collect()
    }
}

/// Returns `optimizer_blake3`: for each chunk in plan order, each moment in order. `moments` is `[moment][chunk]`.
pub(crate) fn optimizer_digest(moments: &[Vec<Digest>]) -> Digest {
    let chunks = moments.first().map_or(0, Vec::len);
    Digest::of_all((0..chunks).flat_map(|chunk| moments.iter().filter_map(move |moment| moment.get(chunk).copied())))
}
