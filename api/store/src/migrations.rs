//! The schema, and how one of an earlier release becomes it.
//!
//! Each file of `migrations/` is a step, run once, in order and in a transaction. What was released is never edited: the
//! database remembers the digest of each step it has taken.

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AnyConnection, SqlSafeStr};

/// Every step: its text, named by what it does. The first is 1.
const STEPS: &[(&str, &str)] = &[
    ("initial", include_str!("../migrations/0001_initial.sql")),
    ("history", include_str!("../migrations/0002_history.sql")),
];

/// The number of the newest schema.
pub(crate) const NEWEST: i64 = STEPS.len() as i64;

/// Brings a database to the newest schema. Several servers may do so at once over PostgreSQL: it keeps them apart.
pub(crate) async fn run(on: &mut AnyConnection) -> Result<(), sqlx::migrate::MigrateError> {
    let steps = (1..).zip(STEPS).map(|(number, (name, text))| {
        Migration::new(number, (*name).into(), MigrationType::Simple, text.into_sql_str(), false)
    });
    // What `run` does, whose future can't be sent between threads for a borrowed connection.
    Migrator::with_migrations(steps.collect()).run_direct(None, on, false).await
}
