//! Small texts that travel along with a params file: they become a volume of the job's, and the params name them there.

use axum::body::Bytes;
use serde_json::{Map, Value, json};

use crate::backend::Text;
use crate::refusal::{Fault, Refusal, Result};

/// Where texts that travel along are found by a job's agents.
const TEXTS: &str = "/var/lib/millrace/texts";
/// Name of their volume.
const TEXTS_VOLUME: &str = "texts";
/// Most bytes of them all, with their names: what a ConfigMap holds.
const MOST_TEXT: usize = 1 << 20;
/// Puts texts that travel along into a volume of the job's, and has the params name them there.
///
/// # Errors
/// One is no UTF-8, is not named by the params, or they are too long together.
pub fn travel(params: &mut Value, spec: &mut Map<String, Value>, mut files: Vec<(String, Bytes)>) -> Result<Vec<Text>> {
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
pub fn name_texts(object: &mut Value, texts: &[Text]) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
