//! Reports the progress of the run: lines to the user, points to metrics.jsonl and the journal, gauges to `/metrics`,
//! and the outcome at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use millrace_checkpoint::ResumeHistory;
use millrace_emulator::plan::StreamPlan;
use millrace_engine::coordinator::{Evaluation, LossScaling, SkippedBatch};
use millrace_engine::types::{AgentId, CommitRecord, Epoch};
use millrace_params::{JobSpec, Mode};
use millrace_protocol::proto;
use millrace_telemetry::journal::{self, OutcomeReason, ResumePoint, RunPhase, RunState, SlowAgent, StorageStall};
use millrace_telemetry::logs::{AgentName, Level, LogRecord};
use millrace_telemetry::metric_definitions::{CoordinatorMetrics, RoleMetrics};
use millrace_telemetry::progress::{
    EvalLine, RateMeter, Rates, TimeRemaining, TrainLine, avg_eval_loss, estimated_time,
};
use millrace_telemetry::unix_ms;

use super::checkpoint_writer::PublishedCheckpoint;
use super::console::{Console, is_shown};
use super::file_writer::FileWriter;
use super::heartbeat::{ProgressHeartbeat, RunActivity};
use super::model_metrics::ModelMetrics;
use super::run_end::RunEnd;
use super::run_policy;
use super::storage_condition::{StorageChange, StorageCondition};
use super::summary::{self, Usages};
use crate::control::job::CompiledJob;
use crate::error::AgentError;
use crate::launch::{Exit, LaunchDocument};
use crate::write_watch::OngoingWrite;

/// Reports the progress of one run; see the module documentation.
pub struct Reporter {
    console: Console,
    files: FileWriter,
    metrics: RoleMetrics,
    gauges: CoordinatorMetrics,
    job: Arc<JobSpec>,
    plan: Arc<StreamPlan>,
    mode: Mode,
    /// The current state of the run, as last recorded in the journal.
    state: RunState,
    model_metrics: ModelMetrics,
    /// Whether the run has evaluations.
    is_evaluated: bool,
    usages: Usages,
    progress: RunProgress,
    heartbeat: ProgressHeartbeat,
    storage: StorageCondition,
    /// Whether the run was requested to stop.
    is_stopping: bool,
    /// Whether agents have been instructed to leave, at the end of the run.
    are_agents_leaving: bool,
}

/// What is reported about a model besides its loss.
pub struct ReportedModel {
    pub metrics: ModelMetrics,
    /// Whether the run has evaluations.
    pub is_evaluated: bool,
    /// Expected time of a training step in seconds, if it is known.
    pub step_estimate: Option<f64>,
}

/// Rates and times of the run.
struct RunProgress {
    began: Instant,
    /// Whether iterations have begun.
    running: bool,
    meter: RateMeter,
    /// When the last step was committed, the last evaluation ended, or iterations began.
    mark: Instant,
    eval: Option<(RateMeter, Instant)>,
    steps: u64,
    tokens: u64,
    rates: Rates,
}

impl RunProgress {
    fn new() -> Self {
        let now = Instant::now();
        let meter = RateMeter::new(now);
        Self { began: now, running: false, meter, mark: now, eval: None, steps: 0, tokens: 0, rates: Rates::default() }
    }
}

impl Reporter {
    /// Creates the reporter of the run of `launch`.
    pub fn new(
        launch: &LaunchDocument,
        compiled: &CompiledJob,
        ReportedModel { metrics: model_metrics, is_evaluated, step_estimate }: ReportedModel,
        mut files: FileWriter,
        console: Console,
        metrics: RoleMetrics,
    ) -> Self {
        let gauges = CoordinatorMetrics::register(metrics.registry());
        files.count_dropped(gauges.dropped_records.clone());
        Self {
            gauges,
            job: compiled.job.clone(),
            plan: compiled.plan.clone(),
            mode: launch.mode,
            state: RunState {
                state: RunPhase::Starting,
                step: 0,
                total_steps: launch.mode.trains().then_some(compiled.job.run.max_steps),
                num_csx: launch.agent_counts.systems as u32,
                requested_csx: Some(launch.agent_counts.systems as u32),
                epoch: None,
                lost_agents: BTreeMap::new(),
                slow_agents: BTreeMap::new(),
                storage_stall: None,
                resumed: None,
                note: None,
            },
            heartbeat: ProgressHeartbeat::new(Instant::now(), step_estimate),
            storage: StorageCondition::default(),
            is_stopping: false,
            are_agents_leaving: false,
            model_metrics,
            is_evaluated,
            usages: Usages::new(),
            progress: RunProgress::new(),
            console,
            files,
            metrics,
        }
    }

