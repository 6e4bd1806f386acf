//! The lock of a model_dir: one run at a time writes to it, on local disks and on network file systems.
//!
//! # Design
//! `flock` is not used: on network file systems it may be missing, local to each client, or lost on reconnection. Every
//! file system supports *exclusive creation of a name*. The lock is therefore a numbered file,
//! `.millrace-lock.<generation>`. The process that created the highest number holds the lock, unless the file is marked
//! released.
//!
//! * A file is created once, exclusively and with its content (a hard link to a finished file; `O_EXCL` if there are no
//!   hard links), and then written only by its creator. No process renames or rewrites another's lock.
//! * To take the lock: read the highest file; if its owner has ended, create the next number. If several processes do
//!   this, one succeeds. Then list again: a process that sees a higher number than its own withdraws.
//! * Generations only increase: a released lock remains as a small file until its successor removes it, so a slow
//!   process with an outdated listing can't succeed with a number that was used before.
//! * The creator refreshes its file every sixth of the lease (the *heartbeat*) and marks it released on drop.
//!
//! An owner has ended if it released the lock; if it ran on this host, in this process-id namespace, as this user, and
//! `/proc` shows no such process with that start time; if it ran elsewhere and its heartbeat is older than the lease,
//! both ages measured by the file server's clock; or if it is fenced: the new process is of the same *attempt* of the
//! same job, or a higher one. A lower attempt than the one that holds or last held the lock is always rejected.
//!
//! A job counts its attempts from 1, and so does the next job with the same model_dir. Inside model_dir attempts have
//! one common count, in which every process that holds the lock has a number of its own: the first attempt of a job
//! follows the last attempt of the previous owner, and a further coordinator of the same attempt of a job has the next
//! number. The lock file records both, see [`Owner::attempt_of_job`].
//!
//! * The holder of the lock created the highest number. An owner that was fenced, or whose heartbeat expired, detects
//!   it with [`ModelDirLock::check_held`], which is called before anything is published to model_dir. What it writes
//!   before that is in directories with its own epoch, and its heartbeats go to a file that is no longer read.

mod heartbeat;
mod owner;
mod slot;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use heartbeat::LockHeartbeat;
pub use owner::{Owner, random_token};
use slot::{CurrentLock, LockDraft};

/// Time without a heartbeat after which the lock of an owner on another host expires.
pub const LOCK_LEASE: Duration = Duration::from_secs(60);

/// Lost races before giving up. Each lost race is another process's success, so this many indicate a serious problem.
const MAX_LOCK_RACES: usize = 64;

/// Maximum numbers in [`Owner::continued`], which bounds the size of the lock file.
const MAX_CONTINUED_ATTEMPTS: usize = 4096;

/// A request for the lock.
#[derive(Clone, Debug)]
pub struct LockRequest {
    job: Option<String>,
    attempt: Option<u32>,
    lease: Duration,
}

impl LockRequest {
    /// A run without a job: a new owner each time, with the attempt after that of the last run in model_dir.
    pub const fn local() -> Self {
        Self { job: None, attempt: None, lease: LOCK_LEASE }
    }

    /// An attempt of the job with this unique id. Takes over from lower attempts and from an earlier process of the same
    /// attempt, running or not.
    pub fn job(uid: impl Into<String>, attempt: u32) -> Self {
        Self { job: Some(uid.into()), attempt: Some(attempt), lease: LOCK_LEASE }
    }

    /// The next attempt of the job with this unique id, with any number. Takes over only from an attempt that has
    /// ended.
    pub fn next_attempt_of(uid: impl Into<String>) -> Self {
        Self { job: Some(uid.into()), attempt: None, lease: LOCK_LEASE }
    }

    /// Uses another lease than [`LOCK_LEASE`], which must be the same for all processes that share a model_dir.
    #[must_use]
    pub const fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }
}

/// Reason why this run does not hold the lock.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another run holds the lock.
    #[error("model_dir {} is in use by {owner}; choose another -o or wait until it has ended", model_dir.display())]
    InUse { model_dir: PathBuf, owner: Box<Owner> },
    /// Another process has just taken the lock and not yet written its name.
    #[error("model_dir {} has just been taken by another run; choose another -o or wait until it has ended", model_dir.display())]
    Contended { model_dir: PathBuf },
    /// A newer attempt of the job has held the lock.
    #[error("attempt {attempt} can't use model_dir {}: attempt {newer} of the job has used it already; start the next \
        attempt with a higher number", model_dir.display())]
    Fenced {
        model_dir: PathBuf,
        attempt: u32,
        /// The newest attempt that held the lock.
        newer: u32,
    },
    /// The lock was taken over from this run.
    #[error("model_dir {} was taken over by {}; this run no longer writes to \
        it", model_dir.display(), by.as_ref().map_or_else(|| "another run".to_owned(), ToString::to_string))]
    Lost { model_dir: PathBuf, by: Option<Box<Owner>> },
    /// The lock's files can't be read or written.
    #[error("can't {action} the lock of model_dir {}: {cause}", model_dir.display())]
    Io { action: &'static str, model_dir: PathBuf, cause: io::Error },
}

/// The lock, held until dropped; see the module documentation.
#[derive(Debug)]
pub struct ModelDirLock {
    model_dir: PathBuf,
    generation: u64,
    owner: Owner,
    previous: Option<Owner>,
    // Marks the lock released on drop.
    _heartbeat: LockHeartbeat,
}

