//! Middleware that observes every request: it adds an id to the response, writes a line to the log, counts the request
//! for Prometheus, and opens a span, which continues the client's trace if the headers name one.
//!
//! * An error of the server, such as a lost connection to the database, is logged with its causes at level error.
//! * Requests that may change something are logged at level info, all others at level debug.
//! * Neither the query nor any header is logged, because they may hold secrets.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

use super::auth::credential::TOKEN_PREFIX;
use super::proxies::set_client_address;
use super::{AppState, problem};
use crate::error::ApiError;
use crate::request_context;

/// Header with the id of the response. Users can give it to an administrator, who finds it in the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Runs a request and observes it; see the list above.
pub async fn record_request(State(api): State<Arc<AppState>>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = uuid::Uuid::new_v4().to_string();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let from = set_client_address(&api.proxies, &mut request);
    // All paths without a route are one series of the metrics.
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned()).unwrap_or_default();

    let span = tracing::info_span!(
        "request",
        otel.name = %format_args!("{method} {route}"),
        otel.kind = "server",
        http.request.method = %method,
        http.route = route,
        http.response.status_code = tracing::field::Empty,
        client.address = %from,
        enduser.id = tracing::field::Empty,
        request.id = id,
    );
    millrace_traces::set_parent_from_headers(&span, |name| request.headers().get(name)?.to_str().ok());
    let (response, principal) = request_context::with_request(next.run(request)).instrument(span.clone()).await;
    let log = |error: &ApiError| span.in_scope(|| error.log(method.as_str(), &without_tokens(&path), Some(&id)));
    let mut response = problem::with_instance(response, &path, log);
    let code = response.status();
    api.traffic.record_request(verb(&method), &route, code.as_str(), began.elapsed());
    let principal = principal.unwrap_or_default();
    span.record("http.response.status_code", code.as_u16());
    span.record("enduser.id", &principal);
    let resource = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok()).unwrap_or(&path);
    let resource = without_tokens(resource);
    // An upload has many parts; its announcement is logged.
    if method.is_safe() || method == Method::PATCH {
        tracing::debug!("{code} {method} {resource} by {principal:?} from {from} (request {id})");
    } else {
        tracing::info!("{code} {method} {resource} by {principal:?} from {from} (request {id})");
    }
    if let Ok(id) = HeaderValue::try_from(id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Completes a request that may change something even if the client disconnects or the response times out. Otherwise a
/// job could be recorded without the notification that starts it.
pub async fn complete_mutation(request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        next.run(request).await
    } else {
        request_context::run_to_completion(next.run(request)).await
    }
}

/// Replaces a token in a path by a placeholder: an API token of this server, or one of a cluster, which is a JWT.
fn without_tokens(path: &str) -> String {
    let begin = |part: &str| {
        let jwt = part.find("eyJ").filter(|at| part[*at..].contains('.'));
        part.find(TOKEN_PREFIX).into_iter().chain(jwt).min()
    };
    let parts = path.split('/').map(|part| match begin(part) {
        Some(at) => format!("{}(a token)", &part[..at]),
        None => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("/")
}

/// Returns the method as a label: clients may send any word.
fn verb(method: &Method) -> &str {
    match *method {
        Method::GET | Method::HEAD | Method::POST | Method::PUT | Method::PATCH | Method::DELETE | Method::OPTIONS => {
            method.as_str()
        }
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_never_logged() {
        for (path, logged) in [
            ("/v1/tokens/mrt_0123abc", "/v1/tokens/(a token)"),
            ("/v1/x=eyJhbGciOi.eyJpc3M.c2ln/y", "/v1/x=(a token)/y"),
            (
                "/v1/namespaces/a/trainjobs/gpt2-kjv/artifacts/keyJ",
                "/v1/namespaces/a/trainjobs/gpt2-kjv/artifacts/keyJ",
            ),
        ] {
            assert_eq!(without_tokens(path), logged);
        }
    }
}
