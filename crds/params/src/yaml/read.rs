//! Converts the tree to typed values, and collects every mistake.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::scalar::{ScalarKind, classify_scalar, parse_yaml11_bool};
use super::tree::{MapEntry, YamlNode, YamlValue};
use crate::error::{ParamsError, ParamsProblem, ParamsProblemKind};
use crate::keys::SectionReference;
use crate::yaml::closest_match;

/// Lines by key path (`model.hidden_size`): kept with the document so that later checks can report the line.
#[derive(Debug, Clone, Default)]
pub(crate) struct LineNumbers(BTreeMap<String, usize>);

impl LineNumbers {
    /// Records the line of a key.
    pub(crate) fn insert(&mut self, key: String, line: usize) {
        self.0.insert(key, line);
    }

    /// Returns the line of a key, or of the nearest section that contains it.
    pub(crate) fn of(&self, key: &str) -> Option<usize> {
        let mut key = key;
        loop {
            match (self.0.get(key), key.rsplit_once('.')) {
                (Some(line), _) => return Some(*line),
                (None, Some((around, _))) => key = around,
                (None, None) => return None,
            }
        }
    }
}

/// Maximum number of keys of a section that the hint of an unknown key lists.
const MAX_LISTED_KEYS: usize = 20;

/// How a kind of document spells its keys, and which sections have a misplaced key.
#[derive(Clone, Copy)]
pub(crate) struct KeyStyle {
    /// Whether keys are documented in camel case, as in Kubernetes; snake case is accepted as well.
    pub camel_case: bool,
    /// Returns the sections that have a key.
    pub sections_with_key: fn(&str) -> Vec<&'static str>,
}

/// Reads a tree as `T`; returns `T::default()` if it is null.
pub(crate) fn read_tree<T: FromNode + Default>(
    root: &YamlNode,
    dialect: KeyStyle,
) -> Result<(T, LineNumbers), ParamsError> {
    let mut reader = TreeReader { dialect, path: Vec::new(), problems: Vec::new(), lines: LineNumbers::default() };
    let document = if root.is_null() { T::default() } else { reader.value(root).unwrap_or_default() };
    ParamsError::check(reader.problems)?;
    Ok((document, reader.lines))
}

/// A type that can be read from a node. `None` means that a problem has been recorded.
pub(crate) trait FromNode: Sized {
    /// Description of the type, to complete a sentence that begins with "must be".
    const TYPE: &'static str;
    /// The section that a value is, or may be.
    const SECTION: Option<&'static SectionReference> = None;

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self>;
}

/// The current position, and the mistakes found so far.
pub(crate) struct TreeReader {
    dialect: KeyStyle,
    path: Vec<String>,
    problems: Vec<ParamsProblem>,
    lines: LineNumbers,
}

