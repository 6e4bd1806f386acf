//! The OpenAPI 3.1 document, generated from the table of routes and the types.

mod access;
mod headers;
mod page;
mod responses;
mod schemas;

use std::sync::LazyLock;

use axum::http::{HeaderName, header};
use bytes::Bytes;
use serde_json::{Map, Value, json};

pub use self::page::{home, page};
use super::auth::Access;
use super::auth::credential::SESSION_COOKIE;
use super::routes::{RequestBodyKind, Route, all};

/// Builds the document. It is the same for every server of this version.
pub fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in all() {
        // OpenAPI has no parameter for the rest of a path: it becomes one parameter with slashes in it.
        let path = route.path.replace("{*path}", "{path}");
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[route.method] = operation(&route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Millrace",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Submit, follow and control the training jobs of an appliance, and download their results.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "An API token, or one of the cluster's."},
                "session": {
                    "type": "apiKey", "in": "cookie", "name": SESSION_COOKIE,
                    "description": "Session of a browser. Requests that change something are accepted only from pages \
                                    of this server.",
                },
            },
            "headers": headers::components(),
            "schemas": schemas::components(),
        },
    })
}

pub async fn serve_document() -> ([(HeaderName, &'static str); 1], Bytes) {
    // Unauthenticated clients may request it, and building it takes a while.
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.clone())
}

fn operation(route: &Route) -> Value {
    let mut parameters = path_parameters(&route.path);
    parameters.extend(query_parameters(route.query.as_ref()));
    parameters.extend(route.request_headers.iter().map(|name| headers::parameter(name)));
    let mut operation = json!({
        "summary": route.summary,
        "description": access::describe(route.access),
        "operationId": route.id,
        "parameters": parameters,
        "responses": responses::responses(route),
    });
    operation[access::EXTENSION] = access::extension(route.access);
    match route.access {
        Access::Public => {}
        Access::BearerToken => operation["security"] = json!([{"token": []}]),
        Access::Authenticated | Access::Permission(_) => {
            operation["security"] = json!([{"token": []}, {"session": []}])
        }
    }
    if let Some(content) = request_body(route.body) {
        operation["requestBody"] = json!({"required": true, "content": content});
    }
    operation
}

/// Path parameters: name and description.
const PATH_PARAMETERS: [(&str, &str); 6] = [
    ("namespace", "Namespace; `-` in a list of jobs stands for all namespaces that the caller may read."),
    ("name", "Name of the job."),
    ("checkpoint", "Step of the checkpoint, or `STEP:export` for its export to another format."),
    ("path", "Path of the file, with slashes."),
    ("id", "Id of the token."),
    ("digest", "Digest of the upload: `blake3:` and 64 hexadecimal digits."),
];

fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let parameter = |name: &str| {
        let name = name.trim_start_matches('*');
        let description = PATH_PARAMETERS.iter().find(|(known, _)| *known == name).map(|(_, description)| description);
        let schema = json!({"type": "string", "minLength": 1});
        json!({"name": name, "in": "path", "required": true, "description": description, "schema": schema})
    };
    names.map(parameter).collect()
}

fn query_parameters(query: Option<&Value>) -> Vec<Value> {
    let properties = query.and_then(|query| query["properties"].as_object()).into_iter().flatten();
    let required = query.and_then(|query| query["required"].as_array()).into_iter().flatten();
    let required: Vec<&str> = required.filter_map(Value::as_str).collect();
    let parameter = |(name, schema): (&String, &Value)| {
        let mut schema = schema.clone();
        let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
        // A query parameter is absent, never null.
        if let Some(kinds) = schema["type"].as_array() {
            schema["type"] = kinds.iter().find(|kind| *kind != "null").cloned().unwrap_or_default();
        }
        let required = required.contains(&&**name);
        json!({"name": name, "in": "query", "required": required, "description": description, "schema": schema})
    };
    properties.map(parameter).collect()
}

fn request_body(body: RequestBodyKind) -> Option<Value> {
    let reference = |name: &str| json!({"schema": {"$ref": format!("#/components/schemas/{name}")}});
    match body {
        RequestBodyKind::None => None,
        RequestBodyKind::Bytes => Some(json!({"application/octet-stream": {}})),
        RequestBodyKind::Component(name) => Some(json!({"application/json": reference(name)})),
        RequestBodyKind::Job => Some(json!({
            "application/json": reference("NewTrainJob"),
            "application/yaml": reference("NewTrainJob"),
            "multipart/form-data": {"schema": {
                "type": "object",
                "required": ["params"],
                "properties": {
                    "params": {"type": "string", "description": "The user's params file, byte for byte."},
                    "job": {"$ref": "#/components/schemas/SubmitOptions"},
                    "file": {
                        "type": "array", "items": {"type": "string"},
                        "description": "Small texts; the filename of each is the path that the params name.",
                    },
                },
            }},
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openapi_json_is_up_to_date() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
        let code = format!("{}\n", serde_json::to_string_pretty(&document()).unwrap());
        let file = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(file == code, "openapi.json is stale: run `cargo xtask generate`");
    }

    #[test]
    fn parameters_are_described_and_references_resolve() {
        let document = document();
        let text = document.to_string();
        for reference in text.split("\"#").skip(1) {
            let pointer = reference.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
        for (path, methods) in document["paths"].as_object().unwrap() {
            for parameter in methods.as_object().unwrap().values().flat_map(|it| it["parameters"].as_array().unwrap()) {
                assert!(parameter["description"].is_string(), "{path} {}", parameter["name"]);
            }
        }
    }
}
