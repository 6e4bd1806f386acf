//! Tests in which agents and coordinators leave, die and join while a job runs.

use millrace_checkpoint::ModelDirLock;
use millrace_emulator::numerics::Isa;
use millrace_protocol::proto::ResizeRequest;
use rustix::process::Signal;
use tonic::Code;

use super::harness::{TestDir, largest_file};
use super::job::{AGENTS, Job};

/// Creates a directory with params in which evaluations are rare, so that the line that a test waits for comes soon.
fn place() -> TestDir {
    let place = TestDir::new();
    place.params("params.yaml", &[("eval_frequency: 2", "eval_frequency: 40\n    checkpoint_steps: 150")]);
    place
}

/// Checks that the results equal those of an undisturbed run, with each step and evaluation once.
fn assert_undisturbed(place: &TestDir, steps: u64) {
    place.succeed(&format!("train_and_eval -p params.yaml -o whole --num_csx 1 --max_steps {steps}"));
    assert_eq!(place.result("m", steps), place.result("whole", steps));
    assert_eq!(place.evaluations("m"), place.evaluations("whole"));
}

#[test]
fn bits_are_independent_of_leaving_and_joining_agents() {
    const STEPS: u64 = 400;
    let place = place();
    let mut job = Job::start(&place, STEPS);
    job.wait_for_step(20);
    job.kill("cs2-1");
    job.wait_for_step(60);
    job.join("cs2-7");
    job.wait_for_step(120);
    // After SIGTERM an agent exits with code 0.
    assert_eq!(job.terminate_agent("swarmx-0"), Some(0));
    job.join("swarmx-0");
    job.wait_for_step(180);
    job.kill("activation-1");
    job.join("activation-1");
    assert_eq!(job.terminate_agent("cs2-0"), Some(0));
    job.wait_for_step(220);
    job.kill("swarmx-0");
    job.join("swarmx-0");
    job.wait_for_step(260);
    assert_eq!(job.end(), Some(0));
    assert_undisturbed(&place, STEPS);
}

/// Systems are added and removed at a step boundary: nothing restarts, and the bits are the same.
#[tokio::test(flavor = "multi_thread")]
async fn bits_are_independent_of_resizes() {
    const STEPS: u64 = 400;
    let place = place();
    let mut job = Job::with_binary_tree(&place, STEPS);
    job.wait_for_step(20);
    let mut client = job.journal().connect().await.unwrap();
    let mut resize = async |num_csx| client.resize(ResizeRequest { num_csx, min_csx: 1 }).await;
    for (impossible, reason) in [(0, "no system"), (9, "only 8 leaves")] {
        let error = resize(impossible).await.unwrap_err();
        assert!(error.code() == Code::InvalidArgument && error.message().contains(reason), "{error}");
    }
    // The added agents may join before the coordinator needs them.
    ["cs2-2", "activation-2", "swarmx-1", "swarmx-2"].into_iter().for_each(|agent| job.join(agent));
    resize(4).await.unwrap();
    ["cs2-3", "activation-3"].into_iter().for_each(|agent| job.join(agent));
    job.wait_for_systems(4).await;
    job.wait_for_step(120);
    resize(1).await.unwrap();
    job.wait_for_systems(1).await;
    for agent in ["swarmx-1", "swarmx-2", "activation-1", "activation-2", "activation-3", "cs2-1", "cs2-2", "cs2-3"] {
        assert_eq!(job.terminate_agent(agent), Some(0));
    }
    job.wait_for_step(200);
    // A new coordinator begins with the number in its launch document, until it receives the current one.
    job.replace_coordinator("m", STEPS);
    job.journal().connect().await.unwrap().resize(ResizeRequest { num_csx: 1, min_csx: 1 }).await.unwrap();
    job.wait_for(": MemoryX holds its parameters.");
    assert_eq!(job.end(), Some(0));
    assert_undisturbed(&place, STEPS);
}

#[test]
fn terminated_shard_leaves_once_its_parameters_are_saved() {
    const STEPS: u64 = 300;
    let place = place();
    let mut job = Job::start(&place, STEPS);
    job.wait_for_step(20);
    assert_eq!(job.terminate_agent("memoryx-1"), Some(0));
    let line = job.wait_for("Saved checkpoint");
    let saved: u64 = line.trim_end().rsplit_once('_').unwrap().1.parse().unwrap();
    assert!(saved >= 20 && saved % 150 > 0, "for this shard: {line}");
    job.join("memoryx-1");
    job.wait_for_step(200);
    assert_eq!(job.end(), Some(0));
    assert_undisturbed(&place, STEPS);
}

