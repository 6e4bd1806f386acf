//! The driver of the launcher: executes the decisions of the [supervisor](super::supervise).

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::{Duration, Instant};

use millrace_checkpoint::contains_checkpoints;
use millrace_engine::types::{AgentId, Role};
use millrace_protocol::journal::JournalEndpoint;
use millrace_protocol::launch::RoleCommand;
use millrace_protocol::proto::StopRequest;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep};

use super::coordinator_start::{document, first_line};
use super::coordinator_watch::watch_coordinator;
use super::issuer::Issuer;
use super::process::{ChildProcess, DesiredState, LastLines, OutputMode, Pipes, this_program};
use super::ready::{parse_failure, parse_unresponsive};
use super::role_commands::role_commands;
use super::supervise::{ProcessExit, RunExit, Supervisor, SupervisorCommand, SupervisorEvent};
use super::{Exit, LaunchError, LocalRun};

/// Runs a job to its end. Blocks. Prints progress to standard output and logs to standard error; ends the job
/// gracefully on SIGINT, SIGTERM and SIGHUP.
pub fn run_local(run: LocalRun) -> Exit {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.map_err(LaunchError::system("start an async runtime")).and_then(|runtime| {
        runtime.block_on(async {
            let interrupts = interrupts()?;
            supervise(&run, interrupts).await
        })
    });
    ended.unwrap_or_else(|error| {
        let (exit, hint) = match error {
            LaunchError::Ports { .. } => (Exit::BadInput, "give a lower --base_port, or none to use free ones"),
            LaunchError::Threads { .. } => (Exit::BadInput, "set a lower number of threads for the appliance"),
            LaunchError::System { .. } => (Exit::Failed, "check this user's limit on processes"),
        };
        eprintln!("error: {error}\nhint: {hint}");
        exit
    })
}

/// Returns a receiver of a message for every SIGINT, SIGTERM and SIGHUP from now on.
fn interrupts() -> Result<mpsc::UnboundedReceiver<()>, LaunchError> {
    let (sender, receiver) = mpsc::unbounded_channel();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let mut signals = signal(kind).map_err(LaunchError::system("listen for signals"))?;
        let sender = sender.clone();
        tokio::spawn(async move { while signals.recv().await.is_some() && sender.send(()).is_ok() {} });
    }
    Ok(receiver)
}

/// Starts every role of `run` and supervises them until all have ended. Each message of `interrupts` is one Ctrl-C.
///
/// # Errors
/// The run can't be started. The processes started before are killed.
pub async fn supervise(run: &LocalRun, mut interrupts: mpsc::UnboundedReceiver<()>) -> Result<Exit, LaunchError> {
    let mut fleet = ChildProcesses::new(run)?;
    let has_started = tokio::select! {
        started = fleet.start_all() => started?,
        // Nothing has been done yet that could be lost; dropping the fleet kills its processes.
        Some(()) = interrupts.recv() => return Ok(Exit::Interrupted),
    };
    let supervisor = Supervisor::new(&run.launch.agent_counts, has_started);
    let run_exit = fleet.supervise_to_end(supervisor, &mut interrupts).await;
    fleet.print_failed_process(run_exit, &run.launch.model_dir);
    Ok(run_exit.exit)
}

/// The processes of a run. Dropping it kills them.
struct ChildProcesses {
    program: PathBuf,
    issuer: Issuer,
    /// The launch document of the coordinator.
    document: String,
    /// The command line of each process; the coordinator is first. After its first start, it has the addresses at which
    /// the coordinator listened: a replacement listens there, too.
    members: Vec<RoleCommand>,
    /// Address at which agents join; `None` before the coordinator listens.
    control: Option<String>,
    journal: Option<JournalEndpoint>,
    running: JoinSet<EndedProcess>,
    /// Replacements that are due after a delay.
    replacements: JoinSet<AgentId>,
    /// Agents that a coordinator reports as unresponsive.
    unresponsive: (mpsc::UnboundedSender<AgentId>, mpsc::UnboundedReceiver<AgentId>),
    last_lines: HashMap<AgentId, LastLines>,
    /// When the newest process of each agent was started.
    started: HashMap<AgentId, Instant>,
    /// Kept open: a process ends when its standard input closes.
    stdins: HashMap<AgentId, ChildStdin>,
    /// What each process should do; only of the newest process of each agent.
    orders: HashMap<AgentId, watch::Sender<DesiredState>>,
    /// Copies the lines of coordinators to the terminal.
    copying: JoinSet<()>,
    /// Watches whether the coordinator responds.
    watching: JoinSet<()>,
}

/// A process that has ended, and how long it ran.
type EndedProcess = (AgentId, ProcessExit, Duration);

