//! Tests of the store's guarantees, always on SQLite, and on PostgreSQL if `MILLRACE_TEST_POSTGRES` is its URL
//! (`tests/postgres` starts one).

/// Makes two tests of each async function over a `Scratch`, one for each database.
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
mod events_appliances_tokens;
mod jobs;
mod journal;
mod model;
mod opening;
mod random;
mod scratch;
mod speed;
