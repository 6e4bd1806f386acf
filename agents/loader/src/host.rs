//! The host as a process of this machine, and the files that it needs.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{LoaderError, spawn};

/// The program of host and workers.
const PROGRAM: &str = include_str!("../python/loader.py");
/// The file of the program of a host process.
pub(crate) const PROGRAM_FILE: &str = "loader.py";
/// Maximum bytes of a line that host and workers print.
const MAX_LINE_BYTES: u64 = 4096;
/// Maximum number of lines of host and workers that are logged in [`LOG_INTERVAL`].
const MAX_LOG_LINES: u32 = 100;
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum bytes of the path of a Unix socket.
const MAX_SOCKET_PATH_BYTES: usize = 100;
/// Environment variables that host and workers inherit. Others may contain credentials.
const INHERITED_VARIABLES: [&str; 10] =
    ["PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "USER"];

/// Starts the host as a process of this machine.
pub(crate) struct HostLauncher {
    interpreter: PathBuf,
    /// The directory of the socket, of the program and of unpacked modules. The host removes it, too.
    scratch: tempfile::TempDir,
}

impl HostLauncher {
    /// Creates the directory of a host that `interpreter` runs.
    ///
    /// # Errors
    /// It can't be created.
    pub(crate) fn new(interpreter: PathBuf) -> Result<Self, LoaderError> {
        Ok(Self { interpreter, scratch: scratch_directory()? })
    }

    /// Returns the directory of the socket, of the program and of unpacked modules.
    pub(crate) fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Starts the host, which connects to `socket`.
    pub(crate) fn start(&self, socket: &Path) -> Result<Child, LoaderError> {
        let Self { interpreter, scratch } = self;
        let scratch = scratch.path();
        let inherited = INHERITED_VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)));
        let started = Command::new(interpreter)
            .arg(scratch.join(PROGRAM_FILE))
            .arg("host")
            .arg(socket)
            .arg(scratch)
            .env_clear()
            .envs(inherited)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut host = started.map_err(LoaderError::system(format!("run {}", interpreter.display())))?;
        if let Some(stderr) = host.stderr.take() {
            spawn("loader-log", move || log_lines(BufReader::new(stderr)))?;
        }
        Ok(host)
    }
}

/// Writes the program of host and workers. A file with this name is complete.
pub(crate) fn write_program(path: &Path) -> Result<(), LoaderError> {
    let draft = path.with_extension("draft");
    let written = std::fs::write(&draft, PROGRAM).and_then(|()| std::fs::rename(&draft, path));
    written.map_err(LoaderError::system(format!("write {}", path.display())))
}

/// Creates a directory for the socket that only this user can enter.
fn scratch_directory() -> Result<tempfile::TempDir, LoaderError> {
    let directory = std::env::temp_dir();
    let is_short = directory.as_os_str().len() + "/millrace-loader-XXXXXX/socket".len() <= MAX_SOCKET_PATH_BYTES;
    let directory = if is_short { directory } else { PathBuf::from("/tmp") };
    let action = || format!("create a directory in {}", directory.display());
    let created = tempfile::Builder::new().prefix("millrace-loader-").tempdir_in(&directory);
    let scratch = created.map_err(LoaderError::system(action()))?;
    let private = std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o700));
    private.map_err(LoaderError::system(action()))?;
    Ok(scratch)
}

/// Logs what host and workers print, at most [`MAX_LOG_LINES`] in [`LOG_INTERVAL`].
fn log_lines(mut output: impl std::io::BufRead) {
    let (mut begin, mut logged, mut dropped) = (Instant::now(), 0, 0_u64);
    let mut line = Vec::new();
    while let Ok(1..) = output.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
        if begin.elapsed() > LOG_INTERVAL {
            if dropped > 0 {
                tracing::info!("{dropped} more lines of the data loader are not logged");
            }
            (begin, logged, dropped) = (Instant::now(), 0, 0);
        }
        if logged < MAX_LOG_LINES {
            tracing::info!("data loader: {}", String::from_utf8_lossy(&line).trim_end());
            logged += 1;
        } else {
            dropped += 1;
        }
        line.clear();
    }
}
