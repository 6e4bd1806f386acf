//! A run whose storage stops to respond: a log is a pipe, which can't be opened until another process opens it, too.

use std::fs;
use std::path::Path;
use std::process::Command;

use millrace_telemetry::journal::{JournalEvent, JournalReader};
use millrace_telemetry::metrics_log::{self, MetricPoint};

use super::harness::TestDir;
use super::job::{Job, wait_for_state};

/// Makes every process wait that opens a file of this name, as for storage that does not respond.
fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Lets the processes continue that wait for the pipe, and frees its name for a file.
fn replace_pipe(path: &Path) {
    // Both ends are open, then nothing reads or writes the pipe any more.
    let ends = fs::File::options().read(true).write(true).open(path).unwrap();
    fs::remove_file(path).unwrap();
    drop(ends);
}

/// The journal is on the same storage, and nothing is written to it meanwhile. Its followers see the stall.
#[tokio::test(flavor = "multi_thread")]
async fn stall_is_shown_while_training_continues() {
    let place = TestDir::new();
    place.params("params.yaml", &[("log_steps: 1", "log_steps: 20"), ("eval_frequency: 2", "eval_frequency: 1000000")]);
    let mut job = Job::start(&place, 1_000_000);
    job.wait_for_step(20);
    let pipe = place.path("m/logs/attempt-1/cs2-7.log");
    make_pipe(&pipe);
    let mut entries = job.follow().await;
    job.kill("cs2-1");
    job.join("cs2-7");
    let stalled = wait_for_state(&mut entries, |state| state.storage_stall.is_some()).await;
    assert_eq!(stalled.storage_stall.unwrap().file, pipe.to_string_lossy());
    let written = |place: &TestDir| metrics_log::read(&place.path("m")).unwrap().last().map_or(0, MetricPoint::step);
    let before = written(&place);
    // A follower that connects now sees the stall, too, and agents that are lost now.
    let mut late = job.follow().await;
    wait_for_state(&mut late, |state| state.storage_stall.is_some()).await;
    job.kill("cs2-0");
    let lost = wait_for_state(&mut late, |state| state.lost_agents.contains_key("cs2-0")).await;
    assert!(lost.storage_stall.is_some() && lost.step > before, "{lost:?}");
    job.join("cs2-0");
    assert_eq!(written(&place), before, "nothing is written");

    replace_pipe(&pipe);
    let recovered = wait_for_state(&mut entries, |state| state.storage_stall.is_none()).await;
    assert!(recovered.step > lost.step, "{recovered:?}");
    let reply = job.stop().await;

    let steps: Vec<u64> = metrics_log::read(&place.path("m")).unwrap().iter().map(MetricPoint::step).collect();
    assert_eq!(steps, (1..=reply.step).collect::<Vec<u64>>());
    assert!(fs::metadata(&pipe).unwrap().len() > 0, "the log was written in the end");
    let mut journal = JournalReader::open(&place.path("m"), 1).unwrap();
    let mut count = 0;
    while let Some(entry) = journal.next_entry().unwrap() {
        count += 1;
        assert_eq!(entry.seq, count);
        assert!(!matches!(entry.event, JournalEvent::Dropped(_)), "{entry:?}");
    }
}

/// The lock of model_dir, which every checkpoint reads, is a pipe. Training continues without the checkpoint, which is
/// written once the storage responds.
#[tokio::test(flavor = "multi_thread")]
async fn checkpoint_that_stalls_is_shown_and_written_later() {
    let place = TestDir::new();
    place.params(
        "params.yaml",
        &[
            ("log_steps: 1", "log_steps: 20"),
            ("eval_frequency: 2", "eval_frequency: 1000000\n    checkpoint_steps: 100"),
        ],
    );
    let mut job = Job::start(&place, 1_000_000);
    job.wait_for_step(20);
    let pipe = place.path("m/.millrace-lock.1000000");
    make_pipe(&pipe);
    let mut entries = job.follow().await;
    let stalled = wait_for_state(&mut entries, |state| state.storage_stall.is_some()).await;
    let checkpoint = stalled.storage_stall.unwrap().file;
    let (_, step) = checkpoint.rsplit_once("/m/checkpoint_").unwrap();
    let step: u64 = step.parse().unwrap();
    assert_eq!((step % 100, stalled.step), (0, step), "no step begins while the directory is being created");
    job.wait_for(&format!("Step={},", step + 20));

    replace_pipe(&pipe);
    job.wait_for("Saved checkpoint");
    wait_for_state(&mut entries, |state| state.storage_stall.is_none()).await;
    let reply = job.stop().await;
    place.succeed(&format!("checkpoint verify m/checkpoint_{}", reply.step));
    let partial = fs::read_dir(place.path("m")).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().contains("partial")
    });
    assert_eq!(partial.count(), 0, "nothing is left of the checkpoint that was given up");
}
