//! Tests the coordinator alone with handwritten events: replicas of a shard that join with older parameters.

use millrace_engine::coordinator::{
    Coordinator, CoordinatorCommand, CoordinatorEvent, RequiredAgents, ResumeState, RunPolicy,
};
use millrace_engine::message::{AgentCommand, AgentReport, FailureCause, ParameterSource, ShardState, SnapshotRequest};
use millrace_engine::types::{
    AgentId, CommitRecord, ComputeWork, LeafResult, OtherLosses, PreparedStep, Role, TrainingHistory,
};

use crate::setup::SimulatedJob;

const FIRST: AgentId = AgentId::new(Role::MemoryX, 0);
const SECOND: AgentId = AgentId::new(Role::MemoryX, 1);
const OTHERS: [AgentId; 3] =
    [AgentId::new(Role::SwarmX, 0), AgentId::new(Role::Activation, 0), AgentId::new(Role::Cs2, 0)];

/// A new coordinator of a run whose agents have a shard with two replicas.
struct Fixture {
    machine: Coordinator,
    out: Vec<CoordinatorCommand>,
}

impl Fixture {
    fn new() -> Self {
        Self::with_policy(SimulatedJob::small().policy)
    }

    fn with_policy(policy: RunPolicy) -> Self {
        let job = SimulatedJob::small();
        let required =
            RequiredAgents { systems: 1, min_systems: 1, shards: 1, replicas: 2, fan_out: 2, activation_servers: 1 };
        let machine = Coordinator::new(job.plan, policy, required, ParameterSource::Initial, 2, ResumeState::default());
        let mut fixture = Self { machine, out: Vec::new() };
        OTHERS.into_iter().for_each(|agent| fixture.join(agent, None));
        fixture
    }

    fn on(&mut self, event: CoordinatorEvent) {
        self.out.clear();
        self.machine.handle_event(event, &mut self.out);
    }

    fn join(&mut self, agent: AgentId, shard: Option<ShardState>) {
        self.on(CoordinatorEvent::Joined { agent, address: format!("{agent}:1"), shard });
    }

    fn report(&mut self, agent: AgentId, report: AgentReport) {
        self.on(CoordinatorEvent::Report { agent, report });
    }

    /// Reports the links of the current epoch of all agents, with these replicas.
    fn link(&mut self, replicas: &[AgentId]) {
        let epoch = self.machine.epoch();
        for &agent in OTHERS.iter().chain(replicas) {
            self.report(agent, AgentReport::Linked { epoch });
        }
    }

    /// Returns the commands of the last event to `agent`, besides those that configure epochs and open iterations.
    fn commands_to(&self, agent: AgentId) -> Vec<AgentCommand> {
        let commands = self.out.iter().filter_map(|command| match command {
            CoordinatorCommand::Send(to, command) if *to == agent => Some(command.clone()),
            _ => None,
        });
        let of_iteration =
            |command: &AgentCommand| matches!(command, AgentCommand::Configure(_) | AgentCommand::Open { .. });
        commands.filter(|command| !of_iteration(command)).collect()
    }

    /// Returns the MemoryX agents of the epoch that began at the last event, if any.
    fn placed(&self) -> Option<Vec<u32>> {
        self.out.iter().find_map(|command| match command {
            CoordinatorCommand::Epoch { placement, .. } => Some(placement.memoryx.clone()),
            _ => None,
        })
    }
}

/// Step 2, computed with batch 2 because batch 1 was skipped.
fn record() -> CommitRecord {
    let history = TrainingHistory { skipped_batches: 1, ..TrainingHistory::default() };
    CommitRecord { step: 2, scale: 1.0, learning_rate: 0.1, loss: 1.0, norm: 1.0, tokens: 1, history }
}

fn at_step_2() -> ShardState {
    ShardState { loaded: true, committed: 2, record: Some(record()), prepared: None }
}

