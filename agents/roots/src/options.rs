//! How a file is opened, in a limited process and in any other.

use std::fs::File;
use std::io;
use std::path::Path;

use cap_std::fs::{Dir, DirBuilder, DirBuilderExt, OpenOptionsExt};
use rustix::fs::OFlags;

use super::{PRIVATE_DIR_MODE, PRIVATE_FILE_MODE, Scope, resolve_scope};

/// What a file is opened for, as [`std::fs::OpenOptions`] has it.
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
    /// For nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    option!(
        /// To be read.
        read,
        /// To be written.
        write,
        /// To be written at its end.
        append,
        /// To be emptied.
        truncate,
        /// To be made where it is not there. In a limited process it is for its owner only, whatever the umask.
        create,
        /// To be made, and not to be there yet.
        create_new
    );

    /// Opens the file.
    ///
    /// # Errors
    /// As [`crate::open`].
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
        // A pipe that a user left there must not be waited for; on files the flag has no effect.
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

/// Opens a file of a directory to be read, and no link.
pub(super) fn open_no_link(dir: &Dir, name: &Path) -> io::Result<File> {
    let mut options = cap_std::fs::OpenOptions::new();
    let file = dir.open_with(name, options.read(true).custom_flags(NO_LINK | NONBLOCK))?.into_std();
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, NOT_A_FILE)) }
}

/// Opens a directory to be read and synced, which [`Dir::open_dir`] does not: its descriptors only stand for a path.
pub(super) fn open_dir(dir: &Dir, path: &Path) -> io::Result<File> {
    let mut options = cap_std::fs::OpenOptions::new();
    dir.open_with(path, options.read(true).custom_flags(DIRECTORY)).map(cap_std::fs::File::into_std)
}

/// Opens a directory of a directory, and no link to one.
pub(super) fn open_dir_no_link(dir: &Dir, name: &Path) -> io::Result<Dir> {
    let mut options = cap_std::fs::OpenOptions::new();
    let file = dir.open_with(name, options.read(true).custom_flags(NO_LINK | DIRECTORY))?;
    Ok(Dir::from_std_file(file.into_std()))
}

const NOT_A_FILE: &str = "not a regular file";

/// Makes a directory and those above it that are missing, for their owner only.
pub(super) fn private_dirs(dir: &Dir, path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(PRIVATE_DIR_MODE);
    dir.create_dir_with(path, &builder)
}
