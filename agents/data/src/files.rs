//! Expands the user's paths, globs and directories to an ordered list of files.

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use glob::MatchOptions;

use crate::DataError;

/// Wildcards match as in a shell: neither a slash nor the dot of a hidden file.
pub const MATCH_OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// Returns the files of `entries`: entries in their order, the matches of one entry sorted, each file once.
///
/// `extension` selects the files of an entry that is a directory. One that ends with `*` also selects names that
/// continue after it, such as those of numbered parts.
pub(crate) fn expand(entries: &[String], extension: &'static str) -> Result<Vec<PathBuf>, DataError> {
    if entries.is_empty() {
        return Err(DataError::NoPaths);
    }
    let mut seen = HashSet::new();
    let mut files = Vec::new();
    for entry in entries {
        for file in expand_one(entry, extension)? {
            if seen.insert(file.clone()) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

fn expand_one(entry: &str, extension: &'static str) -> Result<Vec<PathBuf>, DataError> {
    let path = PathBuf::from(entry);
    match millrace_roots::metadata(&path) {
        Ok(meta) if meta.is_dir() => list(path, extension),
        Ok(meta) if meta.is_file() => Ok(vec![path]),
        Ok(_) => Err(DataError::NotAFile { path }),
        // A name with wildcards is a file if such a file exists, otherwise a glob.
        Err(_) if entry.contains(['*', '?', '[']) => matches(entry),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(DataError::NotFound { path, cwd: working_directory() })
        }
        Err(source) => Err(DataError::Read { path, source }),
    }
}

/// Returns the content of a file of at most `max_bytes`. A larger one gives the error of `too_large`, with its size.
pub(crate) fn read_whole(
    path: &Path,
    max_bytes: u64,
    too_large: impl FnOnce(u64) -> DataError,
) -> Result<Vec<u8>, DataError> {
    let read = |source| DataError::Read { path: path.into(), source };
    let metadata = millrace_roots::metadata(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => DataError::NotFound { path: path.into(), cwd: working_directory() },
        _ => read(source),
    })?;
    if !metadata.is_file() {
        return Err(DataError::NotAFile { path: path.into() });
    }
    let mut content = Vec::new();
    let file = millrace_roots::open(path).map_err(read)?;
    // The file may have grown.
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut content).map_err(read)?;
    match content.len() as u64 > max_bytes {
        true => Err(too_large(metadata.len())),
        false => Ok(content),
    }
}

fn list(directory: PathBuf, extension: &'static str) -> Result<Vec<PathBuf>, DataError> {
    let read = |source| DataError::Read { path: directory.clone(), source };
    let mut files = Vec::new();
    for entry in millrace_roots::read_dir(&directory).map_err(read)? {
        let path = entry.path;
        if has_extension(&path, extension) && millrace_roots::is_file(&path) {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(DataError::EmptyDirectory { path: directory, extension });
    }
    files.sort();
    Ok(files)
}

fn has_extension(path: &Path, extension: &str) -> bool {
    match extension.strip_suffix('*') {
        None => path.extension().is_some_and(|found| found == extension),
        Some(begin) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            !name.starts_with('.') && name.split('.').skip(1).any(|part| part.starts_with(begin))
        }
    }
}

fn matches(pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let found = glob::glob_with(pattern, MATCH_OPTIONS)
        .map_err(|source| DataError::BadPattern { pattern: pattern.into(), source })?;
    let mut files = Vec::new();
    for path in found {
        let path = path.map_err(|e: glob::GlobError| DataError::Read { path: e.path().into(), source: e.into() })?;
        if millrace_roots::is_file(&path) {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(DataError::NoMatch { pattern: pattern.into(), cwd: working_directory() });
    }
    // The order of directory entries depends on the file system.
    files.sort();
    Ok(files)
}

pub(crate) fn working_directory() -> PathBuf {
    std::env::current_dir().unwrap_or_else(|_| Path::new(".").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_order_and_matches_are_sorted() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a.txt", ".hidden.txt", "c.bin", "x[1].txt"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        std::fs::create_dir(dir.path().join("z.txt")).unwrap();
        let path = |s: &str| format!("{}/{s}", dir.path().display());
        let names = |entries: &[&str]| -> Vec<String> {
            let entries: Vec<String> = entries.iter().map(|e| path(e)).collect();
            let files = expand(&entries, "txt").unwrap();
            files.iter().map(|f| f.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names(&["*.txt"]), ["a.txt", "b.txt", "x[1].txt"]);
        assert_eq!(names(&["b.txt", "[ab].txt"]), ["b.txt", "a.txt"]);
        assert_eq!(names(&["x[1].txt"]), ["x[1].txt"], "a file with wildcards in its name is itself");
        let parts = ["a.tfrecord-00001-of-2", "a.tfrecord-00000-of-2", "b.tfrecords.gz", ".c.tfrecord", "tfrecord"];
        parts.iter().for_each(|name| std::fs::write(dir.path().join(name), name).unwrap());
        let records = expand(&[path("")], "tfrecord*").unwrap();
        assert!(records.iter().map(|file| file.file_name().unwrap()).eq([parts[1], parts[0], parts[2]]));
        assert_eq!(names(&[""]), [".hidden.txt", "a.txt", "b.txt", "x[1].txt"]);
    }
}
