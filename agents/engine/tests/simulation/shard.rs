//! A MemoryX shard: the machine, the store that ships over toy numbers, and the two threads that work on it.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_emulator::placement::Placement;
use millrace_emulator::plan::ChunkId;
use millrace_engine::frame::Frame;
use millrace_engine::message::{Order, Report, ShardState, Snapshot};
use millrace_engine::payload::Payload;
use millrace_engine::shard::{Command, Shard};
use millrace_engine::store::{OnOrder, SnapshotOrders};
use millrace_engine::types::{AgentId, CommitRecord, Epoch, Role, Turn};

use crate::agent::{Job, Place};
use crate::model::Parameters;
use crate::store::{self, ToyStore, Writer};
use crate::wires::{Packet, Wires};

pub struct ShardBody {
    index: u32,
    pub machine: Shard,
    store: Option<ToyStore>,
    /// What the store's thread still has to do, in order.
    jobs: VecDeque<StoreJob>,
    /// The snapshot being written, by a thread of its own.
    writer: Option<Writer>,
    snapshots: SnapshotOrders,
    /// Every commit since the parameters were loaded.
    pub commits: Vec<CommitRecord>,
    root: AgentId,
    /// Commands that wait for the link.
    first: Vec<Command>,
    /// Most partial sums that may be open for one use.
    most_open: usize,
    /// Gradients the store has gathered whole, of which the machine has not heard.
    gathered: VecDeque<(ChunkId, f64)>,
    /// What came in older epochs, to be played again: it must change nothing.
    ghosts: Vec<Ghost>,
}

