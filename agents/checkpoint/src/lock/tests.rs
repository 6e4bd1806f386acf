use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::slot::{CurrentLock, LockDraft};
use super::{LOCK_LEASE, LockError, LockRequest, ModelDirLock, slot};

fn acquire(dir: &Path, request: &LockRequest) -> Result<ModelDirLock, LockError> {
    ModelDirLock::acquire(dir, request)
}

fn lock_files(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn second_run_is_rejected_until_first_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let model_dir = dir.path().join("not/yet/there");
    let first = acquire(&model_dir, &LockRequest::local()).unwrap();
    assert_eq!((first.attempt(), first.previous()), (1, None));
    let error = acquire(&model_dir, &LockRequest::local()).unwrap_err().to_string();
    let expected = format!("model_dir {} is in use by process {} on host ", model_dir.display(), std::process::id());
    assert!(error.starts_with(&expected) && error.contains("choose another -o or wait"), "{error}");
    first.check_held().unwrap();
    drop(first);
    let second = acquire(&model_dir, &LockRequest::local()).unwrap();
    assert_eq!((second.attempt(), second.previous().map(|last| last.attempt)), (2, Some(1)));
    assert_eq!(lock_files(&model_dir), [".millrace-lock.2"]);
}

#[test]
fn racing_threads_never_hold_it_together() {
    let dir = tempfile::tempdir().unwrap();
    let (holders, acquisitions) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while acquisitions.load(Ordering::SeqCst) < 60 {
                    let Ok(lock) = acquire(dir.path(), &LockRequest::local()) else { continue };
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                    lock.check_held().unwrap();
                    acquisitions.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(holders.fetch_sub(1, Ordering::SeqCst), 1);
                }
            });
        }
    });
    // No process succeeded with a number that was used before.
    let top = slot::highest(dir.path()).unwrap().unwrap();
    assert_eq!(top.owner.unwrap().attempt, acquisitions.load(Ordering::SeqCst));
}

const CHILD_DIR: &str = "MILLRACE_TEST_LOCK_DIR";

/// Not a test: the child processes of `one_of_racing_processes_…` run it.
#[test]
#[ignore = "started by another test as a process"]
fn racing_process() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let lock = acquire(Path::new(&dir), &LockRequest::local());
    println!("\n{}", if lock.is_ok() { "held" } else { "refused" });
    // Until the parent closes the pipe, or kills it.
    let _ = std::io::stdin().read(&mut [0]);
}

fn race(dir: &Path) -> (Child, bool) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "lock::tests::racing_process", "--ignored", "--nocapture"]).env(CHILD_DIR, dir);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    (child, false)
}

#[test]
fn one_of_racing_processes_wins_and_its_death_releases_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let mut children: Vec<(Child, bool)> = (0..5).map(|_| race(dir.path())).collect();
    for (child, acquired) in &mut children {
        let out = BufReader::new(child.stdout.as_mut().unwrap());
        let answer = out.lines().map(Result::unwrap).find(|line| line == "held" || line == "refused");
        *acquired = answer.unwrap() == "held";
    }
    let winner = children.iter().position(|(_, acquired)| *acquired).unwrap();
    assert_eq!(children.iter().filter(|(_, acquired)| *acquired).count(), 1);
    let pid = children[winner].0.id();
    assert!(
        matches!(acquire(dir.path(), &LockRequest::local()), Err(LockError::InUse { owner, .. }) if owner.pid == pid)
    );
    children[winner].0.kill().unwrap();
    // Waits for the end of its output; the process may still be a zombie, which counts as ended.
    let mut rest = String::new();
    children[winner].0.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let lock = loop {
        match acquire(dir.path(), &LockRequest::local()) {
            Err(_) if Instant::now() < deadline => std::thread::yield_now(),
            lock => break lock.unwrap(),
        }
    };
    assert_eq!(lock.previous().map(|last| last.pid), Some(pid));
    for (mut child, _) in children {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}

#[test]
fn higher_attempt_takes_over_and_lower_is_fenced() {
    let dir = tempfile::tempdir().unwrap();
    let job = |uid: &str, attempt| acquire(dir.path(), &LockRequest::job(uid, attempt));
    let first = job("a", 1).unwrap();
    assert!(matches!(job("b", 9), Err(LockError::InUse { .. })));
    assert!(matches!(acquire(dir.path(), &LockRequest::next_attempt_of("a")), Err(LockError::InUse { .. })));
    let second = job("a", 2).unwrap();
    let lost = first.check_held().unwrap_err().to_string();
    assert!(lost.contains("was taken over by process") && lost.contains("(attempt 2)"), "{lost}");
    // What the old owner does while it exits does not affect the new owner's lock.
    drop(first);
    second.check_held().unwrap();
    assert!(matches!(job("a", 1), Err(LockError::Fenced { newer: 2, .. })));
    drop(second);
    assert!(matches!(job("a", 1), Err(LockError::Fenced { attempt: 1, newer: 2, .. })), "also if it is free");
    assert_eq!(acquire(dir.path(), &LockRequest::next_attempt_of("a")).unwrap().attempt(), 3);
}

