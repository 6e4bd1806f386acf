//! The coordinator's spans: one for the run, and in it one for each checkpoint that is saved and each evaluation. None
//! for a step: a run has millions.

use millrace_engine::coordinator::{CoordinatorCommand, CoordinatorEvent};
use millrace_traces::TraceParent;
use tracing::Span;

/// See the module text.
pub struct Spans {
    run: Span,
    checkpoint: Option<Span>,
    evaluation: Option<Span>,
}

impl Spans {
    /// The run begins after `step` updates. Its span continues the trace that the environment names, which is that of
    /// the job's submission, or of the visit that launched this attempt.
    pub fn begin(step: u64) -> Self {
        let run = tracing::info_span!(parent: None, "run", step.first = step);
        if let Some(parent) = TraceParent::from_environment() {
            parent.adopt(&run);
        }
        Self { run, checkpoint: None, evaluation: None }
    }

    /// Ends what the event ends.
    pub fn on_event(&mut self, event: &CoordinatorEvent) {
        if matches!(event, CoordinatorEvent::Published { .. }) {
            self.checkpoint = None;
        }
    }

    /// Begins what the command begins, and ends what it ends.
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
