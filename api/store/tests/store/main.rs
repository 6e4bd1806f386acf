//! What the store promises, tried on SQLite always and on PostgreSQL where `MILLRACE_TEST_POSTGRES` is its URL
//! (`tests/postgres` gives one).

/// Makes of each async function over a `Scratch` two tests, one for each database.
macro_rules! behaviours {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[test] fn $name() { crate::scratch::on_sqlite(super::$name); })*
        }
        mod postgres {
            $(#[test] fn $name() { crate::scratch::on_postgres(super::$name); })*
        }
    };
}

mod copy;
mod crash;
mod jobs;
mod journal;
mod model;
mod opening;
mod random;
mod rest;
mod scratch;
mod speed;
