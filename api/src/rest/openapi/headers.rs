//! The headers that routes read and send, by name. OpenAPI has other means for `Accept`, `Authorization` and
//! `Content-Type`.

use serde_json::{Map, Value, json};

/// Header of every response.
const COMMON_HEADER: &str = "X-Request-Id";

/// Response headers: name, description and type.
const RESPONSE_HEADERS: [(&str, &str, &str); 9] = [
    ("Accept-Ranges", "`bytes`: the server supports range requests for this file.", "string"),
    ("Content-Range", "Range of this response, and the size of the whole file.", "string"),
    ("ETag", "Identifies this version of the content.", "string"),
    ("Idempotent-Replay", "`true` if an earlier request with the same key created the job.", "string"),
    ("Location", "URL of the job.", "string"),
    ("Retry-After", "Seconds to wait before the next try; sent with 429 and 503.", "integer"),
    ("Set-Cookie", "Sets the session cookie, or deletes it.", "string"),
    ("WWW-Authenticate", "`Bearer`; sent with 401.", "string"),
    (COMMON_HEADER, "Id of the request in the server's log.", "string"),
];

/// Returns the request headers: name, description and schema.
fn request_headers() -> [(&'static str, &'static str, Value); 5] {
    let text = json!({"type": "string"});
    [
        (
            "Idempotency-Key",
            "Makes the request safe to repeat: a request with the same key and body creates no second job.",
            json!({"type": "string", "minLength": 1, "maxLength": 255}),
        ),
        (
            "If-None-Match",
            "ETags of the versions that the client has. If one of them is current, the response is 304 without a body.",
            text.clone(),
        ),
        (
            "If-Range",
            "ETag of the version that the client has a part of. If the file has changed, the response is the \
             whole file.",
            text.clone(),
        ),
        (
            "Last-Event-ID",
            "Live streams only: id of the last received event. The stream continues after it.",
            json!({"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"}),
        ),
        (
            "Range",
            "Range of bytes, such as `bytes=0-99`. Several ranges and other units are ignored: the response is the \
             whole file.",
            text,
        ),
    ]
}

/// Returns a request header as a parameter.
pub fn parameter(name: &str) -> Value {
    let header = request_headers().into_iter().find(|(known, ..)| *known == name);
    let (_, description, schema) = header.unwrap_or_default();
    json!({"name": name, "in": "header", "required": false, "description": description, "schema": schema})
}

/// Returns references to response headers, with the one of every response.
pub fn response_headers<'a>(names: impl IntoIterator<Item = &'a str>) -> Value {
    let names = names.into_iter().chain([COMMON_HEADER]);
    let reference = |name: &str| (name.to_owned(), json!({"$ref": format!("#/components/headers/{name}")}));
    Value::Object(names.map(reference).collect::<Map<_, _>>())
}

/// Returns the components of all response headers.
pub fn components() -> Value {
    let header = |(name, description, kind): (&str, &str, &str)| {
        (name.to_owned(), json!({"description": description, "schema": {"type": kind}}))
    };
    Value::Object(RESPONSE_HEADERS.into_iter().map(header).collect::<Map<_, _>>())
}