impl TreeReader {
    /// Returns the entry's key in snake case.
    pub(crate) fn key<'a>(&self, entry: &'a MapEntry) -> Cow<'a, str> {
        if self.dialect.camel_case { snake_case(&entry.key).into() } else { entry.key.as_str().into() }
    }

    /// Reads a value at the current position.
    pub(crate) fn value<T: FromNode>(&mut self, node: &YamlNode) -> Option<T> {
        T::from_node(node, self)
    }

    /// Reads a mapping's value into its field; a null leaves the field absent.
    pub(crate) fn field<T: FromNode>(&mut self, entry: &MapEntry, field: &mut Option<T>) {
        if entry.value.is_null() {
            return;
        }
        self.within(&entry.key, entry.line, |reader| *field = reader.value(&entry.value));
    }

    /// Reads the items of a list.
    pub(crate) fn items<T: FromNode>(&mut self, items: &[YamlNode]) -> Option<Vec<T>> {
        let values: Vec<Option<T>> = items
            .iter()
            .enumerate()
            .map(|(i, node)| {
                let mut value = None;
                self.within(&i.to_string(), node.line, |reader| value = reader.value(node));
                value
            })
            .collect();
        values.into_iter().collect()
    }

    fn within(&mut self, key: &str, line: usize, read: impl FnOnce(&mut Self)) {
        self.path.push(key.to_owned());
        if line > 0 {
            self.lines.insert(self.current_path(), line);
        }
        read(self);
        self.path.pop();
    }

    /// Returns the mapping's entries, each key once; `None` if the node is no mapping. A key that is given twice with
    /// different values is a problem.
    pub(crate) fn entries<'a>(&mut self, node: &'a YamlNode) -> Option<Vec<&'a MapEntry>> {
        let YamlValue::Map(entries) = &node.value else {
            self.wrong_type(node, "a mapping of keys to values");
            return None;
        };
        let mut seen: BTreeMap<Cow<'_, str>, &MapEntry> = BTreeMap::new();
        let mut unique = Vec::with_capacity(entries.len());
        for entry in entries {
            match seen.get(&self.key(entry)).copied() {
                // Real files repeat keys. The same value has only one meaning.
                Some(first) if first.key == entry.key && first.value.is_same(&entry.value) => {}
                Some(first) => self.problem(
                    ParamsProblemKind::DuplicateKey,
                    entry.line,
                    &entry.key,
                    match first.line {
                        0 => "is given twice".into(),
                        line => format!("is given twice, first on line {line}"),
                    },
                    Some("keep one of the two".into()),
                ),
                None => {
                    seen.insert(self.key(entry), entry);
                    unique.push(entry);
                }
            }
        }
        Some(unique)
    }

    /// Records a key that the section does not have. Unsupported keys of the public model zoo are accepted with a value
    /// that requests nothing: null, false, or an empty list or mapping.
    pub(crate) fn unknown(&mut self, entry: &MapEntry, section: &SectionReference) {
        let key = entry.key.as_str();
        if let Some((_, remedy)) = section.unsupported.iter().find(|(name, _)| *name == key) {
            if !entry.value.requests_nothing() {
                let (message, hint) = ("is not supported yet".into(), Some((*remedy).to_owned()));
                self.problem(ParamsProblemKind::NotSupported, entry.line, key, message, hint);
            }
            return;
        }
        let sections_with_key = (self.dialect.sections_with_key)(key);
        let keys: Vec<Cow<'_, str>> = section.keys.iter().map(|key| self.spell_key(key.name)).collect();
        let hint = match (closest_match(key, keys.iter().map(AsRef::as_ref)), sections_with_key.first()) {
            (_, Some(_)) => format!("it belongs in {}", sections_with_key.join(" or ")),
            (Some(near), None) => format!("did you mean {near}?"),
            (None, None) if keys.len() > MAX_LISTED_KEYS => {
                let path = self.current_path();
                format!("remove it, or check its spelling: `millrace-agent explain {path}` lists the keys")
            }
            (None, None) => format!("remove it; the valid keys are {}", keys.join(", ")),
        };
        let message = "is not a known key".into();
        self.problem(ParamsProblemKind::UnknownKey, entry.line, key, message, Some(hint));
    }

    /// Records a value of the wrong type at the current position; `expected` is a phrase such as "a whole number".
    pub(crate) fn wrong_type(&mut self, node: &YamlNode, expected: &str) {
        let message = format!("must be {expected}, not {}", node.describe());
        let hint = match &node.value {
            YamlValue::Scalar { text, plain: false } if classify_scalar(text) != ScalarKind::Text => {
                Some("leave the quotes out".into())
            }
            YamlValue::Scalar { plain: true, .. } if expected.starts_with("a string") => {
                Some("put it in quotes if it is meant as text".into())
            }
            _ => None,
        };
        self.problem(ParamsProblemKind::WrongType, node.line, "", message, hint);
    }

    /// Records a problem with `key` at the current position, or with the position itself if `key` is empty.
    fn problem(&mut self, kind: ParamsProblemKind, line: usize, key: &str, message: String, hint: Option<String>) {
        let mut path = self.current_path();
        if !key.is_empty() {
            path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        }
        let subject = if path.is_empty() { "the document" } else { &path };
        let line = (line > 0).then_some(line);
        self.problems.push(ParamsProblem { kind, line, message: format!("{subject} {message}"), key: path, hint });
    }

    fn current_path(&self) -> String {
        self.path.join(".")
    }

    /// Returns a snake-case key in the spelling of this dialect's documentation.
    fn spell_key<'a>(&self, key: &'a str) -> Cow<'a, str> {
        if self.dialect.camel_case { camel_case(key).into() } else { key.into() }
    }
}

fn snake_case(key: &str) -> String {
    key.chars()
        .flat_map(|c| c.is_ascii_uppercase().then_some('_').into_iter().chain([c.to_ascii_lowercase()]))
        .collect()
}

/// Converts a key from snake case to camel case.
pub(crate) fn camel_case(key: &str) -> String {
    let mut words = key.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|c| c.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    camel
}

