//! What every program around the loop begins with: a wish to end that is heard, and a log.

use std::io;

use k8s_openapi::jiff::Timestamp;
use millrace_telemetry::logs::Format;
use millrace_traces::Traces;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::Layer;

/// Becomes true on SIGTERM or Ctrl-C.
///
/// # Errors
/// The system lets nobody listen for signals.
pub fn end_signals() -> io::Result<watch::Receiver<bool>> {
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

/// Waits until `ending` is true, or can't become true any more.
pub async fn ended(mut ending: watch::Receiver<bool>) {
    // An error means that its sender is gone.
    let _ = ending.wait_for(|ended| *ended).await;
}

/// How a program logs.
#[derive(Clone, Copy, Debug)]
pub struct Logging {
    /// What the program is called in traces.
    pub program: &'static str,
    /// Up to which level.
    pub level: LevelFilter,
    /// How lines are written.
    pub format: Format,
    /// Whether a target is wanted. Libraries tell much that comes back from them as an error, too, and is told by us.
    pub wanted: fn(&str) -> bool,
}

impl Logging {
    /// Logs to standard error, one line each, and sends spans where the environment names a collector. What it returns
    /// is to be kept until the program ends: then the last spans are sent.
    ///
    /// # Errors
    /// The collector's address can't be used, or this process logs already.
    pub fn install(self) -> Result<Traces, millrace_traces::Error> {
        let Self { program, level, format, wanted } = self;
        let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).with_timer(Milliseconds);
        let wanted =
            filter_fn(move |metadata| *metadata.level() <= level && metadata.is_event() && wanted(metadata.target()));
        let wanted = wanted.with_max_level_hint(level);
        let layer = match format {
            Format::Text => lines.with_filter(wanted).boxed(),
            Format::Json => {
                let lines = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
                lines.with_filter(wanted).boxed()
            }
        };
        millrace_traces::install(program, layer)
    }
}

/// Times as RFC 3339 in UTC, to the millisecond.
struct Milliseconds;

impl FormatTime for Milliseconds {
    fn format_time(&self, line: &mut Writer<'_>) -> std::fmt::Result {
        write!(line, "{:.3}", Timestamp::now())
    }
}
