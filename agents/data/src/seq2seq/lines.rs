//! Files of text whose lines are words separated by white space: samples of one line, or of two lines of two files.
//!
//! A directory stands for the files that its `meta.dat` names, one in a line with the number of its lines, or for its
//! `*.txt` files. Lines of `meta.dat` in pairs name a source, a target, and the number of lines.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::DataError;
use crate::files::{expand, working_directory};
use crate::token_store::TokenBytes;

/// File of a directory that names its files.
const LIST_NAME: &str = "meta.dat";
/// Maximum bytes of such a file: a million files.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// What is wrong with files of lines, as the end of a sentence that names the file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinesProblem {
    #[error("is empty, or has only white space")]
    NoWords,
    #[error("has {found} lines, but {other} has {expected}")]
    LineCount { found: u64, expected: u64, other: PathBuf },
    #[error("has no line that fits, beside its translation, in samples of {source_length} and {target_length} tokens")]
    TooLong { source_length: usize, target_length: usize },
    #[error("does not name {expected} and a number of lines in line {line}")]
    List { line: u64, expected: &'static str },
    #[error("has {bytes} bytes, more than a list of files needs")]
    LargeList { bytes: u64 },
    #[error("is one of {sources} files of sources, but there are {targets} of targets")]
    FileCount { sources: usize, targets: usize },
}

impl LinesProblem {
    /// Returns what the user can do about it.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::NoWords => "name files with words that are separated by white space",
            Self::LineCount { .. } | Self::FileCount { .. } => {
                "the files of src_data_dir and tgt_data_dir correspond, line by line"
            }
            Self::TooLong { .. } => "raise src_max_sequence_length and tgt_max_sequence_length",
            Self::List { .. } | Self::LargeList { .. } => {
                "a line of meta.dat has the path of a file, for pairs also that of the translations, and the number \
                 of lines"
            }
        }
        .to_owned()
    }
}

/// The text of a file.
pub(super) struct LineFile {
    pub path: PathBuf,
    bytes: TokenBytes,
}

/// A part of a file: `bytes` from `begin` on, at most to the end of the line.
#[derive(Clone, Copy)]
pub(super) struct LinePart {
    file: u32,
    begin: u64,
}

impl LineFile {
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let read = |source| DataError::Read { path: path.into(), source };
        let file = millrace_roots::open(path).map_err(read)?;
        if file.metadata().map_err(read)?.len() == 0 {
            return Err(problem(path, LinesProblem::NoWords));
        }
        Ok(Self { path: path.into(), bytes: TokenBytes::map(&file).map_err(read)? })
    }

    /// Returns each line as (offset, bytes). The last one may lack its end.
    fn lines(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut offset = 0;
        self.bytes.split_inclusive(|byte| *byte == b'\n').map(move |line| {
            let begin = offset;
            offset += line.len();
            (begin, line)
        })
    }

    pub fn hash(&self, hasher: &mut blake3::Hasher) {
        hasher.update(&(self.bytes.len() as u64).to_le_bytes()).update(&self.bytes);
    }
}

/// Returns the words from `part` on to the end of its line, at most `count`.
pub(super) fn words(files: &[LineFile], part: LinePart, count: usize) -> impl Iterator<Item = &[u8]> {
    let bytes: &[u8] = files.get(part.file as usize).map_or(&[], |file| &file.bytes);
    let rest = usize::try_from(part.begin).ok().and_then(|begin| bytes.get(begin..)).unwrap_or_default();
    words_of(rest.split(|byte| *byte == b'\n').next().unwrap_or_default()).take(count)
}

