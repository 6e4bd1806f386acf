//! The responses of a route in the OpenAPI document.

use serde_json::{Value, json};

use super::super::routes::{RequestBodyKind, ResponseKind, Route};
use super::headers;

/// Returns the responses of a route by their status.
pub fn responses(route: &Route) -> Value {
    let of_json = |schema: &Value| json!({"application/json": {"schema": schema}});
    let stream = json!({"schema": {"type": "string", "description": "Server-sent events; each id is where Last-Event-ID goes on."}});
    let told = |more: &[&str]| headers::response_headers(route.response_headers.iter().chain(more).copied());
    let mut success = json!({"description": route.summary, "headers": told(&[])});
    match &route.response {
        ResponseKind::Json(schema) => success["content"] = of_json(schema),
        ResponseKind::Pages(item) => {
            let page = json!({"type": "object", "required": ["items", "next"], "properties": {
                "items": {"type": "array", "items": item},
                "next": {"type": ["integer", "null"], "description": "Where the next page begins: its `after`."},
            }});
            success["content"] = of_json(&page);
            success["content"]["text/event-stream"] = stream;
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
        responses["200"]["headers"] = told(&["Idempotent-Replay"]);
    }
    let mut refused = vec!["Retry-After", "WWW-Authenticate"];
    if matches!(route.response, ResponseKind::File) {
        responses["206"] = json!({
            "description": "The part that was asked for.",
            "headers": told(&["Content-Range"]),
            "content": success["content"],
        });
        responses["304"] =
            json!({"description": "It is what the client has.", "headers": headers::response_headers(["ETag"])});
        refused.push("Content-Range");
    }
    responses["default"] = json!({
        "description": "Refused.",
        "headers": headers::response_headers(refused),
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    });
    responses
}