    /// Prints a sentence for the user.
    pub fn line(&self, line: impl std::fmt::Display) {
        self.console.line(line);
    }

    /// Writes a record of the coordinator's own log to the files.
    pub fn own_log(&mut self, record: LogRecord) {
        self.files.log(record);
    }

    /// Waits until the files have what was reported, unless their storage does not respond.
    pub async fn wait_for_files(&mut self) {
        self.files.wait().await;
    }

    /// Records that agents leave from now on, and so close their links.
    pub const fn on_agents_leaving(&mut self) {
        self.are_agents_leaving = true;
    }

    /// Writes a log record of an agent to the files, and to the console if it is important for the user.
    pub fn log(&mut self, agent: AgentId, log: proto::Log) {
        let level = Level::ALL.into_iter().find(|level| level.as_str() == log.level).unwrap_or(Level::Info);
        if let Ok(name) = AgentName::new(agent.role.as_str(), agent.index) {
            let fields = log.fields.into_iter().collect();
            let record = LogRecord { unix_ms: log.time_ms, fields, ..LogRecord::new(level, name, log.message) };
            let current = self.state.epoch.as_deref().filter(|_| !self.are_agents_leaving);
            if is_shown(level, record.fields.get("epoch").map(String::as_str), current) {
                self.console.log(&record.to_string());
            }
            self.files.log(record);
        }
    }

    /// Replaces the usage of an agent, which is cumulative.
    pub fn usage(&mut self, agent: AgentId, usage: proto::Usage) {
        self.usages.insert(agent, usage);
    }

    /// Records the new state of the run in the journal.
    fn set_phase(&mut self, stage: RunPhase) {
        self.state.state = stage;
        self.files.state(self.state.clone());
    }

    /// Records which agents are lost, and since when, in milliseconds since 1970.
    pub fn set_lost_agents(&mut self, lost: BTreeMap<String, u64>) {
        self.state.lost_agents = lost;
        self.files.state(self.state.clone());
    }

    /// Reports that the run is resized to this number of systems.
    pub fn resizing(&mut self, systems: usize) {
        self.console.line(format!("Resizing to {systems} CSX"));
    }

    /// Records the number of systems that the run is to use, if it has changed.
    pub fn set_requested_systems(&mut self, systems: u32) {
        if self.state.requested_csx.replace(systems) != Some(systems) {
            self.files.state(self.state.clone());
        }
    }

    /// Sets the speed of each agent relative to the others of its role.
    pub fn set_relative_speeds(&self, relative: &[(AgentId, f64)]) {
        for (agent, relative) in relative {
            self.gauges.relative_speed.with([&agent.to_string()]).set(*relative);
        }
    }

    /// Records which agents are slow, if these have changed, and warns of each new one.
    pub fn set_slow_agents(&mut self, slow: &BTreeMap<AgentId, SlowAgent>) {
        let by_name: BTreeMap<String, SlowAgent> =
            slow.iter().map(|(agent, slow)| (agent.to_string(), *slow)).collect();
        if by_name == self.state.slow_agents {
            return;
        }
        for (agent, slow) in by_name.iter().filter(|(agent, _)| !self.state.slow_agents.contains_key(*agent)) {
            let percent = slow.speed_percent;
            tracing::warn!(
                peer = %agent,
                "{agent} is slow: it works at {percent} % of the speed of the other agents of its role, and delays \
                 every step"
            );
        }
        self.state.slow_agents = by_name;
        self.files.state(self.state.clone());
    }

    /// Reports the writes that have not returned for long: those of these files, and `others`.
    pub fn check_storage(&mut self, others: impl IntoIterator<Item = OngoingWrite>) {
        let stalled: Vec<OngoingWrite> = self.files.stalled().cloned().into_iter().chain(others).collect();
        let change = self.storage.update(Instant::now(), stalled);
        let seconds = self.storage.shown().map_or(0.0, |write| write.began.elapsed().as_secs_f64());
        self.gauges.storage_stall_seconds.set(seconds);
        match change {
            None => return,
            Some(StorageChange::Stalled(OngoingWrite { file, .. })) => {
                let since = unix_ms().saturating_sub((seconds * 1e3) as u64);
                tracing::warn!(
                    "the storage of model_dir has not responded to a write to {} for {seconds:.0} s; training \
                     continues, and what can't be written is kept in memory or tried again",
                    file.display()
                );
                self.state.storage_stall =
                    Some(StorageStall { file: file.to_string_lossy().into_owned(), since_unix_ms: since });
            }
            Some(StorageChange::Responds(write, stalled_for)) => {
                let (file, seconds) = (write.file.display(), stalled_for.as_secs());
                tracing::warn!(
                    "the storage of model_dir responds again; it had not responded to a write to {file} for {seconds} s"
                );
                self.state.storage_stall = None;
            }
        }
        self.files.state(self.state.clone());
    }

