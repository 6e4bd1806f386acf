//! The name in a certificate, and its form as a URI.

use std::fmt;
use std::str::FromStr;

use millrace_engine::types::AgentId;

/// Prefix of every name: a SPIFFE trust domain.
const SPIFFE_PREFIX: &str = "spiffe://millrace.dev/";
/// Maximum bytes of a job's UID.
const MAX_JOB_BYTES: usize = 128;

/// One attempt of one job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttemptName {
    job: String,
    attempt: u32,
}

/// Names the owner of a certificate.
///
/// | name | URI |
/// |---|---|
/// | `Agent` | `spiffe://millrace.dev/job/JOB/attempt/NUMBER/memoryx-0` |
/// | `Launcher` | `spiffe://millrace.dev/job/JOB/attempt/NUMBER/launcher` |
/// | `Reader` | `spiffe://millrace.dev/job/JOB/reader` |
/// | `Fetcher` | `spiffe://millrace.dev/job/JOB/fetcher` |
/// | `Service` | `spiffe://millrace.dev/operator`, `…/rest-server` |
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MemberName {
    /// An agent of an attempt.
    Agent(AttemptName, AgentId),
    /// The program that runs an attempt's processes on one machine.
    Launcher(AttemptName),
    /// The server that reads the files of a job.
    Reader {
        /// The job's UID.
        job: String,
    },
    /// The init containers that fetch the uploads of a job. They take no part in the job, and agents have no such
    /// certificate.
    Fetcher {
        /// The job's UID.
        job: String,
    },
    /// A service of the control plane, which may control every job.
    Service(Service),
}

/// The services of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// The operator.
    Operator,
    /// The REST server.
    RestServer,
}

/// A name is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NameError {
    /// The text is not a valid UID of a job.
    #[error("{0:?} can't be the job in a certificate: use 1 to 128 letters, digits, '.', '_' and '-'")]
    Job(String),
    /// The text is not the name of an agent.
    #[error("{0:?} is not an agent name; expected a name such as memoryx-0 or cs2-1")]
    Agent(String),
    /// The text is not the URI of a [`MemberName`].
    #[error("{0:?} is not the name of a member of a job")]
    Uri(String),
}

impl AttemptName {
    /// Names attempt `attempt` of the job with the UID `job`.
    ///
    /// # Errors
    /// [`NameError::Job`] if the UID is empty, longer than 128 bytes, or has characters other than ASCII letters,
    /// digits, `.`, `_` and `-`.
    pub fn new(job: &str, attempt: u32) -> Result<Self, NameError> {
        let safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if job.is_empty() || job.len() > MAX_JOB_BYTES || !job.bytes().all(safe) {
            return Err(NameError::Job(job.chars().take(MAX_JOB_BYTES).collect()));
        }
        Ok(Self { job: job.to_owned(), attempt })
    }

    /// Returns the job's UID.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// Returns the attempt's number.
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }
}

impl MemberName {
    /// Returns the attempt of an agent or launcher; `None` for other names.
    pub const fn attempt(&self) -> Option<&AttemptName> {
        match self {
            MemberName::Agent(attempt, _) | MemberName::Launcher(attempt) => Some(attempt),
            MemberName::Reader { .. } | MemberName::Fetcher { .. } | MemberName::Service(_) => None,
        }
    }

    /// Returns the agent; `None` for other names.
    pub const fn agent(&self) -> Option<AgentId> {
        match self {
            MemberName::Agent(_, agent) => Some(*agent),
            MemberName::Launcher(_)
            | MemberName::Reader { .. }
            | MemberName::Fetcher { .. }
            | MemberName::Service(_) => None,
        }
    }

    /// Names the agent called `agent`, such as `memoryx-0`, of an attempt.
    ///
    /// # Errors
    /// [`NameError::Agent`] if no agent can have this name.
    pub fn for_agent(attempt: AttemptName, agent: &str) -> Result<Self, NameError> {
        let id = AgentId::parse(agent).ok_or_else(|| NameError::Agent(agent.chars().take(MAX_JOB_BYTES).collect()))?;
        Ok(MemberName::Agent(attempt, id))
    }

    /// Names the reader of a job's files.
    ///
    /// # Errors
    /// [`NameError::Job`] if the UID is invalid.
    pub fn for_reader(job: &str) -> Result<Self, NameError> {
        Ok(MemberName::Reader { job: AttemptName::new(job, 0)?.job })
    }

