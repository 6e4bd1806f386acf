//! The trace spans of an agent of any role except the coordinator.
//!
//! ```text
//! run                                  the coordinator's span, named in its welcome
//!  └─ cs2-0                            from the welcome until the agent leaves or loses the coordinator
//!      ├─ load parameters              MemoryX
//!      ├─ connect                      the links of an epoch
//!      ├─ train step, evaluation batch MemoryX, SwarmX and systems, with the seconds waited by reason
//!      │    └─ StepPhase
//!      └─ write snapshot               MemoryX
//! ```
//!
//! * Commands and reports begin and end spans; no span belongs to a single frame or request.
//! * The first [`FIRST_TRACED_ITERATIONS`] iterations of an epoch have spans, then every
//!   [`TRACED_ITERATION_INTERVAL`]th. They are the same ones in all agents.
//! * Without a collector there are no spans: nothing is measured, and no lock is taken.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_engine::message::{AgentCommand, AgentReport};
use millrace_engine::types::{AgentId, Iteration, IterationKind, Role};
use millrace_telemetry::stall::{StallClock, StallReason, StallTotals};
use millrace_traces::TraceParent;
use tracing::{Span, field};

/// Iterations at the beginning of an epoch that all have spans: the first ones are slower than the later ones.
const FIRST_TRACED_ITERATIONS: u64 = 8;
/// Interval of the later iterations that have spans. A run has millions of iterations.
const TRACED_ITERATION_INTERVAL: u64 = 100;

/// A part of an iteration, in the order of a role's parts. It ends with the next part, or with the iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepPhase {
    /// A system computes the forward pass; of the first round, if it has several.
    Forward,
    /// A system computes the backward pass and all further rounds, and sends sums of gradients.
    Backward,
    /// A SwarmX node sends weights to its children.
    DistributeWeights,
    /// A SwarmX node adds sums of gradients; in the second half of a step it also sends weights.
    ReduceGradients,
    /// A shard sends weights, with the updates of the last commit applied, and receives sums of gradients.
    GatherGradients,
    /// A shard has all gradients of the step.
    AwaitCommit,
}

impl StepPhase {
    /// Returns the first phase of an iteration, unless frames begin it.
    const fn first(role: Role, trains: bool) -> Option<Self> {
        match role {
            Role::Cs2 => Some(Self::Forward),
            Role::MemoryX if trains => Some(Self::GatherGradients),
            _ => None,
        }
    }

    fn span(self, step: &Span) -> Span {
        match self {
            Self::Forward => tracing::info_span!(parent: step, "forward"),
            Self::Backward => tracing::info_span!(parent: step, "backward"),
            Self::DistributeWeights => tracing::info_span!(parent: step, "distribute weights"),
            Self::ReduceGradients => tracing::info_span!(parent: step, "reduce gradients"),
            Self::GatherGradients => tracing::info_span!(parent: step, "gather gradients"),
            Self::AwaitCommit => tracing::info_span!(parent: step, "await commit"),
        }
    }
}

/// Begins and ends the spans of an agent. Clones share the spans. Empty without a collector.
#[derive(Clone, Debug, Default)]
pub struct AgentSpans(Option<Arc<Mutex<OpenSpans>>>);

#[derive(Debug)]
struct OpenSpans {
    id: AgentId,
    stall: StallClock,
    agent: Span,
    loading: Option<Span>,
    connecting: Option<Span>,
    snapshot: Option<Span>,
    step: Option<OpenStep>,
}

#[derive(Debug)]
struct OpenStep {
    span: Span,
    iteration: Iteration,
    phase: Option<(StepPhase, Span)>,
    /// The waits before the iteration.
    waited_before: StallTotals,
}

impl AgentSpans {
    /// Begins the span of `agent`, which has joined a coordinator with the span `parent`. A coordinator of an earlier
    /// release names no span: the parent is then the one in the environment.
    pub fn begin(agent: AgentId, attempt: u32, parent: &str, stall: StallClock) -> Self {
        let span = agent_span(agent, attempt, parent);
        if span.is_disabled() {
            return Self::default();
        }
        let open =
            OpenSpans { id: agent, stall, agent: span, loading: None, connecting: None, snapshot: None, step: None };
        Self(Some(Arc::new(Mutex::new(open))))
    }

