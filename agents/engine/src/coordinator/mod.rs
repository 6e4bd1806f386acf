//! The coordinator: membership and epochs, turns, the two-phase commit, checkpoints, the end.
//!
//! ```text
//! gather members -> load parameters -> configure (epoch + 1) -> all linked -> turns -> end
//!        ^                                                                     |
//!        '-- an agent or a link is lost, or a wanted system joined by now -----'
//! ```
//! A system that joins waits for the end of the turn in flight. After a link was lost, the next epoch waits for a
//! pause.
//!
//! A training turn is decided once every shard has reported it prepared and every leaf's loss is known; the commit is
//! sent until every shard has acknowledged it, over any number of epochs. Everything before that decision may be thrown
//! away and run again.
//!
//! A run that only evaluates may be given several sources; each is loaded, linked and evaluated in an epoch of its own.
//!
//! Nothing is durable here: another coordinator of a later attempt, told the same source, finds its place from what
//! the shards hold.

mod events;
mod links;
mod members;
mod program;
mod saving;
mod turns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use millrace_emulator::placement::Placement;
use millrace_emulator::plan::StreamPlan;

use crate::message::{Cause, Order, Report, ShardState, Source};
use crate::types::{AgentId, CommitRecord, Epoch, Role};

pub use events::{Command, Evaluation, Event, Outcome, Wanted};
pub use links::{FIRST_PAUSE, LONGEST_PAUSE, MOST_FAILURES};
pub use program::{Done, EvalPolicy, Known, LeafTable, LearningRate, LossScaling, Next, Policy, gradient_scale};

use links::LinkFailures;
use saving::Saving;
use turns::{Current, Deciding, Evaluating};

#[derive(Debug)]
struct Member {
    address: String,
    /// What a shard holds; of others nothing.
    state: ShardState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Not everyone is there.
    Gathering,
    /// These shards are filling their parameters.
    Loading(BTreeSet<AgentId>),
    /// These agents have not all their links yet.
    Linking(BTreeSet<AgentId>),
    Running,
    Ended,
}

/// The machine. See the module text.
pub struct Coordinator {
    plan: Arc<StreamPlan>,
    policy: Policy,
    wanted: Wanted,
    source: Source,
    /// What is evaluated after `source`, in order.
    further: VecDeque<Source>,
    epoch: Epoch,
    phase: Phase,
    members: BTreeMap<AgentId, Member>,
    placement: Option<Arc<Placement>>,
    /// Whether a system joined that may work from the next turn on.
    joined_late: bool,
    failures: LinkFailures,
    /// Updates committed, or decided to be.
    step: u64,
    /// The newest step told by [`Command::Step`], or known before.
    told: u64,
    record: Option<CommitRecord>,
    done: Done,
    known: Known,
    serial: u64,
    current: Option<Current>,
    evaluating: Option<Evaluating>,
    saving: Option<Saving>,
    /// The step whose checkpoint could not be written, until another one is begun.
    unsaved: Option<u64>,
    deciding: Option<Deciding>,
    checkpoint_wanted: bool,
    stopping: bool,
}

impl Coordinator {
    /// A coordinator that begins with `source`'s parameters, or with what the shards hold of the same job, in epochs
    /// after `attempt`.0.
    pub fn new(
        plan: Arc<StreamPlan>,
        policy: Policy,
        wanted: Wanted,
        source: Source,
        attempt: u32,
        known: Known,
    ) -> Self {
        let done = known.at(source.step());
        Self {
            plan,
            policy,
            wanted,
            step: source.step(),
            told: source.step(),
            source,
            further: VecDeque::new(),
            epoch: Epoch { attempt, number: 0 },
            phase: Phase::Gathering,
            members: BTreeMap::new(),
            placement: None,
            joined_late: false,
            failures: LinkFailures::default(),
            record: None,
            done,
            known,
            serial: 0,
            current: None,
            evaluating: None,
            saving: None,
            unsaved: None,
            deciding: None,
            checkpoint_wanted: false,
            stopping: false,
        }
    }

    /// A run that only evaluates goes on with these when it is done with the first source, in this order; each has more
    /// updates than the one before it.
    #[must_use]
    pub fn then_evaluating(mut self, further: impl IntoIterator<Item = Source>) -> Self {
        self.further = further.into_iter().collect();
        self
    }

    /// Updates committed, or decided to be.
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// The current epoch.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether `agent` has joined and is still there.
    pub fn has(&self, agent: AgentId) -> bool {
        self.members.contains_key(&agent)
    }

    /// Takes an event; appends what is to be done.
    pub fn on(&mut self, event: Event, out: &mut Vec<Command>) {
        if self.phase == Phase::Ended {
            // Whoever was away when the others were told.
            if let Event::Joined { agent, .. } = event {
                out.push(Command::Send(agent, Order::Finish));
            }
            return;
        }
        match event {
            Event::Joined { agent, address, shard } => self.joined(agent, address, shard, out),
            Event::Lost { agent } => self.lost(agent),
            Event::Report { agent, report } => self.report(agent, report, out),
            Event::CheckpointWanted if self.misses_checkpoint() => self.save_again(),
            Event::CheckpointWanted => self.checkpoint_wanted = !self.done.saved,
            Event::StopWanted => self.stop(),
            Event::Staged(snapshot) => self.staged(snapshot, out),
            Event::Published { step } => self.published(step),
            Event::NotSaved { step, reason, cause } => self.not_saved(step, reason, cause, out),
            Event::SaveAgain => self.save_again(),
            Event::PauseOver { epoch } => self.failures.pause_over(epoch),
        }
        self.proceed(out);
    }

