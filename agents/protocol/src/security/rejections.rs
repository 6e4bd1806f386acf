//! Limits the logging of rejected connections, so that repeated attempts can't fill a log.

use std::time::{Duration, Instant};

/// Maximum number of rejections logged in each period.
const MAX_LOGGED_PER_PERIOD: u32 = 10;
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// Decides which rejections are logged: at most ten per minute.
#[derive(Debug, Default)]
pub struct RejectionLog {
    since: Option<Instant>,
    logged: u32,
    suppressed: u64,
}

impl RejectionLog {
    /// Records a rejection at `now`. Returns `None` if it must not be logged, otherwise the number of rejections that
    /// were not logged since the previous one that was.
    pub fn record(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= LOG_PERIOD) {
            (self.since, self.logged) = (Some(now), 0);
        }
        if self.logged == MAX_LOGGED_PER_PERIOD {
            self.suppressed += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logging_is_limited_to_ten_lines_a_minute() {
        let (mut log, start) = (RejectionLog::default(), Instant::now());
        let messages: Vec<_> = (0..100_000).filter_map(|at| log.record(start + Duration::from_micros(at))).collect();
        assert_eq!(messages, [0; 10]);
        assert_eq!(log.record(start + LOG_PERIOD), Some(99_990));
        assert_eq!(log.record(start + LOG_PERIOD), Some(0));
    }
}
