//! From a request's body to an [`Order`]: a TrainJob as JSON or YAML, or the user's params file with what goes with it.

use axum::body::Bytes;
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::HeaderMap;
use millrace_crds::StoredParams;
use millrace_params::Params;
use millrace_store::Key;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::ALL;
use super::body::{bytes, in_time, kind, of_json, unread, unreadable, whole};
use crate::backend::{BODY_ANNOTATION, KEY_ANNOTATION, Order, SUBMITTED_BY, Text};
use crate::refusal::{Fault, Reason, Refusal, Result};

/// Header of a request that may be sent again.
const KEY: &str = "idempotency-key";
/// Where texts that travel along are found by a job's agents.
const TEXTS: &str = "/var/lib/millrace/texts";
/// Name of their volume.
const TEXTS_VOLUME: &str = "texts";
/// Most bytes of them all, with their names: what a ConfigMap holds.
const MOST_TEXT: usize = 1 << 20;
/// Longest name of a job, letters at the end of one that is made here, and what is left for its begin.
const MOST_NAME: usize = 63;
const TAIL: usize = 8;
const MOST_BEGIN: usize = MOST_NAME - TAIL;
/// What of an object's metadata is the server's to give.
const GIVEN: [&str; 11] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// What goes with a params file.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// The TrainJob's metadata.
    #[serde(default)]
    metadata: Map<String, Value>,
    /// Its spec but for the params.
    #[serde(default)]
    spec: Map<String, Value>,
    /// Flags that beat the file, by their keys in runconfig.
    #[serde(default)]
    overrides: Map<String, Value>,
}

/// The flags there are.
const OVERRIDES: [&str; 8] = [
    "max_steps",
    "eval_steps",
    "checkpoint_path",
    "load_checkpoint_states",
    "disable_strict_checkpoint_loading",
    "num_wgt_servers",
    "num_act_servers",
    "logging",
];

/// Reads what `submitter` asks for in namespace `ns`.
///
/// # Errors
/// The body can't be read, or its params can't be understood.
pub async fn order(ns: &str, submitter: &str, request: Request) -> Result<Order> {
    if ns == ALL {
        let message = "a job is made in one namespace".to_owned();
        return Err(Refusal::invalid(vec![Fault { field: "metadata.namespace".to_owned(), message }]));
    }
    let key = key(request.headers())?;
    let (mut object, texts, hash, stem) = in_time(read(request)).await?;
    let key = key.map(|key| Key { key, body_hash: hash.to_hex().to_string() });
    complete(&mut object, ns, submitter, key.as_ref(), stem.as_deref())?;
    name_texts(&mut object, &texts);
    Ok(Order { namespace: ns.to_owned(), object, texts, submitter: submitter.to_owned(), key })
}

/// The object that a body holds or comes to, what travels with it, the body's digest, and the name of the params file.
async fn read(request: Request) -> Result<(Value, Vec<Text>, blake3::Hash, Option<String>)> {
    let kind = kind(request.headers())?;
    match kind.as_str() {
        "application/json" | "" => {
            let body = whole(request).await?;
            Ok((of_json("JSON", &body)?, Vec::new(), blake3::hash(&body), None))
        }
        "application/yaml" | "application/x-yaml" | "text/yaml" => {
            let body = whole(request).await?;
            let text = std::str::from_utf8(&body).map_err(|error| unreadable("YAML", &error))?;
            let object = serde_saphyr::from_str(text).map_err(|error| unreadable("YAML", &error))?;
            Ok((object, Vec::new(), blake3::hash(&body), None))
        }
        "multipart/form-data" => from_parts(request).await,
        other => Err(unread(other, "application/json, application/yaml or multipart/form-data")),
    }
}

