//! Opens databases.

use std::sync::Arc;
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::migrate::MigrateError;
use sqlx::{AnyConnection, AnyPool, ConnectOptions, Connection};
use tokio::sync::broadcast;
use tokio::time::timeout;

use crate::changes::BEHIND_MAX;
use crate::error::{Answer, Error, Result};
use crate::location::Location;
use crate::{Inner, Store, migrations};

/// Time to wait for a connection, for the write of another process, and for a server to respond.
const PATIENCE: Duration = Duration::from_secs(10);

/// FULL: a commit syncs the write-ahead log to disk. The time is [`PATIENCE`], in ms.
const WRITER: &str =
    "PRAGMA busy_timeout = 10000; PRAGMA foreign_keys = ON; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL";
const READER: &str = "PRAGMA busy_timeout = 10000; PRAGMA query_only = ON";

/// Queries for the bytes of a database.
const SQLITE_SIZE: &str = "SELECT page_count * page_size AS bytes FROM pragma_page_count, pragma_page_size";
const SERVER_SIZE: &str = "SELECT pg_database_size(current_database()) AS bytes";

/// Options of a database.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of reading connections to a SQLite file, or of all connections to PostgreSQL. At least 1.
    pub connections: u32,
    /// Validity of an idempotency key, from the creation of its job.
    pub key_life: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { connections: 8, key_life: Duration::from_secs(24 * 60 * 60) }
    }
}

impl Store {
    /// Opens a database and migrates its schema.
    ///
    /// `url` is one of `sqlite:PATH` and `sqlite://PATH`, with a plain path; `sqlite::memory:`, for tests;
    /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, with parameters of libpq such as `sslmode`. A missing file is
    /// created, with access for this user only; its directory must exist.
    ///
    /// # Errors
    /// [`Error::Url`], [`Error::NoDirectory`], [`Error::Unwritable`], [`Error::NotADatabase`], [`Error::Newer`],
    /// [`Error::Migration`], [`Error::Unreachable`].
    pub async fn open(url: &str, options: Options) -> Result<Self> {
        sqlx::any::install_default_drivers();
        let location = Location::parse(url)?;
        let connect = location.prepare()?.disable_statement_logging();
        knock(&connect, &location).await?;
        let write = writers(&location, options).connect_lazy_with(connect.clone());
        migrate(&write, &location).await?;
        let (read, begin, size) = match location {
            Location::File(_) => (readers(options).connect_lazy_with(connect), "BEGIN IMMEDIATE", SQLITE_SIZE),
            Location::Memory => (write.clone(), "BEGIN IMMEDIATE", SQLITE_SIZE),
            Location::Server(_) => (write.clone(), "BEGIN", SERVER_SIZE),
        };
        let one_pool = !matches!(location, Location::File(_));
        let key_life_ms = options.key_life.as_millis().try_into().unwrap_or(i64::MAX);
        let (changes, _) = broadcast::channel(BEHIND_MAX);
        let inner = Inner { read, write, one_pool, size, begin, key_life_ms, location: location.to_string(), changes };
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// Opens one connection and closes it: a pool would retry errors that are permanent, and not return their cause.
async fn knock(connect: &AnyConnectOptions, location: &Location) -> Result<()> {
    let knocking = async {
        let mut connection = AnyConnection::connect_with(connect).await?;
        if let Location::File(_) = location {
            sqlx::raw_sql(WRITER).execute(&mut connection).await?;
        }
        connection.close().await
    };
    match timeout(PATIENCE, knocking).await {
        Ok(knocked) => knocked.map_err(|error| opening(error, location)),
        Err(_) => Err(location.unreachable(format!("no answer within {} seconds", PATIENCE.as_secs()))),
    }
}

/// Returns the pool of writers, with one connection for SQLite, which allows one writer: waiting in the pool's queue is
/// fairer than SQLite's retries.
fn writers(location: &Location, options: Options) -> AnyPoolOptions {
    match location {
        Location::Server(_) => {
            AnyPoolOptions::new().max_connections(options.connections.max(1)).acquire_timeout(PATIENCE)
        }
        Location::Memory => sqlite(1, WRITER),
        // If the disk is full, SQLite rolls back by itself, and the driver can't begin another transaction on this
        // connection.
        Location::File(_) => sqlite(1, WRITER)
            .after_release(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) })),
    }
}

