//! Authentication of every connection of a job: who is at the other end, proved by a certificate.
//!
//! ```text
//!   Authority ──issues──► Credentials (certificate, key, authorities; PEM) ──Identity::new──► Identity
//!
//!   dialling side: connect(address, identity, expected name) ─┐
//!                                                             ├─► Stream, with the peer's Name
//!   accepting side: listen(listener, identity, Admit) ────────┘
//! ```
//!
//! A certificate names one agent of one attempt of one job (or a service of the control plane) in a URI, see [`Name`].
//! An attempt is one life of a job's pods, or of a local run's processes; coordinators that follow each other within it
//! have the same name.
//!
//! Each connection begins with a TLS 1.3 handshake in which both ends show their certificates. Then the accepting side
//! sends one record that says whether it takes the connection, and if not, why. After that the connection is either
//! [encrypted](Protection::Encrypted), or both ends go on in the clear on the same TCP connection
//! ([authenticated](Protection::Authenticated)), which costs nothing per byte.
//!
//! Guarantees:
//! * The dialling side sends nothing before it knows that the peer has the name it expects.
//! * The accepting side hands out no connection whose peer it does not admit.
//! * Connections that do not finish their handshake in [`HANDSHAKE_TIMEOUT`] are dropped, and no more than
//!   [`MAX_HANDSHAKES`] are in progress; the log of rejected connections is bounded.
//!
//! [`ServerCertificate`] is for the REST server's HTTPS, whose clients are people's programs: it takes no part in jobs.

mod authority;
mod connection;
mod identity;
mod listener;
mod name;
mod records;
mod rejections;
mod server;

pub use authority::{Authority, IssueError, Validity};
pub use connection::{ConnectError, Expected, HANDSHAKE_TIMEOUT, Peer, Protection, Stream, connect};
pub use identity::{Credentials, Identity, IdentityError};
pub use listener::{Admit, Incoming, MAX_HANDSHAKES, listen};
pub use name::{AttemptName, Name, NameError, Service};
pub use rejections::RejectionLog;
pub use server::{ServerCertificate, certificate_expiry};

/// A random number of the cryptographic provider.
pub fn random_number() -> u64 {
    let mut bytes = [0; 8];
    // It fails only where the system has no random numbers at all; then no key could be made either.
    let _ = rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
