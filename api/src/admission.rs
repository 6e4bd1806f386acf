//! Admission of objects as an API server of Kubernetes does it: rejects unknown fields and bad values, fills in
//! defaults, and evaluates validation rules.
//!
//! The schemas are those of the generated custom resource definitions, so that the process backend rejects a job with
//! the same messages as a cluster.

use jsonschema::error::ValidationErrorKind as Kind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_cel::{CompiledSchema, Validator, compile_schema};
use millrace_crds::definitions;
use millrace_params::{LabelName, ObjectName};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Number, Value, json};

use crate::error::{ApiError, FieldError, Result};

/// Schema and rules of one kind.
pub struct AdmissionSchema {
    schema: Value,
    strict: jsonschema::Validator,
    rules: CompiledSchema,
}

impl AdmissionSchema {
    /// Returns those of `Appliance` and of `TrainJob`.
    ///
    /// # Errors
    /// A definition is invalid: a bug of this program.
    pub fn load_all() -> Result<(Self, Self)> {
        let [appliance, job] = schemas();
        let of = |schema: Value| -> Result<Self> {
            let strict = jsonschema::options()
                .build(&object_schema(&schema, true))
                .map_err(|error| ApiError::internal("read the custom resource definitions", error))?;
            Ok(Self { rules: compile_schema(&schema), strict, schema })
        };
        Ok((of(appliance)?, of(job)?))
    }

    /// Returns `object` with its defaults if it is valid; `before` is the object that it replaces, for transition
    /// rules.
    ///
    /// # Errors
    /// [`crate::error::ErrorReason::Invalid`] with every invalid field.
    pub fn admit(&self, object: &Value, before: Option<&Value>) -> Result<Value> {
        let mut object = object.clone();
        normalize_nulls(&self.schema, &mut object);
        let faults: Vec<FieldError> = self.strict.iter_errors(&object).flat_map(|error| field_errors(&error)).collect();
        if !faults.is_empty() {
            return Err(ApiError::invalid(faults));
        }
        let object = kube_cel::apply_defaults(&self.schema, &object);
        let verdict = Validator::new().validate_compiled(&self.rules, &object, before);
        let broken = |error: &kube_cel::ValidationError| rule_error(&error.field_path, &error.message);
        match verdict {
            Ok(()) => Ok(object),
            Err(errors) => Err(ApiError::invalid(errors.iter().map(broken).collect())),
        }
    }
}

/// Normalizes a value as an API server does when it reads one: removes nulls where the schema is not nullable, and
/// turns floats such as `1.0` into integers where it requires them.
fn normalize_nulls(schema: &Value, value: &mut Value) {
    let expected_type = schema["type"].as_str();
    match value {
        Value::Number(number) if expected_type == Some("integer") => {
            if let Some(integer) = whole_number(number).filter(|_| number.is_f64()) {
                *value = json!(integer);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| normalize_nulls(&schema["items"], item)),
        Value::Object(fields) => {
            let of = |name: &str| schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
            fields.retain(|name, value| !value.is_null() || of(name).is_null() || of(name)["nullable"] == true);
            fields.iter_mut().for_each(|(name, value)| normalize_nulls(of(name), value));
        }
        _ => {}
    }
}

/// Returns the structural schemas of `Appliance` and `TrainJob`.
pub fn schemas() -> [Value; 2] {
    definitions().map(|definition| {
        // Serializing a type of Kubernetes to JSON does not fail.
        let mut definition = serde_json::to_value(definition).unwrap_or_default();
        definition.pointer_mut("/spec/versions/0/schema/openAPIV3Schema").map(Value::take).unwrap_or_default()
    })
}

/// Converts the schema of a whole object to JSON Schema, and adds the fields that every object has and no definition
/// contains.
pub fn object_schema(schema: &Value, close: bool) -> Value {
    let mut object = as_json_schema(schema, close);
    for name in ["apiVersion", "kind"] {
        object["properties"][name] = json!({"type": "string"});
    }
    object["properties"]["metadata"] = metadata(close);
    object
}

/// Returns the schema of an object's metadata as an API server knows it.
fn metadata(close: bool) -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let mut metadata = settings.into_generator().into_root_schema_for::<ObjectMeta>().to_value();
    // Descriptions are dropped: the document lists the fields and leaves their description to the reference of
    // Kubernetes.
    for name in ["$schema", "title", "description"] {
        metadata.as_object_mut().map(|metadata| metadata.remove(name));
    }
    for property in metadata["properties"].as_object_mut().into_iter().flat_map(Map::values_mut) {
        *property =
            Value::Object(property["type"].as_str().map(|kind| ("type".to_owned(), kind.into())).into_iter().collect());
    }
    let key = |prefix: &str| json!({"pattern": format!("^({prefix}/)?{LABEL_NAME_PATTERN}$"), "maxLength": 317});
    metadata["properties"]["labels"] = json!({
        "type": "object",
        "propertyNames": key(SUBDOMAIN_PATTERN),
        "additionalProperties": {"type": "string", "pattern": format!("^({LABEL_NAME_PATTERN})?$")},
    });
    // An API server converts the key of an annotation to lower case before it checks it, so capitals are valid in its
    // prefix.
    metadata["properties"]["annotations"] = json!({"type": "object", "propertyNames": key(&SUBDOMAIN_PATTERN.replace("a-z", "A-Za-z")), "additionalProperties": {"type": "string"}});
    if close {
        metadata["additionalProperties"] = json!(false);
    }
    metadata
}

