//! A MemoryX shard: the machine and a toy store.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_emulator::placement::Placement;
use millrace_emulator::plan::ChunkId;
use millrace_engine::frame::Frame;
use millrace_engine::message::{Order, Report, ShardState};
use millrace_engine::shard::{Command, Shard};
use millrace_engine::types::{AgentId, Epoch, Role, Turn};

use crate::agent::{Job, Place};
use crate::store::Store;
use crate::wires::Packet;

pub struct ShardBody {
    index: u32,
    pub machine: Shard,
    pub store: Option<Store>,
    root: AgentId,
    /// Commands that wait for the link.
    first: Vec<Command>,
    /// Most partial sums that may be open for one use.
    most_open: usize,
    /// Gradients the store has gathered whole, of which the machine has not heard: the store is a thread of its own.
    gathered: VecDeque<(ChunkId, f64)>,
    /// What came in older epochs, to be played again: it must change nothing.
    ghosts: Vec<Ghost>,
}

enum Ghost {
    Frame(Frame),
    Open(Epoch, Turn),
    Grant(Epoch, u64),
}

impl ShardBody {
    pub fn new(index: u32, job: &Job) -> Self {
        Self {
            index,
            machine: Shard::new(index, job.plan.clone()),
            store: None,
            root: AgentId::new(Role::SwarmX, 0),
            first: Vec::new(),
            most_open: 0,
            gathered: VecDeque::new(),
            ghosts: Vec::new(),
        }
    }

    /// What to say on joining.
    pub fn rejoin(&mut self) -> ShardState {
        self.store.iter_mut().for_each(Store::hush);
        self.machine.state()
    }

    pub fn order(&mut self, order: Order, job: &Job, place: &mut Place) -> Result<(), String> {
        match order {
            Order::Load(source) => {
                let state = place.wires.published.get(&source.step()).ok_or("no such checkpoint")?;
                self.store = Some(Store::new(&job.plan, self.index, job.shards, source.step(), state));
                let report = self.machine.loaded(source.step());
                place.report(report);
                Ok(())
            }
            Order::Commit { record } => {
                let mut out = Vec::new();
                self.machine.commit(record, &mut out).map_err(|error| error.to_string())?;
                self.carry(out, place)
            }
            Order::Snapshot(snapshot) => self.store()?.snapshot(snapshot),
            Order::Configure(_) | Order::Open { .. } | Order::Finish => Err("not only a shard's".to_owned()),
        }
    }

    fn store(&mut self) -> Result<&mut Store, String> {
        self.store.as_mut().ok_or_else(|| "the shard has no parameters".to_owned())
    }

    pub fn configure(&mut self, placement: Arc<Placement>, job: &Job, place: &mut Place) {
        let rounds = placement.rounds.len();
        self.most_open = 1 + rounds.next_power_of_two().trailing_zeros() as usize;
        self.root = AgentId::new(Role::SwarmX, placement.swarm[0].id);
        self.first = self.machine.configure(placement, place.epoch, job.windows[&Role::MemoryX]);
    }

    pub fn start(&mut self, place: &mut Place) {
        for command in std::mem::take(&mut self.first) {
            if let Command::Grant(total) = command {
                place.grant(self.root, total);
            }
        }
    }

    pub fn open(&mut self, epoch: Epoch, turn: Turn, place: &mut Place) -> Result<(), String> {
        self.haunt(place)?;
        self.remember(Ghost::Open(epoch, turn), place);
        let mut out = Vec::new();
        self.machine.open(epoch, turn, &mut out).map_err(|error| error.to_string())?;
        self.carry(out, place)
    }

    pub fn grant(&mut self, total: u64, place: &mut Place) -> Result<(), String> {
        self.remember(Ghost::Grant(place.epoch, total + 100), place);
        let mut out = Vec::new();
        self.machine.grant(place.epoch, total, &mut out);
        self.carry(out, place)
    }

    pub fn gradient(&mut self, frame: Frame, place: &mut Place) -> Result<(), String> {
        self.haunt(place)?;
        self.remember(Ghost::Frame(frame.clone()), place);
        let mut out = Vec::new();
        self.machine.gradient(frame, &mut out).map_err(|error| error.to_string())?;
        self.carry(out, place)?;
        if self.machine.open_sums() > self.most_open {
            return Err(format!(
                "{} partial sums are open, at most {} should be",
                self.machine.open_sums(),
                self.most_open
            ));
        }
        Ok(())
    }

    fn remember(&mut self, ghost: Ghost, place: &mut Place) {
        if self.ghosts.len() == 16 {
            self.ghosts.swap_remove(place.wires.random.below(16));
        }
        self.ghosts.push(ghost);
    }

    /// Plays a message of an older epoch again.
    fn haunt(&mut self, place: &mut Place) -> Result<(), String> {
        let old = |ghost: &Ghost| match ghost {
            Ghost::Frame(frame) => frame.place.epoch < place.epoch,
            Ghost::Open(epoch, _) | Ghost::Grant(epoch, _) => *epoch < place.epoch,
        };
        let at: Vec<usize> = (0..self.ghosts.len()).filter(|&at| old(&self.ghosts[at])).collect();
        let Some(at) = place.wires.random.pick(&at) else { return Ok(()) };
        let (before, mut out) = (self.machine.state(), Vec::new());
        match self.ghosts.swap_remove(at) {
            Ghost::Frame(frame) => self.machine.gradient(frame, &mut out).map_err(|error| error.to_string())?,
            Ghost::Open(epoch, turn) => {
                self.machine.open(epoch, turn, &mut out).map_err(|error| error.to_string())?;
            }
            Ghost::Grant(epoch, total) => self.machine.grant(epoch, total, &mut out),
        }
        if out.is_empty() && before == self.machine.state() { Ok(()) } else { Err("an old epoch did something".into()) }
    }

    pub fn is_writing(&self) -> bool {
        self.store.as_ref().is_some_and(Store::is_writing)
    }

    /// Whether [`ShardBody::work`] has something to do.
    pub fn has_work(&self) -> bool {
        self.is_writing() || !self.gathered.is_empty()
    }

    /// The store's thread goes on.
    pub fn work(&mut self, place: &mut Place) -> Result<(), String> {
        if let Some((chunk, norm)) = self.gathered.pop_front() {
            let mut out = Vec::new();
            self.machine.gathered(chunk, norm, &mut out);
            return self.carry(out, place);
        }
        let Some(store) = &mut self.store else { return Ok(()) };
        if let Some((step, digests)) = store.write(&mut place.wires.disk)? {
            place.report(Report::Written { step, digests });
        }
        Ok(())
    }

    fn carry(&mut self, commands: Vec<Command>, place: &mut Place) -> Result<(), String> {
        for command in commands {
            match command {
                Command::Send(at) => {
                    let payload = self.store()?.read(at.chunk)?;
                    place.send(self.root, Packet::Frame(Frame::new(at, payload)));
                }
                Command::Grant(total) => place.grant(self.root, total),
                Command::Gather { chunk, first, last, sum } => {
                    let norm = self.store()?.gather(chunk, first, last, &sum)?;
                    self.gathered.extend(norm.map(|norm| (chunk, norm)));
                }
                Command::Commit(record) => self.store()?.commit(record)?,
                Command::Report(report) => place.report(report),
            }
        }
        Ok(())
    }
}
