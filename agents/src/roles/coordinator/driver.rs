//! The loop that carries events to the machine and its commands out.

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
use millrace_telemetry::journal::Reason;
use millrace_telemetry::logs::Record;
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

/// How long a shard may be gone before the attempt is given up: its numbers are nowhere else.
const SHARD_GRACE: Duration = Duration::from_secs(30);
/// How long a run that is to end waits for shards that may hold steps of an earlier coordinator.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// How long agents have for their last words.
const FAREWELL: Duration = Duration::from_secs(5);

/// Where events come from.
pub struct Inbox {
    /// Agents.
    pub agents: ControlEvents,
    /// Users.
    pub user: mpsc::Receiver<UserCommand>,
    /// The coordinator's own log.
    pub logs: mpsc::Receiver<Record>,
    /// SIGTERM.
    pub terminate: Signal,
}

/// Agents that have said hello before the instruction set is pinned.
type WaitingRoom = BTreeMap<AgentId, (StreamNumber, Box<Hello>)>;

/// Who has joined.
type Joined = BTreeMap<AgentId, Connected>;

/// An agent that has joined, by its one live stream.
struct Connected {
    stream: StreamNumber,
    /// Of the process, see [`Hello::instance`].
    instance: u64,
    post: Post,
}

/// See the module text.
pub struct Driver {
    launch: Launch,
    compiled: CompiledJob,
    beginning: Beginning,
    /// What is evaluated after it.
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
    /// Whether the checkpoint that is being written is a recovery checkpoint.
    recovery: bool,
    worked: mpsc::UnboundedReceiver<Worked>,
    work: mpsc::UnboundedSender<Worked>,
    replies: Vec<oneshot::Sender<proto::CommandReply>>,
    checkpoint_replies: Vec<oneshot::Sender<proto::CommandReply>>,
    last_saved: Option<Saved>,
    /// Shards that are gone, since when.
    lost_shards: BTreeMap<AgentId, Instant>,
    /// The epoch whose failed link is being waited out, and until when.
    pause: Option<(Epoch, Instant)>,
    /// The run is to end though not everyone is there yet; by when it does in any case.
    stop_by: Option<Instant>,
    /// The shard whose leaving ends the run.
    leaver: Option<AgentId>,
    ending: Option<Ending>,
    /// Of processes whose name another one has.
    rejections: RejectionLog,
}

impl Driver {
    /// Drives the run that was prepared.
    pub fn new(prepared: Prepared, console: Console, metrics: RoleMetrics, inbox: Inbox) -> Self {
        // One checkpoint at a time is staged, then published.
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

    /// Runs the job to its end; the exit is that of the whole run.
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

    /// A pause is over, a checkpoint is due, or somebody has been waited for too long.
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
        Err(Failure::of(Reason::ShardLost, sentence).hint("run the job again: it continues from the newest checkpoint"))
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

    /// Whether `number` is the stream by which `agent` is connected.
    fn is_current(&self, agent: AgentId, number: StreamNumber) -> bool {
        self.joined.get(&agent).is_some_and(|connected| connected.stream == number)
    }

    /// A stream has ended, and with it the agent's membership if it was its current one.
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
        // Who has gone away waits for nothing.
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

    /// Updates made, and the checkpoint of exactly these, if there is one.
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

    /// A shard has to go, and its numbers are nowhere else: saves them and ends the run.
    fn leaving(&mut self, agent: AgentId, number: StreamNumber) -> Result<(), Failure> {
        if !self.is_current(agent, number) {
            return Ok(());
        }
        tracing::warn!(peer = %agent, "{agent} was asked to leave");
        self.leaver.get_or_insert(agent);
        self.stop()
    }

    /// Gives an event to the machine and carries its commands out.
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

    /// The machine has turned to the next checkpoint that is evaluated.
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

    /// Ends the stream of an agent that can't go on.
    fn dismiss(&mut self, agent: AgentId, reason: &str) {
        tracing::warn!(peer = %agent, "{agent} can't go on and is dismissed: {reason}");
        if let Some(connected) = self.joined.remove(&agent) {
            connected.post.order(&AgentCommand::Finish);
        }
    }

    /// The run can't go on: tells everybody.
    fn give_up(&mut self, failure: &Failure) {
        for connected in self.joined.values() {
            connected.post.order(&AgentCommand::Finish);
        }
        self.ending = Some(Ending::failed(failure));
    }

    /// Hears everybody's last words.
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

    /// Says how it ended, to everybody who waits for it.
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

/// What a command is answered after `step` updates, which `saved` has where they are saved.
fn reply_of(step: u64, saved: Option<&Saved>) -> proto::CommandReply {
    let parameters_blake3 = saved.map(|saved| saved.digest.clone()).unwrap_or_default();
    proto::CommandReply { step, parameters_blake3 }
}
