//! Parses YAML text to a tree whose every node has its line.
//!
//! The tree is built from the parser's events without recursion, within bounds on depth and size. Therefore no document
//! can exhaust stack or memory (aliases multiply nodes: "billion laughs").

use std::borrow::Cow;
use std::collections::HashSet;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use crate::error::{ParamsError, ParamsProblem, ParamsProblemKind};

/// Maximum nesting of lists and mappings; a params document needs five.
const MAX_DEPTH: usize = 64;
/// Maximum nodes in a document, with aliases expanded.
const MAX_NODES: usize = 100_000;

/// Maximum number of closing brackets that are indented: the text is parsed once for each.
const MAX_INDENTED_BRACKETS: usize = 32;
/// Maximum indentation of a text in which brackets are indented.
const MAX_INDENT: usize = 256;
/// First words of the message about a text that the parser rejects.
const INVALID_YAML: &str = "this is not valid YAML";

/// The key whose value's entries belong to the mapping itself.
const MERGE_KEY: &str = "<<";

/// One value of the document.
#[derive(Debug, Clone)]
pub(crate) struct YamlNode {
    /// Line of its first character, counted from 1; 0 in a tree that was not parsed from text.
    pub line: usize,
    pub value: YamlValue,
}

#[derive(Debug, Clone)]
pub(crate) enum YamlValue {
    /// The text of a scalar. Only a plain one (without quotes) may be a number, a boolean or null.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<YamlNode>),
    Map(Vec<MapEntry>),
}

/// One `key: value` of a mapping. Entries keep the order of the document, and duplicates.
#[derive(Debug, Clone)]
pub(crate) struct MapEntry {
    pub key: String,
    /// Line of the key.
    pub line: usize,
    pub value: YamlNode,
}

/// Parses text that contains exactly one document; an empty text is a null.
///
/// A closing bracket that is not indented more than its key, which YAML forbids and PyYAML accepts, is accepted.
pub(crate) fn parse(text: &str) -> Result<YamlNode, ParamsError> {
    let mut text = Cow::Borrowed(text);
    for _ in 0..MAX_INDENTED_BRACKETS {
        let problem = match parse_strictly(&text) {
            Ok(root) => return Ok(root),
            Err(problem) => problem,
        };
        match indent_bracket(&text, &problem) {
            Some(indented) => text = Cow::Owned(indented),
            None => return Err(ParamsError::from(problem)),
        }
    }
    parse_strictly(&text).map_err(ParamsError::from)
}

fn parse_strictly(text: &str) -> Result<YamlNode, ParamsProblem> {
    // The parser counts the end of the text as a line of its own.
    let last_line = text.lines().count().max(1);
    let mut builder = TreeBuilder::default();
    for event in Parser::new_from_str(text) {
        match event {
            Ok((event, span)) => builder.event(event, span)?,
            Err(e) => {
                let line = e.marker().line().min(last_line);
                return Err(syntax(line, format!("{INVALID_YAML}: {}", e.info())));
            }
        }
    }
    Ok(builder.root.unwrap_or(YamlNode { line: 1, value: YamlValue::Scalar { text: String::new(), plain: true } }))
}

/// Indents the line of a problem if it begins with a closing bracket: white space before a bracket has no meaning.
/// Returns `None` if that can't be the cause of the problem.
fn indent_bracket(text: &str, problem: &ParamsProblem) -> Option<String> {
    let line = problem.line?.checked_sub(1)?;
    let indent_of = |line: &str| line.len() - line.trim_start_matches(' ').len();
    let widest = text.lines().map(indent_of).max().unwrap_or(0);
    let content = text.lines().nth(line)?;
    let is_cause = problem.message.starts_with(INVALID_YAML)
        && content.trim_start_matches(' ').starts_with([']', '}'])
        && indent_of(content) < widest
        && widest <= MAX_INDENT;
    is_cause.then(|| {
        let indented = text
            .split_inclusive('\n')
            .enumerate()
            .map(|(i, text)| if i == line { format!("{}{text}", " ".repeat(widest + 1)) } else { text.to_owned() });
        indented.collect()
    })
}

fn syntax(line: usize, message: String) -> ParamsProblem {
    ParamsProblem { kind: ParamsProblemKind::Syntax, line: Some(line), key: String::new(), message, hint: None }
}

/// A list or mapping whose end event has not been read yet.
struct OpenCollection {
    anchor: usize,
    node: YamlNode,
    /// In a mapping: the key of the next value.
    key: Option<(String, usize)>,
}

#[derive(Default)]
struct TreeBuilder {
    open: Vec<OpenCollection>,
    root: Option<YamlNode>,
    /// Finished nodes with an anchor, by its number.
    anchors: Vec<(usize, YamlNode)>,
    nodes: usize,
    documents: usize,
}

