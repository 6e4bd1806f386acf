//! Tests of local runs whose processes are killed or stopped: the launcher replaces them, and no result changes.

use rustix::process::Signal;

use super::harness::{CommandOutput, TestDir, kill};

/// Sends each signal to a process of a run when the run has reported a step; signals of one step follow each other
/// without a pause. Returns the end of the run.
fn run_with_faults(place: &TestDir, steps: u64, flags: &str, faults: &[(u64, &str, Signal)]) -> CommandOutput {
    let mut run = place.start(&format!("train_and_eval -p params.yaml -o m --num_csx 2 --max_steps {steps} {flags}"));
    let mut reported = 0;
    for (step, victim, signal) in faults {
        if std::mem::replace(&mut reported, *step) != *step {
            run.wait_for(&format!("Step={step},"));
        }
        let roles = run.roles();
        let (_, pid) = roles.iter().find(|(name, _)| name == victim).unwrap_or_else(|| panic!("{victim}: {roles:?}"));
        kill(*pid, *signal);
    }
    run.end()
}

#[test]
fn replaced_processes_change_no_result() {
    const STEPS: u64 = 1000;
    let place = TestDir::new();
    place.params("params.yaml", &[("eval_frequency: 2", "eval_frequency: 40\n    checkpoint_steps: 50")]);
    let faults = [
        // Stopped first: it is killed three seconds later.
        (20, "cs2-0", Signal::STOP),
        (100, "cs2-1", Signal::KILL),
        (200, "swarmx-0", Signal::KILL),
        (300, "activation-1", Signal::KILL),
        (400, "memoryx-1", Signal::KILL),
        (500, "coordinator-0", Signal::KILL),
        // A checkpoint is being written.
        (550, "memoryx-0", Signal::KILL),
        // An evaluation is in progress.
        (600, "coordinator-0", Signal::KILL),
    ];
    let ended = run_with_faults(&place, STEPS, "", &faults);
    assert_eq!(ended.code(), 0, "{}\n{}", ended.stdout, ended.stderr);
    for (_, victim, signal) in faults {
        let end = if signal == Signal::STOP { "did not respond and was killed" } else { "was killed (signal 9)" };
        let line = format!("warning: {victim} {end}; a new {victim} is started");
        assert!(ended.stderr.contains(&line), "{line}\n{}", ended.stderr);
    }
    place.succeed(&format!("train_and_eval -p params.yaml -o whole --num_csx 1 --max_steps {STEPS}"));
    assert_eq!(place.result("m", STEPS), place.result("whole", STEPS));
    assert_eq!(place.evaluations("m"), place.evaluations("whole"));
}

/// While a replica of every shard is left, no step is executed again.
#[test]
fn run_continues_with_the_other_replica_of_a_shard() {
    const STEPS: u64 = 1000;
    let place = TestDir::new();
    place.params("params.yaml", &[("eval_frequency: 2", "eval_frequency: 40\n    checkpoint_steps: 50")]);
    place.write("replicas.yaml", "memoryx: {replicas: 2}\n");
    let (kill, stop) = (Signal::KILL, Signal::STOP);
    // Of one shard after the other, so that the lost replica has copied its parameters before the next one is lost.
    let single = [
        (50, "memoryx-0", kill),
        (150, "memoryx-3", kill),
        (250, "memoryx-2", kill),
        (350, "coordinator-0", kill),
        (450, "memoryx-1", kill),
        (600, "memoryx-2", stop),
    ];
    let both = [(750, "memoryx-1", kill), (750, "memoryx-3", kill)];
    let faults: Vec<_> = single.into_iter().chain(both).collect();
    let ended = run_with_faults(&place, STEPS, "--appliance replicas.yaml", &faults);
    assert_eq!(ended.code(), 0, "{}\n{}", ended.stdout, ended.stderr);
    let restored: Vec<_> = ended.stderr.lines().filter(|line| line.contains("lost its parameters")).collect();
    assert!(matches!(restored[..], [line] if line.contains("memoryx-1")), "{restored:?}\n{}", ended.stderr);
    place.succeed(&format!("train_and_eval -p params.yaml -o whole --num_csx 1 --max_steps {STEPS}"));
    assert_eq!(place.result("m", STEPS), place.result("whole", STEPS));
    assert_eq!(place.evaluations("m"), place.evaluations("whole"));
}

#[test]
fn skipped_batches_are_the_same_after_any_failure() {
    const STEPS: u64 = 200;
    let place = TestDir::new();
    let bound =
        "checkpoint_steps: 50\n    loss_spike_factor: 1.3\n    loss_spike_window: 20\n    loss_spike_action: skip";
    place.params("params.yaml", &[("eval_frequency: 2", &format!("eval_frequency: 40\n    {bound}"))]);
    place.succeed(&format!("train -p params.yaml -o whole --num_csx 1 --max_steps {STEPS}"));

    let faults =
        [("cs2-0", 20), ("memoryx-0", 60), ("coordinator-0", 80)].map(|(agent, step)| (step, agent, Signal::KILL));
    let ended = run_with_faults(&place, STEPS / 2, "", &faults);
    assert_eq!(ended.code(), 0, "{}\n{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("is executed with the next batch"), "{}", ended.stderr);
    place.succeed(&format!("train -p params.yaml -o m --num_csx 2 --max_steps {STEPS}"));

    assert_eq!(place.result("m", STEPS), place.result("whole", STEPS));
    let skipped = |step| place.info(&format!("m/checkpoint_{step}"))["skipped_batches"].as_u64().unwrap();
    assert!(0 < skipped(STEPS / 2) && skipped(STEPS / 2) < skipped(STEPS), "{} {}", skipped(STEPS / 2), skipped(STEPS));
}
