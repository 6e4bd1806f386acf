//! Restricts a process to certain directories for users' files, with file operations that can't leave them.
//!
//! A server, and every agent that it starts, calls [`restrict_process`] once, with the directories that users may name:
//! the volumes of the server, its inputs and its own data. From then on each operation of this crate resolves its path
//! below the one of these directories that contains it, component by component with open directories (`openat2` with
//! `RESOLVE_BENEATH` if the kernel has it). A path outside of all directories, a `..`, and a symbolic link that leads
//! out are rejected, even if a directory is replaced by a link during the operation. A link to another path in the same
//! directory is followed.
//!
//! ```no_run
//! millrace_roots::restrict_process(["/srv/corpora", "/srv/results"])?;
//! let text = millrace_roots::open("/srv/corpora/kjv.txt")?;
//! assert!(millrace_roots::open("/etc/passwd").is_err());
//! # std::io::Result::Ok(())
//! ```
//!
//! A process that never calls [`restrict_process`] (a run on the command line, or an agent in a pod, which is isolated
//! by its mounts) uses every path as it is.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use cap_std::ambient_authority;
use cap_std::fs::Dir;

mod options;
pub use options::OpenOptions;

/// Mode of directories and files that only their owner may use.
pub const PRIVATE_DIR_MODE: u32 = 0o700;
/// See [`PRIVATE_DIR_MODE`].
pub const PRIVATE_FILE_MODE: u32 = 0o600;

static ROOTS: OnceLock<AllowedDirs> = OnceLock::new();

/// Restricts this process permanently to these directories, which must exist. They are trusted: links on the way to
/// them are followed.
///
/// # Errors
/// A directory can't be opened, or the process is restricted already.
pub fn restrict_process<P: AsRef<Path>>(directories: impl IntoIterator<Item = P>) -> io::Result<()> {
    let roots = AllowedDirs::open(directories)?;
    ROOTS.set(roots).map_err(|_| io::Error::other("this process is already restricted to its directories"))
}

/// The allowed directories, each held open.
#[derive(Debug, Default)]
struct AllowedDirs(Vec<(PathBuf, Dir)>);

impl AllowedDirs {
    fn open<P: AsRef<Path>>(directories: impl IntoIterator<Item = P>) -> io::Result<Self> {
        let open = |path: P| {
            let path = path.as_ref();
            let dir = Dir::open_ambient_dir(path, ambient_authority());
            let dir = dir.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
            Ok((path.to_owned(), dir))
        };
        directories.into_iter().map(open).collect::<io::Result<_>>().map(Self)
    }

    /// Finds the directory that contains `path`, the innermost one if they are nested, and the rest of the path.
    fn find_containing<'a>(&'a self, path: &'a Path) -> io::Result<Scope<'a>> {
        let refused = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why.to_owned()));
        if path.components().any(|part| part == Component::ParentDir) {
            return refused("paths with `..` are not allowed");
        }
        let holders = self.0.iter().filter(|(root, _)| path.starts_with(root));
        let Some((root, dir)) = holders.max_by_key(|(root, _)| root.components().count()) else {
            return refused("the path is outside the directories that this process may use");
        };
        let rest = path.strip_prefix(root).unwrap_or(path);
        Ok(Scope::Within(dir, if rest.as_os_str().is_empty() { Path::new(".") } else { rest }))
    }
}

/// The scope in which a path is resolved.
enum Scope<'a> {
    /// The whole file system: the process is not restricted.
    Ambient(&'a Path),
    /// Below an open directory.
    Within(&'a Dir, &'a Path),
}

fn resolve_scope(path: &Path) -> io::Result<Scope<'_>> {
    ROOTS.get().map_or(Ok(Scope::Ambient(path)), |roots| roots.find_containing(path))
}

/// Opens a file for reading. Devices, pipes and directories are rejected: opening or reading one could block forever.
///
/// # Errors
/// Errors of the system; [`io::ErrorKind::PermissionDenied`] if the path leads out of the directories.
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    OpenOptions::new().read(true).open(path)
}

/// Opens a file below a directory for reading. No component of the path below that directory may be a symbolic link.
///
/// # Errors
/// See [`open`]; also if a component of the path is not a plain name.
pub fn open_without_links(directory: impl AsRef<Path>, inside: impl AsRef<Path>) -> io::Result<File> {
    let mut dir = match resolve_scope(directory.as_ref())? {
        Scope::Ambient(path) => Dir::open_ambient_dir(path, ambient_authority())?,
        Scope::Within(dir, path) => dir.open_dir(path)?,
    };
    let mut parts = inside.as_ref().components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else { break };
        if parts.peek().is_none() {
            return options::open_no_link(&dir, Path::new(name));
        }
        dir = options::open_dir_no_link(&dir, Path::new(name))?;
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a path of plain names"))
}

