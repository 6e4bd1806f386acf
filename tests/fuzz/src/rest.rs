//! Targets for bodies of requests to the REST server.

use axum::body::Body;
use axum::http::Request;
use millrace_api::rest::Submission;

use crate::wire::runtime;

/// Boundary of the forms in the corpus.
const BOUNDARY: &str = "boundary";

fn submit(content_type: &str, bytes: &[u8]) {
    let request = Request::builder().header("content-type", content_type).header("idempotency-key", "key");
    let request = request.body(Body::from(bytes.to_vec())).expect("a request");
    let received = runtime().block_on(Submission::receive("team", "somebody", "token", request));
    if let Err(error) = received.and_then(Submission::into_request) {
        assert!((400..500).contains(&error.reason.status()), "a bad request is not a fault of the server: {error}");
    }
}

/// Submits a form: params file, options and texts.
pub fn upload(bytes: &[u8]) {
    submit(&format!("multipart/form-data; boundary={BOUNDARY}"), bytes);
}

/// Submits a TrainJob, as JSON and as YAML.
pub fn body(bytes: &[u8]) {
    submit("application/json", bytes);
    submit("application/yaml", bytes);
}