/// It saves nothing, because another replica has its parameters.
#[test]
fn terminated_replica_leaves_at_once() {
    const STEPS: u64 = 300;
    let place = place();
    let mut job = Job::with_replicas(&place, STEPS);
    for (step, agent) in [(20, "memoryx-1"), (60, "memoryx-2")] {
        job.wait_for_step(step);
        assert_eq!(job.terminate_agent(agent), Some(0));
        job.join(agent);
    }
    let line = job.wait_for("Saved checkpoint");
    assert!(line.trim_end().ends_with("_150"), "{line}");
    assert_eq!(job.end(), Some(0));
    assert_undisturbed(&place, STEPS);
}

/// In a pod, SIGTERM moves the coordinator; another one continues its attempt, as after a crash.
#[test]
fn coordinator_pod_leaves_its_attempt_to_another_one() {
    const STEPS: u64 = 300;
    let place = place();
    let mut job = Job::in_pods(&place, "pods", 1, STEPS);
    for (step, signal, code) in
        [(20, Signal::TERM, Some(130)), (80, Signal::KILL, None), (160, Signal::TERM, Some(130))]
    {
        job.wait_for_step(step);
        assert_eq!(job.replace_coordinator_pod(signal), code);
        assert!(!place.path("last").exists(), "it reports no outcome of the attempt");
        job.wait_for(": MemoryX holds its parameters.");
    }
    // A system that is lost together with the coordinator is not waited for.
    job.kill("cs2-1");
    assert_eq!(job.replace_coordinator_pod(Signal::KILL), None);
    job.wait_for(": MemoryX holds its parameters.");
    job.join("cs2-1");
    assert_eq!(job.end(), Some(0));
    assert_undisturbed(&place, STEPS);
    let owner = ModelDirLock::last_owner(&place.path("m")).unwrap().unwrap();
    assert_eq!((owner.attempt, owner.attempt_of_job(5)), (5, Some(1)), "five processes, one attempt");
}

#[test]
fn coordinator_replacement_is_bit_identical() {
    const STEPS: u64 = 400;
    let place = place();
    let mut job = Job::start(&place, STEPS);
    for step in [1, 39, 40, 150, 230] {
        job.wait_for_step(step);
        job.replace_coordinator("m", STEPS);
        // The run continues neither from the checkpoint of step 150 nor from the beginning.
        let line = job.wait_for(": MemoryX holds its parameters.");
        let held = line.split_whitespace().nth(3).unwrap().trim_end_matches(':');
        assert!(held.parse::<u64>().unwrap() >= step, "{line}");
    }
    // Agents can still leave and join.
    job.kill("cs2-1");
    job.join("cs2-9");
    assert_eq!(job.end(), Some(0));
    assert_undisturbed(&place, STEPS);
    assert!(place.path("m/journal/attempt-6.jsonl").exists(), "the attempt rises with every coordinator");
}

/// A new coordinator receives the parameters' step from the shards, and reads neither the newest checkpoint nor the
/// training data. When a shard is lost later, the checkpoint turns out to be damaged, and an older one is loaded.
#[test]
fn replaced_coordinator_reads_only_what_it_needs() {
    const STEPS: u64 = 500;
    let place = TestDir::new();
    let text = "data_processor: GptTextDataProcessor\n    tokenizer: bytes\n    data_files: own.txt";
    place.params(
        "params.yaml",
        &[
            ("data_processor: SyntheticDataProcessor", text),
            ("vocab_size: 64", "vocab_size: 256"),
            ("eval_frequency: 2", "eval_frequency: 100\n    checkpoint_steps: 100"),
        ],
    );
    place.write("own.txt", "Those who can wait read twice. ".repeat(200));
    let mut job = Job::start(&place, STEPS);
    job.wait_for("Saved checkpoint");
    job.wait_for("Saved checkpoint");
    let damaged = largest_file(&place.path("m/checkpoint_200/parameters"));
    let mut bytes = std::fs::read(&damaged).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    std::fs::rename(place.path("own.txt"), place.path("moved.txt")).unwrap();
    job.replace_coordinator("m", STEPS);
    job.wait_for(": MemoryX holds its parameters.");
    std::fs::rename(place.path("moved.txt"), place.path("own.txt")).unwrap();
    job.kill("memoryx-0");
    job.join("memoryx-0");
    let skipped = job.wait_for("Skipping checkpoint");
    assert!(skipped.contains("checkpoint_200: the checkpoint is damaged"), "{skipped}");
    job.wait_for("Loaded parameters, optimizer state of step 100");
    assert_eq!(job.end(), Some(0));
    assert_undisturbed(&place, STEPS);
}

