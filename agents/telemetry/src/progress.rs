//! Progress lines of a run, in the format that users of the real appliance know, and the rates in them.
//!
//! ```text
//! | Train Device=CSX, Step=50, Loss=8.31250, Rate=69.37 samples/sec, GlobalRate=69.37 samples/sec
//! | Eval Device=CSX, GlobalStep=1000, Batch=100, Loss=3.10000, Rate=80.12 samples/sec, GlobalRate=79.90 samples/sec
//! ```
//!
//! `Rate` is the rate over the last log interval, exponentially smoothed; `GlobalRate` is the rate since the start.
//! Times are arguments: nothing here reads a clock.

use std::fmt;
use std::time::{Duration, Instant};

/// Weight of the previous smoothed rate in the next one.
const SMOOTHING: f64 = 0.4;

/// Samples per second at one log line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Rate over the last log interval, smoothed: 0.6 of the interval's own rate plus 0.4 of the previous smoothed
    /// rate.
    pub rate: f64,
    /// Rate since the meter started.
    pub global_rate: f64,
}

/// Counts samples and computes their rates.
#[derive(Clone, Debug)]
pub struct RateMeter {
    start: Instant,
    total: u64,
    interval_start: Instant,
    interval: u64,
    smoothed: Option<f64>,
}

impl RateMeter {
    /// Creates a meter that starts at `now`.
    pub fn new(now: Instant) -> Self {
        Self { start: now, total: 0, interval_start: now, interval: 0, smoothed: None }
    }

    pub fn add(&mut self, samples: u64) {
        self.total += samples;
        self.interval += samples;
    }

    /// Excludes `pause` from all rates: time in which no samples were processed, such as an evaluation between two
    /// training steps.
    pub fn exclude(&mut self, pause: Duration) {
        self.start += pause;
        self.interval_start += pause;
    }

    /// Ends the log interval at `now` and returns the rates.
    pub fn rates(&mut self, now: Instant) -> Rates {
        let seconds = now.saturating_duration_since(self.interval_start).as_secs_f64();
        if seconds > 0.0 {
            let rate = self.interval as f64 / seconds;
            self.smoothed = Some(match self.smoothed {
                None => rate,
                Some(previous) => (1.0 - SMOOTHING) * rate + SMOOTHING * previous,
            });
            self.interval_start = now;
            self.interval = 0;
        }
        Rates { rate: self.smoothed.unwrap_or(0.0), global_rate: per_second(self.total, self.elapsed(now)) }
    }

    /// Returns the samples counted since the start.
    pub fn total_samples(&self) -> u64 {
        self.total
    }

    /// Returns the time since the start, without excluded pauses.
    pub fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.start)
    }
}

/// Returns `count` per second of `elapsed`; 0 if no time has elapsed.
pub fn per_second(count: u64, elapsed: Duration) -> f64 {
    let seconds = elapsed.as_secs_f64();
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// Estimates how long `samples` more samples take at `global_rate`; `None` if the rate is 0 or not finite.
pub fn estimated_time(samples: u64, global_rate: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(samples as f64 / global_rate).ok()
}

/// The estimated remaining times at the end of a progress line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRemaining {
    /// Remaining time of the current training loop or evaluation.
    pub of_loop: Duration,
    /// Remaining time of the whole run.
    pub of_run: Duration,
    /// Whether part of the run has no estimate yet, so that the run takes longer than `of_run`.
    pub of_run_is_lower_bound: bool,
}

/// A progress line of training. [`fmt::Display`] writes it without a line feed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainLine {
    pub step: u64,
    /// Loss of the last committed step.
    pub loss: f32,
    /// Rates as returned by [`RateMeter::rates`].
    pub rates: Rates,
    /// Estimated remaining times; `None` leaves them out.
    pub remaining: Option<TimeRemaining>,
}

/// A progress line of an evaluation. [`fmt::Display`] writes it without a line feed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvalLine {
    /// Number of committed training steps in the evaluated parameters.
    pub global_step: u64,
    /// Number of batches evaluated so far.
    pub batch: u64,
    /// Loss of the last batch.
    pub loss: f32,
    /// Rates as returned by [`RateMeter::rates`].
    pub rates: Rates,
    /// Estimated remaining times; `None` leaves them out.
    pub remaining: Option<TimeRemaining>,
}

impl fmt::Display for TrainLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "| Train Device=CSX, Step={}", self.step)?;
        write_rates(f, self.loss, self.rates, self.remaining)
    }
}

impl fmt::Display for EvalLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "| Eval Device=CSX, GlobalStep={}, Batch={}", self.global_step, self.batch)?;
        write_rates(f, self.loss, self.rates, self.remaining)
    }
}

