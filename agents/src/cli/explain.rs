//! `explain`: prints the reference of the params.

use millrace_params::reference;

use super::error::CliError;
use super::print_line;
use crate::launch::Exit;

/// Prints what is known about a section or a key of the params, or lists all of them.
pub fn print(path: Option<&str>) -> Result<Exit, CliError> {
    let text = match path {
        Some(path) => reference::explain(path).map_err(unknown_key)?,
        None => reference::overview(),
    };
    print_line(text.trim_end());
    Ok(Exit::Success)
}

fn unknown_key(error: reference::UnknownKeyError) -> CliError {
    let hint = match &error.suggestion {
        Some(path) => format!("did you mean {path}?"),
        None => "`millrace-agent explain` lists the keys".to_owned(),
    };
    CliError::bad_input(error).hint(hint)
}
