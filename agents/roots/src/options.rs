//! Options for opening a file, in restricted and unrestricted processes.

use std::fs::File;
use std::io;
use std::path::Path;

use cap_std::fs::{Dir, DirBuilder, DirBuilderExt, OpenOptionsExt};
use rustix::fs::OFlags;

use super::{PRIVATE_DIR_MODE, PRIVATE_FILE_MODE, Scope, resolve_scope};

/// How to open a file; corresponds to [`std::fs::OpenOptions`].
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
}

macro_rules! option {
    ($($(#[$doc:meta])* $name:ident),*) => {
        $($(#[$doc])*
        #[must_use]
        pub const fn $name(mut self, $name: bool) -> Self {
            self.$name = $name;
            self
        })*
    };
}

impl OpenOptions {
    /// Creates options without any access.
    pub fn new() -> Self {
        Self::default()
    }

    option!(
        /// Opens for reading.
        read,
        /// Opens for writing.
        write,
        /// Opens for appending.
        append,
        /// Truncates the file.
        truncate,
        /// Creates the file if it does not exist. In a restricted process it is private to its owner, whatever the
        /// umask.
        create,
        /// Creates the file; fails if it exists.
        create_new
    );

    /// Opens the file.
    ///
    /// # Errors
    /// See [`crate::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        match resolve_scope(path.as_ref())? {
            Scope::Ambient(path) => self.open_ambient(path),
            Scope::Within(dir, path) => self.open_inside(dir, path),
        }
    }

    fn open_ambient(&self, path: &Path) -> io::Result<File> {
        let Self { read, write, append, truncate, create, create_new } = *self;
        let mut options = std::fs::OpenOptions::new();
        options.read(read).write(write).append(append).truncate(truncate).create(create).create_new(create_new);
        options.open(path)
    }

    pub(super) fn open_inside(&self, dir: &Dir, path: &Path) -> io::Result<File> {
        let Self { read, write, append, truncate, create, create_new } = *self;
        let mut options = cap_std::fs::OpenOptions::new();
        options.read(read).write(write).append(append).truncate(truncate).create(create).create_new(create_new);
        // Opening a pipe that a user left there must not block; for files the flag has no effect.
        options.mode(PRIVATE_FILE_MODE).custom_flags(NONBLOCK);
        let file = dir.open_with(path, &options)?.into_std();
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, NOT_A_FILE));
        }
        Ok(file)
    }
}

const NONBLOCK: i32 = OFlags::NONBLOCK.bits() as i32;
const NO_LINK: i32 = OFlags::NOFOLLOW.bits() as i32;
const DIRECTORY: i32 = OFlags::DIRECTORY.bits() as i32;

/// Opens a file of a directory for reading, but no link.
pub(super) fn open_no_link(dir: &Dir, name: &Path) -> io::Result<File> {
    let mut options = cap_std::fs::OpenOptions::new();
    let file = dir.open_with(name, options.read(true).custom_flags(NO_LINK | NONBLOCK))?.into_std();
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, NOT_A_FILE)) }
}

/// Opens a directory for reading and syncing, unlike [`Dir::open_dir`], whose descriptors only identify a path.
pub(super) fn open_dir(dir: &Dir, path: &Path) -> io::Result<File> {
    let mut options = cap_std::fs::OpenOptions::new();
    dir.open_with(path, options.read(true).custom_flags(DIRECTORY)).map(cap_std::fs::File::into_std)
}

/// Opens a subdirectory, but no link to one.
pub(super) fn open_dir_no_link(dir: &Dir, name: &Path) -> io::Result<Dir> {
    let mut options = cap_std::fs::OpenOptions::new();
    let file = dir.open_with(name, options.read(true).custom_flags(NO_LINK | DIRECTORY))?;
    Ok(Dir::from_std_file(file.into_std()))
}

const NOT_A_FILE: &str = "not a regular file";

/// Creates a directory and its missing parents, private to their owner.
pub(super) fn private_dirs(dir: &Dir, path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(PRIVATE_DIR_MODE);
    dir.create_dir_with(path, &builder)
}