/// Work for the store's thread.
enum StoreJob {
    Send(millrace_engine::frame::Place),
    Gather { chunk: ChunkId, uses: (bool, bool), sum: Payload },
    Commit(CommitRecord),
    Snapshot(Snapshot),
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
            jobs: VecDeque::new(),
            writer: None,
            snapshots: SnapshotOrders::default(),
            commits: Vec::new(),
            root: AgentId::new(Role::SwarmX, 0),
            first: Vec::new(),
            most_open: 0,
            gathered: VecDeque::new(),
            ghosts: Vec::new(),
        }
    }

    /// What to say on joining.
    pub fn rejoin(&mut self) -> ShardState {
        self.snapshots.coordinator_lost();
        self.machine.state()
    }

    pub fn order(&mut self, order: Order, job: &Job, place: &mut Place) -> Result<(), String> {
        match order {
            Order::Load(source) => {
                let state = place.wires.published.get(&source.step()).ok_or("no such checkpoint")?;
                let place_of_shard = (self.index, job.shards);
                let store = store::filled(&job.plan, place_of_shard, source.step(), state, job.copies);
                self.store = Some(store.map_err(|error| error.to_string())?);
                (self.writer, self.commits) = (None, Vec::new());
                self.jobs.clear();
                let report = self.machine.loaded(source.step());
                place.report(report);
                Ok(())
            }
            Order::Commit { record } => {
                let mut out = Vec::new();
                self.machine.commit(record, &mut out).map_err(|error| error.to_string())?;
                self.carry(out, place)
            }
            Order::Snapshot(snapshot) => {
                match self.snapshots.order(&snapshot) {
                    OnOrder::Begin => self.jobs.push_back(StoreJob::Snapshot(snapshot)),
                    OnOrder::Wait => {}
                    OnOrder::Report(report) => place.report(report),
                }
                Ok(())
            }
            Order::Configure(_) | Order::Open { .. } | Order::Finish => Err("not only a shard's".to_owned()),
        }
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

    pub const fn is_writing(&self) -> bool {
        self.writer.is_some()
    }

    /// Whether [`ShardBody::work`] has something to do.
    pub fn has_work(&self) -> bool {
        !self.gathered.is_empty() || !self.jobs.is_empty()
    }

    /// The machine hears of the store's thread, or that thread does its next job.
    pub fn work(&mut self, place: &mut Place) -> Result<(), String> {
        let hears = !self.gathered.is_empty() && (self.jobs.is_empty() || place.wires.random.chance(50));
        if hears && let Some((chunk, norm)) = self.gathered.pop_front() {
            let mut out = Vec::new();
            self.machine.gathered(chunk, norm, &mut out);
            return self.carry(out, place);
        }
        self.job(place)
    }

    /// The store's thread does its next job; one that has to wait stays the next.
    fn job(&mut self, place: &mut Place) -> Result<(), String> {
        let store = self.store.as_ref().ok_or("the shard has no parameters")?;
        match self.jobs.pop_front() {
            Some(StoreJob::Send(at)) => {
                let free = store.free_copies();
                match store::read(store, at.chunk).map_err(|error| error.to_string())? {
                    Some(payload) => {
                        place.wires.coverage.copied_for_snapshots += free - store.free_copies();
                        if at.epoch == place.epoch {
                            place.send(self.root, Packet::Frame(Frame::new(at, payload)));
                        }
                    }
                    None => {
                        place.wires.coverage.waited_for_copies += 1;
                        self.jobs.push_front(StoreJob::Send(at));
                    }
                }
            }
            Some(StoreJob::Gather { chunk, uses, sum }) => {
                let norm = store::gather(store, chunk, uses, &sum).map_err(|error| error.to_string())?;
                self.gathered.extend(norm.map(|norm| (chunk, norm)));
            }
            Some(StoreJob::Commit(record)) => {
                store.commit(record);
                place.wires.coverage.committed_in_snapshots += usize::from(self.writer.is_some());
            }
            // The writer of a snapshot that is no longer wanted comes to its end first.
            Some(StoreJob::Snapshot(snapshot)) if self.writer.is_some() => {
                self.jobs.push_front(StoreJob::Snapshot(snapshot));
            }
            Some(StoreJob::Snapshot(snapshot)) => self.writer = Some(Writer::new(store, snapshot)),
            None => {}
        }
        Ok(())
    }

    /// The snapshot's thread writes one more chunk.
    pub fn write(&mut self, place: &mut Place) -> Result<(), String> {
        let (Some(store), Some(writer)) = (&self.store, &mut self.writer) else { return Ok(()) };
        let Wires { disk, failing_writes, coverage, .. } = &mut *place.wires;
        let fails = *failing_writes > 0;
        let written = writer.write(store, disk, fails).map_err(|error| error.to_string())?;
        let Some((snapshot, report)) = written else { return Ok(()) };
        if fails && matches!(report, Report::NotWritten { .. }) {
            *failing_writes -= 1;
            coverage.failed_writes += 1;
        }
        self.writer = None;
        if let Some(report) = self.snapshots.finished(&snapshot, report) {
            place.report(report);
        }
        Ok(())
    }

    /// All parameters, once everything is done that was decided; `None` where they were never loaded.
    pub fn finish(&mut self) -> Result<Option<Vec<(ChunkId, Parameters)>>, String> {
        let Some(store) = &self.store else { return Ok(None) };
        store.abandon_snapshot();
        for job in self.jobs.drain(..) {
            match job {
                StoreJob::Send(at) => drop(store::read(store, at.chunk)),
                StoreJob::Gather { chunk, uses, sum } => drop(store::gather(store, chunk, uses, &sum)),
                StoreJob::Commit(record) => store.commit(record),
                StoreJob::Snapshot(_) => {}
            }
        }
        store::finish(store).map(Some)
    }

    fn carry(&mut self, commands: Vec<Command>, place: &mut Place) -> Result<(), String> {
        for command in commands {
            match command {
                Command::Send(at) => self.jobs.push_back(StoreJob::Send(at)),
                Command::Grant(total) => place.grant(self.root, total),
                Command::Gather { chunk, first, last, sum } => {
                    self.jobs.push_back(StoreJob::Gather { chunk, uses: (first, last), sum });
                }
                Command::Commit(record) => {
                    self.commits.push(record);
                    self.jobs.push_back(StoreJob::Commit(record));
                }
                Command::Report(report) => place.report(report),
            }
        }
        Ok(())
    }
}
