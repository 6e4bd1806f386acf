//! Opens a database: connects, migrates the schema, and sets up the pools.

use std::sync::Arc;
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::migrate::MigrateError;
use sqlx::{AnyConnection, AnyPool, ConnectOptions, Connection};
use tokio::sync::broadcast;
use tokio::time::timeout;

use crate::changes::MAX_CHANGES_BEHIND;
use crate::error::{DatabaseErrorKind, Error, Result};
use crate::failures::count_failure;
use crate::location::DatabaseUrl;
use crate::{Inner, Store, migrations};

/// Time to wait for a connection, for the write of another process, and for a server to respond.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// FULL: a commit syncs the write-ahead log to disk. The time is [`CONNECTION_TIMEOUT`], in ms.
const SQLITE_WRITER_PRAGMAS: &str =
    "PRAGMA busy_timeout = 10000; PRAGMA foreign_keys = ON; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL";
const SQLITE_READER_PRAGMAS: &str = "PRAGMA busy_timeout = 10000; PRAGMA query_only = ON";

/// Queries for the bytes of a database.
const SQLITE_SIZE_QUERY: &str = "SELECT page_count * page_size AS bytes FROM pragma_page_count, pragma_page_size";
const POSTGRES_SIZE_QUERY: &str = "SELECT pg_database_size(current_database()) AS bytes";

#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Number of reading connections to a SQLite file, or of all connections to PostgreSQL. At least 1.
    pub connections: u32,
    /// Validity of an idempotency key, from the creation of its job.
    pub key_life: Duration,
}

impl Default for StoreOptions {
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
    /// [`Error::Url`], [`Error::NoDirectory`], [`Error::Unwritable`], [`Error::NotADatabase`], [`Error::SchemaTooNew`],
    /// [`Error::Migration`], [`Error::Unreachable`].
    pub async fn open(url: &str, options: StoreOptions) -> Result<Self> {
        sqlx::any::install_default_drivers();
        let location = DatabaseUrl::parse(url)?;
        let connect = location.prepare()?.disable_statement_logging();
        test_connection(&connect, &location).await?;
        let write = writers(&location, options).connect_lazy_with(connect.clone());
        migrate(&write, &location).await?;
        let (read, begin, size) = match location {
            DatabaseUrl::File(_) => (readers(options).connect_lazy_with(connect), "BEGIN IMMEDIATE", SQLITE_SIZE_QUERY),
            DatabaseUrl::Memory => (write.clone(), "BEGIN IMMEDIATE", SQLITE_SIZE_QUERY),
            DatabaseUrl::Server(_) => (write.clone(), "BEGIN", POSTGRES_SIZE_QUERY),
        };
        let one_pool = !matches!(location, DatabaseUrl::File(_));
        let key_life_ms = options.key_life.as_millis().try_into().unwrap_or(i64::MAX);
        let (changes, _) = broadcast::channel(MAX_CHANGES_BEHIND);
        let inner = Inner { read, write, one_pool, size, begin, key_life_ms, location: location.to_string(), changes };
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// Opens one connection and closes it: a pool would retry errors that are permanent, and not return their cause.
async fn test_connection(connect: &AnyConnectOptions, location: &DatabaseUrl) -> Result<()> {
    let connecting = async {
        let mut connection = AnyConnection::connect_with(connect).await?;
        if let DatabaseUrl::File(_) = location {
            sqlx::raw_sql(SQLITE_WRITER_PRAGMAS).execute(&mut connection).await?;
        }
        connection.close().await
    };
    match timeout(CONNECTION_TIMEOUT, connecting).await {
        Ok(knocked) => knocked.map_err(|error| open_error(error, location)),
        Err(_) => Err(location.unreachable(format!("no response within {} s", CONNECTION_TIMEOUT.as_secs()))),
    }
}

/// Returns the pool of writers, with one connection for SQLite, which allows one writer: waiting in the pool's queue is
/// fairer than SQLite's retries.
fn writers(location: &DatabaseUrl, options: StoreOptions) -> AnyPoolOptions {
    match location {
        DatabaseUrl::Server(_) => {
            AnyPoolOptions::new().max_connections(options.connections.max(1)).acquire_timeout(CONNECTION_TIMEOUT)
        }
        DatabaseUrl::Memory => sqlite(1, SQLITE_WRITER_PRAGMAS),
        // If the disk is full, SQLite rolls back by itself, and the driver can't begin another transaction on this
        // connection.
        DatabaseUrl::File(_) => sqlite(1, SQLITE_WRITER_PRAGMAS)
            .after_release(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) })),
    }
}

