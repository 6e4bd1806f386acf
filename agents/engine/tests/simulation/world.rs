//! One life of a job: agents, wires and a coordinator, and a scheduler that lets any of them go next.

mod faults;

use std::collections::BTreeMap;

use millrace_emulator::placement::swarm_nodes;
use millrace_engine::coordinator::{Coordinator, Done, Known, Outcome};
use millrace_engine::message::{Report, Source};
use millrace_engine::types::{AgentId, Role};

use crate::agent::{Agent, Body, Job};
use crate::boss::{Boss, History};
use crate::random::Random;
use crate::setup::{Fault, Laggard, Life, Task, When};
use crate::wires::{Link, LinkKey, Packet, Wires};

/// More deliveries than any run needs: beyond this it goes in circles.
const MOST_TICKS: u64 = 400_000;

/// What may happen next.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// The agent of a stream takes an order.
    Order(u64),
    /// The coordinator takes a word.
    Word(u64),
    /// A packet reaches the end of a link: down or up.
    Packet(LinkKey, bool),
    /// A grant reaches the sender of a lane: down or up.
    Grant(LinkKey, bool),
    Dial(LinkKey),
    Act(AgentId),
    /// A shard's store goes on.
    Work(AgentId),
    /// A shard writes another chunk of its snapshot.
    Write(AgentId),
    Chore(usize),
    Start(AgentId),
    Connect(AgentId),
    StartCoordinator,
}

/// A job's agents and what is between them.
pub struct World<'a> {
    task: &'a Task,
    life: &'a Life,
    job: Job,
    source: Source,
    pub wires: Wires,
    agents: BTreeMap<AgentId, Agent>,
    boss: Option<Boss>,
    /// Agents to be started, and when.
    starts: BTreeMap<AgentId, u64>,
    boss_start: u64,
    next_system: u32,
    /// The slow agent, where one is.
    laggard: Option<AgentId>,
    faults: Vec<(When, Fault)>,
    tick: u64,
    gathered: BTreeMap<u64, u64>,
    /// Updates committed, by the shards that have ended.
    ended: Vec<u64>,
    pub history: History,
}

impl<'a> World<'a> {
    pub fn new(task: &'a Task, life: &'a Life, source: Source, wires: Wires, history: History) -> Self {
        let wanted = life.wanted;
        let mut world = Self {
            task,
            life,
            job: Job {
                plan: task.plan.clone(),
                shards: wanted.shards,
                copies: life.copies,
                windows: life.windows.clone(),
            },
            source,
            wires,
            agents: BTreeMap::new(),
            boss: None,
            starts: BTreeMap::new(),
            boss_start: 0,
            next_system: wanted.systems,
            laggard: None,
            faults: life.faults.clone(),
            tick: 0,
            gathered: BTreeMap::new(),
            ended: Vec::new(),
            history,
        };
        let spare = world.wires.random.within(0, 1) as u32;
        let counts = [
            (Role::MemoryX, wanted.shards),
            (Role::SwarmX, swarm_nodes(wanted.systems as usize, wanted.fan_out) as u32 + spare),
            (Role::Activation, wanted.activation_servers),
            (Role::Cs2, wanted.systems),
        ];
        for agent in counts.into_iter().flat_map(|(role, count)| (0..count).map(move |at| AgentId::new(role, at))) {
            let late = world.wires.random.below(60) as u64;
            world.starts.insert(agent, late);
        }
        if let Some(Laggard::Agent(role) | Laggard::Words(role)) = life.laggard {
            let all: Vec<AgentId> = world.starts.keys().copied().filter(|id| id.role == role).collect();
            world.laggard = world.wires.random.pick(&all);
        }
        world
    }

    /// Runs to the end of this life.
    pub fn run(&mut self) -> Result<Outcome, String> {
        loop {
            if let Some(outcome) = self.history.outcome.clone() {
                self.starts.clear();
                if self.agents.is_empty() {
                    return self.check_end(outcome);
                }
            }
            self.tick += 1;
            if self.tick > MOST_TICKS {
                return Err("it goes in circles".to_owned());
            }
            self.strike()?;
            let action = self.choose()?;
            self.carry(action).map_err(|error| format!("{action:?}: {error}"))?;
            if let Some(overrun) = self.wires.overrun.take() {
                return Err(overrun);
            }
        }
    }

