//! Tests of storage that fails: model_dir is on a small file system, in the test's own mount namespace.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use millrace_telemetry::journal::{JournalEvent, JournalReader};
use millrace_telemetry::metrics_log::{self, MetricPoint};

use super::harness::{CommandOutput, TestDir};

/// Returns whether this machine permits mount namespaces for users. If not, prints that `test` is skipped.
fn may_mount(test: &str) -> bool {
    let tried = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"])
        .output();
    let allowed = tried.as_ref().is_ok_and(|output| output.status.success());
    if !allowed {
        let reason = tried.map_or_else(|e| e.to_string(), |of| String::from_utf8_lossy(&of.stderr).into_owned());
        println!("SKIPPED {test}: a tmpfs can't be mounted here: {reason}");
    }
    allowed
}

/// Trains with model_dir `m` on a tmpfs of `kilobytes`, and copies its final content to `kept`. `train` is the part of
/// the script that runs `$agent` and sets `$ended` to its exit code.
fn train_on_a_small_disk(place: &TestDir, kilobytes: u32, train: &str) -> CommandOutput {
    fs::create_dir(place.path("m")).unwrap();
    let script = format!(
        "agent={}
        mount -t tmpfs -o size={kilobytes}k none m || exit 99
        {train}
        cp -r m kept && exit $ended",
        env!("CARGO_BIN_EXE_millrace-agent")
    );
    let arguments = ["--user", "--map-root-user", "--mount", "sh", "-c", &script];
    let Output { status, stdout, stderr } = place.command_of("unshare", &arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    CommandOutput { status, stdout: text(stdout), stderr: text(stderr) }
}

fn checkpoints(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("checkpoint_")).collect()
}

/// A checkpoint needs about 500 kB, which become free only after a checkpoint has failed.
#[test]
fn checkpoint_is_written_after_disk_has_room() {
    if !may_mount("checkpoint_is_written_after_disk_has_room") {
        return;
    }
    let place = TestDir::new();
    place.params("params.yaml", &[("max_steps: 6", "max_steps: 20\n    checkpoint_steps: 5\n    max_checkpoints: 1")]);
    let train = "head -c 1100k /dev/zero > m/ballast || exit 98
        ($agent train -p params.yaml -o m --num_csx 2 > out 2> err; echo $? > code) &
        until grep -q 'could not be written' err || [ -s code ]; do sleep 0.05; done
        rm m/ballast
        wait
        ended=$(cat code); cat out; cat err >&2";
    let ended = train_on_a_small_disk(&place, 1600, train);
    let of = format!("{}\n{}", ended.stdout, ended.stderr);
    assert_eq!(ended.code(), 0, "{of}");
    let warning = ended.stderr.lines().find(|line| line.contains("could not be written"));
    let warning = warning.unwrap_or_else(|| panic!("{of}"));
    assert!(warning.to_lowercase().contains("no space") && warning.contains("retrying in 1 s"), "{warning}");
    let same = ended.stderr.lines().filter(|line| line.contains("could not be written") && line.contains("in 1 s"));
    assert_eq!(same.count(), 1, "a failure is printed once: {of}");
    assert!(ended.stdout.contains("Checkpoints are written again."), "{of}");
    assert_eq!(checkpoints(&place.path("kept")), ["checkpoint_20"], "nothing is left of those that failed");
    place.succeed("checkpoint verify kept/checkpoint_20");
    // The results are identical to those of a run that had enough space.
    place.succeed("train -p params.yaml -o roomy --num_csx 1");
    assert_eq!(place.result("kept", 20), place.result("roomy", 20));
}

