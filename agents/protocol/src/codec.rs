//! Encodes frames and control messages as bytes.
//!
//! A frame's header has 80 bytes, all numbers little-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | magic `MR` |
//! | 2 | 1 | version |
//! | 3 | 1 | encoding: 0 for f32, 1 for bf16, 2 for a sparse partial sum, see [`payload`](millrace_engine::payload) |
//! | 4 | 4 | bytes of the payload |
//! | 8 | 8 | plan hash |
//! | 16 | 4 + 4 | attempt and number of the epoch |
//! | 24 | 8 | iteration |
//! | 32 | 8 | step |
//! | 40 | 4 + 4 + 4 | round, slot, chunk |
//! | 52 | 4 + 4 | start and end of the node |
//! | 60 | 4 | mask version; written as 0, ignored by readers |
//! | 64 | 8 | xxh3 of the payload; 0 if the payload lies in shared memory |
//! | 72 | 8 | xxh3 of the fields above |
//!
//! 128 is added to the encoding if the payload's location in shared memory follows the header instead of the payload.
//! Such a payload never leaves the memory of the machine, so it has no checksum.
//!
//! The receiver takes sizes from the header, never from the plan.

use bytes::Bytes;
use millrace_emulator::plan::{Encoding, PlanHash};
use millrace_emulator::tree::Node;
use millrace_engine::frame::{Frame, FrameKey};
use millrace_engine::payload::{BlockSparse, Payload, PayloadError};
use millrace_engine::types::Epoch;
use millrace_shared_memory::{LOCATION_BYTES, Location};
use serde::Serialize;
use serde::de::DeserializeOwned;
use twox_hash::XxHash3_64;

const MAGIC: [u8; 2] = *b"MR";
const FRAME_VERSION: u8 = 5;
/// Values of the encoding field.
const ENCODING_F32: u8 = 0;
const ENCODING_BF16: u8 = 1;
const ENCODING_SPARSE: u8 = 2;
/// Added to the encoding if a location follows the header instead of the payload.
const LOCATION_FLAG: u8 = 0x80;
/// The checksum of a payload in shared memory.
const NO_CHECKSUM: u64 = 0;
/// Offset of the encoding in the header.
const ENCODING_OFFSET: usize = 3;
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 80;
/// Bytes of the header's fields, which precede their checksum.
const FIELD_BYTES: usize = HEADER_BYTES - 8;
/// Bytes of a grant: the total, and its checksum.
pub const GRANT_BYTES: usize = 16;
/// Offset of the payload's length in the header.
const LENGTH_OFFSET: usize = 4;
/// Offset of the iteration in the header; step, round and slot follow.
const ITERATION_OFFSET: usize = 24;

/// Header fields that a link adds to a frame of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkContext {
    /// Hash of the plan that both ends run.
    pub plan: PlanHash,
    /// Encoding of the payload's elements.
    pub encoding: Encoding,
    /// Number of updates applied to the weights, or the step that the gradient belongs to.
    pub step: u64,
}

/// A frame or control message is damaged, or not for this link.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The header is damaged, or not one of this protocol version.
    #[error("a frame's header is damaged or not of this version; run the same build on every agent")]
    Header,
    /// The frame belongs to another plan.
    #[error("received a frame of plan {got} on a link of plan {want}")]
    Plan {
        /// Plan of the frame.
        got: PlanHash,
        /// Plan of the link.
        want: PlanHash,
    },
    /// The payload's length or checksum does not match the header.
    #[error("chunk {chunk} arrived damaged")]
    Damaged { chunk: usize },
    /// The location of the payload is damaged.
    #[error("the location of a chunk arrived damaged")]
    Location,
    /// The payload is not a valid sparse partial sum, though its checksum is right.
    #[error("chunk {chunk} arrived as a sum that can't be read: {source}")]
    Payload { chunk: usize, source: PayloadError },
    /// The control message can't be decoded.
    #[error("a control message could not be read; run the same build on every agent")]
    Message,
}

/// A frame or a grant, encoded for sending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Header of a frame, or the whole grant.
    pub head: Bytes,
    /// Payload of a frame; empty for a grant.
    pub payload: Bytes,
}

impl Packet {
    /// Returns a grant of `total` slots, counted since the link was opened.
    pub fn grant(total: u64) -> Self {
        let total = total.to_le_bytes();
        let head = [total, XxHash3_64::oneshot(&total).to_le_bytes()].concat();
        Self { head: head.into(), payload: Bytes::new() }
    }

