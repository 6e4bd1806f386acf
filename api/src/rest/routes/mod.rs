//! Routes as values: method, path, required access, parameters and responses. The router, the OpenAPI document, and the
//! tests that iterate over all routes are derived from them.
//!
//! * A route is created with the access that it requires, and its handler can be reached only by [`Route::mount`],
//!   which puts the check of that access before it.
//! * [`table`] lists all routes. `docs/dev/add-a-route.md` describes how to add one.

mod table;

use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::middleware::from_fn_with_state;
use axum::routing::{self, MethodRouter};
use schemars::JsonSchema;
use serde_json::{Value, json};

pub use self::table::all;
use super::AppState;
use super::auth::{Access, require_access};
use super::schema::request_schema;

/// Format of a successful response.
#[derive(Clone, Debug)]
pub enum ResponseKind {
    /// JSON of this schema.
    Json(Value),
    /// Pages of JSON items of this schema, or a live stream with `Accept: text/event-stream`.
    Pages(Value),
    /// JSON of this schema, or the same in parts as server-sent events with `Accept: text/event-stream`.
    JsonOrEvents(Value),
    /// A live stream only.
    Live,
    /// A file, whole or by range.
    File,
    /// The status without a body.
    Status,
    /// A page of HTML.
    Html,
}

/// Format of the request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBodyKind {
    /// No body.
    None,
    /// A job: JSON, YAML or a form.
    Job,
    /// JSON of a component.
    Component(&'static str),
    /// Bytes, `application/octet-stream`.
    Bytes,
}

pub struct Route {
    /// Method in lower case, as in OpenAPI.
    pub method: &'static str,
    /// Path with `{parameters}`.
    pub path: String,
    pub access: Access,
    handler: MethodRouter<Arc<AppState>>,
    /// Operation id: verb and object, unique.
    pub id: &'static str,
    /// Summary in one line, for the document.
    pub summary: &'static str,
    /// Schema of an object whose properties are the query parameters.
    pub query: Option<Value>,
    pub body: RequestBodyKind,
    /// The request headers that it reads, by their names in [`super::openapi`].
    pub request_headers: &'static [&'static str],
    /// Status of success.
    pub status: u16,
    pub response: ResponseKind,
    /// The response headers that it sends, by their names in [`super::openapi`].
    pub response_headers: &'static [&'static str],
}

impl Route {
    fn get<H: Handler<T, Arc<AppState>>, T: 'static>(path: impl Into<String>, handler: H, access: Access) -> Self {
        Self::new("get", path.into(), routing::get(handler), access)
    }

    fn post<H: Handler<T, Arc<AppState>>, T: 'static>(path: impl Into<String>, handler: H, access: Access) -> Self {
        Self::new("post", path.into(), routing::post(handler), access)
    }

    fn patch<H: Handler<T, Arc<AppState>>, T: 'static>(path: impl Into<String>, handler: H, access: Access) -> Self {
        Self::new("patch", path.into(), routing::patch(handler), access)
    }

    fn delete<H: Handler<T, Arc<AppState>>, T: 'static>(path: impl Into<String>, handler: H, access: Access) -> Self {
        Self::new("delete", path.into(), routing::delete(handler), access)
    }

    fn new(method: &'static str, path: String, handler: MethodRouter<Arc<AppState>>, access: Access) -> Self {
        Self {
            method,
            path,
            access,
            handler,
            id: "",
            summary: "",
            query: None,
            body: RequestBodyKind::None,
            request_headers: &[],
            status: 200,
            response: ResponseKind::Status,
            response_headers: &[],
        }
    }

    fn describe(self, id: &'static str, summary: &'static str) -> Self {
        Self { id, summary, ..self }
    }

    fn query<T: JsonSchema>(self) -> Self {
        Self { query: Some(request_schema::<T>()), ..self }
    }

    fn body(self, body: RequestBodyKind) -> Self {
        Self { body, ..self }
    }

    fn request_headers(self, request_headers: &'static [&'static str]) -> Self {
        Self { request_headers, ..self }
    }

    fn response_headers(self, response_headers: &'static [&'static str]) -> Self {
        Self { response_headers, ..self }
    }

    fn response(self, response: ResponseKind) -> Self {
        Self { response, ..self }
    }

    /// Sets the response to JSON of this component.
    fn json(self, name: &str) -> Self {
        self.response(ResponseKind::Json(component(name)))
    }

    /// Sets the response to pages of this component, or a live stream of them.
    fn pages(self, item: &str) -> Self {
        self.request_headers(&["Last-Event-ID"]).response(ResponseKind::Pages(component(item)))
    }

    /// Sets the response to a file, whole or by range.
    fn file(self) -> Self {
        self.request_headers(&["Range", "If-Range", "If-None-Match"])
            .response(ResponseKind::File)
            .response_headers(&["ETag", "Accept-Ranges"])
    }

    fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// Adds the route to a router: its handler, and before it the check of its access.
    pub fn mount(self, router: Router<Arc<AppState>>, api: &Arc<AppState>) -> Router<Arc<AppState>> {
        let check = from_fn_with_state((api.clone(), self.access), require_access);
        router.route(&self.path, self.handler.route_layer(check))
    }
}

/// Returns a reference to a component.
fn component(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn public_routes_are_few_and_known() {
        let public: BTreeSet<String> =
            all().into_iter().filter(|route| route.access == Access::Public).map(|route| route.path).collect();
        let known = ["/", "/docs", "/healthz", "/openapi.json", "/readyz", "/v1/version"];
        assert_eq!(public, known.map(str::to_owned).into());
    }

    #[test]
    fn operation_ids_are_unique_and_summaries_are_sentences() {
        let mut ids = BTreeSet::new();
        for Route { id, summary, path, .. } in all() {
            assert!(!id.is_empty() && id.bytes().all(|letter| letter.is_ascii_alphanumeric()), "{path}: {id:?}");
            assert!(ids.insert(id), "{id} twice");
            assert!(summary.starts_with(|first: char| first.is_uppercase()), "{id}: {summary:?}");
        }
    }
}
