//! The files of the repository.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::generate::is_generated;

/// Directories that hold no sources: what Cargo, Python and runs of the product write.
const SKIPPED_DIRS: [&str; 4] = ["target", "model_dir", "__pycache__", "node_modules"];
/// The only directories with a leading dot that are read.
const READ_DOT_DIRS: [&str; 3] = [".cargo", ".ci", ".github"];

/// Returns the root of the repository: that of the checkout in which Cargo runs this program, which another one with
/// the same build directory may have compiled.
pub fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let package = Path::new(&package);
    package.parent().unwrap_or(package).to_owned()
}

/// Returns every file of the repository, relative to its root and in order. Links are left out.
pub fn files() -> Result<Vec<PathBuf>> {
    let root = root();
    let mut files = Vec::new();
    let mut dirs = vec![root.clone()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))? {
            let entry = entry?;
            let (kind, name) = (entry.file_type()?, entry.file_name().to_string_lossy().into_owned());
            if kind.is_dir() && is_read(&name) {
                dirs.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path().strip_prefix(&root)?.to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Returns every Rust file that people write, relative to the root and in order.
pub fn rust_sources() -> Result<Vec<PathBuf>> {
    let is_source = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "rs") && !is_generated(file);
    Ok(files()?.into_iter().filter(is_source).collect())
}

fn is_read(dir: &str) -> bool {
    READ_DOT_DIRS.contains(&dir) || !(dir.starts_with('.') || SKIPPED_DIRS.contains(&dir))
}

/// Returns the text of a file, given relative to the root; `None` if it is not UTF-8.
pub fn text(file: &Path) -> Result<Option<String>> {
    let bytes = std::fs::read(root().join(file)).with_context(|| format!("read {}", file.display()))?;
    Ok(String::from_utf8(bytes).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_include_workflows_and_no_links_or_build_outputs() {
        let files = files().unwrap();
        for file in ["xtask/src/repository.rs", ".github/workflows/ci.yaml", "crds/trainjobs.millrace.dev.yaml"] {
            assert!(files.contains(&PathBuf::from(file)), "{file}");
        }
        assert!(!files.iter().any(|file| file.starts_with("target") || file.starts_with(".git/objects")));
        assert!(!files.contains(&PathBuf::from("charts/millrace/files/trainjobs.millrace.dev.yaml")));
    }
}
