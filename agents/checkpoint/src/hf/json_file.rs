//! Reads JSON files of a Hugging Face directory.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::files::read_limited;

/// Maximum length of an index or configuration.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// Reads a JSON file of at most [`MAX_JSON_BYTES`] bytes.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path, hint: &str) -> Result<T> {
    let text = read_limited(path, MAX_JSON_BYTES).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::not_importable(path, "it is missing".into(), hint),
        std::io::ErrorKind::InvalidData => Error::not_importable(path, e.to_string(), hint),
        _ => Error::io("read", path, e),
    })?;
    serde_json::from_slice(&text).map_err(|e| Error::not_importable(path, e.to_string(), hint))
}