    /// Returns the location of the payload; `None` if the packet has the payload itself.
    ///
    /// # Errors
    /// The location is damaged, or of another payload than the header.
    pub fn location(&self) -> Result<Option<Location>, CodecError> {
        if !has_location(&self.head) {
            return Ok(None);
        }
        let location = Location::parse(&self.payload);
        let is_of_header = |location: &Location| location.payload_bytes() == payload_bytes(&self.head) as u64;
        location.filter(is_of_header).map(Some).ok_or(CodecError::Location)
    }

    /// Returns the bytes on the wire.
    pub const fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Returns whether the packet has no bytes, which is never the case for a frame or a grant.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

struct HeaderWriter([u8; HEADER_BYTES], usize);

impl HeaderWriter {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.0[self.1..self.1 + N].copy_from_slice(&bytes);
        self.1 += N;
    }
}

struct HeaderReader<'a>(&'a [u8]);

impl HeaderReader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(CodecError::Header)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32, CodecError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, CodecError> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Encodes a frame. A forwarded frame keeps the checksum it was received with; for a new one the checksum is computed.
pub fn pack(frame: Frame, context: LinkContext) -> Packet {
    let checksum = frame.checksum.unwrap_or_else(|| XxHash3_64::oneshot(frame.payload.bytes()));
    Packet { head: header(&frame, context, 0, checksum), payload: frame.payload.into_bytes() }
}

/// Encodes a frame with the location of its payload instead of the payload.
pub fn pack_location(frame: &Frame, context: LinkContext, location: Location) -> Packet {
    let head = header(frame, context, LOCATION_FLAG, NO_CHECKSUM);
    Packet { head, payload: Bytes::copy_from_slice(&location.to_bytes()) }
}

/// Encodes a header; `flag` is added to the encoding.
fn header(frame: &Frame, context: LinkContext, flag: u8, checksum: u64) -> Bytes {
    let key = frame.key;
    let encoding = match (&frame.payload, context.encoding) {
        (Payload::Sparse(_), _) => ENCODING_SPARSE,
        (Payload::Dense(_), Encoding::F32) => ENCODING_F32,
        (Payload::Dense(_), Encoding::Bf16) => ENCODING_BF16,
    };
    let mut writer = HeaderWriter([0; HEADER_BYTES], 0);
    writer.put(MAGIC);
    writer.put([FRAME_VERSION, encoding | flag]);
    writer.put((frame.payload.bytes().len() as u32).to_le_bytes());
    writer.put(context.plan.0.to_le_bytes());
    writer.put(key.epoch.attempt.to_le_bytes());
    writer.put(key.epoch.number.to_le_bytes());
    writer.put(key.iteration.to_le_bytes());
    writer.put(context.step.to_le_bytes());
    for number in [key.round, key.slot, key.chunk as u32, key.node.start, key.node.end, 0] {
        writer.put(number.to_le_bytes());
    }
    writer.put(checksum.to_le_bytes());
    writer.put(XxHash3_64::oneshot(&writer.0[..FIELD_BYTES]).to_le_bytes());
    Bytes::copy_from_slice(&writer.0)
}

/// Decodes and checks a frame received on a link of `plan`.
///
/// # Errors
/// The frame is damaged, or belongs to another plan or protocol version.
pub fn unpack(packet: Packet, plan: PlanHash) -> Result<(Frame, LinkContext), CodecError> {
    let Packet { head, payload } = packet;
    let header = Header::parse(&head, plan)?;
    if has_location(&head) {
        return Err(CodecError::Header);
    }
    if payload.len() != payload_bytes(&head) || XxHash3_64::oneshot(&payload) != header.checksum {
        return Err(CodecError::Damaged { chunk: header.key.chunk });
    }
    let checksum = Some(header.checksum);
    header.into_frame(payload, checksum)
}

/// Decodes a frame whose packet had the header `head` and a location, from which `payload` was read.
///
/// # Errors
/// The header is damaged, or belongs to another plan or protocol version.
pub fn unpack_located(head: &[u8], payload: Bytes, plan: PlanHash) -> Result<(Frame, LinkContext), CodecError> {
    Header::parse(head, plan)?.into_frame(payload, None)
}

/// A header of this version, as it was sent.
struct Header {
    key: FrameKey,
    context: LinkContext,
    is_sparse: bool,
    checksum: u64,
}

