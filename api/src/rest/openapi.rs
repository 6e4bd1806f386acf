//! The OpenAPI 3.1 document, made from the table of routes and the types.

use std::fmt::Write;
use std::sync::LazyLock;

use axum::http::{HeaderName, header};
use axum::response::Html;
use bytes::Bytes;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::routes::{Answer, Body, Needs, Route, all};
use super::tokens::NewToken;
use crate::definition::{object_schema, schemas};
use crate::files::{CheckpointFiles, FileInfo};

/// The document. It is the same for every server of this version.
pub fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in all() {
        // OpenAPI knows no rest of a path: what stands there is one parameter with slashes in it.
        let path = route.path.replace("{*path}", "{path}");
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[route.method] = operation(&route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Millrace",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Training jobs of an appliance: submitting, watching, fetching what they made.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": components(),
        },
    })
}

/// Serves the document.
pub async fn served() -> ([(HeaderName, &'static str); 1], Bytes) {
    // Anybody may ask for it, and making it takes a while.
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.clone())
}

/// The schema of a type, whole in itself.
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

fn operation(route: &Route) -> Value {
    let mut parameters = path_parameters(&route.path);
    parameters.extend(query_parameters(route.query.as_ref()));
    if route.body == Body::Job && route.status == 201 {
        parameters.push(json!({
            "name": "Idempotency-Key", "in": "header", "required": false,
            "description": "Names the request: sent again, with the same body, it makes no second job.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        }));
    }
    let who = match route.needs {
        Needs::Nothing => "For everybody.",
        Needs::Token => "For whoever has a token.",
        Needs::Viewer => "For viewers of the namespace.",
        Needs::Editor => "For editors of the namespace.",
        Needs::Admin => "For administrators.",
    };
    let mut operation = json!({
        "summary": route.summary,
        "description": who,
        "operationId": operation_id(route),
        "parameters": parameters,
        "responses": responses(route),
    });
    if route.needs != Needs::Nothing {
        operation["security"] = json!([{"token": []}]);
    }
    if let Some(content) = request_body(route.body) {
        operation["requestBody"] = json!({"required": true, "content": content});
    }
    operation
}

fn operation_id(route: &Route) -> String {
    let words = route.path.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(route.method.to_owned(), |id, word| format!("{id}_{word}"))
}

fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let parameter = |name: &str| {
        let name = name.trim_start_matches('*');
        json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}})
    };
    names.map(parameter).collect()
}

fn query_parameters(query: Option<&Value>) -> Vec<Value> {
    let properties = query.and_then(|query| query["properties"].as_object()).into_iter().flatten();
    let parameter = |(name, schema): (&String, &Value)| {
        let mut schema = schema.clone();
        let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
        // What is left out is absent; nothing in an address is null.
        if let Some(kinds) = schema["type"].as_array() {
            schema["type"] = kinds.iter().find(|kind| *kind != "null").cloned().unwrap_or_default();
        }
        json!({"name": name, "in": "query", "required": false, "description": description, "schema": schema})
    };
    properties.map(parameter).collect()
}

fn request_body(body: Body) -> Option<Value> {
    let reference = |name: &str| json!({"schema": {"$ref": format!("#/components/schemas/{name}")}});
    match body {
        Body::None => None,
        Body::Component(name) => Some(json!({"application/json": reference(name)})),
        Body::Job => Some(json!({
            "application/json": reference("NewTrainJob"),
            "application/yaml": reference("NewTrainJob"),
            "multipart/form-data": {"schema": {
                "type": "object",
                "required": ["params"],
                "properties": {
                    "params": {"type": "string", "description": "The user's params file, byte for byte."},
                    "job": {"$ref": "#/components/schemas/Beside"},
                    "file": {
                        "type": "array", "items": {"type": "string"},
                        "description": "Small texts; the filename of each is the path that the params name.",
                    },
                },
            }},
        })),
    }
}

fn responses(route: &Route) -> Value {
    let of_json = |schema: &Value| json!({"application/json": {"schema": schema}});
    let stream = json!({"schema": {"type": "string", "description": "Server-sent events; each id is where Last-Event-ID goes on."}});
    let mut success = json!({"description": route.summary});
    match &route.answer {
        Answer::Json(schema) => success["content"] = of_json(schema),
        Answer::Pages(item) => {
            let page = json!({"type": "object", "required": ["items", "next"], "properties": {
                "items": {"type": "array", "items": item},
                "next": {"type": ["integer", "null"], "description": "Where the next page begins: its `after`."},
            }});
            success["content"] = of_json(&page);
            success["content"]["text/event-stream"] = stream;
        }
        Answer::Live => success["content"] = json!({"text/event-stream": stream}),
        Answer::File => success["content"] = json!({"application/octet-stream": {}}),
        Answer::Html => success["content"] = json!({"text/html": {}}),
        Answer::Status => {}
    }
    let mut responses = json!({route.status.to_string(): success});
    if route.status == 201 && route.body == Body::Job {
        responses["200"] = success.clone();
    }
    if matches!(route.answer, Answer::File) {
        responses["206"] = json!({"description": "The part that was asked for."});
        responses["304"] = json!({"description": "It is what the client has."});
    }
    let problem = json!({"description": "Refused.", "content": {
        "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}},
    }});
    responses["default"] = problem;
    responses
}

