//! The event loop of the coordinator: passes events to the engine's state machine and executes its commands.

mod admission;
mod saving;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_checkpoint::{ModelDirLock, Staging};
use millrace_engine::coordinator::{Coordinator, CoordinatorCommand, CoordinatorEvent};
use millrace_engine::message::AgentCommand;
use millrace_engine::types::{AgentId, Epoch, Role};
use millrace_protocol::proto;
use millrace_protocol::security::RejectionLog;
use millrace_telemetry::journal::OutcomeReason;
use millrace_telemetry::logs::LogRecord;
use millrace_telemetry::metric_definitions::RoleMetrics;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot};

use super::Prepared;
use super::console::Console;
use super::ending::Ending;
use super::journal::UserCommand;
use super::resume::Beginning;
use super::saver::{Saved, Saver};
use super::spans::Spans;
use super::teller::Teller;
use crate::control::job::CompiledJob;
use crate::control::server::{ControlEvent, ControlEvents, Hello, Post, StreamNumber};
use crate::failure::Failure;
use crate::launch::{Exit, Launch};
use saving::{NotSaved, SaveTimer, Worked};

/// How long a shard may be disconnected before the attempt fails. Its parameters since the last checkpoint exist
/// nowhere else.
const SHARD_GRACE: Duration = Duration::from_secs(30);
/// How long a run that stops early waits for shards that may hold steps of an earlier coordinator.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// How long agents have to send their last logs and usage after the end of the run.
const FAREWELL: Duration = Duration::from_secs(5);

/// The sources of events.
pub struct Inbox {
    /// Messages of agents.
    pub agents: ControlEvents,
    /// Commands of users.
    pub user: mpsc::Receiver<UserCommand>,
    /// The coordinator's own log records.
    pub logs: mpsc::Receiver<LogRecord>,
    /// SIGTERM.
    pub terminate: Signal,
}

/// Agents that joined before the instruction set is pinned.
type WaitingRoom = BTreeMap<AgentId, (StreamNumber, Box<Hello>)>;

/// The admitted agents.
type Joined = BTreeMap<AgentId, Connected>;

/// An admitted agent, with its one live stream.
struct Connected {
    stream: StreamNumber,
    /// Identifies the process, see [`Hello::instance`].
    instance: u64,
    post: Post,
}

/// Drives one run from waiting for agents to the reported outcome.
pub struct Driver {
    launch: Launch,
    compiled: CompiledJob,
    beginning: Beginning,
    /// The checkpoints that are evaluated after `beginning`.
    further: VecDeque<Beginning>,
    eval_batches: u64,
    lock: Arc<ModelDirLock>,
    teller: Teller,
    spans: Spans,
    inbox: Inbox,
    machine: Option<Coordinator>,
    waiting: WaitingRoom,
    joined: Joined,
    saver: Option<Arc<Saver>>,
    staging: Option<Staging>,
    save_timer: SaveTimer,
    /// Whether the current checkpoint is a recovery checkpoint.
    recovery: bool,
    worked: mpsc::UnboundedReceiver<Worked>,
    work: mpsc::UnboundedSender<Worked>,
    replies: Vec<oneshot::Sender<proto::CommandReply>>,
    checkpoint_replies: Vec<oneshot::Sender<proto::CommandReply>>,
    last_saved: Option<Saved>,
    /// When each disconnected shard was lost.
    lost_shards: BTreeMap<AgentId, Instant>,
    /// The epoch in which a link failed, and when its backoff ends.
    pause: Option<(Epoch, Instant)>,
    /// Set if the run stops before all agents have joined: the time at which it ends in any case.
    stop_by: Option<Instant>,
    /// The shard that was asked to leave, which ends the run.
    leaver: Option<AgentId>,
    ending: Option<Ending>,
    /// Rejections of processes whose agent name is in use.
    rejections: RejectionLog,
}

