//! The coordinator's journal port: serving it, and dialling it from whoever runs jobs. Who else tells of a job over mutual TLS
//! is served and dialled from here, too.
//!
//! In the clear on one machine; in a cluster with mutual TLS, where each end shows a certificate of an authority that the
//! other one trusts. TLS is behind the feature `tls`; without it, asking for it is an error, never a connection in the
//! clear.

use std::fmt;
use std::path::{Path, PathBuf};

use millrace_telemetry::journal::Entry;
use tonic::transport::{Channel, Server};

use crate::proto;
use crate::proto::journal_client::JournalClient;
use crate::transport;

/// One end's identity and whom it trusts, as the bytes of PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Tls {
    cert: Vec<u8>,
    key: Vec<u8>,
    ca: Vec<u8>,
}

impl Tls {
    /// `cert` is this end's certificate, with those between it and the authority behind it, and `key` its private key;
    /// `ca` is the authority that the other end's certificate must be of. All three are PEM, and looked at when they are
    /// used.
    pub fn new(cert: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>, ca: impl Into<Vec<u8>>) -> Self {
        Self { cert: cert.into(), key: key.into(), ca: ca.into() }
    }

    /// As [`Tls::new`], from files.
    ///
    /// # Errors
    /// [`JournalError::File`].
    pub fn read(cert: &Path, key: &Path, ca: &Path) -> Result<Self, JournalError> {
        let read =
            |path: &Path| std::fs::read(path).map_err(|cause| JournalError::File { path: path.to_owned(), cause });
        Ok(Self { cert: read(cert)?, key: read(key)?, ca: read(ca)? })
    }
}

/// Says nothing of the bytes: one of them is a secret.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// Why the journal can't be served or reached.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file that [`Tls::read`] was to read.
    #[error("can't read {}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// TLS is asked for.
    #[error("this build has no TLS: it was made without the feature `tls`")]
    NoTls,
    /// The certificates are no good, or nobody listens, or it is not who it should be.
    #[error("{}", transport::causes(.0))]
    Transport(#[from] tonic::transport::Error),
}

/// Dials the journal at `address` (`host:port`). With `tls`, the coordinator must show a certificate for that host.
///
/// # Errors
/// See [`JournalError`].
pub async fn connect(address: &str, tls: Option<&Tls>) -> Result<JournalClient<Channel>, JournalError> {
    let channel = match tls {
        None => transport::dial(address).await?,
        Some(tls) => secure::dial(address, tls).await?,
    };
    Ok(JournalClient::new(channel))
}

/// A channel to who shows a certificate for `name` at `address` (`host:port`), whatever its host is called. It is dialled when
/// it is first used, and anew whenever it broke; a stream that nobody reads holds up no other.
///
/// # Errors
/// The certificates or the address are no good, or there is no TLS.
pub fn channel(address: &str, name: &str, tls: &Tls) -> Result<Channel, JournalError> {
    secure::channel(address, name, tls)
}

/// A server for the journal's port. With `tls`, it talks only to those who show a certificate of its authority.
///
/// # Errors
/// See [`JournalError`].
pub fn server(tls: Option<&Tls>) -> Result<Server, JournalError> {
    match tls {
        None => Ok(transport::server()),
        Some(tls) => secure::server(tls),
    }
}

/// An entry as it travels, as of this attempt of the job.
pub fn pack(entry: &Entry, attempt: u64) -> proto::Entry {
    let kind = entry.event.kind();
    // An event in JSON is an object with its kind as the only key.
    let event = serde_json::to_string(&entry.event).unwrap_or_default();
    let body = event.strip_prefix(&format!("{{\"{kind}\":")).and_then(|body| body.strip_suffix('}'));
    proto::Entry {
        number: entry.seq,
        attempt: u32::try_from(attempt).unwrap_or(u32::MAX),
        time_ms: entry.unix_ms,
        kind: kind.to_owned(),
        body: body.unwrap_or_default().to_owned(),
    }
}

/// The reverse of [`pack`].
///
/// # Errors
/// A kind of a later version, to be passed over.
pub fn unpack(entry: &proto::Entry) -> serde_json::Result<Entry> {
    let event = format!("{{{}:{}}}", serde_json::Value::from(entry.kind.as_str()), entry.body);
    Ok(Entry {
        seq: entry.number,
        attempt: entry.attempt.into(),
        unix_ms: entry.time_ms,
        event: serde_json::from_str(&event)?,
    })
}

