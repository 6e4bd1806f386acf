//! Sends and receives packets over the links of the data tree: packets follow each other in HTTP/2 bodies.
//!
//! ```text
//!   child ── POST …/Down ──► parent     request body: grants     response body: frames (weights)
//!   child ── POST …/Up ────► parent     request body: frames     response body: grants (gradients)
//!
//!   frame = header (80 bytes) + payload, or its location in shared memory (40 bytes)
//!   grant = running total (8 bytes, little-endian) + its checksum (8)
//! ```
//!
//! * Each direction of a link is one request of the child to its parent. The request lasts as long as the link.
//! * Payloads are not copied: the memory that is sent is the payload's own, and a received payload shares the memory it
//!   was read into unless it arrived in several pieces. gRPC envelopes are not used because gRPC libraries copy each
//!   message on both ends.
//! * Queues of packets are bounded, see [`PacketSender`].

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body as _, Frame as Data};
use millrace_engine::credit::SlotCount;
use tokio::sync::mpsc;
use tonic::body::Body;

pub use crate::codec::Packet;
use crate::codec::{GRANT_BYTES, HEADER_BYTES, following_bytes, is_intact, payload_bytes, slot_of};

/// Name of the service that shards and SwarmX nodes offer to their children.
pub const LINK_SERVICE: &str = "millrace.v1.Link";
/// Path of a request for weights: the caller grants slots.
pub const LINK_DOWN_PATH: &str = "/millrace.v1.Link/Down";
/// Path of a request that brings gradients: the callee grants slots.
pub const LINK_UP_PATH: &str = "/millrace.v1.Link/Up";
/// Name of the header with the epoch, `<attempt>.<number>`.
pub const EPOCH_HEADER: &str = "millrace-epoch";
/// Name of the header by which an agent accepts locations instead of payloads from agents of the same machine, with the
/// text of its [`MachineId`](millrace_shared_memory::MachineId).
pub const SHARED_MEMORY_HEADER: &str = "millrace-shared-memory";
/// Name of the header with the agent that dials, `<role>-<index>`.
pub const AGENT_HEADER: &str = "millrace-agent";

/// Maximum bytes of a payload: one chunk.
pub const MAX_PAYLOAD_BYTES: usize = 4 << 20;
/// Maximum number of grants queued for a peer. A peer that reads its frames also reads its grants: all queued grants
/// together (1 MiB) are smaller than the frame of a full chunk.
const MAX_QUEUED_GRANTS: u64 = 1 << 16;

/// An error that ends a link, because nothing more can be read from it.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// The connection failed.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The peer closed the link in the middle of a packet.
    #[error("the peer closed the link in the middle of a packet")]
    Cut,
    /// A header or a grant arrived damaged.
    #[error("a packet arrived damaged")]
    Damaged,
    /// A header announces a payload larger than [`MAX_PAYLOAD_BYTES`].
    #[error("a frame announces {0} bytes, more than a chunk has; run the same build on every agent")]
    TooLong(usize),
}

/// Returns a body that sends packets, and the sender for it. The body ends when the last clone of the sender is
/// dropped.
pub fn packet_channel() -> (PacketSender, Body) {
    // The queue is bounded nevertheless, see `PacketSender`.
    let (packets, receiver) = mpsc::unbounded_channel();
    let taken = Arc::new(SendCounters::default());
    let body =
        OutgoingBody { packets: receiver, payload: Bytes::new(), slots: SlotCount::default(), taken: taken.clone() };
    (PacketSender { packets, taken }, Body::new(body))
}

/// Counts what the connection has taken from one body.
#[derive(Debug, Default)]
struct SendCounters {
    packets: AtomicU64,
    slots: AtomicU64,
    /// Packets queued so far, whether or not the connection has taken them.
    sent: AtomicU64,
}

/// Queues packets for a body. The queue is bounded: the number of frames by the peer's grants, each of which
/// [`GrantCheck`](millrace_engine::credit::GrantCheck) compares with [`SendProgress::slots_sent`], the number of
/// grants by [`PacketSender::grant`].
#[derive(Clone, Debug)]
pub struct PacketSender {
    packets: mpsc::UnboundedSender<Packet>,
    taken: Arc<SendCounters>,
}

impl PacketSender {
    /// Queues a packet. It is dropped if the link is closed.
    pub fn send(&self, packet: Packet) {
        self.taken.sent.fetch_add(1, Ordering::Relaxed);
        let _ = self.packets.send(packet);
    }

