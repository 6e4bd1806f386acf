//! The lock on a model_dir: one run at a time writes into it, on local disks and on network file systems.
//!
//! # Design
//! `flock` is not relied on: on network file systems it is absent, or local to each client, or lost with a reconnect.
//! What every file system gives is *exclusive creation of a name*. So the lock is a numbered file,
//! `.millrace-lock.<generation>`, and whoever created the highest number holds it, unless it is marked released.
//!
//! * A file is created once, exclusively and with its content (a hard link to a finished file; where there are no hard
//!   links, `O_EXCL`), and is from then on written by its creator only. Nobody renames or rewrites another's lock.
//! * To take the lock: read the highest file; if its owner is gone, create the next number. Of several who judged the
//!   same owner gone, one succeeds. Then list again: whoever sees a higher number than its own withdraws.
//! * Generations only grow: a released lock stays as a small file until its successor removes it, so a slow process
//!   that read an old listing can't win with a number that was used before.
//! * The creator touches its file every sixth of the lease (the *heartbeat*) and marks it released on drop.
//!
//! An owner is gone when it released the lock; when it ran on this host, in this process-id namespace, as
//! this user, and `/proc` shows no such process with that start time; when it ran elsewhere and its heartbeat is older
//! than the lease, both ages taken from the file server's clock; or when it is fenced: the newcomer is a higher
//! *attempt* of the same job. An attempt no higher than that of the same job which holds or last held the lock is
//! always refused.
//!
//! A job counts its attempts from 1, and so does the next that has the same model_dir. What is in there tells attempts
//! apart by one count over all: a job's first goes on from the last of whoever had it before, and the file says from
//! which.
//!
//! Invariant: whoever holds the lock created the highest number. An owner that was fenced or fell silent finds out by
//! [`ModelDirLock::check_held`], which everything that publishes into model_dir asks first; what it writes before that
//! lies in directories that carry its own epoch, and its heartbeats go to a file nobody reads any more.

mod heartbeat;
mod owner;
mod slot;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use heartbeat::LockHeartbeat;
pub use owner::Owner;
use slot::{CurrentLock, LockDraft};

use crate::error::Result;

/// How long an owner on another host may be silent before its lock is taken.
pub const LOCK_LEASE: Duration = Duration::from_secs(60);

/// Lost races before giving up: each lost one is another's success, so this many means something is badly wrong.
const MAX_LOCK_RACES: usize = 64;

/// Who asks for the lock.
#[derive(Clone, Debug)]
pub struct LockRequest {
    job: Option<String>,
    attempt: Option<u32>,
    lease: Duration,
}

impl LockRequest {
    /// A run without a job behind it: a new owner each time, its attempt one above that of the last run in model_dir.
    pub const fn local() -> Self {
        Self { job: None, attempt: None, lease: LOCK_LEASE }
    }

    /// An attempt of the job with this unique id: takes over from lower attempts, dead or alive. An attempt has the
    /// lock once: epochs of a second life would have the numbers of the first's.
    pub fn job(uid: impl Into<String>, attempt: u32) -> Self {
        Self { job: Some(uid.into()), attempt: Some(attempt), lease: LOCK_LEASE }
    }

    /// The next attempt of the job with this unique id, whichever number that is; takes over from a dead one only.
    pub fn next_attempt_of(uid: impl Into<String>) -> Self {
        Self { job: Some(uid.into()), attempt: None, lease: LOCK_LEASE }
    }

    /// Another lease than [`LOCK_LEASE`]; must be the same for all who share a model_dir.
    #[must_use]
    pub const fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }
}

/// Why the lock is not this run's.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another run is writing there.
    #[error("model_dir {} is in use by {owner}; choose another -o or wait until it has ended", model_dir.display())]
    InUse {
        /// The model_dir.
        model_dir: PathBuf,
        /// Who holds it.
        owner: Box<Owner>,
    },
    /// Somebody has just taken it and not yet written who.
    #[error("model_dir {} has just been taken by another run; choose another -o or wait until it has ended", model_dir.display())]
    Contended {
        /// The model_dir.
        model_dir: PathBuf,
    },
    /// This attempt of the job, or a newer one, has been there.
    #[error("this is attempt {attempt} of the job, and its attempt {newer} has had model_dir {}; the next needs a higher number", model_dir.display())]
    Fenced {
        /// The model_dir.
        model_dir: PathBuf,
        /// This attempt.
        attempt: u32,
        /// The newest that had model_dir.
        newer: u32,
    },
    /// It was this run's, and was taken over.
    #[error("model_dir {} was taken over by {}; nothing more is written there", model_dir.display(), by.as_ref().map_or_else(|| "another run".to_owned(), ToString::to_string))]
    Lost {
        /// The model_dir.
        model_dir: PathBuf,
        /// Who has it now.
        by: Option<Box<Owner>>,
    },
    /// The lock's files can't be read or written.
    #[error("can't {action} the lock of model_dir {}: {cause}", model_dir.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The model_dir.
        model_dir: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

/// The lock, held until dropped. See the module text.
#[derive(Debug)]
pub struct ModelDirLock {
    model_dir: PathBuf,
    generation: u64,
    owner: Owner,
    previous: Option<Owner>,
    // Dropping it marks the lock released.
    _heartbeat: LockHeartbeat,
}