fn prepared(batch: u64) -> ShardState {
    let prepared = Some(PreparedStep { step: 2, batch });
    ShardState { loaded: true, committed: 1, record: None, prepared }
}

fn copy_of_first() -> AgentCommand {
    let (agent, address, record) = (FIRST, "memoryx-0:1".to_owned(), Some(record()));
    AgentCommand::Load(ParameterSource::Replica { agent, address, step: 2, record })
}

/// A commit may only be repeated to a replica that has gathered the gradients of the batch that it decides about.
#[test]
fn replica_with_gradients_of_another_batch_copies() {
    let commit = AgentCommand::Commit { record: record() };
    for (state, expected) in [
        (prepared(2), vec![commit]),
        (prepared(1), vec![copy_of_first()]),
        (ShardState { prepared: None, ..prepared(2) }, vec![copy_of_first()]),
        (ShardState::default(), vec![copy_of_first()]),
        (at_step_2(), vec![]),
    ] {
        let mut fixture = Fixture::new();
        fixture.join(FIRST, Some(at_step_2()));
        assert_eq!(fixture.placed(), Some(vec![0]), "one replica is enough");
        fixture.join(SECOND, Some(state));
        assert_eq!(fixture.commands_to(SECOND), expected, "{state:?}");
    }
}

#[test]
fn run_continues_without_a_replica_that_can_not_copy() {
    let mut fixture = Fixture::new();
    fixture.join(FIRST, Some(at_step_2()));
    fixture.join(SECOND, Some(ShardState::default()));
    assert_eq!((fixture.commands_to(SECOND), fixture.placed()), (vec![copy_of_first()], None));
    let report = AgentReport::CopyFailed { reason: "no route".to_owned() };
    fixture.report(FIRST, report.clone());
    assert!(fixture.out.is_empty(), "it copies nothing");
    fixture.report(SECOND, report);
    let is_disconnected =
        |command: &CoordinatorCommand| matches!(command, CoordinatorCommand::Disconnect { agent: SECOND, .. });
    assert!(fixture.out.iter().any(is_disconnected));
    assert_eq!(fixture.placed(), Some(vec![0]));
}

/// The replica that has not joined may hold the newest step, so that no checkpoint is loaded before.
#[test]
fn replica_without_parameters_waits_for_the_other_one() {
    for (state, loads) in [(at_step_2(), false), (ShardState::default(), true)] {
        let mut fixture = Fixture::new();
        fixture.join(SECOND, Some(ShardState::default()));
        assert!(fixture.placed().is_none() && fixture.commands_to(SECOND).is_empty());
        fixture.join(FIRST, Some(state));
        let expected = if loads { AgentCommand::Load(ParameterSource::Initial) } else { copy_of_first() };
        assert_eq!(fixture.commands_to(SECOND), [expected]);
    }
}

/// A new coordinator continues from the step of the only replica that holds it. If that one is lost before the first
/// epoch, the run restores the checkpoint and executes the steps since again.
#[test]
fn adopted_step_is_restored_if_its_only_replica_is_lost() {
    let mut fixture = Fixture::new();
    fixture.join(SECOND, Some(ShardState::default()));
    fixture.join(FIRST, Some(at_step_2()));
    assert_eq!(fixture.commands_to(SECOND), [copy_of_first()]);
    fixture.on(CoordinatorEvent::Lost { agent: FIRST });
    fixture.report(SECOND, AgentReport::CopyFailed { reason: "lost".to_owned() });
    fixture.join(SECOND, Some(ShardState::default()));
    assert!(fixture.out.is_empty(), "the other replica may still hold the step: {:?}", fixture.out);
    fixture.join(FIRST, Some(ShardState::default()));
    let restores =
        |command: &CoordinatorCommand| matches!(command, CoordinatorCommand::ReportRestore { from: 0, to: 2, .. });
    assert!(fixture.out.iter().any(restores), "{:?}", fixture.out);
    for agent in [FIRST, SECOND] {
        assert_eq!(fixture.commands_to(agent), [AgentCommand::Load(ParameterSource::Initial)]);
    }
    let state = ShardState { loaded: true, ..ShardState::default() };
    for agent in [FIRST, SECOND] {
        fixture.report(agent, AgentReport::Loaded { state });
    }
    assert_eq!((fixture.placed(), fixture.machine.step()), (Some(vec![0, 1]), 0));
}