fn words_of(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// Divides the lines of all files into parts of at most `length` words.
pub(super) fn parts(files: &[LineFile], length: usize) -> Result<Vec<LinePart>, DataError> {
    let mut parts = Vec::new();
    for (number, file) in (0_u32..).zip(files) {
        let before = parts.len();
        for (offset, line) in file.lines() {
            for word in words_of(line).step_by(length.max(1)) {
                // The word is a part of the line.
                let begin = offset as u64 + (word.as_ptr() as usize - line.as_ptr() as usize) as u64;
                parts.push(LinePart { file: number, begin });
            }
        }
        if parts.len() == before {
            return Err(problem(&file.path, LinesProblem::NoWords));
        }
    }
    Ok(parts)
}

/// Returns the pairs of equally numbered lines of `sources` and `targets` that have at least one word each, and at most
/// as many as `lengths`.
pub(super) fn pairs(
    sources: &[LineFile],
    targets: &[LineFile],
    lengths: [usize; 2],
) -> Result<Vec<[LinePart; 2]>, DataError> {
    let mut pairs = Vec::new();
    for (number, (source, target)) in (0_u32..).zip(sources.iter().zip(targets)) {
        let [found, expected] = [source, target].map(|file| file.lines().count() as u64);
        if found != expected {
            let other = target.path.clone();
            return Err(problem(&source.path, LinesProblem::LineCount { found, expected, other }));
        }
        for (source, target) in source.lines().zip(target.lines()) {
            let is_in_range = [source, target].into_iter().zip(lengths).all(|((_, line), length)| {
                let words = words_of(line).take(length.saturating_add(1)).count();
                (1..=length).contains(&words)
            });
            if is_in_range {
                pairs.push([source, target].map(|(offset, _)| LinePart { file: number, begin: offset as u64 }));
            }
        }
    }
    match sources.first() {
        Some(first) if pairs.is_empty() => {
            let [source_length, target_length] = lengths;
            Err(problem(&first.path, LinesProblem::TooLong { source_length, target_length }))
        }
        _ => Ok(pairs),
    }
}

/// Returns the files of sources, and those of targets, if `targets` names some or the lists of `sources` do.
pub(super) fn find_files(
    sources: &[String],
    targets: &[String],
    is_pair: bool,
) -> Result<[Vec<PathBuf>; 2], DataError> {
    let are_named = is_pair && targets.is_empty();
    let mut found = expand_lists(sources, are_named)?;
    if !targets.is_empty() {
        found[1] = expand_lists(targets, false)?.concat();
    }
    let [sources, targets] = &found;
    match sources.first() {
        Some(first) if is_pair && sources.len() != targets.len() => {
            let (sources, targets) = (sources.len(), targets.len());
            Err(problem(first, LinesProblem::FileCount { sources, targets }))
        }
        _ => Ok(found),
    }
}

fn expand_lists(entries: &[String], has_targets: bool) -> Result<[Vec<PathBuf>; 2], DataError> {
    let mut found = [Vec::new(), Vec::new()];
    for entry in entries {
        let list = Path::new(entry).join(LIST_NAME);
        if has_targets || millrace_roots::is_file(&list) {
            read_list(entry, &list, has_targets, &mut found)?;
        } else {
            found[0].extend(expand(std::slice::from_ref(entry), "txt")?);
        }
    }
    if found[0].is_empty() { Err(DataError::NoPaths) } else { Ok(found) }
}

/// Adds the files that a list names. Their paths start at the directory of the list, or else at the working directory.
fn read_list(directory: &str, list: &Path, has_targets: bool, found: &mut [Vec<PathBuf>; 2]) -> Result<(), DataError> {
    // Reports a missing directory as one, and a missing list as a missing file.
    expand(&[list.display().to_string()], "dat")?;
    let read = |source| DataError::Read { path: list.into(), source };
    let bytes = millrace_roots::metadata(list).map_err(read)?.len();
    if bytes > MAX_LIST_BYTES {
        return Err(problem(list, LinesProblem::LargeList { bytes }));
    }
    let mut text = String::new();
    millrace_roots::open(list).map_err(read)?.take(MAX_LIST_BYTES).read_to_string(&mut text).map_err(read)?;
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (names, count) = match words.as_slice() {
            [] => continue,
            [names @ .., count] => (names, count),
        };
        let expected = if has_targets { "a source, a target" } else { "a file" };
        // A target is ignored where none is needed.
        let names_needed = if has_targets { 2..=2 } else { 1..=2 };
        if !names_needed.contains(&names.len()) || count.parse::<u64>().is_err() {
            return Err(problem(list, LinesProblem::List { line: number, expected }));
        }
        for (name, found) in names.iter().zip(found.iter_mut()).take(1 + usize::from(has_targets)) {
            let beside = Path::new(directory).join(name);
            let path = if millrace_roots::is_file(&beside) { beside } else { PathBuf::from(name) };
            if !millrace_roots::is_file(&path) {
                return Err(DataError::NotFound { path, cwd: working_directory() });
            }
            found.push(path);
        }
    }
    Ok(())
}

