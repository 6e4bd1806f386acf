//! Recognizes the files of a job by their paths. No other files of a directory are listed or served.
//!
//! A model_dir may be a directory of a volume that also holds other things: data, results of other programs.

use std::path::Path;

use millrace_telemetry::{journal, metrics_log, performance};

/// Files in the model_dir itself, without those of TensorBoard.
const ARTIFACT_FILES: [&str; 6] = [
    metrics_log::METRICS_FILE,
    performance::PERFORMANCE_FILE,
    "params.yaml",
    "job.json",
    "attempts.json",
    "tokenizer.json",
];
/// Prefix of a directory of logs in `logs/` and of a file of the journal.
const ATTEMPT_PREFIX: &str = "attempt-";
/// Prefix of TensorBoard's files, and their maximum depth: they are in `summary_dir`, a directory in model_dir.
const EVENT_FILE_PREFIX: &str = "events.out.tfevents.";
const MAX_EVENTS_DEPTH: usize = 4;

fn components(path: &Path) -> Vec<&str> {
    path.iter().filter_map(|part| part.to_str()).collect()
}

/// Whether a path in a model_dir is that of an artifact.
pub fn is_artifact(path: &Path) -> bool {
    let parts = components(path);
    match parts[..] {
        [name] if ARTIFACT_FILES.contains(&name) => true,
        [journal::JOURNAL_DIR, name] => name.starts_with(ATTEMPT_PREFIX) && name.ends_with(".jsonl"),
        ["logs", attempt, name] => attempt.starts_with(ATTEMPT_PREFIX) && name.ends_with(".log"),
        [ref dirs @ .., name] => {
            name.starts_with(EVENT_FILE_PREFIX)
                && dirs.len() <= MAX_EVENTS_DEPTH
                && dirs.first().is_none_or(|dir| !is_checkpoint(dir))
        }
        [] => false,
    }
}

/// Whether a directory in a model_dir can contain artifacts.
pub fn may_hold_artifacts(path: &Path) -> bool {
    let parts = components(path);
    parts.len() <= MAX_EVENTS_DEPTH && parts.first().is_none_or(|first| !is_checkpoint(first))
}

/// Whether a path in the directory of a checkpoint is that of one of its files.
pub fn is_checkpoint_file(path: &Path) -> bool {
    match components(path)[..] {
        [name] => name.ends_with(".json"),
        ["parameters" | "optimizer", name] => name.ends_with(".safetensors"),
        _ => false,
    }
}

fn is_checkpoint(name: &str) -> bool {
    name.starts_with("checkpoint_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_files_are_recognized_by_path() {
        let artifact = |path: &str| is_artifact(Path::new(path));
        for good in [
            "metrics.jsonl",
            "performance.json",
            "params.yaml",
            "job.json",
            "tokenizer.json",
            "journal/attempt-1.jsonl",
            "logs/attempt-1/cs2-0.log",
            "events.out.tfevents.1.host.2.3",
            "tb/run/events.out.tfevents.1.host.2.3",
        ] {
            assert!(artifact(good), "{good}");
        }
        for bad in [
            "",
            "id_rsa",
            "secret.json",
            "logs/x.log",
            "logs/attempt-1/deep/x.log",
            "journal/x",
            "journal",
            "checkpoint_1/job.json",
            "checkpoint_1/events.out.tfevents.1",
            "a/b/c/d/e/events.out.tfevents.1",
        ] {
            assert!(!artifact(bad), "{bad}");
        }
        let file = |path: &str| is_checkpoint_file(Path::new(path));
        assert!(
            file("manifest.json") && file("parameters/00003-h.3.safetensors") && file("model.safetensors.index.json")
        );
        assert!(!file("x.bin") && !file("parameters/x.txt") && !file("deep/parameters/x.safetensors") && !file(""));
    }
}