/// The replica that writes a snapshot has lost its stream before it received the commit of that step.
#[test]
fn commit_precedes_the_snapshot_of_its_step() {
    let snapshot = SnapshotRequest { step: 2, path: "2".to_owned() };
    let (commit, write) = (AgentCommand::Commit { record: record() }, AgentCommand::Snapshot(snapshot.clone()));
    for (state, expected, is_abandoned) in [
        (prepared(2), vec![commit, write.clone()], false),
        (at_step_2(), vec![write], false),
        (prepared(1), vec![], true),
    ] {
        let mut fixture = Fixture::new();
        fixture.join(FIRST, Some(at_step_2()));
        fixture.join(SECOND, Some(at_step_2()));
        fixture.on(CoordinatorEvent::CheckpointRequested);
        fixture.link(&[FIRST, SECOND]);
        fixture.on(CoordinatorEvent::Staged(snapshot.clone()));
        assert_eq!(fixture.commands_to(FIRST), [AgentCommand::Snapshot(snapshot.clone())]);
        fixture.join(FIRST, Some(state));
        let sent = fixture.commands_to(FIRST);
        let loads = |command: &AgentCommand| matches!(command, AgentCommand::Load(_));
        assert_eq!(sent.into_iter().filter(|command| !loads(command)).collect::<Vec<_>>(), expected, "{state:?}");
        let fails = |command: &CoordinatorCommand| matches!(command, CoordinatorCommand::ReportSaveFailure { .. });
        assert_eq!(fixture.out.iter().any(fails), is_abandoned, "{state:?}");
    }
}

/// An earlier coordinator has sent the commit of step 2 to a replica that joins while the other one executes the step
/// again. The step is saved, although the one before it was saved, too.
#[test]
fn step_that_another_replica_has_recorded_is_saved() {
    let mut fixture = Fixture::with_policy(RunPolicy { eval: None, ..SimulatedJob::small().policy });
    let record = CommitRecord { step: 1, history: TrainingHistory::default(), ..record() };
    fixture.join(FIRST, Some(ShardState { loaded: true, committed: 1, record: Some(record), prepared: None }));
    fixture.on(CoordinatorEvent::CheckpointRequested);
    fixture.link(&[FIRST]);
    let epoch = fixture.machine.epoch();
    let (reason, cause) = ("no space is left".to_owned(), FailureCause::NoSpace);
    fixture.on(CoordinatorEvent::SaveFailed { step: 1, reason, cause });
    fixture.join(SECOND, Some(at_step_2()));
    let SimulatedJob { plan, .. } = SimulatedJob::small();
    let (other, metrics) = (OtherLosses::default(), Vec::new());
    let leaf = LeafResult { leaf: 0, loss: 1.0, tokens: 1, correct: 0, other, metrics, bad_layer: None };
    let results = (0..plan.leaves.count).map(|number| LeafResult { leaf: number, ..leaf.clone() }).collect();
    fixture.report(OTHERS[2], AgentReport::Leaves { epoch, iteration: 0, results, work: ComputeWork::default() });
    let norms = (0..plan.chunks.len()).map(|chunk| (chunk, 1.0)).collect();
    fixture.report(FIRST, AgentReport::Prepared { epoch, step: 2, norms });
    assert_eq!((fixture.placed(), fixture.machine.step()), (Some(vec![0, 1]), 2));
    fixture.link(&[FIRST, SECOND]);
    let saves = |command: &CoordinatorCommand| matches!(command, CoordinatorCommand::StageCheckpoint { step: 2 });
    assert!(fixture.out.iter().any(saves), "{:?}", fixture.out);
}
