//! The processes of an attempt: starts them and their replacements, and returns what happens to them as events. The
//! callers decide: the launcher (`run.rs`) and the process group (`process_group.rs`).

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use millrace_engine::types::{AgentId, Role};
use millrace_protocol::journal::JournalEndpoint;
use millrace_protocol::launch::RoleCommand;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;

use super::coordinator_start::{document, first_line};
use super::coordinator_watch::watch_coordinator;
use super::issuer::Issuer;
use super::process::{ChildProcess, DesiredState, LastLines, OutputMode, Pipes, this_program};
use super::ready::{parse_failure, parse_ready, parse_unresponsive};
use super::role_commands::role_commands;
use super::supervise::ProcessExit;
use super::{Exit, LaunchError, LocalRun};

/// What happened to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildEvent {
    /// It ended after it had run for this time.
    Ended(AgentId, ProcessExit, Duration),
    /// The time of [`Children::schedule_replacement`] has elapsed.
    ReplacementDue(AgentId),
    /// The coordinator counts the agent as lost, or does not respond itself. The process has run for this time.
    Unresponsive(AgentId, Duration),
    /// It has become ready, or is no longer ready. Only with [`OutputMode::Pipes`].
    Ready(AgentId, bool),
}

/// What the readers of output have found.
enum Message {
    Unresponsive(AgentId),
    /// Of the process that was started at this time.
    Ready(AgentId, Instant, bool),
}

/// The newest process of an agent.
struct Child {
    started: Instant,
    last_lines: LastLines,
    desired_state: watch::Sender<DesiredState>,
    /// Kept open: a process ends when its standard input closes.
    _stdin: ChildStdin,
}

/// The processes of an attempt. Dropping it kills them.
pub struct Children {
    program: PathBuf,
    output: OutputMode,
    issuer: Issuer,
    /// The launch document of the coordinator.
    document: String,
    /// The command line of each process; the coordinator is first. After its first start, it has the addresses at which
    /// the coordinator listened: a replacement listens there, too.
    commands: Vec<RoleCommand>,
    /// Address at which agents join; `None` before the coordinator listens.
    control: Option<String>,
    journal: Option<JournalEndpoint>,
    newest: HashMap<AgentId, Child>,
    running: JoinSet<(AgentId, ProcessExit, Duration)>,
    /// Replacements that are due after a delay.
    delays: JoinSet<AgentId>,
    messages: (mpsc::UnboundedSender<Message>, mpsc::UnboundedReceiver<Message>),
    /// Tasks that read the output of processes.
    readers: JoinSet<()>,
    /// The task that watches whether the coordinator responds.
    watching: JoinSet<()>,
}

impl Children {
    /// Prepares the processes of `run` without starting any.
    ///
    /// # Errors
    /// The program or an identity is not available, or the fixed ports exceed the highest port.
    pub fn new(run: &LocalRun, output: OutputMode) -> Result<Self, LaunchError> {
        Ok(Self {
            program: this_program().map_err(LaunchError::system("find this program's file"))?,
            output,
            issuer: Issuer::new(run)?,
            document: document(&run.launch)?,
            commands: role_commands(run)?,
            control: None,
            journal: None,
            newest: HashMap::new(),
            running: JoinSet::new(),
            delays: JoinSet::new(),
            messages: mpsc::unbounded_channel(),
            readers: JoinSet::new(),
            watching: JoinSet::new(),
        })
    }

    /// Adds the agents of `run` that do not exist yet, without starting them. A coordinator that is started later reads
    /// the launch document of `run`.
    ///
    /// # Errors
    /// A process could not be started with these settings; nothing is changed.
    pub fn add_agents(&mut self, run: &LocalRun) -> Result<(), LaunchError> {
        let (document, mut commands) = (document(&run.launch)?, role_commands(run)?);
        commands.retain(|command| !self.agents().any(|agent| agent == command.agent()));
        self.document = document;
        self.commands.extend(commands);
        Ok(())
    }

    /// Removes an agent whose process has ended.
    pub fn remove_agent(&mut self, agent: AgentId) {
        self.commands.retain(|command| command.agent() != agent);
        self.newest.remove(&agent);
    }

