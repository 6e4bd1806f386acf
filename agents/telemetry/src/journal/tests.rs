use std::fs;
use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::metrics_log::TrainMetrics;

fn metric(step: u64) -> JournalEvent {
    JournalEvent::Metric(
        TrainMetrics {
            step,
            loss: 0.1,
            learning_rate: 6e-4,
            grad_norm: 1.5,
            tokens: 4096,
            seconds: 0.5,
            rate: 8.0,
            skipped_batches: 0,
            metrics: [].into(),
        }
        .into(),
    )
}

fn state(state: RunPhase) -> JournalEvent {
    JournalEvent::State(super::RunState {
        state,
        step: 7,
        total_steps: Some(9),
        num_csx: 2,
        requested_csx: Some(4),
        epoch: Some("1.2".into()),
        resumed: Some(ResumePoint { step: 5, repeated_steps: 2 }),
        lost_agents: [("cs2-1".to_owned(), 1_700_000_000_000)].into(),
        slow_agents: [("cs2-0".to_owned(), SlowAgent { since_unix_ms: 1_700_000_000_000, speed_percent: 31 })].into(),
        storage_stall: Some(StorageStall { file: "m/metrics.jsonl".to_owned(), since_unix_ms: 1_700_000_000_000 }),
        note: Some("Still computing step 8 of 9: 0:00:30 so far.".to_owned()),
    })
}

fn outcome() -> JournalEvent {
    JournalEvent::Outcome(AttemptOutcome { reason: OutcomeReason::Succeeded, step: 3, ..AttemptOutcome::default() })
}

fn read_all(model_dir: &Path, from: u64) -> Vec<(u64, u64)> {
    let mut reader = JournalReader::open(model_dir, from).unwrap();
    let mut seen = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        seen.push((entry.attempt, entry.seq));
    }
    seen
}

#[test]
fn lines_as_documented() {
    let dir = tempfile::tempdir().unwrap();
    let journal = JournalWriter::open(dir.path(), 1).unwrap();
    journal.append(metric(1)).unwrap();
    journal.append(JournalEvent::Checkpoint { step: 1, digest: "ab".into() }).unwrap();
    journal.append(state(RunPhase::Evaluating)).unwrap();
    let text = fs::read_to_string(dir.path().join("journal/attempt-1.jsonl")).unwrap();
    let (header, entries) = text.split_once('\n').unwrap();
    assert_eq!(header, r#"{"journal":{"version":2}}"#);
    let events: Vec<_> = entries.lines().map(|line| line.split_once("\"event\":").unwrap().1).collect();
    assert_eq!(
        events,
        [
            r#"{"metric":{"step":1,"loss":0.1,"learning_rate":0.0006,"grad_norm":1.5,"tokens":4096,"seconds":0.5,"rate":8.0}}}"#,
            r#"{"checkpoint":{"step":1,"digest":"ab"}}}"#,
            r#"{"state":{"state":"Evaluating","step":7,"total_steps":9,"num_csx":2,"requested_csx":4,"epoch":"1.2","lost_agents":{"cs2-1":1700000000000},"slow_agents":{"cs2-0":{"since_unix_ms":1700000000000,"speed_percent":31}},"storage_stall":{"file":"m/metrics.jsonl","since_unix_ms":1700000000000},"resumed":{"step":5,"repeated_steps":2},"note":"Still computing step 8 of 9: 0:00:30 so far."}}}"#
        ]
    );
    let mut reader = JournalReader::open(dir.path(), 1).unwrap();
    assert_eq!(reader.next_entry().unwrap().unwrap().event, metric(1));
}

#[test]
fn numbers_rise_over_attempts_and_jump_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(read_all(dir.path(), 1), []);
    let journal = JournalWriter::open(dir.path(), 1).unwrap();
    for event in [state(RunPhase::Training), metric(1), outcome()] {
        journal.append(event).unwrap();
    }
    // A clean end: attempt 2 continues without a gap. It is killed while writing a line.
    let journal = JournalWriter::open(dir.path(), 2).unwrap();
    assert_eq!(journal.append(metric(2)).unwrap(), 4);
    assert_eq!(journal.append(metric(3)).unwrap(), 5);
    let mut torn = fs::OpenOptions::new().append(true).open(dir.path().join("journal/attempt-2.jsonl")).unwrap();
    torn.write_all(b"not json\n{\"seq\":6,\"att").unwrap();

    // Attempt 10 is sorted after 2 by number. A follower may have seen entry 6, so its number is not used again.
    let journal = JournalWriter::open(dir.path(), 10).unwrap();
    assert_eq!(journal.last_seq(), 5);
    let next = journal.append(state(RunPhase::Training)).unwrap();
    assert_eq!(next, 5 + MAX_UNSYNCED_ENTRIES + 1);

    let all = [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (10, next)];
    for from in [0, 1, 2, 3, 4, 5, 6, next, next + 1] {
        let expected: Vec<_> = all.into_iter().filter(|&(_, seq)| seq >= from).collect();
        assert_eq!(read_all(dir.path(), from), expected, "from {from}");
    }
    assert!(matches!(JournalWriter::open(dir.path(), 9), Err(Error::StaleAttempt { attempt: 9, newest: 10 })));
}

