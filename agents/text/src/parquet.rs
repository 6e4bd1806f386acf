//! Reads the texts of a column of a Parquet file.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

/// Texts read at once.
const BATCH_ROWS: usize = 256;

/// Why a Parquet file has no texts, as the end of a sentence that names the file.
#[derive(Debug, thiserror::Error)]
pub enum ParquetProblem {
    #[error("is not a Parquet file, or damaged: {0}")]
    Damaged(ParquetError),
    #[error("has no column `{key}`, but {columns}")]
    NoColumn { key: String, columns: String },
    #[error("has no texts in column `{0}`, but other values")]
    NoTexts(String),
    #[error("has a text in column `{key}` that is not UTF-8, in rows {first} to {last}")]
    InvalidUtf8 { key: String, first: u64, last: u64 },
    /// The library panicked, which it does for some damaged files.
    #[error("is damaged")]
    Inconsistent,
}

impl ParquetProblem {
    /// Returns what the user can do about the problem.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::NoColumn { .. } | Self::NoTexts(_) => "name the column with text_key",
            Self::Damaged(_) | Self::Inconsistent => "write it again, compressed by snappy or gzip, or not at all",
            Self::InvalidUtf8 { .. } => "convert the column to UTF-8",
        }
    }
}

impl From<ParquetError> for ParquetProblem {
    fn from(error: ParquetError) -> Self {
        Self::Damaged(error)
    }
}

/// The texts of a file, in batches.
pub struct ParquetTexts {
    reader: SerializedFileReader<File>,
    key: String,
    /// Number of the column `key`.
    column: usize,
    next_group: usize,
    group: Option<ColumnReaderImpl<ByteArrayType>>,
    /// Rows read so far, with those that have no text.
    rows: u64,
}

impl ParquetTexts {
    /// Opens the column `key`.
    ///
    /// # Errors
    /// The file is not in this format, or has no such column of texts.
    pub fn open(file: File, key: &str) -> Result<Self, ParquetProblem> {
        guarded(|| {
            let reader = SerializedFileReader::new(file)?;
            let schema = reader.metadata().file_metadata().schema_descr();
            let found = schema.columns().iter().position(|column| column.path().string() == key);
            let Some(column) = found else {
                let names: Vec<String> = schema.columns().iter().map(|column| column.path().string()).collect();
                return Err(ParquetProblem::NoColumn { key: key.to_owned(), columns: names.join(", ") });
            };
            if schema.column(column).max_rep_level() > 0
                || schema.column(column).physical_type() != parquet::basic::Type::BYTE_ARRAY
            {
                return Err(ParquetProblem::NoTexts(key.to_owned()));
            }
            Ok(Self { key: key.to_owned(), column, next_group: 0, group: None, rows: 0, reader })
        })
    }

    /// Returns the next texts; rows without one are omitted. `None` at the end.
    ///
    /// # Errors
    /// The file is damaged, or a text is not UTF-8. It can't be used further.
    pub fn next_batch(&mut self) -> Result<Option<Vec<String>>, ParquetProblem> {
        guarded(|| self.read_batch())
    }

    /// Returns the share of the rows that was read, from 0 to 1.
    pub fn progress(&self) -> f64 {
        let rows = self.reader.metadata().file_metadata().num_rows().max(1) as f64;
        (self.rows as f64 / rows).min(1.0)
    }

    fn read_batch(&mut self) -> Result<Option<Vec<String>>, ParquetProblem> {
        loop {
            let Some(group) = &mut self.group else {
                if self.next_group == self.reader.num_row_groups() {
                    return Ok(None);
                }
                self.group = Some(self.open_group(self.next_group)?);
                self.next_group += 1;
                continue;
            };
            let (mut texts, mut levels): (Vec<ByteArray>, Vec<i16>) = (Vec::new(), Vec::new());
            let (rows, ..) = group.read_records(BATCH_ROWS, Some(&mut levels), None, &mut texts)?;
            if rows == 0 {
                self.group = None;
                continue;
            }
            let first = self.rows + 1;
            self.rows += rows as u64;
            let decode = |text: ByteArray| {
                let text = text.as_utf8().map(str::to_owned);
                text.map_err(|_| ParquetProblem::InvalidUtf8 { key: self.key.clone(), first, last: self.rows })
            };
            return texts.into_iter().map(decode).collect::<Result<_, _>>().map(Some);
        }
    }

    fn open_group(&self, index: usize) -> Result<ColumnReaderImpl<ByteArrayType>, ParquetProblem> {
        match self.reader.get_row_group(index)?.get_column_reader(self.column)? {
            ColumnReader::ByteArrayColumnReader(reader) => Ok(reader),
            _ => Err(ParquetProblem::NoTexts(self.key.clone())),
        }
    }
}

/// Calls the library, and converts a panic to a problem: the file is input.
fn guarded<T>(call: impl FnOnce() -> Result<T, ParquetProblem>) -> Result<T, ParquetProblem> {
    // After a panic the reader is not used again.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(ParquetProblem::Inconsistent))
}
