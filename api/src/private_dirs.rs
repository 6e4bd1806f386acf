//! Directories that only the server's user may access.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use millrace_roots::PRIVATE_DIR_MODE;

/// Creates a directory and its missing parents, with access for the server's user only.
///
/// # Errors
/// An error of the file system.
pub fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE_DIR_MODE).create(path)
}

/// Creates a directory as [`make_dir`] does; an existing one loses the permissions of other users. An existing
/// directory of another user, such as the volume of a pod, is left as it is, with a warning in the log.
///
/// # Errors
/// An error of the file system.
pub fn make_existing_private(path: &Path) -> io::Result<()> {
    make_dir(path)?;
    let about = std::fs::metadata(path)?;
    if about.mode() & 0o077 == 0 {
        return Ok(());
    }
    if about.uid() != rustix::process::geteuid().as_raw() {
        tracing::warn!("{} belongs to another user, who decides who may enter it", path.display());
        return Ok(());
    }
    tracing::info!("{} is now for this user only: its mode was {:o}", path.display(), about.mode() & 0o777);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(PRIVATE_DIR_MODE))
}

/// Sets the umask so that this process, and every process that it starts, creates files and directories for their owner
/// only.
pub fn set_private_umask() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_directory_is_made_private() {
        let home = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        let (wide, new) = (home.path().join("wide"), home.path().join("new/deep"));
        std::fs::create_dir(&wide).unwrap();
        std::fs::set_permissions(&wide, std::fs::Permissions::from_mode(0o755)).unwrap();
        make_existing_private(&wide).unwrap();
        make_existing_private(&new).unwrap();
        assert_eq!((mode(&wide), mode(&new), mode(new.parent().unwrap())), (0o700, 0o700, 0o700));
    }
}
