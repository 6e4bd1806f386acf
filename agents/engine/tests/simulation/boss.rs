//! The coordinator: the machine, its streams, and what its driver does for it. Everything it says is checked.

use std::collections::{BTreeMap, BTreeSet};

use millrace_emulator::plan::ChunkId;
use millrace_engine::coordinator::{Command, Coordinator, Evaluation, Event, Outcome};
use millrace_engine::message::{Cause, ChunkDigests, Report, Snapshot};
use millrace_engine::types::{AgentId, CommitRecord, Epoch};

use crate::model::Parameters;
use crate::setup::Task;
use crate::wires::{Coverage, Wires, Word};

/// What a run has shown so far, over all its lives.
#[derive(Default)]
pub struct History {
    pub steps: Vec<CommitRecord>,
    /// How often each step was evaluated.
    pub evaluated: BTreeMap<u64, u32>,
    pub epochs: u32,
    pub restarts: u32,
    /// How often it was stopped.
    pub stops: u32,
    /// The steps whose checkpoint could not be written; a later try at one may have succeeded.
    pub unsaved: BTreeSet<u64>,
    pub coverage: Coverage,
    /// Checkpoints.
    pub saved: BTreeSet<u64>,
    pub outcome: Option<Outcome>,
}

impl History {
    /// The next run goes on from `step`: what came after it is done again.
    pub fn forget_beyond(&mut self, step: u64) {
        self.steps.retain(|record| record.step <= step);
        self.evaluated.retain(|evaluated, _| *evaluated <= step);
    }
}

/// Something the driver does on the side.
enum Chore {
    Stage(u64),
    Publish {
        step: u64,
        digests: Vec<ChunkDigests>,
        record: Option<CommitRecord>,
    },
    /// Has the last step saved, which could not be.
    SaveAgain,
    /// The end of a pause, after it was waited for so many times more.
    EndPause(Epoch, u64),
}

/// A running coordinator.
pub struct Boss {
    pub machine: Coordinator,
    streams: BTreeMap<AgentId, u64>,
    chores: Vec<Chore>,
    directories: u64,
    /// The newest step told in this life.
    told: Option<u64>,
    /// The step of the source that it turned to last.
    source: Option<u64>,
    /// Reports to be heard again in a later epoch: they must change nothing.
    ghosts: Vec<(AgentId, Report)>,
}

impl Boss {
    pub fn new(machine: Coordinator) -> Self {
        Self {
            machine,
            streams: BTreeMap::new(),
            chores: Vec::new(),
            directories: 0,
            told: None,
            source: None,
            ghosts: Vec::new(),
        }
    }

    pub fn chores(&self) -> usize {
        self.chores.len()
    }

    /// A word came on a stream. Words of a stream that a later one has replaced are dropped, its end too.
    pub fn hear(
        &mut self,
        stream: u64,
        word: Word,
        task: &Task,
        wires: &mut Wires,
        history: &mut History,
    ) -> Result<(), String> {
        let Some(agent) = wires.streams.get(&stream).map(|stream| stream.agent) else { return Ok(()) };
        let known = self.streams.get(&agent).copied();
        let event = match word {
            Word::Hello(shard) if known.is_none_or(|known| known < stream) => {
                self.streams.insert(agent, stream);
                Event::Joined { agent, address: format!("{agent}:1"), shard }
            }
            Word::Report(report) if known == Some(stream) => {
                self.haunt(agent, &report, wires)?;
                Event::Report { agent, report }
            }
            Word::Broken if known == Some(stream) => {
                self.streams.remove(&agent);
                Event::Lost { agent }
            }
            _ => return Ok(()),
        };
        self.on(event, task, wires, history)
    }

    /// Remembers a report; plays one of an older epoch again.
    fn haunt(&mut self, agent: AgentId, report: &Report, wires: &mut Wires) -> Result<(), String> {
        if self.ghosts.len() == 16 {
            self.ghosts.swap_remove(wires.random.below(16));
        }
        self.ghosts.push((agent, report.clone()));
        let now = self.machine.epoch();
        let old = |(_, report): &(AgentId, Report)| match report {
            Report::Linked { epoch } | Report::Leaves { epoch, .. } => *epoch < now,
            Report::Prepared { epoch, .. } | Report::LinkLost { epoch, .. } => *epoch < now,
            _ => false,
        };
        let old: Vec<usize> = (0..self.ghosts.len()).filter(|&at| old(&self.ghosts[at])).collect();
        let Some(at) = wires.random.pick(&old) else { return Ok(()) };
        let (agent, report) = self.ghosts.swap_remove(at);
        let (before, mut out) = (format!("{:?}", self.machine), Vec::new());
        self.machine.on(Event::Report { agent, report }, &mut out);
        let same = out.is_empty() && before == format!("{:?}", self.machine);
        if same { Ok(()) } else { Err("a report of an old epoch did something".to_owned()) }
    }

