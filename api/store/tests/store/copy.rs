//! Copies of a database that is being written to. SQLite only.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use millrace_store::{NewEvent, Store};
use sqlx::{AnyConnection, Connection, Row};

use crate::jobs::{job, make};
use crate::journal::append_steps;
use crate::scratch::{Scratch, on_sqlite, open};

/// Entries of a job's journal, written in two transactions.
const ENTRIES: u64 = 20;

/// How much of a job is written, in the order of the transactions, before the next job begins.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Written {
    Nothing,
    Job,
    HalfTheJournal,
    Journal,
    Event,
}

fn uid(number: i64) -> String {
    format!("job-{number:05}")
}

/// Writes jobs one after the other until `over`; `whole` is the number of completely written ones.
async fn write(store: &Store, whole: &AtomicI64, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let number = whole.load(Ordering::Relaxed);
        let uid = uid(number);
        make(store, &job(&uid, number)).await;
        append_steps(store, &uid, 1..=ENTRIES / 2).await;
        append_steps(store, &uid, ENTRIES / 2 + 1..=ENTRIES).await;
        let event = NewEvent { at_ms: 0, warning: false, reason: "Written".to_owned(), message: "x".repeat(1000) };
        store.add_event(&uid, &event).await.unwrap();
        whole.store(number + 1, Ordering::Relaxed);
    }
}

async fn written(store: &Store, number: i64) -> Written {
    let uid = uid(number);
    if store.job(&uid).await.unwrap().is_none() {
        return Written::Nothing;
    }
    match (store.newest_entry(&uid).await.unwrap(), store.events(&uid, 0, 2).await.unwrap().len()) {
        (0, 0) => Written::Job,
        (half, 0) if half == ENTRIES / 2 => Written::HalfTheJournal,
        (ENTRIES, 0) => Written::Journal,
        (ENTRIES, 1) => Written::Event,
        torn => panic!("{uid} has entries and events {torn:?}"),
    }
}

/// Checks that a copy is the state at some time, with at least `least` and at most `most` complete jobs.
async fn check(file: &Path, least: i64, most: i64) {
    let url = format!("sqlite:{}", file.display());
    let mut connection = AnyConnection::connect(&url).await.unwrap();
    let found = sqlx::query("PRAGMA integrity_check").fetch_all(&mut connection).await.unwrap();
    assert_eq!(found.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>(), ["ok"]);
    connection.close().await.unwrap();
    let copy = open(&url).await;
    let mut number = 0;
    while written(&copy, number).await == Written::Event {
        number += 1;
    }
    assert!((least..=most).contains(&number), "{number} jobs, written were {least} before and {most} after");
    // The next job may have been begun; nothing of a later one exists.
    assert_eq!(written(&copy, number + 1).await, Written::Nothing);
    make(&copy, &job("written-to-the-copy", 0)).await;
    copy.close().await;
}

#[test]
fn copy_is_a_consistent_snapshot() {
    on_sqlite(async |scratch: &Scratch| {
        let (whole, over) = (AtomicI64::new(0), AtomicBool::new(false));
        let home = tempfile::TempDir::new().unwrap();
        let copying = async {
            // With its own connections, like the command `backup` next to a server.
            let store = scratch.again().await;
            for number in 0..5 {
                let least = whole.load(Ordering::Relaxed) + 5;
                while whole.load(Ordering::Relaxed) < least {
                    tokio::task::yield_now().await;
                }
                let file = home.path().join(format!("copy-{number}.db"));
                store.copy_to(&file).await.unwrap();
                check(&file, least, whole.load(Ordering::Relaxed) + 1).await;
                assert!(store.copy_to(&file).await.is_err(), "a file that is there is not written over");
            }
            store.close().await;
            over.store(true, Ordering::Relaxed);
        };
        tokio::join!(write(&scratch.store, &whole, &over), copying);
    });
}
