//! The event loop of the coordinator.
//!
//! ```text
//!  agents ─────► ┌────────┐ CoordinatorEvent   ┌───────────────────────────┐
//!  users ──────► │ driver │ ─────────────────► │ engine: Coordinator       │
//!  SIGTERM ────► │        │ ◄───────────────── │ state machine without I/O │
//!  timers ─────► └────────┘ CoordinatorCommand └───────────────────────────┘
//!                  │  │  └─► Reporter: console, metrics, journal, spans
//!                  │  └────► blocking threads: stage and publish checkpoints
//!                  └───────► agents: AgentCommand
//! ```
//!
//! The state machine decides everything about steps, epochs and checkpoints. The driver decides only what needs a
//! clock or a file:
//!
//! * [`admission`]: which processes join, and the instruction set of the job. The state machine is created when all
//!   agents have joined.
//! * [`departures`]: what follows when an agent does not answer, or is requested to end.
//! * [`resizing`]: how many agents the job has.
//! * [`checkpointing`]: when a recovery checkpoint is due, and what follows a checkpoint that could not be written.
//! * [`storage`]: which writes do not return, and when a checkpoint is given up for that.
//!
//! A message that arrives on a stream that the agent has replaced is ignored.

mod admission;
mod checkpointing;
mod departures;
mod loading;
mod overdue;
mod resizing;
mod storage;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_checkpoint::{ModelDirLock, Staging};
use millrace_engine::coordinator::{Coordinator, CoordinatorCommand, CoordinatorEvent};
use millrace_engine::message::{AgentCommand, AgentReport};
use millrace_engine::types::{AgentId, Epoch};
use millrace_protocol::proto;
use millrace_protocol::security::RejectionLog;
use millrace_telemetry::journal::OutcomeReason;
use millrace_telemetry::logs::LogRecord;
use millrace_telemetry::metric_definitions::RoleMetrics;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Interval;

use super::PreparedRun;
use super::agent_speeds::AgentSpeeds;
use super::checkpoint_writer::{CheckpointWriter, PublishedCheckpoint};
use super::console::Console;
use super::journal::{ResizeCommand, RunCommand};
use super::reporter::{ReportedModel, Reporter};
use super::resume::StartPoint;
use super::run_end::RunEnd;
use super::spans::Spans;
use super::uploads;
use crate::control::job::CompiledJob;
use crate::control::server::{AgentHandle, ControlEvent, ControlEvents, JoinedAgent, StreamNumber};
use crate::error::AgentError;
use crate::launch::{Exit, LaunchDocument};
use crate::model_dir_uploads::ModelDirUploads;
use crate::write_watch::OngoingWrite;
use checkpointing::{SaveFailure, SaveTaskResult, SaveTimer};
use departures::{JOIN_TIMEOUT, LostAgent};
use loading::VerifiedCheckpoint;
use overdue::IterationTimeout;
use storage::DirectoryCreation;

/// How long a run that stops early waits for shards that may hold steps of an earlier coordinator.
const STOP_SHARD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long agents have to send their last logs and usage after the end of the run.
const FINAL_MESSAGES_TIMEOUT: Duration = Duration::from_secs(5);

pub struct DriverEvents {
    /// Messages of agents.
    pub agents: ControlEvents,
    /// Commands of users.
    pub user: mpsc::Receiver<RunCommand>,
    /// A command that arrived before the run was prepared.
    pub resize: Option<ResizeCommand>,
    /// The coordinator's own log records.
    pub logs: mpsc::Receiver<LogRecord>,
    /// SIGTERM.
    pub terminate: Signal,
}

/// Agents that joined before the instruction set is pinned.
type PendingAgents = BTreeMap<AgentId, (StreamNumber, Box<JoinedAgent>)>;

type JoinedAgents = BTreeMap<AgentId, AgentConnection>;

/// An admitted agent, with its one live stream.
struct AgentConnection {
    stream: StreamNumber,
    /// Identifies the process, see [`JoinedAgent::instance`].
    instance: u64,
    handle: AgentHandle,
}

