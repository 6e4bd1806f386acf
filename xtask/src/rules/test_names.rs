//! Checks the names of functions by `docs/style.md`: no leading article, and at most [`MAX_CHARS`] characters. Both
//! are typical of tests that are named by a sentence instead of the state and the result.

use anyhow::Result;

use crate::repository;

const MAX_CHARS: usize = 60;
const ARTICLES: [&str; 3] = ["a_", "an_", "the_"];

pub fn violations() -> Result<Vec<String>> {
    let mut violations = Vec::new();
    for file in &repository::rust_sources()? {
        let text = repository::text(file)?.unwrap_or_default();
        let violation = |name| format!("{}: rename {name}, see docs/style.md", file.display());
        violations.extend(rejected_names(&text).map(violation));
    }
    Ok(violations)
}

/// Returns the names of functions that the rule rejects.
fn rejected_names(text: &str) -> impl Iterator<Item = &str> {
    let is_rejected = |name: &&str| name.len() > MAX_CHARS || ARTICLES.iter().any(|article| name.starts_with(article));
    text.lines().filter_map(function_name).filter(is_rejected)
}

/// Returns the name of the function that a line of code defines.
fn function_name(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let (qualifiers, rest) = code.split_once("fn ")?;
    if code.starts_with("//") || !(qualifiers.is_empty() || qualifiers.ends_with(' ')) {
        return None;
    }
    let end = rest.find(|char: char| !(char.is_ascii_alphanumeric() || char == '_'));
    Some(&rest[..end.unwrap_or(rest.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn articles_and_long_names_are_rejected() {
        let long = "x".repeat(MAX_CHARS + 1);
        let (the, a) = ("the", "a");
        let text = format!(
            "    fn {the}_job_runs() {{\nasync fn {long}(\n// fn {a}_comment()\nfn is_ready() {{}}\nconst fn theory()\n"
        );
        assert_eq!(rejected_names(&text).collect::<Vec<_>>(), ["the_job_runs", &long]);
    }
}
