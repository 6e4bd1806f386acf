//! The terminal output of a run: progress lines on stdout, a progress bar and log lines on stderr.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace_telemetry::logs::Level;

/// Writes to the terminal. Clones share the progress bar.
#[derive(Clone)]
pub struct Console {
    bar: ProgressBar,
}

impl Console {
    /// Creates a console without a visible bar. The bar is drawn on terminals only.
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.finish_and_clear();
        Self { bar }
    }

    /// Prints a result or progress line on stdout.
    pub fn line(&self, line: impl std::fmt::Display) {
        self.bar.suspend(|| {
            // A closed stdout is not an error: the files in model_dir have the same information.
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        });
    }

    /// Prints a log line on stderr.
    pub fn log(&self, line: &str) {
        self.bar.suspend(|| millrace_telemetry::logs::print_to_stderr(line));
    }

    /// Shows a bar for work of `total` units.
    pub fn begin(&self, message: &'static str, total: u64) {
        let style = ProgressStyle::with_template("{msg}: {percent:>3}%|{wide_bar}| {pos}/{len} [{elapsed}<{eta}]");
        self.bar.reset();
        self.bar.set_length(total);
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar.set_message(message);
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    /// Updates the bar.
    pub fn advance(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.disable_steady_tick();
        self.bar.finish_and_clear();
    }
}

/// Returns whether the console shows a log record of an agent: errors, and warnings unless they are about an epoch that
/// is over. When an epoch or the run ends, agents close their links one after the other, and those that learn of the
/// end later report links that failed. `current` is the current epoch; `None` if there is none.
pub fn is_shown(level: Level, epoch: Option<&str>, current: Option<&str>) -> bool {
    match level {
        Level::Error => true,
        Level::Warning => epoch.is_none_or(|epoch| Some(epoch) == current),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_a_past_epoch_are_not_shown() {
        let current = Some("1.2");
        assert!(is_shown(Level::Warning, Some("1.2"), current));
        assert!(is_shown(Level::Warning, None, current) && is_shown(Level::Warning, None, None));
        assert!(!is_shown(Level::Warning, Some("1.1"), current), "the next epoch has begun");
        assert!(!is_shown(Level::Warning, Some("1.2"), None), "the run has ended");
        assert!(is_shown(Level::Error, Some("1.1"), current));
        assert!(!is_shown(Level::Info, None, current));
    }
}
