//! Maps the state of a job to its conditions and their reasons, in one table.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use millrace_crds::{ConditionType, JobState, QueueReason, QueueStatus};

use crate::ResolutionError;

/// The input of the table, besides the state.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ConditionInputs {
    /// The state's message.
    pub message: String,
    /// Whether the job has a plan, or had one when it was admitted.
    pub is_planned: bool,
    /// Why the params were rejected, if they were.
    pub rejection: Option<String>,
    /// Why the record of an earlier admission can't be used, or why there can't be one at present.
    pub unusable_record: Option<ResolutionError>,
    /// Why no further attempt may begin with the agents of the record, if the job needs one.
    pub agents_refused: Option<String>,
    /// Where the params differ from the spec, which takes precedence: a sentence.
    pub overruled: Option<String>,
    /// The systems that the job holds.
    pub systems: Vec<String>,
    /// Its place in the queue.
    pub queue: Option<QueueStatus>,
    /// Reason and message of what prevents agents from being ready. `None` if all are ready.
    pub blocker: Option<(String, String)>,
    /// Step and digest of the newest checkpoint.
    pub checkpoint: Option<(u64, String)>,
    /// Why the newest checkpoint could not be written; `None` once one is written.
    pub unsaved: Option<String>,
    /// Whether the storage of model_dir responds to the attempt's writes. `None` if no attempt reports it.
    pub storage: Option<StorageHealth>,
}

/// Whether storage responds to writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StorageHealth {
    Responds,
    /// Describes a write that the storage does not respond to.
    Stalled(String),
}

/// Reason of the condition and the event for a checkpoint that could not be written.
pub(crate) const CHECKPOINT_WRITE_FAILED: &str = "CheckpointWriteFailed";

/// Reason of the condition and the event for storage that does not respond.
pub(crate) const STORAGE_STALLED: &str = "StorageStalled";

/// Reason of the condition and the event for storage that responds.
pub(crate) const STORAGE_RESPONDS: &str = "StorageResponds";

/// Reason of conditions of a job whose record this program can't use.
const RESOLVED_UNREADABLE: &str = "ResolvedUnreadable";

/// Reason of conditions of a job that can't be planned or started at present, because its uploads can't be read.
pub(crate) const UPLOADS_UNAVAILABLE: &str = "UploadsUnavailable";

/// Reason of conditions of a job that needs another attempt, if its agents are of a release that may start none.
const AGENTS_UNSUPPORTED: &str = "AgentsUnsupported";

/// Status, reason and message of a condition.
type ConditionRow = (&'static str, String, String);

fn row(status: &'static str, reason: &str, message: impl Into<String>) -> ConditionRow {
    (status, reason.to_owned(), message.into())
}

/// Returns the conditions of a job in `state`, in the order of [`ConditionType::ALL`].
pub(crate) fn condition_rows(state: JobState, inputs: &ConditionInputs) -> [ConditionRow; 9] {
    [
        accepted(inputs),
        admitted(state, inputs),
        roles_ready(state, inputs),
        progressing(state),
        checkpointed(inputs),
        storage_responding(state, inputs),
        suspended(state, inputs),
        succeeded(state, inputs),
        finished(state),
    ]
}

/// Returns reason and message of what prevents the next attempt, apart from invalid params.
fn blocking_reason(inputs: &ConditionInputs) -> Option<(&'static str, &String)> {
    let unusable = inputs.unusable_record.as_ref().map(|error| match error.is_temporary {
        true => (UPLOADS_UNAVAILABLE, &error.message),
        false => (RESOLVED_UNREADABLE, &error.message),
    });
    unusable.or_else(|| inputs.agents_refused.as_ref().map(|message| (AGENTS_UNSUPPORTED, message)))
}

fn accepted(inputs: &ConditionInputs) -> ConditionRow {
    match (&inputs.rejection, blocking_reason(inputs)) {
        (Some(message), _) => row("False", JobState::BadParams.as_str(), message),
        (None, Some((reason, message))) => row("False", reason, message),
        (None, None) if !inputs.is_planned => {
            row("Unknown", QueueReason::Planning.as_str(), "the job has not been planned yet")
        }
        (None, None) => {
            let more = inputs.overruled.as_ref().map_or_else(String::new, |overruled| format!("; {overruled}"));
            row("True", "PlanFits", format!("the params are valid and the model fits{more}"))
        }
    }
}

fn admitted(state: JobState, inputs: &ConditionInputs) -> ConditionRow {
    if !inputs.systems.is_empty() {
        return row("True", "Granted", format!("the job has {}", inputs.systems.join(", ")));
    }
    if let (Some((reason, message)), JobState::Queued) = (blocking_reason(inputs), state) {
        return row("False", reason, message);
    }
    match (&inputs.queue, state) {
        (Some(QueueStatus { reason: Some(reason), message, .. }), JobState::Queued) => {
            row("False", reason, message.clone().unwrap_or_default())
        }
        (_, JobState::Queued) => row("False", "Waiting", "the job is in the queue"),
        _ => row("False", state.as_str(), "the job has no systems"),
    }
}

fn roles_ready(state: JobState, inputs: &ConditionInputs) -> ConditionRow {
    match (&inputs.blocker, state) {
        (None, JobState::Starting | JobState::Training | JobState::Evaluating) => {
            row("True", "AllReady", "all agents are ready")
        }
        (Some((reason, message)), JobState::Starting | JobState::Training | JobState::Evaluating) => {
            row("False", reason, message)
        }
        _ => row("False", state.as_str(), idle_reason(state)),
    }
}

/// Describes briefly why no agents work in a state; the condition Succeeded has the complete message.
const fn idle_reason(state: JobState) -> &'static str {
    match state {
        JobState::Queued => "no agents run while the job waits",
        JobState::Suspended => "no agents run while the job is suspended",
        JobState::Suspending | JobState::Resizing => "the agents are saving the job's state and stopping",
        JobState::Restarting => "the agents of the failed attempt are stopping; then new ones start",
        JobState::Deleting => "the agents are stopping",
        JobState::Starting => "the agents are starting",
        JobState::Training | JobState::Evaluating => "the agents are running",
        JobState::Succeeded
        | JobState::BadParams
        | JobState::BadData
        | JobState::NonFiniteLoss
        | JobState::LossSpike
        | JobState::OutOfMemory
        | JobState::DeadlineExceeded
        | JobState::RetriesExhausted => "the job has finished",
    }
}

