//! A simulated MemoryX shard: the state machine, the product's chunk store with toy data, and the two threads that use
//! it.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_emulator::placement::Placement;
use millrace_emulator::plan::ChunkId;
use millrace_engine::chunk_store::{SnapshotAction, SnapshotTracker};
use millrace_engine::frame::Frame;
use millrace_engine::message::{AgentCommand, AgentReport, FailureCause, ParameterSource, ShardState, SnapshotRequest};
use millrace_engine::payload::Payload;
use millrace_engine::shard::{Shard, ShardCommand};
use millrace_engine::types::{AgentId, CommitRecord, Epoch, Iteration, Role};

use crate::agent::{AgentContext, JobParameters};
use crate::model::Parameters;
use crate::network::{Network, Packet};
use crate::planted::PlantedBug;
use crate::store::{self, ToyStore, Writer};

pub struct ShardBody {
    agent: u32,
    pub machine: Shard,
    store: Option<ToyStore>,
    copying: Option<Copying>,
    /// Queue of the store's thread.
    jobs: VecDeque<StoreWork>,
    /// The snapshot being written by its own thread.
    writer: Option<Writer>,
    snapshots: SnapshotTracker,
    /// Every commit since the parameters were loaded.
    pub commits: Vec<CommitRecord>,
    /// Updates in the parameters when they were loaded.
    pub loaded_step: u64,
    root: AgentId,
    /// Commands to execute once the link is established.
    first: Vec<ShardCommand>,
    /// Maximum partial sums that may be open for one use.
    most_open: usize,
    /// Complete gradients that the state machine has not been notified of.
    gathered: VecDeque<(ChunkId, f64)>,
    /// Messages of older epochs to replay: they must have no effect.
    stale_messages: Vec<StaleMessage>,
}

/// The copy of another replica in progress.
struct Copying {
    source: ParameterSource,
    /// The replica that is copied.
    peer: AgentId,
    store: ToyStore,
    /// Chunks that are not copied yet.
    chunks: VecDeque<ChunkId>,
}

/// Work for the store's thread.
enum StoreWork {
    Send(millrace_engine::frame::FrameKey),
    Update(ChunkId),
    Gather { chunk: ChunkId, uses: (bool, bool), sum: Payload },
    Commit(CommitRecord),
    Snapshot(SnapshotRequest),
}

enum StaleMessage {
    Frame(Frame),
    Open(Epoch, Iteration),
    Grant(Epoch, u64),
}

impl ShardBody {
    pub fn new(agent: u32, job: &JobParameters) -> Self {
        Self {
            agent,
            machine: Shard::new(agent, job.plan.clone()),
            store: None,
            copying: None,
            jobs: VecDeque::new(),
            writer: None,
            snapshots: SnapshotTracker::default(),
            commits: Vec::new(),
            loaded_step: 0,
            root: AgentId::new(Role::SwarmX, 0),
            first: Vec::new(),
            most_open: 0,
            gathered: VecDeque::new(),
            stale_messages: Vec::new(),
        }
    }

    /// Returns the state to send when joining.
    pub fn rejoin(&mut self, network: &Network) -> ShardState {
        self.snapshots.on_coordinator_lost();
        let state = self.machine.state();
        if network.has(PlantedBug::ForgottenCommit) && state.record.is_some() {
            return ShardState { record: None, committed: state.committed.saturating_sub(1), ..state };
        }
        state
    }

    pub fn handle_command(
        &mut self,
        command: AgentCommand,
        job: &JobParameters,
        context: &mut AgentContext,
    ) -> Result<(), String> {
        match command {
            AgentCommand::Load(source) => self.load(source, job, context),
            AgentCommand::Commit { record } => {
                let mut out = Vec::new();
                self.machine.commit(record, &mut out).map_err(|error| error.to_string())?;
                self.execute(out, context)
            }
            AgentCommand::Snapshot(snapshot) => {
                match self.snapshots.on_snapshot_command(&snapshot) {
                    SnapshotAction::Begin => self.jobs.push_back(StoreWork::Snapshot(snapshot)),
                    SnapshotAction::Wait => {}
                    SnapshotAction::Report(report) => context.report(report),
                }
                Ok(())
            }
            AgentCommand::Configure(_)
            | AgentCommand::Open { .. }
            | AgentCommand::Finish
            | AgentCommand::WeighLosses { .. }
            | AgentCommand::ScaleLosses { .. } => Err("not only a shard's".to_owned()),
        }
    }

