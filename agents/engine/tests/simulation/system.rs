//! A simulated system: the state machine of its epoch, and a toy wafer that computes from the received frames.

use std::collections::BTreeMap;
use std::sync::Arc;

use millrace_emulator::graph::LayerId;
use millrace_emulator::placement::Placement;
use millrace_emulator::plan::{ChunkId, Pass, StreamPlan};
use millrace_engine::frame::Frame;
use millrace_engine::message::AgentReport;
use millrace_engine::payload::Payload;
use millrace_engine::payload_memory::HeapMemory;
use millrace_engine::system::{System, SystemAction};
use millrace_engine::types::{AgentId, ComputeWork, Iteration, IterationKind, LeafResult, Role};

use crate::agent::{AgentContext, JobParameters};
use crate::model::{Leaf, decode, layer_chunks, sum};
use crate::network::Packet;
use crate::planted::PlantedBug;

#[derive(Default)]
pub struct SystemBody {
    run: Option<Run>,
}

/// One epoch.
struct Run {
    machine: System,
    plan: Arc<StreamPlan>,
    above: AgentId,
    samples_from: AgentId,
    window: u64,
    /// Leaves whose samples are being requested.
    asked: Option<std::ops::Range<u32>>,
    /// Factors of the loss that has a weight, by iteration.
    factors: BTreeMap<u64, f64>,
    /// The factor in the current round.
    factor: f64,
    /// Whether it must wait for an event.
    idle: bool,
    wafer: BTreeMap<ChunkId, Vec<f32>>,
    leaves: Vec<Leaf>,
    results: Vec<LeafResult>,
    /// By layer and chunk, for each leaf.
    gradients: BTreeMap<(LayerId, ChunkId), BTreeMap<u32, Vec<f32>>>,
}

impl SystemBody {
    pub fn configure(
        &mut self,
        placement: Arc<Placement>,
        job: &JobParameters,
        context: &AgentContext,
    ) -> Result<(), String> {
        let at = placement.systems.iter().position(|system| system.id == context.me.index).ok_or("not a system")?;
        let here = placement.systems[at];
        let window = job.windows[&Role::Cs2];
        self.run = Some(Run {
            above: AgentId::new(Role::SwarmX, placement.swarm[here.parent].id),
            samples_from: AgentId::new(Role::Activation, here.activation),
            machine: System::new(&job.plan, placement, at, context.epoch, window),
            plan: job.plan.clone(),
            window,
            asked: None,
            factors: BTreeMap::new(),
            factor: 1.0,
            idle: false,
            wafer: BTreeMap::new(),
            leaves: Vec::new(),
            results: Vec::new(),
            gradients: BTreeMap::new(),
        });
        Ok(())
    }

    pub fn start(&mut self, context: &mut AgentContext) {
        if let Some(run) = &self.run {
            context.grant(run.above, run.machine.initial_grant());
        }
    }

    pub fn open(&mut self, iteration: Iteration) {
        if let Some(run) = &mut self.run {
            run.machine.open(iteration);
            run.idle = false;
        }
    }

    /// Takes the factor of the loss in an iteration that is opened next.
    pub fn scale_losses(&mut self, iteration: u64, factors: &[f64]) -> Result<(), String> {
        let &[factor] = factors else { return Err(format!("one loss has the factors {factors:?}")) };
        let Some(run) = &mut self.run else { return Ok(()) };
        run.factors.insert(iteration, factor);
        Ok(())
    }

    pub fn grant(&mut self, total: u64) {
        if let Some(run) = &mut self.run {
            run.machine.grant(total);
            run.idle = false;
        }
    }

    pub fn weights(&mut self, frame: Frame) -> Result<(), String> {
        let Some(run) = &mut self.run else { return Ok(()) };
        run.machine.weights(frame);
        run.idle = false;
        let queued = run.machine.queued_frames();
        if queued as u64 > run.window { Err(format!("{queued} frames wait beyond the window")) } else { Ok(()) }
    }

    pub fn samples(&mut self, samples: Vec<u64>) -> Result<(), String> {
        let Some(run) = &mut self.run else { return Ok(()) };
        let leaves = run.asked.take().ok_or("received samples that were not requested")?;
        if leaves.len() != samples.len() {
            return Err("each leaf has its samples".to_owned());
        }
        let factor = run.factor;
        run.leaves = leaves.zip(samples).map(|(leaf, sample)| Leaf::new(leaf, sample, factor)).collect();
        Ok(())
    }

