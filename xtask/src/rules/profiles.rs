//! Checks that the profile `dist` optimises every crate fully: it inherits the overrides of single crates from
//! `release`, so it has to repeat each one that lowers the level of optimisation.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use crate::repository;

const FULL_LEVEL: &str = "3";

pub fn violations() -> Result<Vec<String>> {
    let manifest = repository::text(Path::new("Cargo.toml"))?.context("Cargo.toml is not UTF-8")?;
    let missing = not_fully_optimised(&manifest);
    let sentence = |name: &str| format!("Cargo.toml: add [profile.dist.package.{name}] with opt-level = {FULL_LEVEL}");
    Ok(missing.into_iter().map(sentence).collect())
}

/// Returns the crates that `dist` would build at the lower level of `release`.
fn not_fully_optimised(manifest: &str) -> Vec<&str> {
    let (release, dist) = (levels(manifest, "release"), levels(manifest, "dist"));
    let is_full = |name: &str, level: &str| *dist.get(name).unwrap_or(&level) == FULL_LEVEL;
    release.into_iter().filter(|(name, level)| !is_full(name, level)).map(|(name, _)| name).collect()
}

/// Returns the level of optimisation of each crate that a profile names.
fn levels<'a>(manifest: &'a str, profile: &str) -> BTreeMap<&'a str, &'a str> {
    let header = format!("[profile.{profile}.package.");
    let overrides = manifest.split(header.as_str()).skip(1).filter_map(|text| text.split_once(']'));
    let level = |body: &'a str| {
        let lines = body.lines().take_while(|line| !line.starts_with('['));
        lines.filter_map(|line| line.strip_prefix("opt-level = ")).next()
    };
    overrides.filter_map(|(name, body)| Some((name.trim_matches('"'), level(body)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crate_that_dist_does_not_optimise_is_found() {
        let release = "[profile.release.package.\"*\"]\ndebug = false\nopt-level = 1\n\n\
                       [profile.release.package.fast]\nopt-level = 3\n[profile.release.package.small]\nopt-level = 1\n";
        let dist = "[profile.dist.package.\"*\"]\nopt-level = 3\n";
        assert_eq!(not_fully_optimised(&format!("{release}{dist}")), ["small"]);
        let small = "[profile.dist.package.small]\nopt-level = 3\n";
        assert!(not_fully_optimised(&format!("{release}{dist}{small}")).is_empty());
    }
}