    fn load(&mut self, source: ParameterSource, job: &JobParameters, context: &mut AgentContext) -> Result<(), String> {
        // As in the product: a coordinator may rely on a copy that it requests a second time.
        let state = self.machine.state();
        if matches!(source, ParameterSource::Replica { .. }) && state.is_at(source.step()) {
            context.report(AgentReport::Loaded { state });
            return Ok(());
        }
        (self.writer, self.commits, self.loaded_step) = (None, Vec::new(), source.step());
        // Nothing remains of the parameters that were loaded before, as in the product.
        self.machine = Shard::new(self.agent, job.plan.clone());
        (self.snapshots, self.copying) = (SnapshotTracker::default(), None);
        self.jobs.clear();
        self.gathered.clear();
        self.first.clear();
        let is_damaged =
            matches!(source, ParameterSource::Checkpoint { step, .. } if context.network.damaged.contains(&step));
        if is_damaged && !context.network.has(PlantedBug::UnverifiedLoad) {
            self.store = None;
            context.network.coverage.damaged_loads += 1;
            context.report(AgentReport::Failed { reason: "damaged".to_owned(), cause: FailureCause::BadInput });
            return Ok(());
        }
        let initial = context.network.published.values().next().ok_or("no parameters")?;
        let state = match &source {
            ParameterSource::Replica { .. } => initial,
            _ if is_damaged => initial,
            _ => context.network.published.get(&source.step()).ok_or("no such checkpoint")?,
        };
        let store = store::filled(&job.plan, (self.agent % job.shards, job.shards), source.step(), state, job.copies);
        let store = store.map_err(|error| error.to_string())?;
        let chunks: VecDeque<ChunkId> = store.owned_chunks().collect();
        let skips_copy = chunks.is_empty() || context.network.has(PlantedBug::SkippedCopy);
        match source {
            ParameterSource::Replica { agent: peer, .. } if !skips_copy => {
                self.store = None;
                self.copying = Some(Copying { source, peer, store, chunks });
            }
            _ => {
                if self.store.is_none() || !context.network.has(PlantedBug::IgnoredLoad) {
                    self.store = Some(store);
                }
                context.report(self.machine.on_loaded(&source));
            }
        }
        Ok(())
    }

    /// Returns the replica that is being copied, if any.
    pub fn copied_replica(&self) -> Option<AgentId> {
        self.copying.as_ref().map(|copying| copying.peer)
    }

    /// Returns a chunk for a replica that copies this one at `step`; `None` while the store's thread has other work or
    /// no copy is free.
    ///
    /// # Errors
    /// The parameters are no longer those of `step`.
    pub fn read_copy(&self, chunk: ChunkId, step: u64) -> Result<Option<Parameters>, String> {
        let store = self.store.as_ref().ok_or("the replica has no parameters")?;
        if !self.jobs.is_empty() {
            return Ok(None);
        }
        store::read_parameters_at(store, chunk, step).map_err(|error| error.to_string())
    }

    /// Returns the next chunk to copy and its step; `None` after the last one.
    pub fn next_copy(&self) -> Option<(ChunkId, u64)> {
        let copying = self.copying.as_ref()?;
        Some((*copying.chunks.front()?, copying.source.step()))
    }

    /// Takes the next chunk of a copy, or its failure. Reports the end of the copy.
    pub fn take_copy(
        &mut self,
        parameters: Result<Parameters, String>,
        context: &mut AgentContext,
    ) -> Result<(), String> {
        let Some(copying) = &mut self.copying else { return Ok(()) };
        match (parameters, copying.chunks.pop_front()) {
            (Ok(parameters), Some(chunk)) => store::fill(&copying.store, chunk, copying.source.step(), parameters)
                .map_err(|error| error.to_string())?,
            (Err(reason), _) => {
                self.copying = None;
                context.report(AgentReport::CopyFailed { reason });
                return Ok(());
            }
            (_, None) => {}
        }
        if copying.chunks.is_empty()
            && let Some(Copying { source, store, .. }) = self.copying.take()
        {
            self.store = Some(store);
            context.network.coverage.copied_replicas += 1;
            context.report(self.machine.on_loaded(&source));
        }
        Ok(())
    }

