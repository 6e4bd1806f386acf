//! Measures how much work an agent does, how long the work takes, and how long the process is kept from running;
//! reports it to the coordinator, which compares the agents of a role.
//!
//! A process that is stopped, throttled by its CPU limit, or waits for a processor that others use, wakes up late from
//! a sleep. The sum of these delays is the time in which it was kept from running, also if it had nothing to do.

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_engine::message::AgentReport;
use millrace_engine::types::AgentWork;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::thread_policy::use_normal_policy;
use crate::control::client::MessageSender;
use crate::error::AgentError;

/// Time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Length of the sleeps by which delays are measured.
const SLEEP_TIME: Duration = Duration::from_millis(50);
/// Delays up to this one are those of any timer.
const MAX_TIMER_DELAY: Duration = Duration::from_millis(10);

/// Measures the work of this process. Clones share the measurements.
#[derive(Clone, Debug)]
pub struct WorkMeter {
    work: Arc<Mutex<AgentWork>>,
    /// Sends nothing; the thread that measures delays ends with the last one.
    _running: Sender<Infallible>,
}

/// Ends the reports when it is dropped.
#[derive(Debug)]
pub struct WorkReports(AbortHandle);

impl Drop for WorkReports {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl WorkMeter {
    /// Starts to measure delays.
    ///
    /// # Errors
    /// The system can't start a thread.
    pub fn start() -> Result<Self, AgentError> {
        let (running, ended) = channel();
        let meter = Self { work: Arc::default(), _running: running };
        let work = meter.work.clone();
        let measure = move || {
            use_normal_policy();
            measure_delays(&work, &ended);
        };
        std::thread::Builder::new().name("delays".to_owned()).spawn(measure).map_err(AgentError::local)?;
        Ok(meter)
    }

    /// Runs `work`, which is so many units.
    pub fn measure<T>(&self, units: u64, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        self.add(units, began.elapsed().as_secs_f64());
        result
    }

    /// Adds work of so many units that took so many seconds.
    pub fn add(&self, units: u64, seconds: f64) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.units += units;
        work.seconds += seconds;
    }

    /// Reports the measurements to the coordinator while they change. Must be called in the context of a runtime.
    pub fn report_to(&self, outbox: MessageSender) -> WorkReports {
        let meter = self.clone();
        let report = async move {
            let mut ticks = interval(REPORT_INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut reported = 0;
            loop {
                ticks.tick().await;
                let work = *meter.work.lock().unwrap_or_else(PoisonError::into_inner);
                if std::mem::replace(&mut reported, work.units) != work.units {
                    outbox.send_report(&AgentReport::Worked { work });
                }
            }
        };
        WorkReports(tokio::spawn(report).abort_handle())
    }
}

/// Measures delays until the meter is dropped.
fn measure_delays(work: &Mutex<AgentWork>, ended: &Receiver<Infallible>) {
    loop {
        let began = Instant::now();
        if ended.recv_timeout(SLEEP_TIME) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let elapsed = began.elapsed();
        let mut work = work.lock().unwrap_or_else(PoisonError::into_inner);
        work.observed += elapsed.as_secs_f64();
        work.delayed += delay(elapsed).as_secs_f64();
    }
}

/// Returns for how long a thread was kept from running that meant to sleep for [`SLEEP_TIME`], and woke up after
/// `elapsed`.
fn delay(elapsed: Duration) -> Duration {
    let late = elapsed.saturating_sub(SLEEP_TIME);
    if late > MAX_TIMER_DELAY { late } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_count_beyond_those_of_any_timer() {
        for (elapsed, expected) in [(50, 0), (60, 0), (61, 11), (1050, 1000)] {
            assert_eq!(delay(Duration::from_millis(elapsed)), Duration::from_millis(expected), "{elapsed} ms");
        }
    }

    #[test]
    fn work_of_threads_adds_up() {
        let (running, _ended) = channel();
        let meter = WorkMeter { work: Arc::default(), _running: running };
        let other = meter.clone();
        other.add(3, 0.5);
        assert_eq!(meter.measure(4, || 7), 7);
        let work = *meter.work.lock().unwrap();
        assert!(work.units == 7 && work.seconds > 0.5, "{work:?}");
        assert!(work.observed == 0.0 && work.delayed == 0.0, "{work:?}");
    }
}
