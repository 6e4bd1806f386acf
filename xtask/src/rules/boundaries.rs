//! Checks which crates each crate of the workspace depends on, against one table.
//!
//! The table is exact: a crate that is missing in it, a dependency that is not allowed, and an allowed dependency that
//! does not exist are violations. ARCHITECTURE.md says why the boundaries are where they are.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::metadata::{Crate, crates};
use crate::command::{cargo, output};

/// What a crate may depend on.
struct Boundary {
    name: &'static str,
    /// The crates of the workspace that it names, without the prefix `millrace-`.
    workspace: &'static [&'static str],
    /// Groups of other crates that it must not link, directly or transitively.
    forbidden: &'static [&'static [&'static str]],
}

const NETWORK: &[&str] = &["tokio", "tonic", "hyper", "axum", "mio", "socket2"];
const GRPC_AND_HTTP: &[&str] = &["tonic", "hyper", "axum"];
const KUBERNETES: &[&str] = &["kube", "kube-core", "kube-client", "k8s-openapi"];
const CLUSTER_CLIENT: &[&str] = &["kube-client", "kube-runtime"];
const SQL: &[&str] = &["sqlx", "sqlx-core", "rusqlite", "diesel"];
/// The REST server finds what the operator has written, and never runs its code: what both need is in `cluster`.
const OPERATOR: &[&str] = &["millrace-operator"];
const NO_IO: &[&[&str]] = &[NETWORK, KUBERNETES, SQL];

const BOUNDARIES: &[Boundary] = &[
    Boundary { name: "millrace-params", workspace: &[], forbidden: NO_IO },
    Boundary { name: "millrace-crds", workspace: &["params"], forbidden: &[NETWORK, CLUSTER_CLIENT, SQL] },
    Boundary {
        name: "millrace-lifecycle",
        workspace: &["crds", "outcome", "replacement"],
        forbidden: &[NETWORK, CLUSTER_CLIENT, SQL],
    },
    Boundary { name: "millrace-emulator", workspace: &["params"], forbidden: NO_IO },
    Boundary { name: "millrace-engine", workspace: &["emulator", "outcome", "params"], forbidden: NO_IO },
    Boundary { name: "millrace-outcome", workspace: &[], forbidden: NO_IO },
    Boundary { name: "millrace-replacement", workspace: &["outcome", "params"], forbidden: NO_IO },
    Boundary { name: "millrace-roots", workspace: &[], forbidden: NO_IO },
    Boundary { name: "millrace-shared-memory", workspace: &["engine"], forbidden: NO_IO },
    Boundary { name: "millrace-text", workspace: &[], forbidden: NO_IO },
    Boundary { name: "millrace-data", workspace: &["params", "roots", "text"], forbidden: NO_IO },
    Boundary { name: "millrace-loader", workspace: &["data"], forbidden: NO_IO },
    Boundary { name: "millrace-checkpoint", workspace: &["emulator", "roots"], forbidden: NO_IO },
    Boundary { name: "millrace-bucket", workspace: &["checkpoint", "roots"], forbidden: &[KUBERNETES, SQL] },
    Boundary { name: "millrace-telemetry", workspace: &["outcome", "roots"], forbidden: NO_IO },
    Boundary { name: "millrace-traces", workspace: &[], forbidden: &[KUBERNETES, SQL] },
    Boundary {
        name: "millrace-protocol",
        workspace: &["emulator", "engine", "outcome", "params", "shared-memory", "telemetry"],
        forbidden: &[KUBERNETES, SQL],
    },
    Boundary { name: "millrace-protocol-generator", workspace: &[], forbidden: &[] },
    Boundary {
        name: "millrace-agents",
        workspace: &[
            "bucket",
            "checkpoint",
            "data",
            "emulator",
            "engine",
            "loader",
            "outcome",
            "params",
            "protocol",
            "replacement",
            "roots",
            "shared-memory",
            "telemetry",
            "traces",
        ],
        forbidden: &[KUBERNETES, SQL],
    },
    Boundary {
        name: "millrace-control",
        workspace: &["crds", "emulator", "lifecycle", "params", "protocol", "telemetry", "traces"],
        forbidden: &[SQL],
    },
    Boundary { name: "millrace-cluster", workspace: &["control", "crds", "params", "protocol"], forbidden: &[SQL] },
    Boundary {
        name: "millrace-operator",
        workspace: &["cluster", "control", "crds", "lifecycle", "params", "protocol", "telemetry", "traces"],
        forbidden: &[SQL],
    },
    Boundary { name: "millrace-store", workspace: &[], forbidden: &[KUBERNETES, GRPC_AND_HTTP] },
    Boundary {
        name: "millrace-api",
        workspace: &[
            "agents",
            "bucket",
            "checkpoint",
            "cluster",
            "control",
            "crds",
            "lifecycle",
            "params",
            "protocol",
            "roots",
            "store",
            "telemetry",
            "traces",
        ],
        forbidden: &[OPERATOR],
    },
    // Tests only.
    Boundary { name: "millrace-charts", workspace: &[], forbidden: &[] },
    // Fuzz targets are in every crate that reads bytes.
    Boundary {
        name: "millrace-fuzz",
        workspace: &[
            "api",
            "bucket",
            "checkpoint",
            "control",
            "crds",
            "data",
            "emulator",
            "engine",
            "loader",
            "params",
            "protocol",
            "shared-memory",
            "telemetry",
        ],
        forbidden: &[],
    },
    Boundary { name: "xtask", workspace: &[], forbidden: &[NETWORK, KUBERNETES, SQL] },
];

