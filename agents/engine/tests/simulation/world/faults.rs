//! What goes wrong, and what users ask for.

use millrace_engine::coordinator::Event;
use millrace_engine::types::{AgentId, Role};

use super::World;
use crate::agent::{Agent, Body};
use crate::setup::{Fault, When};
use crate::wires::LinkKey;

impl World<'_> {
    /// Whatever goes wrong now.
    pub(super) fn strike(&mut self) -> Result<(), String> {
        if self.history.outcome.is_some() {
            return Ok(());
        }
        let recorded = |step| self.agents.keys().filter(|id| self.committed(**id).is_some_and(|at| at >= step)).count();
        let writes = |agent: &&Agent| matches!(&agent.body, Body::Shard(shard) if shard.is_writing());
        let writing = || self.agents.values().filter(writes).count();
        let due = |when: &When| match *when {
            When::Tick(tick) => tick <= self.tick,
            When::Gathered(step, frames) => self.gathered.get(&step).is_some_and(|now| *now >= frames),
            When::Recorded(step, shards) => recorded(step) as u64 >= shards,
            When::Writing(shards) => writing() as u64 >= shards,
        };
        let Some(at) = self.faults.iter().position(|(when, _)| due(when)) else { return Ok(()) };
        let (_, fault) = self.faults.swap_remove(at);
        match fault {
            Fault::Crash(Role::Coordinator) => self.crash_coordinator(),
            Fault::Crash(role) => {
                if let Some(id) = self.pick(|id| id.role == role) {
                    self.crash(id);
                    let back = self.tick + self.wires.random.below(400) as u64;
                    self.starts.insert(id, back);
                }
            }
            Fault::Vanish(role) => {
                if let Some(id) = self.pick(|id| id.role == role) {
                    self.crash(id);
                }
            }
            Fault::Leave => self.leave(),
            Fault::CutStream(role) => {
                let id = self.pick(|id| id.role == role);
                if let Some(stream) = id.and_then(|id| self.agents.get(&id)?.stream) {
                    self.wires.cut_stream(stream);
                }
            }
            Fault::CutLink => {
                let keys: Vec<LinkKey> = self.wires.links.keys().copied().collect();
                if let Some(key) = self.wires.random.pick(&keys) {
                    self.wires.cut_link(key);
                }
            }
            Fault::FailWrite => self.wires.failing_writes += 1,
            // Who asks in vain asks again.
            Fault::Checkpoint | Fault::Stop if self.boss.is_none() => {
                self.faults.push((When::Tick(self.tick + 1), fault));
            }
            Fault::Checkpoint => return self.command(Event::CheckpointWanted),
            Fault::Stop => return self.command(Event::StopWanted),
        }
        Ok(())
    }

    fn command(&mut self, event: Event) -> Result<(), String> {
        match &mut self.boss {
            Some(boss) => boss.on(event, self.task, &mut self.wires, &mut self.history),
            None => Ok(()),
        }
    }

    fn pick(&mut self, wanted: impl Fn(AgentId) -> bool) -> Option<AgentId> {
        let agents: Vec<AgentId> = self.agents.keys().copied().filter(|id| wanted(*id)).collect();
        self.wires.random.pick(&agents)
    }

    fn crash(&mut self, id: AgentId) {
        if let Some(agent) = self.agents.remove(&id) {
            self.wires.hang_up(agent.stream);
            self.wires.cut_links(id, None);
        }
    }

    /// A system goes for good, where enough are left; perhaps another one comes under another name.
    fn leave(&mut self) {
        let systems = self.agents.keys().chain(self.starts.keys()).filter(|id| id.role == Role::Cs2).count();
        let replaced = self.wires.random.chance(60);
        if replaced {
            let id = AgentId::new(Role::Cs2, self.next_system);
            self.next_system += 1;
            let come = self.tick + self.wires.random.below(400) as u64;
            self.starts.insert(id, come);
        }
        if (replaced || systems > self.life.wanted.least_systems as usize)
            && let Some(id) = self.pick(|id| id.role == Role::Cs2)
        {
            self.crash(id);
        }
    }

    fn crash_coordinator(&mut self) {
        if self.boss.take().is_some() {
            self.history.restarts += 1;
            let streams: Vec<u64> = self.wires.streams.keys().copied().collect();
            streams.into_iter().for_each(|stream| self.wires.drop_agent(stream));
            self.boss_start = self.tick + self.wires.random.below(200) as u64;
        }
    }
}
