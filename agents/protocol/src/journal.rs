//! Connects to a coordinator's journal port and encodes journal entries for it.
//!
//! The port is dialled by the launcher and the services of the control plane. [`channel`] is also used for the reader
//! of a job's files.
//!
//! Both servers require mutual TLS, see [`security`](crate::security). A coordinator presents the certificate of its
//! attempt and accepts commands only from the attempt's launcher and the services of the control plane.

use std::time::Duration;

use millrace_telemetry::journal::JournalEntry;
use tonic::transport::Channel;

use crate::proto;
use crate::proto::journal_client::JournalClient;
use crate::security::{ExpectedPeer, Identity, Protection};
use crate::transport::{self, AuthenticatedConnector, KeepAlive};

/// Maximum bytes in flight of one stream of a shared channel, and of all its streams. A server accepts 200 streams by
/// default, and 200 × 256 KiB fit into 64 MiB: streams that are not read leave room for the others.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// The peer of a shared channel was listening before, so one that does not answer quickly is considered lost.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The reason of a stop request that the user made with Ctrl-C.
pub const USER_STOP_REASON: &str = "interrupted";

/// The journal is unreachable, or one end rejects the identity of the other.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct JournalError(#[from] tonic::transport::Error);

/// The address of a coordinator's journal, and the identities of both ends.
#[derive(Clone, Debug)]
pub struct JournalEndpoint {
    /// `host:port`.
    pub address: String,
    /// Identity of the client.
    pub identity: Identity,
    /// The coordinator's name, which its certificate must have.
    pub coordinator: ExpectedPeer,
}

impl JournalEndpoint {
    /// Connects to the coordinator. The connection is encrypted.
    ///
    /// # Errors
    /// The coordinator is unreachable, or one end rejects the identity of the other.
    pub async fn connect(&self) -> Result<JournalClient<Channel>, JournalError> {
        self.connect_with(KeepAlive::DATA).await
    }

    /// Connects like [`JournalEndpoint::connect`], with these pings.
    ///
    /// # Errors
    /// Those of [`JournalEndpoint::connect`].
    pub async fn connect_with(&self, pings: KeepAlive) -> Result<JournalClient<Channel>, JournalError> {
        let Self { address, identity, coordinator } = self;
        let channel =
            transport::dial_with(address, identity, coordinator.clone(), Protection::Encrypted, pings).await?;
        Ok(JournalClient::new(channel))
    }
}

/// Returns an encrypted channel to `expected` at `address` (`host:port`). The channel connects at its first use, and
/// again after the connection was lost. A stream that is not read does not block the others.
///
/// # Errors
/// `address` is not a valid address. Connection errors are returned by the calls on the channel.
pub fn channel(address: &str, identity: &Identity, expected: ExpectedPeer) -> Result<Channel, JournalError> {
    let endpoint = transport::endpoint(address)?
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .connect_timeout(CONNECT_TIMEOUT);
    let connector = AuthenticatedConnector::new(address, identity, expected, Protection::Encrypted);
    Ok(endpoint.connect_with_connector_lazy(connector))
}

/// Converts an entry to its protobuf message, with `attempt` instead of the entry's own attempt. An attempt beyond
/// `u32` becomes `u32::MAX`.
pub fn to_proto(entry: &JournalEntry, attempt: u64) -> proto::Entry {
    let kind = entry.event.kind();
    // An event in JSON is an object whose only key is the event's kind.
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

/// Converts a protobuf message to an entry; reverses [`to_proto`].
///
/// # Errors
/// The kind is unknown, for example because it was added in a later version, or the body is invalid. Readers skip such
/// entries.
pub fn from_proto(entry: &proto::Entry) -> serde_json::Result<JournalEntry> {
    let event = format!("{{{}:{}}}", serde_json::Value::from(entry.kind.as_str()), entry.body);
    Ok(JournalEntry {
        seq: entry.number,
        attempt: entry.attempt.into(),
        unix_ms: entry.time_ms,
        event: serde_json::from_str(&event)?,
    })
}

#[cfg(test)]
mod tests {
    use millrace_telemetry::journal::{AttemptOutcome, JournalEvent, RunPhase, RunState};
    use millrace_telemetry::logs::{AgentName, Level, LogRecord};
    use millrace_telemetry::metrics_log::TrainMetrics;

    use super::*;

    #[test]
    fn entries_round_trip() {
        let point = TrainMetrics {
            step: 1,
            loss: 0.1,
            learning_rate: 6e-4,
            grad_norm: 1.5,
            tokens: 8,
            seconds: 0.5,
            rate: 2.0,
            skipped_batches: 0,
            metrics: [("train/accuracy".to_owned(), 0.5)].into(),
        };
        let state = RunState {
            state: RunPhase::Training,
            step: 0,
            total_steps: Some(5),
            num_csx: 2,
            requested_csx: Some(4),
            epoch: None,
            resumed: None,
            lost_agents: Default::default(),
            slow_agents: Default::default(),
            storage_stall: None,
            note: None,
        };
        let events = [
            JournalEvent::Metric(point.into()),
            JournalEvent::Log(LogRecord::new(Level::Info, AgentName::new("cs2", 1).unwrap(), "a \"word\"".to_owned())),
            JournalEvent::State(state),
            JournalEvent::Checkpoint { step: 3, digest: "ab".into() },
            JournalEvent::Outcome(AttemptOutcome::default()),
        ];
        for event in events {
            let entry = JournalEntry { seq: 4, attempt: 2, unix_ms: 17, event };
            let packed = to_proto(&entry, entry.attempt);
            assert_eq!(from_proto(&packed).unwrap(), entry);
            // The shortest decimal representation round-trips, so equal text means equal bits.
            assert!(packed.kind != "metric" || packed.body.contains("\"loss\":0.1,"), "{packed:?}");
        }
        for (kind, body) in [("weather", "{}"), ("metric", "{"), ("a\"b", "1"), ("", "")] {
            from_proto(&proto::Entry { kind: kind.into(), body: body.into(), ..Default::default() }).unwrap_err();
        }
    }
}
