//! Checks that no line is longer than [`MAX_COLUMNS`], in comments and strings too, which rustfmt does not break.
//!
//! Files that had longer lines when this rule was introduced are listed in `xtask/long_lines.txt`. A file is never
//! added there, and one without long lines has to be removed from it, so the list only gets shorter.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

use crate::{generate, repository};

const MAX_COLUMNS: usize = 120;
const EXTENSIONS: [&str; 5] = ["rs", "py", "sh", "md", "yaml"];
const EXEMPT_LIST: &str = "xtask/long_lines.txt";
/// Directories with files that nobody edits: inputs of tests, in the exact bytes that were recorded.
const RECORDED: [&str; 3] = ["tests/golden", "tests/fuzz/corpus", "tests/parity/fixtures"];

pub fn violations() -> Result<Vec<String>> {
    let exempt = repository::text(Path::new(EXEMPT_LIST))?.context("xtask/long_lines.txt is not UTF-8")?;
    let exempt: BTreeSet<&str> = exempt.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let mut found = Vec::new();
    for file in repository::files()?.iter().filter(|file| !RECORDED.iter().any(|dir| file.starts_with(dir))) {
        if generate::is_generated(file) || !may_be_source(file) {
            continue;
        }
        let Some(text) = repository::text(file)? else { continue };
        if let Some(kind) = kind_of(file, &text) {
            found.push((file.to_string_lossy().into_owned(), long_lines(kind, &text)));
        }
    }
    Ok(compare(&found, &exempt))
}

/// Compares the long lines of each file with the list of exempt files.
fn compare(found: &[(String, Vec<usize>)], exempt: &BTreeSet<&str>) -> Vec<String> {
    let mut violations = Vec::new();
    for (name, lines) in found.iter().filter(|(name, _)| !exempt.contains(name.as_str())) {
        violations.extend(lines.iter().map(|line| format!("{name}:{line} has more than {MAX_COLUMNS} columns")));
    }
    let has_long_lines = |name: &str| found.iter().any(|(file, lines)| file == name && !lines.is_empty());
    for name in exempt.iter().filter(|name| !has_long_lines(name)) {
        violations.push(format!("{name} has no long lines any more: remove it from {EXEMPT_LIST}"));
    }
    violations
}

/// Returns the numbers of the lines that are too long and can be broken: a row of a Markdown table and a word, such as
/// a URL, can't.
fn long_lines(kind: &str, text: &str) -> Vec<usize> {
    let is_long = |line: &str| line.chars().count() > MAX_COLUMNS;
    let can_break = |line: &str| {
        let words = line.trim_start_matches(['#', '/', '!', ' ', '*', '-']);
        words.contains(' ') && !(kind == "md" && line.starts_with('|'))
    };
    text.lines().zip(1..).filter(|(line, _)| is_long(line) && can_break(line)).map(|(_, number)| number).collect()
}

/// Returns whether the extension leaves it open that this is a source; programs without one begin with `#!`.
fn may_be_source(file: &Path) -> bool {
    file.extension().is_none_or(|extension| EXTENSIONS.iter().any(|known| extension == *known))
}

/// Returns the extension of a source, `script` for a program without one, and `None` for other files.
fn kind_of<'a>(file: &'a Path, text: &str) -> Option<&'a str> {
    match file.extension() {
        Some(extension) => extension.to_str(),
        None => text.starts_with("#!").then_some("script"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_found_unless_they_cannot_be_broken() {
        let prose = format!("{} end", "é".repeat(MAX_COLUMNS - 3));
        let cases = [
            ("prose", "md", prose.clone(), true),
            ("comment", "rs", format!("// {prose}"), true),
            ("script", "script", format!("echo {prose}"), true),
            ("as long as allowed", "md", prose[2..].to_owned(), false),
            ("table", "md", format!("| {prose} |"), false),
            ("address", "py", format!("# https://example.org/{}", "x".repeat(MAX_COLUMNS)), false),
        ];
        for (case, kind, text, long) in cases {
            assert_eq!(!long_lines(kind, &text).is_empty(), long, "{case}");
        }
    }

    #[test]
    fn list_of_exempt_files_can_only_shrink() {
        let found = [("old.md".to_owned(), vec![3]), ("new.md".to_owned(), vec![5]), ("fixed.md".to_owned(), vec![])];
        let violations = compare(&found, &BTreeSet::from(["old.md", "fixed.md", "gone.md"]));
        let expected = ["new.md:5 has more than 120", "fixed.md has no long lines", "gone.md has no long lines"];
        assert_eq!(violations.len(), expected.len(), "{violations:?}");
        for (violation, expected) in violations.iter().zip(expected) {
            assert!(violation.starts_with(expected), "{violation}");
        }
    }
}
