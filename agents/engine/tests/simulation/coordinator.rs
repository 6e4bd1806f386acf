//! The simulated coordinator: the state machine, its streams, and the work of its driver. Checks every command.

use std::collections::{BTreeMap, BTreeSet};

use millrace_emulator::plan::ChunkId;
use millrace_engine::coordinator::{
    Coordinator, CoordinatorCommand, CoordinatorEvent, Evaluation, RunOutcome, SkippedBatch,
};
use millrace_engine::message::{AgentReport, ChunkDigests, FailureCause, SnapshotRequest};
use millrace_engine::types::{AgentId, CommitRecord, Epoch, Role};

use crate::model::Parameters;
use crate::network::{AgentMessage, Coverage, Network};
use crate::planted::PlantedBug;
use crate::setup::SimulatedJob;
use crate::simulation::source_of;

/// The results of a run so far, over all attempts.
#[derive(Default)]
pub struct History {
    pub steps: Vec<CommitRecord>,
    /// Number of evaluations of each step.
    pub evaluated: BTreeMap<u64, u32>,
    pub epochs: u32,
    pub restarts: u32,
    pub stops: u32,
    /// Steps whose checkpoint could not be written; a later attempt may have succeeded.
    pub unsaved: BTreeSet<u64>,
    pub coverage: Coverage,
    /// Steps of published checkpoints.
    pub saved: BTreeSet<u64>,
    pub outcome: Option<RunOutcome>,
    /// The newest step committed before the shards were restored, while its steps are executed again.
    pub restoring_to: Option<u64>,
}

impl History {
    /// Discards everything after `step`, from which the next attempt resumes.
    pub fn truncate_after(&mut self, step: u64) {
        self.steps.retain(|record| record.step <= step);
        self.evaluated.retain(|evaluated, _| *evaluated <= step);
    }
}

/// Asynchronous work of the driver.
enum BackgroundTask {
    Stage(u64),
    Publish {
        step: u64,
        digests: Vec<ChunkDigests>,
        record: Option<CommitRecord>,
    },
    /// Retries a failed checkpoint of the last step.
    SaveAgain,
    /// Finds the newest checkpoint that is not damaged.
    Find,
    /// The end of a backoff, after it was scheduled this many more times.
    EndPause(Epoch, u64),
}

pub struct SimulatedCoordinator {
    pub machine: Coordinator,
    streams: BTreeMap<AgentId, u64>,
    background_tasks: Vec<BackgroundTask>,
    directories: u64,
    /// The newest step reported in this attempt.
    reported: Option<u64>,
    /// The step of the most recent evaluation source.
    source: Option<u64>,
    /// Reports to be replayed in a later epoch: they must have no effect.
    stale_messages: Vec<(AgentId, AgentReport)>,
}

impl SimulatedCoordinator {
    pub fn new(machine: Coordinator) -> Self {
        Self {
            machine,
            streams: BTreeMap::new(),
            background_tasks: Vec::new(),
            directories: 0,
            reported: None,
            source: None,
            stale_messages: Vec::new(),
        }
    }

    pub fn background_tasks(&self) -> usize {
        self.background_tasks.len()
    }

    /// Handles a message on a stream. Messages of a replaced stream are dropped, including its end.
    pub fn receive(
        &mut self,
        stream: u64,
        message: AgentMessage,
        job: &SimulatedJob,
        network: &mut Network,
        history: &mut History,
    ) -> Result<(), String> {
        let Some(agent) = network.streams.get(&stream).map(|stream| stream.agent) else { return Ok(()) };
        let known = self.streams.get(&agent).copied();
        let event = match message {
            AgentMessage::Hello(shard) if known.is_none_or(|known| known < stream) => {
                self.streams.insert(agent, stream);
                CoordinatorEvent::Joined { agent, address: format!("{agent}:1"), shard }
            }
            AgentMessage::Report(report) if known == Some(stream) => {
                self.replay_stale_report(agent, &report, network)?;
                CoordinatorEvent::Report { agent, report }
            }
            AgentMessage::Broken if known == Some(stream) => {
                self.streams.remove(&agent);
                CoordinatorEvent::Lost { agent }
            }
            _ => return Ok(()),
        };
        self.on(event, job, network, history)
    }

