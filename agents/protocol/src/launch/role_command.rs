//! The command line of a role process, written and read by one type:
//!
//! ```
//! use millrace_engine::types::Role;
//! use millrace_protocol::launch::{DocumentSource, RoleCommand};
//!
//! let command = RoleCommand {
//!     launch: Some(DocumentSource::Stdin),
//!     ..RoleCommand::new(Role::Coordinator, 0)
//! };
//! assert_eq!(command.to_args(), ["role", "coordinator", "--index=0", "--launch=-"]);
//! assert_eq!(RoleCommand::parse(command.to_args()).unwrap(), command);
//! ```
//!
//! * [`RoleCommand::parse`] returns the command that [`RoleCommand::to_args`] wrote, unless an environment variable
//!   supplies a flag that is missing.
//! * Every argument is bounded: its length, the number of directories, the range of a number.
//! * Arguments are `--name=value`, so that a value may begin with a dash. Agents of release 0.1.0 read all flags that
//!   [`RoleCommand::to_args`] writes for a pod.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, Parser};
use millrace_emulator::numerics::Isa;
use millrace_engine::types::{AgentId, Role};
use millrace_telemetry::logs::{Level, LogFormat};

use super::{DATA_ENCRYPTION_ENV, IDENTITY_ENV, MODEL_DIR_BUCKET_ENV};
use crate::security::Protection;

/// The first argument of a role process.
pub const ROLE_SUBCOMMAND: &str = "role";
/// Value of `--python` for the interpreter that packed a dataset.
pub const PACKAGE_PYTHON: &str = "auto";
/// Maximum bytes of a path: the system's PATH_MAX.
pub const MAX_PATH_BYTES: usize = 4096;
/// Maximum bytes of an address: a DNS name of 253 bytes, a colon and a port.
pub const MAX_ADDRESS_BYTES: usize = 253 + 1 + 5;
/// Maximum bytes of the address of a bucket, whose prefix has up to 1024.
pub const MAX_BUCKET_ADDRESS_BYTES: usize = 1024;
/// Maximum number of `--root`: far more than the volumes that a server offers to one job.
pub const MAX_ROOTS: usize = 1024;

/// The arguments of a role process. A flag that is `None` is not written; the process then uses its default.
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "role", rename_all = "snake_case")]
pub struct RoleCommand {
    /// The role.
    pub role: Role,
    /// Number of the agent within its role.
    #[arg(long, default_value_t = 0)]
    pub index: u32,
    /// `host:port` where `/metrics` and probes are served; served nowhere by default.
    #[arg(long, value_parser = host_and_port)]
    pub metrics_listen: Option<String>,
    /// `host:port` of the port for other processes: control of a coordinator, data of another role. Port 0, as in the
    /// default, is any free one.
    #[arg(long, value_parser = host_and_port)]
    pub listen: Option<String>,
    /// `host:port` where a coordinator serves its journal; by default as `listen`.
    #[arg(long, value_parser = host_and_port)]
    pub journal_listen: Option<String>,
    /// The launch document of a coordinator.
    #[arg(long, value_parser = document_source())]
    pub launch: Option<DocumentSource>,
    /// File to which a coordinator writes its outcome when it ends, as a line of JSON of at most 4096 bytes.
    #[arg(long, value_parser = bounded_path())]
    pub termination_log: Option<PathBuf>,
    /// Address `s3://BUCKET/PREFIX` to which a coordinator uploads its model_dir. Endpoint, region and credentials are
    /// those of the environment (`AWS_*`).
    #[arg(long, env = MODEL_DIR_BUCKET_ENV, value_parser = bounded_bucket_address)]
    pub model_dir_bucket: Option<String>,
    /// Files for coordinators of release 0.1.0.
    #[command(flatten)]
    pub v1_journal: V1JournalFiles,
    /// `host` or `host:port` at which other agents dial this one; by default the address that it listens on.
    #[arg(long, value_parser = bounded_address)]
    pub advertise: Option<String>,
    /// `host:port` of the coordinator's control port, for every other role.
    #[arg(long, value_parser = host_and_port)]
    pub coordinator: Option<String>,
    /// The agent's identity: a directory with tls.crt, tls.key and ca.crt, or a line of standard input. Required, by
    /// flag or environment variable.
    #[arg(long, env = IDENTITY_ENV, value_parser = document_source())]
    pub identity: Option<DocumentSource>,
    /// Protection of the data between agents, which all agents of a job share; encrypted by default. Both ends of a
    /// connection authenticate in any case, and control and journal ports are always encrypted.
    #[arg(long, env = DATA_ENCRYPTION_ENV)]
    pub data_encryption: Option<Protection>,
    /// Whether payloads are sent as locations in shared memory to agents that run on the same machine as the same user
    /// and have the same setting, `on` or `off`; off by default.
    #[arg(long, value_parser = switch)]
    pub shared_memory: Option<bool>,
    /// Least severe level of the log on standard error; INFO by default.
    #[arg(long)]
    pub logging: Option<Level>,
    /// Format of that log; text by default.
    #[arg(long, env = LogFormat::LOG_FORMAT_ENV)]
    pub log_format: Option<LogFormat>,
    /// Directories to which the process restricts its access to users' files; if there are none, access is not
    /// restricted.
    #[arg(long = "root", value_parser = bounded_path())]
    pub roots: Vec<PathBuf>,
    /// Compute threads, at least 1; by default a share of the machine's cores.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Best instruction set that the agent may use; by default the best one of the CPU.
    #[arg(long)]
    pub isa: Option<Isa>,
    /// Interpreter with which an activation server reads Python datasets, or [`PACKAGE_PYTHON`]. Without it and without
    /// `loader_socket` none are read.
    #[arg(long, value_parser = bounded_path())]
    pub python: Option<PathBuf>,
    /// Socket to which the container connects that reads Python datasets for an activation server.
    #[arg(long, value_parser = bounded_path())]
    pub loader_socket: Option<PathBuf>,
}

