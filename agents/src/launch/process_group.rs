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

use super::issuer::Issuer;
use super::process::{ChildProcess, DesiredState, LastLines, OutputMode, Pipes, this_program};
use super::ready::parse_ready;
use super::role_commands::role_commands;
use super::run::{document, first_line};
use super::supervise::ProcessExit;
use super::{LaunchError, ListenAddresses, LocalRun};

/// Called whenever the status of a process has changed.
type ChangeCallback = Arc<dyn Fn() + Send + Sync>;

/// The processes of one attempt. Dropping it kills every process.
pub struct ProcessGroup {
    hands: Vec<Arc<RunningProcess>>,
    journal: Option<JournalEndpoint>,
    /// Kept open: a process ends when its standard input closes.
    _stdins: Vec<ChildStdin>,
    orders: watch::Sender<DesiredState>,
    /// Number of running processes.
    alive: watch::Sender<usize>,
}

/// The status of a process.
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
    state: Mutex<(bool, Option<(ProcessExit, SystemTime)>)>,
}

impl RunningProcess {
    fn change(&self, change: impl FnOnce(&mut (bool, Option<(ProcessExit, SystemTime)>)), changed: &ChangeCallback) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        changed();
    }

    fn status(&self) -> ProcessStatus {
        let (ready, ended) = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        ProcessStatus { agent: self.agent, ready, ended, last_lines: self.last_lines.get() }
    }
}

impl ProcessGroup {
    /// Starts the coordinator of `run`, and all other processes once it listens. If the coordinator ends before it
    /// listens, no other process is started. `changed` is called, from any thread, whenever a process has become ready
    /// or has ended.
    ///
    /// # Errors
    /// A process can't be started. The processes started before are killed.
    pub async fn start(run: &LocalRun, changed: ChangeCallback) -> Result<Self, LaunchError> {
        let members = role_commands(run)?;
        let (coordinator, others) = members.split_first().ok_or(LaunchError::Ports { base: 0 })?;
        let document = document(&run.launch)?;
        let issuer = Issuer::new(run)?;
        let (orders, alive) = (watch::Sender::new(DesiredState::Run), watch::Sender::new(0));
        let mut crew = Self { hands: Vec::new(), journal: None, _stdins: Vec::new(), orders, alive };
        let (hand, Pipes { mut stdin, stdout }) = crew.start_process(coordinator, None, &changed)?;
        let lines = format!("{}{document}\n", issuer.identity_line(coordinator.agent())?);
        // If the coordinator has ended already, its exit is reported by its status.
        let _ = stdin.write_all(lines.as_bytes()).await;
        crew._stdins.push(stdin);
        let Some(stdout) = stdout else { return Ok(crew) };
        let mut lines = BufReader::new(stdout);
        let Some(ListenAddresses { control, journal, .. }) = first_line(&mut lines).await? else { return Ok(crew) };
        crew.journal = Some(issuer.journal(&journal)?);
        hand.change(|state| state.0 = true, &changed);
        // The output for the user is also in the logs, so it is discarded.
        tokio::spawn(async move { while let Ok(Some(_)) = next_line(&mut lines).await {} });
        for member in others {
            let (hand, Pipes { mut stdin, stdout }) = crew.start_process(member, Some(&control), &changed)?;
            let _ = stdin.write_all(issuer.identity_line(member.agent())?.as_bytes()).await;
            crew._stdins.push(stdin);
            if let Some(stdout) = stdout {
                tokio::spawn(read_readiness(hand, stdout, changed.clone()));
            }
        }
        Ok(crew)
    }

    /// Starts a process, and watches for its end.
    fn start_process(
        &mut self,
        member: &RoleCommand,
        coordinator: Option<&str>,
        changed: &ChangeCallback,
    ) -> Result<(Arc<RunningProcess>, Pipes), LaunchError> {
        let program = this_program().map_err(LaunchError::system("find this program's file"))?;
        let started = ChildProcess::start(&program, member, coordinator, OutputMode::Pipes);
        let (process, pipes) = started.map_err(LaunchError::system(format!("start {}", member.agent())))?;
        let hand = Arc::new(RunningProcess {
            agent: process.agent,
            last_lines: process.last_lines.clone(),
            state: Mutex::default(),
        });
        self.hands.push(hand.clone());
        let (orders, changed, known) = (self.orders.subscribe(), changed.clone(), hand.clone());
        let alive = self.alive.clone();
        alive.send_modify(|alive| *alive += 1);
        tokio::spawn(async move {
            let (_, ending) = process.end(orders).await;
            known.change(|state| *state = (false, Some((ending, SystemTime::now()))), &changed);
            alive.send_modify(|alive| *alive -= 1);
        });
        Ok((hand, pipes))
    }

    /// Returns the connection to the coordinator's journal; `None` if the coordinator ended before it listened.
    pub const fn journal(&self) -> Option<&JournalEndpoint> {
        self.journal.as_ref()
    }

    /// Returns the status of each process, in the order in which they were started.
    pub fn statuses(&self) -> Vec<ProcessStatus> {
        self.hands.iter().map(|hand| hand.status()).collect()
    }

    /// Returns whether every process has ended.
    pub fn has_ended(&self) -> bool {
        self.hands.iter().all(|hand| hand.status().ended.is_some())
    }

    /// Waits until every process has ended.
    pub async fn wait(&self) {
        // An error means that the sender was dropped, so the count can't change.
        let _ = self.alive.subscribe().wait_for(|alive| *alive == 0).await;
    }

    /// Asks every running process to end in order: the coordinator saves the last committed step first.
    pub fn terminate(&self) {
        self.orders.send_if_modified(|order| {
            let lives = *order == DesiredState::Run;
            if lives {
                *order = DesiredState::Terminate;
            }
            lives
        });
    }

    /// Kills every running process.
    pub fn kill(&self) {
        self.orders.send_replace(DesiredState::Kill);
    }
}

async fn read_readiness(hand: Arc<RunningProcess>, stdout: ChildStdout, changed: ChangeCallback) {
    let mut lines = BufReader::new(stdout);
    while let Ok(Some(line)) = next_line(&mut lines).await {
        if let Some(ready) = parse_ready(&line) {
            hand.change(|state| state.0 = ready, &changed);
        }
    }
}

async fn next_line(lines: &mut BufReader<ChildStdout>) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    let read = lines.read_until(b'\n', &mut line).await?;
    Ok((read > 0).then(|| String::from_utf8_lossy(&line).into_owned()))
}
