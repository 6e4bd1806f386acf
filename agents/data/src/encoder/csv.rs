//! Reads records of CSV files, as Python's module `csv` writes them, and of files whose fields are separated by tabs.
//!
//! * A file of CSV has quoted fields, in which quotes are doubled and lines may end; a file of tabs has no quotes.
//! * The first record has the names of the columns. Rows are found by their number: their offsets are in memory.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::DataError;
use crate::token_store::TokenBytes;

/// Maximum columns of a file.
const MAX_COLUMNS: usize = 256;

/// What is wrong with a CSV file, as the end of a sentence that names the file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsvProblem {
    #[error("has no column {name:?}; its first line names {found}")]
    MissingColumn { name: &'static str, found: String },
    #[error("has no row after the names of its columns")]
    NoRows,
    #[error("has more than {MAX_COLUMNS} columns")]
    TooManyColumns,
    #[error("ends inside a quoted field that begins in row {row}")]
    OpenQuote { row: u64 },
}

/// How the fields of a record are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// By commas; fields may be quoted.
    Commas,
    /// By tabs; quotes are ordinary characters.
    Tabs,
}

/// Files with the same columns, joined in order.
pub(super) struct CsvFiles {
    files: Vec<CsvFile>,
    dialect: Dialect,
    /// Digest of the contents.
    pub digest: [u8; 32],
}

struct CsvFile {
    path: PathBuf,
    bytes: TokenBytes,
    /// Number of the first row of the next file.
    end: u64,
    /// Offset of each row, and of the end of the last one.
    offsets: Vec<usize>,
    /// Position of each requested column; `None` if the file lacks an optional one.
    columns: Vec<Option<usize>>,
}

/// A row, with its place for messages.
pub(super) struct CsvRow<'a> {
    pub path: &'a Path,
    /// Its number in the file, from 0.
    pub number: u64,
    /// The requested columns; `None` for one that the file or the row lacks.
    pub fields: Vec<Option<Cow<'a, [u8]>>>,
}

impl CsvFiles {
    /// Opens the files and finds their rows. `columns` are names of columns, and whether each is required.
    pub fn open(paths: &[PathBuf], dialect: Dialect, columns: &[(&'static str, bool)]) -> Result<Self, DataError> {
        let mut hasher = blake3::Hasher::new_derive_key("millrace CSV files, version 1");
        let mut files = Vec::with_capacity(paths.len());
        let mut end = 0_u64;
        for path in paths {
            let read = |source| DataError::Read { path: path.clone(), source };
            let problem = |problem| DataError::Csv { path: path.clone(), problem };
            let file = millrace_roots::open(path).map_err(read)?;
            if file.metadata().map_err(read)?.len() == 0 {
                return Err(problem(CsvProblem::NoRows));
            }
            let bytes = TokenBytes::map(&file).map_err(read)?;
            hasher.update(&(bytes.len() as u64).to_le_bytes()).update(&bytes);
            let mut offsets = row_offsets(&bytes, dialect).map_err(problem)?;
            if offsets.len() < 3 {
                return Err(problem(CsvProblem::NoRows));
            }
            let names = fields(&bytes[offsets[0]..offsets[1]], dialect);
            let columns = find_columns(&names, columns).map_err(problem)?;
            offsets.remove(0);
            end = end.saturating_add(offsets.len() as u64 - 1);
            files.push(CsvFile { path: path.clone(), bytes, end, offsets, columns });
        }
        if files.is_empty() {
            return Err(DataError::NoPaths);
        }
        Ok(Self { files, dialect, digest: *hasher.finalize().as_bytes() })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.files.last().map_or(0, |file| file.end)
    }

    /// Returns row `index`, which must exist.
    pub fn row(&self, index: u64) -> CsvRow<'_> {
        let file_index = self.files.partition_point(|file| file.end <= index).min(self.files.len() - 1);
        let file = &self.files[file_index];
        let first = if file_index == 0 { 0 } else { self.files[file_index - 1].end };
        let number = index - first;
        let row = number as usize;
        let record = &file.bytes[file.offsets[row]..file.offsets[row + 1]];
        let mut found: Vec<Option<Cow<'_, [u8]>>> = fields(record, self.dialect).into_iter().map(Some).collect();
        let fields = file.columns.iter().map(|column| found.get_mut((*column)?)?.take());
        CsvRow { path: &file.path, number, fields: fields.collect() }
    }
}

fn find_columns(names: &[Cow<'_, [u8]>], columns: &[(&'static str, bool)]) -> Result<Vec<Option<usize>>, CsvProblem> {
    if names.len() > MAX_COLUMNS {
        return Err(CsvProblem::TooManyColumns);
    }
    let trimmed = |name: &[u8]| String::from_utf8_lossy(name).trim_matches(['\u{feff}', ' ']).to_owned();
    let position = |wanted: &str| names.iter().position(|name| trimmed(name) == wanted);
    let column = |&(name, is_required): &(&'static str, bool)| match position(name) {
        None if is_required => {
            let names: Vec<String> = names.iter().map(|name| format!("{:?}", trimmed(name))).collect();
            let mut found = names.join(", ");
            if found.chars().count() > 200 {
                found = found.chars().take(200).chain("...".chars()).collect();
            }
            Err(CsvProblem::MissingColumn { name, found })
        }
        position => Ok(position),
    };
    columns.iter().map(column).collect()
}

