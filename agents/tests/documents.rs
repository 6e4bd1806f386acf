//! Compares the reference with the code: its tables list every flag, reason and exit code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_protocol::launch::Exit;
use millrace_telemetry::journal::OutcomeReason;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn reference(name: &str) -> String {
    read(&root().join("docs/reference").join(name))
}

/// Returns the flags in the output of `--help`.
fn flags(command: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_millrace-agent")).args([command, "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let words = help.split_whitespace().filter(|word| word.starts_with("--"));
    words.map(|word| word.trim_end_matches(',').to_owned()).filter(|flag| flag != "--help").collect()
}

#[test]
fn commands_document_every_flag_of_a_run() {
    let (text, flags) = (reference("commands.md"), flags("train"));
    assert!(flags.len() > 15, "{flags:?}");
    let missing: Vec<_> = flags.iter().filter(|flag| !text.contains(&format!("`{flag}"))).collect();
    assert!(missing.is_empty(), "docs/reference/commands.md lacks {missing:?}");
}

#[test]
fn outcomes_and_exit_codes_are_documented() {
    let (journal, exit_codes) = (reference("journal.md"), reference("exit-codes.md"));
    for reason in OutcomeReason::ALL {
        let row = format!("| `{reason}` | {} |", Exit::from(reason).code());
        assert!(journal.contains(&row), "docs/reference/journal.md has no row {row}");
    }
    for exit in [Exit::Done, Exit::Failed, Exit::BadInput, Exit::PeerLost, Exit::Interrupted] {
        let row = format!("\n| {} |", exit.code());
        assert!(exit_codes.contains(&row), "docs/reference/exit-codes.md has no row {row}");
    }
}