    /// Returns when [`Reporter::heartbeat`] is due, unless something else is reported before.
    pub fn heartbeat_due(&self) -> Instant {
        self.heartbeat.due()
    }

    /// Prints and records what the run is doing, if nothing was reported for a while.
    pub fn heartbeat(&mut self) {
        let Some(line) = self.heartbeat.next_message(Instant::now()) else { return };
        self.console.line(&line);
        self.files.state(RunState { note: Some(line), ..self.state.clone() });
    }

    /// Restarts the heartbeat for what follows the current step.
    fn training(&mut self) {
        let activity = RunActivity::after_step(self.state.step, self.job.run.max_steps, self.is_stopping);
        self.heartbeat.set_activity(activity, Instant::now());
    }

    /// Reports that the run was requested to stop after all agents had joined.
    pub fn stopping(&mut self) {
        self.is_stopping = true;
        self.console.line("Stopping: the step in flight is abandoned, the last committed one is saved.");
        if self.mode.trains() {
            self.training();
        }
    }

    /// Reports that the run waits for its agents. It will continue after `step`.
    pub fn waiting(&mut self, step: u64) {
        self.state.step = step;
        self.set_phase(RunPhase::Starting);
        self.console.line("Waiting for all agents to be running.");
    }

    /// Reports that all agents have joined and that the run continues after `step`, to which the steps `before` led.
    /// `held` says that the shards already hold the parameters of `step`.
    ///
    /// # Errors
    /// Metrics or event files can't be opened.
    pub fn on_agents_ready(
        &mut self,
        systems: usize,
        step: u64,
        before: &ResumeHistory,
        held: bool,
    ) -> Result<(), AgentError> {
        let resumed = self.files.begin(step, before)?;
        // A run that only has another coordinator has not resumed.
        self.state.resumed = resumed.filter(|_| !held);
        self.state.step = step;
        if held {
            self.console.line(format!("Resuming from step {step}: MemoryX holds its parameters."));
        }
        let last = self.job.run.max_steps;
        if self.mode.trains() && step >= last {
            self.console
                .line(format!("No steps are left to train: step {step} is the last one (max_steps is {last})."));
        }
        if let Some(ResumePoint { step, repeated_steps: repeated @ 1.. }) = resumed {
            let line = match step {
                0 => format!("Restarting at step 0: no checkpoint; {repeated} step(s) are lost."),
                _ => format!("Resuming from step {step}; rerunning {repeated} lost step(s)."),
            };
            self.console.line(line);
        }
        self.console.line(format!("Preparing to execute using {systems} CSX"));
        self.heartbeat.set_activity(RunActivity::Loading, Instant::now());
        if !held {
            self.console.begin("Transferring initial weights", 1);
        }
        Ok(())
    }

    /// Reports the beginning of an epoch.
    pub fn epoch(&mut self, epoch: Epoch, systems: usize, rounds: usize) {
        self.metrics.set_epoch(epoch.attempt.into(), epoch.number.into());
        tracing::info!(%epoch, systems, rounds, "epoch begins");
        (self.state.epoch, self.state.num_csx) = (Some(epoch.to_string()), systems as u32);
        self.heartbeat.set_activity(RunActivity::Loading, Instant::now());
        self.set_phase(RunPhase::Starting);
    }

    /// Reports that iterations begin, for the first time or after a change of membership.
    pub fn running(&mut self) {
        self.console.end();
        if self.mode.trains() {
            self.set_phase(RunPhase::Training);
            self.training();
        }
        let now = Instant::now();
        if !std::mem::replace(&mut self.progress.running, true) {
            self.progress.meter = RateMeter::new(now);
        }
        self.progress.mark = now;
    }