/// Returns the offset of each record, and the end of the last one. Empty lines are no records.
fn row_offsets(bytes: &[u8], dialect: Dialect) -> Result<Vec<usize>, CsvProblem> {
    let mut offsets = Vec::new();
    let (mut start, mut is_quoted) = (0, false);
    let mut is_empty = true;
    for (index, byte) in bytes.iter().enumerate() {
        match byte {
            b'"' if dialect == Dialect::Commas => {
                is_quoted = !is_quoted;
                is_empty = false;
            }
            b'\n' if !is_quoted => {
                if !is_empty {
                    offsets.push(start);
                }
                (start, is_empty) = (index + 1, true);
            }
            b'\r' => {}
            _ => is_empty = false,
        }
    }
    if is_quoted {
        return Err(CsvProblem::OpenQuote { row: offsets.len().saturating_sub(1) as u64 });
    }
    if !is_empty {
        offsets.push(start);
    }
    // An empty line between two records belongs to the one before it, and is no field of it.
    offsets.push(bytes.len());
    Ok(offsets)
}

/// Returns the fields of a record.
fn fields(record: &[u8], dialect: Dialect) -> Vec<Cow<'_, [u8]>> {
    let mut end = record.len();
    while end > 0 && matches!(record[end - 1], b'\n' | b'\r') {
        end -= 1;
    }
    let record = &record[..end];
    if dialect == Dialect::Tabs {
        return record.split(|byte| *byte == b'\t').map(Cow::Borrowed).collect();
    }
    let mut found = Vec::new();
    let mut rest = record;
    loop {
        let (field, after) = first_field(rest);
        found.push(field);
        match after {
            Some(after) => rest = after,
            None => return found,
        }
    }
}

/// Returns the first field, and what follows the comma after it.
fn first_field(record: &[u8]) -> (Cow<'_, [u8]>, Option<&[u8]>) {
    let after_comma = |position: usize| record.get(position + 1..).filter(|_| record.get(position) == Some(&b','));
    if record.first() != Some(&b'"') {
        let end = record.iter().position(|byte| *byte == b',').unwrap_or(record.len());
        return (Cow::Borrowed(&record[..end]), after_comma(end));
    }
    let mut field = Vec::new();
    let mut position = 1;
    while position < record.len() {
        match (record[position], record.get(position + 1)) {
            (b'"', Some(b'"')) => {
                field.push(b'"');
                position += 2;
            }
            (b'"', _) => {
                position += 1;
                break;
            }
            (byte, _) => {
                field.push(byte);
                position += 1;
            }
        }
    }
    // Characters between the closing quote and the comma belong to the field, as for Python.
    while position < record.len() && record[position] != b',' {
        field.push(record[position]);
        position += 1;
    }
    (Cow::Owned(field), after_comma(position))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(text: &str, dialect: Dialect) -> Vec<Vec<String>> {
        let offsets = row_offsets(text.as_bytes(), dialect).unwrap();
        let record = |pair: &[usize]| {
            let all = fields(&text.as_bytes()[pair[0]..pair[1]], dialect);
            all.into_iter().map(|field| String::from_utf8(field.into_owned()).unwrap()).collect()
        };
        offsets.windows(2).map(record).collect()
    }

    #[test]
    fn records_are_those_of_python() {
        let text = "a,b\r\n\"x, \"\"y\"\"\",2\n\n\"line\nline\",\n,\"\"\n";
        assert_eq!(
            records(text, Dialect::Commas),
            [vec!["a", "b"], vec!["x, \"y\"", "2"], vec!["line\nline", ""], vec!["", ""]]
        );
        assert_eq!(records("a\tb\n\"x\ty,\"", Dialect::Tabs), [["a", "b"], ["\"x", "y,\""]]);
        let open = row_offsets(b"a,b\n1,\"2\n3,4\n", Dialect::Commas);
        assert_eq!(open, Err(CsvProblem::OpenQuote { row: 0 }));
    }

    #[test]
    fn rows_are_found_by_number_in_any_file() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let paths = [write("a.csv", "x,y\n1,2\n3,4\n"), write("b.csv", "y,x,z\n5,6,7\n8\n")];
        let files = CsvFiles::open(&paths, Dialect::Commas, &[("x", true), ("z", false)]).unwrap();
        let row = |index| {
            let row = files.row(index);
            let fields = row.fields.into_iter().map(|field| field.map(|f| String::from_utf8(f.into_owned()).unwrap()));
            (row.number, fields.collect::<Vec<_>>())
        };
        assert_eq!(files.rows(), 4);
        assert_eq!(row(1), (1, vec![Some("3".into()), None]));
        assert_eq!(row(2), (0, vec![Some("6".into()), Some("7".into())]));
        assert_eq!(row(3), (1, vec![None, None]));
        for (text, message) in [("x,y\n", "no row"), ("", "no row"), ("y\n1\n", "column \"x\""), ("x\n\"1\n", "quoted")]
        {
            let error = CsvFiles::open(&[write("bad.csv", text)], Dialect::Commas, &[("x", true)]).err().unwrap();
            assert!(error.to_string().contains(message), "{text:?}: {error}");
        }
    }
}
