//! The log of a server: each event is a line on standard error, as `tracing-subscriber` writes it. Unlike the records
//! of an agent, the lines are not forwarded.

use std::fmt;
use std::io::stderr;

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;

use super::LogFormat;
use crate::time::{rfc3339, unix_ms};

/// Builds the layer of a subscriber that logs events up to `level` whose target `is_enabled`. Libraries log much that
/// they also return as an error, which the program logs itself.
pub fn server_layer<S>(
    level: LevelFilter,
    format: LogFormat,
    is_enabled: fn(&str) -> bool,
) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr).with_ansi(false).with_timer(Milliseconds);
    let enabled =
        filter_fn(move |metadata| *metadata.level() <= level && metadata.is_event() && is_enabled(metadata.target()));
    let enabled = enabled.with_max_level_hint(level);
    match format {
        LogFormat::Text => lines.with_filter(enabled).boxed(),
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
            lines.with_filter(enabled).boxed()
        }
    }
}

/// Formats times as RFC 3339 in UTC, with milliseconds.
struct Milliseconds;

impl FormatTime for Milliseconds {
    fn format_time(&self, line: &mut Writer<'_>) -> fmt::Result {
        line.write_str(&rfc3339(unix_ms()))
    }
}