#[test]
fn next_job_restarts_attempts_while_model_dir_continues() {
    let dir = tempfile::tempdir().unwrap();
    let job = |uid: &str, attempt| acquire(dir.path(), &LockRequest::job(uid, attempt));
    let counts = |lock: ModelDirLock| (lock.attempt(), lock.owner().before);
    assert_eq!(counts(job("a", 1).unwrap()), (1, 0));
    assert_eq!(counts(job("a", 4).unwrap()), (4, 0));
    let owner = ModelDirLock::last_owner(dir.path()).unwrap().unwrap();
    assert_eq!((owner.job.as_deref(), owner.attempt), (Some("a"), 4), "after it let go, too");
    assert_eq!(counts(job("b", 1).unwrap()), (5, 4));
    assert_eq!(counts(job("b", 3).unwrap()), (7, 4), "an attempt that never came this far is left out");
    assert_eq!(counts(acquire(dir.path(), &LockRequest::local()).unwrap()), (8, 7));
    assert_eq!(counts(job("b", 4).unwrap()), (12, 8), "the run between was another's");
}

#[test]
fn every_coordinator_of_an_attempt_has_a_number_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let job = |uid: &str, attempt| acquire(dir.path(), &LockRequest::job(uid, attempt));
    drop(job("a", 1).unwrap());
    let first = job("b", 1).unwrap();
    let second = job("b", 1).unwrap();
    assert!(first.check_held().is_err(), "the later process of an attempt takes over");
    assert_eq!((first.attempt(), second.attempt()), (2, 3));
    let last = [job("b", 2).unwrap(), job("b", 2).unwrap(), job("b", 5).unwrap()].map(|lock| lock.owner().clone());
    assert_eq!([last[0].attempt, last[1].attempt, last[2].attempt], [4, 5, 8]);
    let of_job: Vec<_> = (1..=8).map(|attempt| last[2].attempt_of_job(attempt)).collect();
    assert_eq!(of_job, [None, Some(1), Some(1), Some(2), Some(2), Some(3), Some(4), Some(5)]);
    assert!(matches!(job("b", 4), Err(LockError::Fenced { attempt: 4, newer: 5, .. })));
}

#[test]
fn remote_owner_expires_with_its_heartbeat() {
    let dir = tempfile::tempdir().unwrap();
    let lock = acquire(dir.path(), &LockRequest::local()).unwrap();
    drop(lock);
    // The same lock as written by another host.
    let file = dir.path().join(".millrace-lock.1");
    let mut owner = slot::highest(dir.path()).unwrap().unwrap().owner.unwrap();
    (owner.boot, owner.host) = ("elsewhere".into(), "node-7".into());
    fs::write(&file, format!("{}{}\n", slot::state_lines(false), serde_json::to_string(&owner).unwrap())).unwrap();
    let error = acquire(dir.path(), &LockRequest::local()).unwrap_err().to_string();
    assert!(error.contains("on host node-7"), "{error}");
    let expired = SystemTime::now() - LOCK_LEASE - Duration::from_secs(5);
    File::options().write(true).open(&file).unwrap().set_modified(expired).unwrap();
    assert_eq!(acquire(dir.path(), &LockRequest::local()).unwrap().previous(), Some(&owner));
}

#[test]
fn invisible_process_counts_as_dead_only_for_the_same_user() {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = acquire(dir.path(), &LockRequest::local()).unwrap().owner().clone();
    // This process id, but of a process with another start time.
    owner.started += 1;
    let now = LockDraft::new(dir.path()).unwrap();
    let check = |uid, age| {
        let touched = SystemTime::now() - age;
        let top = CurrentLock { generation: 1, released: false, owner: Some(owner.clone()), touched, uid };
        super::check_occupant(dir.path(), &LockRequest::local(), Some(&top), &now).is_ok()
    };
    assert!(check(now.uid, Duration::ZERO));
    assert!(!check(now.uid + 1, Duration::ZERO));
    assert!(check(now.uid + 1, LOCK_LEASE * 2));
}

#[test]
fn holder_refreshes_its_lock_and_garbage_is_tolerated() {
    let dir = tempfile::tempdir().unwrap();
    let lock = acquire(dir.path(), &LockRequest::local().with_lease(Duration::from_millis(60))).unwrap();
    let touched = || fs::metadata(dir.path().join(".millrace-lock.1")).unwrap().modified().unwrap();
    let (before, deadline) = (touched(), Instant::now() + Duration::from_secs(10));
    while touched() == before {
        assert!(Instant::now() < deadline, "no heartbeat");
        std::thread::yield_now();
    }
    drop(lock);
    for garbage in [b"".as_slice(), b"held    \n", b"\xff\xfe\n\n{", b"held    \nheartbeat x\n{\"token\":1}\n"] {
        fs::write(dir.path().join(".millrace-lock.9"), garbage).unwrap();
        assert!(matches!(acquire(dir.path(), &LockRequest::local()), Err(LockError::Contended { .. })));
    }
}