impl TreeBuilder {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), ParamsProblem> {
        let line = span.start.line();
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(syntax(line, "a second document begins here".into()));
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                reject_tag(tag.is_some(), line)?;
                let value = YamlValue::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain };
                self.finished(YamlNode { line, value }, anchor, 1)
            }
            Event::SequenceStart(anchor, tag) => {
                reject_tag(tag.is_some(), line)?;
                self.begin(YamlValue::List(Vec::new()), anchor, line)
            }
            Event::MappingStart(anchor, tag) => {
                reject_tag(tag.is_some(), line)?;
                self.begin(YamlValue::Map(Vec::new()), anchor, line)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(mut open) => {
                    if let YamlValue::Map(entries) = &mut open.node.value {
                        merge(entries)?;
                    }
                    self.finished(open.node, open.anchor, 1)
                }
                None => Err(syntax(line, "a list or mapping ends without a beginning".into())),
            },
            Event::Alias(anchor) => match self.anchors.iter().find(|(id, _)| *id == anchor) {
                Some((_, node)) => {
                    let mut node = node.clone();
                    node.line = line;
                    let count = size(&node);
                    self.finished(node, 0, count)
                }
                None => Err(syntax(line, "this alias refers to itself or to nothing".into())),
            },
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn begin(&mut self, value: YamlValue, anchor: usize, line: usize) -> Result<(), ParamsProblem> {
        if self.open.len() == MAX_DEPTH {
            return Err(syntax(line, format!("lists and mappings are nested more than {MAX_DEPTH} deep")));
        }
        self.open.push(OpenCollection { anchor, node: YamlNode { line, value }, key: None });
        Ok(())
    }

    /// Adds a finished node: to the open list or mapping, as its next key, or as the root. `count` is the number of
    /// nodes that it adds: the contents of a list or mapping were counted before, those of an alias were not.
    fn finished(&mut self, node: YamlNode, anchor: usize, count: usize) -> Result<(), ParamsProblem> {
        self.nodes += count;
        if self.nodes > MAX_NODES {
            return Err(syntax(node.line, format!("the document has more than {MAX_NODES} values")));
        }
        if anchor != 0 {
            self.anchors.push((anchor, node.clone()));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut open.node.value, open.key.take()) {
            (YamlValue::List(items), _) => items.push(node),
            (YamlValue::Map(entries), Some((key, line))) => entries.push(MapEntry { key, line, value: node }),
            (_, None) => match node.value {
                YamlValue::Scalar { text, .. } => open.key = Some((text, node.line)),
                _ => return Err(syntax(node.line, "a key must be a plain word".into())),
            },
            (YamlValue::Scalar { .. }, Some(_)) => {} // scalars are never open
        }
        Ok(())
    }
}

/// Replaces the merge key of YAML 1.1, `<<: *anchor` or `<<: [*one, *other]`, by the entries of these mappings. A key
/// of the mapping itself takes precedence, and an earlier mapping of the list over a later one.
///
/// The size of the tree does not grow: the nodes of an alias were counted, and are moved.
fn merge(entries: &mut Vec<MapEntry>) -> Result<(), ParamsProblem> {
    let Some(index) = entries.iter().position(|entry| entry.key == MERGE_KEY) else { return Ok(()) };
    let MapEntry { line, value, .. } = entries.remove(index);
    if entries.iter().any(|entry| entry.key == MERGE_KEY) {
        return Err(syntax(line, format!("{MERGE_KEY} is given twice: write a list of mappings")));
    }
    let sources = match value.value {
        YamlValue::List(items) => items,
        _ => vec![value],
    };
    let mut own_keys: HashSet<String> = entries.iter().map(|entry| entry.key.clone()).collect();
    let mut merged: Vec<MapEntry> = Vec::new();
    for source in sources {
        let YamlValue::Map(given) = source.value else {
            return Err(syntax(line, format!("the value of {MERGE_KEY} must be a mapping, or a list of mappings")));
        };
        merged.extend(given.into_iter().filter(|entry| own_keys.insert(entry.key.clone())));
    }
    entries.splice(index..index, merged);
    Ok(())
}

impl YamlNode {
    /// Returns whether two values are the same; lines do not count.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (&self.value, &other.value) {
            (YamlValue::Scalar { text, plain }, YamlValue::Scalar { text: other, plain: other_plain }) => {
                (text, plain) == (other, other_plain)
            }
            (YamlValue::List(items), YamlValue::List(others)) => {
                items.len() == others.len() && items.iter().zip(others).all(|(item, other)| item.is_same(other))
            }
            (YamlValue::Map(entries), YamlValue::Map(others)) => {
                entries.len() == others.len()
                    && entries
                        .iter()
                        .zip(others)
                        .all(|(entry, other)| entry.key == other.key && entry.value.is_same(&other.value))
            }
            _ => false,
        }
    }
}

impl From<&serde_json::Value> for YamlNode {
    /// Builds the same tree as text would. `serde_json` bounds the depth of JSON that was parsed from text; an API
    /// server bounds the size of its objects.
    fn from(json: &serde_json::Value) -> Self {
        use serde_json::Value as Json;
        let plain = |text: String| YamlValue::Scalar { text, plain: true };
        let value = match json {
            Json::Null => plain(String::new()),
            Json::Bool(bool) => plain(bool.to_string()),
            Json::Number(number) => plain(number.to_string()),
            Json::String(text) => YamlValue::Scalar { text: text.clone(), plain: false },
            Json::Array(items) => YamlValue::List(items.iter().map(Self::from).collect()),
            Json::Object(entries) => YamlValue::Map(
                entries
                    .iter()
                    .map(|(key, value)| MapEntry { key: key.clone(), line: 0, value: Self::from(value) })
                    .collect(),
            ),
        };
        Self { line: 0, value }
    }
}

fn reject_tag(tagged: bool, line: usize) -> Result<(), ParamsProblem> {
    if tagged {
        return Err(syntax(line, "tags (a word that begins with !) are not accepted".into()));
    }
    Ok(())
}

/// Returns the number of nodes in this one, including itself.
fn size(node: &YamlNode) -> usize {
    let mut count = 0;
    let mut stack = vec![node];
    while let Some(node) = stack.pop() {
        count += 1;
        match &node.value {
            YamlValue::Scalar { .. } => {}
            YamlValue::List(items) => stack.extend(items),
            YamlValue::Map(entries) => stack.extend(entries.iter().map(|e| &e.value)),
        }
    }
    count
}
