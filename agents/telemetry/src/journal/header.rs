//! The first line of a journal's file, `{"journal":{"version":2}}`.

use serde::{Deserialize, Serialize};

/// Version of the files that this program writes, and the highest it reads.
pub const VERSION: u32 = 2;

#[derive(Serialize, Deserialize)]
struct Header {
    journal: HeaderBody,
}

#[derive(Serialize, Deserialize)]
struct HeaderBody {
    version: u32,
}

/// Returns the line, including its line feed.
pub(super) fn line() -> Vec<u8> {
    format!("{{\"journal\":{{\"version\":{VERSION}}}}}\n").into_bytes()
}

/// Returns the version that a line names; `None` for any other line.
pub(super) fn version(line: &[u8]) -> Option<u32> {
    serde_json::from_slice(line).ok().map(|Header { journal: HeaderBody { version } }| version)
}
