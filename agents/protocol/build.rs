//! Compiles `proto/` without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["proto/millrace/v1/agent.proto", "proto/millrace/v1/journal.proto"], ["proto"])?;
    // `Bytes` fields share the buffer they were received in.
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
