//! The header `traceparent` of W3C Trace Context as a value: `00-<trace ID>-<span ID>-<flags>` in lower-case
//! hexadecimal digits. An annotation of a job and the environment variable [`TraceParent::VARIABLE`] pass it from a
//! submission to the agents.

use std::fmt;
use std::str::FromStr;

use opentelemetry::trace::{SpanContext, TraceContextExt};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::set_parent_from_headers;

/// Bytes of a value: version, trace ID, span ID and flags, with the hyphens between them.
const LENGTH: usize = 55;
/// Offsets of the hyphens.
const HYPHENS: [usize; 3] = [2, 35, 52];

/// A span that another program continues. Contains only hexadecimal digits and hyphens, so it is safe to embed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceParent(String);

/// The text is not a [`TraceParent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent of version 00")]
pub struct InvalidTraceParent;

impl TraceParent {
    /// Name of the environment variable with the parent of a program's spans.
    pub const VARIABLE: &str = "TRACEPARENT";

    /// Returns the current span; `None` if this program sends no traces.
    pub fn current() -> Option<Self> {
        Self::of_span(&Span::current())
    }

    /// Returns `span` as a parent; `None` if this program sends no traces.
    pub fn of_span(span: &Span) -> Option<Self> {
        Self::of(span.context().span().span_context())
    }

    fn of(span: &SpanContext) -> Option<Self> {
        let flags = u8::from(span.is_sampled());
        span.is_valid().then(|| Self(format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id())))
    }

    /// Returns the parent that the environment names; `None` if it is missing or invalid.
    pub fn from_environment() -> Option<Self> {
        std::env::var(Self::VARIABLE).ok()?.parse().ok()
    }

    /// Makes `span` a child of this span.
    pub fn adopt(&self, span: &Span) {
        set_parent_from_headers(span, |name| (name == "traceparent").then_some(&*self.0));
    }
}

impl FromStr for TraceParent {
    type Err = InvalidTraceParent;

    /// Accepts version 00 only, and no ID that is zero.
    fn from_str(text: &str) -> Result<Self, InvalidTraceParent> {
        let is_expected = |(at, byte): (usize, u8)| match HYPHENS.contains(&at) {
            true => byte == b'-',
            false => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        };
        if text.len() != LENGTH || !text.bytes().enumerate().all(is_expected) {
            return Err(InvalidTraceParent);
        }
        let is_zero = |part: &str| part.bytes().all(|digit| digit == b'0');
        if !text.starts_with("00-") || is_zero(&text[3..35]) || is_zero(&text[36..52]) {
            return Err(InvalidTraceParent);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_traceparent_is_accepted() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(good.parse::<TraceParent>().unwrap().to_string(), good);
        let zero_trace = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
        let bad = [
            "",
            &good[1..],
            &good.to_uppercase(),
            &good.replacen("00", "01", 1),
            &good.replace('-', "_"),
            &format!("{good}-00"),
            &format!("{}\n", &good[..54]),
            // Has the same number of bytes as a valid value.
            &format!("{}\u{e9}", &good[..53]),
            &zero_trace,
            &zero_span,
        ];
        for text in bad {
            assert_eq!(text.parse::<TraceParent>(), Err(InvalidTraceParent), "{text:?}");
        }
    }
}
