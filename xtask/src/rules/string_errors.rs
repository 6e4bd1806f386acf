//! Checks that no function returns a `String` as its error: an error has a type of its own, which keeps its cause.
//!
//! Tests may do what they need: directories and files named `tests`, and items behind `#[cfg(test)]`.

use std::path::Path;

use anyhow::Result;

use crate::repository;

pub fn violations() -> Result<Vec<String>> {
    let mut violations = Vec::new();
    for file in repository::files()?.iter().filter(|file| is_checked(file)) {
        let text = repository::text(file)?.unwrap_or_default();
        violations.extend(string_errors(&text).into_iter().map(|line| {
            format!("{}:{line} has a String as its error: define an error type (docs/style.md)", file.display())
        }));
    }
    Ok(violations)
}

fn is_checked(file: &Path) -> bool {
    let is_test = |part: &std::ffi::OsStr| part == "tests" || part == "tests.rs";
    file.extension().is_some_and(|extension| extension == "rs") && !file.iter().any(is_test)
}

/// Returns the numbers of the lines with such an error type.
fn string_errors(text: &str) -> Vec<usize> {
    let code = checked_code(text);
    let mut found: Vec<usize> = code
        .match_indices("Result<")
        .filter(|&(at, _)| !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_'))
        .filter(|(at, name)| is_string(&last_of_several(&code[at + name.len()..])))
        .map(|(at, _)| at)
        .chain(["type Err = ", "type Error = "].into_iter().flat_map(|alias| {
            let value = |at: usize| code[at + alias.len()..].split(';').next().unwrap_or_default();
            code.match_indices(alias).map(|(at, _)| at).filter(move |&at| is_string(value(at)))
        }))
        .map(|at| code[..at].matches('\n').count() + 1)
        .collect();
    found.sort_unstable();
    found
}

fn is_string(argument: &str) -> bool {
    matches!(argument.trim(), "String" | "string::String" | "std::string::String")
}

/// Returns the last of several generic arguments, whose list begins with `text`; empty if there is only one.
fn last_of_several(text: &str) -> String {
    let (mut depth, mut before) = (1_u32, ' ');
    let mut arguments = vec![String::new()];
    for c in text.chars() {
        match c {
            '<' | '(' | '[' => depth += 1,
            // The end of an arrow, as in `fn() -> T`.
            '>' if before == '-' => {}
            '>' | ')' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        if (depth, c) == (1, ',') {
            arguments.push(String::new());
        } else if let Some(last) = arguments.last_mut() {
            last.push(c);
        }
        before = c;
    }
    // A trailing comma begins an empty argument.
    arguments.retain(|argument| !argument.trim().is_empty());
    if arguments.len() > 1 { arguments.pop().unwrap_or_default() } else { String::new() }
}

/// Returns `text` with empty lines in the place of comments and of items behind `#[cfg(test)]`. It relies on the format
/// of rustfmt: an item ends with the first line of its own indentation that ends with `;` or `}`.
fn checked_code(text: &str) -> String {
    let mut skipped_indent = None;
    let mut code = String::with_capacity(text.len());
    for line in text.lines() {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if skipped_indent.is_none() && is_test_attribute(trimmed) {
            skipped_indent = Some(indent);
        } else if let Some(skipped) = skipped_indent {
            if indent == skipped && !trimmed.starts_with('#') && trimmed.ends_with([';', '}']) {
                skipped_indent = None;
            }
        } else if !trimmed.starts_with("//") {
            code.push_str(line);
        }
        code.push('\n');
    }
    code
}

fn is_test_attribute(line: &str) -> bool {
    ["#[cfg(test)]", "#[cfg(all(test"].iter().any(|attribute| line.starts_with(attribute))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_is_rejected_as_an_error_and_nothing_else() {
        let cases = [
            ("function", "fn f() -> Result<(), String> {}", vec![1]),
            ("several lines", "fn f() -> Result<\n    (u8, Vec<String>),\n    String,\n> {}", vec![1]),
            ("path", "fn f() -> std::result::Result<u8, std::string::String> {}", vec![1]),
            ("within a type", "resolution: Option<Result<Job, String>>,", vec![1]),
            ("callback", "type F = dyn Fn(Result<fn() -> u8, String>);", vec![1]),
            ("trait", "impl FromStr for A {\n    type Err = String;\n}", vec![2]),
            ("after a test", "#[cfg(test)]\nuse a::{\n    b,\n};\nfn f() -> Result<u8, String> {}", vec![5]),
            ("value", "fn f() -> Result<String, Error> {}", vec![]),
            ("one argument", "fn f() -> anyhow::Result<(A, BTreeMap<String, String>)> {}", vec![]),
            ("another type", "fn f() -> PartialResult<u8, String> {}", vec![]),
            ("comment", "/// Not a `Result<(), String>`.\nfn f() {}", vec![]),
            ("test", "#[cfg(test)]\nmod tests {\n    fn f() -> Result<(), String> {}\n}\n", vec![]),
        ];
        for (case, text, expected) in cases {
            assert_eq!(string_errors(text), expected, "{case}");
        }
    }

    #[test]
    fn tests_are_not_checked() {
        for (file, expected) in [
            ("api/src/serve.rs", true),
            ("api/src/reader/tests.rs", false),
            ("tests/fuzz/src/cluster.rs", false),
            ("operator/control/tests/liveness.rs", false),
            ("api/openapi.json", false),
        ] {
            assert_eq!(is_checked(Path::new(file)), expected, "{file}");
        }
    }
}
