//! Replaces files atomically: the new content is written to a temporary file, synced, and renamed to the target.
//!
//! At every instant, also after a crash or a power cut, the target has either its previous or its complete new content.
//! A failed write leaves the target unchanged and removes the temporary file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Replaces the file at `path` by `bytes`.
///
/// # Errors
/// [`Error::Io`]. `path` is then unchanged, except if only the sync of its directory failed after the rename.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, |file| file.write_all(bytes))
}

/// Replaces the file at `path` by what `fill` writes.
///
/// # Errors
/// [`Error::Io`] if the file system or `fill` returns an error. `path` is then unchanged, except if only the sync of
/// its directory failed after the rename.
pub fn replace(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
    let temporary = temporary_path(path).map_err(Error::io("write", path))?;
    let replaced = fill_and_rename(&temporary, path, fill);
    if replaced.is_err() {
        // Only the first error is reported; a leftover temporary file does no harm.
        let _ = millrace_roots::remove_file(&temporary);
    }
    replaced.map_err(Error::io("write", path))
}

fn fill_and_rename(
    temporary: &Path,
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = BufWriter::new(millrace_roots::create(temporary)?);
    fill(&mut file)?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    millrace_roots::rename(temporary, path)?;
    sync_directory(parent(path))
}

/// Makes names created in `directory`, or renamed into it, survive a power cut.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    match millrace_roots::open_dir(directory)?.sync_all() {
        // Some network file systems do not support this; their renames are durable on the server.
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        result => result,
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns a hidden name in the same directory, because a rename works only within one file system. The name is unique
/// to the process and the call.
fn temporary_path(path: &Path) -> io::Result<PathBuf> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a file name"))?
        .to_string_lossy();
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    Ok(parent(path).join(format!(".{name}.{}-{call}.tmp", std::process::id())))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn replaces_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("performance.json");
        write(&path, b"old").unwrap();
        write(&path, b"new").unwrap();

        let full = replace(&path, |file| {
            file.write_all(&[0; 100_000])?;
            Err(io::ErrorKind::StorageFull.into())
        })
        .unwrap_err();

        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(dir.path()), ["performance.json"]);
        assert!(full.hint().unwrap().contains("free some space"));
        assert!(write(&dir.path().join("missing/x"), b"").is_err());
        assert!(write(Path::new("/"), b"").is_err());
    }
}
