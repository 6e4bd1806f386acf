//! JSON schemas of request and response types, for the table of routes and the OpenAPI document.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// Returns the schema of a type that is deserialized, with its subschemas inlined.
pub fn request_schema<T: JsonSchema>() -> Value {
    inline_schema::<T>(SchemaSettings::draft2020_12())
}

/// Returns the schema of a type that is serialized, with its subschemas inlined.
pub fn response_schema<T: JsonSchema>() -> Value {
    inline_schema::<T>(SchemaSettings::draft2020_12().for_serialize())
}

fn inline_schema<T: JsonSchema>(mut settings: SchemaSettings) -> Value {
    settings.meta_schema = None;
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    // The place that refers to the schema has the name.
    schema.remove("title");
    schema.to_value()
}