const PREFIX: &str = "millrace-";
/// The crate whose feature `kernels` (on by default) contains the arithmetic. Only [`KERNEL_USERS`] may enable it; all
/// other crates plan without it.
const KERNELS: &str = "millrace-emulator";
const KERNEL_USERS: &[&str] = &["millrace-agents"];

pub fn violations() -> Result<Vec<String>> {
    let crates = crates()?;
    let mut violations = compare(&crates, BOUNDARIES);
    for boundary in BOUNDARIES.iter().filter(|it| crates.iter().any(|package| package.name == it.name)) {
        let linked = linked(boundary.name)?;
        for forbidden in boundary.forbidden.iter().copied().flatten().filter(|name| linked.contains(**name)) {
            violations.push(format!("{} must not link {forbidden}, not even transitively", boundary.name));
        }
    }
    Ok(violations)
}

/// Compares what the crates name with the table.
fn compare(crates: &[Crate], table: &[Boundary]) -> Vec<String> {
    let mut violations = Vec::new();
    for boundary in table.iter().filter(|it| !crates.iter().any(|package| package.name == it.name)) {
        violations.push(format!("{} does not exist: rename or remove its row", boundary.name));
    }
    for package in crates {
        let Some(boundary) = table.iter().find(|it| it.name == package.name) else {
            violations.push(format!("{} has no row in xtask/src/rules/boundaries.rs: add one", package.name));
            continue;
        };
        let own = package.dependencies.iter().filter_map(|dependency| dependency.name.strip_prefix(PREFIX));
        let (own, allowed): (BTreeSet<_>, BTreeSet<_>) = (own.collect(), boundary.workspace.iter().copied().collect());
        violations
            .extend(own.difference(&allowed).map(|it| format!("{} must not depend on {PREFIX}{it}", package.name)));
        violations.extend(
            allowed
                .difference(&own)
                .map(|it| format!("{} does not depend on {PREFIX}{it}: remove that from its row", package.name)),
        );
        let is_kernels = |feature: &String| feature == "kernels" || feature == "default";
        let kernels = package.dependencies.iter().any(|it| it.name == KERNELS && it.features.iter().any(is_kernels));
        if kernels && !KERNEL_USERS.contains(&package.name.as_str()) {
            violations.push(format!("{} must use {KERNELS} without the feature kernels", package.name));
        }
    }
    violations
}

/// Returns the names of all crates that `package` links if it is built alone, itself included. Built alone, because
/// features that another crate of the workspace enables in a shared dependency do not count.
fn linked(package: &str) -> Result<BTreeSet<String>> {
    let tree = ["tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}", "--package", package];
    let text = String::from_utf8(output(&mut cargo(tree))?).context("read the output of cargo tree")?;
    Ok(text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::super::metadata::Dependency;
    use super::*;

    fn package(name: &str, dependency: &str, feature: &str) -> Crate {
        let dependency = Dependency { name: dependency.to_owned(), features: vec![feature.to_owned()] };
        Crate { name: name.to_owned(), dependencies: vec![dependency], roots: Vec::new() }
    }

    #[test]
    fn each_difference_from_the_table_is_a_violation() {
        let table = &[Boundary { name: "millrace-a", workspace: &["emulator"], forbidden: &[] }];
        let cases = [
            ("as in the table", package("millrace-a", "millrace-emulator", "std"), vec![]),
            (
                "missing row",
                package("millrace-b", "serde", "std"),
                vec!["millrace-a does not exist", "millrace-b has no row"],
            ),
            (
                "other dependency",
                package("millrace-a", "millrace-api", "std"),
                vec!["must not depend on millrace-api", "does not depend on millrace-emulator"],
            ),
            ("kernels", package("millrace-a", "millrace-emulator", "kernels"), vec!["without the feature kernels"]),
            ("default features", package("millrace-a", "millrace-emulator", "default"), vec!["without the feature"]),
        ];
        for (case, package, expected) in cases {
            let violations = compare(&[package], table);
            assert_eq!(violations.len(), expected.len(), "{case}: {violations:?}");
            for (violation, expected) in violations.iter().zip(expected) {
                assert!(violation.contains(expected), "{case}: {violation}");
            }
        }
    }

    #[test]
    fn linked_includes_transitive_dependencies() {
        assert!(linked("millrace-agents").unwrap().contains("mio"), "by way of tokio");
    }
}
