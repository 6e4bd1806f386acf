//! The state machine of a MemoryX shard: streams weights, gathers gradients, and takes part in the two-phase commit.
//!
//! A shard has one or more replicas: agents with the same chunks, gradients and commits, and therefore the same bits.
//! The first replica in a placement sends the weights, the others only keep up.
//!
//! The data are in the chunk store; this state machine only issues commands. The two directions are independent:
//! weights are sent as the root of the SwarmX tree grants credit, sums are processed as they arrive.
//!
//! * After reporting a step *prepared*, the shard keeps its gradients until that step is committed or opened again.
//! * A recorded commit is never undone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use millrace_emulator::placement::{MemoryXId, Placement, shard_of_agent};
use millrace_emulator::plan::{ChunkId, StreamPlan};
use millrace_emulator::tree::{Node, PartialSums};

use crate::credit::{ReceiveWindow, SendCredit};
use crate::frame::{Frame, FrameError, FrameKey};
use crate::message::{AgentReport, ParameterSource, ShardState};
use crate::payload::Payload;
use crate::payload_memory::HeapMemory;
use crate::slots::{Direction, Slot, SlotCursor, SlotSequences};
use crate::swarm::check_expected;
use crate::types::{CommitRecord, Epoch, Iteration, IterationKind, PreparedStep};

/// Output of a shard.
#[derive(Clone, Debug)]
pub enum ShardCommand {
    /// Read the chunk (applying its pending update first) and send it.
    Send(FrameKey),
    /// Grant the root a running total of gradient slots.
    Grant(u64),
    /// Put the sum over all leaves of one use into the chunk's gradient. After the last use, reply with
    /// [`Shard::gathered`]: exactly once, in the order of the commands, even if the iteration has been abandoned in the
    /// meantime.
    Gather {
        /// The chunk.
        chunk: ChunkId,
        /// Whether this is the first use: overwrite, otherwise add.
        first: bool,
        /// Whether this is the last use.
        last: bool,
        /// The sum; it has as many elements as the chunk.
        sum: Payload,
    },
    /// Make the gathered gradients the pending update of this commit.
    Commit(CommitRecord),
    /// Apply the pending update of the chunk now, because no weights are sent that would require it.
    Update(ChunkId),
    /// Send this report to the coordinator.
    Report(AgentReport),
}

/// Reason why a shard can't continue.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ShardError {
    /// A peer sent an invalid frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The coordinator requests weights that this shard does not have.
    #[error("the coordinator opened {task:?}, but this shard holds the weights of step {committed}")]
    StaleWeights {
        task: IterationKind,
        /// Updates committed here.
        committed: u64,
    },
    /// The coordinator commits a step that is not prepared here.
    #[error("the coordinator commits step {step}, but this shard has committed {committed} and prepared {prepared:?}")]
    NotPrepared {
        step: u64,
        /// Updates committed here.
        committed: u64,
        /// Step and batch prepared here.
        prepared: Option<PreparedStep>,
    },
}

struct EpochState {
    epoch: Epoch,
    placement: Arc<Placement>,
    /// Whether this replica sends the weights.
    is_sender: bool,
    down: SlotCursor,
    up: SlotCursor,
    credit: SendCredit,
    window: ReceiveWindow,
    /// Frames received of the current slot.
    slot_frames: usize,
    /// Sums that arrived before their iteration was opened here: systems do not wait for a replica that sends no
    /// weights. Bounded by the window.
    early: VecDeque<Frame>,
    /// Nodes whose sums the root sends, per round.
    nodes: Vec<Vec<Node>>,
}

/// The state machine of one replica of a shard. It lives as long as its parameters.
pub struct Shard {
    agent: MemoryXId,
    plan: Arc<StreamPlan>,
    state: ShardState,
    link: Option<EpochState>,
    gradients_in_progress: Option<PreparedStep>,
    /// Open partial sums by chunk and use.
    partials: BTreeMap<(ChunkId, usize), PartialSums<Payload>>,
    /// Uses summed so far, by chunk.
    uses: Vec<u32>,
    uses_of: Vec<u32>,
    /// Number of complete gradients not yet confirmed by [`Shard::gathered`], by chunk, including those of abandoned
    /// iterations.
    unanswered: Vec<u32>,
    /// Squared norms of the chunks whose gradient is complete.
    norms: BTreeMap<ChunkId, f64>,
    owned_chunks: Vec<ChunkId>,
}