    /// Reports a committed step. `metrics` are the sums of the metrics of the graph; empty if they are not known.
    pub fn step(&mut self, record: &CommitRecord, metrics: &[f64]) {
        let samples = self.plan.leaves.batch();
        let now = Instant::now();
        self.state.step = record.step;
        self.training();
        let (run, progress) = (&self.job.run, &mut self.progress);
        let seconds = now.duration_since(std::mem::replace(&mut progress.mark, now)).as_secs_f64();
        // Before iterations begin, this is a step of an earlier coordinator and does not count as work of this one.
        if progress.running {
            progress.meter.add(samples);
            progress.steps += 1;
            progress.tokens += record.tokens;
            self.gauges.samples.add(samples);
            self.gauges.tokens.add(record.tokens);
            if record.step.is_multiple_of(run.log_steps.max(1)) || record.step == run.max_steps {
                progress.rates = progress.meter.rates(now);
                let remaining =
                    estimated_time(run.max_steps.saturating_sub(record.step) * samples, progress.rates.global_rate);
                let remaining = remaining.map(|remaining| TimeRemaining {
                    of_loop: remaining,
                    of_run: remaining,
                    of_run_is_lower_bound: self.is_evaluated,
                });
                let line = TrainLine { step: record.step, loss: record.loss, rates: progress.rates, remaining };
                self.console.line(line);
            }
        }
        self.metrics.record_step(record.step);
        self.gauges.loss.set(record.loss.into());
        self.gauges.grad_norm.set(record.norm.into());
        self.gauges.learning_rate.set(record.learning_rate.into());
        let mut rates = self.progress.rates;
        if rates.rate == 0.0 && self.progress.running {
            rates.rate = samples as f64 / seconds.max(f64::MIN_POSITIVE);
        }
        self.files.step(record, self.model_metrics.of_step(metrics), seconds, rates);
    }

    /// Returns the loss with the scaling of the params. Losses that have weights are divided already.
    fn eval_loss(&self, evaluation: &Evaluation) -> f32 {
        if self.plan.graph.weighted_losses().next().is_some() {
            return (evaluation.loss * self.job.model.loss_weight) as f32;
        }
        let sum = evaluation.loss * evaluation.tokens as f64;
        match run_policy::scaling(&self.job, self.plan.eval_leaves.batch(), evaluation.batches) {
            LossScaling::Tokens => evaluation.loss as f32,
            by_batch @ LossScaling::BatchSize { .. } => (sum * by_batch.factor(evaluation.tokens)) as f32,
        }
    }

    /// Sets the step to that of the checkpoint that is evaluated next.
    pub const fn set_evaluated_step(&mut self, step: u64) {
        self.state.step = step;
    }

    /// Reports that an evaluation begins.
    pub fn evaluating(&mut self) {
        self.heartbeat.set_activity(RunActivity::Evaluating { batches: 0 }, Instant::now());
        self.set_phase(RunPhase::Evaluating);
    }

    /// Reports a finished batch of an evaluation.
    pub fn eval_batch(&mut self, evaluation: &Evaluation) {
        let now = Instant::now();
        self.heartbeat.set_activity(RunActivity::Evaluating { batches: evaluation.batches }, now);
        let mark = self.progress.mark;
        let (meter, _) = self.progress.eval.get_or_insert_with(|| (RateMeter::new(mark), mark));
        meter.add(self.plan.eval_leaves.batch());
        let log_steps = self.job.run.log_steps.max(1);
        if evaluation.batches.is_multiple_of(log_steps) {
            let rates = meter.rates(now);
            let (global_step, batch) = (evaluation.step, evaluation.batches);
            let loss = self.eval_loss(evaluation);
            self.console.line(EvalLine { global_step, batch, loss, rates, remaining: None });
        }
    }

    pub fn evaluated(&mut self, evaluation: &Evaluation) {
        let now = Instant::now();
        let loss = self.eval_loss(evaluation);
        let (mut meter, began) = self.progress.eval.take().unwrap_or((RateMeter::new(now), now));
        let (global_step, batch, rates) = (evaluation.step, evaluation.batches, meter.rates(now));
        // The line of the last batch may have been printed already.
        if !batch.is_multiple_of(self.job.run.log_steps.max(1)) {
            self.console.line(EvalLine { global_step, batch, loss, rates, remaining: None });
        }
        self.console.line(avg_eval_loss(global_step, loss));
        let metrics = self.model_metrics.of_evaluation(evaluation);
        if !metrics.is_empty() {
            let lines: Vec<String> = metrics.iter().map(|(name, value)| format!("{name} = {value:.5}")).collect();
            self.console.line(format!("Evaluation metrics: {}", lines.join(", ")));
        }
        self.gauges.eval_loss.set(loss.into());
        let pause = now.duration_since(began);
        self.progress.meter.exclude(pause);
        self.progress.mark = now;
        self.files.evaluation(evaluation, metrics, loss, pause.as_secs_f64(), rates);
        if !self.mode.trains() {
            return;
        }
        self.training();
        self.set_phase(RunPhase::Training);
    }

