//! The status of a job that is deleted but still exists.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use millrace_crds::{ConditionType, JobState, TrainJob, TrainJobStatus};

use crate::conditions::set_condition;
use crate::{JobDecision, JobEvent};

/// Prefix of Millrace's own finalizers, which are removed automatically.
const OWN_FINALIZERS: &str = "millrace.dev/";
/// Maximum number of finalizers in a condition.
const MAX_NAMED_FINALIZERS: usize = 5;

/// Decides the status of a deleted job; `None` if it is recorded already.
///
/// A job that had finished keeps its state, as a completed pod does. If finalizers of other programs hold it, the
/// condition `Progressing` has the reason `Deleting` and names them.
///
/// `status.stopTime` is set if the job had begun to train, because its state no longer shows that.
pub fn decide_deleted(job: &TrainJob, now: Timestamp) -> Option<JobDecision> {
    let mut status = job.status.clone().unwrap_or_default();
    let before = status.state();
    if job.metadata.deletion_timestamp.is_none() || before == Some(JobState::Deleting) {
        return None;
    }
    if before.is_some_and(|state| state.is_final()) {
        return decide_held(job, status, now);
    }
    let begun = before.is_some_and(JobState::has_steps);
    status.stop_time = begun.then(|| status.stop_time.take().unwrap_or(Time(now)));
    status.queue = None;
    status.last_observed_time = Some(Time(now));
    let message = match begun {
        true => "the job was deleted: its agents save its state and stop, then its history is archived",
        false => "the job was deleted: its agents are stopping",
    };
    for (condition_type, condition_status) in [
        (ConditionType::RolesReady, "False"),
        (ConditionType::Progressing, "False"),
        (ConditionType::Succeeded, "Unknown"),
    ] {
        set_condition(&mut status.conditions, deleting(job, condition_type, condition_status, message, now));
    }
    Some(decision(status, message))
}

/// Decides the status of a job that had finished when it was deleted: names the finalizers that hold it, once.
fn decide_held(job: &TrainJob, mut status: TrainJobStatus, now: Timestamp) -> Option<JobDecision> {
    let finalizers = job.metadata.finalizers.iter().flatten();
    let others: Vec<&str> = finalizers
        .map(String::as_str)
        .filter(|name| !name.starts_with(OWN_FINALIZERS))
        .take(MAX_NAMED_FINALIZERS)
        .collect();
    let message = format!(
        "the job was deleted; it is removed when these finalizers of other controllers are removed: {}",
        others.join(", ")
    );
    let is_recorded =
        status.condition(ConditionType::Progressing).is_some_and(|condition| condition.message == message);
    if others.is_empty() || is_recorded {
        return None;
    }
    let condition = deleting(job, ConditionType::Progressing, "False", &message, now);
    set_condition(&mut status.conditions, condition);
    Some(decision(status, &message))
}

/// Builds a condition with the reason `Deleting`.
fn deleting(job: &TrainJob, condition_type: ConditionType, status: &str, message: &str, now: Timestamp) -> Condition {
    Condition {
        type_: condition_type.as_str().to_owned(),
        status: status.to_owned(),
        reason: JobState::Deleting.as_str().to_owned(),
        message: message.to_owned(),
        observed_generation: job.metadata.generation,
        last_transition_time: Time(now),
    }
}

/// Builds the decision to record this status and to publish an event.
fn decision(status: TrainJobStatus, message: &str) -> JobDecision {
    let event = JobEvent {
        reason: JobState::Deleting.as_str().to_owned(),
        message: message.to_owned(),
        attempt: status.attempt,
        ..JobEvent::default()
    };
    JobDecision { status, commands: Vec::new(), events: vec![event], requeue_after: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_crds::{StoredParams, TrainJobSpec};

    fn deleted(state: JobState) -> TrainJob {
        let mut job = TrainJob::new("job", TrainJobSpec::new(1, StoredParams::default()));
        job.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let summary = Condition {
            type_: ConditionType::Succeeded.as_str().to_owned(),
            status: "Unknown".to_owned(),
            reason: state.as_str().to_owned(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        };
        job.status = Some(TrainJobStatus { conditions: vec![summary], ..TrainJobStatus::default() });
        job
    }

    #[test]
    fn deleted_job_is_marked_once_and_finished_job_is_unchanged() {
        for state in JobState::ALL {
            let mut job = deleted(state);
            let decided = decide_deleted(&job, Timestamp::UNIX_EPOCH);
            assert_eq!(decided.is_none(), state.is_final() || state == JobState::Deleting, "{state:?}");
            let Some(decided) = decided else { continue };
            assert_eq!(decided.status.state(), Some(JobState::Deleting));
            assert_eq!(decided.status.stop_time.is_some(), state.has_steps(), "{state:?}");
            job.status = Some(decided.status);
            assert_eq!(decide_deleted(&job, Timestamp::UNIX_EPOCH), None);
        }
        let alive = TrainJob::new("job", TrainJobSpec::new(1, StoredParams::default()));
        assert_eq!(decide_deleted(&alive, Timestamp::UNIX_EPOCH), None);
    }
    #[test]
    fn finished_job_keeps_state_and_names_finalizers() {
        let mut job = deleted(JobState::Succeeded);
        job.metadata.finalizers = Some(vec!["millrace.dev/archive".to_owned()]);
        assert_eq!(decide_deleted(&job, Timestamp::UNIX_EPOCH), None, "it goes by itself");
        job.metadata.finalizers = Some(vec!["millrace.dev/archive".to_owned(), "example.com/hold".to_owned()]);
        let decided = decide_deleted(&job, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(decided.status.state(), Some(JobState::Succeeded));
        let progressing = decided.status.condition(ConditionType::Progressing).unwrap();
        assert_eq!(progressing.reason, "Deleting");
        assert!(
            progressing.message.ends_with("of other controllers are removed: example.com/hold"),
            "{}",
            progressing.message
        );
        assert_eq!((decided.events.len(), &decided.events[0].message), (1, &progressing.message));
        job.status = Some(decided.status);
        assert_eq!(decide_deleted(&job, Timestamp::UNIX_EPOCH), None, "it is said once");
    }
}