impl Shard {
    /// Creates a replica without parameters, for the agent `memoryx-<agent>`.
    pub fn new(agent: MemoryXId, plan: Arc<StreamPlan>) -> Self {
        let mut uses_of = vec![0u32; plan.chunks.len()];
        for slot in &plan.up {
            uses_of[slot.chunk] += 1;
        }
        Self {
            agent,
            state: ShardState::default(),
            link: None,
            gradients_in_progress: None,
            partials: BTreeMap::new(),
            uses: vec![0; plan.chunks.len()],
            uses_of,
            unanswered: vec![0; plan.chunks.len()],
            norms: BTreeMap::new(),
            owned_chunks: Vec::new(),
            plan,
        }
    }

    /// Returns the maximum number of open partial sums for one use of a chunk: at most one more than the levels above
    /// the rounds.
    pub fn max_open_sums(&self) -> usize {
        self.partials.values().map(PartialSums::len).max().unwrap_or(0)
    }

    /// Returns the state to send when joining.
    pub const fn state(&self) -> ShardState {
        self.state
    }

    /// Handles the end of loading: the store has the parameters of `source`.
    pub fn on_loaded(&mut self, source: &ParameterSource) -> AgentReport {
        let record = match source {
            ParameterSource::Replica { record, .. } => *record,
            ParameterSource::Initial | ParameterSource::Checkpoint { .. } => None,
        };
        self.state = ShardState { loaded: true, committed: source.step(), record, prepared: None };
        AgentReport::Loaded { state: self.state }
    }

    /// Begins an epoch. Gradients of a prepared step are kept, those of an unfinished one discarded.
    pub fn configure(&mut self, placement: Arc<Placement>, epoch: Epoch, window: u64) -> Vec<ShardCommand> {
        let shard = shard_of_agent(self.agent, placement.shards);
        let is_sender = placement.sends_weights(self.agent);
        let sequences = |direction| SlotSequences::new(&self.plan, &placement, direction, Some(shard));
        let link = EpochState {
            epoch,
            is_sender,
            down: SlotCursor::new(if is_sender { sequences(Direction::Down) } else { SlotSequences::empty() }),
            up: SlotCursor::new(sequences(Direction::Up)),
            credit: SendCredit::default(),
            window: ReceiveWindow::new(window),
            slot_frames: 0,
            early: VecDeque::new(),
            nodes: (0..placement.rounds.len()).map(|round| placement.swarm_nodes(0, round)).collect(),
            placement,
        };
        self.owned_chunks =
            (0..self.plan.chunks.len()).filter(|&chunk| link.placement.shard_of(chunk) == shard).collect();
        let first = ShardCommand::Grant(link.window.total());
        self.link = Some(link);
        self.gradients_in_progress = None;
        self.partials.clear();
        // The previous epoch may have ended before all weights were sent.
        self.updates_without_sending().chain([first]).collect()
    }

    /// Returns the commands that apply a pending update to every chunk, if this replica does not send weights.
    fn updates_without_sending(&self) -> impl Iterator<Item = ShardCommand> {
        let follows = self.link.as_ref().is_some_and(|link| !link.is_sender);
        self.owned_chunks.iter().filter(move |_| follows).map(|&chunk| ShardCommand::Update(chunk))
    }

    /// Opens an iteration.
    ///
    /// # Errors
    /// The shard does not have the weights that the iteration needs, or a sum that was waiting for the iteration is
    /// invalid.
    pub fn open(&mut self, epoch: Epoch, iteration: Iteration, out: &mut Vec<ShardCommand>) -> Result<(), ShardError> {
        let Some(link) = self.link.as_mut().filter(|link| link.epoch == epoch) else { return Ok(()) };
        if iteration.task.required_step() != self.state.committed {
            return Err(ShardError::StaleWeights { task: iteration.task, committed: self.state.committed });
        }
        link.down.open(iteration);
        link.up.open(iteration);
        if let IterationKind::Train { step, batch } = iteration.task {
            self.state.prepared = None;
            self.gradients_in_progress = Some(PreparedStep { step, batch });
            self.partials.clear();
            self.uses.fill(0);
            self.norms.clear();
            if self.owned_chunks.is_empty() {
                self.prepare(out);
            }
        }
        self.pump_down(out);
        self.take_early_sums(out)
    }

    fn take_early_sums(&mut self, out: &mut Vec<ShardCommand>) -> Result<(), ShardError> {
        while let Some(link) = self.link.as_mut().filter(|link| link.up.next().is_some())
            && let Some(frame) = link.early.pop_front()
        {
            self.add_sum(frame, out)?;
        }
        Ok(())
    }

    /// Handles a grant of weight slots by the root.
    pub fn grant(&mut self, epoch: Epoch, total: u64, out: &mut Vec<ShardCommand>) {
        if let Some(link) = self.link.as_mut().filter(|link| link.epoch == epoch) {
            link.credit.grant(total);
            self.pump_down(out);
        }
    }

