//! Checks the boundaries in ARCHITECTURE.md: the allowed dependencies of each crate, and the length of files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// Names of crates that identify a forbidden group of dependencies.
const NETWORK: &[&str] = &["tokio", "tonic", "hyper", "axum", "mio", "socket2"];
const KUBERNETES: &[&str] = &["kube", "kube-core", "kube-client", "k8s-openapi"];
const CLUSTER_CLIENT: &[&str] = &["kube-client", "kube-runtime"];
const GRPC_AND_HTTP: &[&str] = &["tonic", "hyper", "axum"];
const SQL: &[&str] = &["sqlx", "sqlx-core", "rusqlite", "diesel"];

/// The groups that a crate must not depend on, directly or transitively.
const FORBIDDEN: &[(&str, &[&[&str]])] = &[
    ("millrace-params", &[NETWORK, KUBERNETES, SQL]),
    ("millrace-crds", &[NETWORK, CLUSTER_CLIENT, SQL]),
    ("millrace-emulator", &[NETWORK, KUBERNETES, SQL]),
    ("millrace-engine", &[NETWORK, KUBERNETES, SQL]),
    ("millrace-roots", &[NETWORK, KUBERNETES, SQL]),
    ("millrace-data", &[NETWORK, KUBERNETES, SQL]),
    ("millrace-checkpoint", &[NETWORK, KUBERNETES, SQL]),
    ("millrace-telemetry", &[NETWORK, KUBERNETES, SQL]),
    ("millrace-traces", &[KUBERNETES, SQL]),
    ("millrace-protocol", &[KUBERNETES, SQL]),
    ("millrace-agents", &[KUBERNETES, SQL]),
    ("millrace-control", &[SQL]),
    ("millrace-operator", &[SQL]),
    ("millrace-store", &[KUBERNETES, GRPC_AND_HTTP]),
];

/// The crates of this workspace that a crate may name. A crate that is missing here has no boundaries yet: add it.
const OWN: &[(&str, &[&str])] = &[
    ("millrace-params", &[]),
    ("millrace-crds", &["millrace-params"]),
    ("millrace-emulator", &["millrace-params"]),
    ("millrace-engine", &["millrace-emulator", "millrace-params"]),
    ("millrace-protocol", &["millrace-engine", "millrace-emulator", "millrace-params", "millrace-telemetry"]),
    ("millrace-roots", &[]),
    ("millrace-data", &["millrace-roots"]),
    ("millrace-checkpoint", &["millrace-emulator", "millrace-roots"]),
    ("millrace-telemetry", &["millrace-roots"]),
    ("millrace-traces", &[]),
    ("millrace-charts", &[]),
    // Fuzz targets reach every crate that reads bytes.
    (
        "millrace-fuzz",
        &[
            "millrace-api",
            "millrace-checkpoint",
            "millrace-control",
            "millrace-crds",
            "millrace-data",
            "millrace-emulator",
            "millrace-engine",
            "millrace-params",
            "millrace-protocol",
            "millrace-telemetry",
        ],
    ),
    ("millrace-store", &[]),
    (
        "millrace-agents",
        &[
            "millrace-params",
            "millrace-emulator",
            "millrace-engine",
            "millrace-protocol",
            "millrace-roots",
            "millrace-data",
            "millrace-checkpoint",
            "millrace-telemetry",
            "millrace-traces",
        ],
    ),
    (
        "millrace-control",
        &[
            "millrace-crds",
            "millrace-params",
            "millrace-emulator",
            "millrace-protocol",
            "millrace-telemetry",
            "millrace-traces",
        ],
    ),
    (
        "millrace-api",
        &[
            "millrace-agents",
            "millrace-checkpoint",
            "millrace-control",
            "millrace-crds",
            "millrace-operator",
            "millrace-params",
            "millrace-protocol",
            "millrace-roots",
            "millrace-store",
            "millrace-telemetry",
            "millrace-traces",
        ],
    ),
    (
        "millrace-operator",
        &["millrace-control", "millrace-crds", "millrace-protocol", "millrace-telemetry", "millrace-traces"],
    ),
];

/// The only crates that may use the emulator's arithmetic.
const KERNELS: &[&str] = &["millrace-agents"];