    fn choose(&mut self) -> Result<Action, String> {
        let actions = self.actions(self.tick);
        // Storage may be so slow that several steps pass while one snapshot is written.
        let turns = if self.life.laggard == Some(Laggard::Disk) { 300 } else { 33 };
        if self.life.laggard.is_some() && self.wires.random.below(turns) > 0 {
            let others: Vec<Action> = actions.iter().copied().filter(|action| !self.lags(*action)).collect();
            if let Some(action) = self.wires.random.pick(&others) {
                return Ok(action);
            }
        }
        if let Some(action) = self.wires.random.pick(&actions) {
            return Ok(action);
        }
        // Everybody waits for those who are still away, or for what is still to come from outside.
        let late = self.actions(u64::MAX);
        if let Some(action) = self.wires.random.pick(&late) {
            return Ok(action);
        }
        let moment = |(when, _): &(When, Fault)| if let When::Tick(tick) = when { Some(*tick) } else { None };
        self.tick = self.faults.iter().filter_map(moment).min().ok_or("nobody can go on")?;
        self.strike()?;
        self.choose()
    }

    fn actions(&self, tick: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        let over = self.history.outcome.is_some();
        let attempt = self.boss.as_ref().map(|_| self.wires.attempt);
        for (&number, stream) in &self.wires.streams {
            let agent = self.agents.get(&stream.agent).filter(|agent| agent.stream == Some(number));
            if !stream.orders.is_empty() && agent.is_some() {
                actions.push(Action::Order(number));
            }
            if !stream.words.is_empty() && attempt == Some(stream.attempt) {
                actions.push(Action::Word(number));
            }
        }
        for (&key, link) in &self.wires.links {
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
        // A dialled agent that hasn't heard of the epoch yet keeps the caller waiting.
        let answers = |key: &&LinkKey| self.agents.get(&key.upper).is_none_or(|upper| upper.epoch >= key.epoch);
        actions.extend(self.wires.dials.iter().filter(answers).map(|&key| Action::Dial(key)));
        for (&id, agent) in &self.agents {
            match &agent.body {
                Body::System(system) if system.is_ready() => actions.push(Action::Act(id)),
                Body::Shard(shard) => {
                    actions.extend(shard.has_work().then_some(Action::Work(id)));
                    actions.extend(shard.is_writing().then_some(Action::Write(id)));
                }
                _ => {}
            }
            if agent.stream.is_none() && self.boss.is_some() {
                actions.push(Action::Connect(id));
            }
        }
        actions.extend((0..self.boss.as_ref().map_or(0, Boss::chores)).map(Action::Chore));
        actions.extend(self.starts.iter().filter(|(_, start)| **start <= tick).map(|(&id, _)| Action::Start(id)));
        if self.boss.is_none() && !over && self.boss_start <= tick {
            actions.push(Action::StartCoordinator);
        }
        actions
    }

    /// Whether an action is the laggard's.
    fn lags(&self, action: Action) -> bool {
        let all = !matches!(self.life.laggard, Some(Laggard::Words(_)));
        let disk = self.life.laggard == Some(Laggard::Disk);
        let is = |agent: AgentId| self.laggard == Some(agent);
        let of = |stream| self.wires.streams.get(&stream).is_some_and(|stream| is(stream.agent));
        match action {
            Action::Word(stream) => of(stream),
            Action::Order(stream) => all && of(stream),
            Action::Packet(key, _) | Action::Grant(key, _) | Action::Dial(key) => {
                all && (is(key.upper) || is(key.lower))
            }
            Action::Write(agent) => disk || (all && is(agent)),
            Action::Work(agent) | Action::Act(agent) | Action::Start(agent) | Action::Connect(agent) => {
                all && is(agent)
            }
            Action::Chore(_) => disk,
            Action::StartCoordinator => false,
        }
    }

    fn carry(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Order(stream) => self.order(stream),
            Action::Word(stream) => {
                let word = self.wires.streams.get_mut(&stream).and_then(|stream| stream.words.pop_front());
                match (&mut self.boss, word) {
                    (Some(boss), Some(word)) => boss.hear(stream, word, self.task, &mut self.wires, &mut self.history),
                    _ => Ok(()),
                }
            }
            Action::Packet(key, down) => self.packet(key, down),
            Action::Grant(key, down) => self.grant(key, down),
            Action::Dial(key) => self.dial(key),
            Action::Act(id) | Action::Work(id) => {
                let Some(agent) = self.agents.get_mut(&id) else { return Ok(()) };
                let (body, mut place) = agent.split(&mut self.wires);
                match body {
                    Body::System(system) => system.act(&mut place),
                    Body::Shard(shard) => shard.work(&mut place),
                    _ => Ok(()),
                }
            }
            Action::Write(id) => {
                let Some(agent) = self.agents.get_mut(&id) else { return Ok(()) };
                let (Body::Shard(shard), mut place) = agent.split(&mut self.wires) else { return Ok(()) };
                shard.write(&mut place)
            }
            Action::Chore(at) => match &mut self.boss {
                Some(boss) => boss.chore(at, self.task, &mut self.wires, &mut self.history),
                None => Ok(()),
            },
            Action::Start(id) => {
                self.starts.remove(&id);
                self.agents.insert(id, Agent::new(id, &self.job));
                Ok(())
            }
            Action::Connect(id) => {
                if let Some(agent) = self.agents.get_mut(&id) {
                    agent.connect(&mut self.wires);
                }
                Ok(())
            }
            Action::StartCoordinator => {
                self.wires.attempt += 1;
                let (plan, policy) = (self.task.plan.clone(), self.task.policy.clone());
                let (source, attempt) = (self.source.clone(), self.wires.attempt);
                let machine = Coordinator::new(plan, policy, self.life.wanted, source, attempt, self.known());
                let further = self.task.evaluates.iter().skip(1).map(|&step| source_of(step));
                self.boss = Some(Boss::new(machine.then_evaluating(further)));
                Ok(())
            }
        }
    }