/// Fills in what a client may leave out.
fn complete(object: &mut Value, ns: &str, submitter: &str, key: Option<&Key>, stem: Option<&str>) -> Result<()> {
    let Value::Object(all) = object else {
        return Err(Refusal::new(Reason::BadRequest, "the body is not an object: send a TrainJob"));
    };
    all.remove("status");
    all.entry("apiVersion").or_insert_with(|| json!("millrace.dev/v1alpha1"));
    all.entry("kind").or_insert_with(|| json!("TrainJob"));
    let fault = |field: &str, message: &str| {
        Err(Refusal::invalid(vec![Fault { field: field.to_owned(), message: message.to_owned() }]))
    };
    if all["apiVersion"] != "millrace.dev/v1alpha1" || all["kind"] != "TrainJob" {
        return fault("kind", "this takes a TrainJob of millrace.dev/v1alpha1");
    }
    if let Some(params) = all.get("spec").and_then(|spec| spec.get("params")) {
        Params::read_json(params).map_err(|error| Refusal::new(Reason::BadParams, error.report().trim_end()))?;
    }
    let Value::Object(metadata) = all.entry("metadata").or_insert_with(|| json!({})) else {
        return fault("metadata", "an object");
    };
    if metadata.get("namespace").is_some_and(|given| given != ns) {
        return fault("metadata.namespace", "another than in the address: write the same, or leave it out");
    }
    // What a server gives is nobody's to ask for: whoever sends an object that they read means the rest of it.
    metadata.retain(|name, value| !GIVEN.contains(&name.as_str()) && !value.is_null());
    metadata.insert("namespace".to_owned(), ns.into());
    if !metadata.contains_key("name") {
        let key = key.map(|key| key.key.as_str());
        let name = match metadata.get("generateName") {
            None => made_name(stem.unwrap_or("job"), key),
            Some(Value::String(begin)) => {
                format!("{}{}", begin.chars().take(MOST_BEGIN).collect::<String>(), tail(key))
            }
            Some(_) => return fault("metadata.generateName", "how the name is to begin: a text"),
        };
        metadata.insert("name".to_owned(), name.into());
    }
    let Value::Object(annotations) = metadata.entry("annotations").or_insert_with(|| json!({})) else {
        return fault("metadata.annotations", "an object");
    };
    annotations.retain(|name, _| !name.starts_with("millrace.dev/"));
    annotations.insert(SUBMITTED_BY.to_owned(), submitter.into());
    if let Some(key) = key {
        annotations.insert(KEY_ANNOTATION.to_owned(), key.key.clone().into());
        annotations.insert(BODY_ANNOTATION.to_owned(), key.body_hash.clone().into());
    }
    Ok(())
}

/// How a name ends that nobody else has; with a key always the same, so that even a lost database makes no second job.
fn tail(key: Option<&str>) -> String {
    let seed = key.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
    blake3::hash(seed.as_bytes()).to_hex()[..TAIL].to_owned()
}

/// A name after the params file.
fn made_name(stem: &str, key: Option<&str>) -> String {
    let clean: String = stem
        .to_ascii_lowercase()
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' })
        .collect();
    let clean = clean.trim_matches(|letter: char| !letter.is_ascii_alphabetic());
    let clean = if clean.is_empty() { "job" } else { clean };
    let clean: String = clean.chars().take(MOST_BEGIN - 1).collect();
    format!("{}-{}", clean.trim_end_matches('-'), tail(key))
}

/// A params file with what goes with it.
async fn from_parts(request: Request) -> Result<(Value, Vec<Text>, blake3::Hash, Option<String>)> {
    let bad =
        |error: &dyn std::fmt::Display| Refusal::new(Reason::BadRequest, format!("the form can't be read: {error}"));
    let mut parts = Multipart::from_request(request, &()).await.map_err(|error| bad(&error.body_text()))?;
    let (mut params, mut beside, mut files, mut stem) = (None, Beside::default(), Vec::new(), None);
    let mut hasher = blake3::Hasher::new();
    while let Some(part) = parts.next_field().await.map_err(|error| bad(&error.body_text()))? {
        let (name, file) = (part.name().unwrap_or_default().to_owned(), part.file_name().map(str::to_owned));
        let bytes = bytes(part).await?;
        for piece in [name.as_bytes(), file.as_deref().unwrap_or_default().as_bytes(), &bytes[..]] {
            hasher.update(&piece.len().to_le_bytes()).update(piece);
        }
        match name.as_str() {
            "params" => {
                stem = file.as_deref().and_then(stem_of);
                params = Some(bytes);
            }
            "job" => beside = of_json("JSON in the part `job`", &bytes)?,
            "file" => files.push((file.unwrap_or_default(), bytes)),
            other => return Err(bad(&format!("there is no part {other}: params, job and file are read"))),
        }
    }
    let params = params.ok_or_else(|| bad(&"the part `params` is missing"))?;
    let text = std::str::from_utf8(&params).map_err(|_| Refusal::new(Reason::BadParams, "the params are not UTF-8"))?;
    let read = Params::parse_yaml(text).map_err(|error| Refusal::new(Reason::BadParams, error.report().trim_end()))?;
    let mut params = StoredParams::from(&read).0;
    apply(&mut params, &beside.overrides)?;
    let mut spec = beside.spec;
    from_runconfig(&mut spec, &params);
    let texts = travel(&mut params, &mut spec, files)?;
    spec.insert("params".to_owned(), params);
    let object = json!({"metadata": beside.metadata, "spec": spec});
    Ok((object, texts, hasher.finalize(), stem))
}

