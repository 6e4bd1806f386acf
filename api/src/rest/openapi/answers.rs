//! The responses of a route in the OpenAPI document.

use serde_json::{Value, json};

use super::super::routes::{Answer, Body, Route};
use super::headers;

/// Returns the responses of a route by their status.
pub fn responses(route: &Route) -> Value {
    let of_json = |schema: &Value| json!({"application/json": {"schema": schema}});
    let stream = json!({"schema": {"type": "string", "description": "Server-sent events; each id is where Last-Event-ID goes on."}});
    let told = |more: &[&str]| headers::told(route.tells.iter().chain(more).copied());
    let mut success = json!({"description": route.summary, "headers": told(&[])});
    match &route.answer {
        Answer::Json(schema) => success["content"] = of_json(schema),
        Answer::Pages(item) => {
            let page = json!({"type": "object", "required": ["items", "next"], "properties": {
                "items": {"type": "array", "items": item},
                "next": {"type": ["integer", "null"], "description": "Where the next page begins: its `after`."},
            }});
            success["content"] = of_json(&page);
            success["content"]["text/event-stream"] = stream;
        }
        Answer::Live => success["content"] = json!({"text/event-stream": stream}),
        Answer::File => success["content"] = json!({"application/octet-stream": {}}),
        Answer::Html => success["content"] = json!({"text/html": {}}),
        Answer::Status => {}
    }
    let mut responses = json!({route.status.to_string(): success});
    if route.status == 201 && route.body == Body::Job {
        // The same request created the job before, or it is a dry run.
        responses["200"] = success.clone();
        responses["200"]["headers"] = told(&["Idempotent-Replay"]);
    }
    let mut refused = vec!["Retry-After", "WWW-Authenticate"];
    if matches!(route.answer, Answer::File) {
        responses["206"] = json!({
            "description": "The part that was asked for.",
            "headers": told(&["Content-Range"]),
            "content": success["content"],
        });
        responses["304"] = json!({"description": "It is what the client has.", "headers": headers::told(["ETag"])});
        refused.push("Content-Range");
    }
    responses["default"] = json!({
        "description": "Refused.",
        "headers": headers::told(refused),
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    });
    responses
}