    pub fn on(&mut self, event: Event, task: &Task, wires: &mut Wires, history: &mut History) -> Result<(), String> {
        let mut out = Vec::new();
        self.machine.on(event, &mut out);
        for command in out {
            match command {
                Command::Send(agent, order) => {
                    if let Some(&stream) = self.streams.get(&agent) {
                        wires.order(stream, order);
                    }
                }
                Command::Stage { step } => self.chores.push(Chore::Stage(step)),
                Command::Publish { step, digests, record, .. } => {
                    self.chores.push(Chore::Publish { step, digests, record });
                }
                Command::NotSaved { step, .. } => {
                    history.unsaved.insert(step);
                    self.chores.push(Chore::SaveAgain);
                }
                Command::Epoch { .. } => history.epochs += 1,
                // Longer and longer, as by the clock: the end of a dead agent's stream arrives first.
                Command::Pause { epoch, failures, .. } => self.chores.push(Chore::EndPause(epoch, 1 << failures)),
                Command::Dismiss { agent, reason } => return Err(format!("{agent} is dismissed: {reason}")),
                Command::Running | Command::Evaluating => {}
                Command::Next(source) => {
                    let before = self.source.replace(source.step());
                    if before.is_some_and(|before| before >= source.step()) {
                        return Err(format!("after step {before:?} it turns to {source:?}"));
                    }
                }
                Command::Step(record) => self.step(record, task, history)?,
                Command::EvalBatch(sums) => {
                    if sums.batches == 0 || sums.step != self.evaluates(task) {
                        return Err(format!("{sums:?} is of no batch"));
                    }
                }
                Command::Evaluated(sums) => evaluated(sums, task, history)?,
                Command::End(outcome) => history.outcome = Some(outcome),
            }
        }
        Ok(())
    }

    /// The step that evaluations are of, as far as it was told: the machine itself may have turned to the next.
    fn evaluates(&self, task: &Task) -> u64 {
        match task.evaluates.first() {
            Some(first) => self.source.unwrap_or(*first),
            None => self.machine.step(),
        }
    }

    /// A step is told once by each coordinator; a new one may begin with the step the old one ended with.
    fn step(&mut self, record: CommitRecord, task: &Task, history: &mut History) -> Result<(), String> {
        let expected = task.reference.commits.get(record.step as usize - 1);
        if expected != Some(&record) {
            return Err(format!("step {} is {record:?} and should be {expected:?}", record.step));
        }
        let last = history.steps.last().map_or(0, |last| last.step);
        match record.step {
            step if step == last + 1 => history.steps.push(record),
            step if step == last && self.told.is_none() => {}
            step => return Err(format!("step {step} is told after {last}")),
        }
        self.told = Some(record.step);
        Ok(())
    }

    /// Does one thing on the side.
    pub fn chore(&mut self, at: usize, task: &Task, wires: &mut Wires, history: &mut History) -> Result<(), String> {
        let event = match self.chores.swap_remove(at) {
            Chore::EndPause(epoch, 0) => Event::PauseOver { epoch },
            Chore::EndPause(epoch, left) => {
                self.chores.push(Chore::EndPause(epoch, left - 1));
                return Ok(());
            }
            Chore::SaveAgain => Event::SaveAgain,
            Chore::Stage(step) | Chore::Publish { step, .. } if wires.failing_writes > 0 => {
                wires.failing_writes -= 1;
                wires.coverage.failed_writes += 1;
                Event::NotSaved { step, reason: "no space is left".to_owned(), cause: Cause::NoSpace }
            }
            Chore::Stage(step) => {
                self.directories += 1;
                let path = format!("{}/{step}/{}", wires.attempt, self.directories);
                Event::Staged(Snapshot { step, path })
            }
            Chore::Publish { step, digests, record } => {
                // The directory staged last: one checkpoint is written at a time.
                let path = format!("{}/{step}/{}", wires.attempt, self.directories);
                publish(step, &path, &digests, record, task, wires)?;
                history.saved.insert(step);
                Event::Published { step }
            }
        };
        self.on(event, task, wires, history)
    }
}

fn evaluated(sums: Evaluation, task: &Task, history: &mut History) -> Result<(), String> {
    let expected = &task.reference.evaluations[sums.step as usize];
    if *expected != sums {
        return Err(format!("the evaluation is {sums:?} and should be {expected:?}"));
    }
    *history.evaluated.entry(sums.step).or_default() += 1;
    Ok(())
}

/// A checkpoint must be whole, and exactly the state of its step.
fn publish(
    step: u64,
    path: &str,
    digests: &[ChunkDigests],
    record: Option<CommitRecord>,
    task: &Task,
    wires: &mut Wires,
) -> Result<(), String> {
    let expected = &task.reference.states[step as usize];
    let written = wires.disk.get(path).ok_or_else(|| format!("nothing was written to {path}"))?;
    let complete = (0..expected.len()).map(|chunk: ChunkId| written.get(&chunk).cloned());
    let complete: Option<Vec<Parameters>> = complete.collect();
    let complete = complete.ok_or_else(|| format!("the checkpoint in {path} lacks chunks"))?;
    if complete != *expected {
        return Err(format!("the checkpoint in {path} is not the state of its step"));
    }
    if !complete.iter().map(Parameters::digests).eq(digests.iter().cloned()) {
        return Err(format!("the digests of {path} are others"));
    }
    if record.is_some_and(|record| Some(&record) != task.reference.commits.get((step as usize).wrapping_sub(1))) {
        return Err(format!("the checkpoint of step {step} carries {record:?}"));
    }
    wires.published.insert(step, complete);
    Ok(())
}
