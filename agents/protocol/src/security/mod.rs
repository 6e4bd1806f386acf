//! Authenticates every connection of a job: each end proves its name by a certificate.
//!
//! ```text
//!   Authority ──issues──► Credentials (certificate, key, authorities; PEM) ──Identity::new──► Identity
//!
//!   dialling side: connect(address, identity, expected name) ─┐
//!                                                             ├─► Stream, with the peer's Name
//!   accepting side: listen(listener, identity, Admit) ────────┘
//! ```
//!
//! A certificate names one agent of one attempt of one job (or a service of the control plane) in a URI, see
//! [`MemberName`]. An attempt is one life of a job's pods, or of a local run's processes; successive coordinators of
//! one attempt have the same name.
//!
//! Each connection begins with a TLS 1.3 handshake in which both ends present their certificates. Then the accepting
//! side sends one record that accepts the connection, or rejects it with a reason. After that the connection is either
//! [encrypted](Protection::Encrypted), or both ends continue without encryption on the same TCP connection
//! ([authenticated](Protection::Authenticated)), which costs nothing per byte.
//!
//! Guarantees:
//! * The dialling side sends no data before it knows that the peer has the expected name.
//! * The accepting side returns no connection whose peer it does not admit.
//! * Connections that do not finish their handshake within [`HANDSHAKE_TIMEOUT`] are dropped, and at most
//!   [`MAX_HANDSHAKES`] are in progress. The log of rejected connections is bounded.
//!
//! [`ServerCertificate`] is for the REST server's HTTPS port, whose clients are not members of jobs.

mod admission;
mod authority;
mod connection;
mod identity;
mod listener;
mod name;
mod rejections;
mod server_certificate;
mod tls_records;

pub use admission::AdmissionPolicy;
pub use authority::{Authority, IssueError, Validity};
pub use connection::{
    CONNECT_TIMEOUT, ConnectError, ExpectedPeer, HANDSHAKE_TIMEOUT, Peer, Protection, Stream, UnknownProtection,
    connect,
};
pub use identity::{Credentials, Identity, IdentityError};
pub use listener::{AuthenticatedIncoming, MAX_HANDSHAKES, listen, listen_renewed};
pub use name::{AttemptName, MemberName, NameError, Service};
pub use rejections::RejectionLog;
pub use server_certificate::{ServerCertificate, certificate_expiry};

/// Returns a random number from the cryptographic provider.
pub fn random_number() -> u64 {
    let mut bytes = [0; 8];
    // This fails only if the system has no source of random numbers, and then no key could be generated either.
    let _ = rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