fn components() -> Value {
    let [appliance, job] = schemas();
    let mut new_job = object_schema(&job, true);
    new_job["required"] = json!(["spec"]);
    let spec = object_schema(&appliance, false)["properties"]["spec"].take();
    let list = |items: Value| json!({"type": "object", "required": ["items"], "properties": {"items": {"type": "array", "items": items}}});
    let text = || json!({"type": "string"});
    let of = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    json!({
        "TrainJob": object_schema(&job, false),
        "NewTrainJob": new_job,
        "TrainJobList": {"type": "object", "required": ["items", "next"], "properties": {
            "items": {"type": "array", "items": of("TrainJob")},
            "next": {"type": ["string", "null"], "description": "The next page's cursor."},
        }},
        "Beside": {"type": "object", "additionalProperties": false, "properties": {
            "metadata": {"type": "object"}, "spec": {"type": "object"}, "overrides": {"type": "object"},
        }},
        "Scale": schema_of::<super::jobs::Scale>(),
        "Event": {"type": "object", "properties": {
            "number": {"type": "integer"}, "time": text(), "type": {"enum": ["Normal", "Warning"]}, "reason": text(), "message": text(),
        }},
        "Metric": {"type": "object", "properties": {
            "number": {"type": "integer"}, "time": text(), "attempt": {"type": "integer"}, "step": {"type": "integer"},
            "loss": {"type": "number"}, "mode": {"const": "eval"}, "learning_rate": {"type": "number"},
            "grad_norm": {"type": "number"}, "tokens": {"type": "integer"}, "seconds": {"type": "number"}, "rate": {"type": "number"},
        }},
        "Log": {"type": "object", "properties": {
            "number": {"type": "integer"}, "time": text(), "attempt": {"type": "integer"}, "agent": text(), "level": text(),
            "message": text(), "fields": {"type": "object"},
        }},
        "CheckpointList": list(schema_of::<CheckpointFiles>()),
        "FileList": list(schema_of::<FileInfo>()),
        "Files": {"type": "object", "required": ["files"], "properties": {"files": {"type": "array", "items": schema_of::<FileInfo>()}}},
        "VolumeList": list(schema_of::<crate::backend::Volume>()),
        "ApplianceView": {"type": "object", "properties": {
            "name": text(), "spec": spec, "status": {"type": ["object", "null"]},
            "jobs": {"type": "array", "items": {"type": "object"}}, "queue": {"type": "array", "items": {"type": "object"}},
        }},
        "Who": {"type": "object", "properties": {
            "name": text(), "role": {"enum": ["viewer", "editor", "admin", "kubernetes"]}, "namespaces": {"type": "array", "items": text()},
        }},
        "Version": {"type": "object", "properties": {"version": text(), "backend": {"enum": ["process", "kubernetes"]}}},
        "Session": {"type": "object", "properties": {"name": text(), "expiresAt": text()}},
        "Ended": {"type": "object", "properties": {"ended": {"type": "boolean"}}},
        "NewToken": schema_of::<NewToken>(),
        "MadeToken": {"type": "object", "required": ["id", "token"], "properties": {"id": text(), "token": text()}},
        "TokenList": list(json!({"type": "object"})),
        "Revoked": {"type": "object", "properties": {"id": text(), "revoked": {"type": "boolean"}}},
        "Problem": {"type": "object", "required": ["status", "reason", "detail"], "properties": {
            "type": text(), "title": text(), "status": {"type": "integer"}, "reason": text(), "detail": text(),
            "errors": {"type": "array", "items": {"type": "object", "required": ["field", "message"], "properties": {
                "field": text(), "message": text(),
            }}},
        }},
    })
}

/// The document as a page: every route, who may use it, what it takes.
pub async fn page() -> Html<Bytes> {
    static PAGE: LazyLock<Bytes> = LazyLock::new(|| drawn().into());
    Html(PAGE.clone())
}

fn drawn() -> String {
    let mut text = String::from(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Millrace REST</title><style>\
         body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
         code{background:#eee;padding:.1em .3em}table{border-collapse:collapse}td{padding:.1em 1em .1em 0;vertical-align:top}\
         @media(prefers-color-scheme:dark){body{background:#111;color:#ddd}code{background:#333}a{color:#8cf}}</style>\
         <h1>Millrace REST</h1><p>The whole of it, with every schema: <a href=/openapi.json>openapi.json</a>, OpenAPI 3.1.",
    );
    for route in all() {
        let operation = operation(&route);
        // Writing into a string can't fail; nothing here is anybody's input.
        let _ = write!(
            text,
            "<h3><code>{} {}</code></h3><p>{}. {}",
            route.method.to_uppercase(),
            route.path,
            route.summary,
            operation["description"].as_str().unwrap_or_default()
        );
        let asked: Vec<&Value> =
            operation["parameters"].as_array().into_iter().flatten().filter(|it| it["in"] != "path").collect();
        if !asked.is_empty() {
            text.push_str("<table>");
            for parameter in asked {
                let said = |key: &str| parameter[key].as_str().unwrap_or_default().to_owned();
                let _ = write!(text, "<tr><td><code>{}</code><td>{}", said("name"), said("description"));
            }
            text.push_str("</table>");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_what_the_code_says() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
        let code = format!("{}\n", serde_json::to_string_pretty(&document()).unwrap());
        let file = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(file == code, "openapi.json is stale: cargo run -p millrace-api -- openapi > api/openapi.json");
    }

    #[test]
    fn every_parameter_is_described_and_every_reference_leads_somewhere() {
        let document = document();
        let text = document.to_string();
        for reference in text.split("\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
        }
        for (path, methods) in document["paths"].as_object().unwrap() {
            for parameter in methods.as_object().unwrap().values().flat_map(|it| it["parameters"].as_array().unwrap()) {
                let described = parameter["in"] == "path" || parameter["description"].is_string();
                assert!(described, "{path} {}", parameter["name"]);
            }
        }
    }
}
