//! The container that reads a Python dataset for the activation server of its pod.
//!
//! The activation server writes the program of the container into a directory that both share, beside its socket. So
//! both have the same version, whatever image the container has.

use std::path::{Path, PathBuf};

/// The program in the shared directory.
pub const LOADER_PROGRAM_FILE: &str = "loader.py";
/// The socket of the activation server in the shared directory.
const LOADER_SOCKET_FILE: &str = "socket";
/// The role of the program that has no access to the network.
const ISOLATED_HOST: &str = "isolated-host";
/// Seconds between two looks for the program. The activation server starts at the same time.
const LOOK_INTERVAL_SECONDS: f64 = 0.1;

/// Returns the path of the socket in the shared directory.
pub fn loader_socket(directory: &Path) -> PathBuf {
    directory.join(LOADER_SOCKET_FILE)
}

/// Returns the command of the container: waits for the program in `directory` and becomes it. `scratch` is a directory
/// that the container may write to.
pub fn loader_command(directory: &Path, scratch: &Path) -> Vec<String> {
    let wait = format!(
        "import os, sys, time\n\
         directory, scratch = sys.argv[1:]\n\
         program = os.path.join(directory, '{LOADER_PROGRAM_FILE}')\n\
         while not os.path.exists(program): time.sleep({LOOK_INTERVAL_SECONDS})\n\
         socket = os.path.join(directory, '{LOADER_SOCKET_FILE}')\n\
         os.execv(sys.executable, [sys.executable, program, '{ISOLATED_HOST}', socket, scratch])\n"
    );
    let paths = [directory, scratch].map(|path| path.display().to_string());
    ["python3".to_owned(), "-c".to_owned(), wait].into_iter().chain(paths).collect()
}