    /// Returns the agents in the order in which they are started.
    pub fn agents(&self) -> impl Iterator<Item = AgentId> + '_ {
        self.commands.iter().map(RoleCommand::agent)
    }

    /// Starts the coordinator, and all other processes once it listens. If the coordinator ends before, starts no other
    /// process and returns false.
    ///
    /// # Errors
    /// A process can't be started.
    pub async fn start_all(&mut self) -> Result<bool, LaunchError> {
        let agents: Vec<AgentId> = self.agents().collect();
        let (&coordinator, others) = agents.split_first().ok_or(LaunchError::Ports { base: 0 })?;
        let Some(mut lines) = self.start(coordinator).await? else { return Ok(false) };
        let Some(listening) = first_line(&mut lines).await? else { return Ok(false) };
        self.readers.spawn(read_coordinator(lines, self.output, self.messages.0.clone()));
        let journal = self.issuer.journal(&listening.journal)?;
        let (watched, messages) = (journal.clone(), self.messages.0.clone());
        self.watching.spawn(watch_coordinator(watched, move || {
            // The receiver is dropped when the run has ended.
            let _ = messages.send(Message::Unresponsive(coordinator));
        }));
        self.journal = Some(journal);
        if let Some(command) = self.commands.first_mut() {
            command.listen = Some(listening.control.clone());
            command.journal_listen = Some(listening.journal);
            command.metrics_listen = Some(listening.metrics).filter(|address| !address.is_empty());
        }
        self.control = Some(listening.control);
        for &agent in others {
            self.start(agent).await?;
        }
        Ok(true)
    }

    /// Starts a process of `agent`, and reads the output of any but a coordinator, whose lines it returns.
    async fn start(&mut self, agent: AgentId) -> Result<Option<BufReader<ChildStdout>>, LaunchError> {
        let Some(command) = self.commands.iter().find(|command| command.agent() == agent) else { return Ok(None) };
        let is_coordinator = agent.role == Role::Coordinator;
        let coordinator = self.control.as_deref().filter(|_| !is_coordinator);
        let started = ChildProcess::start(&self.program, command, coordinator, self.output);
        let (process, Pipes { mut stdin, stdout }) = started.map_err(LaunchError::system(format!("start {agent}")))?;
        let (started, desired_state) = (Instant::now(), watch::Sender::new(DesiredState::Run));
        let (last_lines, end) = (process.last_lines.clone(), process.end(desired_state.subscribe()));
        self.running.spawn(async move {
            let (agent, exit) = end.await;
            (agent, exit, started.elapsed())
        });
        let mut input = self.issuer.identity_line(agent)?;
        if is_coordinator {
            input.push_str(&format!("{}\n", self.document));
        }
        // If the process has ended already, its exit is reported when it is waited for.
        let _ = stdin.write_all(input.as_bytes()).await;
        self.newest.insert(agent, Child { started, last_lines, desired_state, _stdin: stdin });
        let lines = stdout.map(BufReader::new);
        if is_coordinator {
            return Ok(lines);
        }
        if let Some(lines) = lines {
            self.readers.spawn(read_agent(lines, (agent, started), self.messages.0.clone()));
        }
        Ok(None)
    }

    /// Starts a process of an agent that has none: another one has ended, or the agent was added. If that is
    /// impossible, prints why; the process then counts as one that has failed at once.
    pub async fn start_later(&mut self, agent: AgentId) {
        match self.start(agent).await {
            Ok(Some(mut lines)) => {
                let (output, messages) = (self.output, self.messages.0.clone());
                self.readers.spawn(async move {
                    // The addresses are those of its predecessor.
                    if let Ok(Some(_)) = first_line(&mut lines).await {
                        read_coordinator(lines, output, messages).await;
                    }
                });
            }
            Ok(None) => {}
            Err(error) => {
                eprintln!("error: {error}");
                let exit = ProcessExit::Code(Exit::Failed.code().into());
                self.running.spawn(async move { (agent, exit, Duration::ZERO) });
            }
        }
    }

    /// Lets [`ChildEvent::ReplacementDue`] follow after this time.
    pub fn schedule_replacement(&mut self, agent: AgentId, after: Duration) {
        self.delays.spawn(async move {
            sleep(after).await;
            agent
        });
    }

    /// Waits for the next event; forever if there is none. Cancel safe.
    pub async fn next_event(&mut self) -> ChildEvent {
        loop {
            tokio::select! {
                Some(ended) = self.running.join_next() => {
                    // The task that waits for a process fails only if it is aborted, with the process.
                    if let Ok((agent, exit, uptime)) = ended {
                        return ChildEvent::Ended(agent, exit, uptime);
                    }
                }
                Some(due) = self.delays.join_next() => {
                    let due: Result<AgentId, JoinError> = due;
                    if let Ok(agent) = due {
                        return ChildEvent::ReplacementDue(agent);
                    }
                }
                Some(message) = self.messages.1.recv() => {
                    if let Some(event) = self.event_of(&message) {
                        return event;
                    }
                }
            }
        }
    }

    fn event_of(&self, message: &Message) -> Option<ChildEvent> {
        match *message {
            Message::Unresponsive(agent) => {
                Some(ChildEvent::Unresponsive(agent, self.newest.get(&agent)?.started.elapsed()))
            }
            Message::Ready(agent, started, ready) => {
                (self.newest.get(&agent)?.started == started).then_some(ChildEvent::Ready(agent, ready))
            }
        }
    }

    /// Sets the state that the newest process of `agent` should have.
    pub fn set_state(&self, agent: AgentId, state: DesiredState) {
        if let Some(child) = self.newest.get(&agent) {
            child.desired_state.send_replace(state);
        }
    }

    /// Sets the state that every process should have.
    pub fn set_all_states(&self, state: DesiredState) {
        self.newest.values().for_each(|child| _ = child.desired_state.send_replace(state));
    }

    /// Returns the connection to the coordinator's journal; `None` if the coordinator ended before it listened.
    pub const fn journal(&self) -> Option<&JournalEndpoint> {
        self.journal.as_ref()
    }

    /// Returns the last lines of the newest process of `agent`.
    pub fn last_lines(&self, agent: AgentId) -> LastLines {
        self.newest.get(&agent).map(|child| child.last_lines.clone()).unwrap_or_default()
    }

    /// Waits until the output of all processes, which have ended, has been read.
    pub async fn finish_reading(&mut self) {
        while self.readers.join_next().await.is_some() {}
    }
}