    pub fn configure(&mut self, placement: Arc<Placement>, job: &JobParameters, context: &mut AgentContext) {
        let rounds = placement.rounds.len();
        self.most_open = 1 + rounds.next_power_of_two().trailing_zeros() as usize;
        self.root = AgentId::new(Role::SwarmX, placement.swarm[0].id);
        self.first = self.machine.configure(placement, context.epoch, job.windows[&Role::MemoryX]);
    }

    pub fn start(&mut self, context: &mut AgentContext) -> Result<(), String> {
        let first = std::mem::take(&mut self.first);
        self.execute(first, context)
    }

    pub fn open(&mut self, epoch: Epoch, iteration: Iteration, context: &mut AgentContext) -> Result<(), String> {
        self.replay_stale_message(context)?;
        self.keep_stale_message(StaleMessage::Open(epoch, iteration), context);
        let mut out = Vec::new();
        self.machine.open(epoch, iteration, &mut out).map_err(|error| error.to_string())?;
        self.execute(out, context)
    }

    pub fn grant(&mut self, total: u64, context: &mut AgentContext) -> Result<(), String> {
        self.keep_stale_message(StaleMessage::Grant(context.epoch, total + 100), context);
        let mut out = Vec::new();
        let uncovered = u64::from(context.network.has(PlantedBug::IgnoredCredit));
        self.machine.grant(context.epoch, total + uncovered, &mut out);
        self.execute(out, context)
    }

    pub fn gradient(&mut self, frame: Frame, context: &mut AgentContext) -> Result<(), String> {
        self.replay_stale_message(context)?;
        self.keep_stale_message(StaleMessage::Frame(frame.clone()), context);
        let mut out = Vec::new();
        self.machine.gradient(frame, &mut out).map_err(|error| error.to_string())?;
        self.execute(out, context)?;
        if self.machine.max_open_sums() > self.most_open {
            return Err(format!(
                "{} partial sums are open, at most {} should be",
                self.machine.max_open_sums(),
                self.most_open
            ));
        }
        Ok(())
    }

    fn keep_stale_message(&mut self, message: StaleMessage, context: &mut AgentContext) {
        if self.stale_messages.len() == 16 {
            self.stale_messages.swap_remove(context.network.random.below(16));
        }
        self.stale_messages.push(message);
    }

