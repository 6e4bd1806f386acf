//! Files that are uploaded with a params file: they become a volume of the job, and the params name them there.

use std::collections::HashMap;

use axum::body::Bytes;
use glob::Pattern;
use millrace_params::{FileName, ObjectName};
use serde_json::{Map, Value, json};

use crate::error::{ApiError, ErrorReason, FieldError, Result};
use crate::submission::{UPLOADS_DIR, UploadedFile, UploadedFiles};

/// Name of their volume. A user's volume must not have it if the job has uploads.
const UPLOADS_VOLUME: &str = "texts";
/// Limit on all uploads together, with their names: what a ConfigMap holds.
pub const MAX_UPLOAD_BYTES: usize = 1 << 20;
/// Keys of the params with paths of files, by section.
const PATH_KEYS: [(&str, &[&str]); 3] =
    [("train_input", INPUT_PATH_KEYS), ("eval_input", INPUT_PATH_KEYS), ("model", &["vocab_file", "label_vocab_file"])];
const INPUT_PATH_KEYS: &[&str] = &[
    "data_dir",
    "data_files",
    "data_file",
    "src_data_dir",
    "tgt_data_dir",
    "tokenizer_file",
    "vocab_file",
    "src_vocab_file",
    "tgt_vocab_file",
    "label_vocab_file",
];
/// Limit on comparisons of a byte of a file's path with one of a glob: less than a second.
pub(super) const MAX_GLOB_COMPARISONS: usize = 1 << 25;

/// Moves uploads into a volume of the job, and makes the params name them there. Returns the files of the volume.
/// `other_bytes` of the limit are used by another file.
///
/// # Errors
/// A file is not UTF-8, is not named by the params, or exceeds the limit on all of them; the globs take too long to
/// match; a volume or mount of the user has the reserved name or directory.
pub fn attach_uploads(
    phases: &mut [Value],
    spec: &mut Map<String, Value>,
    mut files: Vec<(String, Bytes)>,
    other_bytes: usize,
) -> Result<Vec<UploadedFile>> {
    let named = DataPaths::of(phases);
    named.check_work(files.iter().map(|(path, _)| path.as_str()))?;
    let (mut uploads, mut renamed, mut total) = (Vec::new(), Vec::new(), other_bytes);
    files.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (at, (path, bytes)) in files.into_iter().enumerate() {
        let fault = |message: String| ApiError::invalid(vec![FieldError { field: path.clone(), message }]);
        let content = String::from_utf8(bytes.to_vec())
            .map_err(|_| fault("only UTF-8 text files can be uploaded with a job".to_owned()))?;
        let file = std::path::Path::new(&path).file_name().and_then(|name| name.to_str()).unwrap_or("text");
        let file = clean_name(file);
        // If several names match, the first one counts, so that a file is uploaded once.
        let Some((group, stands_for)) = named.match_file(&path) else {
            return Err(fault("the params do not name this file: leave it out".to_owned()));
        };
        // The number keeps the order of the files of one glob.
        let name = format!("{group}-{at:04}-{file}");
        let name = FileName::new(name).map_err(|error| fault(error.to_string()))?;
        let by = if *stands_for == path { format!("{UPLOADS_DIR}/{name}") } else { format!("{UPLOADS_DIR}/{group}-*") };
        total += name.as_str().len() + content.len();
        if total > MAX_UPLOAD_BYTES {
            return Err(fault(
                "uploaded files may have less than 1 MiB in total: put the data into a volume".to_owned(),
            ));
        }
        renamed.push((stands_for.clone(), by));
        uploads.push(UploadedFile { name, content });
    }
    rename_paths(phases, &renamed.into_iter().rev().collect());
    if !uploads.is_empty() {
        reserve_name(spec, "volumes", "name", UPLOADS_VOLUME, json!({"configMap": {"name": UPLOADS_VOLUME}}))?;
        reserve_name(spec, "mountDirs", "path", UPLOADS_DIR, json!({"volume": UPLOADS_VOLUME}))?;
    }
    Ok(uploads)
}

