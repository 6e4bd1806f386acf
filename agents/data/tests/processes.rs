//! Checks that several processes and threads that need the same text at the same time tokenize it once.

use std::path::Path;
use std::process::{Command, Stdio};

use millrace_data::{CacheOutcome, Dataset, SourceKind, SourceSpec, TextFiles, TokenizerName};

/// Environment variable of a child process: the directory with the text.
const CHILD: &str = "MILLRACE_DATA_TEST_CHILD";
const PROCESSES: usize = 3;
const THREADS: usize = 2;

#[test]
fn concurrent_processes_tokenize_once() {
    if let Some(dir) = std::env::var_os(CHILD) {
        return report(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let text: String = (0..60_000u32).map(|i| format!("{} and ", i.wrapping_mul(2_654_435_761) % 5000)).collect();
    std::fs::write(dir.path().join("text"), text).unwrap();
    let children: Vec<_> = (0..PROCESSES)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["concurrent_processes_tokenize_once", "--exact", "--nocapture"])
                .env(CHILD, dir.path())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut lines = Vec::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let output = String::from_utf8(output.stdout).unwrap();
        lines.extend(output.lines().filter_map(|line| Some(line.split_once("opened: ")?.1.to_owned())));
    }
    assert_eq!(lines.len(), PROCESSES * THREADS);
    let built: Vec<&String> = lines.iter().filter(|l| l.starts_with("built ")).collect();
    assert_eq!(built.len(), 1, "{lines:?}");
    let fingerprint = built[0].trim_start_matches("built ");
    assert!(lines.iter().all(|l| l.ends_with(fingerprint)), "{lines:?}");
}

fn report(dir: &Path) {
    let spec = SourceSpec {
        cache_dir: Some(dir.join("cache")),
        ..SourceSpec::new(
            SourceKind::Text(TextFiles::new(vec![dir.join("text").display().to_string()], TokenizerName::Gpt2)),
            64,
        )
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let dataset = Dataset::open(&spec, |_, _| {}).unwrap();
                let outcome = match dataset.cache() {
                    CacheOutcome::Built => "built",
                    CacheOutcome::Hit => "hit",
                    other => panic!("{other:?}"),
                };
                println!("\nopened: {outcome} {}", blake3::Hash::from_bytes(dataset.fingerprint()));
            });
        }
    });
}
