//! Tests of roles without a launcher, as in a cluster.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStderr, Output, Stdio};

use millrace_telemetry::journal::{AttemptOutcome, OutcomeReason};
use rustix::process::Signal;

use super::harness::{KilledOnDrop, TestDir, kill};
use super::job::{AGENTS, Job, role, write_launch};
use super::ports::free_port;

/// An agent in its own process.
struct StandaloneAgent {
    child: KilledOnDrop,
    stderr: BufReader<ChildStderr>,
}

impl StandaloneAgent {
    /// Starts `agent` with the coordinator's `address`.
    fn start(place: &TestDir, agent: &str, address: &str) -> Self {
        let (name, index) = agent.rsplit_once('-').unwrap();
        let mut command = role(place, name, index.parse().unwrap());
        command.args(["--coordinator", address]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child: KilledOnDrop(child), stderr }
    }

    /// Reads the agent's log up to a line that contains `word`.
    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert_ne!(self.stderr.read_line(&mut line).unwrap(), 0, "it ended before it said {word:?}");
        }
    }

    /// Waits for the end; returns the exit code and the rest of the log.
    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (self.child.0.wait().unwrap().code(), rest)
    }
}

/// Runs a coordinator with `launch.json` to its end. Its last report is in `last`.
fn coordinator(place: &TestDir, arguments: &[&str]) -> Output {
    let mut command = role(place, "coordinator", 0);
    command.args(["--launch", "launch.json", "--termination_log", "last"]).args(arguments).output().unwrap()
}

/// Reads and removes the last report of a coordinator, which must contain the exit code `code`.
fn last_report(place: &TestDir, code: Option<i32>) -> AttemptOutcome {
    let report = std::fs::read_to_string(place.path("last")).unwrap();
    let outcome = AttemptOutcome::from_termination_report(&report).unwrap();
    assert_eq!(Some(i32::from(outcome.exit_code)), code, "{outcome:?}");
    std::fs::remove_file(place.path("last")).unwrap();
    outcome
}

#[test]
fn agents_wait_for_a_late_coordinator_and_log_it() {
    let place = TestDir::new();
    write_launch(&place, "m", 4);
    let port = free_port();
    let address = format!("localhost:{port}");
    let mut agents = AGENTS.map(|agent| StandaloneAgent::start(&place, agent, &address));
    agents.iter_mut().for_each(|agent| agent.wait_for("can't be reached yet"));

    let ended = coordinator(&place, &["--listen", &format!("127.0.0.1:{port}")]);
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert_eq!(ended.status.code(), Some(0), "{stderr}");
    assert!(stdout.starts_with("Effective batch size is 8.\n"), "{stdout}");
    for agent in agents {
        let (code, log) = agent.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("joined attempt 1"), "{log}");
    }
    let last = last_report(&place, Some(0));
    assert_eq!((last.reason, last.step), (OutcomeReason::Succeeded, 4));
    assert_eq!(place.info("m/checkpoint_4")["parameters_blake3"], last.digest.unwrap());
}

#[test]
fn agent_without_coordinator_terminates_at_once() {
    let place = TestDir::new();
    for address in ["no-such-host.invalid:7000".to_owned(), format!("127.0.0.1:{}", free_port())] {
        let mut agent = StandaloneAgent::start(&place, "memoryx-0", &address);
        agent.wait_for("can't be reached yet");
        kill(agent.child.0.id(), Signal::TERM);
        let (code, log) = agent.end();
        assert_eq!(code, Some(0), "{log}");
    }
}

#[test]
fn failed_coordinator_start_writes_a_termination_report() {
    let place = TestDir::new();
    let code = coordinator(&place, &[]).status.code();
    let last = last_report(&place, code);
    assert_eq!((last.reason, code), (OutcomeReason::BadParams, Some(2)));
    assert!(last.message.contains("launch.json") && last.message.contains("\nhint: "), "{}", last.message);

    let text = "data_processor: GptTextDataProcessor\n    tokenizer: bytes\n    data_files: gone.txt";
    place.params(
        "params.yaml",
        &[("data_processor: SyntheticDataProcessor", text), ("vocab_size: 64", "vocab_size: 256")],
    );
    write_launch(&place, "m", 4);
    let code = coordinator(&place, &[]).status.code();
    let last = last_report(&place, code);
    assert_eq!((last.reason, code), (OutcomeReason::BadParams, Some(2)));
    assert!(last.message.contains("gone.txt") && last.message.contains("\nhint: "), "{}", last.message);
    assert!(!place.path("m").exists());

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let code = coordinator(&place, &["--listen", &taken.local_addr().unwrap().to_string()]).status.code();
    assert_eq!((last_report(&place, code).reason, code), (OutcomeReason::Failed, Some(1)));
}

#[test]
fn coordinator_reports_locked_model_dir_and_early_stop() {
    let place = TestDir::new();
    let mut job = Job::coordinator_only(&place, 4, &["--termination_log", "last"]);
    job.wait_for("Waiting for all agents");
    let code = coordinator(&place, &[]).status.code();
    assert_eq!((last_report(&place, code).reason, code), (OutcomeReason::ModelDirInUse, Some(2)));

    job.signal_coordinator(Signal::TERM);
    let code = job.end();
    assert_eq!((last_report(&place, code).reason, code), (OutcomeReason::Interrupted, Some(130)));
}

#[test]
fn failure_is_reported_with_the_saved_step() {
    let place = TestDir::new();
    place.diverging_params("params.yaml", 6);
    let mut job = Job::coordinator_only(&place, 20, &["--termination_log", "last"]);
    AGENTS.into_iter().for_each(|agent| job.join(agent));
    let code = job.end();
    let last = last_report(&place, code);
    assert_eq!((last.reason, code), (OutcomeReason::NonFiniteLoss, Some(1)));
    assert!(last.step >= 2 && last.message.contains("not finite"), "{last:?}");
}
