//! Lists the schemas of the definitions.

use millrace_crds::definitions;
use serde_json::Value;

/// Returns every schema of a definition with its path: properties by name, items as `[]`, values of maps as `*`.
pub fn of(definition: &Value) -> Vec<(String, Value)> {
    let root = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut found = Vec::new();
    let mut next = vec![(String::new(), root.clone())];
    while let Some((path, schema)) = next.pop() {
        let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            next.push((join(name), property.clone()));
        }
        for (key, name) in [("items", "[]"), ("additionalProperties", "*")] {
            if schema[key].is_object() {
                next.push((join(name), schema[key].clone()));
            }
        }
        found.push((path, schema));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Returns the schemas of all definitions.
pub fn all() -> Vec<(String, Value)> {
    let definitions = definitions().map(|definition| serde_json::to_value(definition).unwrap());
    definitions.iter().flat_map(of).collect()
}
