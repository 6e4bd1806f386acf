//! Encodes the protocol-buffer messages of an event file that we need.
//!
//! ```text
//! Event      { 1: double wall_time, 2: int64 step, 3: string file_version, 5: Summary, 7: SessionLog }
//! Summary    { repeated 1: Value }      Value { 1: string tag, 2: float simple_value }
//! SessionLog { 1: enum status }         START = 1
//! ```
//!
//! The messages are defined in TensorFlow's `event.proto` and `summary.proto`. Fields are written in the order of their
//! numbers and, as in proto3, left out if they are zero. The bytes therefore equal those of the official library.

/// Wire types, which say how a field's value is encoded.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED32: u64 = 5;

/// An event of the file.
#[derive(Clone, Debug)]
pub(super) struct EventProto<'a> {
    wall_time: f64,
    step: u64,
    what: EventKind<'a>,
}

#[derive(Clone, Debug)]
enum EventKind<'a> {
    FileVersion(&'static str),
    Scalars(&'a [(&'a str, f32)]),
    SessionStart,
}

impl<'a> EventProto<'a> {
    /// Returns the first event of every file.
    pub(super) fn file_version(wall_time: f64) -> Self {
        Self { wall_time, step: 0, what: EventKind::FileVersion("brain.Event:2") }
    }

    /// Returns an event with one point of each of several curves, at one step.
    pub(super) fn scalars(wall_time: f64, step: u64, values: &'a [(&'a str, f32)]) -> Self {
        Self { wall_time, step, what: EventKind::Scalars(values) }
    }

    /// Returns an event that makes readers discard earlier points of `step` and later steps.
    pub(super) fn session_start(wall_time: f64, step: u64) -> Self {
        Self { wall_time, step, what: EventKind::SessionStart }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut message = Message::default();
        message.double(1, self.wall_time);
        message.varint(2, self.step);
        match &self.what {
            EventKind::FileVersion(version) => message.bytes(3, version.as_bytes()),
            EventKind::Scalars(values) => message.bytes(5, &summary(values)),
            EventKind::SessionStart => {
                let mut session = Message::default();
                session.varint(1, 1);
                message.bytes(7, &session.bytes);
            }
        }
        message.bytes
    }
}

fn summary(values: &[(&str, f32)]) -> Vec<u8> {
    let mut summary = Message::default();
    for (tag, value) in values {
        let mut entry = Message::default();
        entry.bytes(1, tag.as_bytes());
        entry.oneof_float(2, *value);
        summary.bytes(1, &entry.bytes);
    }
    summary.bytes
}

/// Builds the bytes of a message.
#[derive(Default)]
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn key(&mut self, field: u64, wire_type: u64) {
        self.raw_varint(field << 3 | wire_type);
    }

    fn varint(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.key(field, VARINT);
            self.raw_varint(value);
        }
    }

    fn double(&mut self, field: u64, value: f64) {
        if value.to_bits() != 0 {
            self.key(field, FIXED64);
            self.bytes.extend(value.to_le_bytes());
        }
    }

    /// Writes a member of a `oneof`, which is present even if it is zero.
    fn oneof_float(&mut self, field: u64, value: f32) {
        self.key(field, FIXED32);
        self.bytes.extend(value.to_le_bytes());
    }

    /// Writes a string or a nested message.
    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.key(field, LENGTH_DELIMITED);
        self.raw_varint(value.len() as u64);
        self.bytes.extend(value);
    }
}