/// Replaces the characters of a file's name that may have a meaning in a path or a glob.
pub(super) fn clean_name(name: &str) -> String {
    let clean = |letter: char| if letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_') { letter } else { '-' };
    let clean: String = name.chars().map(clean).collect();
    if clean.starts_with('.') { format!("-{clean}") } else { clean }
}

/// Replaces paths in the params of all phases by those of `by`.
pub(super) fn rename_paths(phases: &mut [Value], by: &HashMap<String, String>) {
    for params in phases {
        for (section, key) in path_keys() {
            if let Some(value) = params.get_mut(section).and_then(|section| section.get_mut(key)) {
                rename(value, by);
            }
        }
    }
}

/// Adds to a list of the spec an item whose `key` is `value`, which no item of the user may have.
fn reserve_name(spec: &mut Map<String, Value>, field: &str, key: &str, value: &str, mut item: Value) -> Result<()> {
    let fault = |field: String, message: String| {
        Err(ApiError::invalid(vec![FieldError { field: format!("spec.{field}"), message }]))
    };
    let Value::Array(all) = spec.entry(field).or_insert_with(|| json!([])) else {
        return fault(field.to_owned(), "expected a list".to_owned());
    };
    if let Some(at) = all.iter().position(|there| there[key] == value) {
        let message = format!("{value} is reserved for the uploaded files: choose another {key}");
        return fault(format!("{field}[{at}].{key}"), message);
    }
    item[key] = value.into();
    all.push(item);
    Ok(())
}

/// Names the ConfigMap of the uploads by a digest of the job's name and of the files, and enters that name into the
/// volume that [`attach_uploads`] has added. A repeated request thus gives the same ConfigMap, and two jobs never share one.
///
/// # Errors
/// None in practice: the generated name is always valid.
pub fn name_uploads(object: &mut Value, files: Vec<UploadedFile>) -> Result<Option<UploadedFiles>> {
    if files.is_empty() {
        return Ok(None);
    }
    let mut digest = blake3::Hasher::new();
    digest.update(object["metadata"]["name"].as_str().unwrap_or_default().as_bytes());
    for UploadedFile { name, content } in &files {
        digest.update(&[0]).update(name.as_str().as_bytes()).update(&[0]).update(content.as_bytes());
    }
    let name = format!("{UPLOADS_VOLUME}-{}", &digest.finalize().to_hex()[..16]);
    let config_map =
        ObjectName::new(name).map_err(|error| ApiError::internal("name the uploaded files of a job", error))?;
    for volume in object["spec"]["volumes"].as_array_mut().into_iter().flatten() {
        if volume["name"] == UPLOADS_VOLUME {
            volume["configMap"]["name"] = config_map.as_str().into();
        }
    }
    Ok(Some(UploadedFiles { config_map, files }))
}

/// Returns each key with paths of files, with its section.
fn path_keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    PATH_KEYS.into_iter().flat_map(|(section, keys)| keys.iter().map(move |key| (section, *key)))
}

/// How a path of the params names an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchKind<'a> {
    /// By its own path.
    Equal,
    /// By a glob.
    Glob,
    /// By the directory that contains it; its path in that directory.
    Below(&'a str),
}

/// A path of the params that names an upload.
pub(super) struct UploadMatch<'a> {
    pub(super) index: usize,
    /// The path in the params.
    pub(super) written: &'a str,
    pub(super) kind: MatchKind<'a>,
}

/// The data paths in the params of all phases, each once with its index.
#[derive(Default)]
pub(super) struct DataPaths {
    all: Vec<String>,
    /// Index of each.
    plain: HashMap<String, usize>,
    globs: Vec<(usize, Pattern)>,
}

impl DataPaths {
    pub(super) fn of(phases: &[Value]) -> Self {
        let mut names = Self::default();
        for params in phases {
            for (section, key) in path_keys() {
                let value = &params[section][key];
                let all = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
                all.iter().filter_map(Value::as_str).for_each(|name| names.add(name));
            }
        }
        names
    }

