//! Decides whose connections a port accepts, and why a connection is rejected.

use std::io;

use millrace_engine::types::{AgentId, Role};

use super::identity::IdentityError;
use super::name::{MemberName, Service};

/// The peers that a port admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionPolicy {
    /// Agents of the same attempt, except the coordinator, which never dials an agent.
    Agents,
    /// Clients that follow and control the attempt: its launcher, and the services of the control plane.
    Controllers,
    /// The REST server only.
    RestServer,
    /// Clients that read uploads: the operator, and the fetchers of all jobs. The service decides which job may read
    /// which blob.
    BlobReaders,
}

impl AdmissionPolicy {
    /// Checks whether `own` admits `peer`.
    ///
    /// # Errors
    /// The reason for the rejection.
    pub(super) fn check(self, own: &MemberName, peer: &MemberName) -> Result<(), Rejection> {
        let same_attempt = match (own.attempt(), peer.attempt()) {
            (Some(own), Some(peer)) if own.job() != peer.job() => {
                return Err(Rejection::OtherJob { theirs: peer.job().to_owned(), ours: own.job().to_owned() });
            }
            (Some(own), Some(peer)) if own.attempt() != peer.attempt() => {
                return Err(Rejection::OtherAttempt { theirs: peer.attempt(), ours: own.attempt() });
            }
            (Some(_), Some(_)) => true,
            _ => false,
        };
        let admitted = match (self, peer) {
            (AdmissionPolicy::Agents, MemberName::Agent(_, AgentId { role, .. })) => {
                same_attempt && *role != Role::Coordinator
            }
            (AdmissionPolicy::Controllers, MemberName::Launcher(_)) => same_attempt,
            (AdmissionPolicy::Controllers, MemberName::Service(_))
            | (AdmissionPolicy::RestServer, MemberName::Service(Service::RestServer))
            | (AdmissionPolicy::BlobReaders, MemberName::Fetcher { .. } | MemberName::Service(Service::Operator)) => {
                true
            }
            _ => false,
        };
        if admitted { Ok(()) } else { Err(Rejection::NotAdmitted(peer.clone())) }
    }
}

/// The reason for the rejection of an accepted connection: a sentence about the peer, which the peer receives.
#[derive(Debug, thiserror::Error)]
pub(super) enum Rejection {
    /// The connection failed, or TLS rejected the peer.
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it speaks another protocol")]
    Protocol,
    #[error("it has no certificate")]
    NoCertificate,
    #[error("its certificate names no member of a job")]
    NoName,
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("its certificate is of job {theirs}, this is job {ours}")]
    OtherJob { theirs: String, ours: String },
    #[error("its certificate is of attempt {theirs}, this is attempt {ours}")]
    OtherAttempt { theirs: u32, ours: u32 },
    #[error("{0} is not authorized for this port")]
    NotAdmitted(MemberName),
    #[error("too many handshakes in progress, and this one is the oldest")]
    TooManyHandshakes,
    #[error("it did not finish its handshake in time")]
    TooSlow,
}

#[cfg(test)]
mod tests {
    use super::super::name::AttemptName;
    use super::*;

    #[test]
    fn each_port_admits_its_own_members_only() {
        let attempt = |job, number| AttemptName::new(job, number).unwrap();
        let agent = |job, number, role| MemberName::Agent(attempt(job, number), AgentId::new(role, 0));
        let own = agent("ours", 2, Role::Coordinator);
        let all = [
            agent("ours", 2, Role::Cs2),
            agent("ours", 2, Role::Coordinator),
            agent("ours", 1, Role::Cs2),
            agent("ours", 3, Role::Cs2),
            agent("theirs", 2, Role::Cs2),
            MemberName::Launcher(attempt("ours", 2)),
            MemberName::Launcher(attempt("ours", 1)),
            MemberName::Launcher(attempt("theirs", 2)),
            MemberName::for_reader("ours").unwrap(),
            MemberName::Service(Service::Operator),
            MemberName::Service(Service::RestServer),
            MemberName::for_fetcher("ours").unwrap(),
        ];
        let admitted = |admit: AdmissionPolicy, own: &MemberName| -> Vec<usize> {
            (0..all.len()).filter(|&at| admit.check(own, &all[at]).is_ok()).collect()
        };
        assert_eq!(admitted(AdmissionPolicy::Agents, &own), [0]);
        assert_eq!(admitted(AdmissionPolicy::Controllers, &own), [5, 9, 10]);
        assert_eq!(admitted(AdmissionPolicy::RestServer, &MemberName::for_reader("ours").unwrap()), [10]);
        let server = MemberName::Service(Service::RestServer);
        assert_eq!(admitted(AdmissionPolicy::BlobReaders, &server), [9, 11]);
        let reason = AdmissionPolicy::Agents.check(&own, &all[2]).unwrap_err();
        assert_eq!(reason.to_string(), "its certificate is of attempt 1, this is attempt 2");
    }
}
