//! The table of routes. The router and the OpenAPI document are both built from it.

use std::sync::Arc;

use axum::routing::{MethodRouter, delete, get, post};
use schemars::JsonSchema;
use serde_json::{Value, json};

use super::openapi::{request_schema, response_schema};
use super::{AppState, appliance, files, jobs, openapi, records, session, tokens};

/// Access that a route requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredAccess {
    /// None: everyone may use it.
    Nothing,
    /// A valid token or session.
    Token,
    /// A valid token; a session is not accepted.
    Bearer,
    /// Role viewer in the namespace.
    Viewer,
    /// Role editor in the namespace.
    Editor,
    /// Role admin.
    Admin,
}

/// Format of a successful response.
#[derive(Clone, Debug)]
pub enum ResponseKind {
    /// JSON of this schema.
    Json(Value),
    /// Pages of JSON items of this schema, or a live stream with `Accept: text/event-stream`.
    Pages(Value),
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
}

/// A route.
pub struct Route {
    /// Method in lower case, as in OpenAPI.
    pub method: &'static str,
    /// Path with `{parameters}`.
    pub path: String,
    /// Handler.
    pub handler: MethodRouter<Arc<AppState>>,
    /// Summary in one line, for the document.
    pub summary: &'static str,
    /// Access that it requires.
    pub needs: RequiredAccess,
    /// Schema of an object whose properties are the query parameters.
    pub query: Option<Value>,
    /// Request body.
    pub body: RequestBodyKind,
    /// The request headers that it reads, by their names in [`super::openapi`].
    pub request_headers: &'static [&'static str],
    /// Status of success.
    pub status: u16,
    /// Response body.
    pub answer: ResponseKind,
    /// The response headers that it sends, by their names in [`super::openapi`].
    pub response_headers: &'static [&'static str],
}

impl Route {
    fn new(
        method: &'static str,
        path: impl Into<String>,
        handler: MethodRouter<Arc<AppState>>,
        summary: &'static str,
    ) -> Self {
        Self {
            method,
            path: path.into(),
            handler,
            summary,
            needs: RequiredAccess::Viewer,
            query: None,
            body: RequestBodyKind::None,
            request_headers: &[],
            status: 200,
            answer: ResponseKind::Status,
            response_headers: &[],
        }
    }

    fn needs(self, needs: RequiredAccess) -> Self {
        Self { needs, ..self }
    }

    fn query<T: JsonSchema>(self) -> Self {
        Self { query: Some(request_schema::<T>()), ..self }
    }

    fn body(self, body: RequestBodyKind) -> Self {
        Self { body, ..self }
    }

    fn reads(self, reads: &'static [&'static str]) -> Self {
        Self { request_headers: reads, ..self }
    }

    fn response_headers(self, tells: &'static [&'static str]) -> Self {
        Self { response_headers: tells, ..self }
    }

    fn answers(self, answer: ResponseKind) -> Self {
        Self { answer, ..self }
    }

    /// Sets the response to JSON of this component.
    fn responds_with(self, name: &str) -> Self {
        self.answers(ResponseKind::Json(component(name)))
    }

    fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }
}