fn stem_of(file: &str) -> Option<String> {
    let stem = std::path::Path::new(file).file_stem()?.to_str()?;
    (stem != "params").then(|| stem.to_owned())
}

/// Sets flags in the params.
fn apply(params: &mut Value, overrides: &Map<String, Value>) -> Result<()> {
    for (key, value) in overrides.iter().filter(|(_, value)| !value.is_null()) {
        if !OVERRIDES.contains(&key.as_str()) {
            let message = format!("it is one of {}", OVERRIDES.join(", "));
            return Err(Refusal::invalid(vec![Fault { field: format!("overrides.{key}"), message }]));
        }
        params["runconfig"][key] = value.clone();
    }
    Ok(())
}

/// Fills the spec from what runconfig says too.
fn from_runconfig(spec: &mut Map<String, Value>, params: &Value) {
    let run = &params["runconfig"];
    let mut fill = |field: &str, value: Option<Value>| {
        if let Some(value) = value.filter(|value| !value.is_null())
            && !spec.contains_key(field)
        {
            spec.insert(field.to_owned(), value);
        }
    };
    fill("numCsx", Some(run.get("num_csx").filter(|value| !value.is_null()).cloned().unwrap_or_else(|| json!(1))));
    fill("mode", run.get("mode").cloned());
    fill("priorityClassName", run.get("job_priority").cloned());
    fill(
        "deadlines",
        run.get("job_time_sec").filter(|value| value.is_u64()).map(|most| json!({"activeSeconds": most})),
    );
}

/// Puts texts that travel along into a volume of the job's, and has the params name them there.
fn travel(params: &mut Value, spec: &mut Map<String, Value>, mut files: Vec<(String, Bytes)>) -> Result<Vec<Text>> {
    let named = names(params);
    let (mut texts, mut renamed, mut total) = (Vec::new(), Vec::new(), 0);
    files.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (at, (path, bytes)) in files.into_iter().enumerate() {
        let fault = |message: String| Refusal::invalid(vec![Fault { field: path.clone(), message }]);
        let content =
            String::from_utf8(bytes.to_vec()).map_err(|_| fault("only UTF-8 texts travel along".to_owned()))?;
        let file = std::path::Path::new(&path).file_name().and_then(|name| name.to_str()).unwrap_or("text");
        let clean =
            |letter: char| if letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_') { letter } else { '-' };
        let file: String = file.chars().map(clean).collect();
        // Of several names that stand for it the first: the text is one.
        let Some((group, stands_for)) = named.iter().enumerate().find(|(_, name)| stands_for(name, &path)) else {
            return Err(fault("no data_dir of the params names this text: leave it out".to_owned()));
        };
        // Texts of one glob keep their order.
        let name = format!("{group}-{at:04}-{file}");
        let by = if *stands_for == path { format!("{TEXTS}/{name}") } else { format!("{TEXTS}/{group}-*") };
        total += name.len() + content.len();
        if total > MOST_TEXT {
            return Err(fault(
                "texts that travel along have less than 1 MiB together: put it into a volume".to_owned(),
            ));
        }
        renamed.push((stands_for.clone(), by));
        texts.push(Text { name, content });
    }
    for input in ["train_input", "eval_input"] {
        for key in ["data_dir", "data_files"] {
            if let Some(value) = params.get_mut(input).and_then(|input| input.get_mut(key)) {
                renamed.iter().for_each(|(path, by)| rename(value, path, by));
            }
        }
    }
    if !texts.is_empty() {
        let mut add = |field: &str, value: Value| {
            if let Value::Array(all) = spec.entry(field).or_insert_with(|| json!([])) {
                all.push(value);
            }
        };
        add("volumes", json!({"name": TEXTS_VOLUME, "configMap": {"name": TEXTS_VOLUME}}));
        add("mountDirs", json!({"path": TEXTS, "volume": TEXTS_VOLUME}));
    }
    Ok(texts)
}