pub(super) fn problem(path: &Path, problem: LinesProblem) -> DataError {
    DataError::Lines { path: path.into(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn open(dir: &Path, name: &str, text: &str) -> LineFile {
        LineFile::open(&write(dir, name, text)).unwrap()
    }

    fn text(files: &[LineFile], part: LinePart, count: usize) -> String {
        words(files, part, count).map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn lines_are_divided_into_parts() {
        let dir = tempfile::tempdir().unwrap();
        let files = [open(dir.path(), "a", "one two  three\n\n \n four\tfive"), open(dir.path(), "b", "six\r\n")];
        let parts = parts(&files, 2).unwrap();
        let found: Vec<String> = parts.iter().map(|part| text(&files, *part, 2)).collect();
        assert_eq!(found, ["one two", "three", "four five", "six"]);
        let blank = [open(dir.path(), "blank", "\n \n")];
        assert!(super::parts(&blank, 2).err().unwrap().to_string().contains("only white space"));
    }

    #[test]
    fn pairs_are_lines_of_equal_number_that_fit() {
        let dir = tempfile::tempdir().unwrap();
        let sources = [open(dir.path(), "s", "a b\nc\n\nd e f\ng\n")];
        let targets = [open(dir.path(), "t", "A\nB C D\nE\nF\nG\n")];
        let found = pairs(&sources, &targets, [2, 2]).unwrap();
        let found = found.iter().map(|[source, target]| (text(&sources, *source, 9), text(&targets, *target, 9)));
        assert_eq!(found.collect::<Vec<_>>(), [("a b".into(), "A".into()), ("g".into(), "G".into())]);
        let short = [open(dir.path(), "short", "A\n")];
        let error = pairs(&sources, &short, [2, 2]).err().unwrap().to_string();
        assert!(error.contains("s has 5 lines, but"), "{error}");
        let error = pairs(&short, &[open(dir.path(), "long", "a b c\n")], [2, 2]).err().unwrap().to_string();
        assert!(error.contains("has no line that fits"), "{error}");
    }

    #[test]
    fn lists_name_the_files_of_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "x.en-0", "a\n");
        write(dir.path(), "x.de-0", "b\n");
        let directory = dir.path().display().to_string();
        let find = |list: &str, is_pair| {
            write(dir.path(), "meta.dat", list);
            find_files(std::slice::from_ref(&directory), &[], is_pair).map_err(|error| error.to_string())
        };
        let path = |name: &str| vec![dir.path().join(name)];
        assert_eq!(find("x.en-0 x.de-0 1\n\n", true), Ok([path("x.en-0"), path("x.de-0")]));
        assert_eq!(find("x.en-0 1\n", false), Ok([path("x.en-0"), Vec::new()]));
        for (list, is_pair, message) in [
            ("x.en-0 1\n", true, "does not name a source, a target and a number of lines in line 1"),
            ("x.en-0\n", false, "does not name a file and a number of lines in line 1"),
            ("none 1\n", false, "none does not exist"),
            ("", false, "names no files"),
        ] {
            let error = find(list, is_pair).unwrap_err();
            assert!(error.contains(message), "{list}: {error}");
        }
        std::fs::remove_file(dir.path().join("meta.dat")).unwrap();
        let error = find_files(std::slice::from_ref(&directory), &[], true).err().unwrap().to_string();
        assert!(error.contains("meta.dat does not exist"), "{error}");
    }
}
