//! What the coordinator of an attempt has reported, and what follows from it for the status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::Report;
use super::Visit;
use crate::{CheckpointRecord, ConditionType, State};

/// An attempt whose agents have all been ready for so long counts as training, even if its coordinator can't be reached.
pub(in super::super) const REPORT_TIMEOUT_SECONDS: i64 = 20;

impl<'a> Visit<'a> {
    /// What the coordinator of this attempt has reported.
    pub(super) fn report(&self) -> Option<&'a Report> {
        self.observed.report.as_ref().filter(|report| report.attempt == self.attempt())
    }

    /// Why the newest checkpoint could not be written, while the attempt that says so lives.
    pub(super) fn unsaved(&self, state: State) -> Option<String> {
        let report = self.report()?;
        report.unsaved.clone().filter(|_| matches!(state, State::Training | State::Evaluating))
    }

    /// Says from which step the attempt goes on, and what was lost, where anything was trained before.
    pub(super) fn resumed(&self) -> String {
        let report = self.report();
        match report.and_then(|report| report.resumed) {
            None => String::new(),
            Some((0, lost)) => format!(" again from step 0: there was no checkpoint, and {lost} step(s) are lost"),
            Some((step, 0)) => format!(" from step {step}, without losing a step"),
            Some((step, lost)) => format!(" from step {step}; {lost} step(s) after it are lost and run again"),
        }
    }

    /// Takes over what the coordinator has saved.
    pub(super) fn take_report(&mut self) {
        let Some(report) = self.report() else { return };
        let Some((step, digest)) = &report.checkpoint else { return };
        let known = self
            .status
            .checkpoint
            .as_ref()
            .is_some_and(|known| known.step == Some(*step) && known.digest.as_deref() == Some(digest));
        if !known {
            let time = Some(Time(report.advanced.unwrap_or(self.observed.now)));
            self.status.checkpoint = Some(CheckpointRecord { step: Some(*step), digest: Some(digest.clone()), time });
        }
    }

    /// Whether every agent has been ready for so long that the coordinator's first report should have arrived.
    pub(super) fn is_report_overdue(&self) -> bool {
        let ready = self.status.condition(ConditionType::RolesReady).filter(|ready| ready.status == "True");
        ready.is_some_and(|ready| self.seconds_since(Some(&ready.last_transition_time)) >= REPORT_TIMEOUT_SECONDS)
    }

    /// Returns the sentence that the status has already: an operator that has just begun to follow the coordinator does not
    /// know yet from which step the attempt went on.
    pub(super) fn last_training_message(&self, attempt: u32, num_csx: u32) -> String {
        let plain = format!("attempt {attempt} trains on {num_csx} system(s)");
        let last = self.status.condition(ConditionType::Succeeded).map(|condition| &condition.message);
        last.filter(|last| last.starts_with(&plain)).cloned().unwrap_or(plain)
    }
}
