//! Where a database is: what a URL says, and how to say it without its password.

use std::fmt::{self, Write};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sqlx::any::AnyConnectOptions;

use crate::error::{Error, Result};

/// A database of one of the kinds we know. Its Display has no user, no password and no parameters.
pub(crate) enum Location {
    /// SQLite in this process' memory, gone with it.
    Memory,
    /// SQLite in a file.
    File(PathBuf),
    /// PostgreSQL.
    Server(Box<AnyConnectOptions>),
}

impl Location {
    /// Reads a URL. After `sqlite:` or `sqlite://` stands a path as it is, with nothing encoded and no parameters.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        if let Some(path) = url.strip_prefix("sqlite:") {
            return match path.strip_prefix("//").unwrap_or(path) {
                ":memory:" => Ok(Self::Memory),
                "" => Err(Error::Url("the URL of the database has no path".to_owned())),
                path => Ok(Self::File(path.into())),
            };
        }
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        if !["postgres", "postgresql"].contains(&scheme) {
            return Err(Error::Url(format!("databases of the kind {scheme:?} are not known")));
        }
        match url.parse() {
            Ok(options) => Ok(Self::Server(Box::new(options))),
            Err(_) => Err(Error::Url("the URL of the database can't be read".to_owned())),
        }
    }

    /// Makes the file where there is none, for nobody but this user, and says how to connect. SQLite gives its other files
    /// the same mode.
    pub(crate) fn prepare(&self) -> Result<AnyConnectOptions> {
        match self {
            Self::Memory => options("sqlite::memory:"),
            Self::Server(options) => Ok((**options).clone()),
            Self::File(path) => {
                let absolute = self.directory(path)?.join(path.file_name().unwrap_or_default());
                create(&absolute).map_err(|cause| self.unwritable(&cause))?;
                options(&format!("sqlite://{}?mode=rw", encode(&absolute)))
            }
        }
    }

    /// The directory of the file, without links: what is resolved now stays what is meant.
    fn directory(&self, path: &Path) -> Result<PathBuf> {
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        directory.canonicalize().map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => Error::NoDirectory { directory: directory.to_owned() },
            _ => self.unwritable(&cause),
        })
    }

    pub(crate) fn unwritable(&self, cause: &impl fmt::Display) -> Error {
        Error::Unwritable { location: self.to_string(), cause: cause.to_string() }
    }

    pub(crate) fn unreachable(&self, cause: String) -> Error {
        Error::Unreachable { location: self.to_string(), cause }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("sqlite::memory:"),
            Self::File(path) => path.display().fmt(f),
            Self::Server(options) => {
                let url = &options.database_url;
                let socket = url.query_pairs().find(|(key, _)| key == "host").map(|(_, host)| host.into_owned());
                let host = url.host_str().map(str::to_owned).or(socket).unwrap_or_default();
                let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
                write!(f, "postgres://{host}{port}{}", url.path())
            }
        }
    }
}

fn options(url: &str) -> Result<AnyConnectOptions> {
    url.parse().map_err(|_| Error::Url("the path of the database can't be part of a URL".to_owned()))
}

/// Makes an empty file that a power cut will not take back; one that is there stays as it is.
fn create(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => {
            file.sync_all()?;
            path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// A path as part of a URL.
fn encode(path: &Path) -> String {
    let mut encoded = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}
