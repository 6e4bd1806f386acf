//! The conditions of jobs, in Kubernetes' format.

use schemars::{Schema, SchemaGenerator, json_schema};

/// The conditions of a TrainJob. All of them are set by the first reconcile, so that `kubectl wait` always finds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// The params are valid, and the job can run on the appliance.
    Accepted,
    /// The job holds the systems that it requested.
    Admitted,
    /// Every agent of every role exists and is ready.
    RolesReady,
    /// Steps are being committed.
    Progressing,
    /// The newest checkpoint was written, and the last try to write one did not fail.
    Checkpointed,
    /// The storage of model_dir responds to the writes of the job. Its status is Unknown while no attempt reports.
    StorageResponding,
    /// The job is suspended: it has saved its state and holds no systems.
    Suspended,
    /// The summary. Its status is Unknown while the job is not finished; its reason is the job's
    /// [`JobState`](crate::JobState).
    Succeeded,
    /// The job has finished, successfully or not.
    Finished,
}

impl ConditionType {
    /// All conditions, in the order in which a job usually reaches them.
    pub const ALL: [Self; 9] = [
        Self::Accepted,
        Self::Admitted,
        Self::RolesReady,
        Self::Progressing,
        Self::Checkpointed,
        Self::StorageResponding,
        Self::Suspended,
        Self::Succeeded,
        Self::Finished,
    ];

    /// Returns the name in `conditions[].type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Admitted => "Admitted",
            Self::RolesReady => "RolesReady",
            Self::Progressing => "Progressing",
            Self::Checkpointed => "Checkpointed",
            Self::StorageResponding => "StorageResponding",
            Self::Suspended => "Suspended",
            Self::Succeeded => "Succeeded",
            Self::Finished => "Finished",
        }
    }
}

/// Returns Kubernetes' own schema of conditions, with its bounds.
pub(crate) fn conditions_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "description": "One aspect of the object's state.",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "type": "string",
                    "description": "Type of the condition.",
                    "maxLength": 63,
                    "pattern": "^[A-Z][A-Za-z0-9]*$",
                },
                "status": {
                    "type": "string",
                    "description": "Status of the condition: True, False or Unknown.",
                    "enum": ["True", "False", "Unknown"],
                },
                "observedGeneration": {
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                    "description": "Generation of the spec that the condition is based on.",
                },
                "lastTransitionTime": {
                    "type": "string",
                    "format": "date-time",
                    "description": "Time of the last change of the status.",
                },
                "reason": {
                    "type": "string",
                    "description": "Reason for the status, as one word for programs.",
                    "minLength": 1,
                    "maxLength": 63,
                    "pattern": "^[A-Z][A-Za-z0-9]*$",
                },
                "message": {
                    "type": "string",
                    "description": "Reason for the status, as a sentence for people.",
                    "maxLength": 4096,
                },
            },
        },
    })
}
