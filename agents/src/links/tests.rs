//! Tests of links with misbehaving peers, over bodies in memory.

use millrace_emulator::plan::Encoding;
use millrace_emulator::tree::Node;
use millrace_engine::frame::FrameKey;
use millrace_engine::payload_memory::PayloadMemory;
use millrace_engine::types::Role;
use millrace_protocol::codec::LinkContext;
use millrace_protocol::packet::packet_channel;

use super::*;

const JOB: LinkJob = LinkJob { plan: PlanHash(9), window: 3 };
const CONTEXT: LinkContext = LinkContext { plan: JOB.plan, encoding: Encoding::F32, step: 1 };

fn epoch(number: u32) -> Epoch {
    Epoch { attempt: 1, number }
}

fn key(peer: u32, number: u32) -> LinkKey {
    LinkKey { epoch: epoch(number), peer: AgentId::new(Role::Cs2, peer), direction: Direction::Up }
}

fn settings(events: LinkEventSender) -> LinkSettings {
    let job = LinkJobWatch::default();
    job.send_replace(Some(JOB));
    let member = crate::member::testing(AgentId::new(Role::SwarmX, 0));
    let (metrics, memory) = (RoleMetrics::new("swarmx", 0, "0"), SharedMemory::new(1));
    memory.begin_epoch(4096, 8);
    LinkSettings { events, job, metrics, member, memory }
}

fn frame(slot: u32, number: u32) -> Packet {
    codec::pack(frame_of(bytes::Bytes::from(vec![0; 1000]), slot, number), CONTEXT)
}

fn frame_of(payload: bytes::Bytes, slot: u32, number: u32) -> Frame {
    let key = FrameKey { epoch: epoch(number), iteration: 0, round: 0, slot, chunk: 0, node: Node::new(0, 1) };
    Frame::new(key, payload)
}

fn shared_payload(memory: &SharedMemory) -> bytes::Bytes {
    memory.create(1000, &mut |writer| writer.put(&[7; 1000]))
}

/// Sends `packets` on a link and returns all its events in the current epoch. `granted` slots are granted before the
/// first packet is read.
async fn read(packets: impl IntoIterator<Item = Packet>, granted: u64) -> Vec<LinkEventKind> {
    let (mut mailbox, events) = LinkEventQueue::new();
    mailbox.set_epoch(epoch(1));
    let (peer, body) = packet_channel();
    let (grants, _kept) = packet_channel();
    let settings = settings(events);
    settings.job.send_replace(None);
    tokio::spawn(receive_frames(key(0, 1), grants, PacketReader::new(body), settings.clone()));
    packets.into_iter().for_each(|packet| peer.send(packet));
    let mut happened = Vec::new();
    while let Some(LinkEvent { kind, .. }) = mailbox.next().await {
        if let LinkEventKind::Open(end) = &kind {
            end.grant(granted);
            settings.job.send_replace(Some(JOB));
        }
        let broken = matches!(kind, LinkEventKind::Broken(_));
        happened.push(kind);
        if broken {
            break;
        }
    }
    happened
}

fn reason(happened: &[LinkEventKind]) -> &str {
    let Some(LinkEventKind::Broken(reason)) = happened.last() else { panic!("the link goes on") };
    reason
}

#[tokio::test]
async fn frames_without_credit_end_the_link() {
    let happened = read((0..1000).map(|slot| frame(slot, 1)), 2).await;
    let frames = happened.iter().filter(|kind| matches!(kind, LinkEventKind::Frame(_))).count();
    assert_eq!(frames, 2);
    assert!(reason(&happened).contains("beyond the credits"), "{}", reason(&happened));
    let happened = read(std::iter::repeat_with(|| frame(0, 1)).take(1000), 2).await;
    assert!(reason(&happened).contains("frames of one slot"), "{}", reason(&happened));
    let happened = read([frame(0, 2)], 2).await;
    assert!(reason(&happened).contains("of epoch 1.2 on a link of epoch 1.1"), "{}", reason(&happened));
}

#[tokio::test]
async fn grants_beyond_window_or_not_increasing_end_the_link() {
    for (grants, message) in
        [(vec![3, 4], "a window of 3"), (vec![2, 2], "after one of 2"), (vec![3, 1], "after one of 3")]
    {
        let (mut mailbox, events) = LinkEventQueue::new();
        mailbox.set_epoch(epoch(1));
        let (peer, body) = packet_channel();
        let (frames, _kept) = packet_channel();
        tokio::spawn(receive_grants(key(0, 1), frames, PacketReader::new(body), None, settings(events)));
        grants.iter().for_each(|total| peer.grant(*total));
        let mut happened = Vec::new();
        while !matches!(happened.last(), Some(LinkEventKind::Broken(_))) {
            happened.push(mailbox.next().await.unwrap().kind);
        }
        assert!(reason(&happened).contains(message), "{}", reason(&happened));
    }
}

