//! Converts the schemas of Rust types to those that an API server accepts, and bounds every value.
//!
//! * An API server accepts only *structural* schemas: no unions of shapes, no lists of types.
//! * It estimates the cost of CEL rules from the largest possible value, so an unbounded value makes every rule near it
//!   too expensive.
//!
//! [`spec`], [`params`] and [`status`] convert the parts of a resource. Each leaves alone what another has converted.

use schemars::Schema;
use serde_json::{Map, Value, json};

/// Maximum length of a string whose type sets no other.
const MAX_STRING_LENGTH: u64 = 1024;
/// Maximum length of a list.
const MAX_LIST_ITEMS: u64 = 256;
/// Maximum size of a map.
const MAX_MAP_ENTRIES: u64 = 64;
/// Largest integer that every JSON reader represents exactly.
const MAX_INTEGER: u64 = (1 << 53) - 1;

/// The part of a resource that a schema describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResourceSection {
    /// The requested state: defaults are shown, and the API server fills them in.
    Spec,
    /// The params document within the spec. A `null` counts as absent, because the public model zoo's files have many
    /// of them. Nothing is filled in: descriptions state the default of each key.
    Params,
    /// The observed state: nothing is filled in.
    Status,
}

/// Makes the schema of a `spec` structural and bounded.
pub(crate) fn spec(schema: &mut Schema) {
    convert_node(schema.ensure_object(), ResourceSection::Spec);
}

/// Makes the schema of the params document structural and bounded.
pub(crate) fn params(schema: &mut Schema) {
    convert_node(schema.ensure_object(), ResourceSection::Params);
}

/// Makes the schema of a `status` structural and bounded.
pub(crate) fn status(schema: &mut Schema) {
    convert_node(schema.ensure_object(), ResourceSection::Status);
}

/// Bounds integers and numbers. Each row has the path of a key, the minimum and the maximum.
pub(crate) fn ranges(schema: &mut Schema, rows: &[(&str, f64, f64)]) {
    for (path, least, maximum) in rows {
        let pointer = path.split('.').map(|key| format!("/properties/{key}")).collect::<String>();
        if let Some(Value::Object(key)) = schema.pointer_mut(&pointer) {
            key.insert("minimum".into(), number(*least));
            key.insert("maximum".into(), number(*maximum));
        }
    }
}

/// Converts a whole number to a JSON integer, which is easier to read.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 { json!(value as i64) } else { json!(value) }
}

/// Marks a list as a map: no two items may have the same `key`, and the API server merges each item on its own.
pub(crate) fn keyed_by(schema: &mut Schema, key: &str) {
    schema.insert("x-kubernetes-list-type".into(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".into(), json!([key]));
}

/// Marks a list as free of duplicates.
pub(crate) fn set(schema: &mut Schema) {
    schema.insert("x-kubernetes-list-type".into(), "set".into());
}

fn convert_node(schema: &mut Map<String, Value>, part: ResourceSection) {
    schema.remove("title");
    let mut nullable = take_null(schema);
    documented_enum(schema);
    if is_union(schema) {
        nullable = true;
        let description = schema.remove("description");
        schema.clear();
        schema.extend(description.map(|text| ("description".to_owned(), text)));
        schema.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
    }
    if nullable && part == ResourceSection::Params {
        schema.insert("nullable".into(), true.into());
    }
    if part != ResourceSection::Spec || schema.get("default").is_some_and(is_empty) {
        schema.remove("default");
    }
    if schema.contains_key("x-kubernetes-int-or-string") {
        // The alternatives say the same as the extension, and later steps would garble them.
        schema.remove("anyOf");
        schema.entry("nullable").or_insert(false.into());
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = reflow(text);
    }
    bound(schema);
    children(schema, part);
}

/// Joins lines, so that each tool can wrap the text: only paragraphs and list items begin new lines.
fn reflow(text: &str) -> String {
    let mut flow = String::with_capacity(text.len());
    for line in text.lines().map(str::trim_end) {
        match flow.chars().last() {
            None => {}
            Some('\n') => {}
            Some(_) if line.is_empty() || line.starts_with("- ") => flow.push('\n'),
            Some(_) => flow.push(' '),
        }
        if line.is_empty() {
            flow.push('\n');
        }
        flow.push_str(line);
    }
    flow
}

fn children(schema: &mut Map<String, Value>, part: ResourceSection) {
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for property in properties.values_mut() {
            convert_node(as_object(property), part);
        }
        // The properties say this already: an API server prunes or rejects keys that they do not name.
        schema.remove("additionalProperties");
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = schema.get_mut(key) {
            convert_node(as_object(child), part);
        }
    }
}

/// Returns the schema's keywords. The schema `true`, which allows anything, has none.
fn as_object(schema: &mut Value) -> &mut Map<String, Value> {
    if !schema.is_object() {
        *schema = Value::Object(Map::new());
    }
    match schema {
        Value::Object(map) => map,
        _ => unreachable!("the value was set to an object above"),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        _ => false,
    }
}

/// Removes `null` from the types and alternatives; returns whether it was there. A single remaining alternative moves
/// up.
fn take_null(schema: &mut Map<String, Value>) -> bool {
    let mut found = false;
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        found = true;
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(mut alternatives)) = schema.remove("anyOf") {
        let before = alternatives.len();
        alternatives.retain(|alternative| alternative.get("type") != Some(&json!("null")));
        found |= alternatives.len() < before;
        match (alternatives.len(), alternatives.pop()) {
            (1, Some(Value::Object(only))) => {
                for (key, value) in only {
                    schema.entry(key).or_insert(value);
                }
                found |= take_null(schema);
            }
            (_, last) => {
                alternatives.extend(last);
                schema.insert("anyOf".into(), alternatives.into());
            }
        }
    }
    found
}

