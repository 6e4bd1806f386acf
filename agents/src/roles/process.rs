//! Runs this process as a role.
//!
//! A role is started as `PROGRAM role ROLE …` ([`RoleCommand`]) with [`ROLE_ENV`] in its environment. `PROGRAM` can be
//! any program whose `main` calls [`role_process`] first.

use std::ffi::OsStr;
use std::io::{BufRead, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use millrace_protocol::launch::{
    DocumentError, DocumentSource, Exit, LaunchDocument, ROLE_ENV, ROLE_SUBCOMMAND, RoleCommand, RoleCommandError,
    STARTED_BY_LAUNCHER,
};
use millrace_protocol::security::{Credentials, Identity, IdentityError, Protection};
use millrace_telemetry::journal::AttemptOutcome;
use millrace_telemetry::logs::Level;

use super::parent::watch_parent;
use super::{RoleArgs, TerminationReport, run};
use crate::error::AgentError;
use crate::loader_args::LoaderArgs;
use crate::member::Member;

/// The listen address of a port by default: any free port.
const ANY_PORT: &str = "127.0.0.1:0";
/// Maximum bytes of credentials on standard input.
const MAX_IDENTITY_BYTES: u64 = 1 << 20;

/// If this process was started as a role, runs the role and returns its exit code; returns `None` otherwise. Must be
/// called first in `main`.
pub fn role_process() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let is_role = arguments.peek().map(|first| first.as_os_str()) == Some(OsStr::new(ROLE_SUBCOMMAND));
    if !is_role || std::env::var_os(ROLE_ENV).is_none() {
        return None;
    }
    let exit = match RoleCommand::parse(crate::cli::normalize_flag_spelling(arguments)) {
        Ok(command) => run_command(command),
        Err(RoleCommandError::Invalid(error)) => refuse(&AgentError::bad_input(crate::cli::error_sentence(&error))),
        Err(error) => refuse(&AgentError::bad_input(error)),
    };
    Some(exit.into())
}

fn run_command(command: RoleCommand) -> Exit {
    let last_report = TerminationReport::new(command.termination_log.clone());
    match restrict(&command.roots).and_then(|()| role_args(command, last_report.clone())) {
        Ok(args) => {
            watch_parent();
            run(args)
        }
        Err(failure) => {
            last_report.write(&AttemptOutcome::from(&failure));
            refuse(&failure)
        }
    }
}

/// Restricts the file access of this process to `roots`. Does nothing if `roots` is empty.
fn restrict(roots: &[PathBuf]) -> Result<(), AgentError> {
    if roots.is_empty() {
        return Ok(());
    }
    millrace_roots::restrict_process(roots).map_err(|error| {
        AgentError::bad_input(error)
            .context("can't use a directory of the job")
            .hint("check that the directory exists and that the server's user may read it")
    })
}

fn refuse(failure: &AgentError) -> Exit {
    eprintln!("error: {failure}");
    failure.exit()
}

/// Returns whether a local launcher started this process and holds the other end of its standard input.
pub(super) fn started_by_launcher() -> bool {
    std::env::var_os(ROLE_ENV).is_some_and(|value| value == STARTED_BY_LAUNCHER)
}

/// Reads the identity and a coordinator's launch document, and replaces missing arguments by their defaults.
fn role_args(command: RoleCommand, last_report: TerminationReport) -> Result<RoleArgs, AgentError> {
    let agent = command.agent();
    let identity = command.identity.as_ref().ok_or_else(|| {
        AgentError::bad_input(format!("{agent} has no identity"))
            .hint("give the directory of its certificate by --identity DIR or MILLRACE_IDENTITY")
    })?;
    // The identity is read before the launch document, because on standard input it is the first line and the document
    // the second.
    let identity = read_identity(identity)?;
    let launch = command.launch.as_ref().map(read_launch).transpose()?.map(Box::new);
    let model_dir_bucket = command.model_dir_bucket.as_deref().map(str::parse).transpose();
    let any_port = || ANY_PORT.to_owned();
    Ok(RoleArgs {
        agent,
        member: Member::new(identity, agent, command.data_encryption.unwrap_or(Protection::Encrypted))?,
        coordinator: command.coordinator,
        listen: command.listen.unwrap_or_else(any_port),
        shared_memory: command.shared_memory.unwrap_or(false),
        advertise: command.advertise,
        journal_listen: command.journal_listen.unwrap_or_else(any_port),
        metrics_listen: command.metrics_listen,
        threads: command.threads.map(usize::from),
        isa: command.isa,
        level: command.logging.unwrap_or(Level::Info),
        log_format: command.log_format.unwrap_or_default(),
        loader: LoaderArgs::new(command.python, command.loader_socket),
        launch,
        model_dir_bucket: model_dir_bucket.map_err(AgentError::bad_input)?,
        last_report,
        by_launcher: started_by_launcher(),
    })
}

/// Reads an agent's identity from a directory or the next line of standard input.
fn read_identity(source: &DocumentSource) -> Result<Identity, AgentError> {
    let path = source.as_path();
    let credentials = match source {
        DocumentSource::Stdin => {
            let mut line = String::new();
            let read = std::io::stdin().lock().take(MAX_IDENTITY_BYTES).read_line(&mut line);
            let cause = |cause| IdentityError::File { path: path.to_owned(), cause };
            read.map_err(cause).and_then(|_| Credentials::from_json_line(&line))
        }
        DocumentSource::Path(directory) => Credentials::read(directory),
    };
    credentials.and_then(|credentials| Identity::new(&credentials)).map_err(|error| {
        AgentError::bad_input(error)
            .context(format!("the identity {} can't be used", path.display()))
            .hint("a launcher must give an agent tls.crt, tls.key and ca.crt of its attempt")
    })
}

fn read_launch(source: &DocumentSource) -> Result<LaunchDocument, AgentError> {
    let text = match source {
        DocumentSource::Stdin => {
            let mut line = String::new();
            // Reads only this line: the launcher writes nothing more, and keeps standard input open.
            std::io::stdin().lock().read_line(&mut line).map(|_| line)
        }
        DocumentSource::Path(file) => std::fs::read_to_string(file),
    };
    let name = source.as_path().display();
    let text = text.map_err(|error| {
        AgentError::bad_input(error)
            .context(format!("can't read the launch document {name}"))
            .hint("the launcher of the coordinator writes it; check that the file exists and is readable")
    })?;
    LaunchDocument::from_json(&text).map_err(|error| {
        let hint = match error {
            DocumentError::NewerVersion { .. } => "start it with the image of the release that wrote the document",
            _ => "start it with a document written by `millrace-operator` or `millrace-api` of this release",
        };
        AgentError::bad_input(error).context(format!("the launch document {name} can't be read")).hint(hint)
    })
}
