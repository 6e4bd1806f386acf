//! Reads the texts of JSON Lines files: on each line an object with a certain key. Other keys are ignored.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

/// Maximum length of a line, which is in memory as a whole.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Why a line has no text, as the end of a sentence that names the line.
#[derive(Debug, thiserror::Error)]
pub enum JsonLineProblem {
    #[error("is not an object with a string `{key}`: {}", without_line(.source))]
    Invalid { key: String, source: serde_json::Error },
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

/// An error of a line.
#[derive(Debug, thiserror::Error)]
pub(super) enum JsonLineError {
    #[error("can't be read: {0}")]
    Read(std::io::Error),
    #[error("line {line} {problem}")]
    Problem { line: u64, problem: JsonLineProblem },
}

/// The texts of a file, one after the other.
pub(super) struct JsonLines<R> {
    input: BufReader<R>,
    key: String,
    /// Number of the last line read, from 1 on.
    line: u64,
    buffer: Vec<u8>,
}

impl<R: Read> JsonLines<R> {
    /// Reads the texts of the key `key`.
    pub fn new(input: R, key: &str) -> Self {
        let input = BufReader::with_capacity(1 << 18, input);
        Self { input, key: key.to_owned(), line: 0, buffer: Vec::new() }
    }

    /// Returns the next text; `None` at the end of the file.
    pub fn next(&mut self) -> Result<Option<Cow<'_, str>>, JsonLineError> {
        loop {
            self.buffer.clear();
            self.line += 1;
            let read = (&mut self.input).take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut self.buffer);
            match read.map_err(JsonLineError::Read)? as u64 {
                0 => return Ok(None),
                read if read > MAX_LINE_BYTES => return Err(problem(self.line, JsonLineProblem::TooLong)),
                _ if !self.buffer.trim_ascii().is_empty() => break,
                _ => {}
            }
        }
        let mut json = serde_json::Deserializer::from_slice(&self.buffer);
        let parsed = TextOfKey(&self.key).deserialize(&mut json).and_then(|text| json.end().map(|()| text));
        match parsed {
            Ok(text) => Ok(Some(text)),
            Err(source) => Err(problem(self.line, JsonLineProblem::Invalid { key: self.key.clone(), source })),
        }
    }

    /// Returns the source, of which everything was read after [`JsonLines::next`] returned `None`.
    pub fn get_ref(&self) -> &R {
        self.input.get_ref()
    }
}

fn problem(line: u64, problem: JsonLineProblem) -> JsonLineError {
    JsonLineError::Problem { line, problem }
}

/// Reads the string of one key of an object.
struct TextOfKey<'k>(&'k str);

impl<'de> DeserializeSeed<'de> for TextOfKey<'_> {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TextOfKey<'_> {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut text = None;
        while let Some(BorrowedText(key)) = map.next_key()? {
            if key != self.0 {
                map.next_value::<IgnoredAny>()?;
            } else if text.replace(map.next_value::<BorrowedText>()?.0).is_some() {
                return Err(A::Error::custom(format!("duplicate field `{}`", self.0)));
            }
        }
        text.ok_or_else(|| A::Error::custom(format!("missing field `{}`", self.0)))
    }
}

/// A string that is borrowed if it has no escapes.
#[derive(serde::Deserialize)]
struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(content: &str, key: &str) -> Result<Vec<String>, String> {
        let mut lines = JsonLines::new(content.as_bytes(), key);
        let mut texts = Vec::new();
        while let Some(text) = lines.next().map_err(|error| error.to_string())? {
            texts.push(text.into_owned());
        }
        Ok(texts)
    }

    #[test]
    fn lines_are_texts_and_mistakes_are_named_by_line() {
        let content =
            "{\"text\": \"one\\n\\u00e9\", \"id\": [1]}\n\n  \n{\"id\": {}, \"text\": \"\"}\r\n{\"text\":\"two\"}";
        assert_eq!(texts(content, "text").unwrap(), ["one\né", "", "two"]);
        assert_eq!(texts("", "text").unwrap(), [""; 0]);
        assert_eq!(texts("{\"text\": 1, \"cont\\u0065nt\": \"a\"}", "content").unwrap(), ["a"]);
        for (content, message) in [
            ("{\"text\": \"a\"}\n{\"txt\": \"b\"}", "line 2 is not an object with a string `text`: missing field"),
            ("{\"text\": 3}", "line 1"),
            ("\n[\"text\"", "line 2"),
            ("{\"text\": \"a\"} {\"text\": \"b\"}", "trailing"),
            ("{\"text\": \"a\", \"text\": \"b\"}", "duplicate"),
        ] {
            let error = texts(content, "text").unwrap_err();
            assert!(error.contains(message), "{content}: {error}");
        }
    }
}
