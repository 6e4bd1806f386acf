//! Statements with their values, and the values of rows. The rest of the crate uses databases only through this module.

use std::borrow::Cow;
use std::fmt::Write;

use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Executor, Row};
use tracing::{Instrument, Span};

use crate::error::{Damage, Error, Result};
use crate::failures::count_failure;
use crate::limits::MAX_SAFE_INTEGER;

/// A value for a placeholder. PostgreSQL requires a type for NULL, too.
#[derive(Clone, Debug)]
pub(crate) enum SqlValue {
    Text(Option<String>),
    Number(Option<i64>),
}

/// A statement. The placeholders `$1`, `$2`... stand for the values in the order in which they are bound.
#[derive(Debug)]
pub(crate) struct Sql {
    text: Cow<'static, str>,
    values: Vec<SqlValue>,
}

/// Begins a statement. Its text contains only text of this crate.
pub(crate) const fn sql(text: &'static str) -> Sql {
    Sql { text: Cow::Borrowed(text), values: Vec::new() }
}

impl Sql {
    /// Binds the value of the next placeholder that is already in the text.
    pub(crate) fn bind(mut self, value: impl Into<SqlValue>) -> Self {
        self.values.push(value.into());
        self
    }

    pub(crate) fn push(mut self, text: &'static str) -> Self {
        self.text.to_mut().push_str(text);
        self
    }

    /// Appends a placeholder and binds its value.
    pub(crate) fn value(mut self, value: impl Into<SqlValue>) -> Self {
        self = self.bind(value);
        // Writing to a String can't fail.
        let _ = write!(self.text.to_mut(), "${}", self.values.len());
        self
    }

    /// Appends `(a, b, c)`; for no values `(NULL)`, in which no value is contained.
    pub(crate) fn list(mut self, values: impl IntoIterator<Item = impl Into<SqlValue>>) -> Self {
        let before = self.values.len();
        for value in values {
            let open = if self.values.len() == before { "(" } else { ", " };
            self = self.push(open).value(value);
        }
        let end = if self.values.len() == before { "(NULL)" } else { ")" };
        self.push(end)
    }

    /// Returns a span for the statement if there is a current span, as in a request or a reconcile. The copying of
    /// journals would create too many.
    fn span(&self) -> Span {
        span(self.text.split_whitespace().next().unwrap_or_default())
    }

    fn query(self) -> sqlx::query::Query<'static, Any, sqlx::any::AnyArguments> {
        let query = match self.text {
            Cow::Borrowed(text) => sqlx::query(text),
            Cow::Owned(text) => sqlx::query(AssertSqlSafe(text)),
        };
        self.values.into_iter().fold(query, |query, value| match value {
            SqlValue::Text(text) => query.bind(text),
            SqlValue::Number(number) => query.bind(number),
        })
    }

    /// Executes it and returns the number of affected rows.
    pub(crate) async fn execute<'e>(self, on: impl Executor<'e, Database = Any>) -> Result<u64> {
        let span = self.span();
        let done = self.query().execute(on).instrument(span).await;
        Ok(done.map_err(count_failure)?.rows_affected())
    }

    pub(crate) async fn first<'e>(self, on: impl Executor<'e, Database = Any>) -> Result<Option<AnyRow>> {
        let span = self.span();
        self.query().fetch_optional(on).instrument(span).await.map_err(count_failure)
    }

    /// Returns all rows, each converted by `read`.
    pub(crate) async fn all<'e, T>(
        self,
        on: impl Executor<'e, Database = Any>,
        read: impl Fn(&AnyRow) -> Result<T>,
    ) -> Result<Vec<T>> {
        let span = self.span();
        let rows = self.query().fetch_all(on).instrument(span).await.map_err(count_failure)?;
        rows.iter().map(read).collect()
    }
}

/// Returns a span for a database operation, such as `SELECT`, below the current span; a disabled one if there is none.
/// It contains neither the statement nor its values.
pub(crate) fn span(operation: &str) -> Span {
    if Span::current().is_disabled() {
        return Span::none();
    }
    tracing::info_span!("sql", otel.name = operation, otel.kind = "client", db.operation.name = operation)
}

