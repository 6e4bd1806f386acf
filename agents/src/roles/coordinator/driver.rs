//! The loop that carries events to the machine and its commands out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_checkpoint::Staging;
use millrace_emulator::numerics::Isa;
use millrace_engine::coordinator::{
    Command, Coordinator, Done, EvalPolicy, Evaluation, Event, LossScaling, Outcome, Policy, Wanted,
};
use millrace_engine::message::{ChunkDigests, Order, Snapshot};
use millrace_engine::types::{AgentId, CommitRecord, Epoch, Role};
use millrace_params::Mode;
use millrace_protocol::proto;
use millrace_telemetry::journal;
use millrace_telemetry::logs::{AgentName, Level, Record};
use millrace_telemetry::metric_definitions::{CoordinatorMetrics, RoleMetrics};
use millrace_telemetry::progress::{EvalLine, RateMeter, Rates, Remaining, TrainLine, avg_eval_loss, time_for};
use tokio::sync::{mpsc, oneshot};

use super::Prepared;
use super::console::Console;
use super::journal::UserCommand;
use super::resume::{check_profile, evaluated};
use super::saver::{Saved, Saver};
use super::summary::{self, Usages};
use crate::control::job::JobDocument;
use crate::control::server::{ControlEvent, Hello, Post, StreamNumber};
use crate::failure::{Cause, Failure};
use crate::http::Readiness;
use crate::launch::Exit;

/// How long a shard may be gone before the attempt is given up: its numbers are nowhere else.
const SHARD_GRACE: Duration = Duration::from_secs(30);
/// How long agents have for their last words.
const FAREWELL: Duration = Duration::from_secs(5);

/// Where events come from.
pub struct Inbox {
    /// Agents.
    pub agents: mpsc::UnboundedReceiver<ControlEvent>,
    /// Users.
    pub user: mpsc::UnboundedReceiver<UserCommand>,
    /// The coordinator's own log.
    pub logs: mpsc::UnboundedReceiver<Record>,
}

/// What comes back from blocking work.
enum Worked {
    Staged(Result<Box<(Staging, Snapshot)>, Failure>),
    Published(Result<Saved, Failure>),
}

/// Agents that have said hello before the instruction set is pinned.
type WaitingRoom = BTreeMap<AgentId, (StreamNumber, Box<Hello>)>;

/// Who has joined: stream and post of each.
type Joined = BTreeMap<AgentId, (StreamNumber, Post)>;

pub struct Driver {
    prepared: Prepared,
    console: Console,
    metrics: RoleMetrics,
    gauges: CoordinatorMetrics,
    ready: Readiness,
    inbox: Inbox,
    machine: Option<Coordinator>,
    waiting: WaitingRoom,
    joined: Joined,
    saver: Option<Arc<Saver>>,
    staging: Option<Staging>,
    worked: mpsc::UnboundedReceiver<Worked>,
    work: mpsc::UnboundedSender<Worked>,
    replies: Vec<oneshot::Sender<proto::CommandReply>>,
    checkpoint_replies: Vec<oneshot::Sender<proto::CommandReply>>,
    usages: Usages,
    progress: Progress,
    last_saved: Option<Saved>,
    shard_lost: Option<(AgentId, Instant)>,
    outcome: Option<Outcome>,
}

/// Rates and times of the run.
struct Progress {
    began: Instant,
    meter: RateMeter,
    /// When the last step was committed, or turns began.
    mark: Instant,
    eval: Option<(RateMeter, Instant)>,
    steps: u64,
    tokens: u64,
    rates: Rates,
}

impl Progress {
    fn new() -> Self {
        let now = Instant::now();
        let meter = RateMeter::new(now);
        Self { began: now, meter, mark: now, eval: None, steps: 0, tokens: 0, rates: Rates::default() }
    }
}

