//! The error of a command.

use std::fmt;
use std::path::Path;

use millrace_emulator::compile::CompileError;
use millrace_params::{ParamsError, ParamsProblemKind};

use crate::checkpoints::checkpoint_failure;
use crate::error::AgentError;
use crate::launch::Exit;

/// At least one failure. Each is printed as `error: …` with its `hint: …`.
#[derive(Debug)]
pub struct CliError {
    first: AgentError,
    rest: Vec<AgentError>,
}

impl CliError {
    /// Creates an error that the user's input caused.
    pub fn bad_input(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        AgentError::bad_input(reason).into()
    }

    /// Adds a remedy to the first failure.
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.first = self.first.hint(hint);
        self
    }

    /// Creates an error with all problems of the document that was read from `path`. The path is printed once, with the
    /// first problem that has a line number.
    pub fn from_params_error(path: &Path, error: &ParamsError) -> Self {
        let mut is_path_printed = false;
        let mut all = error.problems().map(|problem| {
            let failure = match problem.line {
                Some(_) if !std::mem::replace(&mut is_path_printed, true) => {
                    AgentError::bad_input(format!("{}: {problem}", path.display()))
                }
                _ => AgentError::bad_input(problem.to_string()),
            };
            failure.hint(problem.hint.as_deref().unwrap_or_else(|| general_hint(problem.kind)))
        });
        // There is always at least one problem.
        let first = all.next().unwrap_or_else(|| AgentError::bad_input(error.to_string()));
        let rest = all.collect();
        Self { first, rest }
    }

    /// Returns the first failure and its hint, in one line.
    pub fn summary(&self) -> String {
        self.first.to_string().replace('\n', "; ")
    }

    /// Returns the exit of the first failure.
    pub fn exit_code(&self) -> Exit {
        self.first.exit()
    }
}

/// Returns the hint for a problem that has none of its own.
const fn general_hint(kind: ParamsProblemKind) -> &'static str {
    match kind {
        ParamsProblemKind::Syntax => "the files in examples/ show how params are written",
        ParamsProblemKind::UnknownKey | ParamsProblemKind::NotSupported => {
            "leave the key out, or see the files in examples/"
        }
        ParamsProblemKind::DuplicateKey => "keep one of the two",
        ParamsProblemKind::WrongType | ParamsProblemKind::Invalid => {
            "the files in examples/ have a value for every key"
        }
        ParamsProblemKind::Missing => "add the key; the files in examples/ have it",
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::iter::once(&self.first).chain(&self.rest).try_for_each(|failure| writeln!(f, "error: {failure}"))
    }
}

impl From<AgentError> for CliError {
    fn from(first: AgentError) -> Self {
        Self { first, rest: Vec::new() }
    }
}

impl From<CompileError> for CliError {
    fn from(error: CompileError) -> Self {
        AgentError::from(error).into()
    }
}

impl From<millrace_checkpoint::Error> for CliError {
    fn from(error: millrace_checkpoint::Error) -> Self {
        checkpoint_failure(error).into()
    }
}
