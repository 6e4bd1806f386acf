//! The table of all routes. The router, the access check and the OpenAPI document are made from it.

use serde_json::json;

use super::super::auth::{Access, Action, ObjectSource, Permission};
use super::super::openapi;
use super::super::schema::response_schema;
use super::super::{ApplianceQuery, JobSelector, appliance, blobs, files, generate, jobs, records, session, tokens};
use super::{RequestBodyKind, ResponseKind, Route, component};
use crate::plan::JobPlan;

const JOBS: &str = "/v1/namespaces/{namespace}/trainjobs";
const BLOBS: &str = "/v1/namespaces/{namespace}/blobs";
const JOB: &str = "/v1/namespaces/{namespace}/trainjobs/{name}";

const LIST_JOBS: Access = Access::Permission(Permission {
    action: Action::List,
    object: ObjectSource::PathOrVisibleNamespaces,
    optional: &[],
});
/// A plan says whether its caller may also create the job.
const PLAN_JOB: Access =
    Access::Permission(Permission { action: Action::List, object: ObjectSource::Path, optional: &[Action::Create] });
/// Jobs of the appliance are named in those namespaces where the caller may list them.
const READ_APPLIANCE: Access = Access::Permission(Permission {
    action: Action::ReadAppliance,
    object: ObjectSource::ApplianceQuery,
    optional: &[Action::List],
});

pub fn all() -> Vec<Route> {
    let mut routes = job_routes();
    routes.extend(record_routes());
    routes.extend(file_routes());
    routes.extend(blob_routes());
    routes.extend(appliance_routes());
    routes.extend(account_routes());
    routes.extend(public_routes());
    routes
}

fn job_routes() -> Vec<Route> {
    let permission = Access::permission;
    vec![
        Route::get(JOBS, jobs::list, LIST_JOBS)
            .describe("listTrainJobs", "Lists jobs, newest first")
            .query::<jobs::JobListQuery>()
            .json("TrainJobList"),
        Route::post(JOBS, jobs::create, permission(Action::Create))
            .describe("createTrainJob", "Creates a job, or returns the one that the same request created before")
            .query::<jobs::CreateQuery>()
            .body(RequestBodyKind::Job)
            .request_headers(&["Idempotency-Key"])
            .status(201)
            .json("TrainJob")
            .response_headers(&["Location"]),
        Route::post(format!("{JOBS}:plan"), jobs::plan, PLAN_JOB)
            .describe("planTrainJob", "Plans a job without creating it")
            .body(RequestBodyKind::Job)
            .response(ResponseKind::Json(response_schema::<JobPlan>())),
        Route::get(JOB, jobs::read, permission(Action::Read))
            .describe("getTrainJob", "Returns the most recent job of this name, or an earlier one")
            .query::<JobSelector>()
            .json("TrainJob")
            .response_headers(&["ETag"]),
        Route::delete(JOB, jobs::delete, permission(Action::Delete))
            .describe("deleteTrainJob", "Deletes a job, but neither its history nor its files")
            .query::<JobSelector>()
            .json("TrainJob"),
        Route::post(format!("{JOB}/suspend"), jobs::suspend, permission(Action::Change))
            .describe("suspendTrainJob", "Suspends a job: it saves its state and releases its systems")
            .query::<JobSelector>()
            .json("TrainJob"),
        Route::post(format!("{JOB}/resume"), jobs::resume, permission(Action::Change))
            .describe("resumeTrainJob", "Resumes a suspended job")
            .query::<JobSelector>()
            .json("TrainJob"),
        Route::post(format!("{JOB}/scale"), jobs::scale, permission(Action::Scale))
            .describe("scaleTrainJob", "Changes the number of systems of a job")
            .query::<JobSelector>()
            .body(RequestBodyKind::Component("ScaleRequest"))
            .json("TrainJob"),
    ]
}

fn record_routes() -> Vec<Route> {
    let permission = Access::permission;
    vec![
        Route::get(format!("{JOB}/events"), records::events, permission(Action::Read))
            .describe("listEvents", "Returns the events of a job")
            .query::<records::EventsQuery>()
            .pages("Event"),
        Route::get(format!("{JOB}/metrics"), records::metrics, permission(Action::Read))
            .describe("listMetrics", "Returns the curves of a job, with one point for each step")
            .query::<records::MetricsQuery>()
            .pages("MetricPoint"),
        Route::get(format!("{JOB}/logs"), records::logs, permission(Action::ReadLogs))
            .describe("listLogs", "Returns the log lines of a job's agents")
            .query::<records::LogsQuery>()
            .pages("LogLine"),
        Route::get(format!("{JOB}/follow"), records::follow, permission(Action::ReadLogs))
            .describe("followTrainJob", "Streams the changes, events, metrics and logs of a job until it finishes")
            .query::<records::FollowQuery>()
            .request_headers(&["Last-Event-ID"])
            .response(ResponseKind::Live),
    ]
}

