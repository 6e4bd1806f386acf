//! Compiles `proto/` without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let services = ["agent", "files", "journal"].map(|name| format!("proto/millrace/v1/{name}.proto"));
    let files = protox::compile(services, ["proto"])?;
    // `Bytes` fields share the buffer they were received in.
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
