//! What every request leaves behind: a name on its answer, a line in the log, numbers for Prometheus, and a span that
//! goes on with the client's trace where its headers name one.
//!
//! The log tells at level info of requests that may change something, so that it says who did what; of all others at level
//! debug. What stands behind `?` is not told, and no header is.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{Extensions, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

use super::{Api, problem, tokens};
use crate::request;

/// Header that names one answer, for who asks an administrator about it: the log has it, too.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// See the module text.
pub async fn observed(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = uuid::Uuid::new_v4().to_string();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let from = api.proxies.client(neighbour(request.extensions()), request.headers());
    request.extensions_mut().insert(Client(from));
    // Every path that is none of ours is one series.
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
    millrace_traces::follow(&span, |name| request.headers().get(name)?.to_str().ok());
    let (response, who) = request::answering(&id, next.run(request)).instrument(span.clone()).await;
    let mut response = problem::told(response, &path);
    let code = response.status();
    api.traffic.answered(verb(&method), &route, code.as_str(), began.elapsed());
    let who = who.unwrap_or_default();
    span.record("http.response.status_code", code.as_u16());
    span.record("enduser.id", &who);
    let made = response.headers().get(header::LOCATION).and_then(|made| made.to_str().ok()).unwrap_or(&path);
    let made = without_tokens(made);
    if method.is_safe() {
        tracing::debug!("{code} {method} {made} by {who:?} from {from} (request {id})");
    } else {
        tracing::info!("{code} {method} {made} by {who:?} from {from} (request {id})");
    }
    if let Ok(id) = HeaderValue::try_from(id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Carries out what may change something, even if the client hangs up or is not answered in time: a job that is written and not
/// told of would wait for ever.
pub async fn carried_out(request: Request, next: Next) -> Response {
    if request.method().is_safe() { next.run(request).await } else { request::to_its_end(next.run(request)).await }
}

/// A path that holds no token, if somebody put one there: neither one of ours nor a cluster's, which is a JWT.
fn without_tokens(path: &str) -> String {
    let begin = |part: &str| {
        let jwt = part.find("eyJ").filter(|at| part[*at..].contains('.'));
        part.find(tokens::PREFIX).into_iter().chain(jwt).min()
    };
    let parts = path.split('/').map(|part| match begin(part) {
        Some(at) => format!("{}(a token)", &part[..at]),
        None => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("/")
}

/// Where a request comes from, as far as it can be known.
#[derive(Clone, Copy)]
struct Client(IpAddr);

/// Where a request comes from: the address that its trusted proxies have seen, or that of its connection.
pub fn peer(extensions: &Extensions) -> IpAddr {
    extensions.get::<Client>().map_or_else(|| neighbour(extensions), |Client(address)| *address)
}

/// The other end of the connection.
fn neighbour(extensions: &Extensions) -> IpAddr {
    let known = extensions.get::<ConnectInfo<SocketAddr>>();
    known.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ConnectInfo(address)| address.ip().to_canonical())
}

/// The method as a label: a client may send any word.
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
    fn no_token_is_told() {
        for (path, told) in [
            ("/v1/tokens/mrt_0123abc", "/v1/tokens/(a token)"),
            ("/v1/x=eyJhbGciOi.eyJpc3M.c2ln/y", "/v1/x=(a token)/y"),
            (
                "/v1/namespaces/a/trainjobs/gpt2-kjv/artifacts/keyJ",
                "/v1/namespaces/a/trainjobs/gpt2-kjv/artifacts/keyJ",
            ),
        ] {
            assert_eq!(without_tokens(path), told);
        }
    }
}
