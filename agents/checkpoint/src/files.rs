//! File system helpers with durable writes.

use std::io::{Read, Write};
use std::path::{Component, Path, PathBuf};

use millrace_emulator::numerics::little_endian;

use crate::error::{Error, Result};

/// Writes a whole file and syncs it to disk.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = millrace_roots::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(|e| Error::io("create", path, e))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|e| Error::io("write", path, e))
}

/// Syncs the entries of a directory to disk.
pub(crate) fn sync_dir(path: &Path) -> Result<()> {
    millrace_roots::open_dir(path).and_then(|dir| dir.sync_all()).map_err(|e| Error::io("sync", path, e))
}

/// Renames and syncs the directories.
pub(crate) fn rename_synced(from: &Path, to: &Path) -> Result<()> {
    millrace_roots::rename(from, to).map_err(|e| Error::io("rename", from, e))?;
    sync_dir(parent(to))
}

/// Returns the parent directory of a path.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns the path under which this process writes a file or directory that is renamed to `path` when it is complete.
pub(crate) fn draft_path(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    parent(path).join(format!("{name}.partial-{}", std::process::id()))
}

/// Reads a whole file of at most `max_bytes` bytes.
pub(crate) fn read_limited(path: &Path, max_bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    millrace_roots::open(path)?.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            format!("it is longer than {max_bytes} bytes"),
        ));
    }
    Ok(bytes)
}

/// Returns whether `path` is below the directory it is joined to.
pub(crate) fn stays_inside(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Removes a directory and its content, if it exists.
pub(crate) fn remove_dir(path: &Path) -> Result<()> {
    match millrace_roots::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path, e)),
        _ => Ok(()),
    }
}

/// Returns the current time in seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Fills `out` with the little-endian bytes of `values`, as stored in files.
pub(crate) fn to_le_bytes(values: &[f32], out: &mut Vec<u8>) {
    out.resize(values.len() * 4, 0);
    little_endian::write_f32(values, out);
}
