//! The one table that maps what is so to conditions and their reasons.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::{ConditionType, QueuePlace, State, set_condition};

/// What the table needs to know besides the state.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts {
    /// The state's sentence.
    pub message: String,
    /// Why the params were refused, if they were.
    pub refused: Option<String>,
    /// Why the record of an earlier admission can't be used, if it can't.
    pub unusable_record: Option<String>,
    /// Why no further attempt may begin with the agents of the record, where that keeps the job from what it is to do.
    pub agents_refused: Option<String>,
    /// Where params say something else than the spec, which holds: a sentence.
    pub overruled: Option<String>,
    /// The systems that are the job's.
    pub systems: Vec<String>,
    /// Its place in the queue.
    pub queue: Option<QueuePlace>,
    /// What keeps agents from being ready: a word and a sentence. `None` when all are ready.
    pub blocker: Option<(String, String)>,
    /// The newest checkpoint: step and digest.
    pub checkpoint: Option<(u64, String)>,
    /// Why the newest one could not be written, while that is so.
    pub unsaved: Option<String>,
}

/// The reason of the condition and of the event of a checkpoint that could not be written.
pub(super) const WRITE_FAILED: &str = "CheckpointWriteFailed";

/// The reason of conditions of a job whose record can't be used by this program.
const RECORD_UNUSABLE: &str = "RecordUnusable";

/// The reason of conditions of a job that waits because its agents are of a release that may start no attempt.
const AGENTS_REFUSED: &str = "AgentsRefused";

/// A condition's status, reason and message.
type Row = (&'static str, String, String);

fn row(status: &'static str, reason: &str, message: impl Into<String>) -> Row {
    (status, reason.to_owned(), message.into())
}

/// The rows for a job in `state`, in the order of [`ConditionType::ALL`].
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

/// What keeps a job that was admitted before from another attempt: a reason and a sentence.
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

/// Why no agents work in a state, in a few words: the whole story stands in the condition Succeeded.
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

/// Longest message of a condition that an API server takes.
const MESSAGE_CHARS: usize = 4096;

/// Brings `conditions` in line with the table.
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