/// Creates a file, or truncates an existing one.
///
/// # Errors
/// See [`open`].
pub fn create(path: impl AsRef<Path>) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).open(path)
}

/// Reads a whole file.
///
/// # Errors
/// See [`open`].
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut open(path)?, &mut bytes)?;
    Ok(bytes)
}

/// Returns the metadata of a path, following links.
///
/// # Errors
/// See [`open`].
pub fn metadata(path: impl AsRef<Path>) -> io::Result<std::fs::Metadata> {
    match resolve_scope(path.as_ref())? {
        Scope::Ambient(path) => std::fs::metadata(path),
        Scope::Within(dir, path) => {
            // Without opening the file: opening a pipe would block until its other end is opened.
            let about = dir.metadata(path)?;
            if about.is_dir() {
                return dir.open_dir(path)?.into_std_file().metadata();
            }
            if about.is_file() {
                return dir.open(path)?.into_std().metadata();
            }
            Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a directory"))
        }
    }
}

/// Returns whether the path is a directory, following links.
pub fn is_dir(path: impl AsRef<Path>) -> bool {
    metadata(path).is_ok_and(|about| about.is_dir())
}

/// Returns whether the path is a file, following links.
pub fn is_file(path: impl AsRef<Path>) -> bool {
    metadata(path).is_ok_and(|about| about.is_file())
}

/// Creates a directory and its missing parents. In a restricted process they are private to their owner, whatever the
/// umask.
///
/// # Errors
/// See [`open`].
pub fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    match resolve_scope(path.as_ref())? {
        Scope::Ambient(path) => std::fs::create_dir_all(path),
        Scope::Within(dir, path) => options::private_dirs(dir, path),
    }
}

/// Opens a directory as a file, to sync it to disk.
///
/// # Errors
/// See [`open`].
pub fn open_dir(path: impl AsRef<Path>) -> io::Result<File> {
    match resolve_scope(path.as_ref())? {
        Scope::Ambient(path) => File::open(path),
        Scope::Within(dir, path) => options::open_dir(dir, path),
    }
}

/// Renames a file or directory within the same directory tree.
///
/// # Errors
/// See [`open`].
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    match (resolve_scope(from.as_ref())?, resolve_scope(to.as_ref())?) {
        (Scope::Within(from_dir, from), Scope::Within(to_dir, to)) => from_dir.rename(from, to_dir, to),
        _ => std::fs::rename(from, to),
    }
}

/// Creates a hard link.
///
/// # Errors
/// See [`open`].
pub fn hard_link(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    match (resolve_scope(from.as_ref())?, resolve_scope(to.as_ref())?) {
        (Scope::Within(from_dir, from), Scope::Within(to_dir, to)) => from_dir.hard_link(from, to_dir, to),
        _ => std::fs::hard_link(from, to),
    }
}

/// Removes a file, or a symbolic link itself.
///
/// # Errors
/// See [`open`].
pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    match resolve_scope(path.as_ref())? {
        Scope::Ambient(path) => std::fs::remove_file(path),
        Scope::Within(dir, path) => dir.remove_file(path),
    }
}

/// Removes a directory with its content; symbolic links in it are removed themselves.
///
/// # Errors
/// See [`open`].
pub fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    match resolve_scope(path.as_ref())? {
        Scope::Ambient(path) => std::fs::remove_dir_all(path),
        Scope::Within(dir, path) => dir.remove_dir_all(path),
    }
}

/// An entry of a directory.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its path: the path of the directory and its name.
    pub path: PathBuf,
    /// Whether it is a directory, not a link to one.
    pub is_dir: bool,
    /// Whether it is a file, not a link to one.
    pub is_file: bool,
}

impl Entry {
    /// Returns its name in the directory, or an empty string if that is not UTF-8.
    pub fn name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }
}

/// Lists a directory, in unspecified order.
///
/// # Errors
/// See [`open`].
pub fn read_dir(path: impl AsRef<Path>) -> io::Result<Vec<Entry>> {
    let path = path.as_ref();
    let entry = |name: std::ffi::OsString, is_dir, is_file| Entry { path: path.join(name), is_dir, is_file };
    match resolve_scope(path)? {
        Scope::Ambient(path) => std::fs::read_dir(path)?
            .map(|found| {
                let found = found?;
                let kind = found.file_type()?;
                Ok(entry(found.file_name(), kind.is_dir(), kind.is_file()))
            })
            .collect(),
        Scope::Within(dir, path) => dir
            .read_dir(path)?
            .map(|found| {
                let found = found?;
                let kind = found.file_type()?;
                Ok(entry(found.file_name(), kind.is_dir(), kind.is_file()))
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests;
