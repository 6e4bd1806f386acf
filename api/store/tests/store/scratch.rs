//! A database for one test.

use std::env;
use std::sync::atomic::{AtomicU32, Ordering};

use millrace_store::{Store, StoreOptions};
use sqlx::{AnyConnection, AssertSqlSafe, Connection};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// An empty database, and its URL to open it again.
pub struct Scratch {
    pub store: Store,
    pub url: String,
}

impl Scratch {
    /// Opens the same database with its own connections, like another server.
    pub async fn again(&self) -> Store {
        open(&self.url).await
    }
}

pub async fn open(url: &str) -> Store {
    Store::open(url, StoreOptions::default()).await.unwrap()
}

pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Runs a test on a new file.
pub fn on_sqlite(test: impl AsyncFnOnce(&Scratch)) {
    let directory = TempDir::new().unwrap();
    let url = format!("sqlite:{}", directory.path().join("test.db").display());
    runtime().block_on(run(url, test));
}

/// Runs a test on a new schema; skips it if there is no PostgreSQL.
pub fn on_postgres(test: impl AsyncFnOnce(&Scratch)) {
    let Some(schema) = Schema::new() else { return };
    runtime().block_on(async {
        schema.make().await;
        run(schema.url.clone(), test).await;
        schema.remove().await;
    });
}

async fn run(url: String, test: impl AsyncFnOnce(&Scratch)) {
    let scratch = Scratch { store: open(&url).await, url };
    test(&scratch).await;
    scratch.store.close().await;
}

/// A schema of the test server, and the URL that selects it.
pub struct Schema {
    server: String,
    name: String,
    pub url: String,
}

impl Schema {
    /// Returns `None` if there is no server.
    pub fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let Ok(server) = env::var("MILLRACE_TEST_POSTGRES") else {
            println!("not tried on PostgreSQL: MILLRACE_TEST_POSTGRES is not set");
            return None;
        };
        let name = format!("test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let separator = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{separator}options[search_path]={name}");
        Some(Self { server, name, url })
    }

    pub async fn make(&self) {
        self.tell(format!("DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}", name = self.name)).await;
    }

    pub async fn remove(&self) {
        self.tell(format!("DROP SCHEMA {} CASCADE", self.name)).await;
    }

    async fn tell(&self, text: String) {
        sqlx::any::install_default_drivers();
        let mut connection = AnyConnection::connect(&self.server).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }
}