#[test]
fn follower_receives_each_entry_once() {
    const ENTRIES: u64 = 6000; // more than the tail holds
    let dir = tempfile::tempdir().unwrap();
    let journal = JournalWriter::open(dir.path(), 1).unwrap();
    journal.append(state(RunPhase::Training)).unwrap();
    journal.append(outcome()).unwrap();
    let journal = JournalWriter::open(dir.path(), 2).unwrap();
    let early = journal.follow(1);
    for step in 3..=ENTRIES / 2 {
        journal.append(metric(step)).unwrap();
    }
    let late = journal.follow(2500);

    let (notified, notifications) = mpsc::channel();
    let subscription = journal.subscribe(move |seq| {
        let _ = notified.send(seq);
    });
    std::thread::scope(|scope| {
        for (mut follower, mut next) in [(early, 1), (late, 2500)] {
            scope.spawn(move || {
                while next <= ENTRIES {
                    let entries = follower.wait(700, Duration::from_secs(60)).unwrap();
                    assert!(!entries.is_empty() && entries.len() <= 700);
                    for entry in entries {
                        assert_eq!(entry.seq, next);
                        next += 1;
                    }
                }
                assert!(follower.poll(1).unwrap().is_empty());
            });
        }
        for step in ENTRIES / 2 + 1..=ENTRIES {
            journal.append(metric(step)).unwrap();
        }
    });
    drop(subscription);
    journal.append(outcome()).unwrap();
    assert_eq!(notifications.iter().last(), Some(ENTRIES));
    assert!(journal.follow(ENTRIES + 2).wait(1, Duration::ZERO).unwrap().is_empty());
}

#[test]
fn new_follower_gets_newest_of_each_kind_then_new_entries() {
    let dir = tempfile::tempdir().unwrap();
    let journal = JournalWriter::open(dir.path(), 1).unwrap();
    journal.append(JournalEvent::Checkpoint { step: 1, digest: "an older attempt's".into() }).unwrap();
    journal.append(outcome()).unwrap();
    let journal = JournalWriter::open(dir.path(), 2).unwrap();
    assert_eq!(journal.follow_from_current_state().0, []);
    for event in [state(RunPhase::Starting), metric(1), state(RunPhase::Training), metric(2)] {
        journal.append(event).unwrap();
    }
    let (newest, mut follower) = journal.follow_from_current_state();
    let mut beyond = journal.follow(u64::MAX);
    let numbers: Vec<u64> = newest.iter().map(|entry| entry.seq).collect();
    assert_eq!(numbers, [5, 6]);
    assert_eq!(newest[0].event, state(RunPhase::Training));
    for follower in [&mut follower, &mut beyond] {
        assert!(follower.poll(9).unwrap().is_empty());
    }
    journal.append(metric(3)).unwrap();
    for follower in [&mut follower, &mut beyond] {
        assert_eq!(follower.poll(9).unwrap()[0].seq, 7);
    }
}

