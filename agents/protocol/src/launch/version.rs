//! Versions of the formats that a job's processes and the program that starts them agree on.
//!
//! One number covers all of them: the launch document, the arguments of a role, and the authentication of the ports
//! between agents. A job keeps the image of its first attempt, so a program may start agents of any earlier version. It
//! then writes the document as that version reads it. A reader rejects versions later than its own.
//!
//! | version | releases | differs in |
//! |---|---|---|
//! | 1 | 0.1.0 | names no version; rejects unknown fields |
//! | 2 | later | names its version; ignores unknown fields |

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::LaunchDocument;

/// Version of this program.
pub const VERSION: u32 = 2;
/// Version of documents that name none.
pub const V1: u32 = 1;

/// A launch document can't be read, or can't be written for agents of an earlier version.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The document was written by a later release.
    #[error(
        "it has version {found}, and this program reads versions up to {VERSION}: run the release that wrote it, or a later one"
    )]
    NewerVersion {
        /// Version that the document names.
        found: u32,
    },
    /// Agents of an earlier version would not do what the document says.
    #[error(
        "agents of version {version} do not know {}: create the job again, so that it runs agents of this release",
        fields.join(", ")
    )]
    Inexpressible {
        version: u32,
        /// Paths of the fields that these agents do not know; at least one of them makes a difference.
        fields: Vec<String>,
    },
    /// The text is not a launch document.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Reads a document that names its version, or has version 1.
///
/// # Errors
/// [`DocumentError::NewerVersion`], or [`DocumentError::Json`] if the text is not such a document.
pub(super) fn from_versioned_json<T: DeserializeOwned>(json: &str) -> Result<T, DocumentError> {
    #[derive(Deserialize)]
    struct Version {
        #[serde(default = "v1")]
        version: u32,
    }
    let Version { version: found } = serde_json::from_str(json)?;
    if found > VERSION {
        return Err(DocumentError::NewerVersion { found });
    }
    Ok(serde_json::from_str(json)?)
}

pub(super) const fn v1() -> u32 {
    V1
}

/// The keys that an object may have.
enum AllowedKeys {
    /// No restriction: for a value that is not an object, or an object whose keys are all in version 1.
    Any,
    /// These keys only, each with the keys allowed below it.
    Only(&'static [(&'static str, AllowedKeys)]),
}

use AllowedKeys::{Any, Only};

/// Keys of the launch document of version 1.
const V1_KEYS: AllowedKeys = Only(&[
    ("job", V1_JOB_KEYS),
    ("appliance", V1_APPLIANCE_KEYS),
    ("mode", Any),
    ("model_dir", Any),
    ("attempt", Any),
    ("job_uid", Any),
    (
        "resume",
        Only(&[("checkpoint_path", Any), ("states", V1_STATES_KEYS), ("autoload", Any), ("accept_other_profile", Any)]),
    ),
    (
        "wanted",
        Only(&[
            ("systems", Any),
            ("least_systems", Any),
            ("shards", Any),
            ("swarmx", Any),
            ("fan_out", Any),
            ("activation_servers", Any),
        ]),
    ),
    ("isa", Any),
    ("notes", Any),
    ("without_effect", Any),
    ("params_yaml", Any),
]);

const V1_JOB_KEYS: AllowedKeys = Only(&[
    (
        "model",
        Only(&[
            ("family", Any),
            ("vocab_size", Any),
            ("hidden_size", Any),
            ("num_hidden_layers", Any),
            ("num_heads", Any),
            ("filter_size", Any),
            ("max_position_embeddings", Any),
            ("use_position_embedding", Any),
            ("share_embedding_weights", Any),
            ("dropout_rate", Any),
            ("embedding_dropout_rate", Any),
            ("attention_dropout_rate", Any),
            ("layer_norm_epsilon", Any),
            ("attention_scale", Any),
            ("nonlinearity", Any),
            ("use_projection_bias_in_attention", Any),
            ("use_ffn_bias_in_attention", Any),
            ("use_ffn_bias", Any),
            ("use_bias_in_output", Any),
            ("initializers", Only(&[("embedding", Any), ("hidden", Any), ("residual_output", Any), ("lm_head", Any)])),
            ("precision", Any),
            ("loss_scaling", Any),
            ("loss_weight", Any),
            ("compute_eval_metrics", Any),
        ]),
    ),
    ("optimizer", Only(&[("kind", Any), ("weight_decay", Any), ("max_gradient_norm", Any), ("schedule", Any)])),
    ("train_input", V1_INPUT_KEYS),
    ("eval_input", V1_INPUT_KEYS),
    (
        "run",
        Only(&[
            ("mode", Any),
            ("model_dir", Any),
            ("summary_dir", Any),
            ("max_steps", Any),
            ("eval_steps", Any),
            ("eval_frequency", Any),
            ("checkpoint_steps", Any),
            ("max_checkpoints", Any),
            ("save_initial_checkpoint", Any),
            ("autoload_last_checkpoint", Any),
            ("checkpoint_path", Any),
            ("load_checkpoint_states", V1_STATES_KEYS),
            ("disable_strict_checkpoint_loading", Any),
            ("log_steps", Any),
            ("summary_steps", Any),
            ("logging", Any),
            ("seed", Any),
            ("check_loss_values", Any),
            ("num_csx", Any),
            ("num_wgt_servers", Any),
            ("num_act_servers", Any),
            ("compile_only", Any),
            ("validate_only", Any),
            ("job_labels", Any),
        ]),
    ),
]);