/// Drives one run from waiting for agents to the reported outcome.
pub struct CoordinatorDriver {
    launch: LaunchDocument,
    /// Whether a launcher reads this process's standard output.
    by_launcher: bool,
    compiled: CompiledJob,
    /// The job as every agent receives it.
    job_json: String,
    start_point: StartPoint,
    /// The checkpoints that are evaluated after `start_point`.
    remaining_checkpoints: VecDeque<StartPoint>,
    /// Batches of an evaluation; 0 for none.
    eval_batches: u64,
    lock: Arc<ModelDirLock>,
    reporter: Reporter,
    spans: Spans,
    events: DriverEvents,
    /// The uploads of model_dir, if it is kept in a bucket.
    uploads: Option<ModelDirUploads>,
    /// The commands that end the run when everything is uploaded.
    delayed_end: Vec<CoordinatorCommand>,
    /// `None` until all agents have joined and the instruction set is pinned.
    machine: Option<Coordinator>,
    pending_agents: PendingAgents,
    joined: JoinedAgents,
    checkpoint_writer: Option<Arc<CheckpointWriter>>,
    staging: Option<Staging>,
    save_timer: SaveTimer,
    /// Whether the current checkpoint is a recovery checkpoint.
    recovery: bool,
    save_results: mpsc::UnboundedReceiver<SaveTaskResult>,
    save_results_sender: mpsc::UnboundedSender<SaveTaskResult>,
    /// Clients that requested a stop, answered at the end of the run.
    replies: Vec<oneshot::Sender<proto::CommandReply>>,
    /// Clients that requested a checkpoint, answered when it is published or the run ends.
    checkpoint_replies: Vec<oneshot::Sender<proto::CommandReply>>,
    /// The checkpoint that was verified because a shard could not load another one, or this one.
    verified_checkpoint: VerifiedCheckpoint,
    /// The checkpoint written last; before that, the one that the run starts from or evaluates.
    last_saved: Option<PublishedCheckpoint>,
    /// The agents that have not joined again since they were lost.
    lost_agents: BTreeMap<AgentId, LostAgent>,
    /// How fast each agent works.
    speeds: AgentSpeeds,
    /// The shards whose storage does not respond, with the write that has not returned.
    stalled_shards: BTreeMap<AgentId, OngoingWrite>,
    storage_checks: Interval,
    /// The creation of a checkpoint's directory that is in progress.
    creation: Option<DirectoryCreation>,
    /// When agents that have not joined yet are waited for no longer.
    join_deadline: Instant,
    /// The epoch in which a link failed, and when its backoff ends.
    backoff: Option<(Epoch, Instant)>,
    /// How long the iteration in progress may take.
    iteration_timeout: IterationTimeout,
    /// Deadline of a run that was stopped before all agents joined.
    stop_by: Option<Instant>,
    /// The reason in the first stop request, if there was one.
    stop_reason: Option<String>,
    /// Whether this coordinator leaves, so that another one continues the attempt.
    is_leaving: bool,
    /// Shards that leave once a checkpoint has their parameters.
    leaving_shards: BTreeSet<AgentId>,
    end: Option<RunEnd>,
    /// Rejections of processes whose agent name is in use.
    rejections: RejectionLog,
}

