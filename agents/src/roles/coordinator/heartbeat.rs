//! Produces a progress line if a run has reported nothing for a while: what it is doing, for how long, and the expected
//! time.

use std::time::{Duration, Instant};

use millrace_emulator::report::format_rough_duration;
use millrace_telemetry::progress::format_duration;

/// Time without other output after which a line is due, and interval between two such lines.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(30);

/// What a run is doing until its next output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunActivity {
    /// Waits for its agents.
    Gathering,
    /// Shards load parameters, and links are established.
    Loading,
    Training {
        /// Number of committed steps.
        step: u64,
        /// The last step of the run.
        total: u64,
    },
    /// Computes the batch after `batches`.
    Evaluating {
        /// Number of finished batches.
        batches: u64,
    },
    /// Only waits for the checkpoint of `step`: the step is the last one, or the run is stopping. A checkpoint that is
    /// written while training continues is no activity of its own.
    Saving {
        /// Number of committed steps.
        step: u64,
    },
}

impl RunActivity {
    /// Returns the activity after the commit of `step` in a run that ends with step `total`.
    pub const fn after_step(step: u64, total: u64, is_stopping: bool) -> Self {
        if is_stopping || step >= total { Self::Saving { step } } else { Self::Training { step, total } }
    }
}

/// Decides when a progress line is due, and formats it.
#[derive(Debug)]
pub struct ProgressHeartbeat {
    activity: RunActivity,
    /// When the run began `activity`.
    since: Instant,
    /// When the user last received output.
    last_message_at: Instant,
    /// Estimated seconds of a training step on this host.
    estimate: Option<f64>,
    /// Seconds of the last training step.
    last_step: Option<f64>,
}

impl ProgressHeartbeat {
    /// Creates the heartbeat of a run that waits for its agents from `now` on. `estimate` is the estimated seconds of a
    /// step on this host, if known.
    pub fn new(now: Instant, estimate: Option<f64>) -> Self {
        Self { activity: RunActivity::Gathering, since: now, last_message_at: now, estimate, last_step: None }
    }

    /// Records that the run begins another activity, or the next part of the same one.
    pub fn set_activity(&mut self, activity: RunActivity, now: Instant) {
        if let (RunActivity::Training { step: before, .. }, RunActivity::Training { step, .. }) =
            (self.activity, activity)
            && step == before + 1
        {
            self.last_step = Some(now.duration_since(self.since).as_secs_f64());
        }
        (self.activity, self.since, self.last_message_at) = (activity, now, now);
    }

    /// Returns when a line is due, unless there is other output before.
    pub fn due(&self) -> Instant {
        self.last_message_at + HEARTBEAT_INTERVAL
    }

    /// Returns the line if it is due.
    pub fn next_message(&mut self, now: Instant) -> Option<String> {
        if now < self.due() {
            return None;
        }
        self.last_message_at = now;
        let elapsed = format_duration(now.duration_since(self.since));
        Some(match self.activity {
            RunActivity::Gathering => format!("Still waiting for agents: {elapsed} so far."),
            RunActivity::Loading => {
                format!("Still loading parameters into MemoryX and connecting agents: {elapsed} so far.")
            }
            RunActivity::Training { step, total } => {
                format!("Still computing step {} of {total}: {elapsed} so far{}.", step + 1, self.expected())
            }
            RunActivity::Evaluating { batches } => format!("Still evaluating batch {}: {elapsed} so far.", batches + 1),
            RunActivity::Saving { step } => format!("Still saving the checkpoint of step {step}: {elapsed} so far."),
        })
    }

    /// Returns the expected time of a step, as the end of a sentence; empty if unknown.
    fn expected(&self) -> String {
        match (self.last_step, self.estimate) {
            (Some(seconds), _) => format!("; the step before it took {}", format_rough_duration(seconds)),
            (None, Some(seconds)) => {
                format!("; about {} a step are estimated for this host", format_rough_duration(seconds))
            }
            (None, None) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeat_reports_the_current_activity() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut heartbeat = ProgressHeartbeat::new(start, Some(840.0));
        assert_eq!(heartbeat.next_message(at(29)), None);
        assert_eq!(heartbeat.next_message(at(30)).unwrap(), "Still waiting for agents: 0:00:30 so far.");
        assert_eq!((heartbeat.next_message(at(31)), heartbeat.due()), (None, at(60)));
        heartbeat.set_activity(RunActivity::Training { step: 0, total: 20 }, at(40));
        assert_eq!(heartbeat.due(), at(70), "there was news");
        assert_eq!(
            heartbeat.next_message(at(100)).unwrap(),
            "Still computing step 1 of 20: 0:01:00 so far; about 14 min a step are estimated for this host."
        );
        heartbeat.set_activity(RunActivity::Training { step: 1, total: 20 }, at(940));
        assert_eq!(
            heartbeat.next_message(at(970)).unwrap(),
            "Still computing step 2 of 20: 0:00:30 so far; the step before it took 15 min."
        );
        heartbeat.set_activity(RunActivity::Evaluating { batches: 3 }, at(980));
        assert_eq!(heartbeat.next_message(at(1020)).unwrap(), "Still evaluating batch 4: 0:00:40 so far.");
    }

    #[test]
    fn no_step_is_computed_after_the_last_one_or_a_stop() {
        assert_eq!(RunActivity::after_step(19, 20, false), RunActivity::Training { step: 19, total: 20 });
        let start = Instant::now();
        let mut heartbeat = ProgressHeartbeat::new(start, None);
        for (step, is_stopping) in [(20, false), (7, true)] {
            let activity = RunActivity::after_step(step, 20, is_stopping);
            heartbeat.set_activity(activity, start);
            let message = heartbeat.next_message(start + HEARTBEAT_INTERVAL).unwrap();
            assert_eq!(message, format!("Still saving the checkpoint of step {step}: 0:00:30 so far."));
        }
    }
}
