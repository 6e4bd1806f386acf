//! The data tree's links on the wire: packets, one after the other, in HTTP/2 bodies.
//!
//! Each direction of a link is one request of the child to its parent, and lasts as long as the link: frames travel in one
//! of its two bodies, grants in the other. There is no gRPC envelope around a packet, because gRPC libraries copy a
//! message on its way out and on its way in: what is sent here is the payload's own memory, and what is received is the
//! memory it was read into. A grant is its total, 8 bytes; a frame is a header of [`HEADER_BYTES`] and its payload.

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

use crate::codec::{HEADER_BYTES, payload_length, slot_of};

/// Path of the service that shards and SwarmX nodes offer their children.
pub const SERVICE: &str = "millrace.v1.Link";
/// Path of a request for weights: the caller grants slots.
pub const DOWN: &str = "/millrace.v1.Link/Down";
/// Path of a request that brings gradients: the callee grants slots.
pub const UP: &str = "/millrace.v1.Link/Up";
/// Header naming the epoch, `<attempt>.<number>`.
pub const EPOCH_KEY: &str = "millrace-epoch";
/// Header naming the agent that dials, `<role>-<index>`.
pub const AGENT_KEY: &str = "millrace-agent";

/// Most bytes of a payload: a chunk.
pub const PAYLOAD_BYTES: usize = 4 << 20;
const GRANT_BYTES: usize = 8;
/// Most grants that wait for a peer to take them. A peer that takes its frames takes these too: together they are
/// smaller than one.
const MOST_WAITING_GRANTS: u64 = 1 << 16;

/// What travels on a link, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// A frame's header, or all of a grant.
    pub head: Bytes,
    /// A frame's payload; empty for a grant.
    pub payload: Bytes,
}

impl Packet {
    /// A running total of slots since the link was opened.
    pub fn grant(total: u64) -> Self {
        Self { head: Bytes::copy_from_slice(&total.to_le_bytes()), payload: Bytes::new() }
    }

    /// Bytes on the wire.
    pub const fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Whether there is nothing to send; no packet is like that.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A link that can't be read any further.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The peer went away in the middle of a packet.
    #[error("the peer closed the link in the middle of a packet")]
    Cut,
    /// A header that announces more than a chunk.
    #[error("a frame announces {0} bytes, more than a chunk has; run the same build on every agent")]
    TooLong(usize),
}

/// A body that sends packets, and where to put them. It ends when the last sender is gone.
pub fn outgoing() -> (PacketSender, Body) {
    // Bounded all the same, see `PacketSender`.
    let (packets, receiver) = mpsc::unbounded_channel();
    let taken = Arc::new(Taken::default());
    let body = Outgoing { packets: receiver, payload: Bytes::new(), slots: SlotCount::default(), taken: taken.clone() };
    (PacketSender { packets, taken }, Body::new(body))
}

/// What the connection has taken of the packets for one body.
#[derive(Debug, Default)]
struct Taken {
    packets: AtomicU64,
    slots: AtomicU64,
    /// Packets sent, taken or not.
    sent: AtomicU64,
}

/// Where packets for a body are put. What waits in it is bounded: frames by the peer's grants, each of which
/// [`GrantCheck`](millrace_engine::credit::GrantCheck) compares with [`SendProgress::slots_taken`], and grants by
/// [`PacketSender::grant`].
#[derive(Clone, Debug)]
pub struct PacketSender {
    packets: mpsc::UnboundedSender<Packet>,
    taken: Arc<Taken>,
}

impl PacketSender {
    /// Sends a packet; one into a closed link is dropped.
    pub fn send(&self, packet: Packet) {
        self.taken.sent.fetch_add(1, Ordering::Relaxed);
        let _ = self.packets.send(packet);
    }

    /// Sends a grant, unless the peer does not take those sent before: such a peer gets no more credit.
    pub fn grant(&self, total: u64) {
        let Taken { packets, sent, .. } = &*self.taken;
        if sent.load(Ordering::Relaxed) - packets.load(Ordering::Relaxed) < MOST_WAITING_GRANTS {
            self.send(Packet::grant(total));
        }
    }

    /// A view of what the connection has taken, which does not keep the body open.
    pub fn progress(&self) -> SendProgress {
        SendProgress(self.taken.clone())
    }
}

/// What a connection has taken of the packets for one body.
#[derive(Clone, Debug)]
pub struct SendProgress(Arc<Taken>);

