//! Tells how the run goes: progress lines to the user, points to metrics.jsonl and the journal, gauges to `/metrics`, and
//! in the end the outcome.

use std::sync::Arc;
use std::time::Instant;

use millrace_checkpoint::Before;
use millrace_emulator::plan::StreamPlan;
use millrace_engine::coordinator::{Evaluation, LossScaling, Outcome};
use millrace_engine::types::{AgentId, CommitRecord, Epoch};
use millrace_params::{Job, Mode};
use millrace_protocol::proto;
use millrace_telemetry::journal;
use millrace_telemetry::logs::{AgentName, Level, Record};
use millrace_telemetry::metric_definitions::{CoordinatorMetrics, RoleMetrics};
use millrace_telemetry::progress::{EvalLine, RateMeter, Rates, Remaining, TrainLine, avg_eval_loss, time_for};

use super::console::Console;
use super::files::RunFiles;
use super::policy;
use super::saver::Saved;
use super::summary::{self, Usages};
use crate::control::job::CompiledJob;
use crate::failure::Failure;
use crate::launch::Exit;

/// The run's voice; see the module text.
pub struct Teller {
    console: Console,
    files: RunFiles,
    metrics: RoleMetrics,
    gauges: CoordinatorMetrics,
    job: Arc<Job>,
    plan: Arc<StreamPlan>,
    mode: Mode,
    /// Whether evaluations are part of the run.
    evaluates: bool,
    usages: Usages,
    progress: Progress,
}

/// Rates and times of the run.
struct Progress {
    began: Instant,
    /// Whether turns have begun.
    running: bool,
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
        Self { began: now, running: false, meter, mark: now, eval: None, steps: 0, tokens: 0, rates: Rates::default() }
    }
}

impl Teller {
    /// Speaks of a run of `compiled` in `mode`, with evaluations or without.
    pub fn new(
        compiled: &CompiledJob,
        mode: Mode,
        evaluates: bool,
        files: RunFiles,
        console: Console,
        metrics: RoleMetrics,
    ) -> Self {
        Self {
            gauges: CoordinatorMetrics::register(metrics.registry()),
            job: compiled.job.clone(),
            plan: compiled.plan.clone(),
            mode,
            evaluates,
            usages: Usages::new(),
            progress: Progress::new(),
            console,
            files,
            metrics,
        }
    }

    /// A sentence for the user.
    pub fn line(&self, line: impl std::fmt::Display) {
        self.console.line(line);
    }

    /// The coordinator's own log.
    pub fn own_log(&mut self, record: &Record) {
        self.files.log(record);
    }

    /// A line of an agent's log.
    pub fn log(&mut self, agent: AgentId, log: proto::Log) {
        let level = Level::ALL.into_iter().find(|level| level.as_str() == log.level).unwrap_or(Level::Info);
        if let Ok(name) = AgentName::new(agent.role.name(), agent.index) {
            let record = Record { unix_ms: log.time_ms, ..Record::new(level, name, log.message) };
            if level <= Level::Warning {
                self.console.log(&record.to_string());
            }
            self.files.log(&record);
        }
    }

    /// What an agent has used so far.
    pub fn usage(&mut self, agent: AgentId, usage: proto::Usage) {
        self.usages.insert(agent, usage);
    }

