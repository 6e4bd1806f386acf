//! The migrations of the database's schema.
//!
//! Each file of `migrations/` is one migration. It runs once, in order and in a transaction. A released migration is
//! never edited: the database records the digest of each one that it has applied.

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AnyConnection, SqlSafeStr};

/// All migrations: name and text. The first has number 1.
const STEPS: &[(&str, &str)] = &[
    ("initial", include_str!("../migrations/0001_initial.sql")),
    ("history", include_str!("../migrations/0002_history.sql")),
];

/// Number of the newest schema.
pub(crate) const NEWEST: i64 = STEPS.len() as i64;

/// Migrates a database to the newest schema. Several servers may do so concurrently; a lock of PostgreSQL serializes
/// them.
pub(crate) async fn run(on: &mut AnyConnection) -> Result<(), sqlx::migrate::MigrateError> {
    let steps = (1..).zip(STEPS).map(|(number, (name, text))| {
        Migration::new(number, (*name).into(), MigrationType::Simple, text.into_sql_str(), false)
    });
    // Equivalent to `run`, whose future is not `Send` for a borrowed connection.
    Migrator::with_migrations(steps.collect()).run_direct(None, on, false).await
}
