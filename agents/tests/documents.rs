//! Compares the documents with the code: links lead somewhere, and tables list every flag, reason and exit code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory;
use millrace_outcome::{Exit, OutcomeProperties, OutcomeReason};
use millrace_protocol::launch::RoleCommand;

/// A generated document; the test of its generator fails if it is missing.
const GENERATED: &str = "params.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn reference(name: &str) -> String {
    read(&root().join("docs/reference").join(name))
}

/// Returns every Markdown file of the repository.
fn documents() -> Vec<PathBuf> {
    let output = Command::new("git").args(["ls-files", "*.md"]).current_dir(root()).output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    let documents: Vec<_> = listed.lines().map(|name| root().join(name)).filter(|path| path.exists()).collect();
    assert!(documents.len() > 20, "git lists {listed:?}");
    documents
}

/// Returns the targets of all links `[text](target)`, code blocks excluded.
fn links(text: &str) -> Vec<String> {
    let prose: String = text.split("```").step_by(2).collect();
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// Returns the anchors of all headings, formed as GitHub does.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    headings.map(|text| text.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn relative_links_lead_to_a_file_and_a_heading() {
    let mut dead = Vec::new();
    for document in documents() {
        let text = read(&document);
        for link in links(&text).into_iter().filter(|link| !link.contains("://") && link != GENERATED) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { document.clone() } else { document.with_file_name(path) };
            let is_alive = match anchor {
                "" => target.exists(),
                anchor => target.is_file() && anchors(&read(&target)).contains(anchor),
            };
            if !is_alive {
                dead.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
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
fn commands_document_every_flag_of_a_role() {
    let (text, command) = (reference("commands.md"), RoleCommand::command());
    let flags = command.get_arguments().filter(|argument| !argument.is_hide_set()).filter_map(clap::Arg::get_long);
    let missing: Vec<_> = flags.filter(|flag| !text.contains(&format!("--{flag} "))).collect();
    assert!(missing.is_empty(), "docs/reference/commands.md lacks {missing:?}");
}

#[test]
fn outcomes_and_exit_codes_are_documented() {
    let (journal, exit_codes) = (reference("journal.md"), reference("exit-codes.md"));
    for reason in OutcomeReason::ALL {
        let OutcomeProperties { exit, remedy, .. } = reason.properties();
        let row = format!("| `{reason}` | {} | {} |", exit.code(), remedy.as_str());
        assert!(journal.contains(&row), "docs/reference/journal.md has no row {row}");
    }
    for exit in [Exit::Success, Exit::Failed, Exit::BadInput, Exit::PeerLost, Exit::Interrupted] {
        let row = format!("\n| {} |", exit.code());
        assert!(exit_codes.contains(&row), "docs/reference/exit-codes.md has no row {row}");
    }
}
