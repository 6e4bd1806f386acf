//! One attempt of a job: agents, network, a coordinator, and a scheduler that selects the next action at random.

mod faults;

use std::collections::{BTreeMap, BTreeSet};

use millrace_emulator::placement::swarm_nodes;
use millrace_engine::coordinator::{Coordinator, RequiredAgents, ResumeState, RunOutcome, StepProgress};
use millrace_engine::message::{AgentReport, ParameterSource};
use millrace_engine::types::{AgentId, Role};

use crate::agent::{Agent, JobParameters, RoleState};
use crate::coordinator::{History, SimulatedCoordinator};
use crate::network::{Link, LinkKey, Network, Packet};
use crate::random::Random;
use crate::setup::{Fault, FaultTrigger, SimulatedAttempt, SimulatedJob, SlowComponent};
use crate::shard::ShardBody;

/// More deliveries than any run needs: a run that exceeds this makes no progress.
const MAX_TICKS: u64 = 400_000;

/// A possible next action.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// The agent of a stream receives a command.
    DeliverCommand(u64),
    /// The coordinator receives a message.
    DeliverMessage(u64),
    /// A packet arrives at the end of a link: down or up.
    Packet(LinkKey, bool),
    /// A grant arrives at the sender of a link direction: down or up.
    Grant(LinkKey, bool),
    Dial(LinkKey),
    StepSystem(AgentId),
    /// A shard's store executes its next work item.
    Work(AgentId),
    /// A shard writes another chunk of its snapshot.
    Write(AgentId),
    /// A replica receives another chunk of the replica that it copies.
    Copy(AgentId),
    RunBackgroundTask(usize),
    Start(AgentId),
    Connect(AgentId),
    StartCoordinator,
}

/// The agents of a job and the network between them.
pub struct Simulation<'a> {
    job: &'a SimulatedJob,
    life: &'a SimulatedAttempt,
    /// The agents that the job requires at present.
    wanted: RequiredAgents,
    /// Whether the job was resized, and agents beyond the required ones may exist.
    may_have_excess: bool,
    parameters: JobParameters,
    source: ParameterSource,
    pub network: Network,
    agents: BTreeMap<AgentId, Agent>,
    coordinator: Option<SimulatedCoordinator>,
    /// Agents to be started, and when.
    starts: BTreeMap<AgentId, u64>,
    coordinator_start: u64,
    next_system: u32,
    /// The slow agent, if there is one.
    laggard: Option<AgentId>,
    faults: Vec<(FaultTrigger, Fault)>,
    tick: u64,
    gathered: BTreeMap<u64, u64>,
    /// Updates of each shard's replica that has finished with most of them; `None` without parameters.
    ended: BTreeMap<u32, Option<u64>>,
    pub history: History,
}

impl<'a> Simulation<'a> {
    pub fn new(
        job: &'a SimulatedJob,
        life: &'a SimulatedAttempt,
        source: ParameterSource,
        network: Network,
        history: History,
    ) -> Self {
        let wanted = life.wanted;
        let mut world = Self {
            job,
            life,
            wanted,
            may_have_excess: false,
            parameters: JobParameters {
                plan: job.plan.clone(),
                shards: wanted.shards,
                copies: life.copies,
                windows: life.windows.clone(),
            },
            source,
            network,
            agents: BTreeMap::new(),
            coordinator: None,
            starts: BTreeMap::new(),
            coordinator_start: 0,
            next_system: wanted.systems,
            laggard: None,
            faults: life.faults.clone(),
            tick: 0,
            gathered: BTreeMap::new(),
            ended: BTreeMap::new(),
            history,
        };
        let spare = world.network.random.within(0, 1) as u32;
        let mut counts = world.required();
        counts[1].1 += spare;
        for agent in counts.into_iter().flat_map(|(role, count)| (0..count).map(move |at| AgentId::new(role, at))) {
            let late = world.network.random.below(60) as u64;
            world.starts.insert(agent, late);
        }
        if let Some(SlowComponent::Agent(role) | SlowComponent::Messages(role)) = life.laggard {
            let all: Vec<AgentId> = world.starts.keys().copied().filter(|id| id.role == role).collect();
            world.laggard = world.network.random.pick(&all);
        }
        world
    }

