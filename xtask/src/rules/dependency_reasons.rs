//! Checks that the root `Cargo.toml` gives a reason beside each dependency.

use std::path::Path;

use anyhow::{Context, Result};

use crate::repository;

pub fn violations() -> Result<Vec<String>> {
    let manifest = repository::text(Path::new("Cargo.toml"))?.context("Cargo.toml is not UTF-8")?;
    let silent = without_reason(&manifest).context("Cargo.toml has no [workspace.dependencies]")?;
    Ok(silent.iter().map(|line| format!("Cargo.toml: add `# why` at the end of: {line}")).collect())
}

/// Returns the lines of other crates in `[workspace.dependencies]` that have no comment; `None` without that table.
fn without_reason(manifest: &str) -> Option<Vec<&str>> {
    let table = manifest.split_once("[workspace.dependencies]")?.1.split("\n[").next()?;
    let dependencies = table.lines().filter(|line| line.contains('=') && !line.starts_with(['#', '[']));
    Some(dependencies.filter(|line| !line.starts_with("millrace-") && !line.contains(" # ")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependency_without_comment_is_found() {
        let manifest =
            "[workspace.dependencies]\nmillrace-a = {}\na = \"1\" # why\nb = \"1\"\n\n[profile.dev]\nc = 1\n";
        assert_eq!(without_reason(manifest), Some(vec!["b = \"1\""]));
        assert_eq!(without_reason("[dependencies]\n"), None);
    }
}
