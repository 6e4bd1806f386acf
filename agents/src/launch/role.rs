//! Runs this process as a role: the command line of a role, and the one entry point that runs it.
//!
//! A role is started as `PROGRAM role ROLE …` with [`ROLE_ENV`] in its environment. `PROGRAM` can be any program
//! whose `main` calls [`role_process`] first.

use std::ffi::OsStr;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use millrace_emulator::numerics::Isa;
use millrace_engine::types::{AgentId, Role};
use millrace_params::LogLevel;
use millrace_protocol::launch::{DATA_ENCRYPTION_ENV, DocumentError, IDENTITY_ENV, ROLE_ENV, STARTED_BY_LAUNCHER};
use millrace_protocol::security::{Credentials, Identity, IdentityError, Protection};
use millrace_telemetry::journal::AttemptOutcome;
use millrace_telemetry::logs::{Level, LogFormat};

use super::{Exit, LaunchDocument, watch_parent};
use crate::error::AgentError;
use crate::member::Member;
use crate::roles::{self, RoleArgs, TerminationReport};

/// The command line of a role.
#[derive(Debug, Parser)]
#[command(name = "role", no_binary_name = true, rename_all = "snake_case")]
struct RoleCommand {
    /// One of the five.
    #[arg(value_parser = parse_role)]
    role: Role,
    /// Its number within the role.
    #[arg(long, default_value_t = 0)]
    index: u32,
    /// Where the coordinator's control port is, `host:port`; for every other role.
    #[arg(long)]
    coordinator: Option<String>,
    /// Where to serve: a coordinator its control port, another role its data port. Port 0 takes a free one.
    #[arg(long, default_value = ANY_PORT)]
    listen: String,
    /// Where a coordinator serves its journal.
    #[arg(long, default_value = ANY_PORT)]
    journal_listen: String,
    /// The agent's identity: a directory with tls.crt, tls.key and ca.crt, or `-` for the first line of standard input.
    #[arg(long, env = IDENTITY_ENV)]
    identity: PathBuf,
    /// Whether what travels between agents is encrypted; all agents of a job have the same. Both ends of each
    /// connection prove who they are in any case, and the control and journal ports are always encrypted.
    #[arg(long, env = DATA_ENCRYPTION_ENV, default_value = "on", value_parser = ["on", "off"])]
    data_encryption: String,
    /// Of no effect: for who starts coordinators of 0.1.0, too.
    #[arg(long, hide = true)]
    journal_cert: Option<PathBuf>,
    /// As `--journal_cert`.
    #[arg(long, hide = true)]
    journal_key: Option<PathBuf>,
    /// As `--journal_cert`.
    #[arg(long, hide = true)]
    journal_ca: Option<PathBuf>,
    /// Where to serve `/metrics` and probes; left out, nowhere.
    #[arg(long)]
    metrics_listen: Option<String>,
    /// `host` or `host:port` that others are told to dial; left out, the address it listens on.
    #[arg(long)]
    advertise: Option<String>,
    /// Compute threads; left out, a share of the machine's cores.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Instruction set to use at most; left out, the CPU's best.
    #[arg(long, value_parser = parse_isa)]
    isa: Option<Isa>,
    /// Level of what goes to stderr.
    #[arg(long, default_value = "INFO", value_parser = parse_level)]
    logging: Level,
    /// How that is written: text or json.
    #[arg(long, env = LogFormat::LOG_FORMAT_ENV, default_value_t)]
    log_format: LogFormat,
    /// A coordinator's launch document: a file, or `-` for the first line of standard input.
    #[arg(long)]
    launch: Option<PathBuf>,
    /// A directory for users' files, once for each: with one, all of them lie in these.
    #[arg(long)]
    root: Vec<PathBuf>,
    /// Where a coordinator leaves its outcome when it ends, as a line of JSON of at most 4096 bytes.
    #[arg(long)]
    termination_log: Option<PathBuf>,
}

const ANY_PORT: &str = "127.0.0.1:0";
/// Maximum bytes of credentials on standard input.
const MAX_IDENTITY_BYTES: u64 = 1 << 20;

/// If this process was started as a role, runs the role and returns its exit code; returns `None` otherwise. Must be
/// called first in `main`.
pub fn role_process() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() != Some(OsStr::new("role")) || std::env::var_os(ROLE_ENV).is_none() {
        return None;
    }
    let exit = match RoleCommand::try_parse_from(crate::cli::normalize_flag_spelling(arguments)) {
        Ok(line) => {
            let last_report = TerminationReport::new(line.termination_log.clone());
            match restrict(&line.root).and_then(|()| parse_role_args(line, last_report.clone())) {
                Ok(args) => {
                    watch_parent();
                    roles::run(args)
                }
                Err(failure) => {
                    last_report.write(&AttemptOutcome::from(&failure));
                    refuse(&failure)
                }
            }
        }
        Err(error) => refuse(&AgentError::bad_input(crate::cli::error_sentence(&error))),
    };
    Some(exit.into())
}

