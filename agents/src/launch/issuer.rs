//! The certificate authority of a local run: it exists in the launcher's memory only, and issues each process its
//! identity.

use std::time::{Duration, SystemTime};

use millrace_engine::types::{AgentId, Role};
use millrace_protocol::journal::JournalEndpoint;
use millrace_protocol::security::{
    AttemptName, Authority, ExpectedPeer, Identity, MemberName, Validity, random_number,
};

use super::{LaunchError, LocalRun};

/// How long the identities of a run are valid for new connections: longer than any run on one machine.
const IDENTITY_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// Issues the identities of one run.
pub struct Issuer {
    authority: Authority,
    attempt: AttemptName,
    validity: Validity,
}

impl Issuer {
    /// Creates an authority for one run.
    ///
    /// # Errors
    /// The job's UID is invalid in a certificate, or the certificate can't be created.
    pub fn new(run: &LocalRun) -> Result<Self, LaunchError> {
        let job = run.launch.job_uid.clone().unwrap_or_else(|| format!("local-{:016x}", random_number()));
        let attempt = AttemptName::new(&job, run.launch.attempt.unwrap_or(1)).map_err(failed)?;
        let validity = Validity::starting(SystemTime::now(), IDENTITY_LIFETIME);
        Ok(Self { authority: Authority::new(validity).map_err(failed)?, attempt, validity })
    }

    /// Returns the first line of an agent's standard input: its credentials.
    ///
    /// # Errors
    /// The certificate can't be created.
    pub fn identity_line(&self, agent: AgentId) -> Result<String, LaunchError> {
        let name = MemberName::Agent(self.attempt.clone(), agent);
        let credentials = self.authority.issue(&name, self.validity).map_err(failed)?;
        Ok(format!("{}\n", credentials.to_json_line()))
    }

    /// Returns the connection of the launcher to the journal of the run's coordinator at `address`.
    ///
    /// # Errors
    /// The certificate can't be created.
    pub fn journal(&self, address: &str) -> Result<JournalEndpoint, LaunchError> {
        let credentials =
            self.authority.issue(&MemberName::Launcher(self.attempt.clone()), self.validity).map_err(failed)?;
        let identity = Identity::new(&credentials).map_err(failed)?;
        let coordinator = MemberName::Agent(self.attempt.clone(), AgentId::new(Role::Coordinator, 0));
        Ok(JournalEndpoint { address: address.to_owned(), identity, coordinator: ExpectedPeer::new(coordinator) })
    }
}

fn failed(cause: impl std::error::Error + Send + Sync + 'static) -> LaunchError {
    LaunchError::system("give the agents their identities")(std::io::Error::other(cause))
}