/// The certificate of the journal's port as coordinators of release 0.1.0 expect it. Later ones ignore it.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(rename_all = "snake_case")]
pub struct V1JournalFiles {
    #[arg(long, hide = true, value_parser = bounded_path())]
    journal_cert: Option<PathBuf>,
    #[arg(long, hide = true, value_parser = bounded_path())]
    journal_key: Option<PathBuf>,
    #[arg(long, hide = true, value_parser = bounded_path())]
    journal_ca: Option<PathBuf>,
}

impl V1JournalFiles {
    /// Names the files tls.crt, tls.key and ca.crt in `directory`.
    pub fn in_directory(directory: &Path) -> Self {
        let file = |name| Some(directory.join(name));
        Self { journal_cert: file("tls.crt"), journal_key: file("tls.key"), journal_ca: file("ca.crt") }
    }
}

/// Where a process reads a document from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentSource {
    /// `-`: the next line of standard input. A coordinator reads its identity first, then the launch document.
    Stdin,
    /// A file or directory.
    Path(PathBuf),
}

const STDIN: &str = "-";

impl DocumentSource {
    /// Returns the value of the flag, which also names the source in messages.
    pub fn as_path(&self) -> &Path {
        match self {
            Self::Stdin => Path::new(STDIN),
            Self::Path(path) => path,
        }
    }
}

impl From<PathBuf> for DocumentSource {
    fn from(path: PathBuf) -> Self {
        if path == Path::new(STDIN) { Self::Stdin } else { Self::Path(path) }
    }
}

/// A command line that is not that of a role.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Debug, thiserror::Error)]
pub enum RoleCommandError {
    /// The first argument is another one than [`ROLE_SUBCOMMAND`].
    #[error("the first argument of a role process is `{ROLE_SUBCOMMAND}`")]
    NotARole,
    /// An argument is unknown, missing, or has an invalid value.
    #[error(transparent)]
    Invalid(#[from] clap::Error),
    /// A coordinator without a launch document.
    #[error("a coordinator needs --launch FILE")]
    MissingLaunch,
    /// Another role without the address of its coordinator.
    #[error("{0} needs --coordinator HOST:PORT")]
    MissingCoordinator(Role),
    /// A flag of coordinators, given to another role.
    #[error("{flag} is for a coordinator, not for {role}")]
    CoordinatorOnly { flag: &'static str, role: Role },
    /// More than [`MAX_ROOTS`] directories.
    #[error("{0} directories are given by --root; at most {MAX_ROOTS} are accepted")]
    TooManyRoots(usize),
}

/// An argument with an invalid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidArgument {
    /// An address without a port.
    #[error("expected HOST:PORT with a port up to 65535")]
    HostAndPort,
    /// An empty address, or one with spaces or control characters.
    #[error("expected an address without spaces")]
    Address,
    /// A setting that is neither on nor off.
    #[error("choose on or off")]
    Switch,
    /// An address or a path that is too long.
    #[error("longer than {0} bytes")]
    TooLong(usize),
}

impl RoleCommand {
    /// Returns the command line of `role`-`index` with defaults for everything else. It is complete once a coordinator
    /// has its launch document, another role the address of its coordinator, and each its identity.
    pub fn new(role: Role, index: u32) -> Self {
        Self {
            role,
            index,
            metrics_listen: None,
            listen: None,
            journal_listen: None,
            launch: None,
            termination_log: None,
            model_dir_bucket: None,
            v1_journal: V1JournalFiles::default(),
            advertise: None,
            coordinator: None,
            identity: None,
            data_encryption: None,
            shared_memory: None,
            logging: None,
            log_format: None,
            roots: Vec::new(),
            threads: None,
            isa: None,
            python: None,
            loader_socket: None,
        }
    }

