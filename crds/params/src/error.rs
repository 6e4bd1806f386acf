//! What is wrong with a document, where, and what to do about it.
//!
//! A [`ParamsError`] holds at least one [`Problem`]; a document is read to its end, so a user sees all of its mistakes
//! at once instead of one for each run.

use std::fmt;

/// What sort of mistake a [`Problem`] is, for callers that react differently to some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// The text is not YAML.
    Syntax,
    /// A key nobody knows.
    UnknownKey,
    /// A key that stands twice in one mapping.
    DuplicateKey,
    /// A value of another type than the key's.
    WrongType,
    /// A key or value of the public model zoo that Millrace does not support yet.
    NotSupported,
    /// A key that must be given and is not.
    Missing,
    /// A value that is out of range or contradicts another one.
    Invalid,
}

/// One mistake in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What sort of mistake it is.
    pub kind: ProblemKind,
    /// The line it stands on, counted from 1; `None` when the value came from a flag or from JSON.
    pub line: Option<usize>,
    /// The key's path, as `model.hidden_size`, or the flag's name, as `--num_csx`.
    pub key: String,
    /// One sentence without a full stop that names the key and what is wrong with it.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// Why a document was refused. `Display` is one sentence about the first problem; [`ParamsError::report`] tells all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{first}{}", more(.rest.len()))]
pub struct ParamsError {
    first: Problem,
    rest: Vec<Problem>,
}

fn more(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " (and 1 more problem)".into(),
        n => format!(" (and {n} more problems)"),
    }
}

impl ParamsError {
    /// `Err` when there is a problem. They are ordered by line, those without one last.
    pub(crate) fn check(mut problems: Vec<Problem>) -> Result<(), Self> {
        problems.sort_by_key(|p| p.line.unwrap_or(usize::MAX));
        let mut problems = problems.into_iter();
        match problems.next() {
            None => Ok(()),
            Some(first) => Err(Self { first, rest: problems.collect() }),
        }
    }

    /// All problems, in the order of their lines.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// The line of the first problem, counted from 1.
    pub fn line(&self) -> Option<usize> {
        self.first.line
    }

    /// The key path (or flag) of the first problem.
    pub fn key(&self) -> &str {
        &self.first.key
    }

    /// What to do about the first problem.
    pub fn hint(&self) -> Option<&str> {
        self.first.hint.as_deref()
    }

    /// Every problem on a line of its own, each followed by its hint: what a command prints before it exits with 2.
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
