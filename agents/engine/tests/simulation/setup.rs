//! Generates a scenario from a seed: a model, a job, the agents it requires, and faults.

use std::collections::BTreeMap;
use std::sync::Arc;

use millrace_emulator::plan::StreamPlan;
use millrace_engine::coordinator::{EvalPolicy, LossScaling, RequiredAgents, RunPolicy, SpikePolicy};
use millrace_engine::types::Role;

use crate::model;
use crate::planted::PlantedBug;
use crate::random::Random;
use crate::reference::Reference;

/// A fault or a request of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An agent fails and is restarted some time later.
    Crash(Role),
    /// An agent fails permanently.
    Vanish(Role),
    /// A system leaves permanently, if enough are left; another one may join.
    Leave,
    /// A control stream of an agent breaks; the agent joins again.
    CutStream(Role),
    /// A link of the data tree breaks.
    CutLink,
    /// The user requests this number of systems.
    Resize(u32),
    /// A new coordinator, which knows the first number of systems, receives the current one.
    RepeatSize,
    /// The current iteration counts as overdue.
    Overdue,
    /// The next write of a snapshot fails.
    FailWrite,
    /// All MemoryX agents fail and are restarted, and the newest checkpoint is damaged.
    DamageCheckpoint,
    /// The user requests a checkpoint.
    Checkpoint,
    /// The user stops the run.
    Stop,
}

/// The time of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultTrigger {
    /// After this many deliveries.
    Tick(u64),
    /// When this many gradient frames of a step were delivered to the shards.
    Gathered(u64, u64),
    /// When this many shards have recorded a step.
    Recorded(u64, u64),
    /// When this many shards are writing a checkpoint.
    Writing(u64),
    /// When a checkpoint exists.
    Published,
}

/// A component that is slow during a whole attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowComponent {
    /// All actions of an agent.
    Agent(Role),
    /// The messages from an agent to the coordinator.
    Messages(Role),
    /// The disk of all checkpoints.
    Disk,
}

/// Parameters shared by all attempts of a job.
pub struct SimulatedJob {
    pub plan: Arc<StreamPlan>,
    pub policy: RunPolicy,
    pub reference: Reference,
    /// Steps of the checkpoints that an evaluation run evaluates; empty for a training run.
    pub evaluates: Vec<u64>,
    /// A bug of all agents.
    pub planted: Option<PlantedBug>,
}

/// One attempt of a job, until it ends or is stopped.
#[derive(Clone, Debug)]
pub struct SimulatedAttempt {
    pub wanted: RequiredAgents,
    pub windows: BTreeMap<Role, u64>,
    pub faults: Vec<(FaultTrigger, Fault)>,
    pub laggard: Option<SlowComponent>,
    /// Chunks that a store copies at a time for a snapshot.
    pub copies: usize,
}

impl SimulatedJob {
    pub fn new(random: &mut Random) -> Self {
        let mut plan = model::plan(random);
        let has_weight = random.chance(30);
        if has_weight {
            model::add_weight(&mut plan);
        }
        let plan = Arc::new(plan);
        let maybe = |random: &mut Random, most: usize| random.chance(60).then(|| random.within(1, most) as u64);
        let policy = RunPolicy {
            train: !random.chance(5),
            max_steps: random.within(1, 6) as u64,
            eval: random
                .chance(60)
                .then(|| EvalPolicy { every: maybe(random, 3), batches: random.within(1, 3) as u64 }),
            checkpoint_every: maybe(random, 3),
            initial_checkpoint: random.chance(30),
            scaling: if !has_weight && random.chance(50) {
                LossScaling::Tokens
            } else {
                LossScaling::BatchSize { weight: 0.25, batch: plan.leaves.batch() }
            },
            clip: random.chance(70).then_some(0.05),
            spikes: random.chance(40).then(|| SpikePolicy {
                factor: Some(1.0),
                window: random.within(1, 2) as u32,
                skip: true,
            }),
            learning_rate: Arc::new(|step| 0.1 / (1.0 + step as f64)),
        };
        let mut evaluates = Vec::new();
        if !policy.train {
            evaluates = (0..=policy.max_steps).filter(|_| random.chance(50)).collect();
            if evaluates.is_empty() {
                evaluates.push(0);
            }
        }
        Self { evaluates, ..Self::of(plan, policy) }
    }

    /// Without a policy for spikes if it would end the run.
    fn of(plan: Arc<StreamPlan>, policy: RunPolicy) -> Self {
        match Reference::new(&plan, &policy) {
            Some(reference) => Self { reference, plan, policy, evaluates: Vec::new(), planted: None },
            None => Self::of(plan, RunPolicy { spikes: None, ..policy }),
        }
    }

    /// The model of the small task, with every step evaluated and no training.
    pub fn evaluating() -> Self {
        let Self { plan, policy, .. } = Self::small();
        let eval = Some(EvalPolicy { every: None, batches: 2 });
        let evaluates = (0..=policy.max_steps).collect();
        Self { evaluates, ..Self::of(plan, RunPolicy { train: false, eval, ..policy }) }
    }

