//! A job whose agents are started individually, as in a cluster.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use millrace_agents::launch::LaunchDocument;
use millrace_params::{FlagOverrides, MachineSpec, Params};
use millrace_protocol::journal::{JournalEndpoint, from_proto};
use millrace_protocol::proto::{CommandReply, Entry, FollowRequest, StopRequest};
use millrace_protocol::security::{AttemptName, MemberName};
use millrace_telemetry::journal::{JournalEvent, RunState};
use rustix::process::Signal;
use serde_json::Value;
use tonic::Streaming;

use super::harness::{TestDir, kill};
use super::identities::{self, authority, first_attempt, identity_dir};
use super::ports::free_port;

/// The agents of a job on two systems.
pub const AGENTS: [&str; 7] = ["memoryx-0", "memoryx-1", "swarmx-0", "activation-0", "activation-1", "cs2-0", "cs2-1"];

/// Longer than any state of a run takes to be reached.
const STATE_TIMEOUT: Duration = Duration::from_secs(300);

/// A job on two systems that can continue with one. Its processes are children of the test, and are killed on drop.
pub struct Job<'a> {
    place: &'a TestDir,
    /// The addresses that the first coordinator printed.
    listening: Value,
    /// The attempt in the identities of its processes.
    attempt: AttemptName,
    coordinator: Child,
    stdout: BufReader<ChildStdout>,
    agents: Vec<(String, Child)>,
}

impl<'a> Job<'a> {
    /// Starts a job with model_dir `m`, and all its agents.
    pub fn start(place: &'a TestDir, max_steps: u64) -> Self {
        let mut job = Self::coordinator_only(place, max_steps, &[]);
        AGENTS.into_iter().for_each(|agent| job.join(agent));
        job
    }

    /// Starts a job with model_dir `m`, whose SwarmX nodes have two children each, and all its agents.
    pub fn with_binary_tree(place: &'a TestDir, max_steps: u64) -> Self {
        write_launch_with(place, "m", max_steps, |launch| launch.agent_counts.fan_out = 2);
        let mut job = Self::launched(place, first_attempt(), &[]);
        AGENTS.into_iter().for_each(|agent| job.join(agent));
        job
    }

    /// Starts a job with model_dir `m` and two replicas of each shard, and all its agents.
    pub fn with_replicas(place: &'a TestDir, max_steps: u64) -> Self {
        write_launch_with(place, "m", max_steps, |launch| launch.agent_counts.replicas = 2);
        let mut job = Self::launched(place, first_attempt(), &[]);
        AGENTS.into_iter().chain(["memoryx-2", "memoryx-3"]).for_each(|agent| job.join(agent));
        job
    }

    /// Starts an attempt of the job `uid` with model_dir `m`, and all its agents.
    pub fn attempt(place: &'a TestDir, uid: &str, attempt: u32, max_steps: u64) -> Self {
        write_launch_with(place, "m", max_steps, |launch| {
            (launch.job_uid, launch.attempt) = (Some(uid.to_owned()), Some(attempt));
        });
        let mut job = Self::launched(place, AttemptName::new(uid, attempt).unwrap(), &[]);
        AGENTS.into_iter().for_each(|agent| job.join(agent));
        job
    }

    /// Starts an attempt of the job `uid` with model_dir `m` as in pods, and all its agents.
    pub fn in_pods(place: &'a TestDir, uid: &str, attempt: u32, max_steps: u64) -> Self {
        write_launch_with(place, "m", max_steps, |launch| {
            (launch.job_uid, launch.attempt) = (Some(uid.to_owned()), Some(attempt));
        });
        let attempt = AttemptName::new(uid, attempt).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let (coordinator, stdout) = start_coordinator_pod(place, &attempt, &address);
        let listening = serde_json::json!({"control": address});
        let mut job = Self { place, listening, attempt, coordinator, stdout, agents: Vec::new() };
        AGENTS.into_iter().for_each(|agent| job.join(agent));
        job
    }

    /// Sends a signal to the coordinator of a job in pods, waits for its end, and starts another one of the same
    /// attempt. Returns the exit code of the first one.
    pub fn replace_coordinator_pod(&mut self, signal: Signal) -> Option<i32> {
        kill(self.coordinator.id(), signal);
        let code = self.coordinator.wait().unwrap().code();
        let (coordinator, stdout) = start_coordinator_pod(self.place, &self.attempt, self.listening("control"));
        (self.coordinator, self.stdout) = (coordinator, stdout);
        code
    }

    /// Starts only the coordinator, with additional `arguments`.
    pub fn coordinator_only(place: &'a TestDir, max_steps: u64, arguments: &[&str]) -> Self {
        write_launch(place, "m", max_steps);
        Self::launched(place, first_attempt(), arguments)
    }

