//! Metrics: what the README lists is what the programs have, and what alerts and dashboard read.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::tools::{chart, everything, find, read, root, template, yaml};

/// How the names of metrics begin.
const PREFIXES: [&str; 5] = ["millrace_", "controller_runtime_", "workqueue_", "leader_election_", "process_"];
/// What a histogram's series have behind its name.
const SUFFIXES: [&str; 3] = ["_bucket", "_count", "_sum"];

/// The sources of the metrics of operator and REST server.
const SOURCES: [&str; 3] =
    ["operator/control/src/metrics.rs", "operator/control/src/metrics_snapshot.rs", "api/src/metrics.rs"];
/// The source of the metrics of every process; the others in it are those of agents.
const PROCESS_SOURCE: &str = "agents/telemetry/src/metric_definitions.rs";

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
    let process = literals(PROCESS_SOURCE).into_iter().filter(|name| name.starts_with("process_"));
    SOURCES.iter().flat_map(|path| literals(path)).chain(process).collect()
}

/// The metrics in the table of the chart's README.
fn listed() -> BTreeSet<String> {
    let readme = read("README.md");
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(name, _)| name.split('{').next().unwrap_or(name).to_owned()).filter(|name| is_metric(name)).collect()
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
fn the_readme_lists_every_metric_and_no_other() {
    assert!(defined().len() > 30, "{:?}", defined());
    let (defined, listed) = (defined(), listed());
    let missing: Vec<_> = defined.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&defined).collect();
    assert!(missing.is_empty() && gone.is_empty(), "the README lacks {missing:?}, and nothing has {gone:?}");
}

#[test]
fn the_dashboard_has_a_panel_for_every_metric() {
    let dashboard: Value = serde_json::from_str(&read("files/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let queries: Vec<&str> = panels
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    let shown: BTreeSet<_> = queries.iter().flat_map(|query| metrics_in(query)).collect();
    let all = listed();
    let unseen: Vec<_> = all.iter().filter(|name| !name.starts_with("process_") && !shown.contains(&***name)).collect();
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
fn the_rule_has_the_alerts_as_they_are() {
    let (_, documents) = template(&chart(), &everything());
    let rule = find(&documents, "PrometheusRule", "millrace");
    assert_eq!(rule["spec"], yaml(&read("files/alerts.yaml")), "nothing is templated away");
    assert_eq!(rule["metadata"]["labels"]["release"], "prometheus");
}