/// Inserts `rows` with few statements. The number of rows in each is a power of two, so that there are only a few
/// texts, which a connection prepares once.
pub(crate) async fn insert<const COLUMNS: usize>(
    on: &mut sqlx::AnyConnection,
    into: &'static str,
    rows: Vec<[SqlValue; COLUMNS]>,
) -> Result<()> {
    const MAX_ROWS_PER_INSERT: usize = 64;
    let mut rows = rows.into_iter();
    while rows.len() > 0 {
        let count = 1 << rows.len().min(MAX_ROWS_PER_INSERT).ilog2();
        let mut insert = sql(into).push(" VALUES ");
        for (index, row) in rows.by_ref().take(count).enumerate() {
            insert = insert.push(if index == 0 { "" } else { ", " }).list(row);
        }
        insert.execute(&mut *on).await?;
    }
    Ok(())
}

/// Reads the values of a row by column.
pub(crate) trait RowColumns {
    /// Returns a text that is never NULL.
    fn text(&self, column: &'static str) -> Result<String>;
    /// Returns a text; `None` for NULL.
    fn maybe_text(&self, column: &'static str) -> Result<Option<String>>;
    /// Returns a time that is never NULL, in ms.
    fn time(&self, column: &'static str) -> Result<i64>;
    /// Returns a time in ms; `None` for NULL.
    fn maybe_time(&self, column: &'static str) -> Result<Option<i64>>;
    /// Returns a count that is never NULL.
    fn number(&self, column: &'static str) -> Result<u64>;
    /// Returns a count; `None` for NULL.
    fn maybe_number(&self, column: &'static str) -> Result<Option<u64>>;
}

impl RowColumns for AnyRow {
    fn text(&self, column: &'static str) -> Result<String> {
        self.try_get(column).map_err(count_failure)
    }

    fn maybe_text(&self, column: &'static str) -> Result<Option<String>> {
        self.try_get(column).map_err(count_failure)
    }

    fn time(&self, column: &'static str) -> Result<i64> {
        self.try_get(column).map_err(count_failure)
    }

    fn maybe_time(&self, column: &'static str) -> Result<Option<i64>> {
        self.try_get(column).map_err(count_failure)
    }

    fn number(&self, column: &'static str) -> Result<u64> {
        unsigned(self, column, self.time(column)?)
    }

    fn maybe_number(&self, column: &'static str) -> Result<Option<u64>> {
        self.maybe_time(column)?.map(|number| unsigned(self, column, number)).transpose()
    }
}

fn unsigned(row: &AnyRow, column: &'static str, number: i64) -> Result<u64> {
    number.try_into().map_err(|_| damaged_value(row, column, number, "a count"))
}

/// Columns of which one identifies a row.
const KEY_COLUMNS: [&str; 4] = ["uid", "id", "number", "name"];

/// Returns the error of a value that this program can't have written; [`Error::in_table`] adds the table.
pub(crate) fn damaged_value(row: &AnyRow, column: &'static str, found: impl ToString, expected: &'static str) -> Error {
    let value = |key: &str| row.try_get(key).or_else(|_| row.try_get::<i64, _>(key).map(|number| number.to_string()));
    let key = KEY_COLUMNS.into_iter().find_map(|key| Some(format!("{key} {}", value(key).ok()?)));
    Error::Damaged(Damage::Value {
        table: "a table",
        row: key.unwrap_or_else(|| "no key".to_owned()),
        column,
        found: found.to_string(),
        expected,
        source: None,
    })
}

/// Converts `number` for the database; `what` names it in the error.
pub(crate) fn signed(name: &'static str, number: u64) -> Result<i64> {
    let fits = i64::try_from(number).ok().filter(|number| *number <= MAX_SAFE_INTEGER);
    fits.ok_or(Error::TooLarge(name, number))
}

/// Returns the LIMIT of a query, `count` + `more`.
pub(crate) fn rows(count: u32, more: u32) -> SqlValue {
    SqlValue::Number(Some(i64::from(count) + i64::from(more)))
}

impl From<Option<String>> for SqlValue {
    fn from(text: Option<String>) -> Self {
        // PostgreSQL can't store NUL; whether a row can be written must not depend on the input of users.
        Self::Text(text.map(|text| if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }))
    }
}

impl From<Option<&str>> for SqlValue {
    fn from(text: Option<&str>) -> Self {
        text.map(str::to_owned).into()
    }
}

impl From<Option<i64>> for SqlValue {
    fn from(number: Option<i64>) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for SqlValue {
    fn from(text: &str) -> Self {
        Some(text).into()
    }
}

impl From<String> for SqlValue {
    fn from(text: String) -> Self {
        Some(text).into()
    }
}

impl From<&String> for SqlValue {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<i64> for SqlValue {
    fn from(number: i64) -> Self {
        Some(number).into()
    }
}

impl From<bool> for SqlValue {
    fn from(truth: bool) -> Self {
        i64::from(truth).into()
    }
}