    /// Returns the agent that the process runs.
    pub const fn agent(&self) -> AgentId {
        AgentId::new(self.role, self.index)
    }

    /// Returns the arguments after the name of the program, [`ROLE_SUBCOMMAND`] included.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args = ArgWriter(vec![ROLE_SUBCOMMAND.into(), self.role.as_str().into()]);
        args.flag("index", Some(self.index.to_string()));
        args.flag("metrics_listen", self.metrics_listen.as_ref());
        args.flag("listen", self.listen.as_ref());
        args.flag("journal_listen", self.journal_listen.as_ref());
        args.flag("launch", self.launch.as_ref().map(DocumentSource::as_path));
        args.flag("termination_log", self.termination_log.as_ref());
        args.flag("model_dir_bucket", self.model_dir_bucket.as_ref());
        args.flag("journal_cert", self.v1_journal.journal_cert.as_ref());
        args.flag("journal_key", self.v1_journal.journal_key.as_ref());
        args.flag("journal_ca", self.v1_journal.journal_ca.as_ref());
        args.flag("advertise", self.advertise.as_ref());
        args.flag("coordinator", self.coordinator.as_ref());
        args.flag("identity", self.identity.as_ref().map(DocumentSource::as_path));
        args.flag("data_encryption", self.data_encryption.map(Protection::as_switch));
        args.flag("shared_memory", self.shared_memory.map(|is_on| if is_on { SWITCH_ON } else { SWITCH_OFF }));
        args.flag("logging", self.logging.map(Level::as_str));
        args.flag("log_format", self.log_format.map(|format| format.to_string()));
        self.roots.iter().for_each(|root| args.flag("root", Some(root)));
        args.flag("threads", self.threads.map(|threads| threads.to_string()));
        args.flag("isa", self.isa.map(|isa| isa.to_string()));
        args.flag("python", self.python.as_ref());
        args.flag("loader_socket", self.loader_socket.as_ref());
        args.0
    }

    /// Reads the arguments after the name of the program. Flags that are missing are read from their environment
    /// variables.
    ///
    /// # Errors
    /// See [`RoleCommandError`].
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, RoleCommandError> {
        let mut args = args.into_iter().peekable();
        // clap takes the first argument for the name of the program.
        if args.peek().map(OsString::as_os_str) != Some(OsStr::new(ROLE_SUBCOMMAND)) {
            return Err(RoleCommandError::NotARole);
        }
        let command = Self::try_parse_from(args)?;
        command.check()?;
        Ok(command)
    }

    /// Checks that the flags are those of the role.
    fn check(&self) -> Result<(), RoleCommandError> {
        let role = self.role;
        if self.roots.len() > MAX_ROOTS {
            return Err(RoleCommandError::TooManyRoots(self.roots.len()));
        }
        if role == Role::Coordinator {
            return if self.launch.is_some() { Ok(()) } else { Err(RoleCommandError::MissingLaunch) };
        }
        let coordinator_only = [
            ("--launch", self.launch.is_some()),
            ("--termination_log", self.termination_log.is_some()),
            ("--model_dir_bucket", self.model_dir_bucket.is_some()),
        ];
        if let Some((flag, _)) = coordinator_only.into_iter().find(|(_, is_given)| *is_given) {
            return Err(RoleCommandError::CoordinatorOnly { flag, role });
        }
        if self.coordinator.is_none() { Err(RoleCommandError::MissingCoordinator(role)) } else { Ok(()) }
    }
}

