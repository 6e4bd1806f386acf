//! The driver of the launcher: executes the decisions of the [supervisor](super::supervise).

use std::io::Write;
use std::path::Path;
use std::pin::Pin;

use millrace_checkpoint::contains_checkpoints;
use millrace_engine::types::AgentId;
use millrace_protocol::journal::JournalEndpoint;
use millrace_protocol::proto::StopRequest;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Sleep, sleep};

use super::children::{ChildEvent, Children};
use super::process::{DesiredState, LastLines, OutputMode};
use super::replacements::{Replacements, describe_end};
use super::supervise::{ProcessExit, RunExit, Supervisor, SupervisorCommand, SupervisorEvent};
use super::{Exit, LaunchError, LocalRun};

/// Runs a job to its end. Blocks. Prints progress to standard output and logs to standard error; ends the job
/// gracefully on SIGINT, SIGTERM and SIGHUP, and when `stop` becomes true.
pub fn run_local(run: LocalRun, stop: Option<watch::Receiver<bool>>) -> Exit {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.map_err(LaunchError::system("start an async runtime")).and_then(|runtime| {
        runtime.block_on(async {
            let interrupts = interrupts(stop)?;
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

/// Returns a receiver of a message for every SIGINT, SIGTERM and SIGHUP from now on, and for `stop` when it is true.
fn interrupts(stop: Option<watch::Receiver<bool>>) -> Result<mpsc::UnboundedReceiver<()>, LaunchError> {
    let (sender, receiver) = mpsc::unbounded_channel();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let mut signals = signal(kind).map_err(LaunchError::system("listen for signals"))?;
        let sender = sender.clone();
        tokio::spawn(async move { while signals.recv().await.is_some() && sender.send(()).is_ok() {} });
    }
    if let Some(mut stop) = stop {
        tokio::spawn(async move {
            if stop.wait_for(|stop| *stop).await.is_ok() {
                let _ = sender.send(());
            }
        });
    }
    Ok(receiver)
}

/// Starts every role of `run` and supervises them until all have ended. Each message of `interrupts` is one Ctrl-C.
///
/// # Errors
/// The run can't be started. The processes started before are killed.
pub async fn supervise(run: &LocalRun, mut interrupts: mpsc::UnboundedReceiver<()>) -> Result<Exit, LaunchError> {
    let mut children = Children::new(run, OutputMode::Terminal)?;
    let has_started = tokio::select! {
        started = children.start_all() => started?,
        // Nothing has been done yet that could be lost; dropping the processes kills them.
        Some(()) = interrupts.recv() => return Ok(Exit::Interrupted),
    };
    let supervisor = Supervisor::new(Replacements::new(&run.launch.agent_counts, has_started));
    let run_exit = supervise_to_end(&mut children, supervisor, &mut interrupts).await;
    if let Some((agent, exit)) = run_exit.failed_process {
        print_failed_process(agent, exit, &children.last_lines(agent).get(), &run.launch.model_dir);
    }
    Ok(run_exit.exit)
}

/// Handles events until every process has ended.
async fn supervise_to_end(
    children: &mut Children,
    mut supervisor: Supervisor,
    interrupts: &mut mpsc::UnboundedReceiver<()>,
) -> RunExit {
    let (stop_failed, mut stop_failures) = mpsc::unbounded_channel();
    let mut deadline = None;
    while !supervisor.is_over() {
        let event = tokio::select! {
            event = children.next_event() => match event {
                ChildEvent::Ended(agent, exit, uptime) => SupervisorEvent::Ended(agent, exit, uptime),
                ChildEvent::ReplacementDue(agent) => SupervisorEvent::ReplacementDue(agent),
                ChildEvent::Unresponsive(agent, uptime) => SupervisorEvent::Unresponsive(agent, uptime),
                ChildEvent::Ready(..) => continue,
            },
            Some(()) = interrupts.recv() => SupervisorEvent::Interrupted,
            Some(()) = stop_failures.recv() => SupervisorEvent::StopFailed,
            () = wait_deadline(&mut deadline) => SupervisorEvent::Deadline,
        };
        for command in supervisor.handle_event(event) {
            match command {
                SupervisorCommand::Replace(agent, after) => children.schedule_replacement(agent, after),
                SupervisorCommand::Start { agent, exit, was_unresponsive } => {
                    print_replacement(agent, exit, was_unresponsive, &children.last_lines(agent));
                    children.start_later(agent).await;
                }
                SupervisorCommand::Kill(agent) => children.set_state(agent, DesiredState::Kill),
                SupervisorCommand::Stop(reason) => {
                    ask_to_stop(children.journal().cloned(), reason, stop_failed.clone());
                }
                SupervisorCommand::Within(time) => deadline = Some(Box::pin(sleep(time))),
                SupervisorCommand::NoDeadline => deadline = None,
                SupervisorCommand::TerminateAll => children.set_all_states(DesiredState::Terminate),
                SupervisorCommand::KillAll => children.set_all_states(DesiredState::Kill),
            }
        }
    }
    children.finish_reading().await;
    supervisor.run_exit()
}

/// Prints that a process is replaced.
fn print_replacement(agent: AgentId, exit: ProcessExit, was_unresponsive: bool, last_lines: &LastLines) {
    let end = describe_end(exit, was_unresponsive);
    // A failure is explained by what was printed; a signal is not.
    let explanation = last_lines.explanation().filter(|_| matches!(exit, ProcessExit::Code(1..)));
    let explanation = explanation.map_or_else(String::new, |line| format!(" ({line})"));
    // In one write: the agents write to the same standard error, possibly in the middle of a line otherwise.
    let line = format!("warning: {agent} {end}{explanation}; a new {agent} is started\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Prints the process whose end ended the run, with its last lines.
fn print_failed_process(agent: AgentId, exit: ProcessExit, last_lines: &[String], model_dir: &Path) {
    let mut text = format!("error: {agent} {exit}, which ended the run\n");
    if !last_lines.is_empty() {
        text.push_str(&format!("{agent}'s last lines:\n"));
        last_lines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    }
    text.push_str(&format!("hint: {}\n", restart_hint(model_dir)));
    // A closed standard error leaves no way to report this.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
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