impl Driver {
    /// Creates the driver of a prepared run.
    pub fn new(prepared: Prepared, console: Console, metrics: RoleMetrics, inbox: Inbox) -> Self {
        // Only one checkpoint at a time is staged and then published, so the channel stays short.
        let (work, worked) = mpsc::unbounded_channel();
        let Prepared { launch, compiled, beginning, further, eval_batches, step_estimate, lock, files } = prepared;
        let teller = Teller::new(&launch, &compiled, (eval_batches > 0, step_estimate), files, console, metrics);
        let spans = Spans::begin(beginning.step);
        let last_saved = beginning.saved.clone();
        let save_timer = SaveTimer::new(compiled.job.run.checkpoint_seconds);
        Self {
            launch,
            compiled,
            beginning,
            further,
            eval_batches,
            lock,
            teller,
            spans,
            inbox,
            machine: None,
            waiting: WaitingRoom::new(),
            joined: Joined::new(),
            saver: None,
            staging: None,
            save_timer,
            recovery: false,
            worked,
            work,
            replies: Vec::new(),
            checkpoint_replies: Vec::new(),
            last_saved,
            lost_shards: BTreeMap::new(),
            pause: None,
            stop_by: None,
            leaver: None,
            ending: None,
            rejections: RejectionLog::default(),
        }
    }

    /// Runs the job to its end; returns the exit of the whole run.
    pub async fn run(mut self) -> Exit {
        self.teller.waiting(self.beginning.step);
        if let Err(failure) = self.turns().await {
            self.give_up(&failure);
        }
        self.farewell().await;
        self.conclude()
    }