/// Arguments in the form `--name=value`.
pub(super) struct ArgWriter(pub(super) Vec<OsString>);

impl ArgWriter {
    /// Adds a flag, if it has a value.
    pub(super) fn flag(&mut self, name: &str, value: Option<impl AsRef<OsStr>>) {
        let Some(value) = value else { return };
        let mut argument = OsString::from(format!("--{name}="));
        argument.push(value);
        self.0.push(argument);
    }
}

const SWITCH_ON: &str = "on";
const SWITCH_OFF: &str = "off";

/// Reads a setting that is on or off.
fn switch(text: &str) -> Result<bool, InvalidArgument> {
    match text {
        SWITCH_ON => Ok(true),
        SWITCH_OFF => Ok(false),
        _ => Err(InvalidArgument::Switch),
    }
}

/// Checks the length of the address of a bucket. The coordinator reads it.
fn bounded_bucket_address(address: &str) -> Result<String, InvalidArgument> {
    if address.len() > MAX_BUCKET_ADDRESS_BYTES {
        return Err(InvalidArgument::TooLong(MAX_BUCKET_ADDRESS_BYTES));
    }
    Ok(address.to_owned())
}

/// Checks an address: a host, and a port if there is one.
fn bounded_address(address: &str) -> Result<String, InvalidArgument> {
    if address.len() > MAX_ADDRESS_BYTES {
        return Err(InvalidArgument::TooLong(MAX_ADDRESS_BYTES));
    }
    let is_invalid = |c: char| c.is_whitespace() || c.is_control();
    if address.is_empty() || address.contains(is_invalid) {
        return Err(InvalidArgument::Address);
    }
    Ok(address.to_owned())
}

/// Checks an address with a port.
pub(super) fn host_and_port(address: &str) -> Result<String, InvalidArgument> {
    let (host, port) = address.rsplit_once(':').ok_or(InvalidArgument::HostAndPort)?;
    if host.is_empty() || u16::from_str(port).is_err() {
        return Err(InvalidArgument::HostAndPort);
    }
    bounded_address(address)
}

pub(super) fn bounded_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.as_os_str().len() {
        ..=MAX_PATH_BYTES => Ok(path),
        _ => Err(InvalidArgument::TooLong(MAX_PATH_BYTES)),
    })
}