impl ChildProcesses {
    fn new(run: &LocalRun) -> Result<Self, LaunchError> {
        Ok(Self {
            program: this_program().map_err(LaunchError::system("find this program's file"))?,
            issuer: Issuer::new(run)?,
            document: document(&run.launch)?,
            members: role_commands(run)?,
            control: None,
            journal: None,
            running: JoinSet::new(),
            replacements: JoinSet::new(),
            unresponsive: mpsc::unbounded_channel(),
            last_lines: HashMap::new(),
            started: HashMap::new(),
            stdins: HashMap::new(),
            orders: HashMap::new(),
            copying: JoinSet::new(),
            watching: JoinSet::new(),
        })
    }

    /// Starts the coordinator, and all other processes once it listens. If the coordinator ends before, starts no other
    /// process and returns false.
    async fn start_all(&mut self) -> Result<bool, LaunchError> {
        let agents: Vec<AgentId> = self.members.iter().map(RoleCommand::agent).collect();
        let (&coordinator, others) = agents.split_first().ok_or(LaunchError::Ports { base: 0 })?;
        let Some(mut lines) = self.start(coordinator).await? else { return Ok(false) };
        let Some(listening) = first_line(&mut lines).await? else { return Ok(false) };
        self.copying.spawn(copy_lines(lines, self.unresponsive.0.clone()));
        let journal = self.issuer.journal(&listening.journal)?;
        self.watching.spawn(watch_coordinator(journal.clone(), self.unresponsive.0.clone()));
        self.journal = Some(journal);
        let command = &mut self.members[0];
        command.listen = Some(listening.control.clone());
        command.journal_listen = Some(listening.journal);
        command.metrics_listen = Some(listening.metrics).filter(|address| !address.is_empty());
        self.control = Some(listening.control);
        for &agent in others {
            self.start(agent).await?;
        }
        Ok(true)
    }

    /// Starts a process of `agent`; returns the standard output of a coordinator.
    async fn start(&mut self, agent: AgentId) -> Result<Option<BufReader<ChildStdout>>, LaunchError> {
        let Some(member) = self.members.iter().find(|member| member.agent() == agent) else { return Ok(None) };
        let is_coordinator = agent.role == Role::Coordinator;
        let coordinator = self.control.as_deref().filter(|_| !is_coordinator);
        let started = ChildProcess::start(&self.program, member, coordinator, OutputMode::Terminal);
        let (process, Pipes { mut stdin, stdout }) = started.map_err(LaunchError::system(format!("start {agent}")))?;
        let orders = watch::Sender::new(DesiredState::Run);
        self.last_lines.insert(agent, process.last_lines.clone());
        let (end, started) = (process.end(orders.subscribe()), Instant::now());
        self.started.insert(agent, started);
        self.running.spawn(async move {
            let (agent, exit) = end.await;
            (agent, exit, started.elapsed())
        });
        self.orders.insert(agent, orders);
        let mut input = self.issuer.identity_line(agent)?;
        if is_coordinator {
            input.push_str(&format!("{}\n", self.document));
        }
        // If the process has ended already, its exit is reported when it is waited for.
        let _ = stdin.write_all(input.as_bytes()).await;
        self.stdins.insert(agent, stdin);
        Ok(stdout.filter(|_| is_coordinator).map(BufReader::new))
    }

    /// Starts a process that replaces one that has ended.
    async fn start_replacement(&mut self, agent: AgentId) {
        match self.start(agent).await {
            Ok(Some(mut lines)) => {
                let unresponsive = self.unresponsive.0.clone();
                self.copying.spawn(async move {
                    // The addresses are those of its predecessor.
                    if let Ok(Some(_)) = first_line(&mut lines).await {
                        copy_lines(lines, unresponsive).await;
                    }
                });
            }
            Ok(None) => {}
            Err(error) => {
                eprintln!("error: {error}");
                self.running
                    .spawn(async move { (agent, ProcessExit::Code(Exit::Failed.code().into()), Duration::ZERO) });
            }
        }
    }