    /// Returns the number of required agents of each role.
    fn required(&self) -> [(Role, u32); 4] {
        let wanted = self.wanted;
        [
            (Role::MemoryX, wanted.shards * wanted.replicas),
            (Role::SwarmX, swarm_nodes(wanted.systems as usize, wanted.fan_out) as u32),
            (Role::Activation, wanted.activation_servers),
            (Role::Cs2, wanted.systems),
        ]
    }

    /// Returns the required agents.
    fn required_agents(&self) -> impl Iterator<Item = AgentId> + use<> {
        self.required().into_iter().flat_map(|(role, count)| (0..count).map(move |at| AgentId::new(role, at)))
    }

    /// Runs this attempt to its end.
    pub fn run(&mut self) -> Result<RunOutcome, String> {
        loop {
            if let Some(outcome) = self.history.outcome.clone() {
                self.starts.clear();
                if self.agents.is_empty() {
                    return self.check_end(outcome);
                }
            }
            self.tick += 1;
            if self.tick > MAX_TICKS {
                return Err("it goes in circles".to_owned());
            }
            self.inject_fault()?;
            let action = self.choose()?;
            self.execute(action).map_err(|error| format!("{action:?}: {error}"))?;
            self.remove_excess_agents();
            if let Some(overrun) = self.network.overrun.take() {
                return Err(overrun);
            }
        }
    }

    fn choose(&mut self) -> Result<Action, String> {
        let actions = self.actions(self.tick);
        // Storage may be so slow that several steps are committed while one snapshot is written.
        let iterations = if self.life.laggard == Some(SlowComponent::Disk) { 300 } else { 33 };
        if self.life.laggard.is_some() && self.network.random.below(iterations) > 0 {
            let others: Vec<Action> = actions.iter().copied().filter(|action| !self.is_slow(*action)).collect();
            if let Some(action) = self.network.random.pick(&others) {
                return Ok(action);
            }
        }
        if let Some(action) = self.network.random.pick(&actions) {
            return Ok(action);
        }
        // All agents wait for agents that are not restarted yet, or for scheduled faults.
        let late = self.actions(u64::MAX);
        if let Some(action) = self.network.random.pick(&late) {
            return Ok(action);
        }
        let moment =
            |(when, _): &(FaultTrigger, Fault)| if let FaultTrigger::Tick(tick) = when { Some(*tick) } else { None };
        self.tick = self.faults.iter().filter_map(moment).min().ok_or("no agent can continue")?;
        self.inject_fault()?;
        self.choose()
    }

