//! Writes `docs/reference/graph.md` and `docs/reference/graph.schema.json`. `cargo xtask generate` runs it.
//!
//! The description of an operator is the first paragraph of its file's documentation.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use millrace_emulator::graph::{
    MAX_CONSTANT_ELEMENTS, MAX_DIMENSIONS, MAX_DOCUMENT_BYTES, MAX_GRAPH_INPUTS, MAX_LOSSES, MAX_METRIC_ELEMENTS,
    document_schema,
};
use serde_json::Value;

type Failure = Box<dyn std::error::Error>;

/// Returns the first paragraph of the documentation of an operator's file.
fn description(operator: &str) -> Result<String, Failure> {
    let file = root().join("emulator/src/ops").join(format!("{operator}.rs"));
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let lines = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let paragraph: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    Ok(without_links(&paragraph.join(" ")))
}

/// Returns the text with the text of each link in place of the link.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let (start, name) = before.rsplit_once('[').unwrap_or(("", before));
        plain += start;
        plain += name.trim_matches('`');
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain + rest
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the schema of each operator, with its name. It is one of the alternatives of `OpKind`.
fn operators(schema: &mut Value) -> Result<Vec<(String, &mut Value)>, Failure> {
    let all = schema.pointer_mut("/$defs/OpKind/oneOf").and_then(Value::as_array_mut).ok_or("no operators")?;
    let name =
        |operator: &'_ Value| operator.pointer("/properties/op/const").and_then(Value::as_str).map(str::to_owned);
    all.iter_mut().map(|operator| Ok((name(operator).ok_or("an operator without name")?, operator))).collect()
}

/// Returns the attributes of an operator: names with their types, and which may be omitted.
fn attributes(operator: &Value, definitions: &Value) -> String {
    let definition =
        operator.get("$ref").and_then(Value::as_str).and_then(|name| definitions.get(name.rsplit('/').next()?));
    let parts: Vec<&Value> = [Some(operator), definition].into_iter().flatten().collect();
    let mut text: Vec<String> = Vec::new();
    for part in parts {
        let required =
            |name: &str| part["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name));
        for name in part["properties"].as_object().into_iter().flat_map(|all| all.keys()).filter(|name| *name != "op") {
            text.push(if required(name) { format!("`{name}`") } else { format!("`{name}`?") });
        }
    }
    text.join(", ")
}

/// Returns a list of the attributes that have a choice of names, with these names.
fn choices(definitions: &Value) -> String {
    let mut text = String::from("Names that attributes have a choice of:\n\n");
    for (title, definition) in definitions.as_object().into_iter().flatten() {
        let of_all = |key: &str| definition[key].as_array().cloned().unwrap_or_default();
        let documented: Vec<Value> =
            of_all("oneOf").into_iter().filter_map(|choice| choice.get("const").cloned()).collect();
        let names: Vec<String> = of_all("enum")
            .iter()
            .chain(&documented)
            .filter_map(Value::as_str)
            .map(|name| format!("`{name}`"))
            .collect();
        if !names.is_empty() {
            let _ = writeln!(text, "* {title}: {}", names.join(", "));
        }
    }
    text
}

fn main() -> Result<(), Failure> {
    let mut schema = document_schema();
    let definitions = schema["$defs"].clone();
    let mut rows = String::new();
    for (name, operator) in operators(&mut schema)? {
        let text = description(&name)?;
        writeln!(rows, "| `{name}` | {} | {} |", attributes(operator, &definitions), text.replace('|', "\\|"))?;
        operator["description"] = text.into();
    }
    let page = format!(
        "{}\n{rows}\n{}",
        include_str!("graph_reference.txt")
            .replace("MAX_GRAPH_INPUTS", &MAX_GRAPH_INPUTS.to_string())
            .replace("MAX_DIMENSIONS", &MAX_DIMENSIONS.to_string())
            .replace("MAX_DOCUMENT_MIB", &(MAX_DOCUMENT_BYTES >> 20).to_string())
            .replace("MAX_METRIC_ELEMENTS", &MAX_METRIC_ELEMENTS.to_string())
            .replace("MAX_LOSSES", &MAX_LOSSES.to_string())
            .replace("MAX_CONSTANT_ELEMENTS", &MAX_CONSTANT_ELEMENTS.to_string())
            .trim_end(),
        choices(&definitions)
    );
    for (name, text) in [("graph.md", page), ("graph.schema.json", format!("{schema:#}\n"))] {
        std::fs::write(root().join("docs/reference").join(name), text)?;
    }
    Ok(())
}
