//! Checks that the profile `dist` optimises every crate fully: it inherits the levels of single crates from
//! `release`, so it has to repeat each one that is lower. Also checks that `release` sets no level for all crates:
//! that would apply to procedural macros and build scripts, too, and make a build of everything take much longer.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use crate::repository;

const FULL_LEVEL: &str = "3";
/// Cargo's name for every crate that is not a member of the workspace.
const ALL_CRATES: &str = "\"*\"";

pub fn violations() -> Result<Vec<String>> {
    let manifest = repository::text(Path::new("Cargo.toml"))?.context("Cargo.toml is not UTF-8")?;
    let sentence = |name: &str| match name {
        ALL_CRATES => format!("Cargo.toml: remove opt-level of {ALL_CRATES} from [profile.release.package]"),
        _ => format!("Cargo.toml: add {name} = {{ opt-level = {FULL_LEVEL} }} to [profile.dist.package]"),
    };
    Ok(wrong_levels(&manifest).into_iter().map(sentence).collect())
}

/// Returns the crates that `dist` would build at the lower level of `release`, and `"*"` if `release` sets its level.
fn wrong_levels(manifest: &str) -> Vec<&str> {
    let (release, dist) = (levels(manifest, "release"), levels(manifest, "dist"));
    let is_full = |name: &str, level: &str| *dist.get(name).unwrap_or(&level) == FULL_LEVEL;
    let wrong = release.into_iter().filter(|(name, level)| *name == ALL_CRATES || !is_full(name, level));
    wrong.map(|(name, _)| name).collect()
}

/// Returns the level of optimisation of each crate in the table `[profile.PROFILE.package]`.
fn levels<'a>(manifest: &'a str, profile: &str) -> BTreeMap<&'a str, &'a str> {
    let header = format!("[profile.{profile}.package]\n");
    let table = manifest.split_once(&header).map_or("", |(_, rest)| rest);
    let entries = table.lines().take_while(|line| !line.starts_with('['));
    let level = |entry: &'a str| {
        let (name, settings) = entry.split_once(" = {")?;
        let (_, level) = settings.split_once("opt-level = ")?;
        Some((name, level.split([' ', ',', '}']).next()?))
    };
    entries.filter_map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_level_is_found() {
        let release = "[profile.release.package]\n\"*\" = { debug = false }\nfast = { opt-level = 3 }\n\
                       small = { debug = false, opt-level = 1 }\n\n[profile.test]\nx = { opt-level = 1 }\n";
        let dist = "[profile.dist.package]\n";
        assert_eq!(wrong_levels(&format!("{release}{dist}")), ["small"]);
        assert!(wrong_levels(&format!("{release}{dist}small = {{ opt-level = 3 }}\n")).is_empty());
        let all = release.replace("debug = false }\nfast", "opt-level = 1 }\nfast");
        assert_eq!(wrong_levels(&format!("{all}{dist}small = {{ opt-level = 3 }}\n")), [ALL_CRATES]);
    }
}