/// Pattern of the name and the value of a label, and of the DNS subdomain before the name.
const LABEL_NAME_PATTERN: &str = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?";
const SUBDOMAIN_PATTERN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";

/// Converts a structural schema to JSON Schema; `nullable` and int-or-string become types. With `close`, fields that
/// Kubernetes would prune are rejected.
fn as_json_schema(schema: &Value, close: bool) -> Value {
    let Value::Object(schema) = schema else { return schema.clone() };
    let mut out: Map<String, Value> = Map::new();
    let is = |key: &str| schema.get(key) == Some(&Value::Bool(true));
    for (key, value) in schema {
        let value = match (key.as_str(), value) {
            ("properties", Value::Object(all)) => {
                Value::Object(all.iter().map(|(name, schema)| (name.clone(), as_json_schema(schema, close))).collect())
            }
            ("items" | "additionalProperties", schema @ Value::Object(_)) => as_json_schema(schema, close),
            ("type", Value::String(name)) if is("nullable") => json!([name, "null"]),
            ("nullable" | "default", _) => continue,
            ("format", Value::String(name))
                if name.starts_with("int") || name.starts_with("uint") || name == "double" =>
            {
                continue;
            }
            (key, _) if key.starts_with("x-kubernetes-") => continue,
            ("minimum" | "maximum", Value::Number(limit)) => whole_number(limit).map_or(value.clone(), Value::from),
            (_, value) => value.clone(),
        };
        out.insert(key.clone(), value);
    }
    let open = is("x-kubernetes-preserve-unknown-fields") || schema.contains_key("additionalProperties");
    if close && schema.contains_key("properties") && !open {
        out.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    if is("x-kubernetes-int-or-string") {
        out.insert("type".to_owned(), json!(["integer", "string"]));
    }
    Value::Object(out)
}

/// Returns the integer that a float equals, if it is one: types of Kubernetes have all limits as floats, and messages
/// quote them.
fn whole_number(number: &Number) -> Option<i64> {
    let number = number.as_f64().filter(|number| number.fract() == 0.0 && number.abs() <= MAX_EXACT_FLOAT)?;
    Some(number as i64)
}

/// The largest integer up to which a float has every integer.
const MAX_EXACT_FLOAT: f64 = 9_007_199_254_740_992.0;

/// Returns the invalid fields, with the messages of an API server for unknown and missing ones.
fn field_errors(error: &jsonschema::ValidationError<'_>) -> Vec<FieldError> {
    let message = error.to_string();
    let path = error.instance_path().to_string().trim_start_matches('/').replace('/', ".");
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let one = |field: String, message: &str| vec![FieldError { field, message: message.to_owned() }];
    match error.kind() {
        Kind::AdditionalProperties { unexpected } => {
            unexpected.iter().flat_map(|name| one(below(name), "unknown field")).collect()
        }
        Kind::Required { property } => one(below(property.as_str().unwrap_or_default()), "Required value"),
        Kind::PropertyNames { error } => one(path, &format!("{}: {LABEL_KEY_RULE}", error.instance())),
        Kind::Pattern { .. } if path.starts_with("metadata.labels.") => {
            one("metadata.labels".to_owned(), &format!("{}: {LABEL_VALUE_RULE}", error.instance()))
        }
        Kind::Pattern { pattern } => match NAME_RULES.iter().find(|(of, _)| of == pattern) {
            Some((_, rule)) => one(path, &format!("{} is not a valid name: write {rule}", error.instance())),
            None => one(path, &message),
        },
        _ => one(path, &message),
    }
}

/// Patterns of names, and the rule that a message states instead of the pattern.
const NAME_RULES: [(&str, &str); 2] = [(ObjectName::PATTERN, ObjectName::RULE), (LabelName::PATTERN, LabelName::RULE)];

/// Rules of the keys of labels and annotations, and of a label's value, for messages.
const LABEL_KEY_RULE: &str = "a key is a name of at most 63 letters, digits, '-', '_' and '.', with a letter or a digit at either end, and \
                   may have a DNS name and a slash before it";
const LABEL_VALUE_RULE: &str = "a label's value is empty or at most 63 letters, digits, '-', '_' and '.', with a letter or a digit at \
                     either end";

/// Returns a violated rule. A rule on metadata belongs to the whole object, so its message begins with the field.
pub fn rule_error(field: &str, message: &str) -> FieldError {
    let field = field.trim_start_matches('.');
    let (field, message) = match message.split_once(": ") {
        Some((name, message)) if ["", "<nil>"].contains(&field) && name.starts_with("metadata.") => (name, message),
        _ => (field, message),
    };
    FieldError { field: field.to_owned(), message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(change: impl FnOnce(&mut Value)) -> Value {
        let mut job = json!({
            "apiVersion": "millrace.dev/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "job", "namespace": "team", "annotations": {"a": "b"}},
            "spec": {"numCsx": 2, "params": {"model": {"name": "gpt2", "vocab_size": 64}, "train_input": {"data_dir": ["a", "b"]}}},
        });
        change(&mut job);
        job
    }

    #[test]
    fn admission_matches_an_api_server() {
        let (_, definition) = AdmissionSchema::load_all().unwrap();
        let admitted = definition.admit(&job(|_| {}), None).unwrap();
        assert_eq!(admitted["spec"]["appliance"], "default");
        assert_eq!(admitted["spec"]["deadlines"]["startupSeconds"], 900);
        let rejected_field = |change: fn(&mut Value), field: &str| {
            let error = definition.admit(&job(change), None).unwrap_err();
            assert!(error.errors.iter().any(|fault| fault.field.starts_with(field)), "{error:?}");
            error.detail
        };
        let few = rejected_field(|job| job["spec"]["numCsx"] = 0.into(), "spec.numCsx");
        assert_eq!(few, "spec.numCsx: 0 is less than the minimum of 1");
        rejected_field(|job| job["spec"]["numCsx"] = "2".into(), "spec.numCsx");
        let unknown = rejected_field(|job| job["spec"]["numCSX"] = 2.into(), "spec");
        assert!(unknown.contains("numCSX"), "{unknown}");
        rejected_field(|job| job["spec"]["params"]["model"]["vocab_sise"] = 2.into(), "spec.params.model");
        rejected_field(|job| job["metadata"]["name"] = "Job".into(), "metadata.name");
        let volume = |job: &mut Value| job["spec"]["volumes"] = json!([{"name": "a", "configMap": {"name": "../x"}}]);
        let hostile = rejected_field(volume, "spec.volumes.0.configMap.name");
        assert!(hostile.contains("is not a valid name: write at most 253 lower-case letters"), "{hostile}");
        rejected_field(|job| job["metadata"]["labelz"] = json!({}), "metadata.labelz");
        rejected_field(|job| job["metadata"]["labels"] = json!({"a b": "c"}), "metadata.labels");
        rejected_field(|job| job["metadata"]["labels"] = json!({"a/b/c": "d"}), "metadata.labels");
        rejected_field(|job| job["metadata"]["labels"] = json!({"a": "-b"}), "metadata.labels");
        rejected_field(|job| job["metadata"]["labels"] = json!({"a": 1}), "metadata.labels.a");
        rejected_field(|job| job["metadata"]["annotations"] = json!({"a": 1}), "metadata.annotations.a");
        rejected_field(|job| drop(job.as_object_mut().unwrap().remove("spec")), "spec");
        let as_kubectl = |job: &mut Value| (job["spec"]["numCsx"], job["spec"]["mode"]) = (json!(2.0), Value::Null);
        assert_eq!(definition.admit(&job(as_kubectl), None).unwrap()["spec"]["numCsx"], json!(2));
        rejected_field(|job| job["spec"]["numCsx"] = json!(2.5), "spec.numCsx");
        let annotations = json!({"Example.COM/x": "y"});
        assert!(definition.admit(&job(|job| job["metadata"]["annotations"] = annotations), None).is_ok());
        let labels = json!({"a": "", "team.example/tier_1": "B.2"});
        assert!(definition.admit(&job(|job| job["metadata"]["labels"] = labels), None).is_ok());
        let before = job(|_| {});
        let changed = job(|job| job["spec"]["params"]["model"]["vocab_size"] = 65.into());
        let error = definition.admit(&changed, Some(&before)).unwrap_err();
        assert!(error.detail.contains("is immutable"), "{error}");
    }
}