/// Converts an enum with documented variants, which schemars writes as one alternative per constant, to a plain `enum`.
/// The description lists the meaning of the variants, so that `kubectl explain` shows it.
fn documented_enum(schema: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = schema.get("oneOf") else { return };
    let constant = |variant: &Value| match (variant.get("const"), variant.get("enum")) {
        (Some(value), _) => vec![value.clone()],
        (None, Some(Value::Array(values))) => values.clone(),
        _ => Vec::new(),
    };
    let values: Vec<Value> = variants.iter().flat_map(constant).collect();
    if values.len() < variants.len() {
        return;
    }
    let mut text = schema.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    for variant in variants {
        let means = variant.get("description").and_then(Value::as_str).unwrap_or_default();
        for value in constant(variant).iter().filter_map(Value::as_str) {
            text.push_str(&format!("\n- `{value}`: {means}"));
        }
    }
    schema.remove("oneOf");
    schema.insert("type".into(), "string".into());
    schema.insert("enum".into(), values.into());
    schema.insert("description".into(), text.into());
}

/// Returns whether the schema allows several shapes, which only the operator can distinguish.
fn is_union(schema: &Map<String, Value>) -> bool {
    let has_key = |key: &str| schema.contains_key(key);
    if has_key("x-kubernetes-int-or-string") {
        return false;
    }
    has_key("anyOf")
        || has_key("oneOf")
        || !(has_key("type") || has_key("enum") || has_key("x-kubernetes-preserve-unknown-fields"))
}

fn bound(schema: &mut Map<String, Value>) {
    let of_type = |schema: &Map<String, Value>, name: &str| schema.get("type") == Some(&json!(name));
    if schema.contains_key("enum") || schema.get("format") == Some(&json!("date-time")) {
        return;
    }
    if of_type(schema, "string") || schema.contains_key("x-kubernetes-int-or-string") {
        schema.entry("maxLength").or_insert(MAX_STRING_LENGTH.into());
    }
    if of_type(schema, "array") {
        schema.entry("maxItems").or_insert(MAX_LIST_ITEMS.into());
    }
    if of_type(schema, "object") && schema.get("additionalProperties").is_some_and(|a| !a.is_boolean()) {
        schema.entry("maxProperties").or_insert(MAX_MAP_ENTRIES.into());
    }
    if of_type(schema, "integer") {
        // An API server knows int32 and int64. The lower bound of unsigned types is already set.
        let maximum = match schema.get("format").and_then(Value::as_str) {
            Some("int32") => return,
            Some("uint32") => u64::from(u32::MAX),
            _ => MAX_INTEGER,
        };
        schema.insert("format".into(), "int64".into());
        schema.entry("maximum").or_insert(maximum.into());
        schema.entry("minimum").or_insert((-(maximum as i64)).into());
    }
}
