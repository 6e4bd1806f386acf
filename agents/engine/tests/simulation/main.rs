//! Simulates the five roles together, without sockets: agents and links in memory, a scheduler that delivers in any
//! order that a network may choose, crashes of any agent, slow and failing storage, the smallest
//! windows, and a toy model whose bits reveal every mistake. State machines and chunk store are those of the product.
//!
//! A run is a pure function of its seed. A failure reports the seed; `MILLRACE_SIMULATION_SEED=<n> cargo test` runs it
//! alone. `MILLRACE_SIMULATION_SEEDS=<n>` runs the first n seeds instead of [`SEEDS`], with
//! `MILLRACE_SIMULATION_FIRST=<m>` without the m before them.

mod agent;
mod coordinator;
mod invalid_frames;
mod membership;
mod model;
mod network;
mod planted;
mod random;
mod reference;
mod replicas;
mod setup;
mod shard;
mod simulation;
mod store;
mod swarm;
mod system;

use millrace_engine::coordinator::EvalPolicy;
use millrace_engine::types::Role;

use coordinator::History;
use network::Coverage;
use planted::PlantedBug;
use random::Random;
use setup::{Fault, FaultTrigger, SimulatedAttempt, SimulatedJob, SlowComponent};

/// Seeds of every run of the tests.
const SEEDS: std::ops::Range<u64> = 0..250;

fn seeds() -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    match (number("MILLRACE_SIMULATION_SEED"), number("MILLRACE_SIMULATION_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(seeds)) => (number("MILLRACE_SIMULATION_FIRST").unwrap_or(0)..seeds).collect(),
        (None, None) => SEEDS.collect(),
    }
}

/// Checks the properties that every run must have, whatever faults it had.
fn check(job: &SimulatedJob, history: &History) -> Result<(), String> {
    let policy = &job.policy;
    let every = policy.checkpoint_every;
    let due = |step: &u64| *step == policy.max_steps || every.is_some_and(|every| step.is_multiple_of(every));
    // A checkpoint that was being written when the coordinator died may be missing, and one that could not be written
    // unless it is the last.
    let skipped = |step: &u64| *step < policy.max_steps && history.unsaved.contains(step);
    let missing = (1..=policy.max_steps).filter(due).any(|step| !history.saved.contains(&step) && !skipped(&step));
    if policy.train && history.restarts == 0 && missing {
        return Err(format!("only the steps {:?} were saved", history.saved));
    }
    if policy.train && history.steps != job.reference.commits {
        return Err("not every step was reported once".to_owned());
    }
    if let Some(EvalPolicy { every, .. }) = policy.eval {
        let last = policy.max_steps;
        let due = |step: &u64| *step == last || (*step > 0 && every.is_some_and(|every| step.is_multiple_of(every)));
        let due: Vec<u64> = if policy.train { (0..=last).filter(due).collect() } else { job.evaluates.clone() };
        if !history.evaluated.keys().eq(&due) {
            return Err(format!("{:?} were evaluated, and should be {due:?}", history.evaluated));
        }
        // A run that only evaluates restarts with every coordinator.
        let times = if policy.train { 1 } else { 1 + history.restarts + history.stops };
        if history.evaluated.values().any(|evaluated| *evaluated > times) {
            return Err("one coordinator reported an evaluation twice".to_owned());
        }
    }
    Ok(())
}

fn simulate(
    seed: u64,
    job: &SimulatedJob,
    random: Random,
    next: impl FnMut(&mut Random) -> SimulatedAttempt,
) -> History {
    let result = simulation::run(job, random, next).and_then(|history| check(job, &history).map(|()| history));
    result.unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}

#[test]
fn runs_match_the_reference_bit_for_bit() {
    let (mut epochs, mut restarts, mut coverage) = (0, 0, Coverage::default());
    for seed in seeds() {
        let mut random = Random::new(seed);
        let job = SimulatedJob::new(&mut random);
        let plan = job.plan.clone();
        let history = simulate(seed, &job, random, |random| SimulatedAttempt::new(random, &plan));
        epochs += history.epochs;
        restarts += history.restarts;
        coverage += history.coverage;
    }
    println!("{epochs} epochs, {restarts} coordinators replaced, {coverage:?}");
    if seeds().len() > 1 {
        let Coverage { committed_in_snapshots, copied_for_snapshots, waited_for_copies, .. } = coverage;
        let failures = [coverage.failed_writes, coverage.restored_steps, coverage.skipped_batches, coverage.resizes];
        let failures = failures.into_iter().chain([coverage.copied_replicas, coverage.damaged_loads]);
        let all = [committed_in_snapshots, copied_for_snapshots, waited_for_copies].into_iter().chain(failures);
        assert!(all.clone().all(|times| times >= 10), "the seeds no longer cover the store: {coverage:?}");
    }
}

