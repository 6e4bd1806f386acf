//! The identity of a process in its job, and the connections that it makes and accepts with it.

use millrace_engine::types::{AgentId, Role};
use millrace_protocol::security::{
    AdmissionPolicy, AttemptName, AuthenticatedIncoming, ExpectedPeer, Identity, MemberName, Protection, listen,
    random_number,
};
use millrace_protocol::transport::{self, KeepAlive};
use tokio::net::TcpListener;
use tonic::transport::Channel;

use crate::error::AgentError;

/// A process of an attempt, with its credentials. Clones have the same identity.
#[derive(Clone, Debug)]
pub struct Member {
    identity: Identity,
    attempt: AttemptName,
    data: Protection,
    instance: u64,
}

impl Member {
    /// Creates the member `me` with the credentials of `identity`. `data` protects links and samples between agents.
    ///
    /// # Errors
    /// The identity belongs to another agent.
    pub fn new(identity: Identity, me: AgentId, data: Protection) -> Result<Self, AgentError> {
        let attempt = match identity.name() {
            MemberName::Agent(attempt, agent) if *agent == me => attempt.clone(),
            other => {
                let sentence = format!("{me} was started with the identity of {other}");
                return Err(AgentError::bad_input(sentence).hint("give each agent its own certificate"));
            }
        };
        Ok(Self { identity, attempt, data, instance: random_number() })
    }

    /// Returns the job and attempt in the certificate.
    pub const fn attempt(&self) -> &AttemptName {
        &self.attempt
    }

    /// Returns a random number that distinguishes this process from others with the same name.
    pub const fn instance(&self) -> u64 {
        self.instance
    }

    /// Connects to the coordinator's control port at `address`.
    ///
    /// # Errors
    /// The coordinator can't be reached, or one of the two ends rejects the identity of the other.
    pub async fn dial_coordinator(&self, address: &str) -> Result<Channel, tonic::transport::Error> {
        let coordinator = self.expected_peer(AgentId::new(Role::Coordinator, 0));
        transport::dial_with(address, &self.identity, coordinator, Protection::Encrypted, KeepAlive::CONTROL).await
    }

    /// Connects to the data port of `peer` at `address`.
    ///
    /// # Errors
    /// See [`Member::dial_coordinator`].
    pub async fn dial_data(&self, address: &str, peer: AgentId) -> Result<Channel, tonic::transport::Error> {
        transport::dial(address, &self.identity, self.expected_peer(peer), self.data).await
    }

    /// Accepts agents on the control port of a coordinator.
    pub fn accept_control(&self, listener: TcpListener) -> AuthenticatedIncoming {
        listen(listener, "control", self.identity.clone(), AdmissionPolicy::Agents, Protection::Encrypted)
    }

    /// Accepts agents on a data port.
    pub fn accept_data(&self, listener: TcpListener) -> AuthenticatedIncoming {
        listen(listener, "data", self.identity.clone(), AdmissionPolicy::Agents, self.data)
    }

    /// Accepts clients that follow and control the job on the journal port of a coordinator.
    pub fn accept_journal(&self, listener: TcpListener) -> AuthenticatedIncoming {
        listen(listener, "journal", self.identity.clone(), AdmissionPolicy::Controllers, Protection::Encrypted)
    }

    fn expected_peer(&self, agent: AgentId) -> ExpectedPeer {
        ExpectedPeer::new(MemberName::Agent(self.attempt.clone(), agent))
    }
}

/// Returns the agent `me` with an attempt and authority of its own.
#[cfg(test)]
pub(crate) fn testing(me: AgentId) -> Member {
    use millrace_protocol::security::{Authority, Validity};
    let validity = Validity::starting(std::time::SystemTime::now(), std::time::Duration::from_secs(3600));
    let name = MemberName::Agent(AttemptName::new("test", 1).unwrap(), me);
    let credentials = Authority::new(validity).and_then(|authority| authority.issue(&name, validity)).unwrap();
    Member::new(Identity::new(&credentials).unwrap(), me, Protection::Authenticated).unwrap()
}
