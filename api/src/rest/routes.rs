//! The table of routes. The router and the OpenAPI document are both built from it.

use std::sync::Arc;

use axum::routing::{MethodRouter, delete, get, post};
use schemars::JsonSchema;
use serde_json::{Value, json};

use super::openapi::{answer_of, schema_of};
use super::{Api, appliance, files, jobs, openapi, records, session, tokens};

/// Access that a route requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
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
pub enum Answer {
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
pub enum Body {
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
    pub handler: MethodRouter<Arc<Api>>,
    /// Summary in one line, for the document.
    pub summary: &'static str,
    /// Access that it requires.
    pub needs: Needs,
    /// Schema of an object whose properties are the query parameters.
    pub query: Option<Value>,
    /// Request body.
    pub body: Body,
    /// The request headers that it reads, by their names in [`super::openapi`].
    pub reads: &'static [&'static str],
    /// Status of success.
    pub status: u16,
    /// Response body.
    pub answer: Answer,
    /// The response headers that it sends, by their names in [`super::openapi`].
    pub tells: &'static [&'static str],
}

impl Route {
    fn new(
        method: &'static str,
        path: impl Into<String>,
        handler: MethodRouter<Arc<Api>>,
        summary: &'static str,
    ) -> Self {
        Self {
            method,
            path: path.into(),
            handler,
            summary,
            needs: Needs::Viewer,
            query: None,
            body: Body::None,
            reads: &[],
            status: 200,
            answer: Answer::Status,
            tells: &[],
        }
    }

    fn needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }

    fn query<T: JsonSchema>(self) -> Self {
        Self { query: Some(schema_of::<T>()), ..self }
    }

    fn body(self, body: Body) -> Self {
        Self { body, ..self }
    }

    fn reads(self, reads: &'static [&'static str]) -> Self {
        Self { reads, ..self }
    }

    fn tells(self, tells: &'static [&'static str]) -> Self {
        Self { tells, ..self }
    }

    fn answers(self, answer: Answer) -> Self {
        Self { answer, ..self }
    }

    /// Sets the response to JSON of this component.
    fn gives(self, name: &str) -> Self {
        self.answers(Answer::Json(component(name)))
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
    let mut routes = of_jobs();
    routes.extend(of_records());
    routes.extend(of_files());
    routes.extend(of_the_server());
    routes
}

const JOBS: &str = "/v1/namespaces/{ns}/trainjobs";

fn under(path: &str) -> String {
    format!("{JOBS}/{{name}}/{path}")
}

fn of_jobs() -> Vec<Route> {
    let job = format!("{JOBS}/{{name}}");
    let change = |path: &str, handler, summary| {
        Route::new("post", under(path), handler, summary).needs(Needs::Editor).query::<super::Which>().gives("TrainJob")
    };
    vec![
        Route::new("get", JOBS, get(jobs::list), "Jobs that live, the newest first")
            .query::<jobs::Selection>()
            .gives("TrainJobList"),
        Route::new("post", JOBS, post(jobs::create), "Makes a job, unless the same request made it before")
            .needs(Needs::Editor)
            .query::<jobs::Creation>()
            .body(Body::Job)
            .reads(&["Idempotency-Key"])
            .status(201)
            .gives("TrainJob")
            .tells(&["Location"]),
        Route::new("post", format!("{JOBS}:plan"), post(jobs::plan), "What would become of a job now; makes nothing")
            .body(Body::Job)
            .answers(Answer::Json(answer_of::<crate::plan::Plan>())),
        Route::new("get", &*job, get(jobs::read), "A job: the newest of the name, or an older one")
            .query::<super::Which>()
            .gives("TrainJob")
            .tells(&["ETag"]),
        Route::new("delete", &*job, delete(jobs::delete), "Deletes a job; its history and its files stay")
            .needs(Needs::Editor)
            .query::<super::Which>()
            .gives("TrainJob"),
        change("suspend", post(jobs::suspend), "Has a job save its state and give its systems back"),
        change("resume", post(jobs::resume), "Has a job go on"),
        change("scale", post(jobs::scale), "Changes how many systems a job has").body(Body::Component("Scale")),
    ]
}

