//! Metrics: the reference lists those of every program and no other; alerts and dashboard read only these; each is
//! recorded somewhere.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::tools::{chart, everything, find, read, root, template, yaml};

/// How the names of metrics begin.
const PREFIXES: [&str; 5] = ["millrace_", "controller_runtime_", "workqueue_", "leader_election_", "process_"];
/// What a histogram's series have behind its name.
const SUFFIXES: [&str; 3] = ["_bucket", "_count", "_sum"];

/// The sources of the metrics of operator and REST server.
const SOURCES: [&str; 3] =
    ["operator/control/src/metrics.rs", "operator/control/src/metrics_snapshot.rs", "api/src/metrics.rs"];
/// The source of the metrics of agents, and of the `process_` metrics of operator and REST server.
const AGENT_SOURCE: &str = "agents/telemetry/src/metric_definitions.rs";
/// The document that lists all metrics.
const REFERENCE: &str = "docs/reference/metrics.md";
/// The programs in its table.
const AGENT: &str = "A";
const OPERATOR: &str = "O";
const REST_SERVER: &str = "R";

/// The texts between quotes in a source.
fn literals(path: &str) -> BTreeSet<String> {
    let source = std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    source.split('"').filter(|text| is_metric(text)).map(str::to_owned).collect()
}

fn is_metric(word: &str) -> bool {
    PREFIXES.iter().any(|prefix| word.starts_with(prefix))
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The metrics that operator and REST server have.
fn defined() -> BTreeSet<String> {
    let process = literals(AGENT_SOURCE).into_iter().filter(|name| is_of_process(name));
    SOURCES.iter().flat_map(|path| literals(path)).chain(process).collect()
}

/// The metrics that agents have.
fn defined_by_agents() -> BTreeSet<String> {
    literals(AGENT_SOURCE).into_iter().filter(|name| !is_of_process(name)).collect()
}

fn is_of_process(name: &str) -> bool {
    name.starts_with("process_")
}

/// The metrics of these programs in the table of the reference.
fn listed(programs: &[&str]) -> BTreeSet<String> {
    let path = root().join(REFERENCE);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{REFERENCE}: {error}"));
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, metric, _, of, ..] = cells[..] else { return None };
        let name = metric.strip_prefix('`')?.split(['{', '`']).next()?;
        let is_wanted = of.split(", ").any(|program| programs.contains(&program));
        (is_wanted && is_metric(name)).then(|| name.to_owned())
    });
    rows.collect()
}

/// The metrics that a query reads.
fn metrics_in(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| is_metric(word));
    words.map(|word| SUFFIXES.iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word))
}

fn alerts() -> Vec<Value> {
    let rules = yaml(&read("files/alerts.yaml"));
    rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

#[test]
fn reference_lists_every_metric_and_no_other() {
    assert!(defined().len() > 30 && defined_by_agents().len() > 10, "{:?} {:?}", defined(), defined_by_agents());
    for (defined, listed) in [(defined(), listed(&[OPERATOR, REST_SERVER])), (defined_by_agents(), listed(&[AGENT]))] {
        let missing: Vec<_> = defined.difference(&listed).collect();
        let gone: Vec<_> = listed.difference(&defined).collect();
        assert!(missing.is_empty() && gone.is_empty(), "{REFERENCE} lacks {missing:?}, and nothing has {gone:?}");
    }
}

/// The Rust code of the repository without comments and unit tests, by path. Files of integration tests are left out.
fn code() -> Vec<(String, String)> {
    let listing = ["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"];
    let output = Command::new("git").args(listing).current_dir(root()).output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    let paths = listed.lines().filter(|path| !path.split('/').any(|part| part == "tests" || part == "tests.rs"));
    let files = paths.filter_map(|path| {
        let text = std::fs::read_to_string(root().join(path)).ok()?;
        let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        Some((path.to_owned(), code.collect::<Vec<_>>().join("\n")))
    });
    files.collect()
}

/// The public methods in the code of a source of metrics. Other files record events through them.
fn public_methods(code: &str) -> impl Iterator<Item = &str> {
    let functions = code.split("pub fn ").skip(1).chain(code.split("pub(crate) fn ").skip(1));
    functions.filter_map(|rest| {
        let (name, arguments) = rest.split_once('(')?;
        arguments.trim_start().starts_with("&self").then_some(name)
    })
}

#[test]
fn methods_of_metrics_are_called() {
    let code = code();
    assert!(code.len() > 100, "git lists {} files", code.len());
    for source in SOURCES.iter().chain([&AGENT_SOURCE]) {
        let (_, of_source) = code.iter().find(|(path, _)| path == source).unwrap_or_else(|| panic!("{source}"));
        let uncalled: Vec<_> = public_methods(of_source)
            .filter(|name| !code.iter().any(|(_, text)| text.contains(&format!(".{name}("))))
            .collect();
        assert!(uncalled.is_empty(), "nothing calls {uncalled:?} of {source}");
    }
}

#[test]
fn dashboard_has_panel_for_every_metric() {
    let dashboard: Value = serde_json::from_str(&read("files/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let queries: Vec<&str> = panels
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    let shown: BTreeSet<_> = queries.iter().flat_map(|query| metrics_in(query)).collect();
    let all = listed(&[OPERATOR, REST_SERVER]);
    let unseen: Vec<_> = all.iter().filter(|name| !is_of_process(name) && !shown.contains(&***name)).collect();
    assert!(unseen.is_empty(), "no panel shows {unseen:?}");
}

#[test]
fn alerts_read_metrics_that_exist_and_say_what_to_do() {
    let (defined, alerts) = (defined(), alerts());
    assert!(alerts.len() >= 7);
    let names: BTreeSet<_> = alerts.iter().map(|alert| alert["alert"].as_str().unwrap()).collect();
    assert_eq!(names.len(), alerts.len(), "names are unique");
    for alert in &alerts {
        let (name, query) = (alert["alert"].as_str().unwrap(), alert["expr"].as_str().unwrap());
        assert!(name.starts_with("Millrace"), "{name}");
        let read: BTreeSet<_> = metrics_in(query).collect();
        assert!(!read.is_empty(), "{name} reads nothing");
        for metric in read {
            assert!(defined.contains(metric), "{name} reads {metric}, which nothing has");
        }
        assert!(is_balanced(query), "{name}: {query}");
        for key in ["summary", "description"] {
            let text = alert["annotations"][key].as_str().unwrap_or_else(|| panic!("{name} has no {key}"));
            assert!(text.ends_with('.') && is_balanced(text), "{name}: {text}");
        }
        assert!(["warning", "critical"].contains(&alert["labels"]["severity"].as_str().unwrap()), "{name}");
    }
}

/// Whether every bracket and quote is closed.
fn is_balanced(text: &str) -> bool {
    let mut open = Vec::new();
    for c in text.chars() {
        match c {
            '(' => open.push(')'),
            '[' => open.push(']'),
            '{' => open.push('}'),
            ')' | ']' | '}' if open.pop() != Some(c) => return false,
            _ => {}
        }
    }
    open.is_empty() && text.matches('"').count().is_multiple_of(2)
}

#[test]
#[ignore = "needs helm"]
fn rule_contains_all_alerts() {
    let (_, documents) = template(&chart(), &everything());
    let rule = find(&documents, "PrometheusRule", "millrace");
    assert_eq!(rule["spec"], yaml(&read("files/alerts.yaml")), "nothing is templated away");
    assert_eq!(rule["metadata"]["labels"]["release"], "prometheus");
}
