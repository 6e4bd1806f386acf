//! Targets for what processes send to each other: launch documents, command lines of roles, frames, control messages,
//! journal entries.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};

use axum::body::HttpBody;
use bytes::Bytes;
use millrace_emulator::plan::PlanHash;
use millrace_engine::message::{AgentCommand, AgentReport, ShardState};
use millrace_protocol::codec::{self, HEADER_BYTES};
use millrace_protocol::launch::{FetchDocument, FetchedFile, LaunchDocument, RoleCommand, V1};
use millrace_protocol::packet::{Packet, PacketReader};
use millrace_protocol::replica::CopyReader;
use millrace_protocol::samples::Checked;
use millrace_protocol::{journal, proto};
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;
use twox_hash::XxHash3_64;

/// Returns the runtime of the targets that read streams.
pub(crate) fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"))
}

/// Reads a launch document, and the list of a job's uploads.
pub fn launch(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(uploads) = FetchDocument::from_json(text) {
        let into = Path::new("/var/lib/millrace/files");
        let is_inside = |file: &FetchedFile| !file.path.components().any(|part| part == Component::ParentDir);
        assert!(uploads.files_below(into).all(is_inside), "no file leaves its directory");
    }
    let Ok(launch) = LaunchDocument::from_json(text) else { return };
    if let Ok(first) = launch.to_json_for(V1) {
        let read = LaunchDocument::from_json(&first).expect("what is written for the first release reads back");
        assert_eq!(read, LaunchDocument { version: V1, ..launch });
    }
}

/// Reads the command line of a role: one argument on each line.
pub fn role_command(bytes: &[u8]) {
    let args = bytes.split(|&byte| byte == b'\n').map(|arg| OsStr::from_bytes(arg).to_owned());
    let Ok(command) = RoleCommand::parse(args) else { return };
    let again = RoleCommand::parse(command.to_args()).expect("the command line of a role reads back");
    assert_eq!(again, command);
}

/// Parses a message of a data loader: its kind, then its content.
pub fn loader_message(bytes: &[u8]) {
    let Some((kind, content)) = bytes.split_first() else { return };
    let _ = millrace_loader::parse_message(*kind, content.to_vec());
}

/// Returns the plan that a frame's header names; 0 if the header is too short.
fn plan_of(head: &[u8]) -> PlanHash {
    let bytes = head.get(8..16).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default();
    PlanHash(u64::from_le_bytes(bytes))
}

/// Returns a header as its sender would complete it: with the checksum of its fields.
fn sealed(head: &[u8]) -> Bytes {
    let Some((fields, _)) = head.split_last_chunk::<8>() else { return Bytes::new() };
    [fields, &XxHash3_64::oneshot(fields).to_le_bytes()].concat().into()
}

/// Decodes one frame: header and payload. The header as given is nearly always rejected, so it is decoded with a valid
/// checksum, too.
pub fn frame(bytes: &[u8]) {
    let (head, payload) = bytes.split_at(HEADER_BYTES.min(bytes.len()));
    decode_frame(Bytes::copy_from_slice(head), payload);
    decode_frame(sealed(head), payload);
}

fn decode_frame(head: Bytes, payload: &[u8]) {
    let plan = plan_of(&head);
    drop(codec::unpack_located(&head, Bytes::copy_from_slice(payload), plan));
    let packet = Packet { head, payload: Bytes::copy_from_slice(payload) };
    if let Ok((frame, context)) = codec::unpack(packet, plan) {
        let again = codec::pack(frame, context);
        let (frame, context) = codec::unpack(again.clone(), plan).expect("a frame reads back");
        assert_eq!(codec::pack(frame, context), again);
    }
}

/// A body that arrives in pieces of one size.
struct Pieces {
    bytes: Bytes,
    piece: usize,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        if self.bytes.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.piece.min(self.bytes.len());
        Poll::Ready(Some(Ok(http_body::Frame::data(self.bytes.split_to(length)))))
    }
}

/// Reads a link. The first byte is the size of the pieces in which the other bytes arrive, once as frames and once as
/// grants.
pub fn packets(bytes: &[u8]) {
    let Some((&piece, rest)) = bytes.split_first() else { return };
    let body = || {
        let bytes = Bytes::copy_from_slice(rest);
        PacketReader::new(tonic::body::Body::new(Pieces { bytes, piece: usize::from(piece).max(1) }))
    };
    runtime().block_on(async {
        let mut frames = body();
        while let Ok(Some(packet)) = frames.frame().await {
            let plan = plan_of(&packet.head);
            drop(packet.location());
            drop(codec::unpack(packet, plan));
        }
        let mut grants = body();
        while let Ok(Some(_)) = grants.grant().await {}
    });
}

/// Reads the copy of a shard, whose parts follow each other with their lengths. Each part is taken as it is and, to get
/// past the checksum, with its own.
pub fn copy(mut bytes: &[u8]) {
    let chunks = [(0, 8), (3, 16)];
    let mut readers = [CopyReader::new(chunks), CopyReader::new(chunks)];
    while let Ok(part) = proto::ChunkPart::decode_length_delimited(&mut bytes) {
        for (reader, part) in readers.iter_mut().zip([part.clone(), part.sealed()]) {
            if let Ok(Some((chunk, bytes))) = reader.take(&part) {
                assert!(chunks.contains(&(chunk, bytes.len())), "chunk {chunk} of {} bytes", bytes.len());
            }
        }
    }
}

/// Decodes control messages of both directions. Encoded bytes are compared instead of values, because floats may be
/// NaN.
pub fn control(bytes: &[u8]) {
    fn check<T: DeserializeOwned + Serialize>(bytes: &[u8]) {
        let Ok(message) = codec::decode::<T>(bytes) else { return };
        let encoded = codec::encode(&message);
        let again = codec::decode::<T>(&encoded).expect("a message reads back");
        assert_eq!(codec::encode(&again), encoded);
    }
    check::<AgentCommand>(bytes);
    check::<AgentReport>(bytes);
    check::<ShardState>(bytes);
}

/// Decodes a journal entry as sent over the network.
pub fn entry(bytes: &[u8]) {
    let Ok(packed) = proto::Entry::decode(bytes) else { return };
    let Ok(entry) = journal::from_proto(&packed) else { return };
    let again = journal::to_proto(&entry, entry.attempt);
    drop(journal::from_proto(&again).expect("an entry reads back"));
}