    fn pump_down(&mut self, out: &mut Vec<ShardCommand>) {
        let Some(link) = &mut self.link else { return };
        let node = self.plan.leaves.tree().root();
        while let Some((iteration, at)) = link.down.next() {
            if !link.credit.spend() {
                break;
            }
            let Slot { round, slot, chunk, .. } = at;
            out.push(ShardCommand::Send(FrameKey {
                epoch: link.epoch,
                iteration: iteration.number,
                round,
                slot,
                chunk,
                node,
            }));
            link.down.advance();
        }
    }

    /// Handles a partial sum from the root. Sums of an older epoch have no effect.
    ///
    /// # Errors
    /// The sum is not the next one in plan order, or its leaves do not fit.
    pub fn gradient(&mut self, frame: Frame, out: &mut Vec<ShardCommand>) -> Result<(), ShardError> {
        let Some(link) = self.link.as_mut().filter(|link| link.epoch == frame.key.epoch) else { return Ok(()) };
        if !link.is_sender && link.up.next().is_none() {
            link.early.push_back(frame);
            return Ok(());
        }
        self.add_sum(frame, out)
    }

    fn add_sum(&mut self, frame: Frame, out: &mut Vec<ShardCommand>) -> Result<(), ShardError> {
        let Frame { key, payload, .. } = frame;
        let Some(link) = &mut self.link else { return Ok(()) };
        let (iteration, at) = link.up.next().ok_or(FrameError::IterationNotOpened(key))?;
        check_expected(&key, iteration, at)?;
        let elements = self.plan.chunks[at.chunk].elements;
        if !payload.has_elements(elements) {
            return Err(FrameError::Length { chunk: at.chunk, elements }.into());
        }
        link.slot_frames += 1;
        if link.slot_frames >= link.nodes[at.round as usize].len() {
            link.slot_frames = 0;
            link.up.advance();
            out.push(ShardCommand::Grant(link.window.consume()));
        }
        let tree = link.placement.tree;
        let chunk = at.chunk;
        let sums = self.partials.entry((chunk, at.layer)).or_insert_with(|| PartialSums::new(tree));
        let join = |left: Payload, right| left.join(right, &HeapMemory);
        sums.insert(key.node, payload, join).map_err(|source| FrameError::Partial { chunk, source })?;
        if sums.covers(tree.root().range()) {
            let sum = sums.take().pop();
            self.partials.remove(&(chunk, at.layer));
            self.uses[chunk] += 1;
            let (first, last) = (self.uses[chunk] == 1, self.uses[chunk] == self.uses_of[chunk]);
            self.unanswered[chunk] += u32::from(last);
            out.extend(sum.map(|(_, sum)| ShardCommand::Gather { chunk, first, last, sum }));
        }
        Ok(())
    }

    /// Handles the confirmation that the store has the complete gradient of `chunk`, with its squared norm.
    /// Confirmations of abandoned iterations have no effect, however late they arrive.
    pub fn gathered(&mut self, chunk: ChunkId, norm: f64, out: &mut Vec<ShardCommand>) {
        let Some(unanswered) = self.unanswered.get_mut(chunk) else { return };
        *unanswered = unanswered.saturating_sub(1);
        let latest = *unanswered == 0 && self.uses[chunk] == self.uses_of[chunk];
        if self.gradients_in_progress.is_none() || !latest {
            return;
        }
        self.norms.insert(chunk, norm);
        if self.norms.len() == self.owned_chunks.len() {
            self.prepare(out);
        }
    }

    fn prepare(&mut self, out: &mut Vec<ShardCommand>) {
        let (Some(prepared), Some(link)) = (self.gradients_in_progress.take(), &self.link) else { return };
        self.state.prepared = Some(prepared);
        let norms = std::mem::take(&mut self.norms).into_iter().collect();
        out.push(ShardCommand::Report(AgentReport::Prepared { epoch: link.epoch, step: prepared.step, norms }));
    }

    /// Handles a commit. It is recorded once and acknowledged every time.
    ///
    /// # Errors
    /// This shard has not prepared the step: it belongs to another job or history.
    pub fn commit(&mut self, record: CommitRecord, out: &mut Vec<ShardCommand>) -> Result<(), ShardError> {
        let ShardState { committed, prepared, .. } = self.state;
        if self.state.can_commit(&record) {
            self.state = ShardState { loaded: true, committed: record.step, record: Some(record), prepared: None };
            out.push(ShardCommand::Commit(record));
            out.extend(self.updates_without_sending());
        } else if record.step != committed {
            return Err(ShardError::NotPrepared { step: record.step, committed, prepared });
        }
        out.push(ShardCommand::Report(AgentReport::Committed { step: record.step }));
        Ok(())
    }
}
