//! Quantities of CPU, memory and storage in Kubernetes' notation: `2`, `500m`, `4Gi`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

/// Pattern of the quantities that Kubernetes accepts.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Quantities by resource name, such as `cpu: 500m` and `memory: 2Gi`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResourceList(#[serde(deserialize_with = "amounts")] pub BTreeMap<String, Quantity>);

impl JsonSchema for ResourceList {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantities".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object", "maxProperties": 16, "additionalProperties": amount_schema()})
    }
}

/// Returns the schema of one quantity, for `schemars(schema_with)`.
pub(crate) fn quantity_schema(_: &mut SchemaGenerator) -> Schema {
    amount_schema()
}

fn amount_schema() -> Schema {
    json_schema!({
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": QUANTITY_PATTERN,
        "maxLength": 32,
        "x-kubernetes-int-or-string": true,
    })
}

/// A quantity as users write it: `cpu: 2` is a number, `cpu: 500m` a string.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawQuantity {
    Whole(i64),
    Text(String),
}

impl From<RawQuantity> for Quantity {
    fn from(written: RawQuantity) -> Self {
        match written {
            RawQuantity::Whole(amount) => Self(amount.to_string()),
            RawQuantity::Text(text) => Self(text),
        }
    }
}

fn amounts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Quantity>, D::Error> {
    let written = BTreeMap::<String, RawQuantity>::deserialize(deserializer)?;
    Ok(written.into_iter().map(|(name, amount)| (name, amount.into())).collect())
}

/// Reads one quantity, for `serde(deserialize_with)`.
pub(crate) fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Quantity, D::Error> {
    Ok(RawQuantity::deserialize(deserializer)?.into())
}
