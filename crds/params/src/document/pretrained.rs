//! The key `model.pretrain_params_path` of the zoo's TensorFlow files: another params file, whose model a fine-tuning
//! continues. Its section `model` has the values of all keys that the own section lacks.
//!
//! Only a program that reads the params from a file, or receives them with the files that they name, can read the other
//! one. Everywhere else the key is rejected.

use crate::error::{ParamsError, ParamsProblem, ParamsProblemKind};
use crate::yaml::{MapEntry, YamlNode, YamlValue, parse};

const MODEL: &str = "model";
const PATH_KEY: &str = "pretrain_params_path";
/// Keys that a fine-tuning does not take over, as in the zoo.
const NOT_INHERITED: [&str; 2] = [PATH_KEY, "use_vsl"];

/// Replaces the key by the keys of the file that it names. `load` reads a file.
pub(super) fn inherit_model(
    root: &mut YamlNode,
    load: impl FnOnce(&str) -> std::io::Result<String>,
) -> Result<(), ParamsError> {
    let Some(model) = section_mut(root, MODEL) else { return Ok(()) };
    let Some(index) = model.iter().position(|entry| entry.key == PATH_KEY) else { return Ok(()) };
    let YamlValue::Scalar { text: path, .. } = &model[index].value.value else { return Ok(()) };
    let (path, line) = (path.clone(), model[index].line);
    let problem = |reason: &str| {
        ParamsError::from(ParamsProblem {
            kind: ParamsProblemKind::Invalid,
            line: Some(line),
            key: format!("{MODEL}.{PATH_KEY}"),
            message: format!("{MODEL}.{PATH_KEY} names {path}, but {reason}"),
            hint: Some(
                "put the params file of the model that was trained before there, or correct the path: a relative path \
                 starts at the folder of this file"
                    .to_owned(),
            ),
        })
    };
    let text = load(&path).map_err(|error| problem(&format!("it can't be read: {error}")))?;
    let mut other = parse(&text).map_err(|error| problem(&format!("there {}", error.report().trim_end())))?;
    let inherited = section_mut(&mut other, MODEL).ok_or_else(|| problem("that file has no section model"))?;
    model.remove(index);
    for mut entry in std::mem::take(inherited) {
        if !NOT_INHERITED.contains(&entry.key.as_str()) && model.iter().all(|written| written.key != entry.key) {
            set_line(&mut entry, line);
            model.push(entry);
        }
    }
    Ok(())
}

/// Returns the entries of a section.
pub(super) fn section_mut<'a>(root: &'a mut YamlNode, name: &str) -> Option<&'a mut Vec<MapEntry>> {
    let YamlValue::Map(entries) = &mut root.value else { return None };
    match &mut entries.iter_mut().find(|entry| entry.key == name)?.value.value {
        YamlValue::Map(section) => Some(section),
        YamlValue::Scalar { .. } | YamlValue::List(_) => None,
    }
}

/// Sets the line of a key and of all values below it. The depth of a tree is bounded.
fn set_line(entry: &mut MapEntry, line: usize) {
    fn of_node(node: &mut YamlNode, line: usize) {
        node.line = line;
        match &mut node.value {
            YamlValue::Map(entries) => entries.iter_mut().for_each(|entry| set_line(entry, line)),
            YamlValue::List(items) => items.iter_mut().for_each(|item| of_node(item, line)),
            YamlValue::Scalar { .. } => {}
        }
    }
    entry.line = line;
    of_node(&mut entry.value, line);
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use crate::{Params, ParamsError};

    const FINE_TUNING: &str = "train_input: {}\nmodel:\n  pretrain_params_path: ../base.yaml\n  num_heads: 2\n";

    fn read(text: &str, other: &str) -> Result<Params, ParamsError> {
        let phases = Params::parse_phases(FINE_TUNING.replace("num_heads: 2", text).as_str(), |path| {
            assert_eq!(path, "../base.yaml");
            if other.is_empty() { Err(ErrorKind::NotFound.into()) } else { Ok(other.to_owned()) }
        });
        phases.map(|phases| phases.first)
    }

    #[test]
    fn model_of_the_other_file_fills_what_is_missing() {
        let other = "train_input: {batch_size: 3}\nmodel:\n  num_heads: 4\n  hidden_size: 64\n  use_vsl: True\n  \
             pretrain_params_path: x\n";
        let params = read("num_heads: 2", other).unwrap();
        let model = params.model.unwrap();
        assert_eq!((model.num_heads, model.hidden_size, model.use_vsl), (Some(2), Some(64), None));
        assert_eq!(params.train_input.unwrap().batch_size, None);
    }

    #[test]
    fn problems_name_the_key_and_its_line() {
        for (other, message) in [
            ("", "line 3: model.pretrain_params_path names ../base.yaml, but it can't be read: entity not found"),
            ("model: 3\n", "that file has no section model"),
            ("model: {a: [}\n", "but there line 1: this is not valid YAML"),
            ("model: {hiden_size: 3}\n", "line 3: model.hiden_size is not a known key"),
        ] {
            let report = read("num_heads: 2", other).unwrap_err().report();
            assert!(report.contains(message), "{report}");
        }
        // A program that has no files rejects the key.
        let report = Params::parse_yaml(FINE_TUNING).unwrap_err().report();
        assert!(report.contains("model.pretrain_params_path is not supported"), "{report}");
    }
}
