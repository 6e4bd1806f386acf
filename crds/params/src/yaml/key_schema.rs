//! Descriptions of keys in JSON schemas.

use schemars::Schema;
use schemars::transform::Transform;
use serde_json::Value;

use super::camel_case;
use crate::keys::SectionReference;

/// Returns a transform that adds defaults and choices to the descriptions of a section's properties.
pub(crate) fn describe_keys(section: &'static SectionReference) -> impl Transform {
    move |schema: &mut Schema| {
        let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
        for key in section.keys {
            for name in [key.name.to_owned(), camel_case(key.name)] {
                if let Some(property) = properties.get_mut(&name).and_then(Value::as_object_mut) {
                    property.insert("description".into(), key.summary().into());
                }
            }
        }
    }
}
