//! Maps the state of a job to its conditions and their reasons, in one table.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::{ConditionType, QueuePlace, State, set_condition};

/// The input of the table, besides the state.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts {
    /// The state's message.
    pub message: String,
    /// Why the params were rejected, if they were.
    pub refused: Option<String>,
    /// Why the record of an earlier admission can't be used, if it can't.
    pub unusable_record: Option<String>,
    /// Why no further attempt may begin with the agents of the record, if the job needs one.
    pub agents_refused: Option<String>,
    /// Where the params differ from the spec, which takes precedence: a sentence.
    pub overruled: Option<String>,
    /// The systems that the job holds.
    pub systems: Vec<String>,
    /// Its place in the queue.
    pub queue: Option<QueuePlace>,
    /// Reason and message of what prevents agents from being ready. `None` if all are ready.
    pub blocker: Option<(String, String)>,
    /// Step and digest of the newest checkpoint.
    pub checkpoint: Option<(u64, String)>,
    /// Why the newest checkpoint could not be written; `None` once one is written.
    pub unsaved: Option<String>,
}

/// Reason of the condition and the event for a checkpoint that could not be written.
pub(super) const WRITE_FAILED: &str = "CheckpointWriteFailed";

/// Reason of conditions of a job whose record this program can't use.
const RECORD_UNUSABLE: &str = "RecordUnusable";

/// Reason of conditions of a job that needs another attempt, if its agents are of a release that may start none.
const AGENTS_REFUSED: &str = "AgentsRefused";

/// Status, reason and message of a condition.
type Row = (&'static str, String, String);

fn row(status: &'static str, reason: &str, message: impl Into<String>) -> Row {
    (status, reason.to_owned(), message.into())
}

/// Returns the conditions of a job in `state`, in the order of [`ConditionType::ALL`].
pub(super) fn table(state: State, facts: &Facts) -> [Row; 8] {
    [
        accepted(facts),
        admitted(state, facts),
        roles_ready(state, facts),
        progressing(state),
        checkpointed(facts),
        suspended(state, facts),
        succeeded(state, facts),
        finished(state),
    ]
}

/// Returns reason and message of what prevents another attempt of a job that was admitted before.
fn obstacle(facts: &Facts) -> Option<(&'static str, &String)> {
    let unusable = facts.unusable_record.as_ref().map(|why| (RECORD_UNUSABLE, why));
    unusable.or_else(|| facts.agents_refused.as_ref().map(|why| (AGENTS_REFUSED, why)))
}

fn accepted(facts: &Facts) -> Row {
    match (&facts.refused, obstacle(facts)) {
        (Some(why), _) => row("False", State::BadParams.as_str(), why),
        (None, Some((reason, why))) => row("False", reason, why),
        (None, None) => {
            let more = facts.overruled.as_ref().map_or_else(String::new, |overruled| format!("; {overruled}"));
            row("True", "PlanFits", format!("the params were understood and the model fits{more}"))
        }
    }
}

fn admitted(state: State, facts: &Facts) -> Row {
    if !facts.systems.is_empty() {
        return row("True", "Granted", format!("the job has {}", facts.systems.join(", ")));
    }
    if let (Some((reason, why)), State::Queued) = (obstacle(facts), state) {
        return row("False", reason, why);
    }
    match (&facts.queue, state) {
        (Some(QueuePlace { reason: Some(reason), message, .. }), State::Queued) => {
            row("False", reason, message.clone().unwrap_or_default())
        }
        (_, State::Queued) => row("False", "Waiting", "the job is in the queue"),
        _ => row("False", state.as_str(), "the job holds no systems"),
    }
}

fn roles_ready(state: State, facts: &Facts) -> Row {
    match (&facts.blocker, state) {
        (None, State::Starting | State::Training | State::Evaluating) => {
            row("True", "AllReady", "every agent of every role is part of the job")
        }
        (Some((reason, message)), State::Starting | State::Training | State::Evaluating) => {
            row("False", reason, message)
        }
        _ => row("False", state.as_str(), idle(state)),
    }
}

/// Describes briefly why no agents work in a state; the condition Succeeded has the complete message.
const fn idle(state: State) -> &'static str {
    match state {
        State::Queued => "no agents run while the job waits",
        State::Suspended => "no agents run while the job is paused",
        State::Suspending | State::Resizing => "the agents save the state of the job and end",
        State::Restarting => "the agents of the attempt that failed end, before others start",
        State::Deleting => "the agents end",
        State::Starting => "the agents start",
        State::Training | State::Evaluating => "the agents work",
        State::Succeeded
        | State::BadParams
        | State::NonFiniteLoss
        | State::OutOfMemory
        | State::DeadlineExceeded
        | State::RetriesExhausted => "the job is over",
    }
}

fn progressing(state: State) -> Row {
    match state {
        State::Training => row("True", "StepsAdvancing", "steps are being committed"),
        State::Evaluating => row("True", "BatchesAdvancing", "batches are being evaluated"),
        _ => row("False", state.as_str(), idle(state)),
    }
}

fn checkpointed(facts: &Facts) -> Row {
    if let Some(why) = &facts.unsaved {
        return row("False", WRITE_FAILED, why);
    }
    match &facts.checkpoint {
        Some((step, digest)) => {
            row("True", "Saved", format!("checkpoint_{step} is whole; its parameters are {digest}"))
        }
        None => row("False", "NoCheckpoint", "no checkpoint has been written yet"),
    }
}

fn suspended(state: State, facts: &Facts) -> Row {
    match state {
        State::Suspended => row("True", "Suspended", &facts.message),
        State::Suspending => row("False", "Suspending", &facts.message),
        _ => row("False", "NotSuspended", "the job was not asked to pause"),
    }
}

fn succeeded(state: State, facts: &Facts) -> Row {
    let status = match state {
        State::Succeeded => "True",
        state if state.is_failure() => "False",
        _ => "Unknown",
    };
    row(status, state.as_str(), &facts.message)
}

fn finished(state: State) -> Row {
    if state.is_final() {
        row("True", state.as_str(), "the job is over; the condition Succeeded says how")
    } else {
        row("False", "Active", "the job is not over")
    }
}

/// Maximum length of a condition's message, as accepted by API servers.
const MESSAGE_CHARS: usize = 4096;

/// Updates `conditions` from the table.
pub(super) fn update(
    conditions: &mut Vec<Condition>,
    state: State,
    facts: &Facts,
    generation: Option<i64>,
    now: Timestamp,
) {
    for (of, (status, reason, message)) in ConditionType::ALL.into_iter().zip(table(state, facts)) {
        let new = Condition {
            type_: of.as_str().to_owned(),
            status: status.to_owned(),
            reason,
            message: message.chars().take(MESSAGE_CHARS).collect(),
            observed_generation: generation,
            last_transition_time: Time(now),
        };
        set_condition(conditions, new);
    }
}