    /// Four steps over five leaves in several rounds, some without leaves for a system, with evaluation and
    /// checkpoints.
    pub fn small() -> Self {
        let mut plan = model::plan(&mut Random::new(3));
        (plan.leaves.count, plan.leaves_per_round) = (5, 1);
        let policy = RunPolicy {
            train: true,
            max_steps: 4,
            eval: Some(EvalPolicy { every: Some(2), batches: 1 }),
            checkpoint_every: Some(2),
            initial_checkpoint: false,
            scaling: LossScaling::Tokens,
            clip: Some(0.05),
            spikes: None,
            learning_rate: Arc::new(|step| 0.1 / (1.0 + step as f64)),
        };
        Self::of(Arc::new(plan), policy)
    }

    /// The steps of the small task over two leaves, with batches that are skipped before and after its first
    /// checkpoint.
    pub fn skipping() -> Self {
        let mut plan = model::plan(&mut Random::new(2));
        (plan.leaves.count, plan.leaves_per_round) = (2, 1);
        let spikes = Some(SpikePolicy { factor: Some(1.3), window: 1, skip: true });
        let job = Self::of(Arc::new(plan), RunPolicy { spikes, ..Self::small().policy });
        let skipped = |step| job.reference.history(step).skipped_batches;
        assert!(0 < skipped(2) && skipped(2) < skipped(4), "skipped: {} and {}", skipped(2), skipped(4));
        job
    }
}

impl SimulatedAttempt {
    /// The smallest windows, `systems` systems of which `min_systems` suffice, and these faults.
    pub fn small(systems: u32, min_systems: u32, shards: u32, faults: &[(FaultTrigger, Fault)]) -> Self {
        let wanted = RequiredAgents { systems, min_systems, shards, replicas: 1, fan_out: 2, activation_servers: 1 };
        let windows = [Role::MemoryX, Role::SwarmX, Role::Cs2].into_iter().map(|role| (role, 1)).collect();
        Self { wanted, windows, faults: faults.to_vec(), laggard: None, copies: 1 }
    }

    pub fn new(random: &mut Random, plan: &StreamPlan) -> Self {
        let systems = random.within(1, plan.leaves.count.min(5) as usize) as u32;
        let wanted = RequiredAgents {
            systems,
            min_systems: random.within(1, systems as usize) as u32,
            shards: random.within(1, 3) as u32,
            replicas: random.pick(&[1, 1, 2, 2, 3]).unwrap_or(1),
            fan_out: if random.chance(50) { 2 } else { 4 },
            activation_servers: random.within(1, 2) as u32,
        };
        let window = |random: &mut Random| random.pick(&[1, 1, 1, 2, 3]).unwrap_or(1);
        let windows = [Role::MemoryX, Role::SwarmX, Role::Cs2].into_iter().map(|role| (role, window(random))).collect();
        let faults = (0..random.within(0, 8)).map(|_| {
            let tick = FaultTrigger::Tick(random_tick(random));
            match fault(random, plan) {
                Fault::DamageCheckpoint => (FaultTrigger::Published, Fault::DamageCheckpoint),
                fault => (tick, fault),
            }
        });
        let faults = faults.collect();
        Self { wanted, windows, faults, laggard: laggard(random), copies: random.within(1, 3) }
    }
}

fn laggard(random: &mut Random) -> Option<SlowComponent> {
    let role = random.pick(&[Role::MemoryX, Role::SwarmX, Role::Activation, Role::Cs2])?;
    match random.below(8) {
        0 => Some(SlowComponent::Disk),
        1 => Some(SlowComponent::Messages(role)),
        2..4 => Some(SlowComponent::Agent(role)),
        _ => None,
    }
}

/// Early and late ticks are equally likely by order of magnitude.
fn random_tick(random: &mut Random) -> u64 {
    let magnitude = random.within(3, 13);
    random.within(1 << magnitude, 2 << magnitude) as u64
}

fn fault(random: &mut Random, plan: &StreamPlan) -> Fault {
    match random.below(100) {
        0..13 => Fault::Crash(Role::Cs2),
        13..22 => Fault::Crash(Role::MemoryX),
        22..32 => Fault::Crash(Role::SwarmX),
        32..40 => Fault::Crash(Role::Activation),
        40..58 => Fault::Crash(Role::Coordinator),
        58..68 => Fault::Leave,
        68..74 => Fault::CutStream(Role::MemoryX),
        74..78 => Fault::CutStream(Role::Cs2),
        78..81 => Fault::CutLink,
        81..84 => Fault::DamageCheckpoint,
        84..87 => Fault::FailWrite,
        87..89 => Fault::Overdue,
        89..92 => Fault::Checkpoint,
        92..97 => Fault::Resize(random.within(1, plan.leaves.count.min(5) as usize) as u32),
        _ => Fault::Stop,
    }
}