fn progressing(state: JobState) -> ConditionRow {
    match state {
        JobState::Training => row("True", "StepsAdvancing", "steps are being committed"),
        JobState::Evaluating => row("True", "BatchesAdvancing", "batches are being evaluated"),
        _ => row("False", state.as_str(), idle_reason(state)),
    }
}

fn checkpointed(inputs: &ConditionInputs) -> ConditionRow {
    if let Some(message) = &inputs.unsaved {
        return row("False", CHECKPOINT_WRITE_FAILED, message);
    }
    match &inputs.checkpoint {
        Some((step, digest)) => {
            row("True", "Saved", format!("checkpoint_{step} is complete; the digest of its parameters is {digest}"))
        }
        None => row("False", "NoCheckpoint", "no checkpoint has been written yet"),
    }
}

fn storage_responding(state: JobState, inputs: &ConditionInputs) -> ConditionRow {
    match &inputs.storage {
        Some(StorageHealth::Responds) => row("True", STORAGE_RESPONDS, "the storage of model_dir responds to writes"),
        Some(StorageHealth::Stalled(stall)) => row("False", STORAGE_STALLED, stall),
        None => row("Unknown", state.as_str(), "no attempt reports about the storage of model_dir"),
    }
}

fn suspended(state: JobState, inputs: &ConditionInputs) -> ConditionRow {
    match state {
        JobState::Suspended => row("True", "Suspended", &inputs.message),
        JobState::Suspending => row("False", "Suspending", &inputs.message),
        _ => row("False", "NotSuspended", "spec.suspend is false"),
    }
}

fn succeeded(state: JobState, inputs: &ConditionInputs) -> ConditionRow {
    let status = match state {
        JobState::Succeeded => "True",
        state if state.is_failure() => "False",
        _ => "Unknown",
    };
    row(status, state.as_str(), &inputs.message)
}

fn finished(state: JobState) -> ConditionRow {
    if state.is_final() {
        row("True", state.as_str(), "the job has finished; see the condition Succeeded")
    } else {
        row("False", "Active", "the job has not finished")
    }
}

/// Maximum length of a condition's message, as accepted by API servers.
const MAX_MESSAGE_CHARS: usize = 4096;

/// Updates `conditions` from the table.
pub(crate) fn update_conditions(
    conditions: &mut Vec<Condition>,
    state: JobState,
    inputs: &ConditionInputs,
    generation: Option<i64>,
    now: Timestamp,
) {
    for (condition_type, (status, reason, message)) in ConditionType::ALL.into_iter().zip(condition_rows(state, inputs))
    {
        let new = Condition {
            type_: condition_type.as_str().to_owned(),
            status: status.to_owned(),
            reason,
            message: message.chars().take(MAX_MESSAGE_CHARS).collect(),
            observed_generation: generation,
            last_transition_time: Time(now),
        };
        set_condition(conditions, new);
    }
}

/// Inserts `new` into `conditions`, or replaces the condition of its type. The transition time changes only if the
/// status (True, False, Unknown) does.
pub fn set_condition(conditions: &mut Vec<Condition>, new: Condition) {
    match conditions.iter_mut().find(|condition| condition.type_ == new.type_) {
        Some(old) if old.status == new.status => {
            let since: Time = old.last_transition_time.clone();
            *old = Condition { last_transition_time: since, ..new };
        }
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(condition_type: ConditionType, status: &str, reason: &str, second: i64) -> Condition {
        Condition {
            type_: condition_type.as_str().into(),
            status: status.into(),
            reason: reason.into(),
            message: String::new(),
            observed_generation: Some(1),
            last_transition_time: Time(Timestamp::from_second(second).unwrap()),
        }
    }

    #[test]
    fn transition_time_changes_with_status_only() {
        use ConditionType::{Finished, Succeeded};
        let mut conditions = Vec::new();
        set_condition(&mut conditions, condition(Succeeded, "Unknown", "Queued", 1));
        set_condition(&mut conditions, condition(Finished, "False", "Active", 1));
        set_condition(&mut conditions, condition(Succeeded, "Unknown", "Training", 2));
        let first = |conditions: &[Condition]| {
            (conditions.len(), conditions[0].reason.clone(), conditions[0].last_transition_time.0.as_second())
        };
        assert_eq!(first(&conditions), (2, "Training".to_owned(), 1));
        set_condition(&mut conditions, condition(Succeeded, "True", "Succeeded", 3));
        assert_eq!(first(&conditions), (2, "Succeeded".to_owned(), 3));
    }
}
