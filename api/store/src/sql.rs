//! A statement with its values, and the values of a row: all that the rest of this crate sees of a database.

use std::borrow::Cow;
use std::fmt::Write;

use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Executor, Row};
use tracing::{Instrument, Span};

use crate::error::{Error, Result};

/// A value for a placeholder. PostgreSQL wants to know a NULL's type too.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(Option<String>),
    Number(Option<i64>),
}

/// One statement: `$1`, `$2`... stand for the values, in the order they are bound.
#[derive(Debug)]
pub(crate) struct Sql {
    text: Cow<'static, str>,
    values: Vec<Value>,
}

/// Begins a statement. Its text never holds anything that was not written in this crate.
pub(crate) const fn sql(text: &'static str) -> Sql {
    Sql { text: Cow::Borrowed(text), values: Vec::new() }
}

impl Sql {
    /// The value of the next placeholder that is in the text already.
    pub(crate) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }

    /// More text.
    pub(crate) fn push(mut self, text: &'static str) -> Self {
        self.text.to_mut().push_str(text);
        self
    }

    /// A placeholder more, and its value.
    pub(crate) fn value(mut self, value: impl Into<Value>) -> Self {
        self = self.bind(value);
        // Writing to a String does not fail.
        let _ = write!(self.text.to_mut(), "${}", self.values.len());
        self
    }

    /// `(a, b, c)`; of nothing `(NULL)`, which nothing is in.
    pub(crate) fn list(mut self, values: impl IntoIterator<Item = impl Into<Value>>) -> Self {
        let before = self.values.len();
        for value in values {
            let open = if self.values.len() == before { "(" } else { ", " };
            self = self.push(open).value(value);
        }
        let end = if self.values.len() == before { "(NULL)" } else { ")" };
        self.push(end)
    }

    /// A span for the statement, if it is made for a request or a visit: the copying of journals makes too many.
    fn span(&self) -> Span {
        span(self.text.split_whitespace().next().unwrap_or_default())
    }

    fn query(self) -> sqlx::query::Query<'static, Any, sqlx::any::AnyArguments> {
        let query = match self.text {
            Cow::Borrowed(text) => sqlx::query(text),
            Cow::Owned(text) => sqlx::query(AssertSqlSafe(text)),
        };
        self.values.into_iter().fold(query, |query, value| match value {
            Value::Text(text) => query.bind(text),
            Value::Number(number) => query.bind(number),
        })
    }

    /// Runs it and says how many rows it touched.
    pub(crate) async fn execute<'e>(self, on: impl Executor<'e, Database = Any>) -> Result<u64> {
        let span = self.span();
        Ok(self.query().execute(on).instrument(span).await?.rows_affected())
    }

    /// Its first row.
    pub(crate) async fn first<'e>(self, on: impl Executor<'e, Database = Any>) -> Result<Option<AnyRow>> {
        let span = self.span();
        Ok(self.query().fetch_optional(on).instrument(span).await?)
    }

    /// Its rows, each read by `read`.
    pub(crate) async fn all<'e, T>(
        self,
        on: impl Executor<'e, Database = Any>,
        read: impl Fn(&AnyRow) -> Result<T>,
    ) -> Result<Vec<T>> {
        let span = self.span();
        self.query().fetch_all(on).instrument(span).await?.iter().map(read).collect()
    }
}

/// A span for an operation of the database, as `SELECT`, within the present span; none where there is none. It has neither
/// the statement nor its values.
pub(crate) fn span(operation: &str) -> Span {
    if Span::current().is_disabled() {
        return Span::none();
    }
    tracing::info_span!("sql", otel.name = operation, otel.kind = "client", db.operation.name = operation)
}

/// Adds `rows` to a table in few statements. Each takes a power of two of them, so that there are only a few texts, which a
/// connection prepares once.
pub(crate) async fn insert<const COLUMNS: usize>(
    on: &mut sqlx::AnyConnection,
    into: &'static str,
    rows: Vec<[Value; COLUMNS]>,
) -> Result<()> {
    const MOST: usize = 64;
    let mut rows = rows.into_iter();
    while rows.len() > 0 {
        let count = 1 << rows.len().min(MOST).ilog2();
        let mut insert = sql(into).push(" VALUES ");
        for (index, row) in rows.by_ref().take(count).enumerate() {
            insert = insert.push(if index == 0 { "" } else { ", " }).list(row);
        }
        insert.execute(&mut *on).await?;
    }
    Ok(())
}

/// The values of a row, by column.
pub(crate) trait Columns {
    /// A text that is never NULL.
    fn text(&self, column: &'static str) -> Result<String>;
    /// A text, or none.
    fn maybe_text(&self, column: &'static str) -> Result<Option<String>>;
    /// A time that is never NULL, ms.
    fn time(&self, column: &'static str) -> Result<i64>;
    /// A time, ms, or none.
    fn maybe_time(&self, column: &'static str) -> Result<Option<i64>>;
    /// A count that is never NULL.
    fn number(&self, column: &'static str) -> Result<u64>;
    /// A count, or none.
    fn maybe_number(&self, column: &'static str) -> Result<Option<u64>>;
}

impl Columns for AnyRow {
    fn text(&self, column: &'static str) -> Result<String> {
        Ok(self.try_get(column)?)
    }

    fn maybe_text(&self, column: &'static str) -> Result<Option<String>> {
        Ok(self.try_get(column)?)
    }

    fn time(&self, column: &'static str) -> Result<i64> {
        Ok(self.try_get(column)?)
    }

    fn maybe_time(&self, column: &'static str) -> Result<Option<i64>> {
        Ok(self.try_get(column)?)
    }

    fn number(&self, column: &'static str) -> Result<u64> {
        unsigned(column, self.time(column)?)
    }

    fn maybe_number(&self, column: &'static str) -> Result<Option<u64>> {
        self.maybe_time(column)?.map(|number| unsigned(column, number)).transpose()
    }
}

fn unsigned(column: &str, number: i64) -> Result<u64> {
    number.try_into().map_err(|_| Error::Damaged(format!("{column} is {number}")))
}

/// The largest number that is kept: as far as every reader of JSON counts, and far from where sums overflow.
pub(crate) const LARGEST: i64 = (1 << 53) - 1;

/// `number`, which is called `what` in messages, as the database holds it.
pub(crate) fn signed(what: &'static str, number: u64) -> Result<i64> {
    let fits = i64::try_from(number).ok().filter(|number| *number <= LARGEST);
    fits.ok_or(Error::TooLarge(what, number))
}

/// How many rows a query may give: `count`, and `more`.
pub(crate) fn rows(count: u32, more: u32) -> Value {
    Value::Number(Some(i64::from(count) + i64::from(more)))
}

impl From<Option<String>> for Value {
    fn from(text: Option<String>) -> Self {
        // PostgreSQL holds no NUL; what a user typed must not decide whether a row can be written.
        Self::Text(text.map(|text| if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }))
    }
}

impl From<Option<&str>> for Value {
    fn from(text: Option<&str>) -> Self {
        text.map(str::to_owned).into()
    }
}

impl From<Option<i64>> for Value {
    fn from(number: Option<i64>) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Some(text).into()
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Some(text).into()
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Some(number).into()
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        i64::from(truth).into()
    }
}