    /// Queues a grant. If too many packets are queued already, because the peer does not read them, the grant is
    /// dropped and the peer gets no more credit.
    pub fn grant(&self, total: u64) {
        let SendCounters { packets, sent, .. } = &*self.taken;
        if sent.load(Ordering::Relaxed) - packets.load(Ordering::Relaxed) < MAX_QUEUED_GRANTS {
            self.send(Packet::grant(total));
        }
    }

    /// Returns a view of what the connection has taken. The view does not keep the body open.
    pub fn progress(&self) -> SendProgress {
        SendProgress(self.taken.clone())
    }
}

/// Reports what a connection has taken from one body.
#[derive(Clone, Debug)]
pub struct SendProgress(Arc<SendCounters>);

impl SendProgress {
    /// Returns the number of slots of which the connection has taken at least one frame.
    pub fn slots_sent(&self) -> u64 {
        self.0.slots.load(Ordering::Relaxed)
    }
}

struct OutgoingBody {
    packets: mpsc::UnboundedReceiver<Packet>,
    /// Payload of the packet whose head was sent already.
    payload: Bytes,
    slots: SlotCount,
    taken: Arc<SendCounters>,
}

impl http_body::Body for OutgoingBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Data<Bytes>, Infallible>>> {
        if !self.payload.is_empty() {
            return Poll::Ready(Some(Ok(Data::data(std::mem::take(&mut self.payload)))));
        }
        self.packets.poll_recv(cx).map(|packet| {
            let Packet { head, payload } = packet?;
            self.taken.packets.fetch_add(1, Ordering::Relaxed);
            if let Some(slot) = slot_of(&head) {
                let slots = self.slots.frame(slot);
                self.taken.slots.store(slots, Ordering::Relaxed);
            }
            self.payload = payload;
            Some(Ok(Data::data(head)))
        })
    }
}

/// Reads packets from a body.
pub struct PacketReader {
    body: Body,
    /// Bytes received but not yet returned.
    pieces: VecDeque<Bytes>,
}

impl PacketReader {
    /// Reads the packets of `body`.
    pub const fn new(body: Body) -> Self {
        Self { body, pieces: VecDeque::new() }
    }

    /// Waits for the next packet and returns it as a frame whose payload or location is not yet checked; `None` if the
    /// peer has closed the link. Not cancel-safe.
    ///
    /// # Errors
    /// The connection failed, the peer closed the link in the middle of a frame, or the header is damaged or announces
    /// too long a payload.
    pub async fn frame(&mut self) -> Result<Option<Packet>, PacketError> {
        let Some(head) = self.read_exact(HEADER_BYTES).await? else { return Ok(None) };
        // Before the length is used: bytes that were never sent would be waited for.
        if !is_intact(&head) {
            return Err(PacketError::Damaged);
        }
        let length = payload_bytes(&head);
        if length > MAX_PAYLOAD_BYTES {
            return Err(PacketError::TooLong(length));
        }
        let payload = self.read_exact(following_bytes(&head)).await?.ok_or(PacketError::Cut)?;
        Ok(Some(Packet { head, payload }))
    }

    /// Waits for the next packet and returns the total of a grant; `None` if the peer has closed the link. Not
    /// cancel-safe.
    ///
    /// # Errors
    /// The connection failed, the peer closed the link in the middle of a grant, or the grant is damaged.
    pub async fn grant(&mut self) -> Result<Option<u64>, PacketError> {
        let Some(mut grant) = self.read_exact(GRANT_BYTES).await? else { return Ok(None) };
        if !is_intact(&grant) {
            return Err(PacketError::Damaged);
        }
        Ok(Some(grant.get_u64_le()))
    }

    /// Returns the next `count` bytes; `None` at the end of the body. The bytes share the received memory if they
    /// arrived in one piece, and are copied otherwise.
    async fn read_exact(&mut self, count: usize) -> Result<Option<Bytes>, PacketError> {
        let mut have: usize = self.pieces.iter().map(Bytes::len).sum();
        while have < count {
            match self.next_bytes().await? {
                Some(piece) => {
                    have += piece.len();
                    self.pieces.push_back(piece);
                }
                None if have == 0 => return Ok(None),
                None => return Err(PacketError::Cut),
            }
        }
        if let Some(first) = self.pieces.front_mut()
            && first.len() > count
        {
            return Ok(Some(first.split_to(count)));
        }
        let mut taken = self.pieces.pop_front().unwrap_or_default();
        if taken.len() < count {
            let mut joined = BytesMut::with_capacity(count);
            joined.extend_from_slice(&taken);
            while joined.len() < count
                && let Some(mut piece) = self.pieces.pop_front()
            {
                joined.extend_from_slice(&piece.split_to(piece.len().min(count - joined.len())));
                if !piece.is_empty() {
                    self.pieces.push_front(piece);
                }
            }
            taken = joined.freeze();
        }
        Ok(Some(taken))
    }

