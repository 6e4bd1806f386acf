//! The coordinator's journal port, dialled from whoever runs jobs. The reader of a job's files is dialled from here,
//! too.
//!
//! Both are served and dialled with mutual TLS, see [`security`](crate::security): the coordinator shows the
//! certificate of its attempt, and takes commands from the attempt's launcher and the services of the control plane
//! only.

use std::time::Duration;

use millrace_telemetry::journal::Entry;
use tonic::transport::Channel;

use crate::proto;
use crate::proto::journal_client::JournalClient;
use crate::security::{Expected, Identity, Protection};
use crate::transport::{self, Connector};

/// Bytes that one stream of a shared channel may have in flight, and all of them. As many as a server takes by default,
/// 200, fit: those that are not read leave room for the others.
const STREAM_BYTES: u32 = 256 << 10;
const CONNECTION_BYTES: u32 = 64 << 20;
/// Whoever is behind a shared channel listened before: a peer that does not answer soon is gone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The journal can't be reached, or one end does not take the other for who it should be.
#[derive(Debug, thiserror::Error)]
#[error("{}", transport::causes(.0))]
pub struct JournalError(#[from] tonic::transport::Error);

/// Where a coordinator's journal is served, and who reads it there.
#[derive(Clone, Debug)]
pub struct Journal {
    /// `host:port`.
    pub address: String,
    /// Who reads it.
    pub identity: Identity,
    /// The coordinator.
    pub coordinator: Expected,
}

impl Journal {
    /// Connects to the coordinator.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn connect(&self) -> Result<JournalClient<Channel>, JournalError> {
        let Self { address, identity, coordinator } = self;
        let channel = transport::dial(address, identity, coordinator.clone(), Protection::Encrypted).await?;
        Ok(JournalClient::new(channel))
    }
}

/// A channel to `expected` at `address` (`host:port`). It is dialled when it is first used, and anew whenever it broke;
/// a stream that nobody reads holds up no other.
///
/// # Errors
/// The address is none.
pub fn channel(address: &str, identity: &Identity, expected: Expected) -> Result<Channel, JournalError> {
    let endpoint = transport::endpoint(address)?
        .initial_stream_window_size(STREAM_BYTES)
        .initial_connection_window_size(CONNECTION_BYTES)
        .connect_timeout(CONNECT_TIMEOUT);
    let connector = Connector::new(address, identity, expected, Protection::Encrypted);
    Ok(endpoint.connect_with_connector_lazy(connector))
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
        let state = State {
            state: Stage::Training,
            step: 0,
            total_steps: Some(5),
            num_csx: 2,
            epoch: None,
            resumed: None,
            note: None,
        };
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
}