impl Header {
    fn parse(head: &[u8], plan: PlanHash) -> Result<Self, CodecError> {
        let mut reader = HeaderReader(head);
        let is_of_version = reader.take()? == MAGIC && reader.take()? == [FRAME_VERSION];
        if head.len() != HEADER_BYTES || !is_of_version || !is_intact(head) {
            return Err(CodecError::Header);
        }
        let [code] = reader.take()?;
        let (encoding, is_sparse) = match code & !LOCATION_FLAG {
            ENCODING_F32 => (Encoding::F32, false),
            ENCODING_BF16 => (Encoding::Bf16, false),
            ENCODING_SPARSE => (Encoding::F32, true),
            _ => return Err(CodecError::Header),
        };
        let _payload_bytes = reader.u32()?;
        let got = PlanHash(reader.u64()?);
        if got != plan {
            return Err(CodecError::Plan { got, want: plan });
        }
        let epoch = Epoch { attempt: reader.u32()?, number: reader.u32()? };
        let (iteration, step) = (reader.u64()?, reader.u64()?);
        let (round, slot, chunk) = (reader.u32()?, reader.u32()?, reader.u32()? as usize);
        let node = Node::new(reader.u32()?, reader.u32()?);
        let _mask_version = reader.u32()?;
        let checksum = reader.u64()?;
        let key = FrameKey { epoch, iteration, round, slot, chunk, node };
        let context = LinkContext { plan, encoding, step };
        Ok(Self { key, context, is_sparse, checksum })
    }

    fn into_frame(self, payload: Bytes, checksum: Option<u64>) -> Result<(Frame, LinkContext), CodecError> {
        let Self { key, context, is_sparse, .. } = self;
        let payload = if is_sparse {
            let chunk = key.chunk;
            Payload::Sparse(BlockSparse::parse(payload).map_err(|source| CodecError::Payload { chunk, source })?)
        } else {
            Payload::Dense(payload)
        };
        Ok((Frame { key, payload, checksum }, context))
    }
}

/// Returns whether a location follows a header instead of the payload.
fn has_location(head: &[u8]) -> bool {
    head.len() == HEADER_BYTES && head[ENCODING_OFFSET] & LOCATION_FLAG != 0
}

/// Returns whether a head of this version, or a grant, arrived as it was sent: its last 8 bytes are the checksum of the
/// others.
pub(crate) fn is_intact(head: &[u8]) -> bool {
    head.split_last_chunk().is_some_and(|(fields, checksum)| XxHash3_64::oneshot(fields).to_le_bytes() == *checksum)
}

/// Returns iteration, round and slot of a frame's header; `None` if `head` is too short for a header, as that of a
/// grant.
pub(crate) fn slot_of(head: &[u8]) -> Option<(u64, u32, u32)> {
    let mut reader = HeaderReader(head.get(ITERATION_OFFSET..HEADER_BYTES)?);
    let (turn, _step) = (reader.u64().ok()?, reader.u64().ok()?);
    Some((turn, reader.u32().ok()?, reader.u32().ok()?))
}

/// Returns the number of bytes that follow a header: those of the payload, or of its location.
pub(crate) fn following_bytes(head: &[u8]) -> usize {
    if has_location(head) { LOCATION_BYTES } else { payload_bytes(head) }
}

/// Returns the payload length that a header announces.
pub(crate) fn payload_bytes(head: &[u8]) -> usize {
    let mut reader = HeaderReader(head.get(LENGTH_OFFSET..).unwrap_or_default());
    reader.u32().map_or(usize::MAX, |length| length as usize)
}

/// Encodes a control message.
pub fn encode<T: Serialize>(message: &T) -> Bytes {
    // Postcard fails only for types that these messages do not contain, and a growing vector does not run out of space.
    postcard::to_stdvec(message).map(Bytes::from).unwrap_or_default()
}

/// Decodes a control message.
///
/// # Errors
/// The bytes are not a message of this type.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    postcard::from_bytes(bytes).map_err(|_| CodecError::Message)
}

#[cfg(test)]
mod tests {
    use millrace_engine::payload_memory::{HeapMemory, PayloadMemory};
    use millrace_shared_memory::SharedMemory;

    use super::*;

    fn frame_of(payload: impl Into<Payload>) -> Frame {
        let key = FrameKey {
            epoch: Epoch { attempt: 1, number: 2 },
            iteration: 3,
            round: 4,
            slot: 5,
            chunk: 6,
            node: Node::new(7, 8),
        };
        Frame::new(key, payload)
    }

    const fn context(encoding: Encoding) -> LinkContext {
        LinkContext { plan: PlanHash(9), encoding, step: 10 }
    }

    fn packed(encoding: Encoding, payload: impl Into<Payload>) -> Packet {
        pack(frame_of(payload), context(encoding))
    }