    /// What a new coordinator finds on the disk about the step it goes on from.
    fn known(&self) -> Known {
        if !self.task.policy.train {
            return Known::default();
        }
        let held = self.agents.keys().filter_map(|id| self.committed(*id)).max().unwrap_or(0);
        let step = held.max(self.source.step());
        let saved = self.source != Source::Initial && step == self.source.step();
        Known { step, done: Done { saved, evaluated: self.history.evaluated.contains_key(&step) } }
    }

    fn order(&mut self, stream: u64) -> Result<(), String> {
        let Some(entry) = self.wires.streams.get_mut(&stream) else { return Ok(()) };
        let (id, order) = (entry.agent, entry.orders.pop_front().flatten());
        let Some(agent) = self.agents.get_mut(&id) else { return Ok(()) };
        let Some(order) = order else {
            agent.stream = None;
            return Ok(());
        };
        agent.order(order, &self.job, &mut self.wires)?;
        if agent.finished {
            self.end_agent(id)?;
        }
        Ok(())
    }

    fn packet(&mut self, key: LinkKey, down: bool) -> Result<(), String> {
        let Some(link) = self.wires.links.get_mut(&key) else { return Ok(()) };
        let (lane, id) = if down { (&mut link.down, key.lower) } else { (&mut link.up, key.upper) };
        let Some(packet) = lane.packets.pop_front() else { return Ok(()) };
        if let Packet::Broken = packet {
            self.wires.leave(key, id);
        }
        if let (Packet::Frame(_), Role::MemoryX, Some(shard)) = (&packet, id.role, self.committed(id)) {
            *self.gathered.entry(shard + 1).or_default() += 1;
        }
        let Some(agent) = self.agents.get_mut(&id) else { return Ok(()) };
        agent.packet(key.peer(id), packet, &mut self.wires)
    }

    fn grant(&mut self, key: LinkKey, down: bool) -> Result<(), String> {
        let Some(link) = self.wires.links.get_mut(&key) else { return Ok(()) };
        let (lane, id) = if down { (&mut link.down, key.upper) } else { (&mut link.up, key.lower) };
        let at = self.wires.random.below(lane.grants.len());
        let total = if self.wires.random.chance(20) { lane.grants[at] } else { lane.grants.swap_remove(at) };
        let Some(agent) = self.agents.get_mut(&id) else { return Ok(()) };
        agent.grant(key.peer(id), total, &mut self.wires)
    }

    fn dial(&mut self, key: LinkKey) -> Result<(), String> {
        self.wires.dials.remove(&key);
        if self.agents.get(&key.upper).is_some_and(|upper| upper.epoch == key.epoch) {
            let mut link = Link::default();
            link.down.packets.push_back(Packet::Up);
            link.up.packets.push_back(Packet::Up);
            self.wires.links.insert(key, link);
            let here = |agent, epoch| self.agents.get(&agent).is_some_and(|agent| agent.epoch == epoch);
            self.wires.links.retain(|key, _| here(key.upper, key.epoch) || here(key.lower, key.epoch));
        } else if let Some(lower) = self.agents.get(&key.lower) {
            self.wires.report(lower.stream, Report::LinkLost { epoch: key.epoch, peer: Some(key.upper) });
        }
        Ok(())
    }