    fn report(&mut self, agent: AgentId, report: Report, out: &mut Vec<Command>) {
        match report {
            Report::Loaded { state } => self.loaded(agent, state),
            Report::Linked { epoch } if epoch == self.epoch => self.linked(agent, out),
            Report::Leaves { epoch, turn, results } if epoch == self.epoch => self.leaves(turn, &results, out),
            Report::Prepared { epoch, step, norms } if epoch == self.epoch => self.prepared(agent, step, &norms, out),
            Report::Committed { step } => self.committed(agent, step, out),
            Report::Written { snapshot, digests } => self.written(agent, &snapshot, digests, out),
            Report::NotWritten { snapshot, reason, cause } => self.not_written(agent, &snapshot, reason, cause, out),
            Report::LinkLost { epoch, peer } if epoch == self.epoch => self.link_lost(agent, peer, out),
            Report::Failed { reason, cause } => self.failed(agent, reason, cause, out),
            // Words of an older epoch.
            Report::Linked { .. } | Report::Leaves { .. } | Report::Prepared { .. } | Report::LinkLost { .. } => {}
        }
    }

    /// Goes on with whatever can go on.
    fn proceed(&mut self, out: &mut Vec<Command>) {
        if self.phase == Phase::Ended {
            return;
        }
        if self.stopping {
            self.wind_up(out);
            return;
        }
        loop {
            if self.joined_late && self.current.is_none() && self.evaluating.is_none() {
                self.joined_late = false;
                if self.helps() {
                    self.regather();
                }
            }
            if self.phase == Phase::Gathering && !self.failures.pauses() {
                self.gather(out);
            }
            let runs = self.phase == Phase::Running && self.current.is_none() && !self.staging();
            if !runs || !self.next_turn(out) {
                break;
            }
        }
    }

    /// An agent can't go on. The run ends where it can't do without that agent, or where the user has to act; else the
    /// others go on.
    fn failed(&mut self, agent: AgentId, reason: String, cause: Cause, out: &mut Vec<Command>) {
        if cause == Cause::Other && matches!(agent.role, Role::Cs2 | Role::SwarmX) {
            out.push(Command::Dismiss { agent, reason });
            self.lost(agent);
        } else {
            self.end(Outcome::Failed { reason, agent: Some(agent), cause }, out);
        }
    }

    /// Goes on with another source: every shard loads it, and a new epoch begins.
    fn turn_to(&mut self, source: Source, out: &mut Vec<Command>) {
        (self.step, self.told) = (source.step(), source.step());
        (self.source, self.done) = (source, Done::default());
        self.phase = Phase::Gathering;
        out.push(Command::Next(self.source.clone()));
        self.gather(out);
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.current = None;
        self.evaluating = None;
    }

    /// Ends a stopped run, saving the last committed step once every shard has it. Nobody else is needed for that; but
    /// the shards are, since only they know which step that is.
    fn wind_up(&mut self, out: &mut Vec<Command>) {
        let begun = self.epoch.number > 0;
        if !begun && (self.phase != Phase::Gathering || self.misses_parameters()) {
            self.end(Outcome::Stopped, out);
            return;
        }
        let agreed = matches!(self.phase, Phase::Linking(_) | Phase::Running) || (begun && self.saved());
        if !agreed && !self.agree(out) {
            return;
        }
        if self.saved() {
            self.finish(Outcome::Stopped, out);
        } else {
            self.save(out);
        }
    }

    /// Ends once the last checkpoint is published and the last commit recorded.
    fn finish(&mut self, outcome: Outcome, out: &mut Vec<Command>) {
        if self.saving.is_none() && self.deciding.is_none() && !self.misses_checkpoint() {
            self.end(outcome, out);
        }
    }

    fn end(&mut self, outcome: Outcome, out: &mut Vec<Command>) {
        self.phase = Phase::Ended;
        out.extend(self.members.keys().map(|&agent| Command::Send(agent, Order::Finish)));
        out.push(Command::End(outcome));
    }
}

/// Where the run stands and what it waits for.
impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator")
            .field("epoch", &self.epoch)
            .field("phase", &self.phase)
            .field("members", &self.members.keys().map(AgentId::to_string).collect::<Vec<_>>())
            .field("step", &self.step)
            .field("done", &self.done)
            .field("current", &self.current)
            .field("saving", &self.saving)
            .field("unsaved", &self.unsaved)
            .field("deciding", &self.deciding)
            .field("checkpoint_wanted", &self.checkpoint_wanted)
            .field("stopping", &self.stopping)
            .finish_non_exhaustive()
    }
}