    /// Handles events until every process has ended.
    async fn supervise_to_end(
        &mut self,
        mut supervisor: Supervisor,
        interrupts: &mut mpsc::UnboundedReceiver<()>,
    ) -> RunExit {
        let (stop_failed, mut stop_failures) = mpsc::unbounded_channel();
        let mut deadline = None;
        while !supervisor.is_over() {
            let event = tokio::select! {
                Some(ended) = self.running.join_next() => match ended {
                    Ok((agent, exit, uptime)) => SupervisorEvent::Ended(agent, exit, uptime),
                    // The task that waits for a process failed; the process is killed when the task is dropped.
                    Err(_) => continue,
                },
                Some(agent) = self.unresponsive.1.recv() => match self.started.get(&agent) {
                    Some(started) => SupervisorEvent::Unresponsive(agent, started.elapsed()),
                    None => continue,
                },
                Some(due) = self.replacements.join_next() => match due {
                    Ok(agent) => SupervisorEvent::ReplacementDue(agent),
                    Err(_) => continue,
                },
                Some(()) = interrupts.recv() => SupervisorEvent::Interrupted,
                Some(()) = stop_failures.recv() => SupervisorEvent::StopFailed,
                () = wait_deadline(&mut deadline) => SupervisorEvent::Deadline,
            };
            for command in supervisor.handle_event(event) {
                match command {
                    SupervisorCommand::Replace(agent, after) => {
                        self.replacements.spawn(async move {
                            sleep(after).await;
                            agent
                        });
                    }
                    SupervisorCommand::Start { agent, exit, was_unresponsive } => {
                        self.print_replacement(agent, exit, was_unresponsive);
                        self.start_replacement(agent).await;
                    }
                    SupervisorCommand::Kill(agent) => self.order(agent, DesiredState::Kill),
                    SupervisorCommand::Stop(reason) => ask_to_stop(self.journal.clone(), reason, stop_failed.clone()),
                    SupervisorCommand::Within(time) => deadline = Some(Box::pin(sleep(time))),
                    SupervisorCommand::NoDeadline => deadline = None,
                    SupervisorCommand::TerminateAll => self.order_all(DesiredState::Terminate),
                    SupervisorCommand::KillAll => self.order_all(DesiredState::Kill),
                }
            }
        }
        // The copying ends with the coordinators' pipes.
        while self.copying.join_next().await.is_some() {}
        supervisor.run_exit()
    }

    fn order(&self, agent: AgentId, state: DesiredState) {
        if let Some(orders) = self.orders.get(&agent) {
            orders.send_replace(state);
        }
    }

    fn order_all(&self, state: DesiredState) {
        self.orders.values().for_each(|orders| _ = orders.send_replace(state));
    }

    /// Prints that a process is replaced.
    fn print_replacement(&self, agent: AgentId, exit: ProcessExit, was_unresponsive: bool) {
        if was_unresponsive {
            eprintln!("warning: {agent} did not respond and was killed; a new {agent} is started");
            return;
        }
        // A failure is explained by the last line; a signal is not.
        let last = self.last_lines.get(&agent).filter(|_| matches!(exit, ProcessExit::Code(1..)));
        let last = last.and_then(|lines| lines.get().pop()).map_or_else(String::new, |line| format!(" ({line})"));
        eprintln!("warning: {agent} {exit}{last}; a new {agent} is started");
    }

    /// Prints the process whose end ended the run, with its last lines.
    fn print_failed_process(&self, run_exit: RunExit, model_dir: &Path) {
        let Some((agent, exit)) = run_exit.failed_process else { return };
        let mut text = format!("error: {agent} {exit}, which ended the run\n");
        let last = self.last_lines.get(&agent).map(LastLines::get).unwrap_or_default();
        if !last.is_empty() {
            text.push_str(&format!("{agent}'s last lines:\n"));
            last.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
        }
        text.push_str(&format!("hint: {}\n", restart_hint(model_dir)));
        // A closed standard error leaves no way to report this.
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

/// Returns what a run in `model_dir` does when it is started again.
fn restart_hint(model_dir: &Path) -> String {
    if contains_checkpoints(model_dir).unwrap_or(false) {
        format!("start it again to resume from the last checkpoint in {}", model_dir.display())
    } else {
        "start it again; there is no checkpoint yet to resume from".to_owned()
    }
}

/// Waits for the deadline, forever if there is none; then clears it.
async fn wait_deadline(deadline: &mut Option<Pin<Box<Sleep>>>) {
    match deadline {
        Some(sleep) => sleep.await,
        None => std::future::pending().await,
    }
    *deadline = None;
}

/// Asks the coordinator to save and stop, in the background, because it replies only when it is done. Notifies `failed`
/// if the coordinator can't be asked or ends without a reply.
fn ask_to_stop(journal: Option<JournalEndpoint>, reason: String, failed: mpsc::UnboundedSender<()>) {
    tokio::spawn(async move {
        let request = async {
            let mut client = journal?.connect().await.ok()?;
            client.stop(StopRequest { reason }).await.ok()
        };
        if request.await.is_none() {
            // The receiver is dropped when the run has ended.
            let _ = failed.send(());
        }
    });
}

/// Copies lines to standard output as they arrive, and the coordinator's failure, the last one, to standard error.
/// Sends the agents that it reports as unresponsive. If the reader closes standard output (`| head`), the run
/// continues.
async fn copy_lines(mut from: BufReader<ChildStdout>, unresponsive: mpsc::UnboundedSender<AgentId>) {
    let mut out = Some(tokio::io::stdout());
    let mut line = Vec::new();
    while let Ok(1..) = from.read_until(b'\n', &mut line).await {
        if let Some(failure) = parse_failure(&line) {
            eprintln!("{failure}");
        } else if let Some(agent) = parse_unresponsive(&line) {
            // The receiver is dropped when the run has ended.
            let _ = unresponsive.send(agent);
        } else if let Some(to) = &mut out
            && (to.write_all(&line).await.is_err() || to.flush().await.is_err())
        {
            out = None;
        }
        line.clear();
    }
}