/// Checks the simulation itself: a bug of the agents is found within the first seeds.
#[test]
fn planted_bugs_are_found() {
    for bug in PlantedBug::ALL {
        let is_found = |seed: &u64| {
            let mut random = Random::new(*seed);
            let job = SimulatedJob { planted: Some(bug), ..SimulatedJob::new(&mut random) };
            let plan = job.plan.clone();
            let result = simulation::run(&job, random, |random| SimulatedAttempt::new(random, &plan));
            result.and_then(|history| check(&job, &history)).is_err()
        };
        let seed = SEEDS.clone().find(is_found);
        println!("{bug:?}: found by seed {seed:?}");
        assert!(seed.is_some(), "{bug:?} is not found");
    }
}

#[test]
fn abandoned_step_is_rerun_by_other_systems() {
    let job = SimulatedJob::small();
    let rounds = 2;
    for frames in 1..=(job.plan.up.len() * rounds) as u64 {
        for shards in 1..=2 {
            let life = SimulatedAttempt::small(3, 1, shards, &[(FaultTrigger::Gathered(2, frames), Fault::Leave)]);
            let history = simulate(frames, &job, Random::new(frames), |_| life.clone());
            assert!(history.epochs > 1, "nothing was abandoned at frame {frames}");
        }
    }
}

#[test]
fn new_coordinator_completes_a_partial_commit() {
    let job = SimulatedJob::small();
    for (shards, step, seed) in (1..=3).flat_map(|n| (2..=4).flat_map(move |step| (0..4).map(move |at| (n, step, at))))
    {
        for recorded in 1..=u64::from(shards) {
            // Half of the runs are resumed from a checkpoint.
            let stop = [(FaultTrigger::Recorded(1, 1), Fault::Stop)];
            let crash = [(FaultTrigger::Recorded(step, recorded), Fault::Crash(Role::Coordinator))];
            let lives = [&stop[..], &crash].map(|faults| SimulatedAttempt::small(2, 2, shards, faults));
            let mut lives = lives.into_iter().skip(seed as usize % 2);
            let next = |_: &mut Random| lives.next().unwrap_or_else(|| panic!("seed {seed}: it never ends"));
            let history = simulate(seed, &job, Random::new(seed), next);
            assert_eq!(history.restarts, 1);
        }
    }
}

#[test]
fn eval_all_evaluates_each_checkpoint_despite_failures() {
    let job = SimulatedJob::evaluating();
    for seed in 0..60 {
        for fault in [Fault::Crash(Role::Cs2), Fault::CutStream(Role::MemoryX), Fault::Crash(Role::Coordinator)] {
            let life = SimulatedAttempt::small(3, 1, 2, &[(FaultTrigger::Tick(seed * 40), fault)]);
            let history = simulate(seed, &job, Random::new(seed), |_| life.clone());
            assert!(history.epochs >= 5, "each has an epoch of its own");
        }
    }
}

#[test]
fn rejoining_shard_receives_missed_commands() {
    let job = SimulatedJob::small();
    let commits = (1..=4).map(|step| FaultTrigger::Recorded(step, 1));
    for when in commits.chain([FaultTrigger::Writing(1), FaultTrigger::Writing(2)]) {
        for seed in 0..12 {
            let life = SimulatedAttempt::small(2, 2, 3, &[(when, Fault::CutStream(Role::MemoryX))]);
            simulate(seed, &job, Random::new(seed), |_| life.clone());
        }
    }
}

