//! Writes the definitions of the custom resources as YAML: `cargo xtask generate`.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for definition in millrace_crds::definitions().into_iter().chain(millrace_crds::internal_definitions()) {
        let name = definition.metadata.name.as_deref().unwrap_or_default();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.yaml"));
        std::fs::write(&path, serde_saphyr::to_string(&definition)?)?;
        println!("{}", path.display());
    }
    Ok(())
}