fn file_routes() -> Vec<Route> {
    let permission = Access::permission;
    let checkpoint = format!("{JOB}/checkpoints/{{checkpoint}}");
    vec![
        Route::get(format!("{JOB}/checkpoints"), files::checkpoints, permission(Action::Read))
            .describe("listCheckpoints", "Lists the checkpoints of a job, newest first")
            .query::<JobSelector>()
            .json("CheckpointList"),
        Route::get(checkpoint.as_str(), files::list_checkpoint_files, permission(Action::ReadFiles))
            .describe("listCheckpointFiles", "Lists the files of a checkpoint, or of its export")
            .query::<files::FileQuery>()
            .json("CheckpointFileList"),
        Route::get(format!("{checkpoint}/{{*path}}"), files::get_checkpoint_file, permission(Action::ReadFiles))
            .describe("getCheckpointFile", "Returns a file of a checkpoint, or of its export")
            .query::<files::FileQuery>()
            .file(),
        Route::post(format!("{JOB}/generate"), generate::generate, permission(Action::ReadFiles))
            .describe("generateText", "Continues a text with the model of a checkpoint")
            .query::<JobSelector>()
            .body(RequestBodyKind::Component("GenerateRequest"))
            .response(ResponseKind::JsonOrEvents(component("GeneratedText"))),
        Route::get(format!("{JOB}/artifacts"), files::artifacts, permission(Action::Read))
            .describe("listArtifacts", "Lists the files of a job outside its checkpoints")
            .query::<JobSelector>()
            .json("FileList"),
        Route::get(format!("{JOB}/artifacts/{{*path}}"), files::get_artifact, permission(Action::ReadFiles))
            .describe("getArtifact", "Returns a file of a job outside its checkpoints")
            .query::<JobSelector>()
            .file(),
    ]
}

/// Uploads are input of the jobs that their user may create.
fn blob_routes() -> Vec<Route> {
    let permission = Access::permission;
    vec![
        Route::get(BLOBS, blobs::list, permission(Action::Create))
            .describe("listBlobs", "Lists the uploads of a namespace")
            .json("BlobList"),
        Route::post(BLOBS, blobs::announce, permission(Action::Create))
            .describe("announceBlob", "Announces an upload, or returns how much of it the server has")
            .body(RequestBodyKind::Component("BlobAnnouncement"))
            .json("BlobStatus"),
        Route::patch(format!("{BLOBS}/{{digest}}"), blobs::append, permission(Action::Create))
            .describe("appendBlob", "Appends a part to an upload")
            .query::<blobs::PartQuery>()
            .body(RequestBodyKind::Bytes)
            .json("BlobStatus"),
        Route::delete(format!("{BLOBS}/{{digest}}"), blobs::delete, permission(Action::Delete))
            .describe("deleteBlob", "Deletes an upload; jobs that name it can't start any more")
            .status(204),
    ]
}

fn appliance_routes() -> Vec<Route> {
    vec![
        Route::get("/v1/namespaces/{namespace}/volumes", appliance::volumes, Access::permission(Action::ListVolumes))
            .describe("listVolumes", "Lists the volumes that a job of this namespace can mount")
            .json("VolumeList"),
        Route::get("/v1/appliance", appliance::read, READ_APPLIANCE)
            .describe("getAppliance", "Returns the systems of an appliance, the jobs that use them, and the queue")
            .query::<ApplianceQuery>()
            .json("ApplianceView"),
    ]
}

fn account_routes() -> Vec<Route> {
    vec![
        Route::get("/v1/whoami", appliance::whoami, Access::Authenticated)
            .describe("getIdentity", "Returns the name and the permissions of the caller")
            .json("Identity"),
        Route::get("/v1/tokens", tokens::list, Access::permission(Action::ListTokens))
            .describe("listTokens", "Lists all API tokens, without their secrets")
            .json("TokenList"),
        Route::post("/v1/tokens", tokens::create, Access::permission(Action::CreateToken))
            .describe("createToken", "Creates an API token; only this response contains its secret")
            .body(RequestBodyKind::Component("TokenRequest"))
            .status(201)
            .json("CreatedToken"),
        Route::delete("/v1/tokens/{id}", tokens::revoke, Access::permission(Action::DeleteToken))
            .describe("revokeToken", "Revokes an API token and its sessions")
            .json("RevokedToken"),
        Route::post("/v1/session", session::create_session, Access::BearerToken)
            .describe("createSession", "Creates a browser session of the token and sets its cookie")
            .json("Session")
            .response_headers(&["Set-Cookie"]),
        Route::delete("/v1/session", session::delete_session, Access::Authenticated)
            .describe("deleteSession", "Ends the session of the cookie")
            .json("SessionEnded")
            .response_headers(&["Set-Cookie"]),
    ]
}

fn public_routes() -> Vec<Route> {
    let document = ResponseKind::Json(json!({"type": "object"}));
    vec![
        Route::get("/v1/version", appliance::version, Access::Public)
            .describe("getVersion", "Returns the version of the server and the name of its backend")
            .json("ServerVersion"),
        Route::get("/", openapi::home, Access::Public)
            .describe("getHomePage", "Returns the home page of the server")
            .response(ResponseKind::Html),
        Route::get("/openapi.json", openapi::serve_document, Access::Public)
            .describe("getOpenApiDocument", "Returns this document")
            .response(document),
        Route::get("/docs", openapi::page, Access::Public)
            .describe("getDocumentationPage", "Returns this document as a page")
            .response(ResponseKind::Html),
        Route::get("/healthz", appliance::healthz, Access::Public)
            .describe("checkHealth", "Reports whether the loops of the server make progress"),
        Route::get("/readyz", appliance::readyz, Access::Public)
            .describe("checkReadiness", "Reports whether the database answers"),
    ]
}