    fn launched(place: &'a TestDir, attempt: AttemptName, arguments: &[&str]) -> Self {
        let (coordinator, stdout, listening) = start_coordinator(place, &attempt, arguments);
        Self { place, listening, attempt, coordinator, stdout, agents: Vec::new() }
    }

    /// Returns the connection to the coordinator's journal, as the launcher of the attempt.
    pub fn journal(&self) -> JournalEndpoint {
        let launcher = MemberName::Launcher(self.attempt.clone());
        identities::journal(self.listening("journal"), &self.attempt, &authority(self.place), &launcher)
    }

    /// Returns an address of the coordinator, by its key in the line of addresses.
    pub fn listening(&self, what: &str) -> &str {
        self.listening[what].as_str().unwrap()
    }

    /// Kills the coordinator and starts another one at its address, with model_dir `model_dir`.
    pub fn replace_coordinator(&mut self, model_dir: &str, max_steps: u64) {
        kill(self.coordinator.id(), Signal::KILL);
        self.coordinator.wait().unwrap();
        write_launch(self.place, model_dir, max_steps);
        let arguments = ["--listen", self.listening("control")];
        (self.coordinator, self.stdout, self.listening) = start_coordinator(self.place, &self.attempt, &arguments);
    }

    pub fn join(&mut self, agent: &str) {
        self.join_with(agent, &[]);
    }

    /// Starts an agent with additional `arguments`.
    pub fn join_with(&mut self, agent: &str, arguments: &[&str]) {
        let control = self.listening("control").to_owned();
        self.join_at(agent, &control, arguments);
    }

    /// Starts an agent with additional `arguments`, for which the coordinator is at `control`.
    pub fn join_at(&mut self, agent: &str, control: &str, arguments: &[&str]) {
        let mut command = role_of(self.place, &self.attempt, agent);
        command.args(["--coordinator", control]).args(arguments);
        self.agents.push((agent.to_owned(), command.stdout(Stdio::null()).spawn().unwrap()));
    }

    pub fn kill(&mut self, agent: &str) {
        self.end_agent(agent, Signal::KILL);
    }

    /// Sends SIGTERM to an agent; returns its exit code.
    pub fn terminate_agent(&mut self, agent: &str) -> Option<i32> {
        self.end_agent(agent, Signal::TERM)
    }

    fn end_agent(&mut self, agent: &str, signal: Signal) -> Option<i32> {
        let at = self.agents.iter().position(|(name, _)| name == agent).unwrap();
        let (_, mut child) = self.agents.swap_remove(at);
        kill(child.id(), signal);
        child.wait().unwrap().code()
    }

    /// Waits until an agent has ended by itself; returns its exit code.
    pub fn end_of(&mut self, agent: &str) -> Option<i32> {
        let at = self.agents.iter().position(|(name, _)| name == agent).unwrap();
        self.agents.swap_remove(at).1.wait().unwrap().code()
    }

