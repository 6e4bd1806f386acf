//! Uploads that a submission names by the paths of its params: they become fields of the spec, and the params name them
//! where the agents see them.
//!
//! ```text
//! params                          uploads                  spec                      params then
//! model.graph: net.json           net.json                 model.graph: blake3:…     unchanged
//! runconfig.checkpoint_path: w    w                        model.weights: blake3:…   unchanged
//! train_input.data_dir: data      data/x.npy, data/y.npy   files: 0/x.npy, 0/y.npy   /var/lib/millrace/files/0
//! train_input.data_dir: "*.txt"   a.txt, b.txt             files: 0/0000-a.txt, …    /var/lib/millrace/files/0/*
//! ```

use std::collections::{HashMap, HashSet};

use millrace_crds::FILES_DIR;
use millrace_params::BlobDigest;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::uploads::{DataPaths, MatchKind, clean_name, rename_paths};
use crate::error::{ApiError, FieldError, Result};

/// Limit on the uploads that a job names.
pub const MAX_NAMED_UPLOADS: usize = 1024;

/// An upload, and the path for which it stands.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedUpload {
    /// Path of the file as the params name it, or below a directory that they name.
    path: String,
    /// Digest of the uploaded content.
    digest: BlobDigest,
}

/// Enters `uploads` into the spec, and makes the params name them there.
///
/// # Errors
/// The params name no such path, two uploads have the same path, or the spec already has `model` or `files`.
pub fn attach_named_uploads(
    phases: &mut [Value],
    spec: &mut Map<String, Value>,
    mut uploads: Vec<NamedUpload>,
) -> Result<()> {
    if uploads.is_empty() {
        return Ok(());
    }
    let fault =
        |field: String, message: &str| Err(ApiError::invalid(vec![FieldError { field, message: message.to_owned() }]));
    if uploads.len() > MAX_NAMED_UPLOADS {
        let message = format!("at most {MAX_NAMED_UPLOADS} uploads: put the data into fewer files, or into a volume");
        return fault("uploads".to_owned(), &message);
    }
    for field in ["model", "files"] {
        if spec.contains_key(field) {
            return fault(format!("spec.{field}"), "excludes uploads by name: give one of them");
        }
    }
    uploads.sort_by(|a, b| a.path.cmp(&b.path));
    let named = |pointer: &str| phases.first()?.pointer(pointer)?.as_str().map(str::to_owned);
    let of_model = [("graph", named("/model/graph")), ("weights", named("/runconfig/checkpoint_path"))];
    let paths = DataPaths::of(phases);
    paths.check_work(uploads.iter().map(|upload| upload.path.as_str()))?;
    let (mut model, mut files, mut seen) = (Map::new(), Vec::new(), HashSet::new());
    let mut renamed = HashMap::new();
    for (at, NamedUpload { path, digest }) in uploads.into_iter().enumerate() {
        if let Some((field, _)) = of_model.iter().find(|(_, named)| named.as_deref() == Some(&*path)) {
            model.insert((*field).to_owned(), digest.as_str().into());
            continue;
        }
        let Some(found) = paths.match_upload(&path) else {
            return fault(path, "the params do not name this file: leave it out");
        };
        let name = clean_name(path.rsplit('/').next().unwrap_or_default());
        let group = found.index;
        let (file, by) = match found.kind {
            MatchKind::Equal => (format!("{group}/{name}"), format!("{group}/{name}")),
            MatchKind::Glob => (format!("{group}/{at:04}-{name}"), format!("{group}/*")),
            MatchKind::Below(inside) => (format!("{group}/{}", clean_path(inside)), group.to_string()),
        };
        if !seen.insert(file.clone()) {
            return fault(path, "another upload has the same path, apart from special characters: rename it");
        }
        renamed.insert(found.written.to_owned(), format!("{FILES_DIR}/{by}"));
        files.push(json!({"path": file, "digest": digest}));
    }
    rename_paths(phases, &renamed);
    if !model.is_empty() {
        spec.insert("model".to_owned(), model.into());
    }
    if !files.is_empty() {
        spec.insert("files".to_owned(), files.into());
    }
    Ok(())
}

/// Replaces characters that a path in `spec.files` can't have.
fn clean_path(path: &str) -> String {
    let parts = path.split('/').filter(|part| !part.is_empty()).map(clean_name);
    parts.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::uploads::MAX_GLOB_COMPARISONS;

    fn digest() -> BlobDigest {
        BlobDigest::new(format!("blake3:{}", "0".repeat(64))).unwrap()
    }

    fn attach(params: Value, spec: Value, paths: &[&str]) -> Result<(Value, Value)> {
        let Value::Object(mut spec) = spec else { panic!("{spec}") };
        let named = |path: &&str| NamedUpload { path: (*path).to_owned(), digest: digest() };
        let mut phases = [params];
        attach_named_uploads(&mut phases, &mut spec, paths.iter().map(named).collect())?;
        let [params] = phases;
        Ok((params, spec.into()))
    }

    #[test]
    fn uploads_take_the_place_of_the_paths_that_name_them() {
        let params = json!({
            "model": {"graph": "net.json"},
            "runconfig": {"checkpoint_path": "w.safetensors"},
            "train_input": {"data_dir": "data"},
            "eval_input": {"data_dir": ["texts/*.txt", "one more.txt", "/on/the/appliance"]},
        });
        let paths = ["texts/b.txt", "data/class 1/x.npy", "texts/a.txt", "net.json", "w.safetensors", "one more.txt"];
        let (params, spec) = attach(params, json!({}), &paths).unwrap();
        assert_eq!(params["train_input"]["data_dir"], format!("{FILES_DIR}/0"));
        let eval = [format!("{FILES_DIR}/1/*"), format!("{FILES_DIR}/2/one-more.txt"), "/on/the/appliance".to_owned()];
        assert_eq!(params["eval_input"]["data_dir"], json!(eval));
        let blob = digest().to_string();
        assert_eq!(spec["model"], json!({"graph": blob, "weights": blob}));
        let files: Vec<_> =
            spec["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
        assert_eq!(files, ["0/class-1/x.npy", "2/one-more.txt", "1/0003-a.txt", "1/0004-b.txt"]);
    }

    #[test]
    fn uploads_that_cannot_be_named_are_rejected() {
        let params = || json!({"train_input": {"data_dir": "data"}});
        for (spec, paths, field) in [
            (json!({}), &["other/x"][..], "other/x"),
            (json!({}), &["data/a b", "data/a-b"], "data/a-b"),
            (json!({"files": []}), &["data/x"], "spec.files"),
            (json!({"model": {}}), &["data/x"], "spec.model"),
            (json!({}), &["x"; MAX_NAMED_UPLOADS + 1], "uploads"),
        ] {
            assert_eq!(attach(params(), spec, paths).unwrap_err().errors[0].field, field);
        }
        for hostile in ["data/../../x", "data/./x", "data//x", "data/.hidden", "data/a\0b"] {
            let (_, spec) = attach(params(), json!({}), &[hostile]).unwrap();
            let path = spec["files"][0]["path"].as_str().unwrap();
            assert!(path.split('/').all(|part| !part.is_empty() && !part.starts_with('.')), "{hostile:?}: {path}");
        }
        let globs = json!({"train_input": {"data_dir": vec!["a*".repeat(1000); 100]}});
        let long = "x".repeat(MAX_GLOB_COMPARISONS / 1000);
        assert!(attach(globs, json!({}), &[&long]).is_err());
    }
}
