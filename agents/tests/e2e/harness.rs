//! Runs `millrace-agent` in a temporary directory, and reads the files that it writes there.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

/// A GPT with steps of milliseconds. A batch has 8 leaves, of one sample each, the smallest size.
pub const PARAMS: &str = "\
train_input:
    data_processor: SyntheticDataProcessor
    max_sequence_length: 16
    shuffle: True
    shuffle_seed: 5
    batch_size: 8
    micro_batch_size: 1
eval_input:
    batch_size: 8
    micro_batch_size: 1
model:
    name: gpt2
    vocab_size: 64
    hidden_size: 32
    num_hidden_layers: 3
    num_heads: 2
    filter_size: 64
    max_position_embeddings: 16
    dropout_rate: 0.1
    attention_dropout_rate: 0.1
    mixed_precision: False
optimizer:
    optimizer_type: AdamW
    weight_decay: 0.1
    max_gradient_norm: 0.5
    learning_rate: 1e-2
runconfig:
    max_steps: 6
    log_steps: 1
    eval_frequency: 2
    eval_steps: 2
    seed: 3
";

/// Longer than any wait takes on a slow machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Returns the largest file of a directory.
pub fn largest_file(directory: &Path) -> PathBuf {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap()
}

/// A working directory, deleted on drop.
pub struct TestDir(TempDir);

