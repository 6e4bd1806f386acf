//! Runs every target over its committed corpus, then over mutations of it. The mutations are the same in every run,
//! because they are seeded by the target's name.
//!
//! `MILLRACE_FUZZ_SECONDS` is the time per target, one second by default. Each core runs another target. An input that
//! breaks a target remains in `target/tmp/`. Add it to the target's directory of `corpus/` with the fix.

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_fuzz::TARGETS;
use millrace_fuzz::mutate::{Random, mutated};

/// Maximum CPU time of one input in an unoptimized build.
const MAX_CPU_TIME: Duration = Duration::from_secs(10);

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let listing = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<PathBuf> = listing.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Runs an input, which is on disk meanwhile: a stack overflow leaves no other trace of it.
fn run(name: &str, target: fn(&[u8]), input: &[u8]) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
    fs::write(&path, input).unwrap();
    let began = cpu_time();
    if std::panic::catch_unwind(|| target(input)).is_err() {
        panic!("{name} panicked on {}", path.display());
    }
    let took = cpu_time().saturating_sub(began);
    assert!(took < MAX_CPU_TIME, "{name} took {took:?} on {}", path.display());
}

/// Returns the CPU time of this thread, as Linux counts it. Unlike wall time it does not depend on other programs.
fn cpu_time() -> Duration {
    let schedule = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(schedule.split(' ').next().unwrap().parse().unwrap())
}

/// Runs a target over its corpus, then over mutations of it for `duration`.
fn run_target(name: &str, target: fn(&[u8]), duration: Duration) {
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "{name} has a corpus");
    for (_, input) in &corpus {
        run(name, target, input);
    }
    let seeds: Vec<Vec<u8>> = corpus.into_iter().map(|(_, input)| input).collect();
    let (mut random, mut inputs) = (Random::new(name), 0_u64);
    let end = Instant::now() + duration;
    while Instant::now() < end {
        run(name, target, &mutated(&seeds, &mut random));
        inputs += 1;
    }
    println!("{name}: {} seeds, {inputs} mutations", seeds.len());
}

#[test]
fn no_corpus_input_panics() {
    let seconds = std::env::var("MILLRACE_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some((name, target)) = TARGETS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run_target(name, *target, Duration::from_secs(seconds));
                }
            });
        }
    });
}