    /// Returns whether [`SystemBody::act`] has something to do.
    pub fn is_ready(&self) -> bool {
        self.run.as_ref().is_some_and(|run| !run.idle && run.asked.is_none())
    }

    pub fn execute_next(&mut self, context: &mut AgentContext) -> Result<(), String> {
        let Some(run) = &mut self.run else { return Ok(()) };
        match run.machine.next().map_err(|error| error.to_string())? {
            None => run.idle = true,
            Some(action) => run.execute(action, context)?,
        }
        Ok(())
    }

    pub fn waits_for(&self) -> String {
        let Some(run) = &self.run else { return String::new() };
        format!(
            "{:?}, asked for samples: {:?}, queued: {}",
            run.machine.wait_reason(),
            run.asked,
            run.machine.queued_frames()
        )
    }
}

impl Run {
    fn execute(&mut self, action: SystemAction, context: &mut AgentContext) -> Result<(), String> {
        match action {
            SystemAction::Begin { iteration, leaves, .. } => {
                self.wafer.clear();
                self.gradients.clear();
                self.asked = Some(leaves.clone());
                self.factor = 1.0;
                if iteration.task.is_training() && self.plan.graph.weighted_losses().next().is_some() {
                    let is_late = context.network.has(PlantedBug::OldFactor);
                    let number = iteration.number.saturating_sub(u64::from(is_late));
                    let known = self.factors.get(&number).or_else(|| self.factors.get(&iteration.number));
                    self.factor = *known.ok_or("an iteration has no factor of its loss")?;
                }
                let mut task = iteration.task;
                if let IterationKind::Train { step, batch } = &mut task
                    && context.network.has(PlantedBug::UsedSkippedBatch)
                {
                    *batch = *step - 1;
                }
                context.send(self.samples_from, Packet::Ask(task, leaves));
            }
            SystemAction::Load { at, weights, grant } => {
                if self.wafer.insert(at.chunk, decode(&weights)).is_some() {
                    return Err(format!("chunk {} was on the wafer already", at.chunk));
                }
                context.grant(self.above, grant);
            }
            SystemAction::Compute { layer, pass } => self.compute(layer, pass)?,
            SystemAction::Report { iteration } => {
                let results = std::mem::take(&mut self.results);
                context.report(AgentReport::Leaves {
                    epoch: context.epoch,
                    iteration: iteration.number,
                    results,
                    work: ComputeWork::default(),
                });
            }
            SystemAction::Send { keys, at } => {
                let by_leaf = self.gradients.get(&(at.layer, at.chunk)).ok_or("no gradient to send")?;
                for to in keys {
                    let mut one =
                        sum(to.node, &|leaf| by_leaf.get(&leaf).cloned()).ok_or("a leaf's gradient is missing")?;
                    if context.network.has(PlantedBug::DoubledGradient) {
                        one.iter_mut().for_each(|number| *number *= 2.0);
                    }
                    context.send(self.above, Packet::Frame(Frame::new(to, Payload::from_sum(&one, &HeapMemory))));
                }
            }
        }
        Ok(())
    }

    fn compute(&mut self, layer: LayerId, pass: Pass) -> Result<(), String> {
        let chunks = layer_chunks(&self.plan, layer);
        let reads = |group| pass == Pass::Forward || self.plan.layers[layer].backward_groups.contains(&group);
        let mut weights = Vec::new();
        for &(group, chunk) in &chunks {
            weights.push(if reads(group) {
                self.wafer.get(&chunk).cloned().ok_or_else(|| format!("chunk {chunk} is not on the wafer"))?
            } else {
                vec![0.0; self.plan.chunks[chunk].elements]
            });
        }
        match pass {
            Pass::Forward => {
                self.leaves.iter_mut().for_each(|leaf| leaf.forward(&weights));
                if layer + 1 == self.plan.layers.len() {
                    self.results = self.leaves.iter_mut().map(Leaf::result).collect();
                }
            }
            Pass::Backward => {
                for leaf in &mut self.leaves {
                    for ((_, chunk), gradient) in chunks.iter().zip(leaf.backward(layer, &weights)) {
                        self.gradients.entry((layer, *chunk)).or_default().insert(leaf.leaf, gradient);
                    }
                }
            }
        }
        self.wafer.retain(|&chunk, _| self.plan.is_resident(self.plan.chunks[chunk].group));
        Ok(())
    }
}
