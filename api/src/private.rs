//! Directories that only the server's user may enter.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use millrace_roots::PRIVATE_DIR_MODE;

/// Makes a directory, and those above it that are missing, for the server's user only.
///
/// # Errors
/// The system's.
pub fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE_DIR_MODE).create(path)
}

/// Makes a directory as [`make_dir`] does; takes the rights of others off one that is there. One that another user owns, as a
/// volume of a pod may be, is left as it is, and the log says so.
///
/// # Errors
/// The system's.
pub fn claim_dir(path: &Path) -> io::Result<()> {
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

/// Has this process, and all that it starts, make files and directories for their owner only, whatever its umask was.
pub fn make_all_private() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_may_enter_is_tightened() {
        let home = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        let (wide, new) = (home.path().join("wide"), home.path().join("new/deep"));
        std::fs::create_dir(&wide).unwrap();
        std::fs::set_permissions(&wide, std::fs::Permissions::from_mode(0o755)).unwrap();
        claim_dir(&wide).unwrap();
        claim_dir(&new).unwrap();
        assert_eq!((mode(&wide), mode(&new), mode(new.parent().unwrap())), (0o700, 0o700, 0o700));
    }
}
