//! Which files of a model_dir are objects of a bucket, under which names.

use std::path::{Path, PathBuf};

use millrace_checkpoint::{MANIFEST_FILE, step_of_checkpoint};
use object_store::path::{Path as ObjectPath, PathPart};

/// Maximum directories on the way to a file.
const MAX_DEPTH: usize = 8;
const MAX_NAME_BYTES: usize = 255;
/// Beginning of the names of the files of the lock, which count the attempts in a model_dir.
const LOCK_PREFIX: &str = ".millrace-lock.";

/// A file of a model_dir that is an object, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Of the run: metrics, journal, logs, and so on.
    Run,
    /// Of the checkpoint of a step.
    Checkpoint(u64),
}

/// Returns the kind of a file by its path in a model_dir. `None` for one that is not copied: temporary files, and
/// checkpoints that are incomplete or being deleted.
///
/// The path may be that of an object, which anybody may have written: `None` if it leads out of the directory.
pub fn kind_of(parts: &[&str]) -> Option<FileKind> {
    let (name, directories) = parts.split_last()?;
    let is_visible = directories.iter().all(|directory| is_plain(directory) && !directory.starts_with('.'));
    if !is_visible || !is_plain(name) || parts.len() > MAX_DEPTH || name.ends_with(".draft") {
        return None;
    }
    match directories {
        [first, ..] if first.starts_with("checkpoint_") => step_of_checkpoint(first).map(FileKind::Checkpoint),
        [] if is_lock(name) => Some(FileKind::Run),
        _ if name.starts_with('.') || name.starts_with("checkpoint_") => None,
        _ => Some(FileKind::Run),
    }
}

fn is_lock(name: &str) -> bool {
    name.strip_prefix(LOCK_PREFIX).is_some_and(|number| number.parse::<u64>().is_ok())
}

/// Returns whether a name is the same in a path and in the name of an object.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && PathPart::from(name).as_ref() == name
}

/// Returns the name of the object of a file of a model_dir.
pub fn object_of(prefix: &ObjectPath, file: &Path) -> ObjectPath {
    file.iter().filter_map(|part| part.to_str()).fold(prefix.clone(), |path, part| path.join(part))
}

/// Returns kind and path of the file of an object; `None` if the object is not a file of a model_dir.
pub fn file_of(prefix: &ObjectPath, object: &ObjectPath) -> Option<(FileKind, PathBuf)> {
    let parts: Vec<_> = object.prefix_match(prefix)?.collect();
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    Some((kind_of(&parts)?, parts.iter().collect()))
}

/// Returns whether a file is the manifest of its checkpoint.
pub fn is_manifest(file: &Path) -> bool {
    file.components().count() == 2 && file.file_name().is_some_and(|name| name == MANIFEST_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finished_files_are_objects() {
        let kind = |path: &str| kind_of(&path.split('/').collect::<Vec<_>>());
        for run in ["metrics.jsonl", "journal/attempt-1.jsonl", ".millrace-lock.12", "tb/a/events.out.tfevents.1.h.2"] {
            assert_eq!(kind(run), Some(FileKind::Run), "{run}");
        }
        assert_eq!(kind("checkpoint_12/parameters/0.safetensors"), Some(FileKind::Checkpoint(12)));
        for other in [
            "",
            "..",
            "../x",
            "a/../../x",
            "a//b",
            "a/./b",
            "/etc/passwd",
            "a\u{0}b",
            "a\\b%2f..",
            "checkpoint_12",
            "checkpoint_012/manifest.json",
            "checkpoint_12.partial-1.0.0/manifest.json",
            "checkpoint_12.deleted/manifest.json",
            ".metrics.jsonl.7-0.tmp",
            ".millrace-lock.draft-1",
            ".millrace-lease",
            ".git/config",
            "attempts.json.draft",
            "a/b/c/d/e/f/g/h/i",
        ] {
            assert_eq!(kind(other), None, "{other}");
        }
    }

    #[test]
    fn objects_and_files_have_the_same_names() {
        let prefix = ObjectPath::from("team/run");
        let file = Path::new("checkpoint_5/manifest.json");
        let object = object_of(&prefix, file);
        assert_eq!(object.as_ref(), "team/run/checkpoint_5/manifest.json");
        assert_eq!(file_of(&prefix, &object), Some((FileKind::Checkpoint(5), file.to_owned())));
        assert!(is_manifest(file) && !is_manifest(Path::new("checkpoint_5/a/manifest.json")));
        for outside in ["team/run2/metrics.jsonl", "team/run", "metrics.jsonl"] {
            assert_eq!(file_of(&prefix, &ObjectPath::from(outside)), None, "{outside}");
        }
    }
}