impl Driver {
    pub fn new(prepared: Prepared, console: Console, metrics: RoleMetrics, ready: Readiness, inbox: Inbox) -> Self {
        let (work, worked) = mpsc::unbounded_channel();
        Self {
            gauges: CoordinatorMetrics::register(metrics.registry()),
            prepared,
            console,
            metrics,
            ready,
            inbox,
            machine: None,
            waiting: WaitingRoom::new(),
            joined: Joined::new(),
            saver: None,
            staging: None,
            worked,
            work,
            replies: Vec::new(),
            checkpoint_replies: Vec::new(),
            usages: Usages::new(),
            progress: Progress::new(),
            last_saved: None,
            shard_lost: None,
            outcome: None,
        }
    }

    /// Runs the job to its end; the exit is that of the whole run.
    pub async fn run(mut self) -> Result<Exit, Failure> {
        self.prepared.files.state("Starting", &[("num_csx", self.prepared.launch.wanted.systems.to_string())])?;
        self.console.line("Waiting for all agents to be running.");
        if let Err(failure) = self.turns().await {
            self.give_up(failure);
        }
        self.farewell().await;
        Ok(self.conclude())
    }

    async fn turns(&mut self) -> Result<(), Failure> {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
            .map_err(|error| Failure::own(format!("can't watch for signals: {error}")))?;
        while self.outcome.is_none() {
            let deadline = self.shard_lost.map(|(_, since)| since + SHARD_GRACE);
            tokio::select! {
                Some(event) = self.inbox.agents.recv() => self.agent(event)?,
                Some(command) = self.inbox.user.recv() => self.user(command)?,
                Some(record) = self.inbox.logs.recv() => self.prepared.files.log(&record),
                Some(worked) = self.worked.recv() => self.blocking_done(worked)?,
                _ = terminate.recv() => self.stop()?,
                () = tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now).into()), if deadline.is_some() => {
                    let lost = self.shard_lost.map_or_else(String::new, |(agent, _)| agent.to_string());
                    return Err(Failure::own(format!("{lost} is gone, and with it parameters since the last checkpoint"))
                        .hint("run the job again: it continues from the newest checkpoint"));
                }
            }
        }
        Ok(())
    }

    fn agent(&mut self, event: ControlEvent) -> Result<(), Failure> {
        match event {
            ControlEvent::Hello(number, hello) => self.hello(number, hello),
            ControlEvent::Report(agent, number, report) => {
                if self.joined.get(&agent).is_some_and(|(current, _)| *current == number) {
                    return self.event(Event::Report { agent, report });
                }
                Ok(())
            }
            ControlEvent::Log(agent, log) => {
                self.log(agent, log);
                Ok(())
            }
            ControlEvent::Usage(agent, usage) => {
                self.usages.insert(agent, usage);
                Ok(())
            }
            ControlEvent::Gone(agent, number) => {
                if self.joined.get(&agent).is_none_or(|(current, _)| *current != number) {
                    self.waiting.retain(|_, (waiting, _)| *waiting != number);
                    return Ok(());
                }
                self.joined.remove(&agent);
                log::warn!("{agent} is gone");
                if agent.role == Role::MemoryX {
                    self.shard_lost.get_or_insert((agent, Instant::now()));
                }
                self.event(Event::Lost { agent })
            }
        }
    }

    fn log(&mut self, agent: AgentId, log: proto::Log) {
        let level = Level::ALL.into_iter().find(|level| level.as_str() == log.level).unwrap_or(Level::Info);
        if let Ok(name) = AgentName::new(agent.role.name(), agent.index) {
            let record = Record { unix_ms: log.time_ms, ..Record::new(level, name, log.message) };
            if level <= Level::Warning {
                self.console.log(&record.to_string());
            }
            self.prepared.files.log(&record);
        }
    }

    /// An agent waits until all have said hello, so that the job can be pinned to an instruction set they all have.
    fn hello(&mut self, number: StreamNumber, hello: Box<Hello>) -> Result<(), Failure> {
        if self.machine.is_some() {
            return self.admit(number, &hello);
        }
        self.waiting.insert(hello.agent, (number, hello));
        let wanted = &self.prepared.launch.wanted;
        let of = |role| self.waiting.keys().filter(|agent| agent.role == role).count();
        let complete = of(Role::MemoryX) >= wanted.shards
            && of(Role::SwarmX) >= wanted.swarmx
            && of(Role::Activation) >= wanted.activation_servers
            && of(Role::Cs2) >= wanted.systems;
        if !complete {
            return Ok(());
        }
        self.pin()?;
        for (number, hello) in std::mem::take(&mut self.waiting).into_values() {
            self.admit(number, &hello)?;
        }
        Ok(())
    }

    /// Everyone is there: pins the profile and makes the machine.
    fn pin(&mut self) -> Result<(), Failure> {
        let Prepared { launch, compiled, beginning, eval_batches, lock, .. } = &mut self.prepared;
        let members = self.waiting.values().map(|(_, hello)| hello.isa);
        let isa = members.min().unwrap_or(Isa::Portable).min(compiled.profile.isa);
        compiled.profile.isa = isa;
        let note = check_profile(launch, compiled, beginning.profile.as_deref())?;
        self.saver = Some(Arc::new(Saver::new(lock.clone(), compiled.clone(), note.into_iter().collect())));
        let policy = policy(compiled, launch.mode, *eval_batches);
        let wanted = Wanted {
            systems: launch.wanted.systems as u32,
            least_systems: launch.wanted.least_systems as u32,
            shards: launch.wanted.shards as u32,
            fan_out: launch.wanted.fan_out,
            activation_servers: launch.wanted.activation_servers as u32,
        };
        let done = Done { evaluated: evaluated(&launch.model_dir, beginning.step), saved: beginning.saved };
        let done = if launch.mode.trains() { done } else { Done::default() };
        let source = beginning.source.clone();
        self.machine = Some(Coordinator::new(compiled.plan.clone(), policy, wanted, source, lock.attempt(), done));
        self.console.line(format!("Preparing to execute using {} CSX", launch.wanted.systems));
        self.console.begin("Transferring initial weights", 1);
        Ok(())
    }

    fn admit(&mut self, number: StreamNumber, hello: &Hello) -> Result<(), Failure> {
        let compiled = &self.prepared.compiled;
        if hello.isa < compiled.profile.isa {
            hello.post.refuse(&format!(
                "the job is pinned to {}, which {}'s machine has not got; mixed fleets are refused",
                compiled.profile.isa, hello.agent
            ));
            return Ok(());
        }
        let document = JobDocument { job: (*compiled.job).clone(), appliance: (*compiled.appliance).clone() };
        hello.post.welcome(proto::Welcome {
            job: serde_json::to_string(&document).map_err(Failure::own)?,
            plan: compiled.hash.0,
            attempt: self.prepared.lock.attempt(),
            isa: compiled.profile.isa.to_string(),
        });
        self.joined.insert(hello.agent, (number, hello.post.clone()));
        if self.shard_lost.is_some_and(|(agent, _)| agent == hello.agent) {
            self.shard_lost = None;
        }
        self.event(Event::Joined { agent: hello.agent, address: hello.address.clone(), shard: hello.shard })
    }

    fn user(&mut self, command: UserCommand) -> Result<(), Failure> {
        match command {
            UserCommand::Stop(reply) => {
                self.replies.push(reply);
                self.stop()
            }
            UserCommand::Checkpoint(reply) => {
                let step = self.machine.as_ref().map_or(0, Coordinator::step);
                match &self.last_saved {
                    Some(saved) if saved.step == step => {
                        let _ = reply.send(reply_of(saved));
                        Ok(())
                    }
                    _ => {
                        self.checkpoint_replies.push(reply);
                        self.event(Event::CheckpointWanted)
                    }
                }
            }
        }
    }

    fn stop(&mut self) -> Result<(), Failure> {
        if self.machine.is_none() {
            self.outcome = Some(Outcome::Stopped);
            return Ok(());
        }
        self.console.line("Stopping: the step in flight is abandoned, the last committed one is saved.");
        self.event(Event::StopWanted)
    }

    fn blocking_done(&mut self, worked: Worked) -> Result<(), Failure> {
        match worked {
            Worked::Staged(staged) => {
                let (staging, snapshot) = *staged?;
                self.staging = Some(staging);
                self.event(Event::Staged(snapshot))
            }
            Worked::Published(saved) => {
                let saved = saved?;
                self.console.line(format!("Saved checkpoint {}", saved.path.display()));
                self.gauges.checkpoint_step.set(saved.step as f64);
                let (step, digest) = (saved.step, saved.digest.clone());
                self.prepared.files.record(journal::Event::Checkpoint { step, digest })?;
                for reply in self.checkpoint_replies.drain(..) {
                    let _ = reply.send(reply_of(&saved));
                }
                self.last_saved = Some(saved);
                self.event(Event::Published { step })
            }
        }
    }

    /// Gives an event to the machine and carries its commands out.
    fn event(&mut self, event: Event) -> Result<(), Failure> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let mut commands = Vec::new();
        machine.on(event, &mut commands);
        commands.into_iter().try_for_each(|command| self.carry(command))
    }

    fn carry(&mut self, command: Command) -> Result<(), Failure> {
        match command {
            Command::Send(agent, order) => self.send(agent, &order),
            Command::Stage { step } => self.stage(step),
            Command::Publish { digests, record, .. } => self.publish(digests, record),
            Command::Epoch { epoch, placement } => {
                let csx = placement.systems.len().to_string();
                self.metrics.set_epoch(epoch.attempt.into(), epoch.number.into());
                self.ready.set(false);
                log::info!("epoch {epoch} with {csx} system(s), {} round(s)", placement.rounds.len());
                self.prepared.files.state("Starting", &[("epoch", epoch.to_string()), ("num_csx", csx)])?;
            }
            Command::Running => self.running()?,
            Command::Step(record) => self.step(&record)?,
            Command::EvalBatch(evaluation) => self.eval_batch(&evaluation),
            Command::Evaluated(evaluation) => self.evaluated(&evaluation)?,
            Command::End(outcome) => self.outcome = Some(outcome),
        }
        Ok(())
    }

    fn send(&self, agent: AgentId, order: &Order) {
        if let Some((_, post)) = self.joined.get(&agent) {
            post.order(order);
        }
    }

    fn stage(&self, step: u64) {
        let (Some(saver), Some(machine)) = (self.saver.clone(), &self.machine) else { return };
        let (epoch, work): (Epoch, _) = (machine.epoch(), self.work.clone());
        self.console.line(format!("Saving checkpoint at step {step}"));
        tokio::task::spawn_blocking(move || work.send(Worked::Staged(saver.stage(step, epoch).map(Box::new))));
    }

    fn publish(&mut self, digests: Vec<ChunkDigests>, record: Option<CommitRecord>) {
        let (Some(saver), Some(staging)) = (self.saver.clone(), self.staging.take()) else { return };
        let work = self.work.clone();
        tokio::task::spawn_blocking(move || work.send(Worked::Published(saver.publish(staging, digests, record))));
    }

    fn running(&mut self) -> Result<(), Failure> {
        self.console.end();
        self.ready.set(true);
        let state = if self.prepared.launch.mode.trains() { "Training" } else { "Evaluating" };
        self.prepared.files.state(state, &[])?;
        let now = Instant::now();
        if self.progress.steps == 0 {
            self.progress.meter = RateMeter::new(now);
        }
        self.progress.mark = now;
        Ok(())
    }

    fn step(&mut self, record: &CommitRecord) -> Result<(), Failure> {
        let (run, samples) = (&self.prepared.compiled.job.run, self.prepared.compiled.plan.leaves.batch());
        let now = Instant::now();
        let progress = &mut self.progress;
        let seconds = now.duration_since(std::mem::replace(&mut progress.mark, now)).as_secs_f64();
        progress.meter.add(samples);
        progress.steps += 1;
        progress.tokens += record.tokens;
        if record.step.is_multiple_of(run.log_steps.max(1)) || record.step == run.max_steps {
            progress.rates = progress.meter.rates(now);
            let left = time_for((run.max_steps - record.step) * samples, progress.rates.global_rate);
            let more = self.prepared.eval_batches > 0;
            let remaining = left.map(|left| Remaining { of_loop: left, of_run: left, of_run_is_lower_bound: more });
            let line = TrainLine { step: record.step, loss: record.loss, rates: progress.rates, remaining };
            self.console.line(line);
        }
        self.metrics.committed(record.step);
        self.gauges.loss.set(record.loss.into());
        self.gauges.grad_norm.set(record.norm.into());
        self.gauges.learning_rate.set(record.learning_rate.into());
        self.gauges.samples.add(samples);
        self.gauges.tokens.add(record.tokens);
        self.prepared.files.step(record, seconds, self.progress.rates)
    }

    /// The loss as users of the params' scaling expect it.
    fn eval_loss(&self, evaluation: &Evaluation) -> f32 {
        let sum = evaluation.loss * evaluation.tokens as f64;
        let batch = self.prepared.compiled.plan.eval_leaves.batch();
        match scaling(&self.prepared.compiled, batch * evaluation.batches.max(1)) {
            LossScaling::Tokens => evaluation.loss as f32,
            by_batch @ LossScaling::BatchSize { .. } => (sum * by_batch.factor(evaluation.tokens)) as f32,
        }
    }

    fn eval_batch(&mut self, evaluation: &Evaluation) {
        let now = Instant::now();
        let mark = self.progress.mark;
        let (meter, _) = self.progress.eval.get_or_insert_with(|| (RateMeter::new(mark), mark));
        meter.add(self.prepared.compiled.plan.eval_leaves.batch());
        let log_steps = self.prepared.compiled.job.run.log_steps.max(1);
        if evaluation.batches.is_multiple_of(log_steps) {
            let rates = meter.rates(now);
            let (global_step, batch) = (evaluation.step, evaluation.batches);
            let loss = self.eval_loss(evaluation);
            self.console.line(EvalLine { global_step, batch, loss, rates, remaining: None });
        }
    }

    fn evaluated(&mut self, evaluation: &Evaluation) -> Result<(), Failure> {
        let now = Instant::now();
        let loss = self.eval_loss(evaluation);
        let (mut meter, began) = self.progress.eval.take().unwrap_or((RateMeter::new(now), now));
        let (global_step, batch, rates) = (evaluation.step, evaluation.batches, meter.rates(now));
        // The last batch may have had its line already.
        if !batch.is_multiple_of(self.prepared.compiled.job.run.log_steps.max(1)) {
            self.console.line(EvalLine { global_step, batch, loss, rates, remaining: None });
        }
        self.console.line(avg_eval_loss(loss));
        let accuracy = evaluation.correct as f64 / evaluation.tokens.max(1) as f64;
        self.console.line(format!(
            "Evaluation metrics: eval/accuracy = {accuracy:.5}, eval/lm_perplexity = {:.5}",
            evaluation.loss.exp()
        ));
        self.gauges.eval_loss.set(loss.into());
        let pause = now.duration_since(began);
        self.progress.meter.leave_out(pause);
        self.progress.mark = now;
        self.prepared.files.evaluation(evaluation, loss, pause.as_secs_f64())
    }

    /// The run can't go on: tells everybody.
    fn give_up(&mut self, failure: Failure) {
        for (_, post) in self.joined.values() {
            post.order(&Order::Finish);
        }
        for (_, hello) in self.waiting.values() {
            hello.post.refuse("the run has failed");
        }
        let bad_input = failure.cause == Cause::BadInput;
        self.outcome = Some(Outcome::Failed { reason: failure.to_string(), agent: None, bad_input });
    }

    /// Hears everybody's last words.
    async fn farewell(&mut self) {
        let deadline = tokio::time::sleep(FAREWELL);
        tokio::pin!(deadline);
        while !self.joined.is_empty() {
            tokio::select! {
                event = self.inbox.agents.recv() => match event {
                    Some(ControlEvent::Gone(agent, _)) => { self.joined.remove(&agent); }
                    Some(ControlEvent::Usage(agent, usage)) => { self.usages.insert(agent, usage); }
                    Some(ControlEvent::Log(agent, log)) => self.log(agent, log),
                    Some(_) => {}
                    None => break,
                },
                () = &mut deadline => break,
            }
        }
        while let Ok(record) = self.inbox.logs.try_recv() {
            self.prepared.files.log(&record);
        }
    }

    /// Says how it ended.
    fn conclude(mut self) -> Exit {
        self.console.end();
        let elapsed = self.progress.began.elapsed();
        let samples = self.progress.meter.total_samples();
        let trained =
            self.progress.mark.duration_since(self.progress.began).min(self.progress.meter.elapsed(self.progress.mark));
        let work = (self.progress.steps, samples, self.progress.tokens);
        let performance = summary::performance(&self.prepared.compiled.plan, work, trained, self.progress.rates);
        let outcome = self.outcome.take().unwrap_or(Outcome::Stopped);
        let (exit, reason, message) = match &outcome {
            Outcome::Complete if self.prepared.launch.mode.trains() => {
                (Exit::Done, "Succeeded", "Training completed successfully!".to_owned())
            }
            Outcome::Complete => (Exit::Done, "Succeeded", "Evaluation completed successfully!".to_owned()),
            Outcome::Stopped => (Exit::Interrupted, "Interrupted", "Stopped by the user.".to_owned()),
            Outcome::Failed { reason, bad_input: true, .. } => (Exit::BadInput, "BadParams", reason.clone()),
            Outcome::Failed { reason, .. } => (Exit::Failed, "Failed", reason.clone()),
        };
        if let Outcome::Failed { agent, .. } = &outcome {
            let who = agent.map_or_else(String::new, |agent| format!("{agent}: "));
            self.console.log(&format!("error: {who}{message}"));
        } else {
            self.console.line(&message);
        }
        if samples > 0 {
            summary::lines(&performance, &self.usages, elapsed).iter().for_each(|line| self.console.line(line));
            summary::write(performance, &self.usages, self.prepared.files.model_dir());
        }
        let failed_agent = match &outcome {
            Outcome::Failed { agent, .. } => agent.map(|agent| agent.to_string()),
            _ => None,
        };
        let step = self.machine.as_ref().map_or(self.prepared.beginning.step, Coordinator::step);
        let saved = self.last_saved.take().filter(|saved| saved.step == step);
        self.prepared.files.outcome(journal::Outcome {
            exit_code: exit.code(),
            reason: reason.to_owned(),
            message,
            step,
            digest: saved.as_ref().map(|saved| saved.digest.clone()),
            failed_agent,
        });
        let reply = saved.as_ref().map_or(proto::CommandReply { step, parameters_blake3: String::new() }, reply_of);
        for waiting in self.replies.drain(..).chain(self.checkpoint_replies.drain(..)) {
            let _ = waiting.send(reply.clone());
        }
        exit
    }
}