    /// Returns the next non-empty piece of the body, of any length; `None` at the end.
    async fn next_bytes(&mut self) -> Result<Option<Bytes>, PacketError> {
        loop {
            let next = std::future::poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await;
            match next {
                None => return Ok(None),
                Some(Err(status)) => return Err(PacketError::Broken(status.message().to_owned())),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_emulator::plan::{Encoding, PlanHash};
    use millrace_emulator::tree::Node;
    use millrace_engine::frame::{Frame, FrameKey};
    use millrace_engine::types::Epoch;

    use super::*;
    use crate::codec::{LinkContext, pack};

    /// A body that arrives in these pieces.
    struct Pieces(VecDeque<Bytes>);

    impl http_body::Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Data<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Data::data(piece))))
        }
    }

    fn packet(payload: &[u8]) -> Packet {
        let key = FrameKey {
            epoch: Epoch { attempt: 1, number: 2 },
            iteration: 3,
            round: 4,
            slot: 5,
            chunk: 6,
            node: Node::new(7, 8),
        };
        let context = LinkContext { plan: PlanHash(9), encoding: Encoding::F32, step: 10 };
        pack(Frame::new(key, Bytes::copy_from_slice(payload)), context)
    }

    fn incoming(bytes: &[u8], piece: usize) -> PacketReader {
        PacketReader::new(Body::new(Pieces(bytes.chunks(piece).map(Bytes::copy_from_slice).collect())))
    }

    #[tokio::test]
    async fn packets_are_read_from_any_fragmentation() {
        let packets = [packet(b"first"), packet(b""), packet(&[7; 300])];
        let bytes: Vec<u8> =
            packets.iter().flat_map(|packet| [&packet.head[..], &packet.payload[..]].concat()).collect();
        for piece in 1..=bytes.len() {
            let mut incoming = incoming(&bytes, piece);
            for packet in &packets {
                assert_eq!(incoming.frame().await.unwrap().as_ref(), Some(packet), "pieces of {piece}");
            }
            assert!(incoming.frame().await.unwrap().is_none());
        }
        let grants: Vec<u8> = [3, 5].into_iter().flat_map(|total| Packet::grant(total).head).collect();
        let mut incoming = incoming(&grants, 3);
        assert_eq!((incoming.grant().await.unwrap(), incoming.grant().await.unwrap()), (Some(3), Some(5)));
    }

    #[tokio::test]
    async fn truncated_and_misaligned_links_are_detected() {
        let Packet { head, payload } = packet(b"weights!");
        let bytes = [&head[..], &payload[..]].concat();
        for length in 1..bytes.len() {
            let cut = incoming(&bytes[..length], 16).frame().await;
            assert!(matches!(cut, Err(PacketError::Cut)), "{length} bytes");
        }
        // A reader that is out of step interprets payload as a header.
        assert!(matches!(incoming(&[0xff; 200], 200).frame().await, Err(PacketError::Damaged)));
        assert!(matches!(incoming(&[0xff; 200], 200).grant().await, Err(PacketError::Damaged)));
    }

    #[tokio::test]
    async fn payload_received_in_one_piece_is_not_copied() {
        let (sender, body) = packet_channel();
        let sent = packet(&[1; 1000]);
        sender.send(sent.clone());
        let received = PacketReader::new(body).frame().await.unwrap().unwrap();
        assert_eq!(received.payload.as_ptr(), sent.payload.as_ptr());
        assert_eq!(sender.progress().slots_sent(), 1);
    }

    #[tokio::test]
    async fn unread_grants_are_bounded() {
        let (sender, body) = packet_channel();
        (1..=2 * MAX_QUEUED_GRANTS).for_each(|total| sender.grant(total));
        drop(sender);
        let (mut incoming, mut grants) = (PacketReader::new(body), 0);
        while incoming.grant().await.unwrap().is_some() {
            grants += 1;
        }
        assert_eq!(grants, MAX_QUEUED_GRANTS);
    }
}