    fn actions(&self, tick: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        let over = self.history.outcome.is_some();
        let attempt = self.coordinator.as_ref().map(|_| self.network.attempt);
        for (&number, stream) in &self.network.streams {
            let agent = self.agents.get(&stream.agent).filter(|agent| agent.stream == Some(number));
            if !stream.commands.is_empty() && agent.is_some() {
                actions.push(Action::DeliverCommand(number));
            }
            if !stream.messages.is_empty() && attempt == Some(stream.attempt) {
                actions.push(Action::DeliverMessage(number));
            }
        }
        for (&key, link) in &self.network.links {
            let here = |agent: AgentId| self.agents.get(&agent).is_some_and(|agent| agent.epoch == key.epoch);
            let lanes = [(&link.down, key.upper, key.lower, true), (&link.up, key.lower, key.upper, false)];
            for (lane, sender, receiver, down) in lanes {
                if !lane.packets.is_empty() && here(receiver) {
                    actions.push(Action::Packet(key, down));
                }
                if !lane.grants.is_empty() && here(sender) {
                    actions.push(Action::Grant(key, down));
                }
            }
        }
        // A dialed agent that has not received the epoch yet does not answer.
        let answers = |key: &&LinkKey| self.agents.get(&key.upper).is_none_or(|upper| upper.epoch >= key.epoch);
        actions.extend(self.network.dials.iter().filter(answers).map(|&key| Action::Dial(key)));
        for (&id, agent) in &self.agents {
            match &agent.body {
                RoleState::System(system) if system.is_ready() => actions.push(Action::StepSystem(id)),
                RoleState::Shard(shard) => {
                    actions.extend(shard.has_work().then_some(Action::Work(id)));
                    actions.extend(shard.is_writing().then_some(Action::Write(id)));
                    actions.extend(shard.copied_replica().filter(|peer| self.is_idle(*peer)).map(|_| Action::Copy(id)));
                }
                _ => {}
            }
            if agent.stream.is_none() && self.coordinator.is_some() {
                actions.push(Action::Connect(id));
            }
        }
        actions.extend(
            (0..self.coordinator.as_ref().map_or(0, SimulatedCoordinator::background_tasks))
                .map(Action::RunBackgroundTask),
        );
        actions.extend(self.starts.iter().filter(|(_, start)| **start <= tick).map(|(&id, _)| Action::Start(id)));
        if self.coordinator.is_none() && !over && self.coordinator_start <= tick {
            actions.push(Action::StartCoordinator);
        }
        actions
    }

    /// Returns whether an action belongs to the slow component.
    fn is_slow(&self, action: Action) -> bool {
        let all = !matches!(self.life.laggard, Some(SlowComponent::Messages(_)));
        let disk = self.life.laggard == Some(SlowComponent::Disk);
        let is = |agent: AgentId| self.laggard == Some(agent);
        let of = |stream| self.network.streams.get(&stream).is_some_and(|stream| is(stream.agent));
        match action {
            Action::DeliverMessage(stream) => of(stream),
            Action::DeliverCommand(stream) => all && of(stream),
            Action::Packet(key, _) | Action::Grant(key, _) | Action::Dial(key) => {
                all && (is(key.upper) || is(key.lower))
            }
            Action::Write(agent) => disk || (all && is(agent)),
            Action::Work(agent)
            | Action::StepSystem(agent)
            | Action::Start(agent)
            | Action::Connect(agent)
            | Action::Copy(agent) => all && is(agent),
            Action::RunBackgroundTask(_) => disk,
            Action::StartCoordinator => false,
        }
    }