fn readers(options: StoreOptions) -> AnyPoolOptions {
    sqlite(options.connections.max(1), SQLITE_READER_PRAGMAS)
}

/// Returns a pool whose connections are set up by `pragmas` and never closed: closing the only connection would delete
/// a database in memory.
fn sqlite(connections: u32, pragmas: &'static str) -> AnyPoolOptions {
    AnyPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(CONNECTION_TIMEOUT)
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
async fn migrate(pool: &AnyPool, location: &DatabaseUrl) -> Result<()> {
    let mut connection = pool.acquire().await.map_err(|error| open_error(error, location))?;
    migrations::run(&mut connection).await.map_err(|error| match error {
        MigrateError::VersionMissing(found) => {
            Error::SchemaTooNew { location: location.to_string(), found, known: migrations::NEWEST }
        }
        MigrateError::Execute(error) => open_error(error, location),
        other => Error::Migration { location: location.to_string(), cause: other.to_string() },
    })
}

/// Converts an error of opening a database.
fn open_error(error: sqlx::Error, location: &DatabaseUrl) -> Error {
    if let DatabaseUrl::Server(_) = location {
        return location.unreachable(database_message(&error));
    }
    match error.as_database_error().map(DatabaseErrorKind::of) {
        Some(DatabaseErrorKind::NotADatabase) => Error::NotADatabase { location: location.to_string() },
        Some(DatabaseErrorKind::Unwritable) => location.unwritable(&database_message(&error)),
        _ => count_failure(error),
    }
}

/// Returns the message of the database or the system, without the text of the library around it.
fn database_message(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(answer) => answer.message().to_owned(),
        sqlx::Error::Io(cause) => cause.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Damage;
    use crate::sql::RowColumns;
    use sqlx::AssertSqlSafe;

    #[tokio::test]
    async fn commits_are_synced_to_disk() {
        let directory = tempfile::TempDir::new().unwrap();
        let url = format!("sqlite:{}", directory.path().join("test.db").display());
        let store = Store::open(&url, StoreOptions::default()).await.unwrap();
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

    #[tokio::test]
    async fn damaged_value_is_named_with_table_and_row() {
        let directory = tempfile::TempDir::new().unwrap();
        let url = format!("sqlite:{}", directory.path().join("test.db").display());
        let store = Store::open(&url, StoreOptions::default()).await.unwrap();
        let token = crate::TokenRecord {
            id: "t1".to_owned(),
            hash: "abc".to_owned(),
            name: "ci".to_owned(),
            role: "editor".to_owned(),
            namespaces: vec![],
            created_ms: 1,
            expires_ms: None,
            revoked_ms: None,
            last_used_ms: None,
        };
        assert!(store.add_token(&token).await.unwrap() && store.create_appliance("default", "{}").await.unwrap());
        for (statement, expected) in [
            (
                "UPDATE tokens SET namespaces = 'all'",
                r#"namespaces of the row of tokens with id t1 is "all", not a JSON list of namespaces"#,
            ),
            (
                "UPDATE appliances SET version = -1",
                r#"version of the row of appliances with name default is "-1", not a count"#,
            ),
        ] {
            sqlx::query(statement).execute(&store.inner.write).await.unwrap();
            let error = match store.tokens().await {
                Err(error) if statement.contains("tokens") => error,
                _ => store.appliances().await.unwrap_err(),
            };
            let Error::Damaged(damage @ Damage::Value { .. }) = error else { panic!("{error:?}") };
            assert_eq!(damage.to_string(), expected);
        }
    }

    /// The handlers of a server may move between threads while they wait.
    #[test]
    fn every_call_can_be_spawned() {
        fn is_send(_: impl Send) {}
        fn all(store: &Store, job: &crate::NewJob, token: &crate::TokenRecord, event: &crate::NewEvent) {
            is_send(Store::open("", StoreOptions::default()));
            is_send((store.ping(), store.close(), store.delete_job(""), store.delete_finished_before(0, 0)));
            is_send((store.create_job(job), store.upsert_job(job, 0), store.replace_job("", 0, &job.content)));
            is_send((store.jobs(&crate::JobFilter { ..Default::default() }, None, 0), store.mark_deleted("", 0)));
            is_send((store.append("", &[]), store.entries("", &crate::EntryQuery { ..Default::default() })));
            is_send((
                store.metrics("", crate::MetricMode::Train, 0),
                store.add_event("", event),
                store.touch_token(token, 0),
            ));
        }
        let _ = all;
    }
}