#[tokio::test]
async fn locations_are_sent_only_to_peers_on_this_machine() {
    let other = MachineId::parse("another machine");
    let this = SharedMemory::new(2).machine();
    for (peer_machine, is_shared) in [(None, false), (other, false), (this, true)] {
        let (mut mailbox, events) = LinkEventQueue::new();
        mailbox.set_epoch(epoch(1));
        let (packets, sent) = packet_channel();
        let (_grants, body) = packet_channel();
        let settings = settings(events);
        let payload = shared_payload(&settings.memory);
        tokio::spawn(receive_grants(key(0, 1), packets, PacketReader::new(body), peer_machine, settings));
        let Some(LinkEventKind::Open(end)) = mailbox.next().await.map(|event| event.kind) else { panic!("not open") };
        end.frame(frame_of(payload, 0, 1), CONTEXT);
        end.frame(frame_of(bytes::Bytes::from_static(&[0; 1000]), 1, 1), CONTEXT);
        let mut sent = PacketReader::new(sent);
        let first = sent.frame().await.unwrap().unwrap();
        assert_eq!(first.location().unwrap().is_some(), is_shared);
        let second = sent.frame().await.unwrap().unwrap();
        assert_eq!(second.location().unwrap(), None, "its payload does not lie in shared memory");
    }
}

#[tokio::test]
async fn payloads_are_read_where_they_are() {
    let sender = SharedMemory::new(3);
    sender.begin_epoch(4096, 1);
    let payload = shared_payload(&sender);
    let location = sender.share(&payload).unwrap();
    let packet = codec::pack_location(&frame_of(payload.clone(), 0, 1), CONTEXT, location);
    // The second frame, of another epoch, ends the link.
    let happened = read([packet.clone(), frame(1, 2)], 2).await;
    let [_, LinkEventKind::Frame(frame), ..] = &happened[..] else { panic!("{} events", happened.len()) };
    assert_eq!(frame.payload.clone().into_bytes(), payload);
    drop((payload, happened));
    let happened = read([packet], 2).await;
    assert!(reason(&happened).contains("does not exist"), "freed: {}", reason(&happened));
}

#[tokio::test]
async fn busy_agent_receives_no_more_than_its_window() {
    let (mailbox, events) = LinkEventQueue::new();
    let (peer, body) = packet_channel();
    let (grants, _kept) = packet_channel();
    // An unlimited grant, as from an agent that trusts its peer.
    let granted = Arc::new(AtomicU64::new(u64::MAX));
    let settings = settings(events);
    tokio::spawn(async move { read_frames(key(0, 1), PacketReader::new(body), &granted, &settings).await });
    (0..4 * MAX_QUEUED_LINK_EVENTS as u32).for_each(|slot| peer.send(frame(slot, 1)));
    let progress = peer.progress();
    let mut before = u64::MAX;
    while before != progress.slots_sent() {
        before = progress.slots_sent();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(before, MAX_QUEUED_LINK_EVENTS as u64 + 1, "one is held by the reader");
    drop((mailbox, grants));
}

/// Receives all waiting events, none of which is of the current epoch.
async fn sort_all(mailbox: &mut LinkEventQueue) {
    // The runtime limits how much a task receives before it yields.
    tokio::task::yield_now().await;
    tokio::select! {
        biased;
        event = mailbox.next() => panic!("an event of {} came too early", event.unwrap().key.epoch),
        () = std::future::ready(()) => {}
    }
}

#[tokio::test]
async fn early_links_are_bounded() {
    let (mut mailbox, events) = LinkEventQueue::new();
    let open = |peer, number| {
        let end = LinkSender::Grants(packet_channel().0, GrantedSlots::default());
        LinkEvent { key: key(peer, number), kind: LinkEventKind::Open(end) }
    };
    let grant = |peer, number, total| LinkEvent { key: key(peer, number), kind: LinkEventKind::Grant(total) };
    for number in 2..100 {
        for event in [open(0, number), grant(0, number, 1), grant(0, number, 2)] {
            events.try_send(event).unwrap();
        }
        sort_all(&mut mailbox).await;
        assert_eq!(mailbox.queued_early_events(), 2);
    }
    for peer in 0..5_000 {
        events.try_send(open(peer, 99)).unwrap();
        sort_all(&mut mailbox).await;
    }
    assert_eq!(mailbox.queued_early_events(), 4096 + 2, "a second link of the same name is kept, too");
    // Stored events are delivered when their epoch is entered.
    mailbox.set_epoch(epoch(99));
    assert!(matches!(mailbox.next().await.unwrap().kind, LinkEventKind::Open(_)));
    assert!(matches!(mailbox.next().await.unwrap().kind, LinkEventKind::Grant(2)));
}