#[cfg(feature = "tls")]
mod secure {
    use std::time::Duration;

    use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig};

    use super::{JournalError, Tls};
    use crate::transport;

    /// What one stream of a shared channel may have in flight, and all of them. As many as a server takes by default, 200, fit:
    /// those that are not read leave room for the others.
    const STREAM_BYTES: u32 = 256 << 10;
    const CONNECTION_BYTES: u32 = 64 << 20;
    /// Whoever is behind a shared channel listened before: who does not answer soon is gone.
    const CONNECTING: Duration = Duration::from_secs(3);

    pub async fn dial(address: &str, tls: &Tls) -> Result<Channel, JournalError> {
        Ok(endpoint(address, tls.client())?.connect().await?)
    }

    pub fn channel(address: &str, name: &str, tls: &Tls) -> Result<Channel, JournalError> {
        let endpoint = endpoint(address, tls.client().domain_name(name))?
            .initial_stream_window_size(STREAM_BYTES)
            .initial_connection_window_size(CONNECTION_BYTES)
            .connect_timeout(CONNECTING);
        Ok(endpoint.connect_lazy())
    }

    fn endpoint(address: &str, tls: ClientTlsConfig) -> Result<Endpoint, JournalError> {
        Ok(transport::endpoint(&format!("https://{address}"))?.tls_config(tls)?)
    }

    pub fn server(tls: &Tls) -> Result<Server, JournalError> {
        let tls = ServerTlsConfig::new().identity(tls.identity()).client_ca_root(tls.authority());
        Ok(transport::server().tls_config(tls)?)
    }

    impl Tls {
        fn client(&self) -> ClientTlsConfig {
            ClientTlsConfig::new().identity(self.identity()).ca_certificate(self.authority())
        }

        fn identity(&self) -> Identity {
            Identity::from_pem(&self.cert, &self.key)
        }

        fn authority(&self) -> Certificate {
            Certificate::from_pem(&self.ca)
        }
    }
}

#[cfg(not(feature = "tls"))]
mod secure {
    use tonic::transport::{Channel, Server};

    use super::{JournalError, Tls};

    pub async fn dial(_: &str, _: &Tls) -> Result<Channel, JournalError> {
        Err(JournalError::NoTls)
    }

    pub fn channel(_: &str, _: &str, _: &Tls) -> Result<Channel, JournalError> {
        Err(JournalError::NoTls)
    }

    pub fn server(_: &Tls) -> Result<Server, JournalError> {
        Err(JournalError::NoTls)
    }
}

#[cfg(test)]
mod tests {
    use millrace_telemetry::journal::{Event, Outcome, Stage, State};
    use millrace_telemetry::logs::{AgentName, Level, Record};
    use millrace_telemetry::metrics::TrainPoint;

    use super::*;

    #[test]
    fn entries_survive_the_wire() {
        let point =
            TrainPoint { step: 1, loss: 0.1, learning_rate: 6e-4, grad_norm: 1.5, tokens: 8, seconds: 0.5, rate: 2.0 };
        let state = State { state: Stage::Training, step: 0, total_steps: Some(5), num_csx: 2, epoch: None };
        let events = [
            Event::Metric(point.into()),
            Event::Log(Record::new(Level::Info, AgentName::new("cs2", 1).unwrap(), "a \"word\"".to_owned())),
            Event::State(state),
            Event::Checkpoint { step: 3, digest: "ab".into() },
            Event::Outcome(Outcome::default()),
        ];
        for event in events {
            let entry = Entry { seq: 4, attempt: 2, unix_ms: 17, event };
            let packed = pack(&entry, entry.attempt);
            assert_eq!(unpack(&packed).unwrap(), entry);
            // The shortest decimals are what tells that bits are the same.
            assert!(packed.kind != "metric" || packed.body.contains("\"loss\":0.1,"), "{packed:?}");
        }
        for (kind, body) in [("weather", "{}"), ("metric", "{"), ("a\"b", "1"), ("", "")] {
            unpack(&proto::Entry { kind: kind.into(), body: body.into(), ..Default::default() }).unwrap_err();
        }
    }

    #[test]
    fn a_key_is_not_for_debugging() {
        assert_eq!(format!("{:?}", Tls::new("cert", "key", "ca")), "Tls { .. }");
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_build_without_tls_refuses_to_do_without() {
        assert!(matches!(server(Some(&Tls::new("c", "k", "a"))), Err(JournalError::NoTls)));
    }
}
