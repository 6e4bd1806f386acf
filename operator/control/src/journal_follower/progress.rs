//! Writes a job's progress to its status: separately from decisions, and rarely enough for any number of jobs.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use millrace_crds::JobProgress;
use millrace_telemetry::metrics_log::MetricPoint;

use super::FollowTarget;
use crate::world::World;

/// Minimum time between two writes for one job.
const PROGRESS_WRITE_INTERVAL: Duration = Duration::from_secs(3);

/// Collects metrics and writes the progress at intervals.
pub(super) struct ProgressWriter {
    attempt: u32,
    trains: bool,
    batch: Option<f64>,
    total_steps: Option<u64>,
    /// Number of steps in this attempt, and their total seconds and tokens.
    steps: u64,
    seconds: f64,
    tokens: u64,
    progress: JobProgress,
    changed: bool,
    written: Option<tokio::time::Instant>,
}

impl ProgressWriter {
    pub(super) fn new(target: &FollowTarget) -> Self {
        Self {
            attempt: target.attempt,
            trains: target.trains,
            batch: target.batch.map(|samples| samples as f64),
            total_steps: target.total_steps,
            steps: 0,
            seconds: 0.0,
            tokens: 0,
            progress: target.known_progress.clone().unwrap_or_default(),
            changed: false,
            written: None,
        }
    }

    /// Sets the step that the run trains to, as reported by its coordinator: if epochs end the run, the number is not
    /// known before.
    pub(super) fn total_steps(&mut self, total: Option<u64>) {
        self.total_steps = total.or(self.total_steps);
    }

    pub(super) fn point(&mut self, point: &MetricPoint, time: Timestamp) {
        self.progress.attempt = Some(self.attempt);
        self.progress.last_update_time = Some(Time(time));
        self.progress.total_steps = self.total_steps;
        match point {
            MetricPoint::Train(train) => {
                self.steps += 1;
                self.seconds += train.seconds;
                self.tokens += train.tokens;
                self.progress.step = Some(train.step);
                self.progress.loss = Some(train.loss.to_string());
                self.progress.skipped_batches = Some(train.skipped_batches).filter(|skipped| *skipped > 0);
                self.rates(time);
            }
            MetricPoint::Eval(eval) => {
                // A follower that starts late may receive an evaluation that is older than the progress it knows.
                self.progress.step = self.progress.step.max(Some(eval.step));
                // A job that also trains shows its training loss.
                if !self.trains && self.steps == 0 {
                    self.progress.loss = Some(eval.loss.to_string());
                }
            }
        }
        self.changed = true;
    }

    /// Removes the rates, because no step is executed at present.
    pub(super) fn pause(&mut self) {
        let progress = &mut self.progress;
        let (rate, tokens, finish) =
            (progress.rate.take(), progress.tokens_per_second.take(), progress.estimated_finish_time.take());
        self.changed |= rate.is_some() || tokens.is_some() || finish.is_some();
    }

    fn rates(&mut self, time: Timestamp) {
        if self.seconds <= 0.0 {
            return;
        }
        let per_step = self.seconds / self.steps as f64;
        self.progress.rate = self.batch.map(|samples| format!("{:.2}", samples / per_step));
        self.progress.tokens_per_second = Some((self.tokens as f64 / self.seconds) as u64);
        let remaining = self.total_steps.zip(self.progress.step).map(|(total, step)| total.saturating_sub(step));
        let remaining =
            remaining.and_then(|remaining| SignedDuration::try_from_secs_f64(remaining as f64 * per_step).ok());
        self.progress.estimated_finish_time =
            remaining.and_then(|remaining| time.checked_add(remaining).ok()).map(Time);
    }

    /// Waits until a write is due.
    pub(super) async fn due(&self) {
        if !self.changed {
            return std::future::pending().await;
        }
        if let Some(written) = self.written {
            tokio::time::sleep_until(written + PROGRESS_WRITE_INTERVAL).await;
        }
    }

    /// Writes the progress if it has changed. A failed write is repeated after the usual interval.
    pub(super) async fn flush<W: World>(&mut self, world: &W, target: &FollowTarget) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        self.written = Some(tokio::time::Instant::now());
        if let Err(error) = world.record_progress(&target.job, &target.uid, &self.progress).await {
            let (job, attempt) = (&target.job, target.attempt);
            tracing::warn!(%job, attempt, "can't write the job's progress: {error}");
            self.changed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector::ObjectRef;
    use millrace_telemetry::metrics_log::{EvalMetrics, TrainMetrics};

    use super::*;

    fn train(step: u64) -> MetricPoint {
        let (learning_rate, grad_norm, seconds, rate) = (0.1, 1.0, 0.5, 2.0);
        MetricPoint::Train(TrainMetrics {
            step,
            loss: 2.0,
            learning_rate,
            skipped_batches: 0,
            grad_norm,
            tokens: 64,
            seconds,
            rate,
            metrics: [].into(),
        })
    }

    fn eval(step: u64) -> MetricPoint {
        let metrics = Default::default();
        MetricPoint::Eval(EvalMetrics { step, loss: 3.0, tokens: 64, seconds: 0.5, rate: 2.0, metrics })
    }

    /// The next leader receives the newest evaluation first, which may be older than the progress that its predecessor
    /// wrote.
    #[test]
    fn progress_does_not_go_back_when_another_operator_leads() {
        let recorded =
            JobProgress { attempt: Some(1), step: Some(2280), loss: Some("1.5".to_owned()), ..JobProgress::default() };
        let target = FollowTarget {
            job: ObjectRef::new("job"),
            uid: "uid".to_owned(),
            attempt: 1,
            batch: Some(8),
            trains: true,
            total_steps: Some(2300),
            known_progress: Some(recorded),
        };
        let mut writer = ProgressWriter::new(&target);
        writer.point(&eval(2200), Timestamp::UNIX_EPOCH);
        assert_eq!((writer.progress.step, writer.progress.loss.as_deref()), (Some(2280), Some("1.5")));
        writer.point(&train(2290), Timestamp::UNIX_EPOCH);
        assert_eq!((writer.progress.step, writer.progress.loss.as_deref()), (Some(2290), Some("2")));
        assert_eq!(writer.progress.rate.as_deref(), Some("16.00"));
        writer.changed = false;
        writer.pause();
        assert_eq!((writer.progress.step, writer.progress.rate, writer.changed), (Some(2290), None, true));
    }
}
