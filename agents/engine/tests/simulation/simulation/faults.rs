//! Injects faults and user requests.

use millrace_engine::coordinator::{CoordinatorEvent, RequiredAgents};
use millrace_engine::types::{AgentId, Role};

use super::Simulation;
use crate::agent::{Agent, RoleState};
use crate::coordinator::SimulatedCoordinator;
use crate::network::LinkKey;
use crate::setup::{Fault, FaultTrigger};

impl Simulation<'_> {
    /// Injects the faults that are due.
    pub(super) fn inject_fault(&mut self) -> Result<(), String> {
        if self.history.outcome.is_some() {
            return Ok(());
        }
        let recorded = |step| self.agents.keys().filter(|id| self.committed(**id).is_some_and(|at| at >= step)).count();
        let writes = |agent: &&Agent| matches!(&agent.body, RoleState::Shard(shard) if shard.is_writing());
        let writing = || self.agents.values().filter(writes).count();
        let due = |when: &FaultTrigger| match *when {
            FaultTrigger::Tick(tick) => tick <= self.tick,
            FaultTrigger::Gathered(step, frames) => self.gathered.get(&step).is_some_and(|now| *now >= frames),
            FaultTrigger::Recorded(step, shards) => recorded(step) as u64 >= shards,
            // Evaluations end with a damaged checkpoint.
            FaultTrigger::Published => self.job.policy.train && self.newest_source().step() > 0,
            FaultTrigger::Writing(shards) => writing() as u64 >= shards,
        };
        let Some(at) = self.faults.iter().position(|(when, _)| due(when)) else { return Ok(()) };
        let (_, fault) = self.faults.swap_remove(at);
        match fault {
            Fault::Crash(Role::Coordinator) => self.crash_coordinator(),
            Fault::Crash(role) => {
                if let Some(id) = self.pick(|id| id.role == role) {
                    self.crash(id);
                    let back = self.tick + self.network.random.below(400) as u64;
                    self.starts.insert(id, back);
                }
            }
            Fault::Vanish(role) => {
                if let Some(id) = self.pick(|id| id.role == role) {
                    self.crash(id);
                }
            }
            Fault::Leave => self.remove_system(),
            Fault::Resize(systems) => return self.resize(systems),
            Fault::RepeatSize => return self.command(CoordinatorEvent::Resized(self.wanted)),
            Fault::CutStream(role) => {
                let id = self.pick(|id| id.role == role);
                if let Some(stream) = id.and_then(|id| self.agents.get(&id)?.stream) {
                    self.network.cut_stream(stream);
                }
            }
            Fault::CutLink => {
                let keys: Vec<LinkKey> = self.network.links.keys().copied().collect();
                if let Some(key) = self.network.random.pick(&keys) {
                    self.network.cut_link(key);
                }
            }
            Fault::Overdue => {
                let epoch = self.coordinator.as_ref().map(|coordinator| coordinator.machine.epoch());
                return epoch.map_or(Ok(()), |epoch| self.command(CoordinatorEvent::IterationOverdue { epoch }));
            }
            Fault::FailWrite => self.network.failing_writes += 1,
            Fault::DamageCheckpoint => {
                let newest = self.newest_source().step();
                self.network.damaged.extend((newest > 0).then_some(newest));
                let shards: Vec<AgentId> = self.agents.keys().copied().filter(|id| id.role == Role::MemoryX).collect();
                for id in shards {
                    self.crash(id);
                    let back = self.tick + self.network.random.below(400) as u64;
                    self.starts.insert(id, back);
                }
            }
            // A request without effect is repeated.
            Fault::Checkpoint | Fault::Stop if self.coordinator.is_none() => {
                self.faults.push((FaultTrigger::Tick(self.tick + 1), fault));
            }
            Fault::Checkpoint => return self.command(CoordinatorEvent::CheckpointRequested),
            Fault::Stop => return self.command(CoordinatorEvent::StopRequested),
        }
        Ok(())
    }

    /// Requests another number of systems and starts the missing agents that it needs. The agents beyond it are removed
    /// once the coordinator does without them, see [`Simulation::remove_excess_agents`].
    fn resize(&mut self, systems: u32) -> Result<(), String> {
        let min_systems = self.life.wanted.min_systems.min(systems);
        self.wanted = RequiredAgents { systems, min_systems, ..self.wanted };
        self.may_have_excess = true;
        for agent in self.required_agents().filter(|agent| !self.agents.contains_key(agent)) {
            let start = self.tick + self.network.random.below(400) as u64;
            self.starts.entry(agent).or_insert(start);
        }
        self.next_system = self.next_system.max(systems);
        self.history.coverage.resizes += 1;
        self.command(CoordinatorEvent::Resized(self.wanted))
    }

    /// Removes the agents beyond the required ones, if all of these exist and the coordinator does without the others.
    pub(super) fn remove_excess_agents(&mut self) {
        let exists = |agent| self.agents.contains_key(&agent) || self.starts.contains_key(&agent);
        let is_settled = |coordinator: &SimulatedCoordinator| {
            coordinator.machine.required() == self.wanted && coordinator.machine.is_within_size()
        };
        let is_due = self.may_have_excess && self.coordinator.as_ref().is_some_and(is_settled);
        if !is_due || !self.required_agents().all(exists) {
            return;
        }
        self.may_have_excess = false;
        self.starts.retain(|agent, _| self.wanted.contains(*agent));
        let excess: Vec<AgentId> = self.agents.keys().copied().filter(|agent| !self.wanted.contains(*agent)).collect();
        excess.into_iter().for_each(|agent| self.crash(agent));
    }

    fn command(&mut self, event: CoordinatorEvent) -> Result<(), String> {
        match &mut self.coordinator {
            Some(coordinator) => coordinator.on(event, self.job, &mut self.network, &mut self.history),
            None => Ok(()),
        }
    }

    fn pick(&mut self, wanted: impl Fn(AgentId) -> bool) -> Option<AgentId> {
        let agents: Vec<AgentId> = self.agents.keys().copied().filter(|id| wanted(*id)).collect();
        self.network.random.pick(&agents)
    }

    fn crash(&mut self, id: AgentId) {
        if let Some(agent) = self.agents.remove(&id) {
            self.network.close_stream(agent.stream);
            self.network.cut_links(id, None);
        }
    }

    /// Removes a system permanently if enough are left; another one may join under another name.
    fn remove_system(&mut self) {
        let systems = self.agents.keys().chain(self.starts.keys()).filter(|id| id.role == Role::Cs2).count();
        let replaced = self.network.random.chance(60);
        if replaced {
            let id = AgentId::new(Role::Cs2, self.next_system);
            self.next_system += 1;
            let come = self.tick + self.network.random.below(400) as u64;
            self.starts.insert(id, come);
        }
        if (replaced || systems > self.wanted.min_systems as usize)
            && let Some(id) = self.pick(|id| id.role == Role::Cs2)
        {
            self.crash(id);
        }
    }

    fn crash_coordinator(&mut self) {
        if self.coordinator.take().is_some() {
            self.history.restarts += 1;
            let streams: Vec<u64> = self.network.streams.keys().copied().collect();
            streams.into_iter().for_each(|stream| self.network.drop_agent(stream));
            self.coordinator_start = self.tick + self.network.random.below(200) as u64;
        }
    }
}