impl CoordinatorDriver {
    pub fn new(prepared: PreparedRun, console: Console, metrics: RoleMetrics, events: DriverEvents) -> Self {
        // Only one checkpoint at a time is staged and then published, so the channel stays short.
        let (save_results_sender, save_results) = mpsc::unbounded_channel();
        let PreparedRun {
            launch,
            by_launcher,
            uploads,
            compiled,
            job_json,
            model_metrics,
            start_point,
            remaining_checkpoints,
            eval_batches,
            step_estimate,
            lock,
            files,
        } = prepared;
        let model = ReportedModel { metrics: model_metrics, is_evaluated: eval_batches > 0, step_estimate };
        let reporter = Reporter::new(&launch, &compiled, model, files, console, metrics);
        let spans = Spans::begin(start_point.step);
        let last_saved = start_point.saved.clone();
        let save_timer = SaveTimer::new(compiled.job.run.checkpoint_seconds);
        Self {
            launch,
            by_launcher,
            compiled,
            job_json,
            start_point,
            remaining_checkpoints,
            eval_batches,
            lock,
            reporter,
            spans,
            events,
            uploads,
            delayed_end: Vec::new(),
            machine: None,
            pending_agents: PendingAgents::new(),
            joined: JoinedAgents::new(),
            checkpoint_writer: None,
            staging: None,
            save_timer,
            recovery: false,
            save_results,
            save_results_sender,
            replies: Vec::new(),
            checkpoint_replies: Vec::new(),
            verified_checkpoint: VerifiedCheckpoint::default(),
            last_saved,
            lost_agents: BTreeMap::new(),
            speeds: AgentSpeeds::new(Instant::now()),
            stalled_shards: BTreeMap::new(),
            storage_checks: storage::checks(),
            creation: None,
            join_deadline: Instant::now() + JOIN_TIMEOUT,
            backoff: None,
            iteration_timeout: IterationTimeout::default(),
            stop_by: None,
            stop_reason: None,
            is_leaving: false,
            leaving_shards: BTreeSet::new(),
            end: None,
            rejections: RejectionLog::default(),
        }
    }

    /// Runs the job to its end; returns the exit of the whole run, and the uploads, which have yet to upload the last
    /// entries of the journal.
    pub async fn run(mut self) -> (Exit, Option<ModelDirUploads>) {
        self.reporter.waiting(self.start_point.step);
        if let Err(failure) = self.on_early_resize() {
            self.fail_run(&failure);
        } else if let Err(failure) = self.run_loop().await {
            self.fail_run(&failure);
        }
        self.drain_final_messages().await;
        // The coordinator that continues the run continues the uploads.
        let uploads = self.uploads.take().filter(|_| !self.is_leaving);
        (self.finish(), uploads)
    }