    /// Updates committed on a shard.
    fn committed(&self, id: AgentId) -> Option<u64> {
        match &self.agents.get(&id)?.body {
            Body::Shard(shard) => Some(shard.machine.state().committed),
            _ => None,
        }
    }

    /// An agent has ended gracefully. A shard's parameters are those of the reference, each step committed once.
    fn end_agent(&mut self, id: AgentId) -> Result<(), String> {
        let Some(mut agent) = self.agents.remove(&id) else { return Ok(()) };
        self.wires.hang_up(agent.stream);
        self.wires.cut_links(id, None);
        let Body::Shard(shard) = &mut agent.body else { return Ok(()) };
        let committed = shard.machine.state().committed;
        let commits = std::mem::take(&mut shard.commits);
        let Some(parameters) = shard.finish()? else { return Ok(()) };
        let reference = &self.task.reference;
        let first = if self.task.policy.train { self.source.step() } else { committed };
        if commits != reference.commits[first as usize..committed as usize] {
            return Err(format!("{id} has recorded {commits:?}"));
        }
        let state = &reference.states[committed as usize];
        if parameters.iter().any(|(chunk, parameters)| *parameters != state[*chunk]) {
            return Err(format!("{id} ends with other parameters"));
        }
        self.ended.push(committed);
        Ok(())
    }

    fn check_end(&self, outcome: Outcome) -> Result<Outcome, String> {
        let Task { policy, evaluates, .. } = self.task;
        if !policy.train {
            let last = evaluates.last().copied().unwrap_or(0);
            let complete = outcome != Outcome::Complete || self.ended.iter().all(|shard| *shard == last);
            return if complete { Ok(outcome) } else { Err(format!("the shards end at {:?}", self.ended)) };
        }
        let committed = self.ended.iter().copied().max().unwrap_or(self.source.step());
        if self.ended.iter().any(|shard| *shard != committed) {
            return Err(format!("the shards end at {:?}", self.ended));
        }
        let told = self.history.steps.last().map_or(0, |last| last.step);
        if told != committed {
            return Err(format!("step {committed} is committed, but {told} the last that was told"));
        }
        let trained = committed > self.source.step();
        if trained && !self.wires.published.contains_key(&committed) {
            return Err(format!("step {committed} is lost: no checkpoint has it"));
        }
        if outcome == Outcome::Complete && committed != policy.max_steps {
            return Err(format!("it is complete after {committed} steps"));
        }
        Ok(outcome)
    }

    /// Who waits for what.
    pub fn dump(&self) -> String {
        let mut lines = vec![format!("after {} deliveries, {:?}", self.tick, self.life)];
        lines.extend(self.boss.iter().map(|boss| format!("{:?}", boss.machine)));
        lines.extend(self.agents.values().map(Agent::waits_for));
        lines.extend(self.wires.dials.iter().map(|key| format!("dials: {key:?}")));
        lines.join("\n")
    }

    /// What outlives this life.
    pub fn into_remains(mut self) -> (Wires, History) {
        self.history.coverage += self.wires.coverage;
        (self.wires, self.history)
    }
}

/// Lives of a job, each resumed from the newest checkpoint, until it is complete.
pub fn run(task: &Task, mut random: Random, mut next: impl FnMut(&mut Random) -> Life) -> Result<History, String> {
    let there: &[u64] = if task.policy.train { &[0] } else { task.evaluates.as_slice() };
    let mut published = there.iter().map(|&step| (step, task.reference.states[step as usize].clone())).collect();
    let (mut history, mut attempt, mut source) = (History::default(), 0, source_of(there[0]));
    loop {
        let life = next(&mut random);
        let wires = Wires::new(Random::new(random.next()), published, attempt);
        let mut world = World::new(task, &life, source.clone(), wires, history);
        match world.run() {
            Err(error) => return Err(format!("{error}\n{}", world.dump())),
            Ok(Outcome::Failed { reason, .. }) => return Err(format!("it failed: {reason}\n{}", world.dump())),
            Ok(Outcome::Complete) => return Ok(world.into_remains().1),
            Ok(Outcome::Stopped) => world.history.stops += 1,
        }
        let (wires, remains) = world.into_remains();
        (published, attempt, history) = (wires.published, wires.attempt, remains);
        history.outcome = None;
        if task.policy.train {
            source = source_of(published.keys().copied().max().unwrap_or(0));
            history.forget_beyond(source.step());
        }
    }
}

/// Where the parameters of `step` come from.
fn source_of(step: u64) -> Source {
    match step {
        0 => Source::Initial,
        _ => Source::Checkpoint { path: step.to_string(), optimizer: true, step },
    }
}
