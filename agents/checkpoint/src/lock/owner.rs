//! The owner of a lock, and whether its process is running.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::files::unix_seconds;

/// The process that holds, or held, a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Random, new for every acquired lock.
    pub token: String,
    /// The job's unique id; `None` for a local run.
    pub job: Option<String>,
    /// The attempt in the common count of model_dir: the job's own number plus `before`.
    pub attempt: u32,
    /// Number of attempts of other jobs before the job's first.
    #[serde(default)]
    pub before: u32,
    /// Attempts in the common count, in ascending order, in which a further coordinator continued the attempt of the
    /// job before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub continued: Vec<u32>,
    /// Name of the host.
    pub host: String,
    /// Identifies the boot of the kernel: process ids are only meaningful within it.
    pub boot: String,
    /// The namespace of the process id: containers of one host have their own.
    pub pid_namespace: String,
    /// Process id on that host.
    pub pid: u32,
    /// Start of the process in clock ticks since the boot: distinguishes processes that reuse an id.
    pub started: u64,
    /// When the lock was acquired, in seconds since 1970 by the owner's clock.
    pub since: u64,
}

impl Owner {
    /// Describes this process, with a new token. It is the owner of `job` in attempt `attempt` of the common count.
    pub(super) fn this_process(job: Option<String>, before: u32, continued: Vec<u32>, attempt: u32) -> Self {
        let pid = std::process::id();
        Self {
            token: random_token(),
            job,
            attempt,
            before,
            continued,
            host: first_line("/proc/sys/kernel/hostname")
                .or_else(|| std::env::var("HOSTNAME").ok())
                .unwrap_or_default(),
            boot: first_line("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            pid_namespace: pid_namespace(),
            pid,
            started: process_start(pid).unwrap_or_default(),
            since: unix_seconds(),
        }
    }

    /// Returns the number, within the job, of an attempt of the common count; `None` if it was of an earlier job.
    pub fn attempt_of_job(&self, attempt: u64) -> Option<u64> {
        let continued = self.continued.iter().filter(|&&continued| u64::from(continued) <= attempt).count() as u64;
        attempt.checked_sub(u64::from(self.before) + continued).filter(|attempt| *attempt > 0)
    }

    /// Returns the number of this process's attempt within the job; 0 if the numbers contradict each other.
    pub(super) fn own_attempt_of_job(&self) -> u32 {
        let attempt = self.attempt_of_job(self.attempt.into()).unwrap_or(0);
        u32::try_from(attempt).unwrap_or(u32::MAX)
    }

    /// Returns whether the process is running; `None` if this host can't determine it.
    pub(super) fn is_alive(&self) -> Option<bool> {
        let boot = first_line("/proc/sys/kernel/random/boot_id")?;
        let same_place = boot == self.boot && !self.pid_namespace.is_empty() && pid_namespace() == self.pid_namespace;
        same_place.then(|| process_start(self.pid) == Some(self.started))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on host {} (attempt {})", self.pid, self.host, self.attempt)
    }
}

/// Returns the start of a process in clock ticks since the boot; `None` if it does not exist or is a zombie.
fn process_start(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the command's name, is in parentheses and may contain spaces and parentheses itself.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    // Third field: state. Twenty-second: start time.
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (state != "Z" && state != "X").then_some(started)
}

fn pid_namespace() -> String {
    fs::read_link("/proc/self/ns/pid").map(|link| link.to_string_lossy().into_owned()).unwrap_or_default()
}

fn first_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.to_owned())
}

/// Returns 128 random bits in hexadecimal.
pub fn random_token() -> String {
    let mut bytes = [0; 16];
    if File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).is_err() {
        // The standard library's hash keys are random.
        for half in bytes.chunks_exact_mut(8) {
            half.copy_from_slice(&RandomState::new().build_hasher().finish().to_le_bytes());
        }
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