    async fn run_loop(&mut self) -> Result<(), AgentError> {
        while self.end.is_none() {
            self.reporter.wait_for_files().await;
            self.check_storage()?;
            let lost = self.lost_agents.values().filter_map(LostAgent::deadline).min();
            let backoff = self.backoff.map(|(_, until)| until);
            let join = self.machine.is_none().then_some(self.join_deadline);
            let iteration = self.iteration_timeout.deadline();
            let deadlines = [lost, self.stop_by, backoff, join, iteration, self.save_timer.deadline()];
            let deadline = deadlines.into_iter().flatten().min();
            let heartbeat = self.reporter.heartbeat_due();
            // Every branch is cancel-safe: one that another branch overtakes loses no event.
            tokio::select! {
                Some(event) = self.events.agents.recv() => self.on_agent_event(event)?,
                Some(command) = self.events.user.recv() => self.on_user_command(command)?,
                Some(record) = self.events.logs.recv() => self.reporter.own_log(record),
                Some(result) = self.save_results.recv() => self.on_save_result(result)?,
                Some(()) = self.events.terminate.recv() => self.on_terminate()?,
                () = tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now).into()), if deadline.is_some() => {
                    self.handle_deadlines()?;
                }
                () = tokio::time::sleep_until(heartbeat.into()) => self.reporter.heartbeat(),
                () = uploads::next_event(self.uploads.as_mut(), !self.delayed_end.is_empty()) => {
                    self.on_uploads_ended()?;
                }
                _ = self.storage_checks.tick() => {}
            }
        }
        Ok(())
    }

    /// Handles the first deadline that has passed: the end of a backoff, an early stop, a due checkpoint, an overdue
    /// iteration, or a timeout of lost agents.
    fn handle_deadlines(&mut self) -> Result<(), AgentError> {
        if let Some((epoch, _)) = self.backoff.take_if(|(_, until)| *until <= Instant::now()) {
            return self.handle_event(CoordinatorEvent::BackoffElapsed { epoch });
        }
        if self.stop_by.take_if(|deadline| *deadline <= Instant::now()).is_some() {
            self.end = Some(RunEnd::stopped(self.stop_reason.as_deref()));
            return Ok(());
        }
        if self.machine.is_none() && self.join_deadline <= Instant::now() {
            return self.on_join_timeout();
        }
        if let Some(due) = self.save_timer.fire(Instant::now()) {
            return self.handle_event(due.event());
        }
        if let Some(overdue) = self.overdue_iteration() {
            return self.handle_event(overdue);
        }
        self.announce_lost_agents();
        Ok(())
    }

    fn on_agent_event(&mut self, event: ControlEvent) -> Result<(), AgentError> {
        match event {
            ControlEvent::Hello(number, hello) => self.on_hello(number, hello),
            ControlEvent::Report(agent, number, report) => {
                if self.is_current(agent, number) {
                    match &report {
                        AgentReport::Leaves { work, .. } => self.speeds.record(agent, (*work).into()),
                        AgentReport::Worked { work } => self.speeds.record(agent, *work),
                        AgentReport::StorageStalled { write } => self.on_storage_report(agent, write.as_ref()),
                        _ => {}
                    }
                    return self.handle_event(CoordinatorEvent::Report { agent, report });
                }
                Ok(())
            }
            ControlEvent::Log(agent, log) => {
                self.reporter.log(agent, log);
                Ok(())
            }
            ControlEvent::Usage(agent, usage) => {
                self.reporter.usage(agent, usage);
                Ok(())
            }
            ControlEvent::LeaveRequest(agent, number) => self.on_leave_request(agent, number),
            ControlEvent::Disconnected(agent, number) => self.on_disconnected(agent, number),
        }
    }

    /// Returns whether `number` is the current stream of `agent`.
    fn is_current(&self, agent: AgentId, number: StreamNumber) -> bool {
        self.joined.get(&agent).is_some_and(|connected| connected.stream == number)
    }

    fn on_user_command(&mut self, command: RunCommand) -> Result<(), AgentError> {
        // A client that has disconnected needs no reply.
        self.replies.retain(|reply| !reply.is_closed());
        self.checkpoint_replies.retain(|reply| !reply.is_closed());
        match command {
            RunCommand::Stop { reason, reply } => {
                self.stop_reason.get_or_insert(reason);
                self.replies.push(reply);
                self.stop()
            }
            RunCommand::Resize(command) => self.on_resize(command),
            RunCommand::Checkpoint(reply) => {
                let (step, saved) = self.current_checkpoint();
                if saved.is_none() && self.machine.is_some() && self.launch.mode.trains() {
                    self.checkpoint_replies.push(reply);
                    return self.handle_event(CoordinatorEvent::CheckpointRequested);
                }
                let _ = reply.send(command_reply(step, saved));
                Ok(())
            }
        }
    }

    /// Returns the number of updates made, and the checkpoint of exactly this step, if there is one.
    fn current_checkpoint(&self) -> (u64, Option<&PublishedCheckpoint>) {
        let step = self.machine.as_ref().map_or(self.start_point.step, Coordinator::step);
        (step, self.last_saved.as_ref().filter(|saved| saved.step == step))
    }

    /// Ends a run that is complete, and whose uploads have caught up or have failed. If the uploads have ended before
    /// the run, ends it with their failure: another run has taken the model_dir over.
    fn on_uploads_ended(&mut self) -> Result<(), AgentError> {
        if !self.delayed_end.is_empty() {
            return self.end_now();
        }
        self.uploads.take().map_or(Ok(()), ModelDirUploads::finish)
    }

    /// Executes the commands that end a run that is complete.
    fn end_now(&mut self) -> Result<(), AgentError> {
        std::mem::take(&mut self.delayed_end).into_iter().try_for_each(|command| self.execute(command))
    }

    fn stop(&mut self) -> Result<(), AgentError> {
        if !self.delayed_end.is_empty() {
            // The run is complete, and a run that is stopped does not wait for uploads.
            return self.end_now();
        }
        if self.machine.is_none() {
            self.stop_by.get_or_insert_with(|| Instant::now() + STOP_SHARD_TIMEOUT);
            return self.stop_early();
        }
        self.save_timer.on_stopping();
        self.reporter.stopping();
        self.handle_event(CoordinatorEvent::StopRequested)
    }

    /// Passes an event to the state machine and executes its commands. Does nothing before the machine exists.
    fn handle_event(&mut self, event: CoordinatorEvent) -> Result<(), AgentError> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        self.spans.on_event(&event);
        let mut commands = Vec::new();
        machine.handle_event(event, &mut commands);
        if self.uploads.is_some() {
            self.delayed_end.extend(uploads::split_end(&mut commands));
        }
        commands.into_iter().try_for_each(|command| self.execute(command))?;
        self.report_size();
        Ok(())
    }

    fn execute(&mut self, command: CoordinatorCommand) -> Result<(), AgentError> {
        self.spans.on_command(&command);
        match command {
            CoordinatorCommand::Send(agent, command) => {
                if let AgentCommand::Open { epoch, iteration } = command {
                    self.iteration_timeout.on_opened(epoch, iteration, Instant::now());
                }
                self.send(agent, &command);
            }
            CoordinatorCommand::StageCheckpoint { step } => self.stage(step),
            CoordinatorCommand::PublishCheckpoint { digests, record, history, .. } => {
                self.publish(digests, record, history);
            }
            CoordinatorCommand::ReportSaveFailure { step, reason, agent, cause } => {
                self.on_save_failure(SaveFailure { step, reason, agent, cause })?;
            }
            CoordinatorCommand::ReportRestore { shard, from, to } => {
                self.discard_staging();
                self.reporter.restored(shard, from, to);
            }
            CoordinatorCommand::FindCheckpoint { agent, path, reason, cause } => {
                self.find_checkpoint(agent, &path, reason, cause)?;
            }
            CoordinatorCommand::ReportFallback { from, to } => {
                self.discard_staging();
                self.reporter.fell_back(from, to);
            }
            CoordinatorCommand::Epoch { epoch, placement } => {
                self.iteration_timeout.on_epoch(&placement);
                self.reporter.epoch(epoch, placement.systems.len(), placement.rounds.len());
            }
            CoordinatorCommand::Backoff { epoch, after, reporter, peer, failures } => {
                let peer = peer.map_or_else(|| "another agent".to_owned(), |peer| peer.to_string());
                let seconds = after.as_secs_f64();
                tracing::warn!(
                    %epoch,
                    failures,
                    "the link between {reporter} and {peer} failed ({failures} in a row); a new epoch begins in \
                     {seconds} s"
                );
                self.backoff = Some((epoch, Instant::now() + after));
            }
            CoordinatorCommand::Disconnect { agent, reason } => self.disconnect(agent, &reason),
            CoordinatorCommand::ReportRunning => {
                self.save_timer.on_training(Instant::now());
                self.verified_checkpoint.on_running();
                self.reporter.running();
            }
            CoordinatorCommand::EvaluateNext(_) => self.next_checkpoint(),
            CoordinatorCommand::Evaluating => self.reporter.evaluating(),
            CoordinatorCommand::ReportStep { record, metrics } => {
                self.iteration_timeout.on_finished(Instant::now());
                self.reporter.step(&record, &metrics);
                self.measure_speeds();
            }
            CoordinatorCommand::ReportSkip(skipped) => self.reporter.skipped(&skipped),
            CoordinatorCommand::ReportEvalBatch(evaluation) => {
                self.iteration_timeout.on_finished(Instant::now());
                self.reporter.eval_batch(&evaluation);
            }
            CoordinatorCommand::ReportEvaluation(evaluation) => self.reporter.evaluated(&evaluation),
            CoordinatorCommand::End(outcome) => {
                self.end = Some(RunEnd::of(outcome, self.launch.mode, self.stop_reason.as_deref()))
            }
        }
        Ok(())
    }

    /// Handles the state machine's change to the next checkpoint of an evaluation.
    fn next_checkpoint(&mut self) {
        let Some(next) = self.remaining_checkpoints.pop_front() else { return };
        next.report.iter().for_each(|sentence| self.reporter.line(sentence));
        self.reporter.set_evaluated_step(next.step);
        self.last_saved = next.saved.clone();
        self.start_point = next;
    }

    fn send(&self, agent: AgentId, command: &AgentCommand) {
        if self.is_leaving && matches!(command, AgentCommand::Finish) {
            // The agents wait for the next coordinator.
            return;
        }
        if let Some(connected) = self.joined.get(&agent) {
            connected.handle.send_command(command);
        }
    }

    /// Removes an agent that failed from the admitted ones, and sends it `Finish`.
    fn disconnect(&mut self, agent: AgentId, reason: &str) {
        tracing::warn!(peer = %agent, "{agent} failed and was disconnected: {reason}");
        if let Some(connected) = self.joined.remove(&agent) {
            connected.handle.send_command(&AgentCommand::Finish);
        }
    }

    /// Ends the run with a failure, and sends `Finish` to all agents.
    fn fail_run(&mut self, failure: &AgentError) {
        self.finish_agents();
        self.end = Some(RunEnd::failed(failure));
    }

    /// Sends `Finish` to all agents.
    fn finish_agents(&self) {
        for connected in self.joined.values() {
            connected.handle.send_command(&AgentCommand::Finish);
        }
    }

    /// Rejects waiting agents, and receives the last logs and usage of the others until all streams have ended or
    /// [`FINAL_MESSAGES_TIMEOUT`] has elapsed.
    async fn drain_final_messages(&mut self) {
        self.reporter.on_agents_leaving();
        for (_, hello) in std::mem::take(&mut self.pending_agents).into_values() {
            hello.handle.reject("the run has ended");
        }
        if self.is_leaving {
            self.joined.clear();
        }
        let deadline = tokio::time::sleep(FINAL_MESSAGES_TIMEOUT);
        tokio::pin!(deadline);
        while !self.joined.is_empty() {
            tokio::select! {
                event = self.events.agents.recv() => match event {
                    Some(ControlEvent::Disconnected(agent, _)) => { self.joined.remove(&agent); }
                    Some(ControlEvent::Usage(agent, usage)) => { self.reporter.usage(agent, usage); }
                    Some(ControlEvent::Log(agent, log)) => self.reporter.log(agent, log),
                    Some(ControlEvent::Hello(_, hello)) => hello.handle.reject("the run has ended"),
                    Some(ControlEvent::Report(..) | ControlEvent::LeaveRequest(..)) => {}
                    None => break,
                },
                () = &mut deadline => break,
            }
        }
        while let Ok(record) = self.events.logs.try_recv() {
            self.reporter.own_log(record);
        }
    }

    /// Reports the outcome to the user, the files and all clients that wait for a reply.
    fn finish(mut self) -> Exit {
        let end = self.end.take().unwrap_or_else(|| RunEnd::stopped(self.stop_reason.as_deref()));
        let (step, saved) = self.current_checkpoint();
        let reply = command_reply(step, saved);
        let digest = saved.map(|saved| saved.digest.clone());
        let exit = match self.is_leaving && end.reason == OutcomeReason::Interrupted {
            true => {
                self.reporter.leave();
                Exit::Interrupted
            }
            false => self.reporter.finish(end, step, digest),
        };
        for waiting in self.replies.drain(..).chain(self.checkpoint_replies.drain(..)) {
            let _ = waiting.send(reply.clone());
        }
        exit
    }
}

/// Returns the reply to a user's command after `step` updates; `saved` is the checkpoint of this step, if there is one.
fn command_reply(step: u64, saved: Option<&PublishedCheckpoint>) -> proto::CommandReply {
    let parameters_blake3 = saved.map(|saved| saved.digest.clone()).unwrap_or_default();
    proto::CommandReply { step, parameters_blake3 }
}