    /// The run waits for its agents.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn waiting(&self, systems: usize) -> Result<(), Failure> {
        self.files.state("Starting", &[("num_csx", systems.to_string())])?;
        self.console.line("Waiting for all agents to be running.");
        Ok(())
    }

    /// Everyone is there; the run goes on after `step`, to which the steps `before` led and which the shards hold already
    /// where `held` says so.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn gathered(&mut self, systems: usize, step: u64, before: &Before, held: bool) -> Result<(), Failure> {
        self.files.begin(step, before)?;
        if held {
            self.console.line(format!("MemoryX holds the parameters of step {step} of this job: going on from there."));
        }
        self.console.line(format!("Preparing to execute using {systems} CSX"));
        if !held {
            self.console.begin("Transferring initial weights", 1);
        }
        Ok(())
    }

    /// An epoch begins.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn epoch(&self, epoch: Epoch, systems: usize, rounds: usize) -> Result<(), Failure> {
        self.metrics.set_epoch(epoch.attempt.into(), epoch.number.into());
        log::info!("epoch {epoch} with {systems} system(s), {rounds} round(s)");
        self.files.state("Starting", &[("epoch", epoch.to_string()), ("num_csx", systems.to_string())])
    }

    /// Turns begin.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn running(&mut self) -> Result<(), Failure> {
        self.console.end();
        self.files.state(if self.mode.trains() { "Training" } else { "Evaluating" }, &[])?;
        let now = Instant::now();
        if !std::mem::replace(&mut self.progress.running, true) {
            self.progress.meter = RateMeter::new(now);
        }
        self.progress.mark = now;
        Ok(())
    }

    /// A step is committed.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn step(&mut self, record: &CommitRecord) -> Result<(), Failure> {
        let (run, samples) = (&self.job.run, self.plan.leaves.batch());
        let now = Instant::now();
        let progress = &mut self.progress;
        let seconds = now.duration_since(std::mem::replace(&mut progress.mark, now)).as_secs_f64();
        // Before turns begin, it is a step that an earlier coordinator came to decide: not this one's work.
        if progress.running {
            progress.meter.add(samples);
            progress.steps += 1;
            progress.tokens += record.tokens;
            self.gauges.samples.add(samples);
            self.gauges.tokens.add(record.tokens);
            if record.step.is_multiple_of(run.log_steps.max(1)) || record.step == run.max_steps {
                progress.rates = progress.meter.rates(now);
                let left = time_for(run.max_steps.saturating_sub(record.step) * samples, progress.rates.global_rate);
                let more = self.evaluates;
                let remaining = left.map(|left| Remaining { of_loop: left, of_run: left, of_run_is_lower_bound: more });
                let line = TrainLine { step: record.step, loss: record.loss, rates: progress.rates, remaining };
                self.console.line(line);
            }
        }
        self.metrics.committed(record.step);
        self.gauges.loss.set(record.loss.into());
        self.gauges.grad_norm.set(record.norm.into());
        self.gauges.learning_rate.set(record.learning_rate.into());
        self.files.step(record, seconds, self.progress.rates)
    }

    /// The loss as users of the params' scaling expect it.
    fn eval_loss(&self, evaluation: &Evaluation) -> f32 {
        let sum = evaluation.loss * evaluation.tokens as f64;
        let batch = self.plan.eval_leaves.batch();
        match policy::scaling(&self.job, batch * evaluation.batches.max(1)) {
            LossScaling::Tokens => evaluation.loss as f32,
            by_batch @ LossScaling::BatchSize { .. } => (sum * by_batch.factor(evaluation.tokens)) as f32,
        }
    }

    /// A batch of an evaluation is done.
    pub fn eval_batch(&mut self, evaluation: &Evaluation) {
        let now = Instant::now();
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

    /// An evaluation is done.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn evaluated(&mut self, evaluation: &Evaluation) -> Result<(), Failure> {
        let now = Instant::now();
        let loss = self.eval_loss(evaluation);
        let (mut meter, began) = self.progress.eval.take().unwrap_or((RateMeter::new(now), now));
        let (global_step, batch, rates) = (evaluation.step, evaluation.batches, meter.rates(now));
        // The last batch may have had its line already.
        if !batch.is_multiple_of(self.job.run.log_steps.max(1)) {
            self.console.line(EvalLine { global_step, batch, loss, rates, remaining: None });
        }
        self.console.line(avg_eval_loss(loss));
        self.console.line(format!(
            "Evaluation metrics: eval/accuracy = {:.5}, eval/lm_perplexity = {:.5}",
            evaluation.accuracy(),
            evaluation.perplexity()
        ));
        self.gauges.eval_loss.set(loss.into());
        let pause = now.duration_since(began);
        self.progress.meter.leave_out(pause);
        self.progress.mark = now;
        self.files.evaluation(evaluation, loss, pause.as_secs_f64())
    }

    /// A checkpoint is published.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn saved(&self, saved: &Saved) -> Result<(), Failure> {
        self.console.line(format!("Saved checkpoint {}", saved.path.display()));
        self.gauges.checkpoint_step.set(saved.step as f64);
        self.files.record(journal::Event::Checkpoint { step: saved.step, digest: saved.digest.clone() })
    }

    /// Says how the run ended, `step` updates in, the last of them saved or not. `leaver` is the shard that had to leave,
    /// where that stopped the run.
    pub fn conclude(mut self, outcome: &Outcome, leaver: Option<AgentId>, step: u64, saved: Option<&Saved>) -> Exit {
        self.console.end();
        let (exit, reason, message) = self.verdict(outcome, leaver);
        let mut failed_agent = leaver.map(|agent| agent.to_string());
        if let Outcome::Failed { agent, .. } = outcome {
            failed_agent = agent.map(|agent| agent.to_string());
            let who = failed_agent.as_ref().map_or_else(String::new, |agent| format!("{agent}: "));
            self.console.log(&format!("error: {who}{message}"));
        } else {
            self.console.line(&message);
        }
        self.sum_up();
        self.files.outcome(journal::Outcome {
            exit_code: exit.code(),
            reason: reason.to_owned(),
            message,
            step,
            digest: saved.map(|saved| saved.digest.clone()),
            failed_agent,
        });
        exit
    }

    /// Exit, reason in one word, and a sentence for the user.
    fn verdict(&self, outcome: &Outcome, leaver: Option<AgentId>) -> (Exit, &'static str, String) {
        match outcome {
            Outcome::Complete if self.mode.trains() => {
                (Exit::Done, "Succeeded", "Training completed successfully!".to_owned())
            }
            Outcome::Complete => (Exit::Done, "Succeeded", "Evaluation completed successfully!".to_owned()),
            Outcome::Stopped => {
                let message = match leaver {
                    Some(shard) => format!("Stopped: {shard} was asked to leave, and a run needs all its shards."),
                    None => "Stopped by the user.".to_owned(),
                };
                (Exit::Interrupted, "Interrupted", message)
            }
            Outcome::Failed { reason, bad_input: true, .. } => (Exit::BadInput, "BadParams", reason.clone()),
            Outcome::Failed { reason, .. } => (Exit::Failed, "Failed", reason.clone()),
        }
    }

    /// What was done, how fast, and who waited for what.
    fn sum_up(&mut self) {
        let Progress { began, meter, mark, steps, tokens, rates, .. } = &self.progress;
        let samples = meter.total_samples();
        if samples == 0 {
            return;
        }
        let trained = mark.duration_since(*began).min(meter.elapsed(*mark));
        let performance = summary::performance(&self.plan, (*steps, samples, *tokens), trained, *rates);
        let elapsed = began.elapsed();
        summary::lines(&performance, &self.usages, elapsed).iter().for_each(|line| self.console.line(line));
        summary::write(performance, &self.usages, self.files.model_dir());
    }
}