/// Restricts the file access of this process to `roots`. Does nothing if `roots` is empty.
fn restrict(roots: &[PathBuf]) -> Result<(), AgentError> {
    if roots.is_empty() {
        return Ok(());
    }
    millrace_roots::restrict_process(roots).map_err(|error| {
        AgentError::bad_input(format!("can't use a directory of the job: {error}"))
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

/// Converts the arguments; reads the identity and a coordinator's launch document.
fn parse_role_args(line: RoleCommand, last_report: TerminationReport) -> Result<RoleArgs, AgentError> {
    let name = line.role.as_str();
    let agent = AgentId::new(line.role, line.index);
    // The identity is read before the launch document, because on standard input it is the first line and the document
    // the second.
    let identity = read_identity(&line.identity)?;
    let launch = match (line.role, &line.launch) {
        (Role::Coordinator, Some(path)) => Some(Box::new(read_launch(path)?)),
        (Role::Coordinator, None) => return Err(AgentError::bad_input("a coordinator needs --launch FILE")),
        (_, Some(_)) => return Err(AgentError::bad_input(format!("--launch is for a coordinator, not for {name}"))),
        (_, None) => None,
    };
    if line.role != Role::Coordinator && line.coordinator.is_none() {
        return Err(AgentError::bad_input(format!("{name} needs --coordinator HOST:PORT")));
    }
    if line.role != Role::Coordinator && line.termination_log.is_some() {
        return Err(AgentError::bad_input(format!("--termination_log is for a coordinator, not for {name}")));
    }
    let data = if line.data_encryption == "off" { Protection::Authenticated } else { Protection::Encrypted };
    Ok(RoleArgs {
        agent,
        member: Member::new(identity, agent, data)?,
        coordinator: line.coordinator,
        listen: line.listen,
        advertise: line.advertise,
        journal_listen: line.journal_listen,
        metrics_listen: line.metrics_listen,
        threads: line.threads.map(usize::from),
        isa: line.isa,
        level: line.logging,
        log_format: line.log_format,
        launch,
        last_report,
        by_launcher: started_by_launcher(),
    })
}

/// Reads an agent's identity: a directory, or the first line of standard input if `path` is `-`.
fn read_identity(path: &Path) -> Result<Identity, AgentError> {
    let credentials = if path == Path::new("-") {
        let mut line = String::new();
        let read = std::io::stdin().lock().take(MAX_IDENTITY_BYTES).read_line(&mut line);
        let cause = |cause| IdentityError::File { path: path.to_owned(), cause };
        read.map_err(cause).and_then(|_| Credentials::from_json_line(&line))
    } else {
        Credentials::read(path)
    };
    credentials.and_then(|credentials| Identity::new(&credentials)).map_err(|error| {
        AgentError::bad_input(format!("the identity {} can't be used: {error}", path.display()))
            .hint("a launcher must give an agent tls.crt, tls.key and ca.crt of its attempt")
    })
}

fn read_launch(path: &Path) -> Result<LaunchDocument, AgentError> {
    let text = if path == Path::new("-") {
        let mut line = String::new();
        // Reads only this line: the launcher writes nothing more, and keeps standard input open.
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    } else {
        std::fs::read_to_string(path)
    };
    let name = path.display();
    let text = text.map_err(|error| {
        AgentError::bad_input(format!("can't read the launch document {name}: {error}"))
            .hint("the launcher of the coordinator writes it; check that the file exists and is readable")
    })?;
    LaunchDocument::from_json(&text).map_err(|error| {
        let hint = match error {
            DocumentError::NewerVersion { .. } => "start it with the image of the release that wrote the document",
            _ => "start it with a document written by `millrace-operator` or `millrace-api` of this release",
        };
        AgentError::bad_input(format!("the launch document {name} can't be read: {error}")).hint(hint)
    })
}

fn parse_role(name: &str) -> Result<Role, String> {
    Role::from_name(name).ok_or_else(|| {
        let names: Vec<_> = Role::ALL.iter().map(|role| role.as_str()).collect();
        format!("the roles are {}", names.join(", "))
    })
}

/// Parses the name of an instruction set.
///
/// # Errors
/// The name is unknown; the error lists the valid ones.
pub fn parse_isa(name: &str) -> Result<Isa, String> {
    Isa::ALL.into_iter().find(|isa| isa.to_string() == name).ok_or_else(|| {
        let names: Vec<_> = Isa::ALL.iter().rev().map(ToString::to_string).collect();
        format!("choose one of {}", names.join(", "))
    })
}

/// Parses a log level by its name in the params.
fn parse_level(name: &str) -> Result<Level, String> {
    Level::ALL.into_iter().find(|level| level.as_str().eq_ignore_ascii_case(name)).ok_or_else(|| {
        let names: Vec<_> = Level::ALL.iter().map(|level| level.as_str()).collect();
        format!("the levels are {}", names.join(", "))
    })
}

/// Converts the log level of a job to that of telemetry.
pub(super) const fn level(level: LogLevel) -> Level {
    match level {
        LogLevel::Debug => Level::Debug,
        LogLevel::Verbose => Level::Verbose,
        LogLevel::Info => Level::Info,
        LogLevel::Warning => Level::Warning,
        LogLevel::Error => Level::Error,
    }
}
