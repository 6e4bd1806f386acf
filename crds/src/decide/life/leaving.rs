//! A job that was deleted and is not gone yet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use super::super::{Decision, Event};
use crate::{ConditionType, State, TrainJob, set_condition};

/// Decides what to say of a job that is deleted; `None` where it is said, or the job was over.
///
/// `status.stopTime` stays where the job had begun to train: by then its state tells nothing of that any more.
pub fn decide_leaving(job: &TrainJob, now: Timestamp) -> Option<Decision> {
    let mut status = job.status.clone().unwrap_or_default();
    let before = status.state();
    if job.metadata.deletion_timestamp.is_none() || before.is_some_and(|state| state.is_final()) {
        return None;
    }
    if before == Some(State::Deleting) {
        return None;
    }
    let begun = before.is_some_and(State::has_steps);
    status.stop_time = begun.then(|| status.stop_time.take().unwrap_or(Time(now)));
    status.queue = None;
    status.last_observed_time = Some(Time(now));
    let message = match begun {
        true => "the job was deleted: its agents save its state and end, then its history is kept",
        false => "the job was deleted: its agents end",
    };
    for (of, word) in [
        (ConditionType::RolesReady, "False"),
        (ConditionType::Progressing, "False"),
        (ConditionType::Succeeded, "Unknown"),
    ] {
        let condition = Condition {
            type_: of.as_str().to_owned(),
            status: word.to_owned(),
            reason: State::Deleting.as_str().to_owned(),
            message: message.to_owned(),
            observed_generation: job.metadata.generation,
            last_transition_time: Time(now),
        };
        set_condition(&mut status.conditions, condition);
    }
    let event = Event {
        reason: State::Deleting.as_str().to_owned(),
        message: message.to_owned(),
        attempt: status.attempt,
        ..Event::default()
    };
    Some(Decision { status, commands: Vec::new(), events: vec![event], look_again: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StoredParams, TrainJobSpec, TrainJobStatus};

    fn deleted(state: State) -> TrainJob {
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
    fn a_deleted_job_says_so_once_and_one_that_is_over_stays_what_it_was() {
        for state in State::ALL {
            let mut job = deleted(state);
            let decided = decide_leaving(&job, Timestamp::UNIX_EPOCH);
            assert_eq!(decided.is_none(), state.is_final() || state == State::Deleting, "{state:?}");
            let Some(decided) = decided else { continue };
            assert_eq!(decided.status.state(), Some(State::Deleting));
            assert_eq!(decided.status.stop_time.is_some(), state.has_steps(), "{state:?}");
            job.status = Some(decided.status);
            assert_eq!(decide_leaving(&job, Timestamp::UNIX_EPOCH), None);
        }
        let alive = TrainJob::new("job", TrainJobSpec::new(1, StoredParams::default()));
        assert_eq!(decide_leaving(&alive, Timestamp::UNIX_EPOCH), None);
    }
}
