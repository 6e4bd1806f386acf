//! Tests of opening: creation, migration, and errors.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use millrace_store::{Error, Store, StoreOptions};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, SqlSafeStr};
use tempfile::TempDir;

use crate::jobs::{job, make};
use crate::scratch::{Scratch, open, runtime};

behaviours![every_released_schema_becomes_the_newest, schema_of_later_version_is_unchanged, closed_store_returns_error];

/// Returns the text of every migration, in order.
fn released() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let mut files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();
    files.sort();
    files.iter().map(|file| fs::read_to_string(file).unwrap()).collect()
}

/// Applies migrations to an empty database, as the release with these migrations did.
async fn migrate(on: &mut AnyConnection, texts: &[String]) {
    let steps = (1..).zip(texts).map(|(number, text)| {
        Migration::new(number, "".into(), MigrationType::Simple, AssertSqlSafe(text.clone()).into_sql_str(), false)
    });
    Migrator::with_migrations(steps.collect()).run(on).await.unwrap();
}

/// Drops all tables: the scratch database was created with the newest schema.
async fn empty(on: &mut AnyConnection) {
    for table in ["tokens", "appliances", "events", "points", "entries", "numbers", "jobs", "_sqlx_migrations"] {
        sqlx::raw_sql(AssertSqlSafe(format!("DROP TABLE {table}"))).execute(&mut *on).await.unwrap();
    }
}

async fn every_released_schema_becomes_the_newest(scratch: &Scratch) {
    let texts = released();
    for schema in 1..=texts.len() {
        let mut connection = AnyConnection::connect(&scratch.url).await.unwrap();
        empty(&mut connection).await;
        migrate(&mut connection, &texts[..schema]).await;
        let made = "INSERT INTO jobs (uid, namespace, name, created_ms, version, document) VALUES ('old', 'a', 'b', 1, 3, '{}')";
        sqlx::raw_sql(made).execute(&mut connection).await.unwrap();
        sqlx::raw_sql("INSERT INTO numbers (uid, entry, event) VALUES ('old', 7, 0)")
            .execute(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();

        let store = scratch.again().await;
        assert_eq!(store.job("old").await.unwrap().unwrap().version, 3, "of schema {schema}");
        assert_eq!(store.newest_entry("old").await.unwrap(), 7);
        make(&store, &job("new", 2)).await;
        store.close().await;
    }
}

async fn schema_of_later_version_is_unchanged(scratch: &Scratch) {
    let mut connection = AnyConnection::connect(&scratch.url).await.unwrap();
    let texts = [released(), vec!["CREATE TABLE later (a BIGINT)".to_owned()]].concat();
    migrate(&mut connection, &texts).await;
    connection.close().await.unwrap();
    let error = Store::open(&scratch.url, StoreOptions::default()).await.unwrap_err();
    let Error::SchemaTooNew { found, known, .. } = &error else { panic!("{error}") };
    assert_eq!((*found, *known), (texts.len() as i64, texts.len() as i64 - 1));
}

async fn closed_store_returns_error(scratch: &Scratch) {
    let store = scratch.again().await;
    store.ping().await.unwrap();
    store.close().await;
    assert!(matches!(store.ping().await, Err(Error::ConnectionLost(_))));
    assert!(matches!(store.create_job(&job("a", 1)).await, Err(Error::ConnectionLost(_))));
}

#[test]
fn file_is_private_and_has_every_commit() {
    let directory = TempDir::new().unwrap();
    // The path is taken literally, not as part of a URL.
    let path = directory.path().join("a b%20ü#1.db");
    runtime().block_on(async {
        let store = open(&format!("sqlite://{}", path.display())).await;
        make(&store, &job("a", 1)).await;
        for file in fs::read_dir(directory.path()).unwrap() {
            let file = file.unwrap();
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", file.file_name());
        }
        store.close().await;
        // The write-ahead log was moved into the file.
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(open(&format!("sqlite:{}", path.display())).await.job("a").await.unwrap().is_some());
    });
}

#[test]
fn memory_database_is_shared_by_all_calls() {
    runtime().block_on(async {
        let store = open("sqlite::memory:").await;
        make(&store, &job("a", 1)).await;
        let reading = (0..8).map(|_| {
            tokio::spawn({
                let store = store.clone();
                async move { store.job("a").await.unwrap().is_some() }
            })
        });
        for read in reading.collect::<Vec<_>>() {
            assert!(read.await.unwrap());
        }
        assert!(open("sqlite::memory:").await.job("a").await.unwrap().is_none());
    });
}

/// Returns the error of a URL that can't be opened.
fn refused(url: &str) -> String {
    let error = runtime().block_on(Store::open(url, StoreOptions::default())).unwrap_err();
    let text = error.to_string();
    assert!(!text.contains('\n') && !text.contains("hunter2") && !format!("{error:?}").contains("hunter2"), "{text}");
    text
}

#[test]
fn open_errors_are_one_sentence() {
    let directory = TempDir::new().unwrap();
    let inside = |name: &str| format!("sqlite:{}", directory.path().join(name).display());
    fs::write(directory.path().join("notes.txt"), "Not a database, but long enough to have a header. ".repeat(20))
        .unwrap();
    fs::create_dir(directory.path().join("folder")).unwrap();
    // A free port without a listener.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();

    let told = [
        (inside("none/test.db"), "does not exist; create it"),
        (inside("notes.txt"), "is not an SQLite database"),
        (inside("folder"), "can't be opened for writing"),
        // Not even root can create a file there.
        ("sqlite:/proc/test.db".to_owned(), "can't be opened for writing"),
        ("sqlite:".to_owned(), "has no path"),
        ("mysql://ada:hunter2@localhost/db".to_owned(), "unknown kind of database \"mysql\"; give sqlite:PATH"),
        ("hunter2".to_owned(), "unknown kind of database \"\""),
        ("postgres://ada:hunter2@local host/db".to_owned(), "can't be read"),
        (
            format!("postgres://ada:hunter2@127.0.0.1:{port}/db?password=hunter2"),
            "can't be reached: Connection refused",
        ),
    ];
    for (url, expected) in told {
        let text = refused(&url);
        assert!(text.contains(expected), "{url}: {text}");
    }
}

#[test]
fn postgres_shows_no_password() {
    let Ok(url) = std::env::var("MILLRACE_TEST_POSTGRES") else { return };
    let (before, after) = url.split_once("://").unwrap();
    let (user, host) = after.split_once('@').unwrap_or(("postgres", after));
    let user = user.split(':').next().unwrap();
    // The server may accept any password; in both cases the output must not contain it.
    let url = format!("{before}://{user}:hunter2@{host}");
    let store = runtime().block_on(Store::open(&url, StoreOptions::default()));
    let shown = store.map_or_else(|error| error.to_string(), |store| format!("{store:?}"));
    assert!(!shown.contains("hunter2") && !shown.contains('@'), "{shown}");
}