fn write_rates(f: &mut fmt::Formatter<'_>, loss: f32, rates: Rates, remaining: Option<TimeRemaining>) -> fmt::Result {
    write!(
        f,
        ", Loss={loss:.5}, Rate={} samples/sec, GlobalRate={} samples/sec",
        format_rate(rates.rate),
        format_rate(rates.global_rate),
    )?;
    if let Some(remaining) = remaining {
        write!(
            f,
            ", LoopTimeRemaining={}, TimeRemaining{}{}",
            format_duration(remaining.of_loop),
            if remaining.of_run_is_lower_bound { '>' } else { '=' },
            format_duration(remaining.of_run),
        )?;
    }
    Ok(())
}

/// Formats the result line of an evaluation: `Avg Eval Loss: 3.1, GlobalStep=100`, with the shortest decimal of the
/// f32.
pub fn avg_eval_loss(global_step: u64, loss: f32) -> String {
    format!("Avg Eval Loss: {loss}, GlobalStep={global_step}")
}

/// Formats a rate for a progress line: C's `%.2f`, or `%.3g` below 1.
pub fn format_rate(rate: f64) -> String {
    if rate < 1.0 { three_significant(rate) } else { format!("{rate:.2}") }
}

/// Formats a value below 1 like C's `%.3g`: three significant digits, no trailing zeros, `1.5e-05` below 1e-4.
fn three_significant(value: f64) -> String {
    // Rust writes `1.50e-5`. Rounding to three digits comes first, so that 0.9996 becomes 1.
    let scientific = format!("{value:.2e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific; // inf, NaN
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && exponent < -4 {
        let digits = trim_zeros(digits);
        return format!("{digits}e-{:02}", -exponent);
    }
    let decimals = usize::try_from(2 - exponent).unwrap_or(0);
    trim_zeros(&format!("{value:.decimals$}")).to_owned()
}

fn trim_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

/// Formats a duration as `1:18:05`, or `2 days, 0:00:09` from one day on, rounded to seconds.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs() + u64::from(duration.subsec_millis() >= 500);
    let (days, seconds) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    match days {
        0 => clock,
        1 => format!("1 day, {clock}"),
        days => format!("{days} days, {clock}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_to_the_letter() {
        let rates = Rates { rate: 69.374, global_rate: 69.366 };
        let mut line = TrainLine { step: 50, loss: 8.3125, rates, remaining: None };
        assert_eq!(
            line.to_string(),
            "| Train Device=CSX, Step=50, Loss=8.31250, Rate=69.37 samples/sec, GlobalRate=69.37 samples/sec"
        );
        line.remaining = Some(TimeRemaining {
            of_loop: Duration::from_secs(4685),
            of_run: Duration::from_secs(4685),
            of_run_is_lower_bound: true,
        });
        assert!(line.to_string().ends_with("samples/sec, LoopTimeRemaining=1:18:05, TimeRemaining>1:18:05"));
        let line = EvalLine { global_step: 1000, batch: 100, loss: 3.1, rates, remaining: None };
        assert_eq!(
            line.to_string(),
            "| Eval Device=CSX, GlobalStep=1000, Batch=100, Loss=3.10000, Rate=69.37 samples/sec, GlobalRate=69.37 samples/sec"
        );
        assert_eq!(avg_eval_loss(100, 3.1), "Avg Eval Loss: 3.1, GlobalStep=100");
    }

    /// The right column is the output of C's printf.
    #[test]
    fn rates_and_durations_as_c_and_python_write_them() {
        for (rate, text) in [
            (1234.567, "1234.57"),
            (1.0, "1.00"),
            (0.9996, "1"),
            (0.9994, "0.999"),
            (0.5, "0.5"),
            (0.06944, "0.0694"),
            (0.000_123_46, "0.000123"),
            (0.000_012_3, "1.23e-05"),
            (0.000_099_999, "0.0001"),
            (1e-10, "1e-10"),
            (0.0, "0"),
        ] {
            assert_eq!(format_rate(rate), text);
        }
        for (seconds, text) in
            [(0.4, "0:00:00"), (4685.5, "1:18:06"), (86_400.0, "1 day, 0:00:00"), (180_009.0, "2 days, 2:00:09")]
        {
            assert_eq!(format_duration(Duration::from_secs_f64(seconds)), text);
        }
    }

    #[test]
    fn rate_is_smoothed_and_global_rate_is_not() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut meter = RateMeter::new(start);
        assert_eq!(meter.rates(start), Rates::default());

        meter.add(100);
        let first = meter.rates(at(10));
        meter.add(200);
        meter.exclude(Duration::from_secs(5));
        let second = meter.rates(at(25));

        assert_eq!((first.rate, first.global_rate), (10.0, 10.0));
        assert_eq!((second.rate, second.global_rate), (0.6 * 20.0 + 0.4 * 10.0, 15.0));
        assert_eq!(meter.rates(at(25)), second);
        assert_eq!(estimated_time(300, second.global_rate), Some(Duration::from_secs(20)));
        assert_eq!(estimated_time(300, 0.0), None);
    }
}
