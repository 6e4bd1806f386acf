//! The crates of the workspace, as Cargo describes them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command::{cargo, output};

/// A crate of the workspace.
pub struct Crate {
    /// Its name in `Cargo.toml`.
    pub name: String,
    /// What it needs to be used; what only its tests or its build script need is left out.
    pub dependencies: Vec<Dependency>,
    /// The root files of its library and its programs, absolute.
    pub roots: Vec<PathBuf>,
}

/// A line in `[dependencies]`.
pub struct Dependency {
    pub name: String,
    /// The features that it names; `default` is one of them unless that is switched off.
    pub features: Vec<String>,
}

/// Returns all crates of the workspace.
pub fn crates() -> Result<Vec<Crate>> {
    let json = output(&mut cargo(["metadata", "--locked", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_slice(&json).context("read the output of cargo metadata")?;
    Ok(list(&metadata["packages"]).map(crate_of).collect())
}

fn crate_of(package: &Value) -> Crate {
    let is_program_or_library = |target: &&Value| list(&target["kind"]).any(|kind| kind == "lib" || kind == "bin");
    let roots = list(&package["targets"]).filter(is_program_or_library).map(|target| text(&target["src_path"]).into());
    let dependencies = list(&package["dependencies"]).filter(|dependency| dependency["kind"].is_null());
    Crate {
        name: text(&package["name"]),
        dependencies: dependencies.map(dependency_of).collect(),
        roots: roots.collect(),
    }
}

fn dependency_of(dependency: &Value) -> Dependency {
    let mut features: Vec<String> = list(&dependency["features"]).map(text).collect();
    if dependency["uses_default_features"] == true {
        features.push("default".to_owned());
    }
    Dependency { name: text(&dependency["name"]), features }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