impl YamlNode {
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, YamlValue::Scalar { text, plain: true } if classify_scalar(text) == ScalarKind::Null)
    }

    /// Returns whether the value of an unsupported key is one that requests nothing.
    fn requests_nothing(&self) -> bool {
        match &self.value {
            YamlValue::List(items) => items.is_empty(),
            YamlValue::Map(entries) => entries.is_empty(),
            YamlValue::Scalar { text, plain } => self.is_null() || (*plain && parse_yaml11_bool(text) == Some(false)),
        }
    }

    /// Describes the value for a message.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            YamlValue::List(_) => "a list".into(),
            YamlValue::Map(_) => "a mapping".into(),
            YamlValue::Scalar { text, plain: false } => format!("the string \"{}\"", truncate(text)),
            YamlValue::Scalar { .. } if self.is_null() => "nothing".into(),
            YamlValue::Scalar { text, .. } => truncate(text),
        }
    }
}

fn truncate(text: &str) -> String {
    const MAX_QUOTED_CHARS: usize = 40;
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl FromNode for bool {
    const TYPE: &'static str = "true or false";

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        let value = match &node.value {
            YamlValue::Scalar { text, plain: true } => parse_yaml11_bool(text),
            _ => None,
        };
        if value.is_none() {
            reader.wrong_type(node, Self::TYPE);
        }
        value
    }
}

fn plain_of(node: &YamlNode) -> ScalarKind {
    match &node.value {
        YamlValue::Scalar { text, plain: true } => classify_scalar(text),
        _ => ScalarKind::Text,
    }
}

impl FromNode for u64 {
    const TYPE: &'static str = "a whole number, zero or more";

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        if let ScalarKind::Int(int) = plain_of(node)
            && let Ok(int) = u64::try_from(int)
        {
            return Some(int);
        }
        reader.wrong_type(node, Self::TYPE);
        None
    }
}

impl FromNode for i64 {
    const TYPE: &'static str = "a whole number";

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        if let ScalarKind::Int(int) = plain_of(node)
            && let Ok(int) = i64::try_from(int)
        {
            return Some(int);
        }
        reader.wrong_type(node, Self::TYPE);
        None
    }
}

impl FromNode for f64 {
    const TYPE: &'static str = "a finite number";

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        match plain_of(node) {
            ScalarKind::Int(int) => Some(int as f64),
            ScalarKind::Float(float) if float.is_finite() => Some(float),
            _ => {
                reader.wrong_type(node, Self::TYPE);
                None
            }
        }
    }
}

impl FromNode for String {
    const TYPE: &'static str = "a string";

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        match &node.value {
            YamlValue::Scalar { text, .. } if plain_of(node) == ScalarKind::Text => Some(text.clone()),
            _ => {
                reader.wrong_type(node, Self::TYPE);
                None
            }
        }
    }
}

/// Reads a list; any other value is reported, with the type `expected`.
pub(crate) fn list_of<T: FromNode>(node: &YamlNode, reader: &mut TreeReader, expected: &'static str) -> Option<Vec<T>> {
    let YamlValue::List(items) = &node.value else {
        reader.wrong_type(node, expected);
        return None;
    };
    reader.items(items)
}

impl FromNode for Vec<f64> {
    const TYPE: &'static str = "a list of numbers";

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        list_of(node, reader, Self::TYPE)
    }
}

impl FromNode for Vec<u64> {
    const TYPE: &'static str = "a list of whole numbers, zero or more";

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        list_of(node, reader, Self::TYPE)
    }
}

impl FromNode for serde_json::Value {
    const TYPE: &'static str = "any value";

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        Some(match &node.value {
            YamlValue::List(items) => Self::Array(reader.items(items)?),
            YamlValue::Map(_) => {
                let mut map = serde_json::Map::new();
                for entry in reader.entries(node)? {
                    let mut value = None;
                    reader.field(entry, &mut value);
                    map.insert(entry.key.clone(), value.unwrap_or_default());
                }
                Self::Object(map)
            }
            YamlValue::Scalar { text, .. } => match plain_of(node) {
                ScalarKind::Null => Self::Null,
                ScalarKind::Bool(b) => b.into(),
                ScalarKind::Int(int) => i64::try_from(int).map_or_else(|_| text.clone().into(), Into::into),
                ScalarKind::Float(float) => float.into(),
                ScalarKind::Text => text.clone().into(),
            },
        })
    }
}