    fn execute(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::DeliverCommand(stream) => self.deliver_command(stream),
            Action::DeliverMessage(stream) => {
                let message = self.network.streams.get_mut(&stream).and_then(|stream| stream.messages.pop_front());
                match (&mut self.coordinator, message) {
                    (Some(coordinator), Some(message)) => {
                        coordinator.receive(stream, message, self.job, &mut self.network, &mut self.history)
                    }
                    _ => Ok(()),
                }
            }
            Action::Packet(key, down) => self.packet(key, down),
            Action::Grant(key, down) => self.grant(key, down),
            Action::Dial(key) => self.dial(key),
            Action::StepSystem(id) | Action::Work(id) => {
                let Some(agent) = self.agents.get_mut(&id) else { return Ok(()) };
                let (body, mut context) = agent.split(&mut self.network);
                match body {
                    RoleState::System(system) => system.execute_next(&mut context),
                    RoleState::Shard(shard) => shard.work(&mut context),
                    _ => Ok(()),
                }
            }
            Action::Write(id) => {
                let Some(agent) = self.agents.get_mut(&id) else { return Ok(()) };
                let (RoleState::Shard(shard), mut context) = agent.split(&mut self.network) else { return Ok(()) };
                shard.write(&mut context)
            }
            Action::Copy(id) => self.copy(id),
            Action::RunBackgroundTask(at) => match &mut self.coordinator {
                Some(coordinator) => {
                    coordinator.run_background_task(at, self.job, &mut self.network, &mut self.history)
                }
                None => Ok(()),
            },
            Action::Start(id) => {
                self.starts.remove(&id);
                self.agents.insert(id, Agent::new(id, &self.parameters));
                Ok(())
            }
            Action::Connect(id) => {
                if let Some(agent) = self.agents.get_mut(&id) {
                    agent.connect(&mut self.network);
                }
                Ok(())
            }
            Action::StartCoordinator => {
                self.network.attempt += 1;
                let (plan, policy) = (self.job.plan.clone(), self.job.policy.clone());
                let (source, known) = (self.newest_source(), self.known());
                if self.job.policy.train {
                    // What another coordinator reported after this step is superseded.
                    self.history.truncate_after(known.step);
                    self.history.restoring_to = None;
                }
                let machine = Coordinator::new(plan, policy, self.life.wanted, source, self.network.attempt, known);
                let further = self.job.evaluates.iter().skip(1).map(|&step| source_of(step));
                self.coordinator = Some(SimulatedCoordinator::new(machine.with_further_evaluations(further)));
                if self.wanted != self.life.wanted {
                    let soon = self.tick + self.network.random.below(200) as u64;
                    self.faults.push((FaultTrigger::Tick(soon), Fault::RepeatSize));
                }
                Ok(())
            }
        }
    }

    /// Returns the source of a new coordinator: in a training run, the newest checkpoint.
    fn newest_source(&self) -> ParameterSource {
        let newest = self.network.published.keys().copied().max().unwrap_or(0);
        if self.job.policy.train { source_of(newest) } else { self.source.clone() }
    }

    /// Returns what a new coordinator finds on the disk about the step it resumes from.
    fn known(&self) -> ResumeState {
        if !self.job.policy.train {
            return ResumeState::default();
        }
        let held = self.agents.keys().filter_map(|id| self.committed(*id)).max().unwrap_or(0);
        let newest = self.newest_source();
        let step = held.max(newest.step());
        let saved = newest != ParameterSource::Initial && step == newest.step();
        let done = StepProgress { saved, evaluated: self.history.evaluated.contains_key(&step) };
        ResumeState { step, done, history: self.job.reference.history(newest.step()) }
    }

    fn deliver_command(&mut self, stream: u64) -> Result<(), String> {
        let Some(entry) = self.network.streams.get_mut(&stream) else { return Ok(()) };
        let (id, command) = (entry.agent, entry.commands.pop_front().flatten());
        let Some(agent) = self.agents.get_mut(&id) else { return Ok(()) };
        let Some(command) = command else {
            agent.stream = None;
            return Ok(());
        };
        agent.handle_command(command, &self.parameters, &mut self.network)?;
        if agent.finished {
            self.end_agent(id)?;
        }
        Ok(())
    }

    fn packet(&mut self, key: LinkKey, down: bool) -> Result<(), String> {
        let Some(link) = self.network.links.get_mut(&key) else { return Ok(()) };
        let (lane, id) = if down { (&mut link.down, key.lower) } else { (&mut link.up, key.upper) };
        let Some(packet) = lane.packets.pop_front() else { return Ok(()) };
        if let Packet::Broken = packet {
            self.network.leave(key, id);
        }
        if let (Packet::Frame(_), Role::MemoryX, Some(shard)) = (&packet, id.role, self.committed(id)) {
            *self.gathered.entry(shard + 1).or_default() += 1;
        }
        let Some(agent) = self.agents.get_mut(&id) else { return Ok(()) };
        agent.packet(key.peer(id), packet, &mut self.network)
    }

    fn grant(&mut self, key: LinkKey, down: bool) -> Result<(), String> {
        let Some(link) = self.network.links.get_mut(&key) else { return Ok(()) };
        let (lane, id) = if down { (&mut link.down, key.upper) } else { (&mut link.up, key.lower) };
        let at = self.network.random.below(lane.grants.len());
        let total = if self.network.random.chance(20) { lane.grants[at] } else { lane.grants.swap_remove(at) };
        let Some(agent) = self.agents.get_mut(&id) else { return Ok(()) };
        agent.grant(key.peer(id), total, &mut self.network)
    }

    fn dial(&mut self, key: LinkKey) -> Result<(), String> {
        self.network.dials.remove(&key);
        if self.agents.get(&key.upper).is_some_and(|upper| upper.epoch == key.epoch) {
            let mut link = Link::default();
            link.down.packets.push_back(Packet::Up);
            link.up.packets.push_back(Packet::Up);
            self.network.links.insert(key, link);
            let here = |agent, epoch| self.agents.get(&agent).is_some_and(|agent| agent.epoch == epoch);
            self.network.links.retain(|key, _| here(key.upper, key.epoch) || here(key.lower, key.epoch));
        } else if let Some(lower) = self.agents.get(&key.lower) {
            self.network.report(lower.stream, AgentReport::LinkLost { epoch: key.epoch, peer: Some(key.upper) });
        }
        Ok(())
    }

    fn shard(&self, id: AgentId) -> Option<&ShardBody> {
        match &self.agents.get(&id)?.body {
            RoleState::Shard(shard) => Some(shard),
            _ => None,
        }
    }

    /// Returns whether the store's thread of a shard has nothing to do, or the shard does not exist.
    fn is_idle(&self, id: AgentId) -> bool {
        self.shard(id).is_none_or(|shard| !shard.has_work())
    }

    /// Copies the next chunk of another replica. The copy fails if that replica is lost, and sometimes without a
    /// reason.
    fn copy(&mut self, id: AgentId) -> Result<(), String> {
        let copying = self.shard(id).and_then(|shard| Some((shard.copied_replica()?, shard.next_copy()?)));
        let Some((peer, (chunk, step))) = copying else { return Ok(()) };
        let is_broken = self.network.random.chance(2);
        let read = match self.shard(peer) {
            _ if is_broken => Err("the connection broke".to_owned()),
            Some(shard) => shard.read_copy(chunk, step),
            None => Err(format!("{peer} is lost")),
        };
        let Some(read) = read.transpose() else { return Ok(()) };
        let Some(agent) = self.agents.get_mut(&id) else { return Ok(()) };
        let (RoleState::Shard(shard), mut context) = agent.split(&mut self.network) else { return Ok(()) };
        shard.take_copy(read, &mut context)
    }

    /// Updates committed on a shard.
    fn committed(&self, id: AgentId) -> Option<u64> {
        self.shard(id).map(|shard| shard.machine.state().committed)
    }

    /// Checks an agent that has shut down. A shard has the parameters of the reference, with each step committed once.
    fn end_agent(&mut self, id: AgentId) -> Result<(), String> {
        let Some(mut agent) = self.agents.remove(&id) else { return Ok(()) };
        self.network.close_stream(agent.stream);
        self.network.cut_links(id, None);
        let RoleState::Shard(shard) = &mut agent.body else { return Ok(()) };
        let committed = shard.machine.state().committed;
        let (commits, first) = (std::mem::take(&mut shard.commits), shard.loaded_step);
        let ended = self.ended.entry(id.index % self.wanted.shards).or_default();
        let Some(parameters) = shard.finish()? else { return Ok(()) };
        *ended = Some(committed).max(*ended);
        let reference = &self.job.reference;
        if commits != reference.commits[first as usize..committed as usize] {
            return Err(format!("{id} has recorded {commits:?}"));
        }
        let state = &reference.states[committed as usize];
        if parameters.iter().any(|(chunk, parameters)| *parameters != state[*chunk]) {
            return Err(format!("{id} ends with other parameters"));
        }
        Ok(())
    }

    fn check_end(&self, outcome: RunOutcome) -> Result<RunOutcome, String> {
        let SimulatedJob { policy, evaluates, .. } = self.job;
        if !policy.train {
            let last = evaluates.last().copied().unwrap_or(0);
            let complete = outcome != RunOutcome::Complete || self.ended.values().all(|shard| *shard == Some(last));
            return if complete { Ok(outcome) } else { Err(format!("the shards end at {:?}", self.ended)) };
        }
        // The shards may be lost after they have written the last checkpoint.
        let newest = || self.newest_source().step();
        let committed = self.ended.values().copied().flatten().max().unwrap_or_else(newest);
        let is_restoring = self.history.restoring_to.is_some() || self.ended.values().any(Option::is_none);
        // An earlier coordinator has made the shards load an older one; the last one has not verified it.
        let is_newest_damaged = self.network.damaged.contains(&newest());
        if outcome == RunOutcome::Stopped && (is_restoring || is_newest_damaged) {
            // A stop does not wait for the steps since a checkpoint, which the shards have lost.
            return Ok(outcome);
        }
        if self.ended.values().any(|shard| *shard != Some(committed)) {
            return Err(format!("the shards end at {:?}", self.ended));
        }
        let reported = self.history.steps.last().map_or(0, |last| last.step);
        if reported != committed {
            return Err(format!("step {committed} is committed, but the last reported step is {reported}"));
        }
        let trained = committed > self.source.step();
        if trained && !self.network.published.contains_key(&committed) {
            return Err(format!("step {committed} is lost: no checkpoint has it"));
        }
        if outcome == RunOutcome::Complete && committed != policy.max_steps {
            return Err(format!("it is complete after {committed} steps"));
        }
        Ok(outcome)
    }

    /// Describes what each agent waits for.
    pub fn dump(&self) -> String {
        let mut lines = vec![format!("after {} deliveries, {:?}", self.tick, self.life)];
        lines.extend(self.coordinator.iter().map(|coordinator| format!("{:?}", coordinator.machine)));
        lines.extend(self.agents.values().map(Agent::waits_for));
        lines.extend(self.network.dials.iter().map(|key| format!("dials: {key:?}")));
        lines.join("\n")
    }

    /// Returns the state that outlives this attempt.
    pub fn into_parts(mut self) -> (Network, History) {
        self.history.coverage += self.network.coverage;
        (self.network, self.history)
    }
}