impl SendProgress {
    /// Slots of which the connection has taken a frame, at least.
    pub fn slots_taken(&self) -> u64 {
        self.0.slots.load(Ordering::Relaxed)
    }
}

struct Outgoing {
    packets: mpsc::UnboundedReceiver<Packet>,
    /// Of the packet whose head is gone already.
    payload: Bytes,
    slots: SlotCount,
    taken: Arc<Taken>,
}

impl http_body::Body for Outgoing {
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

/// Packets out of a body.
pub struct Incoming {
    body: Body,
    /// What has come and is not taken yet.
    pieces: VecDeque<Bytes>,
}

impl Incoming {
    /// The packets in `body`.
    pub const fn new(body: Body) -> Self {
        Self { body, pieces: VecDeque::new() }
    }

    /// The next packet as a frame, its payload as yet unchecked; `None` when the peer has closed the link. Not safe to
    /// cancel.
    ///
    /// # Errors
    /// The connection broke, or what came is no frame.
    pub async fn frame(&mut self) -> Result<Option<Packet>, PacketError> {
        let Some(head) = self.take(HEADER_BYTES).await? else { return Ok(None) };
        let length = payload_length(&head);
        if length > PAYLOAD_BYTES {
            return Err(PacketError::TooLong(length));
        }
        let payload = self.take(length).await?.ok_or(PacketError::Cut)?;
        Ok(Some(Packet { head, payload }))
    }

    /// The next packet as a grant; `None` when the peer has closed the link. Not safe to cancel.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn grant(&mut self) -> Result<Option<u64>, PacketError> {
        let Some(mut total) = self.take(GRANT_BYTES).await? else { return Ok(None) };
        Ok(Some(total.get_u64_le()))
    }

    /// The next `count` bytes: shared with what was received where they came in one piece. `None` at the end.
    async fn take(&mut self, count: usize) -> Result<Option<Bytes>, PacketError> {
        let mut have: usize = self.pieces.iter().map(Bytes::len).sum();
        while have < count {
            match self.piece().await? {
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

    /// What comes next, however long.
    async fn piece(&mut self) -> Result<Option<Bytes>, PacketError> {
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

    /// A body that comes in these pieces.
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

    fn incoming(bytes: &[u8], piece: usize) -> Incoming {
        Incoming::new(Body::new(Pieces(bytes.chunks(piece).map(Bytes::copy_from_slice).collect())))
    }

    #[tokio::test]
    async fn packets_survive_any_cut_into_pieces() {
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
        let grants: Vec<u8> = [3, 5].into_iter().flat_map(u64::to_le_bytes).collect();
        let mut incoming = incoming(&grants, 3);
        assert_eq!((incoming.grant().await.unwrap(), incoming.grant().await.unwrap()), (Some(3), Some(5)));
    }

    #[tokio::test]
    async fn a_link_cut_short_or_out_of_step_is_noticed() {
        let Packet { head, payload } = packet(b"weights!");
        let bytes = [&head[..], &payload[..]].concat();
        for length in 1..bytes.len() {
            let cut = incoming(&bytes[..length], 16).frame().await;
            assert!(matches!(cut, Err(PacketError::Cut)), "{length} bytes");
        }
        // A reader that has lost its place takes numbers for a header.
        let astray = incoming(&[0xff; 200], 200).frame().await;
        assert!(matches!(astray, Err(PacketError::TooLong(_))));
    }

    #[tokio::test]
    async fn what_is_received_in_one_piece_is_not_copied() {
        let (sender, body) = outgoing();
        let sent = packet(&[1; 1000]);
        sender.send(sent.clone());
        let received = Incoming::new(body).frame().await.unwrap().unwrap();
        assert_eq!(received.payload.as_ptr(), sent.payload.as_ptr());
        assert_eq!(sender.progress().slots_taken(), 1);
    }

    #[tokio::test]
    async fn grants_that_a_peer_does_not_take_are_bounded() {
        let (sender, body) = outgoing();
        (1..=2 * MOST_WAITING_GRANTS).for_each(|total| sender.grant(total));
        drop(sender);
        let (mut incoming, mut grants) = (Incoming::new(body), 0);
        while incoming.grant().await.unwrap().is_some() {
            grants += 1;
        }
        assert_eq!(grants, MOST_WAITING_GRANTS);
    }
}