const V1_INPUT_KEYS: AllowedKeys = Only(&[
    ("source", Any),
    ("split", Any),
    ("batch_size", Any),
    ("micro_batch_size", Any),
    ("max_sequence_length", Any),
    ("shuffle", Any),
    ("shuffle_seed", Any),
]);

const V1_STATES_KEYS: AllowedKeys =
    Only(&[("model", Any), ("optimizer", Any), ("dataloader", Any), ("lr_scheduler", Any), ("global_step", Any)]);

const V1_APPLIANCE_KEYS: AllowedKeys = Only(&[
    ("systems", Any),
    (
        "wafer",
        Only(&[
            ("memory_bytes", Any),
            ("memory_bandwidth", Any),
            ("fabric_bandwidth", Any),
            ("cores", Any),
            ("clock_hz", Any),
            ("peak_flops", Any),
            ("utilisation", Any),
            ("link_bytes_per_s", Any),
        ]),
    ),
    ("memoryx", Only(&[("shards", Any), ("memory_bytes", Any), ("memory_bandwidth", Any)])),
    ("swarmx", Only(&[("fan_out", Any), ("nodes", Any)])),
    ("activation_servers", Any),
    ("threads", Any),
    ("link", Only(&[("chunk_bytes", Any), ("window_chunks", Any)])),
]);

/// Values that version 1 requires and later versions have no field for: JSON pointer of the object, key, and the
/// default of release 0.1.0 as JSON.
const V1_ONLY_VALUES: &[(&str, &str, &str)] = &[];

/// Writes `launch` as version 1. A field that version 1 does not know is left out if the document means the same
/// without it.
pub(super) fn to_v1(launch: &LaunchDocument) -> Result<String, DocumentError> {
    let mut document = serde_json::to_value(LaunchDocument { version: V1, ..launch.clone() })?;
    let mut dropped = Vec::new();
    keep_only(&mut document, &V1_KEYS, "", &mut dropped);
    // A field may be left out if its default equals its value.
    let read: LaunchDocument = serde_json::from_value(document.clone())?;
    if read != (LaunchDocument { version: V1, ..launch.clone() }) {
        dropped.retain(|field| field != "version");
        return Err(DocumentError::Inexpressible { version: V1, fields: dropped });
    }
    for (object, key, value) in V1_ONLY_VALUES {
        if let Some(Value::Object(object)) = document.pointer_mut(object) {
            object.insert((*key).to_owned(), serde_json::from_str(value)?);
        }
    }
    // Coordinators of release 0.1.0 always had all systems.
    if let Some(Value::Object(wanted)) = document.pointer_mut("/wanted") {
        wanted.insert("least_systems".to_owned(), launch.agent_counts.systems.into());
    }
    Ok(document.to_string())
}

/// Removes from `value`, which is at `path`, all keys that `keys` does not allow, and adds their paths to `dropped`.
fn keep_only(value: &mut Value, keys: &AllowedKeys, path: &str, dropped: &mut Vec<String>) {
    let (Value::Object(object), Only(keys)) = (value, keys) else { return };
    let place = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    object.retain(|key, _| {
        let known = keys.iter().any(|(name, _)| name == key);
        if !known {
            dropped.push(place(key));
        }
        known
    });
    for (key, below) in *keys {
        if let Some(value) = object.get_mut(*key) {
            keep_only(value, below, &place(key), dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_unknown_to_v1_are_removed_and_reported() {
        let mut document =
            json!({"version": 2, "job": {"model": {"vocab_size": 1, "rotary": true}}, "notes": [{"a": 1}]});
        let mut dropped = Vec::new();
        keep_only(&mut document, &V1_KEYS, "", &mut dropped);
        assert_eq!(document, json!({"job": {"model": {"vocab_size": 1}}, "notes": [{"a": 1}]}));
        dropped.sort();
        assert_eq!(dropped, ["job.model.rotary", "version"]);
    }
}