/// While the storage does not respond to a write, states are visible, and in the file afterwards.
#[test]
fn announced_entries_do_not_wait_for_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let journal = JournalWriter::open(dir.path(), 1).unwrap();
    journal.append(metric(1)).unwrap();
    let mut follower = journal.follow(1);
    // What an append does before and after its write.
    let mut file = journal.shared.file();
    let (seq, line) = journal.shared.visible().begin(1, &metric(2)).unwrap().unwrap();
    assert!(journal.announce(state(RunPhase::Training)).unwrap());
    assert!(journal.announce(state(RunPhase::Evaluating)).unwrap());
    let seen: Vec<_> = follower.poll(9).unwrap().iter().map(|entry| (entry.seq, entry.event.kind())).collect();
    assert_eq!((seq, seen), (2, vec![(1, "metric"), (2, "metric"), (3, "state"), (4, "state")]));
    assert_eq!(journal.follow_from_current_state().0.last().unwrap().event, state(RunPhase::Evaluating));
    file.file.append(&line, false).unwrap();
    journal.shared.visible().show_in_progress();
    drop(file);
    assert_eq!(journal.append(metric(5)).unwrap(), 5);
    assert_eq!(read_all(dir.path(), 1), (1..=5).map(|seq| (1, seq)).collect::<Vec<_>>());
    assert_eq!(follower.poll(9).unwrap()[0].seq, 5);

    // A write that fails in the end keeps its number.
    journal.shared.file().file.set_refusing(true);
    let mut file = journal.shared.file();
    let (_, line) = journal.shared.visible().begin(1, &metric(6)).unwrap().unwrap();
    assert!(journal.announce(state(RunPhase::Training)).unwrap());
    file.keep_unwritten(&journal.shared, &metric(6), line);
    file.file.set_refusing(false);
    drop(file);
    assert_eq!(journal.append(metric(8)).unwrap(), 8);
    assert_eq!(read_all(dir.path(), 1), (1..=8).map(|seq| (1, seq)).collect::<Vec<_>>());
    // No more are visible than the next attempt skips.
    let announced = (0..MAX_UNSYNCED_ENTRIES).filter(|_| journal.announce(state(RunPhase::Training)).unwrap()).count();
    assert_eq!(announced as u64, MAX_UNSYNCED_ENTRIES - 2, "one metric is not synced either");
}

/// If the disk is full for a while, nothing that fits into memory is lost, and numbers stay consecutive.
#[test]
fn entries_that_the_file_refuses_are_shown_and_written_later() {
    let dir = tempfile::tempdir().unwrap();
    let journal = JournalWriter::open(dir.path(), 1).unwrap();
    journal.append(state(RunPhase::Training)).unwrap();
    let mut follower = journal.follow(1);
    journal.shared.file().file.set_refusing(true);
    for step in 2..=4 {
        assert!(journal.append(metric(step)).is_err());
    }
    assert!(journal.append(state(RunPhase::Evaluating)).is_err());
    let shown: Vec<u64> = follower.poll(9).unwrap().iter().map(|entry| entry.seq).collect();
    assert_eq!((shown, journal.waiting()), (vec![1, 2, 3, 4, 5], 4));
    assert_eq!(read_all(dir.path(), 1), [(1, 1)]);

    journal.shared.file().file.set_refusing(false);
    assert_eq!(journal.append(metric(6)).unwrap(), 6);
    assert_eq!((journal.waiting(), journal.dropped()), (0, 0));
    assert_eq!(read_all(dir.path(), 1), (1..=6).map(|seq| (1, seq)).collect::<Vec<_>>());
    assert_eq!(follower.poll(9).unwrap()[0].seq, 6);
}

