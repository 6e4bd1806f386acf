//! The command line of `millrace-agent`.
//!
//! * Results and progress lines are on standard output; logs, progress bars and errors are on standard error.
//! * Errors in the user's input are printed as `error: one sentence` and `hint: what to do`, with exit code 2, before
//!   anything is written.

mod arguments;
mod check;
mod checkpoint;
mod explain;
mod import;
mod job;
mod places;
mod plan;
mod refusal;
mod run;
mod samples;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use arguments::{CommandLine, Task};
pub(crate) use arguments::{sentence, with_underscores};
use refusal::Refusal;

use crate::launch::Exit;

/// Executes the command in the arguments. The first argument is the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let task = match CommandLine::try_parse_from(with_underscores(arguments)) {
        Ok(CommandLine { task }) => task,
        Err(error) if !error.use_stderr() => {
            // Help and version are results. A closed standard output is ignored.
            let _ = error.print();
            return Exit::Done.into();
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return Exit::BadInput.into();
        }
        Err(error) => {
            eprintln!("error: {}\nhint: {}", sentence(&error), arguments::hint(&error));
            return Exit::BadInput.into();
        }
    };
    match dispatch(task) {
        Ok(exit) => exit.into(),
        Err(refusal) => {
            eprint!("{refusal}");
            refusal.exit().into()
        }
    }
}

fn dispatch(task: Task) -> Result<Exit, Refusal> {
    match task {
        Task::Train(flags) => run::run(&flags, Some("train")),
        Task::Eval(flags) => run::run(&flags, Some("eval")),
        Task::TrainAndEval(flags) => run::run(&flags, Some("train_and_eval")),
        Task::EvalAll(flags) => run::run(&flags, Some("eval_all")),
        Task::Run { mode, flags } => run::run(&flags, mode.as_deref()),
        Task::Plan { json, flags } => plan::print(&flags, json),
        Task::Samples { steps, out, flags } => samples::write(&flags, steps, &out),
        Task::Explain { key } => explain::print(key.as_deref()),
        Task::Checkpoint { task } => checkpoint::run(&task),
        Task::Role { .. } => Err(Refusal::bad_input("role is for processes that a launcher starts").hint(format!(
            "set {} in the environment of a role started by hand",
            millrace_protocol::launch::ROLE_VARIABLE
        ))),
    }
}

/// Prints a result on standard output. If the reader has closed it (`| head`), the line is dropped.
fn say(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Formats JSON with indentation.
fn pretty(value: &impl serde::Serialize) -> Result<String, Refusal> {
    serde_json::to_string_pretty(value).map_err(|error| crate::failure::Failure::own(error).into())
}
