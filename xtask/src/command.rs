//! Runs Cargo and the scripts of the repository, in its root.

use std::ffi::OsStr;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::repository;

/// Names the packages and features as `tests/run` does, so that no dependency is built twice: Cargo chooses features
/// by the packages that are named.
pub const WORKSPACE: [&str; 2] = ["--locked", "--workspace"];

/// Returns a command that runs Cargo in the root of the repository.
pub fn cargo<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// Returns a command that runs a program in the root of the repository.
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(repository::root());
    // `cargo run` sets these for this process. Build scripts that depend on them (ring's does) would run again whenever
    // `cargo` and `cargo xtask` alternate, and with them half of the dependencies would be rebuilt.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(describes_a_package) {
            command.env_remove(name);
        }
    }
    command
}

fn describes_a_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

/// Runs a command, with its output shown, and fails if the command does.
pub fn run(command: &mut Command) -> Result<()> {
    let text = text_of(command);
    println!("$ {text}");
    let status = command.status().with_context(|| format!("can't run `{text}`"))?;
    ensure!(status.success(), "`{text}` failed: {status}");
    Ok(())
}

/// Runs a command and returns its standard output; its errors are shown.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let text = text_of(command);
    let output =
        command.stderr(std::process::Stdio::inherit()).output().with_context(|| format!("can't run `{text}`"))?;
    ensure!(output.status.success(), "`{text}` failed: {}", output.status);
    Ok(output.stdout)
}

fn text_of(command: &Command) -> String {
    let name = std::path::Path::new(command.get_program()).file_name().unwrap_or_default();
    let words: Vec<_> = std::iter::once(name).chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_this_package_are_not_inherited() {
        let removed: Vec<_> =
            cargo([]).get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name.to_owned()).collect();
        assert!(removed.contains(&"CARGO_MANIFEST_DIR".into()), "{removed:?}");
        assert!(!describes_a_package("CARGO_HOME") && !describes_a_package("CARGO_TARGET_DIR"));
    }
}