    fn add(&mut self, name: &str) {
        let number = self.all.len();
        if self.plain.contains_key(name) {
            return;
        }
        self.plain.insert(name.to_owned(), number);
        // A name that is not a glob matches only the equal path.
        let glob = name.contains(['*', '?', '[']).then(|| Pattern::new(name).ok()).flatten();
        self.globs.extend(glob.map(|glob| (number, glob)));
        self.all.push(name.to_owned());
    }

    /// Returns the first name that matches the file at `path`: that path itself, or a glob.
    fn match_file(&self, path: &str) -> Option<(usize, &String)> {
        let plain = self.plain.get(path).copied();
        let before = |number: usize| plain.is_none_or(|plain| number < plain);
        let mut globs = self.globs.iter().take_while(|(number, _)| before(*number));
        let index = globs.find(|(_, glob)| glob.matches(path)).map(|(number, _)| *number).or(plain)?;
        Some((index, self.all.get(index)?))
    }

    /// Returns the first name that matches the upload of the file at `path`: that path itself, a glob, or else a
    /// directory that contains it.
    pub(super) fn match_upload<'a>(&'a self, path: &'a str) -> Option<UploadMatch<'a>> {
        if let Some((index, written)) = self.match_file(path) {
            let kind = if written == path { MatchKind::Equal } else { MatchKind::Glob };
            return Some(UploadMatch { index, written, kind });
        }
        let directories = path.char_indices().filter(|(_, letter)| *letter == '/').map(|(at, _)| path.split_at(at));
        let mut found = directories.filter_map(|(directory, inside)| {
            let with_slash = path.get(..=directory.len())?;
            let index = *self.plain.get(directory).or_else(|| self.plain.get(with_slash))?;
            Some(UploadMatch { index, written: self.all.get(index)?, kind: MatchKind::Below(inside) })
        });
        found.next()
    }

    /// Rejects globs and files whose matching takes too long: in the worst case each byte of a path is compared with
    /// each of a glob.
    pub(super) fn check_work<'a>(&self, paths: impl Iterator<Item = &'a str>) -> Result<()> {
        let of_globs: usize = self.globs.iter().map(|(_, glob)| glob.as_str().len()).sum();
        let (count, of_paths) = paths.fold((0_usize, 0_usize), |(count, sum), path| (count + 1, sum + path.len()));
        if of_globs.saturating_mul(of_paths) <= MAX_GLOB_COMPARISONS {
            return Ok(());
        }
        let detail = format!(
            "finding {} files by {} globs in the params takes too long: name their directory by one glob, or put them \
             into a volume of the appliance",
            count,
            self.globs.len()
        );
        Err(ApiError::new(ErrorReason::PayloadTooLarge, detail))
    }
}

