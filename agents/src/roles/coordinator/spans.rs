//! The trace spans of the coordinator: one for the run, with a child for each checkpoint and each evaluation. The spans
//! of the other agents ([`AgentSpans`](crate::control::spans::AgentSpans)) are children of the run's.

use millrace_engine::coordinator::{CoordinatorCommand, CoordinatorEvent};
use millrace_traces::TraceParent;
use tracing::Span;

/// The open spans of the run.
pub struct Spans {
    run: Span,
    checkpoint: Option<Span>,
    evaluation: Option<Span>,
}

impl Spans {
    /// Begins the span of a run that starts after `step` updates. The span continues the trace in the environment: that
    /// of the job's submission, or of the reconcile that launched this attempt.
    pub fn begin(step: u64) -> Self {
        let run = tracing::info_span!(parent: None, "run", step.first = step);
        if let Some(parent) = TraceParent::from_environment() {
            parent.adopt(&run);
        }
        Self { run, checkpoint: None, evaluation: None }
    }

    /// Returns the span of the run for the other agents; empty without traces.
    pub fn traceparent(&self) -> String {
        TraceParent::of_span(&self.run).map(|parent| parent.to_string()).unwrap_or_default()
    }

    /// Ends the span that `event` finishes.
    pub fn on_event(&mut self, event: &CoordinatorEvent) {
        if matches!(event, CoordinatorEvent::Published { .. }) {
            self.checkpoint = None;
        }
    }

    /// Begins or ends the span of `command`.
    pub fn on_command(&mut self, command: &CoordinatorCommand) {
        match command {
            CoordinatorCommand::StageCheckpoint { step } => {
                self.checkpoint = Some(tracing::info_span!(parent: &self.run, "save checkpoint", step));
            }
            CoordinatorCommand::ReportSaveFailure { .. } => self.checkpoint = None,
            CoordinatorCommand::Evaluating => {
                self.evaluation = Some(tracing::info_span!(parent: &self.run, "evaluate"))
            }
            CoordinatorCommand::ReportEvaluation(_) => self.evaluation = None,
            _ => {}
        }
    }
}