    fn lock(&self) -> Option<MutexGuard<'_, OpenSpans>> {
        self.0.as_ref().map(|open| open.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins and ends the spans that `command` of the coordinator begins and ends.
    pub fn on_command(&self, command: &AgentCommand) {
        let Some(mut open) = self.lock() else { return };
        match command {
            AgentCommand::Load(source) => {
                let span = tracing::info_span!(parent: &open.agent, "load parameters", step = source.step());
                open.loading = Some(span);
            }
            AgentCommand::Configure(configure) => {
                open.end_step();
                let (epoch, systems) = (configure.epoch, configure.placement.systems.len());
                open.connecting = Some(tracing::info_span!(parent: &open.agent, "connect", %epoch, systems));
            }
            AgentCommand::Open { iteration, .. } => {
                open.end_step();
                open.begin_step(*iteration);
            }
            AgentCommand::Commit { .. } => {
                if let Some(step) = &mut open.step {
                    step.phase = None;
                }
            }
            AgentCommand::Snapshot(snapshot) => {
                open.snapshot = Some(tracing::info_span!(parent: &open.agent, "write snapshot", step = snapshot.step));
            }
            AgentCommand::Finish => open.end_step(),
            AgentCommand::WeighLosses { .. } | AgentCommand::ScaleLosses { .. } => {}
        }
    }

    /// Begins and ends the spans that `report` to the coordinator begins and ends.
    pub fn on_report(&self, report: &AgentReport) {
        let Some(mut open) = self.lock() else { return };
        match report {
            AgentReport::Loaded { .. } | AgentReport::CopyFailed { .. } => open.loading = None,
            AgentReport::Linked { .. } => open.connecting = None,
            AgentReport::Leaves { iteration, .. } => {
                let step = open.step.as_mut();
                if let Some(step) = step.filter(|step| step.iteration.number == *iteration) {
                    match step.iteration.task {
                        IterationKind::Train { .. } => step.begin_phase(StepPhase::Backward),
                        IterationKind::Eval { .. } => step.phase = None,
                    }
                }
            }
            AgentReport::Prepared { step, .. } => {
                let is_prepared = |task: IterationKind| task.is_training() && task.step() == *step;
                if let Some(step) = open.step.as_mut().filter(|step| is_prepared(step.iteration.task)) {
                    step.begin_phase(StepPhase::AwaitCommit);
                }
            }
            AgentReport::Written { .. } | AgentReport::WriteFailed { .. } => open.snapshot = None,
            AgentReport::LinkLost { .. } | AgentReport::Failed { .. } => {
                open.end_step();
                open.connecting = None;
            }
            AgentReport::Committed { .. }
            | AgentReport::LossWeights { .. }
            | AgentReport::StorageStalled { .. }
            | AgentReport::Worked { .. } => {}
        }
    }

    /// Begins a phase of the iteration with this number, unless it or a later one has begun, or the iteration has no
    /// span.
    pub fn begin_phase(&self, iteration: u64, phase: StepPhase) {
        let Some(mut open) = self.lock() else { return };
        if let Some(step) = open.step.as_mut().filter(|step| step.iteration.number == iteration) {
            step.begin_phase(phase);
        }
    }

    /// Ends the spans of a lost coordinator's epoch. Loading and writing continue.
    pub fn on_coordinator_lost(&self) {
        let Some(mut open) = self.lock() else { return };
        open.end_step();
        open.connecting = None;
    }

    /// Begins the span of the agent again, as a child of the next coordinator's span.
    pub fn on_rejoin(&self, attempt: u32, parent: &str) {
        let Some(mut open) = self.lock() else { return };
        open.agent = agent_span(open.id, attempt, parent);
    }

    /// Ends all spans, also those of clones.
    pub fn end(&self) {
        let Some(mut open) = self.lock() else { return };
        open.end_step();
        (open.loading, open.connecting, open.snapshot) = (None, None, None);
        open.agent = Span::none();
    }
}

impl OpenSpans {
    fn begin_step(&mut self, iteration: Iteration) {
        let number = iteration.number;
        let is_traced = number < FIRST_TRACED_ITERATIONS || number.is_multiple_of(TRACED_ITERATION_INTERVAL);
        // An activation server only answers requests, and does not wait for iterations.
        if self.agent.is_none() || !is_traced || self.id.role == Role::Activation {
            return;
        }
        let (name, step) = match iteration.task {
            IterationKind::Train { step, .. } => ("train step", step),
            IterationKind::Eval { step, .. } => ("evaluation batch", step),
        };
        let span = tracing::info_span!(
            parent: &self.agent,
            "iteration",
            otel.name = name,
            step,
            iteration = number,
            wait.weights = field::Empty,
            wait.grads = field::Empty,
            wait.optimizer = field::Empty,
            wait.samples = field::Empty,
            wait.credit = field::Empty,
            wait.commit = field::Empty,
            wait.epoch = field::Empty,
            wait.snapshot = field::Empty,
        );
        let first = StepPhase::first(self.id.role, iteration.task.is_training());
        let phase = first.map(|phase| (phase, phase.span(&span)));
        self.step = Some(OpenStep { span, iteration, phase, waited_before: self.stall.totals() });
    }

