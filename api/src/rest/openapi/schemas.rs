//! The named schemas of requests and responses, generated from types where one exists.

use serde_json::{Value, json};

use super::super::problem::Problem;
use super::super::submit::Beside;
use super::super::{Items, appliance, files, jobs, records, session, tokens};
use super::{answer_of, schema_of};
use crate::backend::Volume;
use crate::definition::{object_schema, schemas};
use crate::files::{CheckpointFiles, FileInfo};

/// Returns all named schemas.
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
        "Beside": schema_of::<Beside>(),
        "Scale": schema_of::<jobs::Scale>(),
        "Event": answer_of::<records::Told>(),
        // Metrics and logs are passed on as the coordinator wrote them, whatever its version, so there is no type for
        // them.
        "Metric": {"type": "object", "properties": {
            "number": {"type": "integer"}, "time": text(), "attempt": {"type": "integer"}, "step": {"type": "integer"},
            "loss": {"type": "number"}, "mode": {"const": "eval"}, "learning_rate": {"type": "number"},
            "grad_norm": {"type": "number"}, "tokens": {"type": "integer"}, "seconds": {"type": "number"}, "rate": {"type": "number"},
        }},
        "Log": {"type": "object", "properties": {
            "number": {"type": "integer"}, "time": text(), "attempt": {"type": "integer"}, "agent": text(), "level": text(),
            "message": text(), "fields": {"type": "object"},
        }},
        "CheckpointList": answer_of::<Items<CheckpointFiles>>(),
        "FileList": answer_of::<Items<FileInfo>>(),
        "Files": answer_of::<files::Listed>(),
        "VolumeList": answer_of::<Items<Volume>>(),
        "ApplianceView": answer_of::<appliance::View>(),
        "Who": answer_of::<appliance::Oneself>(),
        "Version": answer_of::<appliance::Version>(),
        "Session": answer_of::<session::Begun>(),
        "Ended": answer_of::<session::Ended>(),
        "NewToken": schema_of::<tokens::NewToken>(),
        "MadeToken": answer_of::<tokens::Made>(),
        "TokenList": answer_of::<Items<tokens::Shown>>(),
        "Revoked": answer_of::<tokens::Revoked>(),
        "Problem": answer_of::<Problem<'_>>(),
    })
}