/// The result of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl TestDir {
    /// Creates a directory with `PARAMS` as `params.yaml`.
    pub fn new() -> Self {
        let place = Self(TempDir::new().unwrap());
        place.write("params.yaml", PARAMS);
        place
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Writes `PARAMS` as `name`, with each `(from, to)` replaced. Every `from` must occur.
    pub fn params(&self, name: &str, changes: &[(&str, &str)]) {
        let text = changes.iter().fold(PARAMS.to_owned(), |text, (from, to)| {
            assert!(text.contains(from), "the params have no {from:?}");
            text.replacen(from, to, 1)
        });
        self.write(name, text);
    }

    /// Writes params as `name` whose loss stops being finite after two steps of up to `max_steps`, with a checkpoint
    /// after each.
    pub fn diverging_params(&self, name: &str, max_steps: u64) {
        let diverges =
            "learning_rate: [{scheduler: Constant, val: 1e-3, total_iters: 2}, {scheduler: Constant, val: 1e30}]";
        self.params(
            name,
            &[
                ("learning_rate: 1e-2", diverges),
                ("max_gradient_norm: 0.5\n    ", ""),
                ("max_steps: 6", &format!("max_steps: {max_steps}\n    checkpoint_steps: 1")),
            ],
        );
    }

    fn command(&self, arguments: &[impl AsRef<OsStr>]) -> Command {
        self.command_of(env!("CARGO_BIN_EXE_millrace-agent"), arguments)
    }

    /// Returns a command that runs in this directory.
    pub fn command_of(&self, program: &str, arguments: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.0.path())
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env_remove("MILLRACE_ROLE_PROCESS")
            .stdin(Stdio::null());
        command
    }

    /// Runs a command line to its end.
    pub fn run(&self, line: &str) -> CommandOutput {
        let arguments: Vec<_> = line.split_whitespace().collect();
        let output = self.command(&arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        CommandOutput { status: output.status, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// Runs a command line to its end; returns its exit code and both outputs in the order of a terminal.
    pub fn run_on_terminal(&self, line: &str) -> (Option<i32>, String) {
        let output = std::fs::File::create(self.path("output")).unwrap();
        let arguments: Vec<_> = line.split_whitespace().collect();
        let mut command = self.command(&arguments);
        let status = command.stdout(output.try_clone().unwrap()).stderr(output).status().unwrap();
        (status.code(), std::fs::read_to_string(self.path("output")).unwrap())
    }

    /// Runs a command line that must succeed.
    pub fn succeed(&self, line: &str) -> CommandOutput {
        let ended = self.run(line);
        assert_eq!(ended.code(), 0, "{line}\n{}\n{}", ended.stdout, ended.stderr);
        ended
    }

    /// Starts a run in the background.
    pub fn start(&self, line: &str) -> RunningCommand {
        let arguments: Vec<_> = line.split_whitespace().collect();
        let mut child = self.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        let stderr = std::thread::spawn(move || {
            let mut text = Vec::new();
            stderr.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        RunningCommand { child: KilledOnDrop(child), stdout, said: String::new(), stderr }
    }

    /// Returns the command lines of the processes that run in this directory.
    pub fn processes(&self) -> Vec<String> {
        let here = |process: &Path| std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == self.0.path());
        let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let line = |process: PathBuf| std::fs::read_to_string(process.join("cmdline")).unwrap_or_default();
        processes.filter(|process| here(process)).map(line).collect()
    }

    /// Returns all files of the directory except the token cache, relative to it.
    pub fn files(&self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        let mut next = vec![self.0.path().to_owned()];
        while let Some(dir) = next.pop() {
            for entry in std::fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                let relative = path.strip_prefix(self.0.path()).unwrap().to_owned();
                if relative != Path::new("cache") {
                    if path.is_dir() {
                        next.push(path);
                    }
                    found.insert(relative);
                }
            }
        }
        found
    }

    /// Returns the output of `checkpoint info --json`.
    pub fn info(&self, checkpoint: &str) -> Value {
        serde_json::from_str(&self.succeed(&format!("checkpoint info {checkpoint} --json")).stdout).unwrap()
    }

    /// Returns the results of a run: digests of its last checkpoint, and step, loss and norm of every training step as
    /// text.
    pub fn result(&self, model_dir: &str, step: u64) -> RunResult {
        let info = self.info(&format!("{model_dir}/checkpoint_{step}"));
        let text = |key: &str| info[key].as_str().unwrap().to_owned();
        RunResult {
            parameters: text("parameters_blake3"),
            optimizer: text("optimizer_blake3"),
            steps: self.train_lines(model_dir).iter().map(|line| StepLine::of(line)).collect(),
        }
    }

    /// Resumes the run that ended in `model_dir`, on `num_csx` systems, for `steps` more. The result must equal that of
    /// an uninterrupted run into `whole`.
    pub fn assert_resumes(&self, model_dir: &str, num_csx: u32, steps: u64) {
        let last = self.train_lines(model_dir).len() as u64 + steps;
        self.succeed(&format!("train -p params.yaml -o {model_dir} --num_csx {num_csx} --max_steps {last}"));
        self.succeed(&format!("train -p params.yaml -o whole --num_csx 1 --max_steps {last}"));
        assert_eq!(self.result(model_dir, last), self.result("whole", last));
    }

    /// Returns the training lines of `metrics.jsonl`.
    pub fn train_lines(&self, model_dir: &str) -> Vec<String> {
        let mut lines = self.lines(model_dir);
        lines.retain(|line| !line.contains("\"mode\""));
        lines
    }

    /// Returns step and loss of every evaluation in `metrics.jsonl`.
    pub fn evaluations(&self, model_dir: &str) -> Vec<(u64, f64)> {
        let lines = self.lines(model_dir);
        let evaluations = lines.iter().filter(|line| line.contains("\"mode\""));
        let values = evaluations.map(|line| serde_json::from_str::<Value>(line).unwrap());
        values.map(|line| (line["step"].as_u64().unwrap(), line["loss"].as_f64().unwrap())).collect()
    }

    fn lines(&self, model_dir: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(model_dir).join("metrics.jsonl")).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

/// The results of a run, see [`TestDir::result`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunResult {
    pub parameters: String,
    pub optimizer: String,
    pub steps: Vec<StepLine>,
}

/// Values of a line of `metrics.jsonl`, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepLine {
    step: String,
    loss: String,
    grad_norm: String,
}

impl StepLine {
    fn of(line: &str) -> Self {
        let value = |key: &str| {
            let (_, rest) = line.split_once(&format!("\"{key}\":")).unwrap_or_else(|| panic!("no {key} in {line}"));
            rest.split([',', '}']).next().unwrap().to_owned()
        };
        Self { step: value("step"), loss: value("loss"), grad_norm: value("grad_norm") }
    }
}

impl CommandOutput {
    /// Returns the exit code; -1 if a signal ended the process.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }
}

/// A run in the background.
pub struct RunningCommand {
    child: KilledOnDrop,
    stdout: BufReader<ChildStdout>,
    said: String,
    stderr: std::thread::JoinHandle<String>,
}

/// A process that does not outlive a test that fails.
pub struct KilledOnDrop(pub Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // Both fail harmlessly if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl RunningCommand {
    /// Reads standard output up to a line that contains `word`.
    pub fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            if self.stdout.read_line(&mut line).unwrap() == 0 {
                let stderr = std::mem::replace(&mut self.stderr, std::thread::spawn(String::new)).join().unwrap();
                panic!("the run ended before it said {word:?}:\n{}\n{stderr}", self.said);
            }
            self.said.push_str(&line);
        }
    }

    /// Sends a signal to the launcher.
    pub fn signal(&self, signal: Signal) {
        kill(self.child.0.id(), signal);
    }

    /// Returns the run's role processes, with their names as `role-index`.
    pub fn roles(&self) -> Vec<(String, u32)> {
        children(self.child.0.id())
            .into_iter()
            .filter_map(|pid| {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
                let words: Vec<_> = line.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
                let at = words.iter().position(|word| word == "role")?;
                let index = words.iter().find_map(|word| word.strip_prefix("--index="))?;
                Some((format!("{}-{index}", words.get(at + 1)?), pid))
            })
            .collect()
    }

    /// Waits for the end of the run.
    pub fn end(mut self) -> CommandOutput {
        self.stdout.read_to_string(&mut self.said).unwrap();
        let status = self.child.0.wait().unwrap();
        CommandOutput { status, stdout: self.said, stderr: self.stderr.join().unwrap() }
    }
}

/// Sends a signal to a process.
pub fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

fn children(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap();
    let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(|&pid| stat(pid).is_some_and(|(_, of)| of == parent)).collect()
}

/// Returns state and parent of a process.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any character.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Waits until none of these processes is running.
pub fn wait_until_ended(processes: &[(String, u32)]) {
    let began = Instant::now();
    loop {
        let alive = |pid| stat(pid).is_some_and(|(state, _)| state != 'Z');
        let left: Vec<_> = processes.iter().filter(|(_, pid)| alive(*pid)).collect();
        if left.is_empty() {
            return;
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "still there: {left:?}");
        poll_delay();
    }
}

#[expect(clippy::disallowed_methods, reason = "the end of a process that is not a child is not notified")]
fn poll_delay() {
    std::thread::sleep(Duration::from_millis(20));
}