/// If the disk is full for long, no more entries are visible than the next attempt skips, and the journal reports the
/// gap.
#[test]
fn events_beyond_what_may_wait_are_counted_in_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let journal = JournalWriter::open(dir.path(), 1).unwrap();
    journal.append(state(RunPhase::Training)).unwrap();
    journal.shared.file().file.set_refusing(true);
    for step in 0..MAX_UNSYNCED_ENTRIES + 5 {
        assert!(journal.append(metric(step)).is_err());
    }
    let (waiting, last) = (MAX_UNSYNCED_ENTRIES - 1, journal.last_seq());
    assert_eq!((journal.waiting() as u64, last, journal.dropped()), (waiting, waiting + 1, 6));
    // If the process is killed now, its successor uses none of the numbers that were visible.
    let successor = JournalWriter::open(dir.path(), 2).unwrap();
    assert!(successor.append(metric(1)).unwrap() > last);
    drop(successor);

    journal.shared.file().file.set_refusing(false);
    let mut follower = journal.follow(last + 1);
    assert_eq!(journal.append(state(RunPhase::Evaluating)).unwrap(), last + 2);
    let entries = follower.poll(9).unwrap();
    assert_eq!(entries[0].event, JournalEvent::Dropped(Dropped { metrics: 6, ..Dropped::default() }));
    assert_eq!((entries[0].seq, entries[1].seq, journal.dropped()), (last + 1, last + 2, 6));
    let of_first: Vec<_> = read_all(dir.path(), 1).into_iter().filter(|(attempt, _)| *attempt == 1).collect();
    assert_eq!(of_first, (1..=last + 2).map(|seq| (1, seq)).collect::<Vec<_>>());
    journal.append(metric(7)).unwrap();
    assert_eq!(journal.dropped(), 6);
}

/// Returns the model_dir of a run of release 0.1.0.
fn model_dir_of_the_first_release() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/0.1.0/model_dir")
}

#[test]
fn journal_of_first_release_is_read_and_continued() {
    let mut reader = JournalReader::open(&model_dir_of_the_first_release(), 1).unwrap();
    let mut last = None;
    for number in 1..=32 {
        let entry = reader.next_entry().unwrap().unwrap();
        assert_eq!((entry.seq, entry.attempt), (number, 1));
        last = Some(entry);
    }
    assert_eq!((reader.next_entry().unwrap(), reader.skipped()), (None, 0));
    let Some(JournalEntry { event: JournalEvent::Outcome(outcome), .. }) = last else {
        panic!("it ends with an outcome")
    };
    assert_eq!((outcome.reason, outcome.step), (OutcomeReason::Succeeded, 4));

    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(JOURNAL_DIR)).unwrap();
    let file = "journal/attempt-1.jsonl";
    fs::copy(model_dir_of_the_first_release().join(file), dir.path().join(file)).unwrap();
    assert_eq!(JournalWriter::open(dir.path(), 2).unwrap().append(metric(5)).unwrap(), 33);
    assert_eq!(read_all(dir.path(), 31), [(1, 31), (1, 32), (2, 33)]);
}

#[test]
fn later_version_is_rejected_and_unknown_fields_ignored() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(JOURNAL_DIR)).unwrap();
    let path = dir.path().join("journal/attempt-1.jsonl");
    let entry =
        r#"{"seq":1,"attempt":1,"unix_ms":7,"later":{},"event":{"checkpoint":{"step":1,"digest":"ab","later":1}}}"#;
    fs::write(&path, format!("{{\"journal\":{{\"version\":2,\"later\":true}}}}\n{entry}\n")).unwrap();
    assert_eq!(read_all(dir.path(), 1), [(1, 1)]);

    fs::write(&path, format!("{{\"journal\":{{\"version\":3}}}}\n{entry}\n")).unwrap();
    for error in [JournalReader::open(dir.path(), 1).unwrap_err(), JournalWriter::open(dir.path(), 2).unwrap_err()] {
        let said = error.to_string();
        assert!(said.contains("version 3") && said.contains("up to 2") && said.contains("release"), "{said}");
    }
}

#[test]
fn followers_do_not_wait_for_the_storage() {
    let dir = tempfile::tempdir().unwrap();
    let journal = JournalWriter::open(dir.path(), 1).unwrap();
    journal.append(metric(1)).unwrap();
    let (sender, received) = mpsc::channel();
    // Locked as during a write that takes long.
    let file = journal.shared.file();
    let follower = journal.clone();
    std::thread::spawn(move || sender.send((follower.follow(1).poll(9).unwrap().len(), follower.last_seq())));
    assert_eq!(received.recv_timeout(Duration::from_secs(20)), Ok((1, 1)));
    drop(file);
}
