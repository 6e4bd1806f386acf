//! The command line of `millrace-agent`.
//!
//! * Results and progress lines are on standard output; logs, progress bars and errors are on standard error.
//! * Errors in the user's input are printed as `error: one sentence` and `hint: what to do`, with exit code 2, before
//!   anything is written.

mod args;
mod bucket;
mod check;
mod checkpoint;
mod data;
mod data_paths;
mod error;
mod explain;
mod generate;
mod import;
mod job;
mod phases;
mod plan;
mod run;
mod samples;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Cli, CliCommand};
pub(crate) use args::{error_sentence, normalize_flag_spelling};
use error::CliError;

use crate::fetch::fetch_uploads;
use crate::launch::Exit;

/// Executes the command in the arguments. The first argument is the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let command = match Cli::try_parse_from(normalize_flag_spelling(arguments)) {
        Ok(Cli { task }) => task,
        Err(error) if !error.use_stderr() => {
            // Help and version are results. A closed standard output is ignored.
            let _ = error.print();
            return Exit::Success.into();
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return Exit::BadInput.into();
        }
        Err(error) => {
            eprintln!("error: {}\nhint: {}", error_sentence(&error), args::error_hint(&error));
            return Exit::BadInput.into();
        }
    };
    match dispatch(command) {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprint!("{error}");
            error.exit_code().into()
        }
    }
}

fn dispatch(command: CliCommand) -> Result<Exit, CliError> {
    match command {
        CliCommand::Train(flags) => run::run(&flags, Some("train")),
        CliCommand::Eval(flags) => run::run(&flags, Some("eval")),
        CliCommand::TrainAndEval(flags) => run::run(&flags, Some("train_and_eval")),
        CliCommand::EvalAll(flags) => run::run(&flags, Some("eval_all")),
        CliCommand::Run { mode, flags } => run::run(&flags, mode.as_deref()),
        CliCommand::Plan { json, flags } => plan::print(&flags, json),
        CliCommand::Samples { phase, steps, out, flags } => samples::write(&flags, phase, steps, &out),
        CliCommand::Data { task } => data::run(&task),
        CliCommand::Generate(flags) => generate::run(&flags),
        CliCommand::Explain { key } => explain::print(key.as_deref()),
        CliCommand::Checkpoint { task } => checkpoint::run(&task),
        CliCommand::FetchUploads(command) => match fetch_uploads(&command) {
            Ok(summary) => {
                print_line(summary);
                Ok(Exit::Success)
            }
            Err(error) => {
                // One line: the status of the job quotes the last one.
                eprintln!("error: {}", millrace_protocol::error_chain(&error));
                Ok(error.exit())
            }
        },
        CliCommand::Role { .. } => Err(CliError::bad_input("the command role is internal: a launcher runs it")
            .hint(format!("set {} in the environment of a role started by hand", millrace_protocol::launch::ROLE_ENV))),
    }
}

/// Prints a result on standard output. If the reader has closed it (`| head`), the line is dropped.
fn print_line(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Formats JSON with indentation.
fn to_pretty_json(value: &impl serde::Serialize) -> Result<String, CliError> {
    serde_json::to_string_pretty(value).map_err(|error| crate::error::AgentError::local(error).into())
}