#[test]
fn agents_refuse_the_coordinator_of_another_job() {
    let place = place();
    let mut job = Job::start(&place, 1_000_000);
    job.wait_for_step(3);
    job.replace_coordinator("another", 1_000_000);
    for (agent, code) in job.agents_end() {
        assert_eq!(code, Some(3), "{agent}");
    }
}

/// The run continues with the other systems, and with the bits of the checkpoint's instruction set.
#[test]
fn system_without_instruction_set_of_checkpoint_is_rejected() {
    const STEPS: u64 = 6;
    if Isa::detect() == Isa::Portable {
        return;
    }
    let place = TestDir::new();
    place.succeed("train_and_eval -p params.yaml -o m --num_csx 1 --max_steps 2");
    let mut job = Job::coordinator_only(&place, STEPS, &[]);
    job.join_with("cs2-1", &["--isa", "portable"]);
    AGENTS.into_iter().filter(|agent| *agent != "cs2-1").for_each(|agent| job.join(agent));
    assert_eq!(job.end_of("cs2-1"), Some(3));
    assert_eq!(job.end(), Some(0));
    place.succeed(&format!("train_and_eval -p params.yaml -o whole --num_csx 1 --max_steps {STEPS}"));
    assert_eq!(place.result("m", STEPS), place.result("whole", STEPS));
}

/// All systems compute with the lowest instruction set of the fleet, bit-identically, and report it.
#[test]
fn job_uses_the_instruction_set_that_all_systems_share() {
    const STEPS: u64 = 4;
    let cases = [("cs2-1", Isa::Avx2), ("cs2-0", Isa::Portable)];
    let cases: Vec<_> = cases.into_iter().filter(|(_, least)| least.available() && *least != Isa::detect()).collect();
    assert!(!cases.is_empty() || !cfg!(target_arch = "x86_64"), "this test needs a CPU with AVX2");
    for (lesser, least) in cases {
        let place = TestDir::new();
        let mut job = Job::coordinator_only(&place, STEPS, &[]);
        job.join_with(lesser, &["--isa", &least.to_string()]);
        AGENTS.into_iter().filter(|agent| *agent != lesser).for_each(|agent| job.join(agent));
        assert_eq!(job.end(), Some(0));
        place.succeed(&format!("train_and_eval -p params.yaml -o all --num_csx 2 --max_steps {STEPS} --isa {least}"));
        assert_eq!(place.result("m", STEPS), place.result("all", STEPS));
        let info = place.info(&format!("m/checkpoint_{STEPS}"));
        assert_eq!(info["numerics_profile"]["isa"], least.to_string());

        // On machines with a better instruction set, training keeps that of the checkpoint unless the user accepts the
        // better one, and the checkpoint records it.
        let further = |steps: u64| format!("train -p params.yaml -o m --num_csx 2 --max_steps {steps}");
        let kept = place.succeed(&further(STEPS + 1)).stdout;
        assert!(kept.contains(&format!("Kept as in the checkpoint: the instruction set {least}.")), "{kept}");
        let info = place.info(&format!("m/checkpoint_{}", STEPS + 1));
        assert_eq!(info["numerics_profile"]["isa"], least.to_string());
        place.succeed(&format!("{} --allow_profile_change", further(STEPS + 2)));
        let info = place.info(&format!("m/checkpoint_{}", STEPS + 2));
        assert_eq!(info["numerics_profile"]["isa"], Isa::detect().to_string());
        assert!(info["notes"].to_string().contains(&format!("from {{\\\"isa\\\":\\\"{least}")), "{info}");
    }
}