fn readers(options: Options) -> AnyPoolOptions {
    sqlite(options.connections.max(1), READER)
}

/// Returns a pool whose connections are set up by `pragmas` and never closed: closing the only connection would delete
/// a database in memory.
fn sqlite(connections: u32, pragmas: &'static str) -> AnyPoolOptions {
    AnyPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(PATIENCE)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .after_connect(move |connection, _| {
            Box::pin(async move {
                sqlx::raw_sql(pragmas).execute(connection).await?;
                Ok(())
            })
        })
}

/// Migrates the schema over a connection of `pool`.
async fn migrate(pool: &AnyPool, location: &Location) -> Result<()> {
    let mut connection = pool.acquire().await.map_err(|error| opening(error, location))?;
    migrations::run(&mut connection).await.map_err(|error| match error {
        MigrateError::VersionMissing(found) => {
            Error::Newer { location: location.to_string(), found, known: migrations::NEWEST }
        }
        MigrateError::Execute(error) => opening(error, location),
        other => Error::Migration { location: location.to_string(), cause: other.to_string() },
    })
}

/// Converts an error of opening a database.
fn opening(error: sqlx::Error, location: &Location) -> Error {
    if let Location::Server(_) = location {
        return location.unreachable(said(&error));
    }
    match error.as_database_error().map(Answer::of) {
        Some(Answer::NotADatabase) => Error::NotADatabase { location: location.to_string() },
        Some(Answer::Unwritable) => location.unwritable(&said(&error)),
        _ => error.into(),
    }
}

/// Returns the message of the database or the system, without the text of the library around it.
fn said(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(answer) => answer.message().to_owned(),
        sqlx::Error::Io(cause) => cause.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::Columns;
    use sqlx::AssertSqlSafe;

    #[tokio::test]
    async fn a_file_is_written_so_that_a_commit_survives_a_power_cut() {
        let directory = tempfile::TempDir::new().unwrap();
        let url = format!("sqlite:{}", directory.path().join("test.db").display());
        let store = Store::open(&url, Options::default()).await.unwrap();
        let number = async |pool: &AnyPool, pragma: &'static str| {
            let row = sqlx::query(AssertSqlSafe(format!("PRAGMA {pragma}"))).fetch_one(pool).await.unwrap();
            row.number(pragma).unwrap()
        };
        let (read, write) = (&store.inner.read, &store.inner.write);
        assert_eq!(number(write, "synchronous").await, 2, "FULL");
        assert_eq!(number(write, "foreign_keys").await, 1);
        assert_eq!(number(read, "query_only").await, 1);
        let mode = sqlx::query("PRAGMA journal_mode").fetch_one(write).await.unwrap();
        assert_eq!(mode.text("journal_mode").unwrap(), "wal");
    }

    /// The handlers of a server may move between threads while they wait.
    #[test]
    fn every_call_can_be_spawned() {
        fn is_send(_: impl Send) {}
        fn all(store: &Store, job: &crate::NewJob, token: &crate::Token, event: &crate::NewEvent) {
            is_send(Store::open("", Options::default()));
            is_send((store.ping(), store.close(), store.forget(""), store.forget_before(0, 0)));
            is_send((store.create_job(job), store.put_job(job, 0), store.replace_job("", 0, &job.content)));
            is_send((store.jobs(&crate::Filter { ..Default::default() }, None, 0), store.mark_deleted("", 0)));
            is_send((store.append("", &[]), store.entries("", &crate::Query { ..Default::default() })));
            is_send((
                store.metrics("", crate::Mode::Train, 0),
                store.add_event("", event),
                store.touch_token(token, 0),
            ));
        }
        let _ = all;
    }
}