/// Names the volume of the texts by whose they are and what is in it: a request that comes again means the same one, and nobody
/// changes another's.
fn name_texts(object: &mut Value, texts: &[Text]) {
    if texts.is_empty() {
        return;
    }
    let mut digest = blake3::Hasher::new();
    digest.update(object["metadata"]["name"].as_str().unwrap_or_default().as_bytes());
    for Text { name, content } in texts {
        digest.update(&[0]).update(name.as_bytes()).update(&[0]).update(content.as_bytes());
    }
    let name = format!("{TEXTS_VOLUME}-{}", &digest.finalize().to_hex()[..16]);
    for volume in object["spec"]["volumes"].as_array_mut().into_iter().flatten() {
        if volume["name"] == TEXTS_VOLUME {
            volume["configMap"]["name"] = name.as_str().into();
        }
    }
}

/// Every path that the params name as data, once.
fn names(params: &Value) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for input in ["train_input", "eval_input"] {
        for key in ["data_dir", "data_files"] {
            let value = &params[input][key];
            let all = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            names.extend(all.iter().filter_map(Value::as_str).map(str::to_owned));
        }
    }
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// Whether `name` in the params means the text at `path`: it is that path, or a glob that finds it.
fn stands_for(name: &str, path: &str) -> bool {
    name == path || glob::Pattern::new(name).is_ok_and(|pattern| pattern.matches(path))
}

/// Replaces `path` by `by` where `value`, a string or a list of them, has it.
fn rename(value: &mut Value, path: &str, by: &str) {
    match value {
        Value::String(text) if text == path => by.clone_into(text),
        Value::Array(all) => all.iter_mut().for_each(|value| rename(value, path, by)),
        _ => {}
    }
}

fn key(headers: &HeaderMap) -> Result<Option<String>> {
    let Some(value) = headers.get(KEY) else { return Ok(None) };
    let text = value.to_str().ok().filter(|text| (1..=255).contains(&text.len()));
    text.map(|text| Some(text.to_owned())).ok_or_else(|| {
        Refusal::new(Reason::BadRequest, "an Idempotency-Key has 1 to 255 printable characters of ASCII")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_makes_the_name_and_every_name_is_one_that_a_job_may_have() {
        assert_eq!(made_name("gpt2-kjv", Some("k")), made_name("gpt2-kjv", Some("k")));
        assert_ne!(made_name("gpt2-kjv", Some("k")), made_name("gpt2-kjv", Some("l")));
        assert_ne!(made_name("gpt2-kjv", None), made_name("gpt2-kjv", None));
        for stem in ["", "42", "Params (final)", &"x".repeat(200), "-a-", "é"] {
            let name = made_name(stem, None);
            let good = name.len() <= MOST_NAME && name.starts_with(|letter: char| letter.is_ascii_lowercase());
            assert!(good && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-'), "{name}");
        }
    }

    #[test]
    fn texts_that_travel_are_found_where_the_params_say() {
        let mut params = json!({"train_input": {"data_dir": ["a/x.txt", "y"]}, "model": {}});
        let mut spec = Map::new();
        let texts = travel(&mut params, &mut spec, vec![("a/x.txt".to_owned(), Bytes::from_static(b"text"))]).unwrap();
        assert_eq!(texts, [Text { name: "0-0000-x.txt".to_owned(), content: "text".to_owned() }]);
        assert_eq!(params, json!({"train_input": {"data_dir": [format!("{TEXTS}/0-0000-x.txt"), "y"]}, "model": {}}));
        assert_eq!(spec["mountDirs"][0]["path"], TEXTS);
        let mut params = json!({"train_input": {"data_dir": "a/*.txt"}});
        let files = ["a/2.txt", "a/1.txt"].map(|name| (name.to_owned(), Bytes::from_static(b"t"))).to_vec();
        let texts = travel(&mut params, &mut Map::new(), files).unwrap();
        assert_eq!(texts.iter().map(|text| &*text.name).collect::<Vec<_>>(), ["0-0000-1.txt", "0-0001-2.txt"]);
        assert_eq!(params["train_input"]["data_dir"], format!("{TEXTS}/0-*"));
        assert!(travel(&mut params, &mut spec, vec![("z".to_owned(), Bytes::new())]).is_err(), "nobody names it");
    }
}
