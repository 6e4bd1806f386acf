//! `cargo xtask generate`: writes every file of the repository that is generated from code.
//!
//! A generated file has one generator here. The chart's definitions are links to `crds/*.yaml`, and its alerts and its
//! dashboard are written by hand and compared with the code by `charts/tests`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{self, WORKSPACE, cargo};
use crate::repository;

/// A program of the workspace that makes generated files.
struct Generator {
    /// `--example` or `--bin`, as Cargo names targets.
    kind: &'static str,
    name: &'static str,
    arguments: &'static [&'static str],
    /// Package and features, if it is built apart from the workspace, whose other members do not have the features.
    apart: &'static [&'static str],
    /// The files it makes, relative to the root.
    files: &'static [&'static str],
    /// Whether it prints its one file; otherwise it writes them in place.
    prints: bool,
}

/// In an order in which code that does not compile until a file is generated is built after that file.
const GENERATORS: &[Generator] = &[
    Generator {
        kind: "--bin",
        name: "millrace-protocol-generator",
        arguments: &[],
        apart: &[],
        files: &["agents/protocol/src/proto.rs"],
        prints: false,
    },
    Generator {
        kind: "--example",
        name: "generate",
        arguments: &[],
        apart: &[],
        files: &[
            "crds/appliances.millrace.dev.yaml",
            "crds/filereaders.millrace.dev.yaml",
            "crds/trainjobs.millrace.dev.yaml",
        ],
        prints: false,
    },
    Generator {
        kind: "--example",
        name: "generate_reference",
        arguments: &[],
        apart: &[],
        files: &["docs/reference/params.md", "docs/reference/params.schema.json"],
        prints: false,
    },
    Generator {
        kind: "--example",
        name: "graph_reference",
        arguments: &[],
        apart: &["--locked", "--package", "millrace-emulator", "--no-default-features", "--features", "schema"],
        files: &["docs/reference/graph.md", "docs/reference/graph.schema.json"],
        prints: false,
    },
    Generator {
        kind: "--bin",
        name: "millrace-api",
        arguments: &["openapi"],
        apart: &[],
        files: &["api/openapi.json"],
        prints: true,
    },
];

/// Writes all generated files and prints the names of those that changed.
pub fn write() -> Result<()> {
    let changed = changes()?;
    for (file, _) in &changed {
        println!("wrote {file}");
    }
    println!("{} of {} generated files changed", changed.len(), files().count());
    Ok(())
}

/// Fails if a generated file is stale, and leaves all of them as they were.
pub fn check() -> Result<()> {
    let stale = changes()?;
    for (file, before) in &stale {
        std::fs::write(path_of(file), before).with_context(|| format!("restore {file}"))?;
    }
    let names: Vec<_> = stale.iter().map(|(file, _)| *file).collect();
    if !names.is_empty() {
        bail!("stale: {}: run `cargo xtask generate`", names.join(", "));
    }
    println!("{} generated files are current", files().count());
    Ok(())
}

/// Returns the paths of all generated files, relative to the root.
pub fn files() -> impl Iterator<Item = &'static str> {
    GENERATORS.iter().flat_map(|generator| generator.files).copied()
}

/// Returns whether nobody writes this file, given relative to the root, by hand.
pub fn is_generated(file: &Path) -> bool {
    files().any(|generated| file == Path::new(generated))
}

/// Runs all generators. Returns the files that are different now, each with its earlier content.
fn changes() -> Result<Vec<(&'static str, Vec<u8>)>> {
    let before: Vec<_> = files().map(|file| (file, std::fs::read(path_of(file)).unwrap_or_default())).collect();
    let programs = program_dir()?;
    for generator in GENERATORS {
        let target = [generator.kind, generator.name];
        let packages = if generator.apart.is_empty() { &WORKSPACE } else { generator.apart };
        command::run(&mut cargo(["build"].iter().chain(packages).chain(&target).copied()))?;
        let dir = if generator.kind == "--example" { programs.join("examples") } else { programs.clone() };
        let output = command::output(command::program(dir.join(generator.name)).args(generator.arguments))?;
        if generator.prints {
            for file in generator.files {
                std::fs::write(path_of(file), &output).with_context(|| format!("write {file}"))?;
            }
        }
    }
    let is_other = |file: &str, before: &[u8]| std::fs::read(path_of(file)).unwrap_or_default() != before;
    Ok(before.into_iter().filter(|(file, before)| is_other(file, before)).collect())
}

/// Returns the directory of programs that are built without optimization.
fn program_dir() -> Result<PathBuf> {
    let metadata = command::output(&mut cargo(["metadata", "--locked", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_slice(&metadata).context("read the output of cargo metadata")?;
    let target = metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
    Ok(PathBuf::from(target).join("debug"))
}

fn path_of(file: &str) -> PathBuf {
    repository::root().join(file)
}
