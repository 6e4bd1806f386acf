//! The rules of this repository that neither rustfmt nor clippy checks, one in each module.
//!
//! A rule returns a sentence for each violation, which begins with the file or crate. `cargo xtask check` runs all of
//! them, and so does the unit test below, as a part of `tests/run`.

mod boundaries;
mod crate_attributes;
mod dependency_reasons;
mod file_length;
mod line_length;
mod metadata;
mod profiles;
mod purity;
mod string_errors;
mod test_names;

use anyhow::{Result, ensure};

use crate::command::{WORKSPACE, cargo, run};

type Rule = fn() -> Result<Vec<String>>;

const RULES: &[(&str, Rule)] = &[
    ("crate attributes", crate_attributes::violations),
    ("boundaries", boundaries::violations),
    ("purity", purity::violations),
    ("file length", file_length::violations),
    ("line length", line_length::violations),
    ("string errors", string_errors::violations),
    ("dependency reasons", dependency_reasons::violations),
    ("profiles", profiles::violations),
    ("test names", test_names::violations),
];

/// Checks the format, all rules, and what clippy knows.
pub fn check_everything() -> Result<()> {
    run(&mut cargo(["fmt", "--all", "--check"]))?;
    check()?;
    run(&mut cargo(["clippy"].into_iter().chain(WORKSPACE).chain(["--all-targets", "--", "-D", "warnings"])))
}

fn check() -> Result<()> {
    let mut count = 0;
    for (name, rule) in RULES {
        let violations = rule()?;
        println!("rule {name}: {} violations", violations.len());
        for violation in &violations {
            println!("  {violation}");
        }
        count += violations.len();
    }
    ensure!(count == 0, "{count} violations of the rules in xtask/src/rules, listed above");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn repository_keeps_all_rules() {
        super::check().unwrap();
    }
}