    async fn turns(&mut self) -> Result<(), Failure> {
        while self.ending.is_none() {
            let lost = self.lost_shards.values().min().map(|&since| since + SHARD_GRACE);
            let pause = self.pause.map(|(_, until)| until);
            let deadline = lost.into_iter().chain(self.stop_by).chain(pause).chain(self.save_timer.deadline()).min();
            let heartbeat = self.teller.heartbeat_due();
            tokio::select! {
                Some(event) = self.inbox.agents.recv() => self.agent(event)?,
                Some(command) = self.inbox.user.recv() => self.user(command)?,
                Some(record) = self.inbox.logs.recv() => self.teller.own_log(&record),
                Some(worked) = self.worked.recv() => self.blocking_done(worked)?,
                Some(()) = self.inbox.terminate.recv() => self.stop()?,
                () = tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now).into()), if deadline.is_some() => {
                    self.overdue()?;
                }
                () = tokio::time::sleep_until(heartbeat.into()) => self.teller.heartbeat(),
            }
        }
        Ok(())
    }

    /// Handles what is overdue: the end of a backoff, a checkpoint, an early stop, or the return of a lost shard.
    fn overdue(&mut self) -> Result<(), Failure> {
        if let Some((epoch, _)) = self.pause.take_if(|(_, until)| *until <= Instant::now()) {
            return self.event(CoordinatorEvent::BackoffElapsed { epoch });
        }
        if self.stop_by.take_if(|by| *by <= Instant::now()).is_some() {
            self.ending = Some(Ending::stopped(self.leaver));
            return Ok(());
        }
        if let Some(due) = self.save_timer.fire(Instant::now()) {
            return self.event(due.event());
        }
        let lost: Vec<_> = self.lost_shards.keys().map(AgentId::to_string).collect();
        let sentence = format!("{} is gone, and with it parameters since the last checkpoint", lost.join(", "));
        Err(Failure::of(OutcomeReason::ShardLost, sentence)
            .hint("run the job again: it continues from the newest checkpoint"))
    }

    fn agent(&mut self, event: ControlEvent) -> Result<(), Failure> {
        match event {
            ControlEvent::Hello(number, hello) => self.hello(number, hello),
            ControlEvent::Report(agent, number, report) => {
                if self.is_current(agent, number) {
                    return self.event(CoordinatorEvent::Report { agent, report });
                }
                Ok(())
            }
            ControlEvent::Log(agent, log) => {
                self.teller.log(agent, log);
                Ok(())
            }
            ControlEvent::Usage(agent, usage) => {
                self.teller.usage(agent, usage);
                Ok(())
            }
            ControlEvent::Leaving(agent, number) => self.leaving(agent, number),
            ControlEvent::Gone(agent, number) => self.gone(agent, number),
        }
    }

    /// Returns whether `number` is the current stream of `agent`.
    fn is_current(&self, agent: AgentId, number: StreamNumber) -> bool {
        self.joined.get(&agent).is_some_and(|connected| connected.stream == number)
    }

    /// Handles the end of a stream. The agent loses its membership if the stream was its current one.
    fn gone(&mut self, agent: AgentId, number: StreamNumber) -> Result<(), Failure> {
        if !self.is_current(agent, number) {
            self.waiting.retain(|_, (waiting, _)| *waiting != number);
            return Ok(());
        }
        self.joined.remove(&agent);
        tracing::warn!(peer = %agent, "{agent} is gone");
        if agent.role == Role::MemoryX {
            self.lost_shards.insert(agent, Instant::now());
        }
        self.event(CoordinatorEvent::Lost { agent })
    }

    fn user(&mut self, command: UserCommand) -> Result<(), Failure> {
        // A client that has disconnected needs no reply.
        self.replies.retain(|reply| !reply.is_closed());
        self.checkpoint_replies.retain(|reply| !reply.is_closed());
        match command {
            UserCommand::Stop(reply) => {
                self.replies.push(reply);
                self.stop()
            }
            UserCommand::Checkpoint(reply) => {
                let (step, saved) = self.standing();
                if saved.is_none() && self.machine.is_some() && self.launch.mode.trains() {
                    self.checkpoint_replies.push(reply);
                    return self.event(CoordinatorEvent::CheckpointRequested);
                }
                let _ = reply.send(reply_of(step, saved));
                Ok(())
            }
        }
    }

    /// Returns the number of updates made, and the checkpoint of exactly this step, if there is one.
    fn standing(&self) -> (u64, Option<&Saved>) {
        let step = self.machine.as_ref().map_or(self.beginning.step, Coordinator::step);
        (step, self.last_saved.as_ref().filter(|saved| saved.step == step))
    }

    fn stop(&mut self) -> Result<(), Failure> {
        if self.machine.is_none() {
            self.stop_by.get_or_insert_with(|| Instant::now() + STOP_PATIENCE);
            return self.stop_early();
        }
        self.save_timer.stopping();
        self.teller.line("Stopping: the step in flight is abandoned, the last committed one is saved.");
        self.event(CoordinatorEvent::StopRequested)
    }

    /// Handles a shard that was asked to leave: saves its parameters, which exist nowhere else, and ends the run.
    fn leaving(&mut self, agent: AgentId, number: StreamNumber) -> Result<(), Failure> {
        if !self.is_current(agent, number) {
            return Ok(());
        }
        tracing::warn!(peer = %agent, "{agent} was asked to leave");
        self.leaver.get_or_insert(agent);
        self.stop()
    }

    /// Passes an event to the state machine and executes its commands. Does nothing before the machine exists.
    fn event(&mut self, event: CoordinatorEvent) -> Result<(), Failure> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        self.spans.on_event(&event);
        let mut commands = Vec::new();
        machine.on(event, &mut commands);
        commands.into_iter().try_for_each(|command| self.carry(command))
    }

    fn carry(&mut self, command: CoordinatorCommand) -> Result<(), Failure> {
        self.spans.on_command(&command);
        match command {
            CoordinatorCommand::Send(agent, order) => self.send(agent, &order),
            CoordinatorCommand::StageCheckpoint { step } => self.stage(step),
            CoordinatorCommand::PublishCheckpoint { digests, record, .. } => self.publish(digests, record),
            CoordinatorCommand::ReportSaveFailure { step, reason, agent, cause } => {
                self.not_saved(NotSaved { step, reason, agent, cause })?;
            }
            CoordinatorCommand::Epoch { epoch, placement } => {
                self.teller.epoch(epoch, placement.systems.len(), placement.rounds.len());
            }
            CoordinatorCommand::Backoff { epoch, after, reporter, peer, failures } => {
                let peer = peer.map_or_else(|| "another agent".to_owned(), |peer| peer.to_string());
                let seconds = after.as_secs_f64();
                tracing::warn!(
                    %epoch,
                    failures,
                    "the link between {reporter} and {peer} failed ({failures} in a row); a new epoch begins in {seconds} s"
                );
                self.pause = Some((epoch, Instant::now() + after));
            }
            CoordinatorCommand::Disconnect { agent, reason } => self.dismiss(agent, &reason),
            CoordinatorCommand::ReportRunning => {
                self.save_timer.training(Instant::now());
                self.teller.running();
            }
            CoordinatorCommand::EvaluateNext(_) => self.next_checkpoint(),
            CoordinatorCommand::Evaluating => self.teller.evaluating(),
            CoordinatorCommand::ReportStep(record) => self.teller.step(&record),
            CoordinatorCommand::ReportEvalBatch(evaluation) => self.teller.eval_batch(&evaluation),
            CoordinatorCommand::ReportEvaluation(evaluation) => self.teller.evaluated(&evaluation),
            CoordinatorCommand::End(outcome) => self.ending = Some(Ending::of(outcome, self.launch.mode, self.leaver)),
        }
        Ok(())
    }

    /// Handles the state machine's change to the next checkpoint of an evaluation.
    fn next_checkpoint(&mut self) {
        let Some(next) = self.further.pop_front() else { return };
        next.report.iter().for_each(|sentence| self.teller.line(sentence));
        self.teller.turn_to_step(next.step);
        self.last_saved = next.saved.clone();
        self.beginning = next;
    }

    fn send(&self, agent: AgentId, order: &AgentCommand) {
        if let Some(connected) = self.joined.get(&agent) {
            connected.post.order(order);
        }
    }

    /// Removes an agent that failed from the admitted ones, and sends it `Finish`.
    fn dismiss(&mut self, agent: AgentId, reason: &str) {
        tracing::warn!(peer = %agent, "{agent} can't go on and is dismissed: {reason}");
        if let Some(connected) = self.joined.remove(&agent) {
            connected.post.order(&AgentCommand::Finish);
        }
    }

    /// Ends the run with a failure, and sends `Finish` to all agents.
    fn give_up(&mut self, failure: &Failure) {
        for connected in self.joined.values() {
            connected.post.order(&AgentCommand::Finish);
        }
        self.ending = Some(Ending::failed(failure));
    }

    /// Rejects waiting agents, and receives the last logs and usage of the others until all streams have ended or
    /// [`FAREWELL`] has elapsed.
    async fn farewell(&mut self) {
        for (_, hello) in std::mem::take(&mut self.waiting).into_values() {
            hello.post.refuse("the run has ended");
        }
        let deadline = tokio::time::sleep(FAREWELL);
        tokio::pin!(deadline);
        while !self.joined.is_empty() {
            tokio::select! {
                event = self.inbox.agents.recv() => match event {
                    Some(ControlEvent::Gone(agent, _)) => { self.joined.remove(&agent); }
                    Some(ControlEvent::Usage(agent, usage)) => { self.teller.usage(agent, usage); }
                    Some(ControlEvent::Log(agent, log)) => self.teller.log(agent, log),
                    Some(ControlEvent::Hello(_, hello)) => hello.post.refuse("the run has ended"),
                    Some(ControlEvent::Report(..) | ControlEvent::Leaving(..)) => {}
                    None => break,
                },
                () = &mut deadline => break,
            }
        }
        while let Ok(record) = self.inbox.logs.try_recv() {
            self.teller.own_log(&record);
        }
    }

    /// Reports the outcome to the user, the files and all clients that wait for a reply.
    fn conclude(mut self) -> Exit {
        let ending = self.ending.take().unwrap_or_else(|| Ending::stopped(self.leaver));
        let (step, saved) = self.standing();
        let reply = reply_of(step, saved);
        let digest = saved.map(|saved| saved.digest.clone());
        let exit = self.teller.conclude(ending, step, digest);
        for waiting in self.replies.drain(..).chain(self.checkpoint_replies.drain(..)) {
            let _ = waiting.send(reply.clone());
        }
        exit
    }
}

/// Returns the reply to a user's command after `step` updates; `saved` is the checkpoint of this step, if there is one.
fn reply_of(step: u64, saved: Option<&Saved>) -> proto::CommandReply {
    let parameters_blake3 = saved.map(|saved| saved.digest.clone()).unwrap_or_default();
    proto::CommandReply { step, parameters_blake3 }
}