fn document_source() -> impl TypedValueParser<Value = DocumentSource> {
    bounded_path().map(DocumentSource::from)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use clap::CommandFactory;

    use super::*;

    /// Returns a command line of `role` with a value for every flag that the role may have.
    fn complete(role: Role) -> RoleCommand {
        let path = |text: &[u8]| PathBuf::from(OsString::from_vec(text.to_vec()));
        let is_coordinator = role == Role::Coordinator;
        let file = DocumentSource::Path("/etc/a b/launch.json".into());
        RoleCommand {
            metrics_listen: Some("0.0.0.0:9090".to_owned()),
            listen: Some("[::1]:0".to_owned()),
            journal_listen: Some("localhost:7001".to_owned()),
            launch: is_coordinator.then_some(file),
            termination_log: is_coordinator.then(|| path(b"-last")),
            model_dir_bucket: is_coordinator.then(|| "s3://runs/team/job".to_owned()),
            v1_journal: V1JournalFiles::in_directory(Path::new("/etc/identity")),
            advertise: Some("$(POD_IP)".to_owned()),
            coordinator: (!is_coordinator).then(|| "job-coordinator.team.svc:7000".to_owned()),
            identity: Some(DocumentSource::Stdin),
            data_encryption: Some(Protection::Authenticated),
            shared_memory: Some(true),
            logging: Some(Level::Verbose),
            log_format: Some(LogFormat::Json),
            roots: vec![path(b"/data/\xff"), path(b"--root=x")],
            threads: Some(u16::MAX),
            isa: Some(Isa::Avx2),
            python: Some(path(b"/opt/\xffpython")),
            loader_socket: Some("/run/loader/socket".into()),
            ..RoleCommand::new(role, u32::MAX)
        }
    }

    fn parse(line: &str) -> Result<RoleCommand, RoleCommandError> {
        RoleCommand::parse(line.split(' ').map(OsString::from))
    }

    #[test]
    fn parse_returns_what_to_args_wrote() {
        for role in Role::ALL {
            let command = complete(role);
            assert_eq!(RoleCommand::parse(command.to_args()).unwrap(), command);
            let needed =
                RoleCommand { launch: command.launch, coordinator: command.coordinator, ..RoleCommand::new(role, 0) };
            assert_eq!(needed.to_args().len(), 4, "{needed:?}");
            assert_eq!(RoleCommand::parse(needed.to_args()).unwrap(), needed);
        }
    }

    #[test]
    fn to_args_writes_every_flag_that_parse_reads() {
        let written = [Role::Coordinator, Role::Cs2].map(|role| complete(role).to_args()).concat();
        for flag in RoleCommand::command().get_arguments().filter_map(|argument| argument.get_long()) {
            let prefix = format!("--{flag}=");
            assert!(
                written.iter().any(|argument| argument.as_encoded_bytes().starts_with(prefix.as_bytes())),
                "{flag}"
            );
        }
    }

    #[test]
    fn roles_and_their_flags_are_checked() {
        assert!(matches!(parse("train -p a.yaml"), Err(RoleCommandError::NotARole)));
        assert!(matches!(parse("role coordinator"), Err(RoleCommandError::MissingLaunch)));
        assert!(matches!(parse("role cs2"), Err(RoleCommandError::MissingCoordinator(Role::Cs2))));
        let flags = |role| complete(role).to_args().into_iter().skip(2).collect::<Vec<_>>();
        let other = flags(Role::SwarmX);
        let coordinator_only: Vec<_> = flags(Role::Coordinator).into_iter().filter(|it| !other.contains(it)).collect();
        assert!(coordinator_only.len() > 1, "{coordinator_only:?}");
        for argument in coordinator_only {
            let name = argument.to_str().unwrap().split('=').next().unwrap().to_owned();
            let line = ["role", "swarmx", "--coordinator=a:1"].map(OsString::from).into_iter().chain([argument]);
            let refusal = RoleCommand::parse(line).map_err(|error| error.to_string());
            assert_eq!(refusal, Err(format!("{name} is for a coordinator, not for swarmx")));
        }
        let roots = " --root=/a".repeat(MAX_ROOTS);
        assert!(parse(&format!("role cs2 --coordinator a:1{roots}")).is_ok());
        let error = parse(&format!("role cs2 --coordinator a:1{roots} --root=/a")).unwrap_err();
        assert!(matches!(error, RoleCommandError::TooManyRoots(1025)));
    }

    #[test]
    fn invalid_values_are_refused_with_a_reason() {
        let long_host = format!("{}:1", "h".repeat(MAX_ADDRESS_BYTES - 1));
        let long_path = "p".repeat(MAX_PATH_BYTES + 1);
        for (arguments, reason) in [
            ("role shard", "the roles are coordinator, memoryx"),
            ("role cs2 --index=-1", "'--index <INDEX>'"),
            ("role cs2 --index 4294967296", "4294967295"),
            ("role cs2 --threads 0", "1..=65535"),
            ("role cs2 --threads 65536", "1..=65535"),
            ("role cs2 --isa sse", "choose one of avx512, avx2, neon or portable"),
            ("role cs2 --logging LOUD", "VERBOSE"),
            ("role cs2 --log_format xml", "text and json"),
            ("role cs2 --data_encryption maybe", "choose on or off"),
            ("role cs2 --shared_memory true", "choose on or off"),
            ("role cs2 --coordinator host", "HOST:PORT"),
            ("role cs2 --coordinator :7000", "HOST:PORT"),
            ("role cs2 --coordinator host:65536", "HOST:PORT"),
            ("role cs2 --listen=a\tb:1", "without spaces"),
            (&format!("role cs2 --coordinator {long_host}"), "longer than 259 bytes"),
            (&format!("role cs2 --root {long_path}"), "longer than 4096 bytes"),
            (&format!("role coordinator --launch {long_path}"), "longer than 4096 bytes"),
            ("role cs2 --index 1 --index 2", "multiple times"),
            ("role cs2 --indices 1", "unexpected argument"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(matches!(error, RoleCommandError::Invalid(_)), "{arguments}: {error}");
            assert!(error.to_string().contains(reason), "{arguments}: {error}");
        }
    }
}