    /// Names the init containers that fetch the uploads of a job.
    ///
    /// # Errors
    /// [`NameError::Job`] if the UID is invalid.
    pub fn for_fetcher(job: &str) -> Result<Self, NameError> {
        Ok(MemberName::Fetcher { job: AttemptName::new(job, 0)?.job })
    }

    /// Returns the name as a URI.
    pub fn uri(&self) -> String {
        match self {
            MemberName::Agent(AttemptName { job, attempt }, agent) => {
                format!("{SPIFFE_PREFIX}job/{job}/attempt/{attempt}/{agent}")
            }
            MemberName::Launcher(AttemptName { job, attempt }) => {
                format!("{SPIFFE_PREFIX}job/{job}/attempt/{attempt}/launcher")
            }
            MemberName::Reader { job } => format!("{SPIFFE_PREFIX}job/{job}/reader"),
            MemberName::Fetcher { job } => format!("{SPIFFE_PREFIX}job/{job}/fetcher"),
            MemberName::Service(service) => format!("{SPIFFE_PREFIX}{}", service.as_str()),
        }
    }
}

impl Service {
    const fn as_str(self) -> &'static str {
        match self {
            Service::Operator => "operator",
            Service::RestServer => "rest-server",
        }
    }
}

impl FromStr for MemberName {
    type Err = NameError;

    fn from_str(uri: &str) -> Result<Self, NameError> {
        let unknown = || NameError::Uri(uri.chars().take(2 * MAX_JOB_BYTES).collect());
        let parts: Vec<&str> = uri.strip_prefix(SPIFFE_PREFIX).ok_or_else(unknown)?.split('/').collect();
        let name = match parts.as_slice() {
            ["operator"] => MemberName::Service(Service::Operator),
            ["rest-server"] => MemberName::Service(Service::RestServer),
            ["job", job, "reader"] => MemberName::for_reader(job)?,
            ["job", job, "fetcher"] => MemberName::for_fetcher(job)?,
            ["job", job, "attempt", number, member] => {
                let attempt = AttemptName::new(job, number.parse().map_err(|_| unknown())?)?;
                match *member {
                    "launcher" => MemberName::Launcher(attempt),
                    agent => MemberName::Agent(attempt, AgentId::parse(agent).ok_or_else(unknown)?),
                }
            }
            _ => return Err(unknown()),
        };
        // Each name has exactly one spelling: leading zeros and signs are rejected.
        if name.uri() == uri { Ok(name) } else { Err(unknown()) }
    }
}

impl fmt::Display for AttemptName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt {} of job {}", self.attempt, self.job)
    }
}

impl fmt::Display for MemberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberName::Agent(attempt, agent) => write!(f, "{agent} of {attempt}"),
            MemberName::Launcher(attempt) => write!(f, "the launcher of {attempt}"),
            MemberName::Reader { job } => write!(f, "the reader of job {job}"),
            MemberName::Fetcher { job } => write!(f, "the fetcher of job {job}"),
            MemberName::Service(service) => write!(f, "the service {}", service.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_engine::types::Role;

    use super::*;

    #[test]
    fn every_name_has_one_uri() {
        let attempt = AttemptName::new("0b5c-7", 3).unwrap();
        let names = [
            MemberName::Agent(attempt.clone(), AgentId::new(Role::MemoryX, 12)),
            MemberName::Launcher(attempt),
            MemberName::for_reader("0b5c-7").unwrap(),
            MemberName::for_fetcher("0b5c-7").unwrap(),
            MemberName::Service(Service::Operator),
            MemberName::Service(Service::RestServer),
        ];
        for name in names {
            assert_eq!(name.uri().parse(), Ok(name));
        }
    }

    #[test]
    fn invalid_uris_are_rejected() {
        let uris = [
            "spiffe://millrace.dev/job/a/attempt/03/memoryx-0",
            "spiffe://millrace.dev/job/a/attempt/+3/memoryx-0",
            "spiffe://millrace.dev/job/a/attempt/3/memoryx-00",
            "spiffe://millrace.dev/job/a/attempt/3/memoryx",
            "spiffe://millrace.dev/job/a/attempt/3/launcher/",
            "spiffe://millrace.dev/job//attempt/3/launcher",
            "spiffe://millrace.dev/job/a/../attempt/3/launcher",
            "spiffe://elsewhere/operator",
            "spiffe://millrace.dev/",
            "operator",
            "",
        ];
        for uri in uris {
            assert!(uri.parse::<MemberName>().is_err(), "{uri}");
        }
        for job in ["", "a/b", "a b", "ä", &"a".repeat(129)] {
            assert!(matches!(AttemptName::new(job, 1), Err(NameError::Job(_))), "{job}");
        }
    }
}