    #[test]
    fn frame_round_trips() {
        let [weights, dense] = [b"bf16", b"sums"].map(|bytes| Payload::Dense(Bytes::from_static(bytes)));
        let sparse = Payload::from_sum(&[0.0; 1000], &HeapMemory);
        assert!(matches!(sparse, Payload::Sparse(_)));
        for (encoding, payload) in [(Encoding::Bf16, weights), (Encoding::F32, dense), (Encoding::F32, sparse)] {
            let packet = packed(encoding, payload.clone());
            let (frame, context) = unpack(packet.clone(), PlanHash(9)).unwrap();
            assert_eq!((&frame.payload, context.encoding), (&payload, encoding));
            assert_eq!(pack(frame, context), packet);
        }
    }

    #[test]
    fn invalid_sparse_sum_is_rejected_despite_valid_checksum() {
        let packet = packed(Encoding::F32, Bytes::from_static(b"weights!"));
        let mut head = packet.head.to_vec();
        head[3] = ENCODING_SPARSE;
        let checksum = XxHash3_64::oneshot(&head[..FIELD_BYTES]);
        head[FIELD_BYTES..].copy_from_slice(&checksum.to_le_bytes());
        let error = unpack(Packet { head: head.into(), ..packet }, PlanHash(9)).err();
        assert!(matches!(error, Some(CodecError::Payload { chunk: 6, .. })), "{error:?}");
    }

    #[test]
    fn frame_travels_with_the_location_of_its_payload() {
        let [sender, receiver] = [SharedMemory::new(1), SharedMemory::new(2)];
        [&sender, &receiver].into_iter().for_each(|memory| memory.begin_epoch(8, 1));
        let payload = sender.create(8, &mut |writer| writer.put(b"weights!"));
        let location = sender.share(&payload).unwrap();
        let sent = pack_location(&frame_of(payload.clone()), context(Encoding::Bf16), location);
        assert_eq!(sent.len(), HEADER_BYTES + following_bytes(&sent.head));
        assert_eq!(unpack(sent.clone(), PlanHash(9)).err(), Some(CodecError::Header), "a location is no payload");
        let location = sent.location().unwrap().unwrap();
        let received = receiver.receive(&location).unwrap();
        let (frame, received_context) = unpack_located(&sent.head, received, PlanHash(9)).unwrap();
        assert_eq!((&frame.payload.clone().into_bytes(), received_context), (&payload, context(Encoding::Bf16)));
        assert!(sender.share(&payload).is_some() && receiver.share(frame.payload.bytes()).is_some());
        let forwarded = pack(frame, context(Encoding::Bf16));
        assert_eq!(forwarded, packed(Encoding::Bf16, payload), "to another machine: with payload and checksum");
        assert_eq!(forwarded.location(), Ok(None));
        for byte in 0..sent.payload.len() {
            let mut payload = sent.payload.to_vec();
            payload[byte] ^= 1;
            let bad = Packet { payload: payload.into(), ..sent.clone() };
            assert_eq!(bad.location(), Err(CodecError::Location));
        }
        let longer = frame_of(Bytes::from_static(b"longer than 8"));
        let other = pack_location(&longer, context(Encoding::Bf16), location);
        assert_eq!(other.location(), Err(CodecError::Location), "the header is of another payload");
    }

    #[test]
    fn slot_is_read_from_header() {
        let packet = packed(Encoding::F32, Bytes::from_static(b"weights!"));
        assert_eq!((slot_of(&packet.head), slot_of(&packet.head[1..])), (Some((3, 4, 5)), None));
    }

    #[test]
    fn bit_flips_and_truncation_are_detected() {
        let good = packed(Encoding::Bf16, Bytes::from_static(b"weights!"));
        for byte in 0..good.payload.len() {
            let mut payload = good.payload.to_vec();
            payload[byte] ^= 1;
            let bad = Packet { payload: payload.into(), ..good.clone() };
            assert_eq!(unpack(bad, PlanHash(9)).err(), Some(CodecError::Damaged { chunk: 6 }));
        }
        for byte in 0..HEADER_BYTES {
            let mut head = good.head.to_vec();
            head[byte] ^= 1;
            let error = unpack(Packet { head: head.into(), ..good.clone() }, PlanHash(9)).err();
            assert_eq!(error, Some(CodecError::Header), "byte {byte}");
        }
        for length in 0..HEADER_BYTES {
            let bad = Packet { head: good.head.slice(..length), ..good.clone() };
            assert!(unpack(bad, PlanHash(9)).is_err(), "header cut to {length}");
        }
        assert!(matches!(unpack(good, PlanHash(8)), Err(CodecError::Plan { .. })));
    }
}