fn reply_of(saved: &Saved) -> proto::CommandReply {
    proto::CommandReply { step: saved.step, parameters_blake3: saved.digest.clone() }
}

fn scaling(compiled: &crate::control::job::CompiledJob, batch: u64) -> LossScaling {
    match compiled.job.model.loss_scaling {
        millrace_params::LossScaling::NumTokens => LossScaling::Tokens,
        millrace_params::LossScaling::BatchSize => {
            LossScaling::BatchSize { weight: compiled.job.model.loss_weight, batch }
        }
    }
}

/// The run's policy from its params.
fn policy(compiled: &crate::control::job::CompiledJob, mode: Mode, eval_batches: u64) -> Policy {
    let run = &compiled.job.run;
    let schedule = compiled.job.optimizer.schedule.clone();
    let train = mode.trains();
    Policy {
        train,
        max_steps: run.max_steps,
        eval: mode
            .evaluates()
            .then(|| EvalPolicy { every: train.then_some(run.eval_frequency), batches: eval_batches }),
        checkpoint_every: (run.checkpoint_steps > 0).then_some(run.checkpoint_steps),
        initial_checkpoint: run.save_initial_checkpoint,
        scaling: scaling(compiled, compiled.plan.leaves.batch()),
        clip: compiled.job.optimizer.max_gradient_norm,
        learning_rate: Arc::new(move |step| schedule.at(step)),
    }
}