    /// Replays a message of an older epoch.
    fn replay_stale_message(&mut self, context: &mut AgentContext) -> Result<(), String> {
        let old = |message: &StaleMessage| match message {
            StaleMessage::Frame(frame) => frame.key.epoch < context.epoch,
            StaleMessage::Open(epoch, _) | StaleMessage::Grant(epoch, _) => *epoch < context.epoch,
        };
        let at: Vec<usize> = (0..self.stale_messages.len()).filter(|&at| old(&self.stale_messages[at])).collect();
        let Some(at) = context.network.random.pick(&at) else { return Ok(()) };
        let (before, mut out) = (self.machine.state(), Vec::new());
        match self.stale_messages.swap_remove(at) {
            StaleMessage::Frame(mut frame) if context.network.has(PlantedBug::OldFrame) => {
                frame.key.epoch = context.epoch;
                self.machine.gradient(frame, &mut out).map_err(|error| error.to_string())?;
                return self.execute(out, context);
            }
            StaleMessage::Frame(frame) => self.machine.gradient(frame, &mut out).map_err(|error| error.to_string())?,
            StaleMessage::Open(epoch, iteration) => {
                self.machine.open(epoch, iteration, &mut out).map_err(|error| error.to_string())?;
            }
            StaleMessage::Grant(epoch, total) => self.machine.grant(epoch, total, &mut out),
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

    /// Notifies the state machine of a result of the store's thread, or executes that thread's next work item.
    pub fn work(&mut self, context: &mut AgentContext) -> Result<(), String> {
        let takes_gradient = !self.gathered.is_empty() && (self.jobs.is_empty() || context.network.random.chance(50));
        if takes_gradient && let Some((chunk, norm)) = self.gathered.pop_front() {
            let mut out = Vec::new();
            self.machine.gathered(chunk, norm, &mut out);
            return self.execute(out, context);
        }
        self.job(context)
    }

    /// Executes the next work item of the store's thread. An item that has to wait stays the next one.
    fn job(&mut self, context: &mut AgentContext) -> Result<(), String> {
        let store = self.store.as_ref().ok_or("the shard has no parameters")?;
        match self.jobs.pop_front() {
            Some(StoreWork::Send(at)) => {
                let free = store.free_copies();
                match store::read(store, at.chunk).map_err(|error| error.to_string())? {
                    Some(payload) => {
                        context.network.coverage.copied_for_snapshots += free - store.free_copies();
                        if at.epoch == context.epoch {
                            context.send(self.root, Packet::Frame(Frame::new(at, payload)));
                        }
                    }
                    None => {
                        context.network.coverage.waited_for_copies += 1;
                        self.jobs.push_front(StoreWork::Send(at));
                    }
                }
            }
            Some(StoreWork::Update(chunk)) => {
                let is_updated = store::read(store, chunk).map_err(|error| error.to_string())?.is_some();
                if !is_updated {
                    self.jobs.push_front(StoreWork::Update(chunk));
                }
            }
            Some(StoreWork::Gather { chunk, uses, sum }) => {
                let norm = store::gather(store, chunk, uses, &sum).map_err(|error| error.to_string())?;
                self.gathered.extend(norm.map(|norm| (chunk, norm)));
            }
            Some(StoreWork::Commit(record)) => {
                if record.step < 2 || !context.network.has(PlantedBug::SkippedCommit) {
                    store.commit(record);
                }
                context.network.coverage.committed_in_snapshots += usize::from(self.writer.is_some());
            }
            // The writer of a snapshot that is no longer required finishes first.
            Some(StoreWork::Snapshot(snapshot)) if self.writer.is_some() => {
                self.jobs.push_front(StoreWork::Snapshot(snapshot));
            }
            Some(StoreWork::Snapshot(snapshot)) => self.writer = Some(Writer::new(store, snapshot)),
            None => {}
        }
        Ok(())
    }

    /// Writes one more chunk of the snapshot.
    pub fn write(&mut self, context: &mut AgentContext) -> Result<(), String> {
        let (Some(store), Some(writer)) = (&self.store, &mut self.writer) else { return Ok(()) };
        let is_newest = context.network.has(PlantedBug::NewerChunk);
        let Network { disk, failing_writes, coverage, .. } = &mut *context.network;
        let fails = *failing_writes > 0;
        let written = writer.write(store, disk, fails, is_newest).map_err(|error| error.to_string())?;
        let Some((snapshot, report)) = written else { return Ok(()) };
        if fails && matches!(report, AgentReport::WriteFailed { .. }) {
            *failing_writes -= 1;
            coverage.failed_writes += 1;
        }
        self.writer = None;
        if let Some(report) = self.snapshots.on_finished(&snapshot, report) {
            context.report(report);
        }
        Ok(())
    }

    /// Returns all parameters, after all decided work is done; `None` if they were never loaded.
    pub fn finish(&mut self) -> Result<Option<Vec<(ChunkId, Parameters)>>, String> {
        let Some(store) = &self.store else { return Ok(None) };
        store.abandon_snapshot();
        for job in self.jobs.drain(..) {
            match job {
                StoreWork::Send(at) => drop(store::read(store, at.chunk)),
                StoreWork::Update(chunk) => drop(store::read(store, chunk)),
                StoreWork::Gather { chunk, uses, sum } => drop(store::gather(store, chunk, uses, &sum)),
                StoreWork::Commit(record) => store.commit(record),
                StoreWork::Snapshot(_) => {}
            }
        }
        store::finish(store).map(Some)
    }

    fn execute(&mut self, commands: Vec<ShardCommand>, context: &mut AgentContext) -> Result<(), String> {
        for command in commands {
            match command {
                ShardCommand::Send(at) => self.jobs.push_back(StoreWork::Send(at)),
                ShardCommand::Update(chunk) => self.jobs.push_back(StoreWork::Update(chunk)),
                ShardCommand::Grant(total) => context.grant(self.root, total),
                ShardCommand::Gather { chunk, first, last, sum } => {
                    self.jobs.push_back(StoreWork::Gather { chunk, uses: (first, last), sum });
                }
                ShardCommand::Commit(record) => {
                    self.commits.push(record);
                    self.jobs.push_back(StoreWork::Commit(record));
                }
                ShardCommand::Report(report) => context.report(report),
            }
        }
        Ok(())
    }
}