fn of_records() -> Vec<Route> {
    let numbered = |path: &str, handler, summary, answer| {
        Route::new("get", under(path), handler, summary).reads(&["Last-Event-ID"]).answers(answer)
    };
    let pages = |item| Answer::Pages(component(item));
    vec![
        numbered("events", get(records::events), "What was told about a job", pages("Event"))
            .query::<records::WhichEvents>(),
        numbered("metrics", get(records::metrics), "The points of a job's curves", pages("Metric"))
            .query::<records::WhichPoints>(),
        numbered("logs", get(records::logs), "What a job's agents said", pages("Log")).query::<records::WhichLines>(),
        numbered("follow", get(records::follow), "Everything about a job, live, to its end", Answer::Live)
            .query::<records::Followed>(),
    ]
}

fn of_files() -> Vec<Route> {
    let file = |path: &str, handler, summary| {
        Route::new("get", under(path), handler, summary)
            .needs(Needs::Editor)
            .reads(&["Range", "If-Range", "If-None-Match"])
            .answers(Answer::File)
            .tells(&["ETag", "Accept-Ranges"])
    };
    vec![
        Route::new("get", under("checkpoints"), get(files::checkpoints), "The checkpoints of a job, the newest first")
            .query::<super::Which>()
            .gives("CheckpointList"),
        Route::new(
            "get",
            under("checkpoints/{shelf}"),
            get(files::shelf),
            "The files of checkpoint STEP, or of STEP:export",
        )
        .needs(Needs::Editor)
        .query::<files::Wanted>()
        .gives("Files"),
        file("checkpoints/{shelf}/{*path}", get(files::of_checkpoint), "A file of a checkpoint")
            .query::<files::Wanted>(),
        Route::new("get", under("artifacts"), get(files::artifacts), "What else a job has written")
            .query::<super::Which>()
            .gives("FileList"),
        file("artifacts/{*path}", get(files::artifact), "Another file of a job").query::<super::Which>(),
    ]
}

fn of_the_server() -> Vec<Route> {
    let open = |path: &str, handler, summary, answer| {
        Route::new("get", path, handler, summary).needs(Needs::Nothing).answers(answer)
    };
    let admin = |method, path: &str, handler, summary| Route::new(method, path, handler, summary).needs(Needs::Admin);
    vec![
        Route::new("get", "/v1/namespaces/{ns}/volumes", get(appliance::volumes), "What a job here can mount")
            .gives("VolumeList"),
        Route::new("get", "/v1/appliance", get(appliance::read), "Systems, who uses them, who waits for them")
            .needs(Needs::Token)
            .query::<appliance::WhichAppliance>()
            .gives("ApplianceView"),
        Route::new("get", "/v1/whoami", get(appliance::whoami), "Who asks, and what they may")
            .needs(Needs::Token)
            .gives("Who"),
        open("/v1/version", get(appliance::version), "Which server this is", Answer::Json(component("Version"))),
        admin("get", "/v1/tokens", get(tokens::list), "All API tokens, without their secrets").gives("TokenList"),
        admin("post", "/v1/tokens", post(tokens::create), "Makes a token; its secret is seen this once")
            .body(Body::Component("NewToken"))
            .status(201)
            .gives("MadeToken"),
        admin("delete", "/v1/tokens/{id}", delete(tokens::revoke), "Revokes a token at once").gives("Revoked"),
        Route::new("post", "/v1/session", post(session::begin), "Trades a token for a browser's cookie")
            .needs(Needs::Bearer)
            .gives("Session")
            .tells(&["Set-Cookie"]),
        Route::new("delete", "/v1/session", delete(session::end), "Ends the session of the cookie")
            .needs(Needs::Token)
            .gives("Ended")
            .tells(&["Set-Cookie"]),
        open("/", get(openapi::home), "What this server is, for people", Answer::Html),
        open("/openapi.json", get(openapi::served), "This document", Answer::Json(json!({"type": "object"}))),
        open("/docs", get(openapi::page), "This document, for people", Answer::Html),
        open("/healthz", get(appliance::healthy), "Whether the server lives", Answer::Status),
        open("/readyz", get(appliance::ready), "Whether its database answers", Answer::Status),
    ]
}
