//! Tests that the results are bit-identical for every number of agents and threads, and after interruptions.

use std::collections::BTreeSet;

use super::harness::{RunResult, TestDir};

/// Numbers of agents, threads and flags that must not change the results.
const TOPOLOGY_VARIANTS: &[&str] = &[
    "train --num_csx 2",
    "train --num_csx 3 --num_wgt_servers 1 --num_act_servers 2",
    "train --num_csx 4 --num_wgt_servers 3 --threads 2",
    "train --num_csx 4 --appliance fan2.yaml",
    "train --num_csx 1 --appliance tiny.yaml",
    "train --num_csx 3 --appliance tiny.yaml --threads 2",
    "train_and_eval --num_csx 2",
    "train_and_eval --num_csx 2 --num_wgt_servers 3 --appliance replicas.yaml",
    "train --num_csx 2 -p often.yaml",
];

/// Compares the variants. `tiny_wafer` is a wafer size that forces recomputation, and rounds of three leaves, which are
/// not subtrees.
fn matrix(mixed_precision: &str, tiny_wafer: &str) {
    let place = TestDir::new();
    let precision = ("mixed_precision: False", mixed_precision);
    place.params("params.yaml", &[precision]);
    place.params("often.yaml", &[precision, ("max_steps: 6", "max_steps: 6\n    checkpoint_steps: 1")]);
    place.write("tiny.yaml", format!("wafer: {{memoryBytes: {tiny_wafer}}}\n"));
    place.write("other.yaml", format!("wafer: {{memoryBytes: {tiny_wafer}}}\nlink: {{chunkBytes: 4KiB}}\n"));
    place.write("fan2.yaml", "swarmx: {fanOut: 2}\n");
    place.write("replicas.yaml", "memoryx: {replicas: 2}\n");

    let plan = |flags: &str| -> serde_json::Value {
        serde_json::from_str(&place.succeed(&format!("plan -p params.yaml --json {flags}")).stdout).unwrap()
    };
    let tiny = plan("--appliance tiny.yaml");
    assert_eq!(tiny["recompute"], true, "{tiny}");
    assert!(tiny["placement"]["rounds"].as_u64() > Some(1), "{}", tiny["placement"]);
    assert_eq!(plan("--num_csx 4 --appliance fan2.yaml")["placement"]["swarmx"], 3);

    let baseline = train(&place, "train --num_csx 1", "baseline");
    assert_eq!(baseline.steps.len(), 6);
    for (number, flags) in TOPOLOGY_VARIANTS.iter().enumerate() {
        let model_dir = format!("variant_{number}");
        assert_eq!(train(&place, flags, &model_dir), baseline, "{flags}");
    }

    // Stopped twice, and resumed by other agents, on another appliance.
    place.succeed("train -p params.yaml -o resumed --max_steps 2 --num_csx 3 --num_wgt_servers 1");
    place.succeed("train -p params.yaml -o resumed --max_steps 3 --num_csx 1 --appliance other.yaml");
    place.succeed("train -p params.yaml -o resumed --num_csx 4 --num_wgt_servers 3");
    assert_eq!(place.result("resumed", 6), baseline, "resumed twice");

    // Makes sure that the comparison detects a difference.
    place.params("other.yaml", &[precision, ("seed: 3", "seed: 4")]);
    let other = train(&place, "train --num_csx 2 -p other.yaml", "other");
    assert_ne!((&other.parameters, &other.optimizer), (&baseline.parameters, &baseline.optimizer));
    assert!(other.steps.iter().zip(&baseline.steps).all(|(a, b)| a != b));
}

/// Trains six steps with `flags`, and with `params.yaml` unless they name another file.
fn train(place: &TestDir, flags: &str, model_dir: &str) -> RunResult {
    let params = if flags.contains("-p ") { "" } else { "-p params.yaml" };
    place.succeed(&format!("{flags} {params} -o {model_dir}"));
    place.result(model_dir, 6)
}

#[test]
fn same_bits_in_f32() {
    matrix("mixed_precision: False", "160kB");
}

#[test]
fn same_bits_in_mixed_precision() {
    matrix("mixed_precision: True\n    use_bfloat16: True", "97kB");
}

/// The comparisons above are of runs that share memory; runs without it are compared in `network_faults`.
#[test]
fn agents_of_a_run_share_memory() {
    let place = TestDir::new();
    place.params("params.yaml", &[("max_steps: 6", "max_steps: 1000")]);
    let mut run = place.start("train -p params.yaml -o m --num_csx 2");
    run.wait_for("Step=20,");
    let roles = run.roles();
    let arenas = |name: &str| {
        let (_, pid) = roles.iter().find(|(role, _)| role == name).unwrap();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let inode = |line: &str| line.split_whitespace().nth(4).unwrap().to_owned();
        maps.lines().filter(|line| line.contains("memfd:millrace")).map(inode).collect::<BTreeSet<_>>()
    };
    let [first, second, shard] = ["cs2-0", "cs2-1", "memoryx-0"].map(arenas);
    assert!(!first.is_disjoint(&shard) && !second.is_disjoint(&shard), "systems read the weights of the shard");
    assert!(first.intersection(&second).all(|arena| !arenas("activation-0").contains(arena)));
    run.signal(rustix::process::Signal::TERM);
    assert!(!run.end().stderr.contains("memory can't be shared"));
}