    /// Stores a report, and replays one of an older epoch.
    fn replay_stale_report(
        &mut self,
        agent: AgentId,
        report: &AgentReport,
        network: &mut Network,
    ) -> Result<(), String> {
        if self.stale_messages.len() == 16 {
            self.stale_messages.swap_remove(network.random.below(16));
        }
        self.stale_messages.push((agent, report.clone()));
        let now = self.machine.epoch();
        let old = |(_, report): &(AgentId, AgentReport)| match report {
            AgentReport::Linked { epoch } | AgentReport::Leaves { epoch, .. } => *epoch < now,
            AgentReport::Prepared { epoch, .. }
            | AgentReport::LinkLost { epoch, .. }
            | AgentReport::LossWeights { epoch, .. } => *epoch < now,
            _ => false,
        };
        let old: Vec<usize> = (0..self.stale_messages.len()).filter(|&at| old(&self.stale_messages[at])).collect();
        let Some(at) = network.random.pick(&old) else { return Ok(()) };
        let (agent, report) = self.stale_messages.swap_remove(at);
        let (before, mut out) = (format!("{:?}", self.machine), Vec::new());
        self.machine.handle_event(CoordinatorEvent::Report { agent, report }, &mut out);
        let same = out.is_empty() && before == format!("{:?}", self.machine);
        if same { Ok(()) } else { Err("a report of an old epoch did something".to_owned()) }
    }

    pub fn on(
        &mut self,
        event: CoordinatorEvent,
        job: &SimulatedJob,
        network: &mut Network,
        history: &mut History,
    ) -> Result<(), String> {
        let mut out = Vec::new();
        self.machine.handle_event(event, &mut out);
        for command in out {
            match command {
                CoordinatorCommand::Send(agent, command) => {
                    if let Some(&stream) = self.streams.get(&agent) {
                        network.send_command(stream, command);
                    }
                }
                CoordinatorCommand::StageCheckpoint { step } => self.background_tasks.push(BackgroundTask::Stage(step)),
                CoordinatorCommand::PublishCheckpoint { step, digests, record, history: recorded, .. } => {
                    if recorded != job.reference.history(step) {
                        return Err(format!("the checkpoint of step {step} records {recorded:?}"));
                    }
                    self.background_tasks.push(BackgroundTask::Publish { step, digests, record });
                }
                CoordinatorCommand::ReportSaveFailure { step, .. } => {
                    history.unsaved.insert(step);
                    self.background_tasks.push(BackgroundTask::SaveAgain);
                }
                CoordinatorCommand::ReportRestore { from, to, .. } => {
                    if from > to || self.is_saving() {
                        return Err(format!("it restores step {from} after step {to} and saves at the same time"));
                    }
                    history.coverage.restored_steps += (to - from) as usize;
                    history.restoring_to = Some(to);
                }
                CoordinatorCommand::FindCheckpoint { path, .. } => {
                    if !path.parse().is_ok_and(|step| network.damaged.contains(&step)) {
                        return Err(format!("the checkpoint of step {path} is not damaged"));
                    }
                    self.background_tasks.push(BackgroundTask::Find);
                }
                CoordinatorCommand::ReportFallback { to, .. } => history.restoring_to = Some(to),
                CoordinatorCommand::Epoch { .. } => history.epochs += 1,
                // Increasing delays, as in real time: the end of a dead agent's stream arrives first.
                CoordinatorCommand::Backoff { epoch, failures, .. } => {
                    self.background_tasks.push(BackgroundTask::EndPause(epoch, 1 << failures))
                }
                // A replica could not copy another one.
                CoordinatorCommand::Disconnect { agent, .. } if agent.role == Role::MemoryX => {
                    self.streams.remove(&agent).into_iter().for_each(|stream| network.drop_agent(stream));
                }
                CoordinatorCommand::Disconnect { agent, reason } => {
                    return Err(format!("{agent} was disconnected: {reason}"));
                }
                CoordinatorCommand::ReportRunning | CoordinatorCommand::Evaluating => {}
                CoordinatorCommand::EvaluateNext(source) => {
                    let before = self.source.replace(source.step());
                    if before.is_some_and(|before| before >= source.step()) {
                        return Err(format!("after step {before:?} it turns to {source:?}"));
                    }
                }
                CoordinatorCommand::ReportStep { record, .. } => {
                    self.step(record, job, history)?;
                    if network.has(PlantedBug::RepeatedStep) {
                        self.step(record, job, history)?;
                    }
                }
                CoordinatorCommand::ReportSkip(SkippedBatch { step, batch, skipped_batches, .. }) => {
                    let (before, after) = (job.reference.history(step - 1), job.reference.history(step));
                    let is_expected = (before.skipped_batches + 1..=after.skipped_batches).contains(&skipped_batches);
                    if !is_expected || batch != step + skipped_batches - 2 {
                        return Err(format!("step {step} skips batch {batch}, the {skipped_batches}th"));
                    }
                    history.coverage.skipped_batches += 1;
                }
                CoordinatorCommand::ReportEvalBatch(sums) => {
                    if sums.batches == 0 || sums.step != self.evaluates(job) {
                        return Err(format!("{sums:?} is of no batch"));
                    }
                }
                CoordinatorCommand::ReportEvaluation(sums) => evaluated(sums, job, history)?,
                CoordinatorCommand::End(outcome) => history.outcome = Some(outcome),
            }
        }
        history.restoring_to.take_if(|to| *to <= self.machine.step());
        Ok(())
    }

