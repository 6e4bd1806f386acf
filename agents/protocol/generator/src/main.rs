//! Generates the Rust code of the gRPC services from `agents/protocol/proto`.
//!
//! ```text
//! proto/millrace/v1/*.proto ──► millrace-protocol-generator ──► agents/protocol/src/proto.rs
//! ```
//!
//! `cargo xtask generate` runs this program. The generated code is in the repository, because the compiler of proto
//! files and its dependencies take as long to build as everything else that a first `cargo run` needs of gRPC. This
//! package does not depend on millrace-protocol, so it runs while code uses a field that is not generated yet.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::{Context, Result};

const PROTO_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../proto");
const GENERATED_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/proto.rs");
const SERVICES: [&str; 4] = ["agent", "blobs", "files", "journal"];
/// Generated code is exempt from the rules of the code that people write.
const HEADER: &str = "// Generated from proto/ by `cargo xtask generate`. Do not edit.\n";

fn main() -> Result<()> {
    std::fs::write(GENERATED_FILE, generate()?).with_context(|| format!("write {GENERATED_FILE}"))
}

/// Returns the code of all services and messages.
fn generate() -> Result<String> {
    let services = SERVICES.map(|name| format!("{PROTO_DIR}/millrace/v1/{name}.proto"));
    let descriptors = protox::compile(services, [PROTO_DIR])?;
    let dir = tempfile::tempdir().context("create a temporary directory")?;
    // `Bytes` fields share the buffer they were received in.
    tonic_prost_build::configure().bytes(".").out_dir(dir.path()).compile_fds(descriptors)?;
    let file = Path::new("millrace.v1.rs");
    let code = std::fs::read_to_string(dir.path().join(file)).context("read the generated code")?;
    Ok(format!("{HEADER}{code}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_code_is_up_to_date() {
        let file = std::fs::read_to_string(GENERATED_FILE).unwrap();
        assert!(file == generate().unwrap(), "agents/protocol/src/proto.rs is stale: run `cargo xtask generate`");
    }
}
