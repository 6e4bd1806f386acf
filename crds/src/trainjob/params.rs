//! The params of a job, as stored in the object.

use std::borrow::Cow;

use millrace_params::{Params, ParamsError};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema::{params, ranges};

/// The params document of a TrainJob, stored unread.
///
/// An API server has checked it against its schema. But some keys have several shapes, which a schema can't
/// distinguish, and the document may come from a newer version. It is therefore read when it is needed
/// ([`StoredParams::read`]), and an object with unreadable params can still be handled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoredParams(pub Value);

const MAX_SAFE_INTEGER: f64 = ((1_u64 << 53) - 1) as f64;

/// Ranges of keys, equal to those of the params reader, so that the API server rejects the most common mistakes at
/// once.
const RANGES: &[(&str, f64, f64)] = &[
    ("train_input.batch_size", 1.0, 16_777_216.0),
    ("train_input.max_sequence_length", 1.0, 4_194_304.0),
    ("train_input.validation_fraction", 0.0, 1.0),
    ("eval_input.batch_size", 1.0, 16_777_216.0),
    ("eval_input.max_sequence_length", 1.0, 4_194_304.0),
    ("eval_input.validation_fraction", 0.0, 1.0),
    ("model.vocab_size", 1.0, 16_777_216.0),
    ("model.hidden_size", 1.0, 1_048_576.0),
    ("model.num_hidden_layers", 1.0, 16_384.0),
    ("model.num_heads", 1.0, 1_048_576.0),
    ("model.filter_size", 1.0, 1_048_576.0),
    ("model.max_position_embeddings", 1.0, 4_194_304.0),
    ("model.dropout_rate", 0.0, 1.0),
    ("model.embedding_dropout_rate", 0.0, 1.0),
    ("model.attention_dropout_rate", 0.0, 1.0),
    ("runconfig.max_steps", 1.0, MAX_SAFE_INTEGER),
    ("runconfig.max_epochs", 1.0, MAX_SAFE_INTEGER),
    ("runconfig.num_epochs", 1.0, MAX_SAFE_INTEGER),
    ("runconfig.eval_steps", 0.0, MAX_SAFE_INTEGER),
    ("runconfig.eval_frequency", 1.0, MAX_SAFE_INTEGER),
    ("runconfig.max_checkpoints", 1.0, MAX_SAFE_INTEGER),
    ("runconfig.num_csx", 1.0, 65_536.0),
];

impl StoredParams {
    /// Reads the document strictly.
    ///
    /// # Errors
    /// As [`Params::read_json`]: the messages are those for a file, with keys instead of lines.
    pub fn read(&self) -> Result<Params, ParamsError> {
        Params::read_json(&self.0)
    }
}

impl From<&Params> for StoredParams {
    fn from(params: &Params) -> Self {
        // A document that was read contains only finite numbers, strings, lists and mappings, all of which JSON can
        // represent.
        Self(serde_json::to_value(params).unwrap_or_default())
    }
}

impl JsonSchema for StoredParams {
    fn schema_name() -> Cow<'static, str> {
        Params::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = Params::json_schema(generator);
        params(&mut schema);
        ranges(&mut schema, RANGES);
        schema
    }
}

/// Returns the schema of [`TrainJobSpec::later_phases`](super::TrainJobSpec::later_phases). The keys of a phase are
/// those of the params, which the definition states once: twice, it would be too large for `kubectl apply`.
pub(super) fn later_phases(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    })
}

#[cfg(test)]
mod tests {
    use millrace_params::FlagOverrides;
    use serde_json::json;

    use super::*;

    fn with(mut document: Value, path: &str, value: f64) -> StoredParams {
        let (section, key) = path.split_once('.').unwrap();
        let value = if value.fract() == 0.0 { json!(value as i64) } else { json!(value) };
        document[section][key] = value;
        StoredParams(document)
    }

    /// The reader rejects every value that the API server rejects; the ranges only reject it earlier.
    #[test]
    fn ranges_are_the_readers() {
        let example = Params::parse_yaml(include_str!("../../../examples/gpt2-kjv.yaml")).unwrap();
        let inline = schemars::generate::SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
        let schema = inline.into_generator().into_root_schema_for::<StoredParams>().to_value();
        let document = StoredParams::from(&example).0;
        for (path, min, max) in RANGES {
            let pointer = path.split('.').map(|key| format!("/properties/{key}")).collect::<String>();
            let minimum = schema.pointer(&pointer).and_then(|key| key["minimum"].as_f64());
            assert_eq!(minimum, Some(*min), "{path}");
            let outside = [min - 1.0, max + 1.0];
            for value in outside.into_iter().filter(|value| *value <= MAX_SAFE_INTEGER) {
                let params = with(document.clone(), path, value).read();
                let error = params.and_then(|params| params.resolve(&FlagOverrides::default())).unwrap_err();
                assert!(error.problems().any(|problem| problem.key == *path), "{path}: {value}: {error}");
            }
        }
    }
}
