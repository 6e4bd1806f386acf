//! Explains keys in text for a terminal.

use std::fmt::Write;

use super::trainer::{self, TrainerPath};
use super::{DefaultValue, KeyReference, SectionReference, sections, wrap};
use crate::document::Params;
use crate::trainer::TRAINER;
use crate::yaml::closest_match;

/// Width of the text, in characters.
const WIDTH: usize = 100;

/// Error for a path that names no key of the params.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path} is not a key of the params")]
pub struct UnknownKeyError {
    /// The path as it was given.
    pub path: String,
    /// The path of the key that is probably meant.
    pub suggestion: Option<String>,
}

/// Lists the sections of the document, each with its keys.
pub fn overview() -> String {
    let mut text = format!("{}\n", Params::REFERENCE.description());
    for (name, section) in sections() {
        let _ = write!(text, "\n{name}\n  {}\n", wrap(key_of_document(name), WIDTH, "  "));
        if name == "eval_input" {
            continue; // It has the keys of train_input.
        }
        let keys: Vec<&str> = documented(section).map(|key| key.name).collect();
        let _ = writeln!(text, "    {}", wrap(&keys.join(", "), WIDTH, "    "));
    }
    text.push_str("\ntrainer\n  The same params in the layout of newer releases of the public model zoo.\n");
    text.push_str("\n`explain KEY` describes a section, as in model, or a key, as in model.nonlinearity.\n");
    text
}

fn key_of_document(name: &str) -> &'static str {
    Params::REFERENCE.key(name).map_or("", KeyReference::description)
}

/// Explains a section or a key. The path is that of messages, such as `model.nonlinearity`, without or with the indexes
/// of lists. The section may be omitted if only one has the key.
///
/// # Errors
/// No section or key has this path.
pub fn explain(path: &str) -> Result<String, UnknownKeyError> {
    if path.is_empty() {
        return Ok(overview());
    }
    let words: Vec<&str> = path.split('.').filter(|segment| segment.parse::<usize>().is_err()).collect();
    match trainer::resolve(&words.join(".")) {
        _ if words == [TRAINER] => return Ok(trainer::explain(WIDTH)),
        Some(TrainerPath::Own(text)) => return Ok(text),
        Some(TrainerPath::Classic(classic)) => {
            return explain(&classic).map(|text| format!("{path} stands for {classic}.\n\n{text}"));
        }
        None => {}
    }
    let full = complete(path)?;
    let mut section = Params::REFERENCE;
    let mut section_path = String::new();
    let mut segments = full.split('.').filter(|segment| segment.parse::<usize>().is_err()).peekable();
    while let Some(segment) = segments.next() {
        let parent = section_path.clone();
        section_path = join(&section_path, segment);
        if let Some((_, remedy)) = section.unsupported.iter().find(|(name, _)| *name == segment) {
            return Ok(format!("{section_path}\n  This key of the public model zoo is not supported yet: {remedy}.\n"));
        }
        let Some(key) = section.key(segment) else {
            let names = section.keys.iter().map(|key| key.name);
            let suggestion = closest_match(segment, names).map(|name| join(&parent, name));
            return Err(UnknownKeyError { path: path.to_owned(), suggestion });
        };
        if segments.peek().is_none() {
            return Ok(describe(&parent, &section_path, section, key));
        }
        section = key
            .section
            .ok_or_else(|| UnknownKeyError { path: path.to_owned(), suggestion: Some(section_path.clone()) })?;
    }
    Ok(overview())
}

/// Adds the section to a key that is given without one.
fn complete(path: &str) -> Result<String, UnknownKeyError> {
    let first = path.split('.').next().unwrap_or_default();
    let document = Params::REFERENCE;
    if document.key(first).is_some() || document.unsupported.iter().any(|(name, _)| *name == first) {
        return Ok(path.to_owned());
    }
    let has_key = |section: &SectionReference| {
        section.key(first).is_some() || section.unsupported.iter().any(|(name, _)| *name == first)
    };
    if let Some((name, _)) = sections().find(|(_, section)| has_key(section)) {
        return Ok(join(name, path));
    }
    let names = sections().map(|(name, _)| name.to_owned());
    let keys = sections().flat_map(|(name, section)| section.keys.iter().map(move |key| (name, key.name)));
    let suggestion = match path.split_once('.') {
        // The section is misspelled: if one is similar, the key may be right.
        Some((_, rest)) => {
            let names: Vec<String> = names.collect();
            closest_match(first, names.iter().map(String::as_str)).map(|name| join(name, rest))
        }
        None => {
            let keys: Vec<(&str, &str)> = keys.collect();
            let names: Vec<String> = names.collect();
            let candidates = names.iter().map(String::as_str).chain(keys.iter().map(|(_, key)| *key));
            closest_match(first, candidates).map(|key_path| {
                keys.iter().find(|(_, key)| *key == key_path).map_or(key_path.to_owned(), |(name, key)| join(name, key))
            })
        }
    };
    Err(UnknownKeyError { path: path.to_owned(), suggestion })
}

fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

/// Returns the keys that have an effect and are not aliases.
fn documented(section: &SectionReference) -> impl Iterator<Item = &'static KeyReference> {
    section.keys.iter().filter(|key| key.has_effect() && key.alias_of().is_none())
}

fn describe(parent: &str, path: &str, section: &SectionReference, key: &'static KeyReference) -> String {
    let Some(canonical) = key.alias_of().and_then(|name| section.key(name)) else {
        return describe_key(path, section, key);
    };
    let canonical_path = join(parent, canonical.name);
    let text = describe_key(&canonical_path, section, canonical);
    format!("{path} is another spelling of {canonical_path}. {}\n\n{text}", key.description())
}

fn describe_key(path: &str, section: &SectionReference, key: &'static KeyReference) -> String {
    let mut text = format!("{path}\n  {}\n\n", wrap(key.description(), WIDTH, "  "));
    let mut row = |name: &str, value: &str| {
        let indent = " ".repeat(18);
        let _ = writeln!(text, "  {name:<16}{}", wrap(value, WIDTH, &indent));
    };
    row("type", key.value_type);
    if !key.has_effect() {
        row("effect", "none: the key is accepted, and reported as ignored");
        return text;
    }
    match key.eval_default() {
        Some(default) if path.starts_with("eval_input") => row("default", &plain(default)),
        eval_default => {
            row("default", &plain(key.default()));
            if let Some(default) = eval_default {
                row("in eval_input", &plain(default));
            }
        }
    }
    if key.is_fixed() {
        row("not supported", "any other value");
    }
    let choices = key.choices();
    if !choices.is_empty() {
        row("choices", &choices.join(", "));
    }
    if !key.unsupported_choices().is_empty() {
        row("not supported", &key.unsupported_choices().join(", "));
    }
    let aliases: Vec<&str> = section.aliases_of(key.name).map(|alias| alias.name).collect();
    if !aliases.is_empty() {
        row("aliases", &aliases.join(", "));
    }
    if let Some(nested) = key.section {
        text.push('\n');
        text.push_str(&list(nested));
    }
    text
}

fn plain(default: DefaultValue) -> String {
    let text = match default {
        DefaultValue::Required => "none, the key is required".to_owned(),
        DefaultValue::RequiredIf(condition) => format!("none, the key is required if {condition}"),
        DefaultValue::Yaml(yaml) => yaml.to_owned(),
        DefaultValue::FromKey(path) => format!("the value of {path}"),
        DefaultValue::Described(words) => words.to_owned(),
    };
    text.replace('`', "")
}

/// Lists the keys of a section: those that are used with their summaries, of the others only the names.
fn list(section: &SectionReference) -> String {
    let mut text = String::from("keys\n");
    for key in documented(section) {
        let _ = writeln!(text, "  {}\n      {}", key.name, wrap(&key.summary().replace('`', ""), WIDTH, "      "));
    }
    let mut names = |title: &str, names: Vec<&str>| {
        if !names.is_empty() {
            let _ = write!(text, "\n{title}\n  {}\n", wrap(&names.join(", "), WIDTH, "  "));
        }
    };
    let aliases = section.keys.iter().filter(|key| key.alias_of().is_some());
    names("other spellings", aliases.map(|key| key.name).collect());
    let ignored = section.keys.iter().filter(|key| !key.has_effect());
    names("accepted without effect", ignored.map(|key| key.name).collect());
    names("not supported yet", section.unsupported.iter().map(|(name, _)| *name).collect());
    text
}