impl ModelDirLock {
    /// Takes the lock of `model_dir`, which is created if it does not exist. Does not block.
    ///
    /// # Errors
    /// Another run holds it, a newer attempt of the job has held it, or the directory can't be written.
    pub fn acquire(model_dir: impl Into<PathBuf>, request: &LockRequest) -> Result<Self, LockError> {
        let model_dir = model_dir.into();
        let io = |action| {
            let model_dir = model_dir.clone();
            move |cause| LockError::Io { action, model_dir, cause }
        };
        millrace_roots::create_dir_all(&model_dir).map_err(io("create"))?;
        for _ in 0..MAX_LOCK_RACES {
            // Written before the check: its time stamp is the current time of the file server's clock.
            let draft = LockDraft::new(&model_dir).map_err(io("create"))?;
            let top = slot::highest(&model_dir).map_err(io("read"))?;
            let previous = check_occupant(&model_dir, request, top.as_ref(), &draft)?;
            let generation = top.as_ref().map_or(0, |lock| lock.generation).saturating_add(1);
            let owner = next_owner(request, previous.as_ref());
            let Some(file) = draft.publish(generation, &owner).map_err(io("create"))? else { continue };
            let highest = slot::highest(&model_dir).map_err(io("read"))?;
            if highest.is_none_or(|highest| highest.generation != generation) {
                slot::remove(&model_dir, generation);
                continue;
            }
            slot::remove_older(&model_dir, generation, request.lease);
            let _heartbeat = LockHeartbeat::start(Arc::new(file), request.lease / 6);
            return Ok(Self { model_dir, generation, owner, previous, _heartbeat });
        }
        Err(LockError::Contended { model_dir })
    }

    /// Returns the current or last owner of the lock of `model_dir`; `None` if there was none, or it is unknown.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn last_owner(model_dir: &Path) -> Result<Option<Owner>, LockError> {
        let top = slot::highest(model_dir);
        let top = top.map_err(|cause| LockError::Io { action: "read", model_dir: model_dir.to_owned(), cause })?;
        Ok(top.and_then(|lock| lock.owner))
    }

    /// Checks with the file system whether this run still holds the lock. To be called before anything is published.
    ///
    /// # Errors
    /// [`LockError::Lost`] if it was taken over.
    pub fn check_held(&self) -> Result<(), LockError> {
        let io = |action| {
            let model_dir = self.model_dir.clone();
            move |cause| LockError::Io { action, model_dir, cause }
        };
        // Creating a name makes a network client read the directory from the server rather than from its cache.
        drop(LockDraft::new(&self.model_dir).map_err(io("check"))?);
        match slot::highest(&self.model_dir).map_err(io("check"))? {
            Some(top) if top.generation == self.generation && top.is_owned_by(&self.owner) => Ok(()),
            top => {
                let by = top.and_then(|top| top.owner).map(Box::new);
                Err(LockError::Lost { model_dir: self.model_dir.clone(), by })
            }
        }
    }

    /// Returns the directory.
    pub fn model_dir(&self) -> &Path {
        &self.model_dir
    }

    /// Returns this run's attempt in the common count of model_dir.
    pub const fn attempt(&self) -> u32 {
        self.owner.attempt
    }

    /// Returns the owner: this process.
    pub const fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Returns the previous owner; `None` in a new model_dir.
    pub const fn previous(&self) -> Option<&Owner> {
        self.previous.as_ref()
    }
}

/// Returns the owner that this process becomes. Each run without a job counts as another job.
fn next_owner(request: &LockRequest, previous: Option<&Owner>) -> Owner {
    let next = previous.map_or(0, |last| last.attempt).saturating_add(1);
    let same_job = previous.filter(|last| request.job.is_some() && request.job == last.job);
    let (before, mut continued) = match same_job {
        Some(last) => (last.before, last.continued.clone()),
        None => (previous.map_or(0, |last| last.attempt), Vec::new()),
    };
    let attempt = match request.attempt {
        None => next,
        Some(attempt) if same_job.is_some_and(|last| last.own_attempt_of_job() == attempt) => {
            continued.push(next);
            next
        }
        Some(attempt) => before.saturating_add(continued.len() as u32).saturating_add(attempt),
    };
    // The oldest attempts then count as those of an earlier job.
    let excess = continued.len().saturating_sub(MAX_CONTINUED_ATTEMPTS);
    continued.drain(..excess);
    Owner::this_process(request.job.clone(), before.saturating_add(excess as u32), continued, attempt)
}

/// Checks whether the lock may be taken from its current owner, and returns that owner.
fn check_occupant(
    dir: &Path,
    request: &LockRequest,
    top: Option<&CurrentLock>,
    now: &LockDraft,
) -> Result<Option<Owner>, LockError> {
    let Some(top) = top else { return Ok(None) };
    let model_dir = || dir.to_owned();
    let Some(owner) = &top.owner else {
        // Created but not filled: only if hard links are missing, and its creator has died or is about to write.
        return if top.time_since_heartbeat(now) > request.lease {
            Ok(None)
        } else {
            Err(LockError::Contended { model_dir: model_dir() })
        };
    };
    if let (Some(attempt), true) = (request.attempt, request.job.is_some() && request.job == owner.job) {
        let newer = owner.own_attempt_of_job();
        return if attempt >= newer {
            Ok(Some(owner.clone()))
        } else {
            Err(LockError::Fenced { model_dir: model_dir(), attempt, newer })
        };
    }
    // A process of another user may be hidden from this one, so its absence from `/proc` is not conclusive.
    let alive = owner.is_alive().filter(|&alive| alive || top.uid == now.uid);
    let has_ended = top.released || alive.map_or_else(|| top.time_since_heartbeat(now) > request.lease, |alive| !alive);
    if has_ended {
        Ok(Some(owner.clone()))
    } else {
        Err(LockError::InUse { model_dir: model_dir(), owner: Box::new(owner.clone()) })
    }
}

#[cfg(test)]
mod tests;
