//! The network between agents: control streams to the coordinator and links of the data tree. Both preserve order;
//! after a failure, part of the data in flight is delivered before the end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millrace_engine::frame::Frame;
use millrace_engine::message::{AgentCommand, AgentReport, ShardState};
use millrace_engine::types::{AgentId, Epoch, IterationKind, LeafResult};

use crate::model::Parameters;
use crate::planted::PlantedBug;
use crate::random::Random;
use crate::store::Disk;

/// From an agent to the coordinator.
#[derive(Clone, Debug)]
pub enum AgentMessage {
    Hello(Option<ShardState>),
    Report(AgentReport),
    Broken,
}

/// One control stream. The coordinator sends commands; `None` ends it.
#[derive(Debug)]
pub struct Stream {
    pub agent: AgentId,
    /// The coordinator attempt it is connected to.
    pub attempt: u32,
    pub commands: VecDeque<Option<AgentCommand>>,
    pub messages: VecDeque<AgentMessage>,
}

/// A packet on a link.
#[derive(Clone, Debug)]
pub enum Packet {
    Up,
    Frame(Frame),
    /// A system requests the samples of some leaves from its activation server.
    Ask(IterationKind, std::ops::Range<u32>),
    Samples(Vec<u64>),
    Broken,
}

/// A link between two agents in an epoch; `upper` is nearer to MemoryX, or an activation server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkKey {
    pub epoch: Epoch,
    pub upper: AgentId,
    pub lower: AgentId,
}

impl LinkKey {
    pub fn peer(self, me: AgentId) -> AgentId {
        if me == self.upper { self.lower } else { self.upper }
    }
}

/// One direction of a link, with the grants sent back.
#[derive(Debug, Default)]
pub struct LinkDirection {
    pub packets: VecDeque<Packet>,
    pub grants: Vec<u64>,
    /// Number of slots sent so far, and the last slot.
    slots: u64,
    last: Option<(u64, u32, u32)>,
    granted: u64,
    /// Whether nothing more can be sent.
    broken: bool,
}

impl LinkDirection {
    /// Closes the direction: part of the data in flight is delivered, then the end.
    fn cut(&mut self, random: &mut Random) {
        if !std::mem::replace(&mut self.broken, true) {
            self.packets.truncate(random.below(self.packets.len() + 1));
            self.packets.push_back(Packet::Broken);
        }
    }
}

/// Both directions; `down` is from upper to lower.
#[derive(Debug, Default)]
pub struct Link {
    pub down: LinkDirection,
    pub up: LinkDirection,
}

/// Counts how often runs reached the situations that the store exists for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coverage {
    /// Commits while a snapshot was written.
    pub committed_in_snapshots: usize,
    /// Chunks copied for a snapshot before their update.
    pub copied_for_snapshots: usize,
    /// Reads that waited for a copy.
    pub waited_for_copies: usize,
    /// Snapshots that could not be written.
    pub failed_writes: usize,
    /// Steps executed again after a shard had lost its parameters.
    pub restored_steps: usize,
    /// Batches that were skipped because of their loss.
    pub skipped_batches: usize,
    /// Changes of the number of systems.
    pub resizes: usize,
    /// Replicas of shards that copied the parameters of another one.
    pub copied_replicas: usize,
    /// Loads of a damaged checkpoint, after which another one was loaded.
    pub damaged_loads: usize,
}

impl std::ops::AddAssign for Coverage {
    fn add_assign(&mut self, more: Self) {
        self.committed_in_snapshots += more.committed_in_snapshots;
        self.copied_for_snapshots += more.copied_for_snapshots;
        self.waited_for_copies += more.waited_for_copies;
        self.failed_writes += more.failed_writes;
        self.restored_steps += more.restored_steps;
        self.skipped_batches += more.skipped_batches;
        self.resizes += more.resizes;
        self.copied_replicas += more.copied_replicas;
        self.damaged_loads += more.damaged_loads;
    }
}

/// The network between the agents, and the disk, which outlives all of them.
pub struct Network {
    pub random: Random,
    pub streams: BTreeMap<u64, Stream>,
    pub links: BTreeMap<LinkKey, Link>,
    /// Links that the lower end is trying to establish.
    pub dials: BTreeSet<LinkKey>,
    pub disk: Disk,
    /// Number of disk writes that will fail.
    pub failing_writes: usize,
    pub coverage: Coverage,
    pub published: BTreeMap<u64, Vec<Parameters>>,
    /// Steps of published checkpoints that are damaged.
    pub damaged: BTreeSet<u64>,
    /// The first frame that was sent without credit.
    pub overrun: Option<String>,
    pub attempt: u32,
    next_stream: u64,
    /// The bug of the agents, if they have one.
    planted: Option<PlantedBug>,
}

impl Network {
    pub fn new(
        random: Random,
        published: BTreeMap<u64, Vec<Parameters>>,
        attempt: u32,
        planted: Option<PlantedBug>,
    ) -> Self {
        Self {
            planted,
            random,
            streams: BTreeMap::new(),
            links: BTreeMap::new(),
            dials: BTreeSet::new(),
            disk: Disk::new(),
            failing_writes: 0,
            coverage: Coverage::default(),
            published,
            damaged: BTreeSet::new(),
            overrun: None,
            attempt,
            next_stream: 0,
        }
    }

    /// Returns whether the agents have this bug.
    pub fn has(&self, bug: PlantedBug) -> bool {
        self.planted == Some(bug)
    }

