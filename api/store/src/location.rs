//! URLs of databases: parses them, and displays them without passwords.

use std::fmt::{self, Write};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sqlx::any::AnyConnectOptions;

use crate::error::{Error, Result};

/// A database of a supported kind. Its `Display` omits user, password and parameters.
pub(crate) enum DatabaseUrl {
    /// SQLite in the memory of this process.
    Memory,
    /// SQLite in a file.
    File(PathBuf),
    /// PostgreSQL.
    Server(Box<AnyConnectOptions>),
}

impl DatabaseUrl {
    /// Parses a URL. What follows `sqlite:` or `sqlite://` is a plain path, without encoding and without parameters.
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
            return Err(Error::Url(format!("unknown kind of database {scheme:?}")));
        }
        match url.parse() {
            Ok(options) => Ok(Self::Server(Box::new(options))),
            Err(_) => Err(Error::Url("the URL of the database can't be read".to_owned())),
        }
    }

    /// Returns the options to connect. Creates a missing file, with access for this user only; SQLite creates its other
    /// files with the same mode.
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

    /// Returns the directory of the file with all links resolved, so that a link that changes later has no effect.
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

impl fmt::Display for DatabaseUrl {
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

/// Creates an empty file and syncs it and its directory; an existing file is not changed.
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

/// Percent-encodes a path for a URL.
fn encode(path: &Path) -> String {
    let mut encoded = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String can't fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}
