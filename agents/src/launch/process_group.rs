//! The processes of one attempt, for a program that runs many jobs: reports the status of each process and leaves
//! decisions to the caller.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use millrace_engine::types::AgentId;
use millrace_protocol::journal::JournalEndpoint;
use millrace_protocol::launch::RoleCommand;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::watch;

use super::coordinator_start::{document, first_line};
use super::issuer::Issuer;
use super::process::{ChildProcess, DesiredState, LastLines, OutputMode, Pipes, this_program};
use super::ready::parse_ready;
use super::role_commands::role_commands;
use super::supervise::ProcessExit;
use super::{LaunchError, ListenAddresses, LocalRun};

/// Called whenever the status of a process has changed.
type ChangeCallback = Arc<dyn Fn() + Send + Sync>;

/// The processes of one attempt. Dropping it kills every process.
pub struct ProcessGroup {
    processes: Vec<Arc<RunningProcess>>,
    journal: Option<JournalEndpoint>,
    /// Kept open: a process ends when its standard input closes.
    _stdins: Vec<ChildStdin>,
    desired_state: watch::Sender<DesiredState>,
    /// Number of running processes.
    alive: watch::Sender<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStatus {
    /// The agent that the process runs.
    pub agent: AgentId,
    /// Whether the process has joined the job and is ready.
    pub ready: bool,
    /// How and when the process ended; `None` while it runs.
    pub ended: Option<(ProcessExit, SystemTime)>,
    /// The last lines that it wrote to standard error.
    pub last_lines: Vec<String>,
}

struct RunningProcess {
    agent: AgentId,
    last_lines: LastLines,
    state: Mutex<ProcessState>,
}

#[derive(Clone, Copy, Default)]
struct ProcessState {
    ready: bool,
    ended: Option<(ProcessExit, SystemTime)>,
}

impl RunningProcess {
    fn change(&self, change: impl FnOnce(&mut ProcessState), changed: &ChangeCallback) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        changed();
    }

    fn status(&self) -> ProcessStatus {
        let ProcessState { ready, ended } = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        ProcessStatus { agent: self.agent, ready, ended, last_lines: self.last_lines.get() }
    }
}

impl ProcessGroup {
    /// Starts the coordinator of `run`, and all other processes once it listens. If the coordinator ends before it
    /// listens, no other process is started. `changed` is called, from any thread, whenever a process has become ready
    /// or has ended.
    ///
    /// # Errors
    /// A process can't be started. The processes started before are killed. They are also killed if this future is
    /// dropped.
    pub async fn start(run: &LocalRun, changed: ChangeCallback) -> Result<Self, LaunchError> {
        let commands = role_commands(run)?;
        let (coordinator, others) = commands.split_first().ok_or(LaunchError::Ports { base: 0 })?;
        let document = document(&run.launch)?;
        let issuer = Issuer::new(run)?;
        let (desired_state, alive) = (watch::Sender::new(DesiredState::Run), watch::Sender::new(0));
        let mut group = Self { processes: Vec::new(), journal: None, _stdins: Vec::new(), desired_state, alive };
        let (process, Pipes { mut stdin, stdout }) = group.start_process(coordinator, None, &changed)?;
        let lines = format!("{}{document}\n", issuer.identity_line(coordinator.agent())?);
        // If the coordinator has ended already, its exit is reported by its status.
        let _ = stdin.write_all(lines.as_bytes()).await;
        group._stdins.push(stdin);
        let Some(stdout) = stdout else { return Ok(group) };
        let mut lines = BufReader::new(stdout);
        let Some(ListenAddresses { control, journal, .. }) = first_line(&mut lines).await? else { return Ok(group) };
        group.journal = Some(issuer.journal(&journal)?);
        process.change(|state| state.ready = true, &changed);
        // The output for the user is also in the logs, so it is discarded.
        tokio::spawn(async move { while let Ok(Some(_)) = next_line(&mut lines).await {} });
        for command in others {
            let (process, Pipes { mut stdin, stdout }) = group.start_process(command, Some(&control), &changed)?;
            let _ = stdin.write_all(issuer.identity_line(command.agent())?.as_bytes()).await;
            group._stdins.push(stdin);
            if let Some(stdout) = stdout {
                tokio::spawn(read_readiness(process, stdout, changed.clone()));
            }
        }
        Ok(group)
    }

    /// Starts a process, and watches for its end.
    fn start_process(
        &mut self,
        command: &RoleCommand,
        coordinator: Option<&str>,
        changed: &ChangeCallback,
    ) -> Result<(Arc<RunningProcess>, Pipes), LaunchError> {
        let program = this_program().map_err(LaunchError::system("find this program's file"))?;
        let started = ChildProcess::start(&program, command, coordinator, OutputMode::Pipes);
        let (child, pipes) = started.map_err(LaunchError::system(format!("start {}", command.agent())))?;
        let process = Arc::new(RunningProcess {
            agent: child.agent,
            last_lines: child.last_lines.clone(),
            state: Mutex::default(),
        });
        self.processes.push(process.clone());
        let (desired_state, changed, observed) = (self.desired_state.subscribe(), changed.clone(), process.clone());
        let alive = self.alive.clone();
        alive.send_modify(|alive| *alive += 1);
        tokio::spawn(async move {
            let (_, exit) = child.end(desired_state).await;
            observed.change(
                |state| *state = ProcessState { ready: false, ended: Some((exit, SystemTime::now())) },
                &changed,
            );
            alive.send_modify(|alive| *alive -= 1);
        });
        Ok((process, pipes))
    }

    /// Returns the connection to the coordinator's journal; `None` if the coordinator ended before it listened.
    pub const fn journal(&self) -> Option<&JournalEndpoint> {
        self.journal.as_ref()
    }

    /// Returns the status of each process, in the order in which they were started.
    pub fn statuses(&self) -> Vec<ProcessStatus> {
        self.processes.iter().map(|process| process.status()).collect()
    }

    /// Returns whether every process has ended.
    pub fn has_ended(&self) -> bool {
        self.processes.iter().all(|process| process.status().ended.is_some())
    }

    /// Waits until every process has ended.
    pub async fn wait(&self) {
        // An error means that the sender was dropped, so the count can't change.
        let _ = self.alive.subscribe().wait_for(|alive| *alive == 0).await;
    }

    /// Requests every running process to end and returns at once; see [`ProcessGroup::wait`]. The coordinator saves the
    /// last committed step first.
    pub fn terminate(&self) {
        self.desired_state.send_if_modified(|state| {
            let is_running = *state == DesiredState::Run;
            if is_running {
                *state = DesiredState::Terminate;
            }
            is_running
        });
    }

    pub fn kill(&self) {
        self.desired_state.send_replace(DesiredState::Kill);
    }
}

async fn read_readiness(process: Arc<RunningProcess>, stdout: ChildStdout, changed: ChangeCallback) {
    let mut lines = BufReader::new(stdout);
    while let Ok(Some(line)) = next_line(&mut lines).await {
        if let Some(ready) = parse_ready(&line) {
            process.change(|state| state.ready = ready, &changed);
        }
    }
}

async fn next_line(lines: &mut BufReader<ChildStdout>) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    let read = lines.read_until(b'\n', &mut line).await?;
    Ok((read > 0).then(|| String::from_utf8_lossy(&line).into_owned()))
}
