//! The numbered files of a lock: listing, exclusive creation, removal.
//!
//! A file has three lines: `held    ` or `released`; `heartbeat <seconds since 1970, 20 digits>`, both of fixed width,
//! so that the creator can rewrite them in place; and the [`Owner`] as JSON.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::owner::{Owner, random_token};
use crate::files::{read_limited, unix_seconds};

const PREFIX: &str = ".millrace-lock.";
const DRAFT: &str = ".millrace-lock.draft-";

/// The highest numbered file and its content.
#[derive(Debug)]
pub(super) struct CurrentLock {
    pub generation: u64,
    pub released: bool,
    /// `None` while its creator has not written it.
    pub owner: Option<Owner>,
    pub touched: SystemTime,
    /// The user id of the file's owner.
    pub uid: u32,
}

impl CurrentLock {
    /// Returns the time from the last heartbeat until `now` was created, by the file server's clock.
    pub fn time_since_heartbeat(&self, now: &LockDraft) -> Duration {
        now.created.duration_since(self.touched).unwrap_or_default()
    }

    pub fn is_owned_by(&self, owner: &Owner) -> bool {
        self.owner.as_ref().is_some_and(|present| present.token == owner.token)
    }
}

/// Returns the first two lines.
pub(super) fn state_lines(released: bool) -> String {
    format!("{:<8}\nheartbeat {:020}\n", if released { "released" } else { "held" }, unix_seconds())
}

/// Reads the highest numbered lock file of `dir`.
pub(super) fn highest(dir: &Path) -> io::Result<Option<CurrentLock>> {
    loop {
        let Some(generation) = generations(dir)?.into_iter().max() else { return Ok(None) };
        let path = path(dir, generation);
        let read = read_limited(&path, 1 << 16).and_then(|text| Ok((text, millrace_roots::metadata(&path)?)));
        match read {
            // Its successor removed it after the listing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            read => {
                let (text, metadata) = read?;
                let (touched, uid) = (metadata.modified()?, metadata.uid());
                let mut lines = text.splitn(3, |&byte| byte == b'\n');
                let released = lines.next() == Some(b"released".as_slice());
                let owner = lines.nth(1).and_then(|json| serde_json::from_slice(json).ok());
                return Ok(Some(CurrentLock { generation, released, owner, touched, uid }));
            }
        }
    }
}

fn path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{generation}"))
}

fn generations(dir: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in millrace_roots::read_dir(dir)? {
        found.extend(entry.name().strip_prefix(PREFIX).and_then(|rest| rest.parse::<u64>().ok()));
    }
    Ok(found)
}

/// Removes this process's own file.
pub(super) fn remove(dir: &Path, generation: u64) {
    // If it remains, it is recognized as expired by its process id or heartbeat.
    let _ = millrace_roots::remove_file(path(dir, generation));
}

/// Removes files of earlier owners, and drafts of ended processes. Remaining files are harmless.
pub(super) fn remove_older(dir: &Path, generation: u64, lease: Duration) {
    for older in generations(dir).unwrap_or_default().into_iter().filter(|&older| older < generation) {
        remove(dir, older);
    }
    let touched = |path: &Path| millrace_roots::metadata(path).and_then(|data| data.modified()).ok();
    let Some(now) = touched(&path(dir, generation)) else { return };
    for entry in millrace_roots::read_dir(dir).into_iter().flatten() {
        let is_draft = entry.name().starts_with(DRAFT);
        let age = || now.duration_since(touched(&entry.path)?).ok();
        if is_draft && age().is_some_and(|age| age > lease) {
            let _ = millrace_roots::remove_file(&entry.path);
        }
    }
}

/// A private file of this process that becomes a lock; removed on drop.
#[derive(Debug)]
pub(super) struct LockDraft {
    dir: PathBuf,
    path: PathBuf,
    file: File,
    /// Time stamp of the file server's clock.
    created: SystemTime,
    /// The user id with which this process creates files.
    pub uid: u32,
}

impl LockDraft {
    pub fn new(dir: &Path) -> io::Result<Self> {
        let path = dir.join(format!("{DRAFT}{}", random_token()));
        let file = millrace_roots::OpenOptions::new().write(true).create_new(true).open(&path)?;
        let metadata = file.metadata()?;
        let (created, uid) = (metadata.modified()?, metadata.uid());
        Ok(Self { dir: dir.to_owned(), path, file, created, uid })
    }

    /// Links it as the lock file of `generation`. Returns `None` if another process was faster.
    pub fn publish(self, generation: u64, owner: &Owner) -> io::Result<Option<File>> {
        let content = format!("{}{}\n", state_lines(false), serde_json::to_string(owner)?);
        self.file.write_all_at(content.as_bytes(), 0)?;
        self.file.sync_all()?;
        let target = path(&self.dir, generation);
        match millrace_roots::hard_link(&self.path, &target) {
            Ok(()) => Ok(Some(self.file.try_clone()?)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // A network file system may have done it and lost the reply.
                let existing = millrace_roots::read(&target).is_ok_and(|existing| existing == content.as_bytes());
                if existing { Ok(Some(self.file.try_clone()?)) } else { Ok(None) }
            }
            // The draft was removed because it was too old: begin again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // There are no hard links.
            Err(_) => create_exclusively(&target, content.as_bytes()),
        }
    }
}

impl Drop for LockDraft {
    fn drop(&mut self) {
        // If it remains, the next owner of the lock removes it.
        let _ = millrace_roots::remove_file(&self.path);
    }
}

fn create_exclusively(target: &Path, content: &[u8]) -> io::Result<Option<File>> {
    let file = match millrace_roots::OpenOptions::new().write(true).create_new(true).open(target) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        file => file?,
    };
    file.write_all_at(content, 0)?;
    file.sync_all()?;
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_creation_works_without_hard_links() {
        let dir = tempfile::tempdir().unwrap();
        let target = path(dir.path(), 1);
        assert!(create_exclusively(&target, b"held    \n").unwrap().is_some());
        assert!(create_exclusively(&target, b"held    \n").unwrap().is_none());
        // Not filled in yet: without an owner, but not free either.
        let top = highest(dir.path()).unwrap().unwrap();
        assert!(top.owner.is_none() && !top.released);
    }
}