/// Replaces names by those of `by` in `value`, a string or a list of strings.
fn rename(value: &mut Value, by: &HashMap<String, String>) {
    match value {
        Value::String(text) => {
            if let Some(new) = by.get(text) {
                text.clone_from(new);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|value| rename(value, by)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploaded_files_are_found_where_the_params_say() {
        let mut params = [json!({"train_input": {"data_dir": ["a/x.txt", "y"]}, "model": {}})];
        let mut spec = Map::new();
        let uploads =
            attach_uploads(&mut params, &mut spec, vec![("a/x.txt".to_owned(), Bytes::from_static(b"text"))], 0)
                .unwrap();
        assert_eq!(
            uploads,
            [UploadedFile { name: FileName::new("0-0000-x.txt").unwrap(), content: "text".to_owned() }]
        );
        assert_eq!(
            params[0],
            json!({"train_input": {"data_dir": [format!("{UPLOADS_DIR}/0-0000-x.txt"), "y"]}, "model": {}})
        );
        assert_eq!(spec["mountDirs"][0]["path"], UPLOADS_DIR);
        let mut params = [json!({"train_input": {"data_dir": "a/*.txt"}})];
        let files = ["a/2.txt", "a/1.txt"].map(|name| (name.to_owned(), Bytes::from_static(b"t"))).to_vec();
        let uploads = attach_uploads(&mut params, &mut Map::new(), files, 0).unwrap();
        assert_eq!(uploads.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), ["0-0000-1.txt", "0-0001-2.txt"]);
        assert_eq!(params[0]["train_input"]["data_dir"], format!("{UPLOADS_DIR}/0-*"));
        let mut params = [json!({"train_input": {"tokenizer_file": "t.json"}, "model": {"vocab_file": "words.txt"}})];
        let files = ["words.txt", "t.json"].map(|name| (name.to_owned(), Bytes::from_static(b"t"))).to_vec();
        attach_uploads(&mut params, &mut Map::new(), files, 0).unwrap();
        assert_eq!(params[0]["train_input"]["tokenizer_file"], format!("{UPLOADS_DIR}/0-0000-t.json"));
        assert_eq!(params[0]["model"]["vocab_file"], format!("{UPLOADS_DIR}/1-0001-words.txt"));
        assert!(
            attach_uploads(&mut params, &mut spec, vec![("z".to_owned(), Bytes::new())], 0).is_err(),
            "the params name no file of this name"
        );
    }

    #[test]
    fn uploads_never_use_a_user_volume() {
        let text = || vec![("a.txt".to_owned(), Bytes::from_static(b"text"))];
        let upload = |spec: Value| {
            let mut object = json!({"metadata": {"name": "job"}, "spec": spec});
            let mut params = [json!({"train_input": {"data_dir": "a.txt"}})];
            let files = attach_uploads(&mut params, object["spec"].as_object_mut().unwrap(), text(), 0)?;
            name_uploads(&mut object, files).map(|uploads| (uploads.unwrap(), object))
        };
        let (uploads, object) = upload(json!({"volumes": [{"name": "mine", "configMap": {"name": "/x"}}]})).unwrap();
        assert_eq!(object["spec"]["volumes"][0]["configMap"]["name"], "/x", "which the definition refuses");
        assert_eq!(object["spec"]["volumes"][1]["configMap"]["name"], uploads.config_map.as_str());
        assert!(uploads.config_map.as_str().starts_with("texts-"));
        for (spec, field) in [
            (json!({"volumes": [{"name": "texts", "configMap": {"name": "x"}}]}), "spec.volumes[0].name"),
            (json!({"mountDirs": [{"path": UPLOADS_DIR, "volume": "mine"}]}), "spec.mountDirs[0].path"),
            (json!({"volumes": {}}), "spec.volumes"),
        ] {
            assert_eq!(upload(spec).unwrap_err().errors[0].field, field);
        }
    }

    #[test]
    fn name_of_uploaded_text_is_one_component() {
        for path in ["../../x", "/etc/passwd", "a\0b", "..", "", "é/ü", "a/."] {
            let mut params = [json!({"train_input": {"data_dir": path}})];
            let uploads =
                attach_uploads(&mut params, &mut Map::new(), vec![(path.to_owned(), Bytes::from_static(b"t"))], 0)
                    .unwrap();
            assert!(uploads[0].name.as_str().starts_with("0-0000-"), "{path:?}");
        }
        let long = "x".repeat(300);
        let mut params = [json!({"train_input": {"data_dir": long}})];
        assert!(attach_uploads(&mut params, &mut Map::new(), vec![(long, Bytes::from_static(b"t"))], 0).is_err());
    }

    #[test]
    fn expensive_globs_are_rejected_early() {
        let names: Vec<String> = (0..20_000).map(|at| format!("a*{at}")).collect();
        let mut params = [json!({"train_input": {"data_dir": names}})];
        let files = (0..1000).map(|at| (format!("f{at}"), Bytes::from_static(b"t"))).collect();
        let began = std::time::Instant::now();
        let error = attach_uploads(&mut params, &mut Map::new(), files, 0).unwrap_err();
        assert_eq!(error.reason, ErrorReason::PayloadTooLarge);
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    }
}