    fn is_saving(&self) -> bool {
        let saves = |task: &BackgroundTask| matches!(task, BackgroundTask::Stage(_) | BackgroundTask::Publish { .. });
        self.background_tasks.iter().any(saves)
    }

    /// Returns the step of the current evaluation according to the commands: the state machine may be ahead of it.
    fn evaluates(&self, job: &SimulatedJob) -> u64 {
        match job.evaluates.first() {
            Some(first) => self.source.unwrap_or(*first),
            None => self.machine.step(),
        }
    }

    /// Each coordinator reports a step once; a new one may begin with the last step of the previous one.
    fn step(&mut self, record: CommitRecord, job: &SimulatedJob, history: &mut History) -> Result<(), String> {
        let expected = job.reference.commits.get(record.step as usize - 1);
        if expected != Some(&record) {
            return Err(format!("step {} is {record:?} and should be {expected:?}", record.step));
        }
        let last = history.steps.last().map_or(0, |last| last.step);
        match record.step {
            step if step == last + 1 => history.steps.push(record),
            step if step == last && self.reported.is_none() => {}
            step => return Err(format!("step {step} is reported after {last}")),
        }
        self.reported = Some(record.step);
        Ok(())
    }

    pub fn run_background_task(
        &mut self,
        at: usize,
        job: &SimulatedJob,
        network: &mut Network,
        history: &mut History,
    ) -> Result<(), String> {
        let event = match self.background_tasks.swap_remove(at) {
            BackgroundTask::EndPause(epoch, 0) => CoordinatorEvent::BackoffElapsed { epoch },
            BackgroundTask::EndPause(epoch, left) => {
                self.background_tasks.push(BackgroundTask::EndPause(epoch, left - 1));
                return Ok(());
            }
            BackgroundTask::SaveAgain => CoordinatorEvent::RetrySave,
            BackgroundTask::Find => {
                let is_intact = |step: &&u64| !network.damaged.contains(step);
                let step = network.published.keys().rev().find(is_intact).copied().unwrap_or(0);
                CoordinatorEvent::CheckpointFound {
                    source: source_of(step),
                    is_saved: step > 0,
                    history: job.reference.history(step),
                }
            }
            BackgroundTask::Stage(step) | BackgroundTask::Publish { step, .. } if network.failing_writes > 0 => {
                network.failing_writes -= 1;
                network.coverage.failed_writes += 1;
                CoordinatorEvent::SaveFailed {
                    step,
                    reason: "no space is left".to_owned(),
                    cause: FailureCause::NoSpace,
                }
            }
            BackgroundTask::Stage(step) => {
                self.directories += 1;
                let path = format!("{}/{step}/{}", network.attempt, self.directories);
                CoordinatorEvent::Staged(SnapshotRequest { step, path })
            }
            BackgroundTask::Publish { step, digests, record } => {
                // The most recently staged directory: one checkpoint is written at a time.
                let path = format!("{}/{step}/{}", network.attempt, self.directories);
                publish(step, &path, &digests, record, job, network)?;
                history.saved.insert(step);
                CoordinatorEvent::Published { step, path: step.to_string() }
            }
        };
        self.on(event, job, network, history)
    }
}

fn evaluated(sums: Evaluation, job: &SimulatedJob, history: &mut History) -> Result<(), String> {
    let expected = &job.reference.evaluations[sums.step as usize];
    if *expected != sums {
        return Err(format!("the evaluation is {sums:?} and should be {expected:?}"));
    }
    *history.evaluated.entry(sums.step).or_default() += 1;
    Ok(())
}

/// Checks that a checkpoint is complete and exactly the state of its step.
fn publish(
    step: u64,
    path: &str,
    digests: &[ChunkDigests],
    record: Option<CommitRecord>,
    job: &SimulatedJob,
    network: &mut Network,
) -> Result<(), String> {
    let expected = &job.reference.states[step as usize];
    let written = network.disk.get(path).ok_or_else(|| format!("nothing was written to {path}"))?;
    let complete = (0..expected.len()).map(|chunk: ChunkId| written.get(&chunk).cloned());
    let complete: Option<Vec<Parameters>> = complete.collect();
    let complete = complete.ok_or_else(|| format!("the checkpoint in {path} lacks chunks"))?;
    if complete != *expected {
        return Err(format!("the checkpoint in {path} is not the state of its step"));
    }
    if !complete.iter().map(Parameters::digests).eq(digests.iter().cloned()) {
        return Err(format!("the digests of {path} are others"));
    }
    if record.is_some_and(|record| Some(&record) != job.reference.commits.get((step as usize).wrapping_sub(1))) {
        return Err(format!("the checkpoint of step {step} carries {record:?}"));
    }
    network.published.insert(step, complete);
    network.damaged.remove(&step);
    Ok(())
}