/// Runs attempts of a job, each resumed from the newest checkpoint, until it is complete.
pub fn run(
    job: &SimulatedJob,
    mut random: Random,
    mut next: impl FnMut(&mut Random) -> SimulatedAttempt,
) -> Result<History, String> {
    let published_steps: &[u64] = if job.policy.train { &[0] } else { job.evaluates.as_slice() };
    let mut published =
        published_steps.iter().map(|&step| (step, job.reference.states[step as usize].clone())).collect();
    let (mut history, mut attempt, mut source) = (History::default(), 0, source_of(published_steps[0]));
    let mut damaged = BTreeSet::new();
    loop {
        let life = next(&mut random);
        let mut network = Network::new(Random::new(random.next()), published, attempt, job.planted);
        network.damaged = damaged;
        let mut world = Simulation::new(job, &life, source.clone(), network, history);
        match world.run() {
            Err(error) => return Err(format!("{error}\n{}", world.dump())),
            Ok(RunOutcome::Failed { reason, .. }) => return Err(format!("it failed: {reason}\n{}", world.dump())),
            Ok(RunOutcome::Complete) => return Ok(world.into_parts().1),
            Ok(RunOutcome::Stopped) => world.history.stops += 1,
        }
        let (network, remains) = world.into_parts();
        (published, damaged, attempt, history) = (network.published, network.damaged, network.attempt, remains);
        (history.outcome, history.restoring_to) = (None, None);
        if job.policy.train {
            source = source_of(published.keys().copied().max().unwrap_or(0));
            history.truncate_after(source.step());
        }
    }
}

/// Returns the source of the parameters of `step`.
pub fn source_of(step: u64) -> ParameterSource {
    match step {
        0 => ParameterSource::Initial,
        _ => ParameterSource::Checkpoint { path: step.to_string(), optimizer: true, step },
    }
}