/// Paths whose code must not use clocks, sockets, files or the environment: it only decides.
const PURE: &[&str] =
    &["agents/engine/src", "crds/src", "emulator/src/compile", "emulator/src/placement.rs", "emulator/src/tree.rs"];
const IMPURE: &[&str] = &["std::net", "std::fs", "std::env", "Instant::now", "SystemTime", "thread::spawn", "async fn"];

const MOST_LINES: usize = 600;
const MOST_LINES_OF_MAIN: usize = 60;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    features: Vec<String>,
    uses_default_features: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn metadata() -> Metadata {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version", "1", "--no-deps"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

impl Metadata {
    fn own(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }
}

/// Returns the names of all crates that `package` links if it is built alone, itself included. Built alone, because
/// features that another crate of the workspace enables in a shared dependency do not count.
fn linked(package: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}", "--package", package])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn crates_know_only_what_they_may() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    let named = FORBIDDEN.iter().map(|(name, _)| name).chain(OWN.iter().map(|(name, _)| name)).chain(KERNELS);
    for name in named.filter(|name| !metadata.own().any(|package| package.name == **name)) {
        wrong.push(format!("there is no crate {name}: name it as it is called now"));
    }
    for package in metadata.own() {
        let name = package.name.as_str();
        let Some((_, may)) = OWN.iter().find(|(owner, _)| *owner == name) else {
            wrong.push(format!("{name} has no borders: add it to agents/tests/borders.rs and ARCHITECTURE.md"));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| d.kind.is_none() && d.name.starts_with("millrace-")) {
            if !may.contains(&dependency.name.as_str()) {
                wrong.push(format!("{name} must not know {}", dependency.name));
            }
            let kernels = dependency.uses_default_features || dependency.features.iter().any(|f| f == "kernels");
            if dependency.name == "millrace-emulator" && kernels && !KERNELS.contains(&name) {
                wrong.push(format!("{name} must use millrace-emulator without its kernels"));
            }
        }
        let linked = linked(name);
        let forbidden = FORBIDDEN.iter().filter(|(owner, _)| *owner == name).flat_map(|(_, groups)| groups.iter());
        for crate_name in forbidden.flat_map(|group| group.iter()).filter(|crate_name| linked.contains(**crate_name)) {
            wrong.push(format!("{name} must not depend on {crate_name}, not even by way of others"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Makes sure that this test detects a transitive dependency.
    assert!(linked("millrace-agents").contains("mio"), "tokio's mio is two levels down");
}

/// Returns every Rust file of the repository, relative to its root.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![root()];
    while let Some(dir) = next.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                next.push(path);
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }
    found.iter().map(|path| path.strip_prefix(root()).unwrap().to_owned()).collect()
}

#[test]
fn files_are_short_and_mains_only_parse_build_and_run() {
    let sources = sources();
    assert!(sources.contains(&PathBuf::from("agents/tests/borders.rs")));
    let mut wrong = Vec::new();
    for path in sources {
        let lines = std::fs::read_to_string(root().join(&path)).unwrap().lines().count();
        let is_main = path.ends_with("src/main.rs");
        let most = if is_main { MOST_LINES_OF_MAIN } else { MOST_LINES };
        if lines > most {
            wrong.push(format!("{} has {lines} lines, {most} at most: split it by meaning", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_decides_does_no_io() {
    let mut wrong = Vec::new();
    // A path that was renamed would no longer be checked.
    for pure in PURE.iter().filter(|pure| !sources().iter().any(|path| path.starts_with(pure))) {
        wrong.push(format!("there is no Rust file under {pure}: name its new place in PURE"));
    }
    let decides = |path: &&PathBuf| PURE.iter().any(|pure| path.starts_with(pure)) && !path.ends_with("tests.rs");
    for path in sources().iter().filter(decides) {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            if let Some(word) = IMPURE.iter().find(|word| line.contains(**word)) {
                wrong.push(format!("{}:{} uses {word}", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_dependency_says_why() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let section = manifest.split("[workspace.dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let silent: Vec<_> = section
        .lines()
        .filter(|line| line.contains('=') && !line.starts_with(['#', '[']) && !line.starts_with("millrace-"))
        .filter(|line| !line.contains(" # "))
        .collect();
    assert!(silent.is_empty(), "give a reason behind each of these:\n{}", silent.join("\n"));
}
