//! How an activation server reads Python datasets: what its command line says.

use std::path::{Path, PathBuf};

use millrace_data::PythonPackage;
use millrace_loader::HostLocation;
use millrace_protocol::launch::{LOADER_PROGRAM_FILE, PACKAGE_PYTHON};

use crate::error::AgentError;

/// How an activation server reads Python datasets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoaderArgs {
    /// Not at all.
    Denied,
    /// By a process with the interpreter that packed the dataset.
    OfPackage,
    /// By this host.
    Host(HostLocation),
}

impl LoaderArgs {
    /// Returns the meaning of the flags `--python` and `--loader_socket`.
    pub fn new(python: Option<PathBuf>, socket: Option<PathBuf>) -> Self {
        match (python, socket) {
            (_, Some(socket)) => {
                let program = socket.with_file_name(LOADER_PROGRAM_FILE);
                Self::Host(HostLocation::Container { socket, program })
            }
            (Some(python), None) if python == Path::new(PACKAGE_PYTHON) => Self::OfPackage,
            (Some(python), None) => Self::Host(HostLocation::Process(python)),
            (None, None) => Self::Denied,
        }
    }

    /// Returns where the host of a dataset runs.
    ///
    /// # Errors
    /// This process may not read Python datasets.
    pub fn location(&self, package: &PythonPackage) -> Result<HostLocation, AgentError> {
        match self {
            Self::Host(location) => Ok(location.clone()),
            Self::OfPackage => Ok(HostLocation::Process(package.interpreter().executable.clone())),
            Self::Denied => {
                let error = AgentError::bad_input("this activation server reads no Python datasets");
                Err(error.hint("train on a machine of your own, or convert the samples to arrays"))
            }
        }
    }
}