    /// Reads the coordinator's standard output up to a line that contains `word`; returns the line.
    pub fn wait_for(&mut self, word: &str) -> String {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "the job ended before it said {word:?}");
        }
        line
    }

    /// Waits until `step` is committed.
    pub fn wait_for_step(&mut self, step: u64) {
        self.wait_for(&format!("Step={step},"));
    }

    /// Follows the journal from the current state on.
    pub async fn follow(&self) -> Streaming<Entry> {
        let mut client = self.journal().connect().await.unwrap();
        client.follow(FollowRequest { from: 0, from_current_state: true }).await.unwrap().into_inner()
    }

    /// Stops the run as a user does, and waits for the end of the job. Returns the coordinator's reply.
    pub async fn stop(self) -> CommandReply {
        let mut client = self.journal().connect().await.unwrap();
        let reply = client.stop(StopRequest { reason: "the test ends".to_owned() }).await.unwrap().into_inner();
        assert_eq!(self.end(), Some(130));
        reply
    }

    /// Waits until `systems` systems work, and no other is needed.
    pub async fn wait_for_systems(&self, systems: u32) {
        let are_complete = |state: &RunState| (state.num_csx, state.requested_csx) == (systems, Some(systems));
        wait_for_state(&mut self.follow().await, are_complete).await;
    }

    /// Returns the process id of an agent.
    pub fn agent_id(&self, agent: &str) -> u32 {
        self.agents.iter().find(|(name, _)| name == agent).unwrap().1.id()
    }

    /// Returns the process id of the coordinator.
    pub fn coordinator_id(&self) -> u32 {
        self.coordinator.id()
    }

    /// Sends a signal to the coordinator.
    pub fn signal_coordinator(&self, signal: Signal) {
        kill(self.coordinator.id(), signal);
    }

    /// Waits until every agent has ended by itself; returns their exit codes.
    pub fn agents_end(&mut self) -> Vec<(String, Option<i32>)> {
        self.agents.drain(..).map(|(agent, mut child)| (agent, child.wait().unwrap().code())).collect()
    }

    /// Waits for the end of the coordinator; returns its exit code. Agents that can't reach it at that moment are
    /// killed.
    pub fn coordinator_end(mut self) -> Option<i32> {
        self.stdout.read_to_string(&mut String::new()).unwrap();
        self.coordinator.wait().unwrap().code()
    }

    /// Waits for the end of the job; all agents must exit with code 0. Returns the coordinator's exit code.
    pub fn end(mut self) -> Option<i32> {
        self.stdout.read_to_string(&mut String::new()).unwrap();
        for (agent, code) in self.agents_end() {
            assert_eq!(code, Some(0), "{agent}");
        }
        self.coordinator.wait().unwrap().code()
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        for child in self.agents.iter_mut().map(|(_, child)| child).chain([&mut self.coordinator]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits for a state of the run for which `is_wanted` returns true.
pub async fn wait_for_state(entries: &mut Streaming<Entry>, is_wanted: impl Fn(&RunState) -> bool) -> RunState {
    let next = async {
        loop {
            let entry = entries.message().await.unwrap().expect("the job ended");
            if let JournalEvent::State(state) = from_proto(&entry).unwrap().event
                && is_wanted(&state)
            {
                return state;
            }
        }
    };
    tokio::time::timeout(STATE_TIMEOUT, next).await.expect("a state of the run")
}

/// Writes the launch document of a job on two systems to `launch.json`.
pub fn write_launch(place: &TestDir, model_dir: &str, max_steps: u64) {
    write_launch_with(place, model_dir, max_steps, |_| {});
}

fn write_launch_with(place: &TestDir, model_dir: &str, max_steps: u64, change: impl FnOnce(&mut LaunchDocument)) {
    let yaml = std::fs::read_to_string(place.path("params.yaml")).unwrap();
    let overrides = FlagOverrides {
        num_csx: Some(2),
        max_steps: Some(max_steps),
        model_dir: Some(place.path(model_dir).to_string_lossy().into_owned()),
        mode: Some("train_and_eval".to_owned()),
        ..FlagOverrides::default()
    };
    let resolved = Params::parse_yaml(&yaml).unwrap().resolve(&overrides).unwrap();
    let mut launch = LaunchDocument::new(resolved, MachineSpec::default(), yaml);
    launch.agent_counts.least_systems = 1;
    change(&mut launch);
    place.write("launch.json", launch.to_json().unwrap());
}

/// Starts a coordinator like a launcher; returns it with its standard output and addresses. It ends when its standard
/// input is closed, which happens when it is waited for.
fn start_coordinator(
    place: &TestDir,
    attempt: &AttemptName,
    arguments: &[&str],
) -> (Child, BufReader<ChildStdout>, Value) {
    let mut command = role_of(place, attempt, "coordinator-0");
    command.arg("--launch").arg(place.path("launch.json")).args(arguments);
    command.env("MILLRACE_ROLE_PROCESS", "launcher").stdin(Stdio::piped());
    let mut coordinator = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(coordinator.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let listening = serde_json::from_str(line.strip_prefix("listening ").unwrap()).unwrap();
    (coordinator, stdout, listening)
}

/// Starts a coordinator without a launcher, which listens at `address`; returns it with its standard output.
fn start_coordinator_pod(place: &TestDir, attempt: &AttemptName, address: &str) -> (Child, BufReader<ChildStdout>) {
    let mut command = role_of(place, attempt, "coordinator-0");
    command.arg("--launch").arg(place.path("launch.json")).args(["--listen", address, "--termination_log", "last"]);
    let mut coordinator = command.stdout(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(coordinator.stdout.take().unwrap());
    (coordinator, stdout)
}

/// Returns the command of a role without a launcher, of the first attempt.
pub fn role(place: &TestDir, name: &str, index: u32) -> Command {
    role_of(place, &first_attempt(), &format!("{name}-{index}"))
}

/// Returns the command of an agent without a launcher, of `attempt`.
pub fn role_of(place: &TestDir, attempt: &AttemptName, agent: &str) -> Command {
    let (name, index) = agent.rsplit_once('-').unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-agent"));
    command
        .args(["role", name, "--index", index])
        .env("MILLRACE_IDENTITY", identity_dir(place, attempt, agent))
        .env("MILLRACE_ROLE_PROCESS", "test")
        .env("XDG_CACHE_HOME", place.path("cache"))
        .current_dir(place.path("."))
        .stdin(Stdio::null());
    command
}
