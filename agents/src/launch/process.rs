//! One role's process: started, watched, its last words kept.

use std::collections::VecDeque;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use millrace_engine::types::{AgentId, Role};
use millrace_protocol::launch::{ALLOCATOR, BY_LAUNCHER, ROLE_VARIABLE};
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

/// A process that runs.
#[derive(Debug)]
pub struct Process {
    /// Who it is.
    pub agent: AgentId,
    /// What it printed last on standard error; of a coordinator nothing, whose standard error is the launcher's.
    pub last_lines: LastLines,
    child: Child,
    reader: Option<tokio::task::JoinHandle<()>>,
}

/// The two pipes to a process. It ends when its standard input is dropped.
#[derive(Debug)]
pub struct Pipes {
    /// Standard input.
    pub stdin: ChildStdin,
    /// Standard output; a coordinator's only.
    pub stdout: Option<ChildStdout>,
}

impl Process {
    /// Starts `member` from the program at `program`, which joins `coordinator` where it is not one itself.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(program: &Path, member: &Member, coordinator: Option<&str>) -> std::io::Result<(Self, Pipes)> {
        let directs = member.agent.role == Role::Coordinator;
        let mut command = Command::new(program);
        command
            .args(&member.arguments)
            .args(coordinator.into_iter().flat_map(|address| ["--coordinator", address]))
            .env(ROLE_VARIABLE, BY_LAUNCHER)
            .envs(ALLOCATOR)
            .stdin(Stdio::piped())
            .stdout(if directs { Stdio::piped() } else { Stdio::null() })
            // Its progress bars need to see the terminal.
            .stderr(if directs { Stdio::inherit() } else { Stdio::piped() })
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let stdin = child.stdin.take().ok_or_else(|| std::io::Error::other("a process without standard input"))?;
        let stdout = child.stdout.take();
        let last_lines = LastLines::default();
        let reader = child.stderr.take().map(|pipe| tokio::spawn(keep_last(pipe, last_lines.clone())));
        Ok((Self { agent: member.agent, last_lines, child, reader }, Pipes { stdin, stdout }))
    }

    /// Waits for it to end; kills it as soon as `kill` says so.
    pub async fn end(mut self, mut kill: watch::Receiver<bool>) -> (AgentId, Ending) {
        let ended = tokio::select! {
            status = self.child.wait() => Some(status),
            // An error means that the launcher is gone: nobody is left to wait for this process.
            _ = kill.wait_for(|&kill| kill) => None,
        };
        let status = match ended {
            Some(status) => status,
            None => {
                // It may have ended by itself just now.
                let _ = self.child.start_kill();
                self.child.wait().await
            }
        };
        if let Some(reader) = self.reader.take() {
            // Ends with the pipe, which ended with the process.
            let _ = reader.await;
        }
        (self.agent, status.map_or(Ending::Code(1), ending))
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
