//! Identities for agents without a launcher, from a certificate authority in the working directory.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use millrace_engine::types::AgentId;
use millrace_protocol::journal::JournalEndpoint;
use millrace_protocol::security::{AttemptName, Authority, Credentials, ExpectedPeer, Identity, MemberName, Validity};

use super::harness::TestDir;

/// Returns the attempt of agents in most tests.
pub fn first_attempt() -> AttemptName {
    AttemptName::new("e2e", 1).unwrap()
}

/// Returns a validity longer than any test.
pub fn today() -> Validity {
    Validity::starting(SystemTime::now(), Duration::from_secs(24 * 3600))
}

/// Returns the authority of `place`; creates it on the first call.
pub fn authority(place: &TestDir) -> Authority {
    let [certificate, key] = ["authority.crt", "authority.key"].map(|name| place.path("cache").join(name));
    if !key.exists() {
        let made = Authority::new(today()).unwrap();
        std::fs::create_dir_all(place.path("cache")).unwrap();
        std::fs::write(&certificate, made.certificate()).unwrap();
        std::fs::write(&key, made.key()).unwrap();
    }
    let read = |path| std::fs::read_to_string(path).unwrap();
    Authority::from_pem(&read(certificate), &read(key)).unwrap()
}

/// Writes the identity of an agent to a directory; returns the directory.
pub fn identity_dir(place: &TestDir, attempt: &AttemptName, agent: &str) -> PathBuf {
    let name = MemberName::Agent(attempt.clone(), AgentId::parse(agent).unwrap());
    let dir = place.path("cache").join(format!("{}-{}-{agent}", attempt.job(), attempt.attempt()));
    write(&dir, &authority(place).issue(&name, today()).unwrap());
    dir
}

/// Writes credentials in the files that agents read.
pub fn write(dir: &std::path::Path, credentials: &Credentials) {
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join(Credentials::CERTIFICATE_FILE), &credentials.certificate).unwrap();
    std::fs::write(dir.join(Credentials::KEY_FILE), &credentials.key).unwrap();
    std::fs::write(dir.join(Credentials::AUTHORITY_FILE), &credentials.authority).unwrap();
}

/// Returns a connection to the journal at `address` of the coordinator of `attempt`. The client is `reader`, with a
/// certificate of `authority`.
pub fn journal(address: &str, attempt: &AttemptName, authority: &Authority, reader: &MemberName) -> JournalEndpoint {
    let identity = Identity::new(&authority.issue(reader, today()).unwrap()).unwrap();
    let coordinator = MemberName::Agent(attempt.clone(), AgentId::parse("coordinator-0").unwrap());
    JournalEndpoint { address: address.to_owned(), identity, coordinator: ExpectedPeer::new(coordinator) }
}
