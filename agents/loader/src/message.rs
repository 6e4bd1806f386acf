//! Messages between the activation server, the host and the workers. `python/loader.py` documents them.

use std::io::{self, Read, Write};

use millrace_data::SampleNumber;
use serde::Deserialize;

/// Maximum bytes of every message but samples.
pub const MAX_REPORT_BYTES: usize = 1 << 20;
/// Bytes before the content of a message: its length and its kind.
const HEADER_BYTES: usize = 5;
/// Bytes of the resident memory before the samples.
pub(crate) const RESIDENT_BYTES: usize = 8;

const HELLO: u8 = 0;
const START: u8 = 1;
const KILL: u8 = 2;
const EXITED: u8 = 3;
const READY: u8 = 4;
const READ: u8 = 5;
const SAMPLES: u8 = 6;
const PROGRESS: u8 = 7;
const ERROR: u8 = 8;

/// A message to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A host has connected.
    HostHello,
    /// A worker has connected.
    WorkerHello(u64),
    /// A worker has ended.
    Exited(WorkerExit),
    /// The dataset of a worker has this number of samples.
    Ready {
        /// The number of samples.
        samples: Option<u64>,
    },
    /// The elements of the requested samples.
    Samples {
        /// Memory of the worker.
        resident_bytes: u64,
        /// The elements of each input, sample after sample.
        elements: Vec<u8>,
    },
    /// A worker has read another sample of the request.
    Progress,
    /// The dataset can't be created, or a sample can't be read.
    Error(SampleError),
}

/// The end of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct WorkerExit {
    /// The worker.
    pub worker: u64,
    /// Exit code, or the negative number of a signal.
    pub status: i32,
    /// The last lines that it printed.
    #[serde(default)]
    pub lines: Vec<String>,
}

/// An exception in the code of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SampleError {
    /// Index of the sample; `None` if the dataset was being created.
    pub sample: Option<u64>,
    /// The exception and its traceback.
    pub message: String,
}

/// Why a message can't be received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("its connection has ended")]
    Ended,
    #[error("it has not answered for too long")]
    Timeout,
    #[error("its connection failed: {0}")]
    Io(io::Error),
    #[error("it sent an invalid message")]
    Invalid,
}

impl From<io::Error> for ReceiveError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Self::Ended,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Timeout,
            _ => Self::Io(error),
        }
    }
}

/// Parses a message of this kind; returns `None` if it is not valid.
pub fn parse_message(kind: u8, content: Vec<u8>) -> Option<Message> {
    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Hello {
        /// Its process, which only the log of a packet capture needs.
        Host(serde::de::IgnoredAny),
        Worker(u64),
    }
    #[derive(Deserialize)]
    struct Ready {
        samples: Option<u64>,
    }
    Some(match kind {
        HELLO => match serde_json::from_slice(&content).ok()? {
            Hello::Host(_) => Message::HostHello,
            Hello::Worker(worker) => Message::WorkerHello(worker),
        },
        EXITED => Message::Exited(serde_json::from_slice(&content).ok()?),
        READY => Message::Ready { samples: serde_json::from_slice::<Ready>(&content).ok()?.samples },
        SAMPLES => {
            let resident_bytes = u64::from_le_bytes(*content.first_chunk::<RESIDENT_BYTES>()?);
            let mut elements = content;
            elements.drain(..RESIDENT_BYTES);
            Message::Samples { resident_bytes, elements }
        }
        PROGRESS if content.is_empty() => Message::Progress,
        ERROR => Message::Error(serde_json::from_slice(&content).ok()?),
        _ => return None,
    })
}

/// Receives a message of at most `max_bytes`.
///
/// # Errors
/// The connection ends or fails, or the message is larger or not valid.
pub(crate) fn receive(stream: &mut impl Read, max_bytes: usize) -> Result<Message, ReceiveError> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let [a, b, c, d, kind] = header;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length == 0 || length - 1 > max_bytes.max(MAX_REPORT_BYTES) {
        return Err(ReceiveError::Invalid);
    }
    let mut content = vec![0; length - 1];
    stream.read_exact(&mut content)?;
    parse_message(kind, content).ok_or(ReceiveError::Invalid)
}

/// Requests the host to start a worker of the package in `directory`.
pub(crate) fn send_start(stream: &mut impl Write, worker: u64, directory: &str) -> io::Result<()> {
    send(stream, START, serde_json::json!({"worker": worker, "package": directory}).to_string().as_bytes())
}

/// Requests the host to end a worker.
pub(crate) fn send_kill(stream: &mut impl Write, worker: u64) -> io::Result<()> {
    send(stream, KILL, serde_json::json!({"worker": worker}).to_string().as_bytes())
}

/// Requests samples from a worker.
pub(crate) fn send_read(stream: &mut impl Write, samples: &[SampleNumber]) -> io::Result<()> {
    let numbers = samples.iter().flat_map(|sample| [sample.index, sample.seed]).flat_map(u64::to_le_bytes);
    send(stream, READ, &numbers.collect::<Vec<u8>>())
}

fn send(stream: &mut impl Write, kind: u8, content: &[u8]) -> io::Result<()> {
    let length = u32::try_from(content.len() + 1).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut message = Vec::with_capacity(HEADER_BYTES + content.len());
    message.extend(length.to_le_bytes());
    message.push(kind);
    message.extend(content);
    stream.write_all(&message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_messages_are_rejected() {
        let frame = |kind: u8, content: &[u8]| {
            let mut frame = (content.len() as u32 + 1).to_le_bytes().to_vec();
            frame.push(kind);
            frame.extend(content);
            frame
        };
        let received = |bytes: Vec<u8>, max| receive(&mut bytes.as_slice(), max);
        assert_eq!(received(frame(HELLO, br#"{"worker": 7}"#), 0).unwrap(), Message::WorkerHello(7));
        let samples = [3_u64.to_le_bytes().as_slice(), &[1, 2]].concat();
        let message = Message::Samples { resident_bytes: 3, elements: vec![1, 2] };
        assert_eq!(received(frame(SAMPLES, &samples), 0).unwrap(), message);
        for (bytes, max) in [
            (frame(HELLO, b"{}"), 0),
            (frame(SAMPLES, &[1, 2]), 0),
            (frame(PROGRESS, b"x"), 0),
            (frame(200, b""), 0),
            (vec![0; HEADER_BYTES], 0),
            (frame(SAMPLES, &vec![0; MAX_REPORT_BYTES + 1]), MAX_REPORT_BYTES),
        ] {
            assert!(matches!(received(bytes, max), Err(ReceiveError::Invalid)));
        }
        assert!(matches!(received(frame(ERROR, b"{}")[..4].to_vec(), 0), Err(ReceiveError::Ended)));
    }
}
