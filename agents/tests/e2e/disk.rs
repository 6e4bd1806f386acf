//! A disk that is full: model_dir on a file system of a few hundred kilobytes, in a mount namespace of the test's own.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use super::harness::{Ended, Place};

/// Whether this machine lets a user have mount namespaces; where it does not, says that `test` is skipped.
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

/// Trains with model_dir `m` on a tmpfs of `kilobytes`; what is in it at the end lies in `kept` then.
fn train_on_a_small_disk(place: &Place, kilobytes: u32, flags: &str) -> Ended {
    fs::create_dir(place.path("m")).unwrap();
    let script = format!(
        "mount -t tmpfs -o size={kilobytes}k none m || exit 99
        {} train -p params.yaml -o m {flags}; ended=$?
        cp -r m kept && exit $ended",
        env!("CARGO_BIN_EXE_millrace-agent")
    );
    let arguments = ["--user", "--map-root-user", "--mount", "sh", "-c", &script];
    let Output { status, stdout, stderr } = place.command_of("unshare", &arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { status, stdout: text(stdout), stderr: text(stderr) }
}

/// One sentence that names a file, what is wrong, and what to do; and nobody is left.
fn failed_for_space(place: &Place, ended: &Ended) {
    let of = format!("{}\n{}", ended.stdout, ended.stderr);
    assert_eq!(ended.code(), 1, "{of}");
    let about = |line: &&str| line.starts_with("error: ") && line.to_lowercase().contains("no space");
    let error = ended.stderr.lines().find(about).unwrap_or_else(|| panic!("{of}"));
    assert!(error.contains(" m/") || error.contains("/m/"), "{error}");
    assert!(error.contains("free some") || ended.stderr.contains("\nhint: free some"), "{of}");
    assert_eq!(place.processes(), [""; 0], "{of}");
}

fn checkpoints(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("checkpoint_")).collect()
}

#[test]
fn a_checkpoint_that_does_not_fit_ends_the_run_and_older_ones_stay_whole() {
    if !may_mount("a_checkpoint_that_does_not_fit_ends_the_run_and_older_ones_stay_whole") {
        return;
    }
    let place = Place::new();
    place.params("params.yaml", &[("max_steps: 6", "max_steps: 100\n    checkpoint_steps: 1")]);
    let ended = train_on_a_small_disk(&place, 1500, "--num_csx 2");
    failed_for_space(&place, &ended);
    let left = checkpoints(&place.path("kept"));
    assert!(!left.is_empty() && left.len() < 100, "{left:?}");
    for checkpoint in left {
        // What was never finished is not there under any name.
        place.succeed(&format!("checkpoint verify kept/{checkpoint}"));
    }
    // With room again, it goes on.
    place.assert_goes_on("kept", 1, 1);
}

#[test]
fn metrics_and_events_that_do_not_fit_end_the_run() {
    if !may_mount("metrics_and_events_that_do_not_fit_end_the_run") {
        return;
    }
    let place = Place::new();
    let ended = train_on_a_small_disk(&place, 120, "--num_csx 1 --max_steps 100000");
    failed_for_space(&place, &ended);
    assert!(checkpoints(&place.path("kept")).is_empty());
    // To the last whole line.
    let lines = place.train_lines("kept");
    assert!(lines.len() > 10 && lines.iter().all(|line| line.ends_with('}')), "{lines:?}");
}