/// Returns a reference to a component.
fn component(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// Returns all routes.
pub fn all() -> Vec<Route> {
    let mut routes = job_routes();
    routes.extend(record_routes());
    routes.extend(file_routes());
    routes.extend(server_routes());
    routes
}

const JOBS_PATH: &str = "/v1/namespaces/{ns}/trainjobs";

fn job_path(path: &str) -> String {
    format!("{JOBS_PATH}/{{name}}/{path}")
}

fn job_routes() -> Vec<Route> {
    let job = format!("{JOBS_PATH}/{{name}}");
    let change = |path: &str, handler, summary| {
        Route::new("post", job_path(path), handler, summary)
            .needs(RequiredAccess::Editor)
            .query::<super::JobSelector>()
            .responds_with("TrainJob")
    };
    vec![
        Route::new("get", JOBS_PATH, get(jobs::list), "Jobs that live, the newest first")
            .query::<jobs::JobListQuery>()
            .responds_with("TrainJobList"),
        Route::new("post", JOBS_PATH, post(jobs::create), "Makes a job, unless the same request made it before")
            .needs(RequiredAccess::Editor)
            .query::<jobs::CreateQuery>()
            .body(RequestBodyKind::Job)
            .reads(&["Idempotency-Key"])
            .status(201)
            .responds_with("TrainJob")
            .response_headers(&["Location"]),
        Route::new(
            "post",
            format!("{JOBS_PATH}:plan"),
            post(jobs::plan),
            "What would become of a job now; makes nothing",
        )
        .body(RequestBodyKind::Job)
        .answers(ResponseKind::Json(response_schema::<crate::plan::JobPlan>())),
        Route::new("get", &*job, get(jobs::read), "A job: the newest of the name, or an older one")
            .query::<super::JobSelector>()
            .responds_with("TrainJob")
            .response_headers(&["ETag"]),
        Route::new("delete", &*job, delete(jobs::delete), "Deletes a job; its history and its files stay")
            .needs(RequiredAccess::Editor)
            .query::<super::JobSelector>()
            .responds_with("TrainJob"),
        change("suspend", post(jobs::suspend), "Has a job save its state and give its systems back"),
        change("resume", post(jobs::resume), "Has a job go on"),
        change("scale", post(jobs::scale), "Changes how many systems a job has")
            .body(RequestBodyKind::Component("ScaleRequest")),
    ]
}

fn record_routes() -> Vec<Route> {
    let numbered = |path: &str, handler, summary, answer| {
        Route::new("get", job_path(path), handler, summary).reads(&["Last-Event-ID"]).answers(answer)
    };
    let pages = |item| ResponseKind::Pages(component(item));
    vec![
        numbered("events", get(records::events), "What was told about a job", pages("Event"))
            .query::<records::EventsQuery>(),
        numbered("metrics", get(records::metrics), "The points of a job's curves", pages("MetricPoint"))
            .query::<records::MetricsQuery>(),
        numbered("logs", get(records::logs), "What a job's agents said", pages("LogLine"))
            .query::<records::LogsQuery>(),
        numbered("follow", get(records::follow), "Everything about a job, live, to its end", ResponseKind::Live)
            .query::<records::FollowQuery>(),
    ]
}

fn file_routes() -> Vec<Route> {
    let file = |path: &str, handler, summary| {
        Route::new("get", job_path(path), handler, summary)
            .needs(RequiredAccess::Editor)
            .reads(&["Range", "If-Range", "If-None-Match"])
            .answers(ResponseKind::File)
            .response_headers(&["ETag", "Accept-Ranges"])
    };
    vec![
        Route::new(
            "get",
            job_path("checkpoints"),
            get(files::checkpoints),
            "The checkpoints of a job, the newest first",
        )
        .query::<super::JobSelector>()
        .responds_with("CheckpointList"),
        Route::new(
            "get",
            job_path("checkpoints/{shelf}"),
            get(files::list_checkpoint_files),
            "The files of checkpoint STEP, or of STEP:export",
        )
        .needs(RequiredAccess::Editor)
        .query::<files::FileQuery>()
        .responds_with("CheckpointFileList"),
        file("checkpoints/{shelf}/{*path}", get(files::get_checkpoint_file), "A file of a checkpoint")
            .query::<files::FileQuery>(),
        Route::new("get", job_path("artifacts"), get(files::artifacts), "What else a job has written")
            .query::<super::JobSelector>()
            .responds_with("FileList"),
        file("artifacts/{*path}", get(files::get_artifact), "Another file of a job").query::<super::JobSelector>(),
    ]
}

fn server_routes() -> Vec<Route> {
    let open = |path: &str, handler, summary, answer| {
        Route::new("get", path, handler, summary).needs(RequiredAccess::Nothing).answers(answer)
    };
    let admin =
        |method, path: &str, handler, summary| Route::new(method, path, handler, summary).needs(RequiredAccess::Admin);
    vec![
        Route::new("get", "/v1/namespaces/{ns}/volumes", get(appliance::volumes), "What a job here can mount")
            .responds_with("VolumeList"),
        Route::new("get", "/v1/appliance", get(appliance::read), "Systems, who uses them, who waits for them")
            .needs(RequiredAccess::Token)
            .query::<appliance::ApplianceQuery>()
            .responds_with("ApplianceView"),
        Route::new("get", "/v1/whoami", get(appliance::whoami), "Who asks, and what they may")
            .needs(RequiredAccess::Token)
            .responds_with("Identity"),
        open(
            "/v1/version",
            get(appliance::version),
            "Which server this is",
            ResponseKind::Json(component("ServerVersion")),
        ),
        admin("get", "/v1/tokens", get(tokens::list), "All API tokens, without their secrets")
            .responds_with("TokenList"),
        admin("post", "/v1/tokens", post(tokens::create), "Makes a token; its secret is seen this once")
            .body(RequestBodyKind::Component("TokenRequest"))
            .status(201)
            .responds_with("CreatedToken"),
        admin("delete", "/v1/tokens/{id}", delete(tokens::revoke), "Revokes a token at once")
            .responds_with("RevokedToken"),
        Route::new("post", "/v1/session", post(session::create_session), "Trades a token for a browser's cookie")
            .needs(RequiredAccess::Bearer)
            .responds_with("Session")
            .response_headers(&["Set-Cookie"]),
        Route::new("delete", "/v1/session", delete(session::delete_session), "Ends the session of the cookie")
            .needs(RequiredAccess::Token)
            .responds_with("SessionEnded")
            .response_headers(&["Set-Cookie"]),
        open("/", get(openapi::home), "What this server is, for people", ResponseKind::Html),
        open(
            "/openapi.json",
            get(openapi::serve_document),
            "This document",
            ResponseKind::Json(json!({"type": "object"})),
        ),
        open("/docs", get(openapi::page), "This document, for people", ResponseKind::Html),
        open("/healthz", get(appliance::healthz), "Whether the server lives", ResponseKind::Status),
        open("/readyz", get(appliance::readyz), "Whether its database answers", ResponseKind::Status),
    ]
}
