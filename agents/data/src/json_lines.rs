//! Reads the texts of JSON Lines files: on each line an object with the key `text`. Other keys are ignored.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::DataError;

/// Maximum length of a line, which is in memory as a whole.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// A line that has no text.
#[derive(Debug, thiserror::Error)]
pub enum JsonLineProblem {
    #[error("is not an object with a string `text`: {}", without_line(.0))]
    Invalid(serde_json::Error),
    #[error("is longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
}

/// Returns the message of an error without its line, which is always 1: each line is parsed alone.
fn without_line(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let (line, column) = (error.line(), error.column());
    match message.strip_suffix(&format!(" at line {line} column {column}")) {
        Some(message) => format!("{message} at column {column}"),
        None => message,
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

/// Returns whether files of this name are read as JSON Lines.
pub(crate) fn is_json_lines(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("jsonl"))
}

/// The texts of a file, one after the other.
pub(crate) struct JsonLines<R> {
    path: PathBuf,
    input: BufReader<R>,
    /// Number of the last line read, from 1 on.
    line: u64,
    buffer: Vec<u8>,
}

impl<R: Read> JsonLines<R> {
    pub(crate) fn new(path: &Path, input: R) -> Self {
        Self { path: path.to_owned(), input: BufReader::with_capacity(1 << 18, input), line: 0, buffer: Vec::new() }
    }

    /// Returns the next text and the bytes of the file up to its end; `None` at the end of the file.
    pub(crate) fn next(&mut self) -> Result<Option<(Cow<'_, str>, u64)>, DataError> {
        let mut bytes = 0;
        loop {
            self.buffer.clear();
            self.line += 1;
            let read = (&mut self.input).take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut self.buffer);
            let read = read.map_err(|source| DataError::Read { path: self.path.clone(), source })? as u64;
            bytes += read;
            if read == 0 {
                return Ok(None);
            }
            if read > MAX_LINE_BYTES {
                return Err(self.problem(JsonLineProblem::TooLong));
            }
            if !self.buffer.trim_ascii().is_empty() {
                break;
            }
        }
        match serde_json::from_slice::<Line<'_>>(&self.buffer) {
            Ok(Line { text }) => Ok(Some((text, bytes))),
            Err(error) => {
                let (path, line) = (self.path.clone(), self.line);
                Err(DataError::JsonLine { path, line, problem: JsonLineProblem::Invalid(error) })
            }
        }
    }

    /// Returns the source, of which everything was read after [`JsonLines::next`] returned `None`.
    pub(crate) fn into_inner(self) -> R {
        self.input.into_inner()
    }

    fn problem(&self, problem: JsonLineProblem) -> DataError {
        DataError::JsonLine { path: self.path.clone(), line: self.line, problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(content: &str) -> Result<Vec<String>, String> {
        let mut lines = JsonLines::new(Path::new("a.jsonl"), content.as_bytes());
        let (mut texts, mut bytes) = (Vec::new(), 0);
        while let Some((text, read)) = lines.next().map_err(|error| error.to_string())? {
            texts.push(text.into_owned());
            bytes += read;
        }
        assert!(bytes <= content.len() as u64);
        Ok(texts)
    }

    #[test]
    fn lines_are_texts_and_mistakes_are_named_by_line() {
        let content =
            "{\"text\": \"one\\n\\u00e9\", \"id\": [1]}\n\n  \n{\"id\": {}, \"text\": \"\"}\r\n{\"text\":\"two\"}";
        assert_eq!(texts(content).unwrap(), ["one\né", "", "two"]);
        assert_eq!(texts("").unwrap(), [""; 0]);
        for (content, says) in [
            ("{\"text\": \"a\"}\n{\"txt\": \"b\"}", "line 2 of a.jsonl is not an object with a string `text`"),
            ("{\"text\": 3}", "line 1"),
            ("\n[\"text\"", "line 2"),
            ("{\"text\": \"a\"} {\"text\": \"b\"}", "trailing"),
            ("{\"text\": \"a\", \"text\": \"b\"}", "duplicate"),
        ] {
            let error = texts(content).unwrap_err();
            assert!(error.contains(says), "{content}: {error}");
        }
    }
}
