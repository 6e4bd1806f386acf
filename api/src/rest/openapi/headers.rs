//! The headers that routes read and send, by name. OpenAPI has other means for `Accept`, `Authorization` and
//! `Content-Type`.

use serde_json::{Map, Value, json};

/// Header of every response.
const COMMON_HEADER: &str = "X-Request-Id";

/// Response headers: name, description and type.
const RESPONSE_HEADERS: [(&str, &str, &str); 9] = [
    ("Accept-Ranges", "`bytes`: parts of the file can be asked for.", "string"),
    ("Content-Range", "Which part this is, and how long the whole is.", "string"),
    ("ETag", "Changes whenever the content does.", "string"),
    ("Idempotent-Replay", "`true` where the same request made the job before.", "string"),
    ("Location", "Where the job is.", "string"),
    ("Retry-After", "Seconds to wait for, of 429 and 503.", "integer"),
    ("Set-Cookie", "The session, or that there is none any more.", "string"),
    ("WWW-Authenticate", "`Bearer`, of 401.", "string"),
    (COMMON_HEADER, "Names this answer in the server's log.", "string"),
];

/// Returns the request headers: name, description and schema.
fn request_headers() -> [(&'static str, &'static str, Value); 5] {
    let text = json!({"type": "string"});
    let named = "Names the request: sent again, with the same body, it makes no second job.";
    [
        ("Idempotency-Key", named, json!({"type": "string", "minLength": 1, "maxLength": 255})),
        (
            "If-None-Match",
            "ETags that the client has: where the file's is among them, 304 comes instead of it.",
            text.clone(),
        ),
        (
            "If-Range",
            "The ETag of which the client has a part: where the file has another by now, all of it comes.",
            text.clone(),
        ),
        (
            "Last-Event-ID",
            "Of a live stream: the last id that was heard; it goes on behind that.",
            json!({"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"}),
        ),
        ("Range", "A part of the file, as bytes=0-99; of several ranges, or another unit, all of it comes.", text),
    ]
}

/// Returns a request header as a parameter.
pub fn parameter(name: &str) -> Value {
    let found = request_headers().into_iter().find(|(known, ..)| *known == name);
    let (_, description, schema) = found.unwrap_or_default();
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
