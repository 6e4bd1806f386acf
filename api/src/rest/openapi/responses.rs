//! The responses of a route in the OpenAPI document.

use serde_json::{Value, json};

use super::super::routes::{RequestBodyKind, ResponseKind, Route};
use super::headers;

/// Returns the responses of a route by their status.
pub fn responses(route: &Route) -> Value {
    let of_json = |schema: &Value| json!({"application/json": {"schema": schema}});
    let stream = json!({"schema": {
        "type": "string",
        "description": "Server-sent events. A client that reconnects sends the last `id` as `Last-Event-ID`.",
    }});
    let with_headers = |more: &[&str]| headers::response_headers(route.response_headers.iter().chain(more).copied());
    let mut success = json!({"description": route.summary, "headers": with_headers(&[])});
    match &route.response {
        ResponseKind::Json(schema) => success["content"] = of_json(schema),
        ResponseKind::Pages(item) => {
            let page = json!({"type": "object", "required": ["items", "next"], "properties": {
                "items": {"type": "array", "items": item},
                "next": {
                    "type": ["integer", "null"],
                    "description": "Value of `after` for the next page; null on the last page.",
                },
            }});
            success["content"] = of_json(&page);
            success["content"]["text/event-stream"] = stream;
        }
        ResponseKind::JsonOrEvents(schema) => {
            success["content"] = of_json(schema);
            success["content"]["text/event-stream"] =
                json!({"schema": {"type": "string", "description": "Server-sent events with parts of the result."}});
        }
        ResponseKind::Live => success["content"] = json!({"text/event-stream": stream}),
        ResponseKind::File => success["content"] = json!({"application/octet-stream": {}}),
        ResponseKind::Html => success["content"] = json!({"text/html": {}}),
        ResponseKind::Status => {}
    }
    let mut responses = json!({route.status.to_string(): success});
    if route.status == 201 && route.body == RequestBodyKind::Job {
        // The same request created the job before, or it is a dry run.
        responses["200"] = success.clone();
        responses["200"]["headers"] = with_headers(&["Idempotent-Replay"]);
    }
    let mut error_headers = vec!["Retry-After", "WWW-Authenticate"];
    if matches!(route.response, ResponseKind::File) {
        responses["206"] = json!({
            "description": "The requested range.",
            "headers": with_headers(&["Content-Range"]),
            "content": success["content"],
        });
        responses["304"] = json!({
            "description": "Not modified: the client has the current version.",
            "headers": headers::response_headers(["ETag"]),
        });
        error_headers.push("Content-Range");
    }
    responses["default"] = json!({
        "description": "Error.",
        "headers": headers::response_headers(error_headers),
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    });
    responses
}
