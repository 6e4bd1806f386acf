//! The JSON schema for editors, which is stricter than those of custom resources.

use schemars::Schema;
use schemars::transform::{RecursiveTransform, Transform};
use serde_json::{Map, Value, json};

use super::{DefaultValue, KeyReference, SectionReference, trainer_schema};
use crate::document::Params;

/// Returns `docs/reference/params.schema.json`: the schema of the document for editors.
///
/// Unlike the schemas of custom resources and OpenAPI it rejects unknown keys and keywords, because it is used where
/// the document is written.
pub fn editor_schema() -> Value {
    let mut schema = schemars::schema_for!(Params);
    // The formats of Rust's integers are unknown to JSON Schema.
    RecursiveTransform(|schema: &mut Schema| {
        schema.remove("format");
    })
    .transform(&mut schema);
    let mut schema = schema.to_value();
    if let Value::Object(root) = &mut schema {
        root.insert("title".into(), "Millrace params".into());
        restrict(root, Params::REFERENCE);
    }
    let mut sections = Vec::new();
    collect(Params::REFERENCE, &mut sections);
    for section in sections {
        if let Some(Value::Object(definition)) = schema.pointer_mut(&format!("/$defs/{}", section.type_name)) {
            restrict(definition, section);
        }
    }
    if let Value::Object(root) = &mut schema {
        trainer_schema::add(root);
    }
    schema
}

/// Adds the sections within `section` to `found`, each once.
fn collect(section: &SectionReference, found: &mut Vec<&'static SectionReference>) {
    for nested in section.keys.iter().filter_map(|key| key.section) {
        if !found.iter().any(|other| other.type_name == nested.type_name) {
            found.push(nested);
            collect(nested, found);
        }
    }
}

/// Makes the schema of a section reject unknown keys and keywords.
fn restrict(schema: &mut Map<String, Value>, section: &SectionReference) {
    schema.insert("additionalProperties".into(), false.into());
    let is_required = |key: &&KeyReference| key.default() == DefaultValue::Required && key.eval_default().is_none();
    let required: Vec<&str> = section.keys.iter().filter(is_required).map(|key| key.name).collect();
    if !required.is_empty() {
        schema.insert("required".into(), json!(required));
    }
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for key in section.keys {
        if let Some(property) = properties.get_mut(key.name).and_then(Value::as_object_mut) {
            restrict_key(property, key);
        }
    }
    for (name, remedy) in section.unsupported {
        let description = format!("Not supported yet: {remedy}.");
        properties.insert((*name).into(), json!({"type": "null", "description": description, "deprecated": true}));
    }
}

fn restrict_key(property: &mut Map<String, Value>, key: &KeyReference) {
    if !key.has_effect() || key.alias_of().is_some() {
        property.insert("deprecated".into(), true.into());
    }
    let default = match key.default() {
        DefaultValue::Yaml(yaml) => Some(json_of(yaml)),
        _ => None,
    };
    // The default of a shared section may differ in eval_input.
    if let (Some(default), None) = (&default, key.eval_default()) {
        property.insert("default".into(), default.clone());
        if key.is_fixed() {
            property.insert("enum".into(), json!([default, null]));
            return;
        }
    }
    let choices = key.choices();
    let is_string = property.get("type") == Some(&json!(["string", "null"]));
    if is_string && !choices.is_empty() {
        let alternatives: Vec<String> = choices.iter().map(|choice| ignoring_case(choice)).collect();
        property.insert(
            "anyOf".into(),
            json!([
                {"enum": choices},
                {"type": "string", "pattern": format!("^({})$", alternatives.join("|"))},
                {"type": "null"},
            ]),
        );
    }
}

/// Returns a scalar or a list of numbers as JSON: the YAML of defaults is a word, a number, a boolean, or JSON.
fn json_of(yaml: &str) -> Value {
    serde_json::from_str(yaml).unwrap_or_else(|_| yaml.into())
}

/// Returns a regular expression for a keyword in any case. JSON Schema has no flag for it.
fn ignoring_case(keyword: &str) -> String {
    keyword
        .chars()
        .map(|c| match (c.to_ascii_lowercase(), c.to_ascii_uppercase()) {
            (lower, upper) if lower != upper => format!("[{upper}{lower}]"),
            _ => c.to_string(),
        })
        .collect()
}
