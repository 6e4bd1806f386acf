//! Agents that come and go while a job runs, started one by one as a cluster would start them.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use millrace_agents::launch::Launch;
use millrace_params::{ApplianceSpec, Overrides, Params};
use serde_json::Value;

use super::harness::{Place, kill};

/// A job whose agents are this test's own children; they die with it.
struct Job<'a> {
    place: &'a Place,
    control: String,
    coordinator: Child,
    stdout: BufReader<ChildStdout>,
    agents: Vec<(String, Child)>,
}

impl<'a> Job<'a> {
    /// Starts the coordinator of a job on two systems that goes on with one.
    fn start(place: &'a Place, max_steps: u64) -> Self {
        let yaml = std::fs::read_to_string(place.path("params.yaml")).unwrap();
        let overrides = Overrides {
            num_csx: Some(2),
            max_steps: Some(max_steps),
            model_dir: Some(place.path("m").to_string_lossy().into_owned()),
            mode: Some("train".to_owned()),
            ..Overrides::default()
        };
        let resolved = Params::parse_yaml(&yaml).unwrap().resolve(&overrides).unwrap();
        let mut launch = Launch::local(resolved, ApplianceSpec::default(), yaml);
        launch.wanted.least_systems = 1;
        place.write("launch.json", launch.to_json().unwrap());
        let mut coordinator = role(place, "coordinator", 0)
            .arg("--launch")
            .arg(place.path("launch.json"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(coordinator.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let listening: Value = serde_json::from_str(line.strip_prefix("listening ").unwrap()).unwrap();
        let control = listening["control"].as_str().unwrap().to_owned();
        let mut job = Self { place, control, coordinator, stdout, agents: Vec::new() };
        for agent in ["memoryx-0", "memoryx-1", "swarmx-0", "activation-0", "activation-1", "cs2-0", "cs2-1"] {
            job.join(agent);
        }
        job
    }

    fn join(&mut self, agent: &str) {
        let (name, index) = agent.rsplit_once('-').unwrap();
        let mut command = role(self.place, name, index.parse().unwrap());
        let child = command.args(["--coordinator", &self.control]).stdout(Stdio::null()).spawn().unwrap();
        self.agents.push((agent.to_owned(), child));
    }

    fn kill(&mut self, agent: &str) {
        let at = self.agents.iter().position(|(name, _)| name == agent).unwrap();
        let (_, mut child) = self.agents.swap_remove(at);
        kill(child.id(), "KILL");
        child.wait().unwrap();
    }

    /// Reads progress up to the line of `step`.
    fn reach(&mut self, step: u64) {
        let (wanted, mut line) = (format!("Step={step},"), String::new());
        while !line.contains(&wanted) {
            line.clear();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "the job ended before step {step}");
        }
    }

    fn end(mut self) -> i32 {
        self.stdout.read_to_string(&mut String::new()).unwrap();
        for (agent, child) in &mut self.agents {
            assert_eq!(child.wait().unwrap().code(), Some(0), "{agent}");
        }
        self.coordinator.wait().unwrap().code().unwrap_or(-1)
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

fn role(place: &Place, name: &str, index: u32) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-agent"));
    command
        .args(["role", name, "--index", &index.to_string()])
        .env("MILLRACE_ROLE_PROCESS", "test")
        .env("XDG_CACHE_HOME", place.path("cache"))
        .current_dir(place.path("."))
        .stdin(Stdio::null());
    command
}

#[test]
fn systems_and_swarmx_nodes_may_leave_and_others_join_without_changing_a_bit() {
    const STEPS: u64 = 400;
    let place = Place::new();
    let mut job = Job::start(&place, STEPS);
    job.reach(20);
    job.kill("cs2-1");
    job.reach(60);
    job.join("cs2-7");
    job.reach(120);
    job.kill("swarmx-0");
    job.join("swarmx-0");
    job.reach(180);
    job.kill("activation-1");
    job.join("activation-1");
    job.kill("cs2-0");
    job.reach(220);
    assert_eq!(job.end(), 0);

    place.succeed(&format!("train -p params.yaml -o whole --num_csx 1 --max_steps {STEPS}"));
    assert_eq!(place.result("m", STEPS), place.result("whole", STEPS));
}