    fn end_step(&mut self) {
        let Some(OpenStep { span, waited_before, .. }) = self.step.take() else { return };
        let waited = self.stall.totals();
        for reason in StallReason::ALL {
            let seconds = waited[reason] - waited_before[reason];
            if seconds > 0.0 {
                span.record(wait_field(reason), seconds);
            }
        }
    }
}

impl OpenStep {
    fn begin_phase(&mut self, phase: StepPhase) {
        if self.phase.as_ref().is_some_and(|(current, _)| *current >= phase) {
            return;
        }
        // The end of the previous phase is the beginning of this one.
        self.phase = None;
        self.phase = Some((phase, phase.span(&self.span)));
    }
}

fn agent_span(agent: AgentId, attempt: u32, parent: &str) -> Span {
    let span = tracing::info_span!(parent: None, "agent", otel.name = %agent, attempt);
    if let Some(parent) = parent.parse().ok().or_else(TraceParent::from_environment) {
        parent.adopt(&span);
    }
    span
}

/// Returns the field of a step's span with the seconds waited for `reason`.
const fn wait_field(reason: StallReason) -> &'static str {
    match reason {
        StallReason::Weights => "wait.weights",
        StallReason::Grads => "wait.grads",
        StallReason::Optimizer => "wait.optimizer",
        StallReason::Samples => "wait.samples",
        StallReason::Credit => "wait.credit",
        StallReason::Commit => "wait.commit",
        StallReason::Epoch => "wait.epoch",
        StallReason::Snapshot => "wait.snapshot",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fmt::Debug;

    use millrace_engine::message::{ParameterSource, SnapshotRequest};
    use millrace_engine::types::{CommitRecord, Epoch, TrainingHistory};
    use millrace_telemetry::logs::{AgentName, Level, LogFormat, Logger};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
    use tracing_subscriber::registry::Registry;

    use super::*;
    use crate::control::TEST_SUBSCRIBER;

    /// Records the spans of a subscriber.
    #[derive(Clone, Default)]
    struct SpanRecorder(Arc<Mutex<RecordedSpans>>);

    #[derive(Default)]
    struct RecordedSpans {
        names: HashMap<u64, String>,
        /// `parent > name`, in the order in which the spans began.
        lines: Vec<String>,
    }

    struct NameVisitor(String);

    impl Visit for NameVisitor {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            if field.name() == "otel.name" {
                self.0 = format!("{value:?}").replace('"', "");
            }
        }
    }

    impl Layer<Registry> for SpanRecorder {
        fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, Registry>) {
            let mut name = NameVisitor(attributes.metadata().name().to_owned());
            attributes.record(&mut name);
            let mut recorded = self.0.lock().unwrap();
            let parent =
                attributes.parent().map_or_else(String::new, |parent| recorded.names[&parent.into_u64()].clone());
            recorded.lines.push(format!("{parent} > {}", name.0));
            recorded.names.insert(id.into_u64(), name.0);
        }
    }

    fn open(number: u64, task: IterationKind) -> AgentCommand {
        AgentCommand::Open { epoch: Epoch::default(), iteration: Iteration { number, task } }
    }

    /// Does what a shard does in a short run.
    fn run_shard(spans: &AgentSpans) {
        let snapshot = SnapshotRequest { step: 1, path: String::new() };
        let record = CommitRecord {
            step: 1,
            scale: 1.0,
            learning_rate: 0.1,
            loss: 2.0,
            norm: 3.0,
            tokens: 4,
            history: TrainingHistory::default(),
        };
        spans.on_command(&AgentCommand::Load(ParameterSource::Initial));
        spans.on_command(&open(0, IterationKind::Train { step: 1, batch: 0 }));
        spans.on_report(&AgentReport::Prepared { epoch: Epoch::default(), step: 1, norms: Vec::new() });
        spans.on_command(&AgentCommand::Commit { record });
        spans.on_command(&open(1, IterationKind::Eval { step: 1, batch: 0 }));
        spans.on_command(&AgentCommand::Snapshot(snapshot));
        for step in [FIRST_TRACED_ITERATIONS, TRACED_ITERATION_INTERVAL] {
            spans.on_command(&open(step, IterationKind::Train { step, batch: step - 1 }));
        }
        spans.end();
    }

    // One test: a call site that two threads reach with different subscribers may be disabled for both.
    #[test]
    fn spans_of_a_shard_exist_only_with_a_collector() {
        let _only = TEST_SUBSCRIBER.lock().unwrap_or_else(PoisonError::into_inner);
        let shard = AgentId::new(Role::MemoryX, 0);
        let begin = || AgentSpans::begin(shard, 1, "", StallClock::new());
        let name = AgentName::new("memoryx", 0).unwrap();
        let logger = Logger::new(name, Level::Debug, LogFormat::Text, |_| {});
        tracing::subscriber::with_default(tracing_subscriber::registry().with(logger.layer()), || {
            assert!(begin().0.is_none(), "logs do not enable spans");
        });
        let recorder = SpanRecorder::default();
        tracing::subscriber::with_default(
            tracing_subscriber::registry().with(recorder.clone()),
            || run_shard(&begin()),
        );
        let expected = [
            " > memoryx-0",
            "memoryx-0 > load parameters",
            "memoryx-0 > train step",
            "train step > gather gradients",
            "train step > await commit",
            "memoryx-0 > evaluation batch",
            "memoryx-0 > write snapshot",
            "memoryx-0 > train step",
            "train step > gather gradients",
        ];
        assert_eq!(recorder.0.lock().unwrap().lines, expected);
    }
}
