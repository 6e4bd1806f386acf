//! Tests of copied journals and their curves.

use std::ops::RangeInclusive;

use millrace_store::{EntryKind, EntryQuery, Error, JobContent, JournalRecord, MetricMode, Store, UNTHINNED_STEPS};

use crate::jobs::{job, make};
use crate::random::Random;
use crate::scratch::Scratch;

behaviours![
    append_is_idempotent_and_keeps_gaps,
    two_copies_at_once_make_one,
    reader_receives_requested_records,
    evaluations_of_steps_that_were_undone_are_left_out,
    curve_follows_the_newest_attempt,
    long_curve_is_thinned_between_its_ends,
    thinning_deletes_old_steps_only,
    journals_of_finished_jobs_are_deleted_first,
];

pub fn metric(number: u64, mode: MetricMode, step: u64) -> JournalRecord {
    JournalRecord {
        number,
        attempt: 1,
        at_ms: 1_700_000_000_000,
        kind: EntryKind::Metric,
        mode: Some(mode),
        step: Some(step),
        agent: None,
        level: None,
        body: format!(r#"{{"step":{step},"loss":2.5}}"#),
    }
}

fn log(number: u64, agent: &str, level: u8) -> JournalRecord {
    let (agent, level) = (Some(agent.to_owned()), Some(level));
    JournalRecord { kind: EntryKind::Log, mode: None, step: None, agent, level, ..metric(number, MetricMode::Train, 0) }
}

/// Appends a training step for each number.
pub async fn append_steps(store: &Store, uid: &str, numbers: RangeInclusive<u64>) {
    let entries = numbers.map(|number| metric(number, MetricMode::Train, number)).collect::<Vec<_>>();
    store.append(uid, &entries).await.unwrap();
}

async fn numbers(store: &Store, query: EntryQuery) -> Vec<u64> {
    store.entries("a", &query).await.unwrap().iter().map(|entry| entry.number).collect()
}

async fn append_is_idempotent_and_keeps_gaps(Scratch { store, .. }: &Scratch) {
    assert!(matches!(store.append("a", &[metric(1, MetricMode::Train, 1)]).await, Err(Error::JobNotFound(_))));
    make(store, &job("a", 1)).await;
    assert_eq!(store.newest_entry("a").await.unwrap(), 0);
    assert_eq!(store.append("a", &[]).await.unwrap(), 0);
    let some = [2, 3, 9].map(|number| metric(number, MetricMode::Train, number));
    assert_eq!(store.append("a", &some).await.unwrap(), 9);
    // An entry that fills a gap would be missed by readers that are past it.
    let more = [3, 4, 9, 11, 10, 11, 200].map(|number| metric(number, MetricMode::Train, 7));
    assert_eq!(store.append("a", &more).await.unwrap(), 200);
    assert_eq!(numbers(store, EntryQuery::default()).await, [2, 3, 9, 11, 200]);
    assert_eq!(store.newest_entry("a").await.unwrap(), 200);
    let first = &store.entries("a", &EntryQuery { limit: 1, ..EntryQuery::default() }).await.unwrap()[0];
    assert_eq!(first, &some[0], "all of it is read back");
    let far = metric(u64::MAX, MetricMode::Train, 1);
    assert!(matches!(store.append("a", &[metric(201, MetricMode::Train, 1), far]).await, Err(Error::TooLarge(..))));
    assert_eq!(store.newest_entry("a").await.unwrap(), 200, "all or nothing");
}

async fn two_copies_at_once_make_one(scratch: &Scratch) {
    make(&scratch.store, &job("a", 1)).await;
    let stores = [scratch.store.clone(), scratch.again().await];
    let copying = stores.clone().map(|store| {
        tokio::spawn(async move {
            for from in (1..400).step_by(7) {
                append_steps(&store, "a", from..=from + 9).await;
            }
        })
    });
    for copy in copying {
        copy.await.unwrap();
    }
    let read = numbers(&stores[0], EntryQuery { limit: 1000, ..EntryQuery::default() }).await;
    assert!(read.is_sorted_by(|one, next| one < next), "no number twice");
    let newest = stores[1].newest_entry("a").await.unwrap();
    assert_eq!((read.last(), read.len() as u64), (Some(&newest), newest));
    stores[1].close().await;
}

async fn reader_receives_requested_records(Scratch { store, .. }: &Scratch) {
    make(store, &job("a", 1)).await;
    let second = JournalRecord { attempt: 2, ..metric(6, MetricMode::Eval, 9) };
    let outcome = JournalRecord { kind: EntryKind::Outcome, mode: None, ..metric(7, MetricMode::Train, 9) };
    let logs = [log(2, "cs2-0", 2), log(3, "cs2-11", 4), log(4, "CS2-0", 3), log(5, "cs2x0", 3)];
    store
        .append("a", &[vec![metric(1, MetricMode::Train, 1)], logs.to_vec(), vec![second, outcome]].concat())
        .await
        .unwrap();
    let all = EntryQuery::default();
    let text = |text: &str| Some(text.to_owned());
    let asked = [
        (all.clone(), vec![1, 2, 3, 4, 5, 6, 7]),
        (EntryQuery { after: 2, limit: 3, ..all.clone() }, vec![3, 4, 5]),
        (EntryQuery { after: u64::MAX, ..all.clone() }, vec![]),
        (EntryQuery { kinds: vec![EntryKind::Metric, EntryKind::Outcome], ..all.clone() }, vec![1, 6, 7]),
        (EntryQuery { attempt: Some(2), ..all.clone() }, vec![6]),
        (EntryQuery { agent: text("cs2-0"), ..all.clone() }, vec![2]),
        (EntryQuery { role: text("cs2"), ..all.clone() }, vec![2, 3]),
        (EntryQuery { role: text("cs_"), ..all.clone() }, vec![]),
        (EntryQuery { level: Some(3), ..all.clone() }, vec![3, 4, 5]),
        (EntryQuery { mode: Some(MetricMode::Eval), ..all.clone() }, vec![6]),
        (EntryQuery { role: text("cs2"), level: Some(3), lines_only: true, ..all.clone() }, vec![1, 3, 6, 7]),
        (EntryQuery { agent: text("cs2-0"), lines_only: true, ..all.clone() }, vec![1, 2, 6, 7]),
        (EntryQuery { kinds: vec![EntryKind::Log], role: text("cs2"), level: Some(3), ..all }, vec![3]),
    ];
    for (query, expected) in asked {
        assert_eq!(numbers(store, query.clone()).await, expected, "{query:?}");
    }
}

/// Computes a curve by its definition: a point is valid unless a later one of its mode has the same or a smaller step.
/// An evaluation is also invalid if a later training step has a smaller step.
fn curve(entries: &[JournalRecord], mode: MetricMode) -> Vec<u64> {
    let replaces = |later: &JournalRecord, step| match (later.mode, mode) {
        (Some(MetricMode::Train), MetricMode::Eval) => later.step < Some(step),
        (later_mode, _) => later_mode == Some(mode) && later.step <= Some(step),
    };
    let points = entries.iter().enumerate().filter(|(_, entry)| entry.mode == Some(mode));
    let counts = |(index, entry): &(usize, &JournalRecord)| {
        !entries[index + 1..].iter().any(|later| replaces(later, entry.step.unwrap()))
    };
    points.filter(counts).map(|(_, entry)| entry.number).collect()
}

async fn evaluations_of_steps_that_were_undone_are_left_out(Scratch { store, .. }: &Scratch) {
    make(store, &job("a", 1)).await;
    let evaluated = async || {
        let points = store.metrics("a", MetricMode::Eval, 10).await.unwrap();
        points.iter().map(|entry| (entry.number, entry.step.unwrap())).collect::<Vec<_>>()
    };
    let [train, eval] = [MetricMode::Train, MetricMode::Eval];
    let first = [metric(1, train, 10), metric(2, eval, 10), metric(3, train, 20), metric(4, eval, 20)];
    store.append("a", &first).await.unwrap();
    assert_eq!(evaluated().await, [(2, 10), (4, 20)]);
    // The next attempt resumes from the checkpoint at step 10.
    store.append("a", &[metric(5, train, 11)]).await.unwrap();
    assert_eq!(evaluated().await, [(2, 10)]);
    store.append("a", &[metric(6, train, 20), metric(7, eval, 20), metric(8, train, 15)]).await.unwrap();
    assert_eq!(evaluated().await, [(2, 10)], "within one batch, too");
}

async fn curve_follows_the_newest_attempt(Scratch { store, .. }: &Scratch) {
    make(store, &job("a", 1)).await;
    let mut random = Random(18);
    let (mut entries, mut step) = (Vec::new(), 0);
    for _ in 0..40 {
        let before = entries.len();
        for _ in 0..random.below(9) {
            let number = entries.len() as u64 + 1;
            // Sometimes it returns to a checkpoint, evaluates, or logs a line.
            match random.below(12) {
                0 => step -= random.below(9).min(step),
                1 => entries.push(metric(number, MetricMode::Eval, step)),
                2 => entries.push(log(number, "cs2-0", 3)),
                _ => {
                    step += 1;
                    entries.push(metric(number, MetricMode::Train, step));
                }
            }
        }
        store.append("a", &entries[before..]).await.unwrap();
        for mode in [MetricMode::Train, MetricMode::Eval] {
            let points = store.metrics("a", mode, 10_000).await.unwrap();
            let found = points.iter().map(|entry| entry.number).collect::<Vec<_>>();
            assert_eq!(found, curve(&entries, mode), "{mode:?} after {} entries", entries.len());
        }
    }
    assert!(
        curve(&entries, MetricMode::Train).len() > 50 && !curve(&entries, MetricMode::Eval).is_empty(),
        "it was worth the while"
    );
}

async fn long_curve_is_thinned_between_its_ends(Scratch { store, .. }: &Scratch) {
    make(store, &job("a", 1)).await;
    let steps = async |most| {
        let points = store.metrics("a", MetricMode::Train, most).await.unwrap();
        points.iter().map(|entry| entry.step.unwrap()).collect::<Vec<_>>()
    };
    assert!(steps(5).await.is_empty());
    append_steps(store, "a", 7..=7).await;
    assert_eq!(steps(0).await, [7]);
    append_steps(store, "a", 8..=1007).await;
    assert_eq!(steps(5).await, [7, 257, 507, 757, 1007]);
    assert_eq!(steps(1).await, [7, 1007], "two at least");
    for most in [2, 3, 10, 333, 999, 1000] {
        let kept = steps(most).await;
        assert!(kept.len() <= most as usize && kept.len() > most as usize / 3, "{} of {most}", kept.len());
        assert_eq!((kept[0], kept[kept.len() - 1]), (7, 1007));
    }
    assert_eq!(steps(1001).await.len(), 1001);
    // Steps that are far apart cause no overflow.
    let far = (1 << 53) - 1;
    store.append("a", &[metric(2000, MetricMode::Train, far)]).await.unwrap();
    assert_eq!(steps(3).await, [7, far]);
}

/// Returns all metrics that are left of a job.
async fn metrics_left(store: &Store, uid: &str) -> Vec<JournalRecord> {
    store
        .entries(uid, &EntryQuery { kinds: vec![EntryKind::Metric], limit: u32::MAX, ..EntryQuery::default() })
        .await
        .unwrap()
}

async fn thinning_deletes_old_steps_only(Scratch { store, .. }: &Scratch) {
    const STEPS: u64 = 100_000;
    let recent = UNTHINNED_STEPS as u64;
    make(store, &job("a", 1)).await;
    make(store, &job("b", 2)).await;
    for first in (1..=STEPS).step_by(2000) {
        append_steps(store, "a", first..=first + 1999).await;
    }
    append_steps(store, "b", 1..=1000).await;
    // Repeated steps count once.
    let again = (STEPS - 999..=STEPS).map(|step| metric(step + 1000, MetricMode::Train, step)).collect::<Vec<_>>();
    store.append("a", &again).await.unwrap();
    let before = store.history_bytes().await.unwrap();
    assert!(store.thin_curves().await.unwrap() > STEPS / 2);

    let left = metrics_left(store, "a").await;
    assert!((recent as usize..3 * UNTHINNED_STEPS as usize + 1000).contains(&left.len()), "{}", left.len());
    let curve = store.metrics("a", MetricMode::Train, u32::MAX).await.unwrap();
    let steps: Vec<u64> = curve.iter().map(|point| point.step.unwrap()).collect();
    assert_eq!((steps[0], steps[steps.len() - 1]), (1, STEPS));
    assert!(steps.ends_with(&(STEPS - recent + 1..=STEPS).collect::<Vec<_>>()), "recent steps are whole");
    let gaps: Vec<u64> = steps.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(gaps.windows(2).skip(1).all(|two| two[0] >= two[1]) && gaps[1] <= 16, "gaps get smaller towards the end");
    assert_eq!(metrics_left(store, "b").await.len(), 1000, "a short curve stays as it is");
    let after = store.history_bytes().await.unwrap();
    assert!(after < before / 3, "{after} of {before}");
    assert_eq!(store.thin_curves().await.unwrap(), 0, "what is thinned stays so");

    // After more steps, the kept steps are a subset of those before.
    append_steps(store, "a", STEPS + 1001..=STEPS + 3000).await;
    store.thin_curves().await.unwrap();
    let later = store.metrics("a", MetricMode::Train, u32::MAX).await.unwrap();
    let later: Vec<u64> = later.iter().map(|point| point.step.unwrap()).filter(|step| *step <= STEPS).collect();
    assert!(later.len() < steps.len() && later.iter().all(|step| steps.contains(step)));
}

async fn journals_of_finished_jobs_are_deleted_first(Scratch { store, .. }: &Scratch) {
    for (uid, created) in [("old", 1), ("newer", 2), ("runs", 3)] {
        make(store, &job(uid, created)).await;
        let lines: Vec<JournalRecord> = (1..=1000).map(|number| log(number, "cs2-0", 2)).collect();
        store.append(uid, &lines).await.unwrap();
    }
    for (uid, finished) in [("old", 10), ("newer", 20)] {
        let over = JobContent { finished_ms: Some(finished), ..job(uid, 1).content };
        store.replace_job(uid, 1, &over).await.unwrap().unwrap();
    }
    let whole = store.history_bytes().await.unwrap();
    assert!(store.shrink_history(whole).await.unwrap().is_empty());
    assert_eq!(store.shrink_history(whole - 1).await.unwrap(), ["old"]);
    assert!(store.job("old").await.unwrap().is_some(), "the job stays");
    assert_eq!(store.newest_entry("old").await.unwrap(), 1000, "a copy does not begin anew");
    assert_eq!(store.shrink_history(whole / 6).await.unwrap(), ["newer", "runs"]);
    let left = store.entries("runs", &EntryQuery { limit: 2000, ..EntryQuery::default() }).await.unwrap();
    assert!(left.len() <= 500 && left.last().unwrap().number == 1000, "the newest lines stay");
    assert!(store.history_bytes().await.unwrap() <= whole / 6);
    store.shrink_history(0).await.unwrap();
    assert_eq!(store.history_bytes().await.unwrap(), 0);
}
