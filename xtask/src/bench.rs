//! `cargo xtask bench`: runs a benchmark of `tests/bench` by its name.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::repository;

const DIR: &str = "tests/bench";

/// Prints the names of all benchmarks, with the first line of the description in each.
pub fn list() -> Result<()> {
    for name in names()? {
        let text = std::fs::read_to_string(path_of(&name)).with_context(|| format!("read {DIR}/{name}"))?;
        println!("{name:16}{}", summary(&text));
    }
    Ok(())
}

/// Runs the benchmark `name` with these arguments.
pub fn run(name: &str, arguments: &[&str]) -> Result<()> {
    let names = names()?;
    if !names.iter().any(|known| known == name) {
        bail!("no benchmark {name:?}: choose one of {}", names.join(", "));
    }
    command::run(command::program(path_of(name)).args(arguments))
}

/// Returns the names of all programs in `tests/bench`; files with an extension are modules of them.
fn names() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(repository::root().join(DIR)).context("read tests/bench")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.contains('.') && !name.starts_with('_') {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn path_of(name: &str) -> PathBuf {
    repository::root().join(DIR).join(name)
}

/// Returns the first line of a script's description: its first comment, or its docstring.
fn summary(script: &str) -> &str {
    let line = script.lines().skip(1).find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.trim_start_matches(['#', ' ', '"'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmarks_are_listed_without_their_modules() {
        let names = names().unwrap();
        assert!(names.contains(&"train".to_owned()), "{names:?}");
        assert!(names.iter().all(|name| !name.ends_with(".py")), "{names:?}");
        assert!(run("../run", &[]).is_err());
    }

    #[test]
    fn summary_is_the_first_line_of_a_comment_or_docstring() {
        assert_eq!(summary("#!/usr/bin/env bash\n# Measures.\n#\n# More.\n"), "Measures.");
        assert_eq!(summary("#!/usr/bin/env python3\n\"\"\"Trains.\n\nMore.\"\"\"\n"), "Trains.");
    }
}
