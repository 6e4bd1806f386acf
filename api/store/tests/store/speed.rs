//! Benchmarks of the store. They print numbers and have no bounds:
//! `cargo test --release -p millrace-store --test store speed -- --ignored --nocapture --test-threads 1`

use std::time::Instant;

use millrace_store::{EntryKind, EntryQuery, MetricMode};

use crate::jobs::{content, job, make};
use crate::journal::metric;
use crate::scratch::{Scratch, on_postgres, on_sqlite};

#[test]
#[ignore = "measures"]
fn sqlite() {
    on_sqlite(measure);
}

#[test]
#[ignore = "measures"]
fn postgres() {
    on_postgres(measure);
}

async fn measure(Scratch { store, .. }: &Scratch) {
    make(store, &job("a", 1)).await;
    let batch = |from: u64, count: u64| {
        let body = r#"{"step":1,"loss":5.560123,"learning_rate":0.0006,"grad_norm":1.25,"tokens":4096,"seconds":0.42,"rate":1.9}"#;
        let entries = (from..from + count).map(|number| {
            let entry = metric(number, MetricMode::Train, number);
            millrace_store::JournalRecord { body: body.to_owned(), ..entry }
        });
        entries.collect::<Vec<_>>()
    };
    let begun = Instant::now();
    for number in 0..100 {
        store.append("a", &batch(1 + number * 100, 100)).await.unwrap();
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("100 entries at a time: {:.0} batches/s, {:.0} entries/s", 100. / seconds, 10_000. / seconds);

    let begun = Instant::now();
    for number in 0..199 {
        store.append("a", &batch(10_001 + number * 5000, 5000)).await.unwrap();
    }
    println!("to 1,005,000 entries, 5000 at a time: {:.1} s", begun.elapsed().as_secs_f64());

    let begun = Instant::now();
    assert!(store.metrics("a", MetricMode::Train, 500).await.unwrap().len() <= 500);
    println!("500 points of them: {:.0} ms", begun.elapsed().as_secs_f64() * 1e3);

    let begun = Instant::now();
    let page = EntryQuery { after: 900_000, kinds: vec![EntryKind::Metric], ..EntryQuery::default() };
    assert_eq!(store.entries("a", &page).await.unwrap().len(), 100);
    println!("a page: {:.1} ms", begun.elapsed().as_secs_f64() * 1e3);
    let begun = Instant::now();
    let none = EntryQuery { kinds: vec![EntryKind::Checkpoint, EntryKind::Outcome], ..EntryQuery::default() };
    assert!(store.entries("a", &none).await.unwrap().is_empty());
    println!("a page of rare kinds: {:.1} ms", begun.elapsed().as_secs_f64() * 1e3);

    let begun = Instant::now();
    for version in 1..=100 {
        store.replace_job("a", version, &content(&"x".repeat(10_000), None)).await.unwrap();
    }
    println!("a job of 10 kB is written in {:.1} ms", begun.elapsed().as_secs_f64() * 10.);

    let begun = Instant::now();
    store.delete_job("a").await.unwrap();
    println!("all is forgotten in {:.1} s", begun.elapsed().as_secs_f64());
}
