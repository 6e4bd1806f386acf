//! The uploaded files of jobs, as directories of links to blobs.
//!
//! ```text
//! <files>/<namespace>/<digest of spec.files>/train/x.npy     a hard link to <blobs>/<namespace>/blake3:…
//! ```
//!
//! * Jobs with the same files share a directory. Nothing in it ever changes.
//! * A directory with its final name is complete.

use std::collections::HashSet;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use kube::ResourceExt;
use millrace_crds::{JobFile, TrainJob};
use millrace_params::{BlobDigest, LabelName};

use super::path_error::PathError;
use crate::blobs::UNUSED_BLOB_TTL;

/// Hexadecimal digits of a directory's name.
const NAME_LENGTH: usize = 32;

/// The directories of links, and that of the blobs.
#[derive(Clone, Debug)]
pub struct JobFiles {
    /// Directory of the directories of links.
    pub dir: PathBuf,
    /// Directory of the blobs.
    pub blobs: PathBuf,
}

impl JobFiles {
    /// Returns the directory with the uploads `files` of a job.
    pub fn dir_of(&self, namespace: &LabelName, files: &[JobFile]) -> PathBuf {
        let mut digest = blake3::Hasher::new();
        for JobFile { path, digest: content } in files {
            for piece in [path, content] {
                digest.update(&piece.len().to_le_bytes()).update(piece.as_bytes());
            }
        }
        self.dir.join(namespace).join(&digest.finalize().to_hex()[..NAME_LENGTH])
    }

    /// Creates the directory with `files`, if there are any and it does not exist.
    ///
    /// # Errors
    /// A path or digest is not valid, an upload does not exist, or an error of the file system.
    pub fn make(&self, namespace: &LabelName, files: &[JobFile]) -> Result<(), PathError> {
        let directory = self.dir_of(namespace, files);
        if files.is_empty() || millrace_roots::is_dir(&directory) {
            return Ok(());
        }
        let temporary = directory.with_extension(uuid::Uuid::new_v4().simple().to_string());
        let result = files.iter().try_for_each(|file| self.link(namespace, file, &temporary));
        let result = result.and_then(|()| match millrace_roots::rename(&temporary, &directory) {
            // Another job has created it meanwhile.
            Err(_) if millrace_roots::is_dir(&directory) => Ok(()),
            renamed => renamed.map_err(|source| PathError::CreateDirectory { directory, source }),
        });
        // It does not exist any more, or it is incomplete.
        let _ = millrace_roots::remove_dir_all(&temporary);
        result
    }

    fn link(&self, namespace: &LabelName, file: &JobFile, temporary: &Path) -> Result<(), PathError> {
        let path = Path::new(&file.path);
        if path.components().any(|part| !matches!(part, Component::Normal(_))) {
            return Err(PathError::FilePath(file.path.clone()));
        }
        let digest =
            BlobDigest::new(&*file.digest).map_err(|source| PathError::Name { field: "spec.files", source })?;
        let (blob, link) = (self.blobs.join(namespace).join(&digest), temporary.join(path));
        let parent = link.parent().unwrap_or(temporary);
        let linked = millrace_roots::create_dir_all(parent).and_then(|()| millrace_roots::hard_link(&blob, &link));
        linked.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => PathError::UploadNotFound { path: file.path.clone(), digest },
            _ => PathError::CreateDirectory { directory: link, source },
        })
    }

    /// Removes the directories that none of `jobs` uses and that are older than [`UNUSED_BLOB_TTL`]. A failure is
    /// logged: the next call tries again.
    pub async fn remove_unused(&self, jobs: &[TrainJob]) {
        let used: HashSet<PathBuf> = jobs.iter().filter_map(|job| self.dir_of_job(job)).collect();
        let files = self.clone();
        let removed = tokio::task::spawn_blocking(move || files.remove_others(&used)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!("can't remove unused directories in {}: {error}", self.dir.display());
        }
    }

    fn dir_of_job(&self, job: &TrainJob) -> Option<PathBuf> {
        let namespace = LabelName::new(job.namespace()?).ok()?;
        Some(self.dir_of(&namespace, &job.spec.files))
    }

    fn remove_others(&self, used: &HashSet<PathBuf>) -> io::Result<()> {
        for namespace in millrace_roots::read_dir(&self.dir)?.iter().filter(|entry| entry.is_dir) {
            for entry in millrace_roots::read_dir(&namespace.path)? {
                let changed = millrace_roots::metadata(&entry.path)?.modified()?;
                let age = SystemTime::now().duration_since(changed).unwrap_or_default();
                if age > UNUSED_BLOB_TTL && !used.contains(&entry.path) {
                    millrace_roots::remove_dir_all(&entry.path)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Case {
        _dir: tempfile::TempDir,
        files: JobFiles,
        namespace: LabelName,
    }

    impl Case {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let files = JobFiles { dir: dir.path().join("files"), blobs: dir.path().join("blobs") };
            let namespace = LabelName::new("team").unwrap();
            std::fs::create_dir_all(files.blobs.join(&namespace)).unwrap();
            Self { _dir: dir, files, namespace }
        }

        /// Stores a blob and returns it as a file of a job.
        fn file(&self, path: &str, content: &str) -> JobFile {
            let digest = format!("blake3:{}", blake3::hash(content.as_bytes()).to_hex());
            std::fs::write(self.files.blobs.join(&self.namespace).join(&digest), content).unwrap();
            JobFile { path: path.to_owned(), digest }
        }
    }

    #[test]
    fn files_are_links_by_their_paths() {
        let case = Case::new();
        let files = [case.file("train/x.npy", "x"), case.file("train/y.npy", "y"), case.file("words.txt", "x")];
        for _ in 0..2 {
            case.files.make(&case.namespace, &files).unwrap();
        }
        let dir = case.files.dir_of(&case.namespace, &files);
        for (path, content) in [("train/x.npy", "x"), ("train/y.npy", "y"), ("words.txt", "x")] {
            assert_eq!(std::fs::read_to_string(dir.join(path)).unwrap(), content);
        }
        assert_eq!(std::fs::read_dir(dir.parent().unwrap()).unwrap().count(), 1, "no draft is left");
        case.files.remove_others(&HashSet::new()).unwrap();
        assert!(dir.exists(), "it is new");
        let old = SystemTime::now() - 2 * UNUSED_BLOB_TTL;
        std::fs::File::open(&dir).unwrap().set_modified(old).unwrap();
        case.files.remove_others(&[dir.clone()].into()).unwrap();
        assert!(dir.exists(), "a job uses it");
        case.files.remove_others(&HashSet::new()).unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn bad_files_leave_nothing_behind() {
        let case = Case::new();
        let good = case.file("good", "x");
        let missing = JobFile { path: "gone".to_owned(), digest: format!("blake3:{}", "0".repeat(64)) };
        let of_digest = JobFile { digest: "../../x".to_owned(), ..missing.clone() };
        for (bad, message) in [
            (JobFile { path: "../x".to_owned(), ..good.clone() }, "spec.files: \"../x\""),
            (JobFile { path: "/x".to_owned(), ..good.clone() }, "spec.files: \"/x\""),
            (of_digest, "spec.files"),
            (missing, "spec.files: gone names the upload blake3:0"),
        ] {
            let error = case.files.make(&case.namespace, &[good.clone(), bad]).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
        let count = std::fs::read_dir(case.files.dir.join(&case.namespace)).unwrap().count();
        assert_eq!(count, 0);
    }
}