#[test]
fn lost_shard_is_restored_in_any_phase() {
    let jobs = [SimulatedJob::small(), SimulatedJob::skipping()];
    let commits = (1..=4).flat_map(|step| (1..=2).map(move |shards| FaultTrigger::Recorded(step, shards)));
    let frames = (1..=4).flat_map(|step| [1, 5].map(|frames| FaultTrigger::Gathered(step, frames)));
    let mut coverage = Coverage::default();
    for when in commits.chain(frames).chain([FaultTrigger::Writing(1), FaultTrigger::Writing(2)]) {
        for others in [vec![], vec![Role::MemoryX], vec![Role::Coordinator], vec![Role::Cs2, Role::MemoryX]] {
            let crashes = std::iter::once(Role::MemoryX).chain(others).map(|role| (when, Fault::Crash(role)));
            let crashes: Vec<_> = crashes.collect();
            for seed in 0..8 {
                // A slow shard has not recorded a commit when the other one is back.
                let laggard = (seed % 2 == 1).then_some(SlowComponent::Agent(Role::MemoryX));
                let life = SimulatedAttempt { laggard, ..SimulatedAttempt::small(2, 1, 2, &crashes) };
                for job in &jobs {
                    let history = simulate(seed, job, Random::new(seed), |_| life.clone());
                    assert_eq!(history.stops, 0, "the attempt ended");
                    coverage += history.coverage;
                }
            }
        }
    }
    assert!(coverage.restored_steps > 100, "{coverage:?}");
}

/// All shards load the newest checkpoint after one is lost; if that is damaged, an older one or the initial values.
#[test]
fn damaged_checkpoint_is_replaced_by_an_older_one() {
    let job = SimulatedJob::small();
    let mut coverage = Coverage::default();
    for (step, seed) in (3..=4).flat_map(|step| (0..20).map(move |seed| (step, seed))) {
        let when = FaultTrigger::Recorded(step, 2);
        for others in [vec![], vec![Role::Coordinator], vec![Role::MemoryX, Role::Cs2]] {
            let faults = std::iter::once(Fault::DamageCheckpoint).chain(others.into_iter().map(Fault::Crash));
            let faults: Vec<_> = faults.map(|fault| (when, fault)).collect();
            let life = SimulatedAttempt::small(2, 1, 2, &faults);
            let history = simulate(seed, &job, Random::new(seed), |_| life.clone());
            assert_eq!(history.stops, 0, "the attempt ended");
            coverage += history.coverage;
        }
    }
    assert!(coverage.damaged_loads > 50, "{coverage:?}");
}

/// Faults inserted into `ChunkStore` by hand, and the first seed that detects each: an update after the snapshot's step
/// in `take_for_snapshot` (without the bound on the pending update's step, and without the check after it): seed 4, and
/// seed 66 of [`runs_match_the_reference_bit_for_bit`]; no copy before the update in `read`: seeds 0 and 25.
#[test]
fn checkpoints_have_their_step_on_slow_or_failing_storage() {
    let job = SimulatedJob::small();
    let mut coverage = Coverage::default();
    for seed in 0..40 {
        let fail = (FaultTrigger::Writing(1 + seed % 2), Fault::FailWrite);
        let faults =
            if seed % 2 == 0 { vec![] } else { vec![(FaultTrigger::Tick(seed * 20), Fault::Checkpoint), fail] };
        let first =
            SimulatedAttempt { laggard: Some(SlowComponent::Disk), ..SimulatedAttempt::small(2, 2, 2, &faults) };
        let mut lives = 0;
        let history = simulate(seed, &job, Random::new(seed), |_| {
            lives += 1;
            if lives == 1 { first.clone() } else { SimulatedAttempt::small(2, 2, 2, &[]) }
        });
        coverage += history.coverage;
        assert_eq!(!history.unsaved.is_empty(), !faults.is_empty(), "seed {seed}");
    }
    let Coverage { committed_in_snapshots, copied_for_snapshots, waited_for_copies, failed_writes, .. } = coverage;
    let all = [committed_in_snapshots, copied_for_snapshots, waited_for_copies, failed_writes];
    assert!(all.iter().all(|times| *times >= 20), "the seeds do not cover the store: {coverage:?}");
}

#[test]
fn stop_in_any_phase_saves_the_last_committed_step() {
    let job = SimulatedJob::small();
    for seed in 0..60 {
        let stop = (FaultTrigger::Tick(seed * 17), Fault::Stop);
        for faults in [vec![stop], vec![(FaultTrigger::Tick(seed * 16), Fault::Vanish(Role::Cs2)), stop]] {
            let (mut lives, life) = (0, SimulatedAttempt::small(2, 2, 2, &faults));
            simulate(seed, &job, Random::new(seed), |_| {
                lives += 1;
                if lives == 1 { life.clone() } else { SimulatedAttempt::small(3, 1, 3, &[]) }
            });
            assert_eq!(lives, 2, "it was never stopped");
        }
    }
}
