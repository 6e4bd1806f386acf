//! One role's process: started, watched, its last words kept.

use std::collections::VecDeque;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use millrace_engine::types::{AgentId, Role};
use millrace_protocol::launch::{ALLOCATOR, BY_LAUNCHER, ROLE_VARIABLE};
use millrace_traces::TraceParent;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;

use super::fleet::Member;
use super::supervise::Ending;

/// Lines kept of what an agent prints.
const LAST_LINES: usize = 20;

/// What a process printed last.
#[derive(Clone, Debug, Default)]
pub struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LAST_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The lines, oldest first.
    pub fn get(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Where what a process prints goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    /// A coordinator's to this program's own standard output and error, its user's terminal; nobody else is heard.
    Terminal,
    /// To pipes, all of it.
    Pipes,
}

/// What is to become of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It goes on.
    Live,
    /// It is asked, by SIGTERM, to end in good order.
    Leave,
    /// It is killed.
    Die,
}

/// A process that runs.
#[derive(Debug)]
pub struct Process {
    /// Who it is.
    pub agent: AgentId,
    /// What it printed last on standard error; nothing where that is the launcher's.
    pub last_lines: LastLines,
    child: Child,
    reader: Option<tokio::task::JoinHandle<()>>,
}

/// The two pipes to a process. It ends when its standard input is dropped.
#[derive(Debug)]
pub struct Pipes {
    /// Standard input.
    pub stdin: ChildStdin,
    /// Standard output, where it is heard.
    pub stdout: Option<ChildStdout>,
}

/// The file of this program, or the program itself where its file was replaced by another version while it runs.
pub fn this_program() -> std::io::Result<PathBuf> {
    let file = std::env::current_exe()?;
    Ok(if file.exists() { file } else { PathBuf::from("/proc/self/exe") })
}

impl Process {
    /// Starts `member` from the program at `program`, which joins `coordinator` where it is not one itself.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(
        program: &Path,
        member: &Member,
        coordinator: Option<&str>,
        voice: Voice,
    ) -> std::io::Result<(Self, Pipes)> {
        let directs = member.agent.role == Role::Coordinator;
        let piped = voice == Voice::Pipes;
        let mut command = Command::new(program);
        command
            .args(&member.arguments)
            .args(coordinator.into_iter().flat_map(|address| ["--coordinator", address]))
            .env(ROLE_VARIABLE, BY_LAUNCHER)
            .envs(ALLOCATOR)
            .envs(TraceParent::current().map(|parent| (TraceParent::VARIABLE, parent.to_string())))
            .stdin(Stdio::piped())
            .stdout(if directs || piped { Stdio::piped() } else { Stdio::null() })
            // Its progress bars need to see the terminal.
            .stderr(if directs && !piped { Stdio::inherit() } else { Stdio::piped() })
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let stdin = child.stdin.take().ok_or_else(|| std::io::Error::other("a process without standard input"))?;
        let stdout = child.stdout.take();
        let last_lines = LastLines::default();
        let reader = child.stderr.take().map(|pipe| tokio::spawn(keep_last(pipe, last_lines.clone())));
        Ok((Self { agent: member.agent, last_lines, child, reader }, Pipes { stdin, stdout }))
    }

    /// Waits for it to end; meanwhile does with it what is ordered.
    pub async fn end(mut self, mut orders: watch::Receiver<Order>) -> (AgentId, Ending) {
        let status = loop {
            tokio::select! {
                status = self.child.wait() => break status,
                // An error means that the launcher is gone: nobody is left to wait for this process.
                order = orders.changed() => match order.map_or(Order::Die, |()| *orders.borrow_and_update()) {
                    Order::Live => {}
                    Order::Leave => self.ask_to_leave(),
                    Order::Die => {
                        // It may have ended by itself just now.
                        let _ = self.child.start_kill();
                        break self.child.wait().await;
                    }
                },
            }
        };
        if let Some(reader) = self.reader.take() {
            // Ends with the pipe, which ended with the process.
            let _ = reader.await;
        }
        (self.agent, status.map_or(Ending::Code(1), ending))
    }

    fn ask_to_leave(&self) {
        // Nobody has waited for it, so the number is its own; one that ended just now is not there to be asked.
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

fn ending(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Code(code),
        (None, signal) => Ending::Signal(signal.unwrap_or_default()),
    }
}

async fn keep_last(pipe: impl AsyncRead + Unpin, last: LastLines) {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    while let Ok(1..) = pipe.read_until(b'\n', &mut line).await {
        last.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
}
