//! Checks the attributes at the head of each library and program: only tests panic, `unsafe` stays where it is, and
//! the crates that others read are documented.
//!
//! They are not lints of the workspace, because those would hold for integration tests, too, and because a crate can't
//! make an exception from a `forbid`.

use anyhow::{Context, Result};

use super::metadata::crates;
use crate::repository;

const NO_PANIC: &str = "#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]";
const NO_UNSAFE: &str = "#![forbid(unsafe_code)]";
const DOCUMENTED: &str = "#![warn(missing_docs)]";

/// Crates with `unsafe` code, and what it is.
const UNSAFE_CRATES: &[(&str, &str)] = &[
    ("millrace-data", "a memory map of the token file"),
    ("millrace-emulator", "kernels"),
    ("millrace-shared-memory", "memory that processes share"),
];
/// Crates whose code panics to report what it found.
const PANICKING_CRATES: &[(&str, &str)] = &[("millrace-fuzz", "a fuzz target fails by a panic")];
/// Crates whose public items are all documented (docs/style.md).
const DOCUMENTED_CRATES: &[&str] = &[
    "millrace-bucket",
    "millrace-checkpoint",
    "millrace-crds",
    "millrace-emulator",
    "millrace-engine",
    "millrace-lifecycle",
    "millrace-outcome",
    "millrace-params",
    "millrace-protocol",
    "millrace-replacement",
    "millrace-roots",
    "millrace-shared-memory",
];

pub fn violations() -> Result<Vec<String>> {
    let crates = crates()?;
    let mut violations = Vec::new();
    let exempt = UNSAFE_CRATES.iter().chain(PANICKING_CRATES).map(|(name, _)| name);
    for name in exempt.chain(DOCUMENTED_CRATES) {
        if !crates.iter().any(|package| package.name == *name) {
            violations.push(format!("{name} does not exist: rename or remove it in crate_attributes.rs"));
        }
    }
    for package in &crates {
        for file in &package.roots {
            let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
            let file = file.strip_prefix(repository::root()).unwrap_or(file).display();
            violations
                .extend(missing(&package.name, &text).iter().map(|attribute| format!("{file} lacks {attribute}")));
        }
    }
    Ok(violations)
}

/// Returns the attributes that the root file of a crate must have and has not.
fn missing(name: &str, root_file: &str) -> Vec<&'static str> {
    let is_exempt = |exempt: &[(&str, &str)]| exempt.iter().any(|(it, _)| *it == name);
    let required = [
        (NO_PANIC, is_exempt(PANICKING_CRATES)),
        (NO_UNSAFE, is_exempt(UNSAFE_CRATES)),
        (DOCUMENTED, !DOCUMENTED_CRATES.contains(&name)),
    ];
    let has = |attribute: &str| root_file.lines().any(|line| line == attribute);
    required.into_iter().filter(|(attribute, exempt)| !exempt && !has(attribute)).map(|(it, _)| it).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_attributes_are_found_except_in_exempt_crates() {
        let text = format!("//! Text.\n{NO_PANIC}\n");
        assert_eq!(missing("millrace-store", ""), [NO_PANIC, NO_UNSAFE]);
        assert_eq!(missing("millrace-store", &text), [NO_UNSAFE]);
        assert_eq!(missing("millrace-store", &format!("{text}// {NO_UNSAFE}\n")), [NO_UNSAFE]);
        assert_eq!(missing("millrace-emulator", &text), [DOCUMENTED]);
        assert_eq!(missing("millrace-outcome", &format!("{text}{NO_UNSAFE}\n{DOCUMENTED}\n")), [""; 0]);
        assert_eq!(missing("millrace-fuzz", NO_UNSAFE), [""; 0]);
    }
}
