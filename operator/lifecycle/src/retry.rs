//! When the next attempt starts after a failed one, and which failures still count.
//!
//! | failure | backoff before the next attempt | systems meanwhile | bounded by |
//! |---|---|---|---|
//! | an agent failed | 0, 2, 4, 8 ... 300 s | kept | `failurePolicy.maxRestarts`, refilled by progress |
//! | the API server rejected the pods | 10, 20, 40 ... 300 s | released | nothing |
//! | no node had room for the pods | 60, 120, 240 ... 1800 s | released | nothing |
//!
//! An attempt makes progress if it trains for [`MIN_PROGRESS_SECONDS`] and saves a later checkpoint than it began from.
//! Everything is decided from the job's status, so that another operator continues with the same backoffs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use millrace_crds::{QueueReason, QueueStatus, RetryStatus, TrainJobStatus};

/// Minimum training time of an attempt that counts as progress, in seconds.
pub(crate) const MIN_PROGRESS_SECONDS: i64 = 600;
/// Backoff before the second restart in a row, and the longest backoff, in seconds.
const RESTART_BACKOFF_SECONDS: (u64, u64) = (2, 300);

/// Why an attempt could not start, if its agents did not cause it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartFailure {
    /// The API server rejected a pod, or another object that the attempt needs.
    Rejected,
    /// No node has room for a pod, or none may run it.
    Unschedulable,
}

impl StartFailure {
    /// Returns the reason in status and events.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "StartRejected",
            Self::Unschedulable => "Unschedulable",
        }
    }

    /// Returns the first and the longest backoff, in seconds. The backoff is longer if no node has room, because such a
    /// job has held its systems for the whole startup deadline before each backoff.
    const fn backoff_bounds(self) -> (u64, u64) {
        match self {
            Self::Rejected => (10, 300),
            Self::Unschedulable => (60, 1800),
        }
    }

    /// Returns the backoff after this many failed starts in a row, in seconds.
    pub(crate) fn backoff(self, failed_starts: u32) -> u64 {
        doubled(self.backoff_bounds(), failed_starts.saturating_sub(1))
    }
}

/// Returns the backoff before the `restarts`-th restart without progress, in seconds.
pub(crate) fn restart_backoff(restarts: u32) -> u64 {
    restarts.checked_sub(2).map_or(0, |times| doubled(RESTART_BACKOFF_SECONDS, times))
}

/// Returns `first`, doubled `times` times, but at most `most`.
fn doubled((first, maximum): (u64, u64), times: u32) -> u64 {
    2_u64
        .checked_pow(times)
        .and_then(|factor| first.checked_mul(factor))
        .map_or(maximum, |seconds| seconds.min(maximum))
}

/// Returns the time `pause` seconds after `now`, which is cut to a whole second first.
pub(crate) fn after(now: Timestamp, pause: u64) -> Time {
    let pause = SignedDuration::from_secs(i64::try_from(pause).unwrap_or(i64::MAX));
    let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Time(second.checked_add(pause).unwrap_or(Timestamp::MAX))
}

/// Returns the seconds until the next attempt may start; `None` if it may start at `now`.
pub fn seconds_until_next_attempt(retry: &RetryStatus, now: Timestamp) -> Option<u64> {
    let until = retry.next_attempt_time.as_ref()?.0;
    let remaining = until.duration_since(now);
    // A fraction of a second counts as one.
    let seconds = remaining.as_secs() + i64::from(remaining.subsec_nanos() > 0);
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)
}

/// Returns whether an attempt that trained for this time and saved this step made progress.
pub(crate) fn is_progress(retry: &RetryStatus, trained_seconds: i64, saved_step: Option<u64>) -> bool {
    trained_seconds >= MIN_PROGRESS_SECONDS && saved_step > retry.first_step
}

/// Removes the backoff of the next attempt.
pub(crate) fn clear_backoff(retry: &mut RetryStatus) {
    (retry.next_attempt_time, retry.requeue, retry.reason, retry.message) = (None, false, None, None);
}

/// Returns the place of a job in backoff, which blocks no other job; `None` if its next attempt is due.
pub fn backoff_place(status: &TrainJobStatus, now: Timestamp) -> Option<QueueStatus> {
    let retry = status.retry.as_ref()?;
    seconds_until_next_attempt(retry, now)?;
    let attempt = status.attempt.unwrap_or(0) + 1;
    let time = retry.next_attempt_time.as_ref()?.0;
    let reason = retry.message.as_deref().unwrap_or("the last attempt failed");
    Some(QueueStatus {
        position: None,
        reason: Some(QueueReason::BackingOff.as_str().to_owned()),
        message: Some(format!("attempt {attempt} starts no earlier than {time}: {reason}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn pauses_double_up_to_a_cap_and_never_overflow() {
        let restarts: Vec<u64> = (1..=10).map(restart_backoff).collect();
        assert_eq!(restarts, [0, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        let delays: Vec<u64> = (1..=7).map(|starts| StartFailure::Rejected.backoff(starts)).collect();
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!((1..=6).map(|starts| StartFailure::Unschedulable.backoff(starts)).max(), Some(1800));
        assert_eq!((restart_backoff(u32::MAX), StartFailure::Rejected.backoff(u32::MAX)), (300, 300));
    }

    #[test]
    fn backoff_ends_at_time_in_status() {
        let retry = RetryStatus { next_attempt_time: Some(after(at(100), 10)), ..RetryStatus::default() };
        let status = TrainJobStatus { attempt: Some(3), retry: Some(retry.clone()), ..TrainJobStatus::default() };
        let entry = backoff_place(&status, at(109)).unwrap();
        assert_eq!(entry.reason.as_deref(), Some("BackingOff"));
        assert!(entry.message.unwrap().starts_with("attempt 4 starts no earlier than 1970-01-01T00:01:50Z"));
        assert_eq!(
            (seconds_until_next_attempt(&retry, at(100)), seconds_until_next_attempt(&retry, at(109))),
            (Some(10), Some(1))
        );
        assert_eq!((seconds_until_next_attempt(&retry, at(110)), backoff_place(&status, at(110))), (None, None));
        let between = at(108) + SignedDuration::from_millis(500);
        assert_eq!(seconds_until_next_attempt(&retry, between), Some(2), "never too early");
    }

    #[test]
    fn progress_takes_time_and_a_later_checkpoint() {
        let retry = RetryStatus { first_step: Some(100), ..RetryStatus::default() };
        for (trained, saved, progress) in
            [(600, Some(101), true), (599, Some(101), false), (10_000, Some(100), false), (10_000, None, false)]
        {
            assert_eq!(is_progress(&retry, trained, saved), progress, "{trained} {saved:?}");
        }
        assert!(is_progress(&RetryStatus::default(), 600, Some(0)), "the first checkpoint of all");
    }
}
