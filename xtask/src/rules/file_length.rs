//! Checks that no Rust file is too long: about 400 lines are meant, more than [`MAX_LINES`] are a violation.

use std::path::Path;

use anyhow::Result;

use crate::repository;

const MAX_LINES: usize = 600;
/// A `main.rs` parses its arguments, builds the program and runs it.
const MAX_LINES_OF_MAIN: usize = 60;

pub fn violations() -> Result<Vec<String>> {
    let mut violations = Vec::new();
    for file in &repository::rust_sources()? {
        let lines = repository::text(file)?.unwrap_or_default().lines().count();
        if lines > max_lines(file) {
            violations.push(format!("{} has {lines} lines, at most {}: split it", file.display(), max_lines(file)));
        }
    }
    Ok(violations)
}

fn max_lines(file: &Path) -> usize {
    if file.ends_with("src/main.rs") { MAX_LINES_OF_MAIN } else { MAX_LINES }
}
