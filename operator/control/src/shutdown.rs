//! Shutdown signals and logging of a program that runs the loop.

use std::io;

use k8s_openapi::jiff::Timestamp;
use millrace_telemetry::logs::LogFormat;
use millrace_traces::Traces;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::Layer;

/// Returns a channel that becomes true on SIGTERM or Ctrl-C.
///
/// # Errors
/// The handlers of the signals can't be installed.
pub fn shutdown_signals() -> io::Result<watch::Receiver<bool>> {
    let (ended, ending) = watch::channel(false);
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind)?;
        let ended = ended.clone();
        tokio::spawn(async move {
            signals.recv().await;
            let _ = ended.send(true);
        });
    }
    Ok(ending)
}

/// Waits until `ending` is true, or its sender is dropped.
pub async fn wait_for_shutdown(mut ending: watch::Receiver<bool>) {
    // An error means that the sender was dropped.
    let _ = ending.wait_for(|ended| *ended).await;
}

/// Logging options of a program.
#[derive(Clone, Copy, Debug)]
pub struct LoggingConfig {
    /// The program's name in traces.
    pub program: &'static str,
    /// Most verbose level to log.
    pub level: LevelFilter,
    /// Format of the lines.
    pub format: LogFormat,
    /// Filters by target. Libraries log much that they also return as an error, which this program logs itself.
    pub is_log_enabled: fn(&str) -> bool,
}

impl LoggingConfig {
    /// Logs to standard error, one line per event, and exports spans if the environment names a collector. Keep the
    /// result until the program ends: dropping it sends the last spans.
    ///
    /// # Errors
    /// The collector's address is invalid, or logging is already installed in this process.
    pub fn install(self) -> Result<Traces, millrace_traces::Error> {
        let Self { program, level, format, is_log_enabled: wanted } = self;
        let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).with_timer(Milliseconds);
        let wanted =
            filter_fn(move |metadata| *metadata.level() <= level && metadata.is_event() && wanted(metadata.target()));
        let wanted = wanted.with_max_level_hint(level);
        let layer = match format {
            LogFormat::Text => lines.with_filter(wanted).boxed(),
            LogFormat::Json => {
                let lines = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
                lines.with_filter(wanted).boxed()
            }
        };
        millrace_traces::install(program, layer)
    }
}

/// Formats times as RFC 3339 in UTC, with milliseconds.
struct Milliseconds;

impl FormatTime for Milliseconds {
    fn format_time(&self, line: &mut Writer<'_>) -> std::fmt::Result {
        write!(line, "{:.3}", Timestamp::now())
    }
}
