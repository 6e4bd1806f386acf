//! The named schemas of requests and responses, generated from types where one exists.

use serde_json::{Value, json};

use super::super::problem::Problem;
use super::super::schema::{request_schema, response_schema};
use super::super::submit::SubmitOptions;
use super::super::{ItemList, appliance, blobs, files, generate, jobs, record_views, session, tokens};
use crate::admission::{object_schema, schemas};
use crate::backend::VolumeInfo;
use crate::blobs::{BlobList, BlobStatus};
use crate::files::{CheckpointFiles, FileInfo};

pub fn components() -> Value {
    let [_, job] = schemas();
    let mut new_job = object_schema(&job, true);
    new_job["required"] = json!(["spec"]);
    let text = || json!({"type": "string"});
    json!({
        "TrainJob": object_schema(&job, false),
        "NewTrainJob": new_job,
        "TrainJobList": {"type": "object", "required": ["items", "next"], "properties": {
            "items": {"type": "array", "items": {"$ref": "#/components/schemas/TrainJob"}},
            "next": {"type": ["string", "null"], "description": "The next page's cursor."},
        }},
        "SubmitOptions": request_schema::<SubmitOptions>(),
        "ScaleRequest": request_schema::<jobs::ScaleRequest>(),
        "Event": response_schema::<record_views::EventView>(),
        // Metrics and logs are passed on as the coordinator wrote them, whatever its version, so there is no type for
        // them.
        "MetricPoint": {"type": "object", "properties": {
            "number": {"type": "integer"}, "time": text(), "attempt": {"type": "integer"}, "step": {"type": "integer"},
            "loss": {"type": "number"}, "mode": {"const": "eval"}, "learning_rate": {"type": "number"},
            "grad_norm": {"type": "number"}, "tokens": {"type": "integer"}, "seconds": {"type": "number"}, "rate": {"type": "number"},
        }},
        "LogLine": {"type": "object", "properties": {
            "number": {"type": "integer"}, "time": text(), "attempt": {"type": "integer"}, "agent": text(), "level": text(),
            "message": text(), "fields": {"type": "object"},
        }},
        "GenerateRequest": request_schema::<generate::GenerateRequest>(),
        "GeneratedText": response_schema::<generate::GeneratedText>(),
        "CheckpointList": response_schema::<ItemList<CheckpointFiles>>(),
        "FileList": response_schema::<ItemList<FileInfo>>(),
        "CheckpointFileList": response_schema::<files::FileSetListing>(),
        "BlobAnnouncement": request_schema::<blobs::BlobAnnouncement>(),
        "BlobStatus": response_schema::<BlobStatus>(),
        "BlobList": response_schema::<BlobList>(),
        "VolumeList": response_schema::<ItemList<VolumeInfo>>(),
        "ApplianceView": response_schema::<appliance::ApplianceView>(),
        "Identity": response_schema::<appliance::CallerIdentity>(),
        "ServerVersion": response_schema::<appliance::ServerVersion>(),
        "Session": response_schema::<session::SessionStarted>(),
        "SessionEnded": response_schema::<session::SessionEnded>(),
        "TokenRequest": request_schema::<tokens::TokenRequest>(),
        "CreatedToken": response_schema::<tokens::CreatedToken>(),
        "TokenList": response_schema::<ItemList<tokens::TokenView>>(),
        "RevokedToken": response_schema::<tokens::RevokedToken>(),
        "Problem": response_schema::<Problem<'_>>(),
    })
}
