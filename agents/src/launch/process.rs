//! The process of one role: starts it, waits for its end, and stores its last lines of output.

use std::collections::VecDeque;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_engine::types::{AgentId, Role};
use millrace_protocol::launch::{
    ALLOCATOR_ENVIRONMENT, FAILURE_ON_STDOUT_ENV, ROLE_ENV, RoleCommand, STARTED_BY_LAUNCHER,
};
use millrace_traces::TraceParent;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;

use super::supervise::ProcessExit;

/// Number of stored lines of an agent's output.
const MAX_LAST_LINES: usize = 20;

/// The last lines that a process printed.
#[derive(Clone, Debug, Default)]
pub struct LastLines(Arc<Mutex<PrintedLines>>);

#[derive(Debug, Default)]
struct PrintedLines {
    last: VecDeque<String>,
    /// The message of a panic. The backtrace after it may have more lines than are kept.
    panic: Option<String>,
}

impl LastLines {
    fn push(&self, line: String) {
        let mut printed = self.lock();
        if printed.last.back().is_some_and(|before| before.contains(" panicked at ")) {
            printed.panic = Some(line.clone());
        }
        if printed.last.len() == MAX_LAST_LINES {
            printed.last.pop_front();
        }
        printed.last.push_back(line);
    }

    /// Returns the lines, oldest first.
    pub fn get(&self) -> Vec<String> {
        self.lock().last.iter().cloned().collect()
    }

    /// Returns the line that explains a failure: the message of a panic, or else the last line.
    pub fn explanation(&self) -> Option<String> {
        let printed = self.lock();
        printed.panic.as_ref().or(printed.last.back()).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, PrintedLines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The destination of a process's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    /// Standard output of a coordinator is piped, to be copied to the terminal, and its standard error is that of this
    /// program. Standard output of other roles is discarded.
    Terminal,
    Pipes,
}

/// The state that a process should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredState {
    Run,
    /// Ended in order, after SIGTERM.
    Terminate,
    Kill,
}

#[derive(Debug)]
pub struct ChildProcess {
    /// The agent that the process runs.
    pub agent: AgentId,
    /// Its last lines on standard error; empty if it shares the launcher's standard error.
    pub last_lines: LastLines,
    child: Child,
    reader: Option<tokio::task::JoinHandle<()>>,
}

/// The pipes to a process. The process ends when its standard input is dropped.
#[derive(Debug)]
pub struct Pipes {
    pub stdin: ChildStdin,
    /// Standard output, if it is piped.
    pub stdout: Option<ChildStdout>,
}

/// Returns the file of this program. If another version has replaced the file, returns a path to the running program.
pub fn this_program() -> std::io::Result<PathBuf> {
    let file = std::env::current_exe()?;
    Ok(if file.exists() { file } else { PathBuf::from("/proc/self/exe") })
}

impl ChildProcess {
    /// Starts the role `role` of the program at `program`. `coordinator` is the address that the role joins; `None` for
    /// the coordinator itself.
    ///
    /// # Errors
    /// The system can't start the process.
    pub fn start(
        program: &Path,
        role: &RoleCommand,
        coordinator: Option<&str>,
        output: OutputMode,
    ) -> std::io::Result<(Self, Pipes)> {
        let is_coordinator = role.role == Role::Coordinator;
        let piped = output == OutputMode::Pipes;
        let role = RoleCommand { coordinator: coordinator.map(str::to_owned), ..role.clone() };
        let mut command = Command::new(program);
        command
            .args(role.to_args())
            .env(ROLE_ENV, STARTED_BY_LAUNCHER)
            .envs(ALLOCATOR_ENVIRONMENT)
            .envs((is_coordinator && !piped).then_some((FAILURE_ON_STDOUT_ENV, "1")))
            .envs(TraceParent::current().map(|parent| (TraceParent::VARIABLE, parent.to_string())))
            .stdin(Stdio::piped())
            .stdout(if is_coordinator || piped { Stdio::piped() } else { Stdio::null() })
            // The coordinator inherits standard error, because its progress bars need the terminal.
            .stderr(if is_coordinator && !piped { Stdio::inherit() } else { Stdio::piped() })
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let stdin = child.stdin.take().ok_or_else(|| std::io::Error::other("a process without standard input"))?;
        let stdout = child.stdout.take();
        let last_lines = LastLines::default();
        let reader = child.stderr.take().map(|pipe| tokio::spawn(collect_last_lines(pipe, last_lines.clone())));
        Ok((Self { agent: role.agent(), last_lines, child, reader }, Pipes { stdin, stdout }))
    }

    /// Waits for the end of the process; sends it the signals of `orders` in the meantime.
    pub async fn end(mut self, mut orders: watch::Receiver<DesiredState>) -> (AgentId, ProcessExit) {
        let status = loop {
            tokio::select! {
                status = self.child.wait() => break status,
                // An error means that the launcher has dropped the sender: nothing else waits for this process.
                order = orders.changed() => match order.map_or(DesiredState::Kill, |()| *orders.borrow_and_update()) {
                    DesiredState::Run => {}
                    DesiredState::Terminate => self.terminate(),
                    DesiredState::Kill => {
                        // The process may have ended by itself just now.
                        let _ = self.child.start_kill();
                        break self.child.wait().await;
                    }
                },
            }
        };
        if let Some(reader) = self.reader.take() {
            // The reader ends with the pipe, which closed when the process ended.
            let _ = reader.await;
        }
        (self.agent, status.map_or(ProcessExit::Code(1), process_exit))
    }

    fn terminate(&self) {
        // The process was not waited for, so its id is still its own. If it ended just now, the signal has no effect.
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

fn process_exit(status: ExitStatus) -> ProcessExit {
    match (status.code(), status.signal()) {
        (Some(code), _) => ProcessExit::Code(code),
        (None, signal) => ProcessExit::Signal(signal.unwrap_or_default()),
    }
}

async fn collect_last_lines(pipe: impl AsyncRead + Unpin, last: LastLines) {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    while let Ok(1..) = pipe.read_until(b'\n', &mut line).await {
        last.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_explained_by_its_panic_or_else_by_the_last_line() {
        let lines = LastLines::default();
        lines.push("error: the disk is full".to_owned());
        assert_eq!(lines.explanation().unwrap(), "error: the disk is full");
        lines.push("thread 'main' (7) panicked at src/main.rs:1:12:".to_owned());
        lines.push("index out of bounds".to_owned());
        (0..MAX_LAST_LINES).for_each(|frame| lines.push(format!("  {frame}: a frame")));
        assert_eq!(lines.explanation().unwrap(), "index out of bounds");
    }
}
