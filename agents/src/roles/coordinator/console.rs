//! What the user sees of a run: progress lines on stdout, a bar and log lines on stderr.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The run's voice. Clones speak through the same bar.
#[derive(Clone)]
pub struct Console {
    bar: ProgressBar,
}

impl Console {
    /// A quiet console; its bar is drawn on a terminal only.
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.finish_and_clear();
        Self { bar }
    }

    /// A result or progress line on stdout.
    pub fn line(&self, line: impl std::fmt::Display) {
        self.bar.suspend(|| {
            // A closed stdout is nobody's business: the files in model_dir have it all.
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        });
    }

    /// A log line on stderr.
    pub fn log(&self, line: &str) {
        self.bar.suspend(|| millrace_telemetry::logs::print_to_stderr(line));
    }

    /// Shows work that counts up to `total`.
    pub fn begin(&self, message: &'static str, total: u64) {
        let style = ProgressStyle::with_template("{msg}: {percent:>3}%|{wide_bar}| {pos}/{len} [{elapsed}<{eta}]");
        self.bar.reset();
        self.bar.set_length(total);
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar.set_message(message);
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    /// So much of it is done.
    pub fn advance(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// The work is done.
    pub fn end(&self) {
        self.bar.disable_steady_tick();
        self.bar.finish_and_clear();
    }
}
