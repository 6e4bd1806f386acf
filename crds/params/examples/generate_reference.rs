//! Writes `docs/reference/params.md` and `docs/reference/params.schema.json`. `cargo xtask generate` runs it.

use std::path::Path;

use millrace_params::reference;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    std::fs::create_dir_all(&folder)?;
    for (name, text) in
        [("params.md", reference::to_markdown()), ("params.schema.json", format!("{:#}\n", reference::editor_schema()))]
    {
        let path = folder.join(name);
        std::fs::write(&path, text)?;
        println!("{}", path.display());
    }
    Ok(())
}