    /// Opens a control stream of `agent` to the current coordinator.
    pub fn connect(&mut self, agent: AgentId, state: Option<ShardState>) -> u64 {
        self.next_stream += 1;
        let messages = VecDeque::from([AgentMessage::Hello(state)]);
        self.streams
            .insert(self.next_stream, Stream { agent, attempt: self.attempt, commands: VecDeque::new(), messages });
        self.next_stream
    }

    /// Sends a message on a stream, sometimes twice. Losses are sent in parts.
    pub fn report(&mut self, stream: Option<u64>, report: AgentReport) {
        let Some(stream) = stream.and_then(|stream| self.streams.get_mut(&stream)) else { return };
        let reports = match report {
            AgentReport::Leaves { epoch, iteration, results, work } if self.random.chance(30) => {
                let piece =
                    |result: &LeafResult| AgentReport::Leaves { epoch, iteration, results: vec![result.clone()], work };
                results.iter().map(piece).collect()
            }
            report => vec![report],
        };
        for report in reports {
            // Results of loads and snapshots are not repeated: the repetition could refer to a later one.
            let is_result =
                matches!(report, AgentReport::Loaded { .. } | AgentReport::Failed { .. } | AgentReport::Written { .. });
            let repeat = self.random.chance(5) && !is_result;
            if repeat {
                stream.messages.push_back(AgentMessage::Report(report.clone()));
            }
            stream.messages.push_back(AgentMessage::Report(report));
        }
    }

    /// Closes the agent's end of a stream.
    pub fn close_stream(&mut self, stream: Option<u64>) {
        let Some(stream) = stream.and_then(|stream| self.streams.get_mut(&stream)) else { return };
        stream.commands.clear();
        let kept = self.random.below(stream.messages.len() + 1);
        stream.messages.truncate(kept);
        stream.messages.push_back(AgentMessage::Broken);
    }

    /// Closes the coordinator's end of a stream.
    pub fn drop_agent(&mut self, stream: u64) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        stream.messages.clear();
        let kept = self.random.below(stream.commands.len() + 1);
        stream.commands.truncate(kept);
        stream.commands.push_back(None);
    }

    /// Sends a command on a stream that may have ended.
    pub fn send_command(&mut self, stream: u64, command: AgentCommand) {
        if let Some(stream) = self.streams.get_mut(&stream)
            && !matches!(stream.commands.back(), Some(None))
        {
            stream.commands.push_back(Some(command));
        }
    }

    /// Breaks a stream at both ends.
    pub fn cut_stream(&mut self, stream: u64) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        let kept = (self.random.below(stream.commands.len() + 1), self.random.below(stream.messages.len() + 1));
        stream.commands.truncate(kept.0);
        stream.commands.push_back(None);
        stream.messages.truncate(kept.1);
        stream.messages.push_back(AgentMessage::Broken);
    }

    /// Breaks a link at both ends.
    pub fn cut_link(&mut self, key: LinkKey) {
        let Some(link) = self.links.get_mut(&key) else { return };
        link.down.cut(&mut self.random);
        link.up.cut(&mut self.random);
    }

    /// Breaks the links that `agent` has, or had before `epoch`.
    pub fn cut_links(&mut self, agent: AgentId, before: Option<Epoch>) {
        let old = |key: &LinkKey| before.is_none_or(|epoch| key.epoch < epoch);
        let keys: Vec<LinkKey> =
            self.links.keys().filter(|key| (key.upper == agent || key.lower == agent) && old(key)).copied().collect();
        for key in keys {
            self.leave(key, agent);
        }
        self.dials.retain(|key| key.lower != agent || !old(key));
    }

    /// Closes a link at `agent`; the peer receives part of the data in flight, then the end.
    pub fn leave(&mut self, key: LinkKey, agent: AgentId) {
        let Some(link) = self.links.get_mut(&key) else { return };
        let (out, into) =
            if key.upper == agent { (&mut link.down, &mut link.up) } else { (&mut link.up, &mut link.down) };
        into.packets.clear();
        into.broken = true;
        out.grants.clear();
        out.cut(&mut self.random);
    }

    fn lane(&mut self, key: LinkKey, sender: AgentId) -> Option<&mut LinkDirection> {
        let link = self.links.get_mut(&key)?;
        let lane = if key.upper == sender { &mut link.down } else { &mut link.up };
        (!lane.broken).then_some(lane)
    }

    /// Sends on a link, if it exists. Records a frame that exceeds the receiver's grant.
    pub fn send(&mut self, key: LinkKey, sender: AgentId, packet: Packet) {
        let Some(lane) = self.lane(key, sender) else { return };
        if let Packet::Frame(frame) = &packet {
            let slot = (frame.key.iteration, frame.key.round, frame.key.slot);
            if lane.last.replace(slot) != Some(slot) {
                lane.slots += 1;
            }
            if lane.slots > lane.granted {
                self.overrun = Some(format!("{sender} sent slot {slot:?} on {key:?}, which was not granted"));
                return;
            }
        }
        lane.packets.push_back(packet);
    }

    /// Grants slots to the peer that sends to `receiver`.
    pub fn grant(&mut self, key: LinkKey, receiver: AgentId, total: u64) {
        if let Some(lane) = self.lane(key, key.peer(receiver)) {
            lane.grants.push(total);
            lane.granted = lane.granted.max(total);
        }
    }
}