/// For some time the disk has no space at all, for checkpoints, metrics, curves, journal and logs. In the end, none of
/// the measured values is missing.
#[test]
fn run_survives_temporarily_full_disk() {
    if !may_mount("run_survives_temporarily_full_disk") {
        return;
    }
    let place = TestDir::new();
    place.params(
        "params.yaml",
        &[("max_steps: 6", "max_steps: 300\n    checkpoint_steps: 100\n    max_checkpoints: 1")],
    );
    let train = "($agent train -p params.yaml -o m --num_csx 2 > out 2> err; echo $? > code) &
        until [ -s m/metrics.jsonl ] || [ -s code ]; do sleep 0.01; done
        cat /dev/zero > m/ballast
        until { grep -q 'kept in memory' err && grep -q 'retrying in' err; } || [ -s code ]; do sleep 0.05; done
        rm m/ballast
        wait
        ended=$(cat code); cat out; cat err >&2";
    let ended = train_on_a_small_disk(&place, 2000, train);
    let of = format!("{}\n{}", ended.stdout, ended.stderr);
    assert_eq!(ended.code(), 0, "{of}");
    assert_eq!(place.processes(), [""; 0], "{of}");
    assert_eq!(ended.stderr.matches("are kept in memory").count(), 1, "the warning is printed once: {of}");
    assert!(ended.stderr.contains("metrics and the journal are written again dropped=0"), "{of}");
    let steps: Vec<u64> = metrics_log::read(&place.path("kept")).unwrap().iter().map(MetricPoint::step).collect();
    assert_eq!(steps, (1..=300).collect::<Vec<u64>>());
    let mut journal = JournalReader::open(&place.path("kept"), 1).unwrap();
    let mut number = 0;
    while let Some(entry) = journal.next_entry().unwrap() {
        number += 1;
        assert_eq!(entry.seq, number, "{of}");
        assert!(!matches!(entry.event, JournalEvent::Dropped(_)), "{entry:?}");
    }
    assert_eq!(journal.skipped(), 0);
    place.succeed("train -p params.yaml -o roomy --num_csx 1");
    assert_eq!(place.result("kept", 300), place.result("roomy", 300));
}

/// For some time, model_dir is another, read-only directory for everything that is opened there.
#[test]
fn run_survives_temporarily_read_only_model_dir() {
    if !may_mount("run_survives_temporarily_read_only_model_dir") {
        return;
    }
    let place = TestDir::new();
    place.params("params.yaml", &[("max_steps: 6", "max_steps: 300\n    checkpoint_steps: 100")]);
    let train = "mkdir shadow
        ($agent train -p params.yaml -o m --num_csx 2 > out 2> err; echo $? > code) &
        until [ -s m/metrics.jsonl ] || [ -s code ]; do sleep 0.01; done
        mount --bind m shadow && mount -o remount,bind,ro shadow && mount --bind shadow m || exit 98
        until grep -q 'retrying in 2 s' err || [ -s code ]; do sleep 0.05; done
        umount m
        wait
        ended=$(cat code); cat out; cat err >&2";
    let ended = train_on_a_small_disk(&place, 8000, train);
    let of = format!("{}\n{}", ended.stdout, ended.stderr);
    assert_eq!(ended.code(), 0, "{of}");
    let warning = ended.stderr.lines().find(|line| line.contains("could not be written"));
    let warning = warning.unwrap_or_else(|| panic!("{of}"));
    assert!(warning.contains("Read-only file system") && warning.contains("retrying in 1 s"), "{warning}");
    assert!(ended.stdout.contains("Checkpoints are written again."), "{of}");
    place.succeed("checkpoint verify kept/checkpoint_300");
    place.succeed("train -p params.yaml -o writable --num_csx 1");
    assert_eq!(place.result("kept", 300), place.result("writable", 300));
}

/// The disk is full when the run begins, and has room a little later.
#[test]
fn run_waits_for_space_at_its_start() {
    if !may_mount("run_waits_for_space_at_its_start") {
        return;
    }
    let place = TestDir::new();
    let train = "cat /dev/zero > m/ballast 2> full
        ($agent train -p params.yaml -o m --num_csx 2 > out 2> err; echo $? > code) &
        until grep -q 'for space' err || [ -s code ]; do sleep 0.05; done
        rm m/ballast
        wait
        ended=$(cat code); cat out; cat err >&2";
    let ended = train_on_a_small_disk(&place, 2000, train);
    let of = format!("{}\n{}", ended.stdout, ended.stderr);
    assert_eq!(ended.code(), 0, "{of}");
    assert_eq!(ended.stderr.matches("waiting up to 60 s for space").count(), 1, "{of}");
    place.succeed("train -p params.yaml -o roomy --num_csx 1");
    assert_eq!(place.result("kept", 6), place.result("roomy", 6));
}
