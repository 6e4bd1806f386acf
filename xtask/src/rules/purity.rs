//! Checks that code which only decides uses no clock, socket, file, thread or environment variable.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::repository;

/// Directories and files with such code. Tests may do what they need.
const PURE: &[&str] = &[
    "agents/engine/src",
    "crds/src",
    "emulator/src/compile",
    "emulator/src/placement",
    "emulator/src/tree.rs",
    "operator/lifecycle/src",
];
const IMPURE: &[&str] = &["std::net", "std::fs", "std::env", "Instant::now", "SystemTime", "thread::spawn", "async fn"];

pub fn violations() -> Result<Vec<String>> {
    let files: Vec<PathBuf> = repository::files()?.into_iter().filter(|path| is_rust(path)).collect();
    let mut violations = missing(&files);
    for file in
        files.iter().filter(|file| PURE.iter().any(|pure| file.starts_with(pure)) && !file.ends_with("tests.rs"))
    {
        let text = repository::text(file)?.unwrap_or_default();
        let found = impure_words(&text).into_iter();
        violations.extend(found.map(|(line, word)| format!("{}:{line} uses {word}", file.display())));
    }
    Ok(violations)
}

/// Returns a violation for each path of [`PURE`] without files: a path that was renamed would not be checked any more.
fn missing(files: &[PathBuf]) -> Vec<String> {
    let missing = PURE.iter().filter(|pure| !files.iter().any(|file| file.starts_with(pure)));
    missing.map(|pure| format!("{pure} has no Rust file: name its new path in xtask/src/rules/purity.rs")).collect()
}

fn impure_words(text: &str) -> Vec<(usize, &'static str)> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default().lines().zip(1..);
    let code = code.filter(|(line, _)| !line.trim_start().starts_with("//"));
    code.filter_map(|(line, number)| Some((number, *IMPURE.iter().find(|word| line.contains(**word))?))).collect()
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impure_words_are_found_in_code_only() {
        let text = "//! Uses no std::fs.\nfn now() { Instant::now() }\n#[cfg(test)]\nuse std::fs;\n";
        assert_eq!(impure_words(text), [(2, "Instant::now")]);
    }

    #[test]
    fn renamed_path_is_a_violation() {
        let files: Vec<PathBuf> = PURE[1..].iter().map(PathBuf::from).collect();
        assert_eq!(missing(&files).len(), 1, "{:?}", missing(&files));
    }
}
