//! The JSON schema of the `trainer` layout for editors. It refers to the schemas of the classic keys.

use serde_json::{Map, Value, json};

use super::SectionReference;
use crate::document::Params;
use crate::trainer::{MAX_PHASES, TRAINER, TRAINER_KEYS, TrainerKey};

/// Name of the schema of a phase.
const PHASE: &str = "TrainerPhase";

/// Adds the layout to the schema of the document, as an alternative to its own required keys.
pub(super) fn add(root: &mut Map<String, Value>) {
    let classic = root.remove("required").unwrap_or_default();
    root.insert("anyOf".into(), json!([{"required": classic}, {"required": [TRAINER]}]));
    let phase = json!({"$ref": format!("#/$defs/{PHASE}")});
    let wrapped = json!({
        "type": "object", "properties": {TRAINER: phase}, "required": [TRAINER], "additionalProperties": false
    });
    let items = json!({"anyOf": [phase, wrapped]});
    let trainer = json!({
        "description": "The params in the layout of releases 2.3 and later of the public model zoo.",
        "anyOf": [phase, {"type": "array", "minItems": 1, "maxItems": MAX_PHASES, "items": items}],
    });
    if let Some(Value::Object(properties)) = root.get_mut("properties") {
        properties.insert(TRAINER.into(), trainer);
    }
    let mut tree = group();
    for (path, key) in TRAINER_KEYS {
        insert(&mut tree, path, schema_of(*key));
    }
    if let Some(Value::Object(definitions)) = root.get_mut("$defs") {
        definitions.insert(PHASE.into(), tree);
    }
}

fn group() -> Value {
    // The keys of the real machine begin with csx.
    json!({
        "type": ["object", "null"], "properties": {},
        "patternProperties": {"^csx\\.": {}}, "additionalProperties": false,
    })
}

fn insert(group_schema: &mut Value, path: &str, schema: Value) {
    let Some(properties) = group_schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    match path.split_once('.') {
        Some((first, rest)) => insert(properties.entry(first).or_insert_with(group), rest, schema),
        None => {
            properties.insert(path.into(), schema);
        }
    }
}

fn schema_of(key: TrainerKey) -> Value {
    let input = || json!({"anyOf": [{"$ref": "#/$defs/InputParams"}, {"type": "null"}]});
    match key {
        TrainerKey::Same(classic) => reference_to(classic).unwrap_or_else(|| json!({})),
        TrainerKey::Section(section) => {
            let name = section_of(section).map_or("", |section| section.type_name);
            json!({"anyOf": [{"$ref": format!("#/$defs/{name}")}, {"type": "null"}]})
        }
        TrainerKey::NoEffect(description) => json!({"description": description, "deprecated": true}),
        TrainerKey::Unsupported(remedy) => {
            json!({"type": "null", "description": format!("Not supported yet: {remedy}."), "deprecated": true})
        }
        TrainerKey::Optimizer => json!({
            "type": "object", "minProperties": 1, "maxProperties": 1,
            "additionalProperties": {"type": ["object", "null"]},
        }),
        TrainerKey::Schedulers => json!({
            "type": ["array", "null"], "maxItems": 1,
            "items": {"type": "object", "minProperties": 1, "maxProperties": 1},
        }),
        TrainerKey::Callbacks => json!({"type": ["array", "null"], "items": {"type": ["object", "string"]}}),
        TrainerKey::ValidationData => input(),
        TrainerKey::AllValidationData => json!({}),
    }
}

fn section_of(name: &str) -> Option<&'static SectionReference> {
    Params::REFERENCE.key(name)?.section
}

fn reference_to(classic: &str) -> Option<Value> {
    let (section, key) = classic.split_once('.')?;
    let name = section_of(section)?.type_name;
    Some(json!({"$ref": format!("#/$defs/{name}/properties/{key}")}))
}