/// Reads the lines of a coordinator as they arrive. On a terminal, copies them to standard output, and the
/// coordinator's failure, the last one, to standard error; if the reader closes standard output (`| head`), the run
/// continues.
async fn read_coordinator(
    mut from: BufReader<ChildStdout>,
    output: OutputMode,
    messages: mpsc::UnboundedSender<Message>,
) {
    let mut out = (output == OutputMode::Terminal).then(tokio::io::stdout);
    let mut line = Vec::new();
    while let Ok(1..) = from.read_until(b'\n', &mut line).await {
        if let Some(failure) = parse_failure(&line).filter(|_| output == OutputMode::Terminal) {
            eprintln!("{failure}");
        } else if let Some(agent) = parse_unresponsive(&line) {
            // The receiver is dropped when the run has ended.
            let _ = messages.send(Message::Unresponsive(agent));
        } else if let Some(to) = &mut out
            && (to.write_all(&line).await.is_err() || to.flush().await.is_err())
        {
            out = None;
        }
        line.clear();
    }
}

/// Reads whether an agent is ready.
async fn read_agent(
    mut from: BufReader<ChildStdout>,
    (agent, started): (AgentId, Instant),
    messages: mpsc::UnboundedSender<Message>,
) {
    let mut line = Vec::new();
    while let Ok(1..) = from.read_until(b'\n', &mut line).await {
        if let Some(ready) = parse_ready(&String::from_utf8_lossy(&line)) {
            let _ = messages.send(Message::Ready(agent, started, ready));
        }
        line.clear();
    }
}
