//! Errors of a document: what is wrong, where, and the remedy.
//!
//! A [`ParamsError`] has at least one [`ParamsProblem`]. A document is read to its end, so that a user sees all of its
//! mistakes at once, instead of one in each run.

use std::fmt;

/// The kind of a [`ParamsProblem`], for callers that handle some of them differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamsProblemKind {
    /// The text is not YAML.
    Syntax,
    /// An unknown key.
    UnknownKey,
    /// A key that is given twice in one mapping.
    DuplicateKey,
    /// A value of the wrong type.
    WrongType,
    /// A key or value of the public model zoo that Millrace does not support yet.
    NotSupported,
    /// A required key that is not given.
    Missing,
    /// A value that is out of range or contradicts another one.
    Invalid,
}

/// One mistake in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamsProblem {
    /// The kind of mistake.
    pub kind: ParamsProblemKind,
    /// The line of the mistake, counted from 1; `None` if the value came from a flag or from JSON.
    pub line: Option<usize>,
    /// The key's path, such as `model.hidden_size`, or the flag's name, such as `--num_csx`.
    pub key: String,
    /// One sentence without a full stop that names the key and what is wrong with it.
    pub message: String,
    /// The remedy.
    pub hint: Option<String>,
}

impl fmt::Display for ParamsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// Why a document was rejected. `Display` is one sentence about the first problem; [`ParamsError::report`] lists all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{first}{}", more(.rest.len()))]
pub struct ParamsError {
    first: ParamsProblem,
    rest: Vec<ParamsProblem>,
}

fn more(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " (and 1 more problem)".into(),
        n => format!(" (and {n} more problems)"),
    }
}

impl From<ParamsProblem> for ParamsError {
    fn from(first: ParamsProblem) -> Self {
        Self { first, rest: Vec::new() }
    }
}

impl ParamsError {
    /// Returns an error if there is a problem. Problems are ordered by line, those without a line last.
    pub(crate) fn check(mut problems: Vec<ParamsProblem>) -> Result<(), Self> {
        problems.sort_by_key(|p| p.line.unwrap_or(usize::MAX));
        let mut problems = problems.into_iter();
        match problems.next() {
            None => Ok(()),
            Some(first) => Err(Self { first, rest: problems.collect() }),
        }
    }

    /// Changes each problem.
    pub(crate) fn map_problems(self, change: impl Fn(ParamsProblem) -> ParamsProblem) -> Self {
        Self { first: change(self.first), rest: self.rest.into_iter().map(&change).collect() }
    }

    /// Returns all problems, in the order of their lines.
    pub fn problems(&self) -> impl Iterator<Item = &ParamsProblem> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Returns the line of the first problem, counted from 1.
    pub fn line(&self) -> Option<usize> {
        self.first.line
    }

    /// Returns the key path, or the flag, of the first problem.
    pub fn key(&self) -> &str {
        &self.first.key
    }

    /// Returns the remedy for the first problem.
    pub fn hint(&self) -> Option<&str> {
        self.first.hint.as_deref()
    }

    /// Lists every problem on a line of its own, each followed by its hint, as a command prints them before it exits
    /// with code 2.
    pub fn report(&self) -> String {
        let mut text = String::new();
        for problem in self.problems() {
            text.push_str(&format!("{problem}\n"));
            if let Some(hint) = &problem.hint {
                text.push_str(&format!("  hint: {hint}\n"));
            }
        }
        text
    }
}