impl ModelDirLock {
    /// Takes the lock of `model_dir`, which is created if it does not exist. Never waits.
    ///
    /// # Errors
    /// When another run holds it, this attempt of the job or a newer one has been there, or the directory can't be
    /// written.
    pub fn acquire(model_dir: impl Into<PathBuf>, request: &LockRequest) -> Result<Self, LockError> {
        let model_dir = model_dir.into();
        let io = |action| {
            let model_dir = model_dir.clone();
            move |cause| LockError::Io { action, model_dir, cause }
        };
        millrace_roots::create_dir_all(&model_dir).map_err(io("create"))?;
        for _ in 0..MAX_LOCK_RACES {
            // Written before anything is judged: its time stamp is "now" by the file server's clock.
            let draft = LockDraft::new(&model_dir).map_err(io("create"))?;
            let top = slot::highest(&model_dir).map_err(io("read"))?;
            let previous = check_occupant(&model_dir, request, top.as_ref(), &draft)?;
            let last = previous.as_ref().map_or(0, |last| last.attempt);
            let before = attempts_before(request, previous.as_ref());
            let attempt = request.attempt.map_or(last.saturating_add(1), |attempt| before.saturating_add(attempt));
            let generation = top.as_ref().map_or(0, |occupant| occupant.generation).saturating_add(1);
            let owner = Owner::this_process(request.job.clone(), before, attempt);
            let Some(file) = draft.publish(generation, &owner).map_err(io("create"))? else { continue };
            let now = slot::highest(&model_dir).map_err(io("read"))?;
            if now.is_none_or(|now| now.generation != generation) {
                slot::remove(&model_dir, generation);
                continue;
            }
            slot::remove_older(&model_dir, generation, request.lease);
            let _heartbeat = LockHeartbeat::start(Arc::new(file), request.lease / 6);
            return Ok(Self { model_dir, generation, owner, previous, _heartbeat });
        }
        Err(LockError::Contended { model_dir })
    }

    /// Who has, or last had, the lock of `model_dir`; `None` where nobody ever had, or it can't be told.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn last_owner(model_dir: &Path) -> Result<Option<Owner>, LockError> {
        let top = slot::highest(model_dir);
        let top = top.map_err(|cause| LockError::Io { action: "read", model_dir: model_dir.to_owned(), cause })?;
        Ok(top.and_then(|occupant| occupant.owner))
    }

    /// Asks the file system whether this run still holds the lock. To be asked before anything is published.
    ///
    /// # Errors
    /// [`LockError::Lost`] when it was taken over.
    pub fn check_held(&self) -> Result<(), LockError> {
        let io = |action| {
            let model_dir = self.model_dir.clone();
            move |cause| LockError::Io { action, model_dir, cause }
        };
        // Creating a name makes a network client see the directory as the server has it, not as it was cached.
        drop(LockDraft::new(&self.model_dir).map_err(io("check"))?);
        match slot::highest(&self.model_dir).map_err(io("check"))? {
            Some(top) if top.generation == self.generation && top.is_owned_by(&self.owner) => Ok(()),
            top => {
                let by = top.and_then(|top| top.owner).map(Box::new);
                Err(LockError::Lost { model_dir: self.model_dir.clone(), by })
            }
        }
    }

    /// The directory.
    pub fn model_dir(&self) -> &Path {
        &self.model_dir
    }

    /// This run's attempt, counted over all that had model_dir: one above the last run's, or as much above
    /// [`ModelDirLock::before`] as was asked for.
    pub const fn attempt(&self) -> u32 {
        self.owner.attempt
    }

    /// Attempts of others that had model_dir before this job's first.
    pub const fn attempts_before(&self) -> u32 {
        self.owner.before
    }

    /// Who holds it: this process.
    pub const fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Who held it before; `None` in a new model_dir.
    pub const fn previous(&self) -> Option<&Owner> {
        self.previous.as_ref()
    }
}

/// How many attempts of others were there before the first of the one that asks; of runs without a job each is
/// another's.
fn attempts_before(request: &LockRequest, previous: Option<&Owner>) -> u32 {
    previous.map_or(0, |last| if request.job.is_some() && request.job == last.job { last.before } else { last.attempt })
}

/// Whether the lock may be taken from its present occupant, who is then returned.
fn check_occupant(
    dir: &Path,
    request: &LockRequest,
    top: Option<&CurrentLock>,
    now: &LockDraft,
) -> Result<Option<Owner>, LockError> {
    let Some(top) = top else { return Ok(None) };
    let model_dir = || dir.to_owned();
    let Some(owner) = &top.owner else {
        // Created and never filled: only where hard links are missing and its creator died, or is just about to.
        return if top.time_since_heartbeat(now) > request.lease {
            Ok(None)
        } else {
            Err(LockError::Contended { model_dir: model_dir() })
        };
    };
    if let (Some(attempt), true) = (request.attempt, request.job.is_some() && request.job == owner.job) {
        let newer = owner.attempt.saturating_sub(owner.before);
        return if attempt > newer {
            Ok(Some(owner.clone()))
        } else {
            Err(LockError::Fenced { model_dir: model_dir(), attempt, newer })
        };
    }
    // A process of another user may be hidden from this one: that it is not seen then says nothing.
    let alive = owner.is_alive().filter(|&alive| alive || top.uid == now.uid);
    let gone = top.released || alive.map_or_else(|| top.time_since_heartbeat(now) > request.lease, |alive| !alive);
    if gone {
        Ok(Some(owner.clone()))
    } else {
        Err(LockError::InUse { model_dir: model_dir(), owner: Box::new(owner.clone()) })
    }
}

#[cfg(test)]
mod tests;