    pub fn saved(&mut self, saved: &PublishedCheckpoint) {
        self.console.line(format!("Saved checkpoint {}", saved.path.display()));
        self.gauges.checkpoint_step.set(saved.step as f64);
        self.files.record(journal::JournalEvent::Checkpoint { step: saved.step, digest: saved.digest.clone() });
    }

    /// Reports a checkpoint that could not be written. `sentence` says why, and how the run continues.
    pub fn not_saved(&mut self, step: u64, sentence: &str) {
        // The logger prints it on standard error.
        tracing::warn!(step, "{sentence}");
        self.files.record(journal::JournalEvent::CheckpointFailed { step, message: sentence.to_owned() });
    }

    /// Reports that all shards load the checkpoint of step `from`, because `shard` lost its parameters, and that the
    /// steps up to `to` are executed again.
    pub fn restored(&mut self, shard: AgentId, from: u64, to: u64) {
        let again = describe_repeated_steps(from, to);
        tracing::warn!(step = to, "{shard} lost its parameters: all shards load those of step {from}, and {again}");
    }

    /// Reports that all shards load parameters of step `from`, because they could not load newer ones, and that the
    /// steps up to `to` are executed again.
    pub fn fell_back(&mut self, from: u64, to: u64) {
        let again = describe_repeated_steps(from, to);
        tracing::warn!(step = to, "all shards load the parameters of step {from}, and {again}");
    }

    /// Reports that a batch was skipped.
    pub fn skipped(&mut self, SkippedBatch { step, batch, skipped_batches, reason }: &SkippedBatch) {
        self.gauges.skipped_batches.inc();
        tracing::warn!(
            step,
            skipped_batches,
            "skipped batch {batch}: {reason}. Step {step} is executed with the next batch"
        );
    }

    /// Writes what is left without an outcome: another coordinator continues the run.
    pub fn leave(mut self) {
        self.files.close();
    }

    /// Reports the outcome of the run after `step` updates; returns the exit of the process. `digest` is that of the
    /// saved parameters of this step, if they were saved.
    pub fn finish(mut self, end: RunEnd, step: u64, digest: Option<String>) -> Exit {
        self.console.end();
        let RunEnd { reason, message, agent } = end;
        let exit = Exit::from(reason);
        let failed_agent = agent.map(|agent| agent.to_string());
        if matches!(reason, OutcomeReason::Succeeded | OutcomeReason::Interrupted) {
            self.console.line(&message);
        } else {
            let prefix = failed_agent.as_ref().map_or_else(String::new, |agent| format!("{agent}: "));
            self.console.log(&format!("error: {prefix}{message}"));
        }
        self.print_summary();
        let exit_code = exit.code();
        self.files.finish(journal::AttemptOutcome { exit_code, reason, message, step, digest, failed_agent });
        exit
    }

    /// Prints the amount of work, the rates, and the time that each role waited; writes performance.json.
    fn print_summary(&mut self) {
        let RunProgress { began, meter, mark, steps, tokens, rates, .. } = &self.progress;
        let samples = meter.total_samples();
        if samples == 0 {
            return;
        }
        let trained = mark.duration_since(*began).min(meter.elapsed(*mark));
        let performance = summary::performance(&self.plan, (*steps, samples, *tokens), trained, *rates);
        let elapsed = began.elapsed();
        summary::lines(&performance, &self.usages, elapsed).iter().for_each(|line| self.console.line(line));
        let usages = std::mem::take(&mut self.usages);
        self.files.write(move |model_dir| summary::write(performance, &usages, model_dir));
    }
}

/// Returns the steps after `from`, up to `to`, that are executed again.
fn describe_repeated_steps(from: u64, to: u64) -> String {
    match to.saturating_sub(from) {
        0 => "no step is executed again".to_owned(),
        1 => format!("step {to} is executed again"),
        _ => format!("steps {} to {to} are executed again", from + 1),
    }
}
