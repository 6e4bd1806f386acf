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

use serde_json::Value;

use super::Launch;

/// Version of this program.
pub const VERSION: u32 = 2;
/// Version of documents that name none.
pub const FIRST_VERSION: u32 = 1;

/// A launch document can't be read, or can't be written for agents of an earlier version.
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
        /// Version of the agents.
        version: u32,
        /// Paths of the fields that these agents do not know; at least one of them makes a difference.
        fields: Vec<String>,
    },
    /// The text is not a launch document.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

pub(super) const fn first_version() -> u32 {
    FIRST_VERSION
}

/// The keys that an object may have.
enum Keys {
    /// No restriction: for a value that is not an object, or an object whose keys are all in version 1.
    Any,
    /// These keys only, each with the keys allowed below it.
    Only(&'static [(&'static str, Keys)]),
}

use Keys::{Any, Only};

/// Keys of the launch document of version 1.
const FIRST_KEYS: Keys = Only(&[
    ("job", FIRST_JOB),
    ("appliance", FIRST_APPLIANCE),
    ("mode", Any),
    ("model_dir", Any),
    ("attempt", Any),
    ("job_uid", Any),
    (
        "resume",
        Only(&[("checkpoint_path", Any), ("states", FIRST_STATES), ("autoload", Any), ("accept_other_profile", Any)]),
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

const FIRST_JOB: Keys = Only(&[
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
    ("train_input", FIRST_INPUT),
    ("eval_input", FIRST_INPUT),
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
            ("load_checkpoint_states", FIRST_STATES),
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

const FIRST_INPUT: Keys = Only(&[
    ("source", Any),
    ("split", Any),
    ("batch_size", Any),
    ("micro_batch_size", Any),
    ("max_sequence_length", Any),
    ("shuffle", Any),
    ("shuffle_seed", Any),
]);

const FIRST_STATES: Keys =
    Only(&[("model", Any), ("optimizer", Any), ("dataloader", Any), ("lr_scheduler", Any), ("global_step", Any)]);

const FIRST_APPLIANCE: Keys = Only(&[
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
const FIRST_ONLY: &[(&str, &str, &str)] = &[];

/// Writes `launch` as version 1. A field that version 1 does not know is left out if the document means the same
/// without it.
pub(super) fn to_first_version(launch: &Launch) -> Result<String, DocumentError> {
    let mut document = serde_json::to_value(Launch { version: FIRST_VERSION, ..launch.clone() })?;
    let mut dropped = Vec::new();
    keep_only(&mut document, &FIRST_KEYS, "", &mut dropped);
    // A field may be left out if its default equals its value.
    let read: Launch = serde_json::from_value(document.clone())?;
    if read != (Launch { version: FIRST_VERSION, ..launch.clone() }) {
        dropped.retain(|field| field != "version");
        return Err(DocumentError::Inexpressible { version: FIRST_VERSION, fields: dropped });
    }
    for (object, key, value) in FIRST_ONLY {
        if let Some(Value::Object(object)) = document.pointer_mut(object) {
            object.insert((*key).to_owned(), serde_json::from_str(value)?);
        }
    }
    Ok(document.to_string())
}

/// Removes from `value`, which is at `path`, all keys that `keys` does not allow, and adds their paths to `dropped`.
fn keep_only(value: &mut Value, keys: &Keys, path: &str, dropped: &mut Vec<String>) {
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
    fn what_the_first_version_does_not_know_is_taken_out_and_named() {
        let mut document =
            json!({"version": 2, "job": {"model": {"vocab_size": 1, "rotary": true}}, "notes": [{"a": 1}]});
        let mut dropped = Vec::new();
        keep_only(&mut document, &FIRST_KEYS, "", &mut dropped);
        assert_eq!(document, json!({"job": {"model": {"vocab_size": 1}}, "notes": [{"a": 1}]}));
        dropped.sort();
        assert_eq!(dropped, ["job.model.rotary", "version"]);
    }
}
