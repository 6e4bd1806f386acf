//! A simulated SwarmX node: the state machine of its epoch.

use std::sync::Arc;

use millrace_emulator::placement::Placement;
use millrace_engine::frame::Frame;
use millrace_engine::payload::Payload;
use millrace_engine::payload_memory::HeapMemory;
use millrace_engine::swarm::{LinkError, SwarmCommand, SwarmX};
use millrace_engine::types::{AgentId, Iteration, Role};

use crate::agent::{AgentContext, JobParameters, neighbours};
use crate::model::numbers;
use crate::network::Packet;
use crate::planted::PlantedBug;

#[derive(Default)]
pub struct SwarmBody {
    node: Option<Node>,
}

struct Node {
    machine: SwarmX,
    above: Vec<AgentId>,
    below: Vec<AgentId>,
    /// Maximum weight frames and partial sums that may be queued on one link.
    most: (usize, usize),
}

impl SwarmBody {
    pub fn configure(
        &mut self,
        placement: Arc<Placement>,
        job: &JobParameters,
        context: &AgentContext,
    ) -> Result<(), String> {
        let at = placement.swarm.iter().position(|node| node.id == context.me.index).ok_or("not in the tree")?;
        let (above, below) = neighbours(&placement, at);
        let window = job.windows[&Role::SwarmX];
        let child = |child| (0..placement.rounds.len()).map(move |round| (child, round));
        let sums = placement.swarm[at].children.iter().flat_map(|&node| child(node));
        let most_sums = sums.map(|(child, round)| placement.child_nodes(child, round).len()).max().unwrap_or(0);
        let most = (window as usize, window as usize * most_sums);
        let machine = SwarmX::new(job.plan.clone(), placement, at, context.epoch, window, Arc::new(HeapMemory));
        self.node = Some(Node { machine, above, below, most });
        Ok(())
    }

    pub fn start(&mut self, context: &mut AgentContext) {
        if let Some(node) = &self.node {
            node.execute(node.machine.start(), context);
        }
    }

    fn drive(
        &mut self,
        context: &mut AgentContext,
        step: impl FnOnce(&mut Node, &mut Vec<SwarmCommand>) -> Result<(), LinkError>,
    ) -> Result<(), String> {
        let Some(node) = &mut self.node else { return Ok(()) };
        let mut out = Vec::new();
        step(node, &mut out).map_err(|error| error.to_string())?;
        node.execute(out, context);
        let (queued, most) = (node.machine.max_queued_frames(), node.most);
        if queued.0 > most.0 || queued.1 > most.1 {
            return Err(format!("{:?} frames wait at {}, at most {most:?} should", queued, context.me));
        }
        Ok(())
    }

    pub fn open(&mut self, iteration: Iteration, context: &mut AgentContext) -> Result<(), String> {
        self.drive(context, |node, out| node.machine.open(iteration, out))
    }

    pub fn frame(&mut self, peer: AgentId, frame: Frame, context: &mut AgentContext) -> Result<(), String> {
        self.drive(context, |node, out| match (node.parent(peer), node.child(peer)) {
            (Some(link), _) => node.machine.weights(link, frame, out),
            (_, Some(child)) => node.machine.gradient(child, frame, out),
            (None, None) => Ok(()),
        })
    }

    pub fn grant(&mut self, peer: AgentId, total: u64, context: &mut AgentContext) -> Result<(), String> {
        self.drive(context, |node, out| match (node.parent(peer), node.child(peer)) {
            (Some(link), _) => node.machine.parent_grant(link, total, out),
            (_, Some(child)) => node.machine.child_grant(child, total, out),
            (None, None) => Ok(()),
        })
    }

    pub fn waits_for(&self) -> String {
        self.node.as_ref().map_or_else(String::new, |node| format!("queued: {:?}", node.machine.max_queued_frames()))
    }
}

impl Node {
    fn parent(&self, peer: AgentId) -> Option<usize> {
        self.above.iter().position(|above| *above == peer)
    }

    fn child(&self, peer: AgentId) -> Option<usize> {
        self.below.iter().position(|below| *below == peer)
    }

    fn execute(&self, commands: Vec<SwarmCommand>, context: &mut AgentContext) {
        for command in commands {
            match command {
                SwarmCommand::Down(child, frame) => context.send(self.below[child], Packet::Frame(frame)),
                SwarmCommand::Up(link, mut frame) => {
                    if context.network.has(PlantedBug::RoundedSum) {
                        let mut sum = numbers(&frame.payload);
                        sum.iter_mut().for_each(|number| *number = f32::from_bits(number.to_bits() & !0xff));
                        frame = Frame::new(frame.key, Payload::from_sum(&sum, &HeapMemory));
                    }
                    context.send(self.above[link], Packet::Frame(frame));
                }
                SwarmCommand::GrantParent(link, total) => context.grant(self.above[link], total),
                SwarmCommand::GrantChild(child, total) => context.grant(self.below[child], total),
            }
        }
    }
}
