//! Continues the trace of another program, given by the headers of W3C Trace Context.

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Headers of a request by name.
struct HeaderExtractor<'a>([(&'static str, Option<&'a str>); 2]);

impl Extractor for HeaderExtractor<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| *name == key)?.1
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }
}

/// Makes `span` a child of the span that the headers `traceparent` and `tracestate` name. Missing or invalid headers
/// have no effect.
pub fn set_parent_from_headers<'a>(span: &Span, header: impl Fn(&str) -> Option<&'a str>) {
    if span.is_disabled() {
        return;
    }
    let headers = HeaderExtractor(["traceparent", "tracestate"].map(|name| (name, header(name))));
    let context = TraceContextPropagator::new().extract(&headers);
    if context.span().span_context().is_valid() {
        // This fails only for a span that is not sent to a collector; such a span needs no parent.
        let _ = span.set_parent(context);
    }
}
