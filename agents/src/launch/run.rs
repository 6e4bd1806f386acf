//! The driver of the launcher: executes the decisions of the [supervisor](super::supervise).

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::pin::Pin;

use millrace_checkpoint::contains_checkpoints;
use millrace_engine::types::AgentId;
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
use super::issuer::Issuer;
use super::process::{ChildProcess, DesiredState, LastLines, OutputMode, Pipes, this_program};
use super::ready::parse_failure;
use super::role_commands::role_commands;
use super::supervise::{ProcessExit, RunExit, Supervisor, SupervisorCommand, SupervisorEvent};
use super::{Exit, LaunchDocument, LaunchError, ListenAddresses, LocalRun};

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
    let program = this_program().map_err(LaunchError::system("find this program's file"))?;
    let members = role_commands(run)?;
    let mut fleet = ChildProcesses::new();
    let issuer = Issuer::new(run)?;
    let started = fleet.start_all(&program, &members, &run.launch, &issuer);
    let listening = tokio::select! {
        listening = started => listening?,
        // Nothing has been done yet that could be lost; dropping the fleet kills its processes.
        Some(()) = interrupts.recv() => return Ok(Exit::Interrupted),
    };
    let journal = listening.map(|listening| issuer.journal(&listening.journal)).transpose()?;
    let run_exit = fleet.supervise_to_end(journal, &mut interrupts).await;
    fleet.print_failed_process(run_exit, &run.launch.model_dir);
    Ok(run_exit.exit)
}

/// The processes of a run. Dropping it kills them.
struct ChildProcesses {
    running: JoinSet<(AgentId, ProcessExit)>,
    last_lines: HashMap<AgentId, LastLines>,
    /// Kept open: a process ends when its standard input closes.
    stdins: Vec<ChildStdin>,
    orders: watch::Sender<DesiredState>,
    copying: Option<tokio::task::JoinHandle<()>>,
}

impl ChildProcesses {
    fn new() -> Self {
        Self {
            running: JoinSet::new(),
            last_lines: HashMap::new(),
            stdins: Vec::new(),
            orders: watch::Sender::new(DesiredState::Run),
            copying: None,
        }
    }

    /// Starts the coordinator, and all other processes once it listens. If the coordinator ends before, starts no other
    /// process and returns `None`.
    async fn start_all(
        &mut self,
        program: &Path,
        members: &[RoleCommand],
        launch: &LaunchDocument,
        issuer: &Issuer,
    ) -> Result<Option<ListenAddresses>, LaunchError> {
        let (coordinator, others) = members.split_first().ok_or(LaunchError::Ports { base: 0 })?;
        let document = document(launch)?;
        let Pipes { mut stdin, stdout } = self.start(program, coordinator, None)?;
        let lines = format!("{}{document}\n", issuer.identity_line(coordinator.agent())?);
        // If the coordinator has ended already, its exit is reported when it is waited for.
        let _ = stdin.write_all(lines.as_bytes()).await;
        self.stdins.push(stdin);
        let Some(stdout) = stdout else { return Ok(None) };
        let mut lines = BufReader::new(stdout);
        let Some(listening) = first_line(&mut lines).await? else { return Ok(None) };
        self.copying = Some(tokio::spawn(copy_lines(lines)));
        for member in others {
            let Pipes { mut stdin, .. } = self.start(program, member, Some(&listening.control))?;
            let _ = stdin.write_all(issuer.identity_line(member.agent())?.as_bytes()).await;
            self.stdins.push(stdin);
        }
        Ok(Some(listening))
    }

    fn start(&mut self, program: &Path, member: &RoleCommand, coordinator: Option<&str>) -> Result<Pipes, LaunchError> {
        let started = ChildProcess::start(program, member, coordinator, OutputMode::Terminal);
        let (process, pipes) = started.map_err(LaunchError::system(format!("start {}", member.agent())))?;
        self.last_lines.insert(process.agent, process.last_lines.clone());
        self.running.spawn(process.end(self.orders.subscribe()));
        Ok(pipes)
    }

    /// Handles events until every process has ended.
    async fn supervise_to_end(
        &mut self,
        journal: Option<JournalEndpoint>,
        interrupts: &mut mpsc::UnboundedReceiver<()>,
    ) -> RunExit {
        let mut supervisor = Supervisor::new(self.running.len());
        let (stop_failed, mut stop_failures) = mpsc::unbounded_channel();
        let mut deadline = None;
        while !supervisor.is_over() {
            let event = tokio::select! {
                ended = self.running.join_next() => match ended {
                    Some(Ok((agent, exit))) => SupervisorEvent::Ended(agent, exit),
                    // The task that waits for a process failed; the process is killed when the task is dropped.
                    Some(Err(_)) => continue,
                    None => break,
                },
                Some(()) = interrupts.recv() => SupervisorEvent::Interrupted,
                Some(()) = stop_failures.recv() => SupervisorEvent::StopFailed,
                () = wait_deadline(&mut deadline) => SupervisorEvent::Deadline,
            };
            for command in supervisor.handle_event(event) {
                match command {
                    SupervisorCommand::Stop(reason) => ask_to_stop(journal.clone(), reason, stop_failed.clone()),
                    SupervisorCommand::Within(time) => deadline = Some(Box::pin(sleep(time))),
                    SupervisorCommand::NoDeadline => deadline = None,
                    SupervisorCommand::TerminateAll => drop(self.orders.send(DesiredState::Terminate)),
                    SupervisorCommand::KillAll => drop(self.orders.send(DesiredState::Kill)),
                }
            }
        }
        if let Some(copying) = self.copying.take() {
            // The copying ends with the coordinator's pipe.
            let _ = copying.await;
        }
        supervisor.run_exit()
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

/// Copies lines to standard output as they arrive, and the coordinator's failure, the last one, to standard error. If
/// the reader closes standard output (`| head`), the run continues.
async fn copy_lines(mut from: BufReader<ChildStdout>) {
    let mut out = Some(tokio::io::stdout());
    let mut line = Vec::new();
    while let Ok(1..) = from.read_until(b'\n', &mut line).await {
        if let Some(failure) = parse_failure(&line) {
            eprintln!("{failure}");
        } else if let Some(to) = &mut out
            && (to.write_all(&line).await.is_err() || to.flush().await.is_err())
        {
            out = None;
        }
        line.clear();
    }
}
