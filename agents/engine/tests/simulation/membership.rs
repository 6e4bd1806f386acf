//! Tests the coordinator alone with handwritten events: failing links, and systems that join.

use std::time::Duration;

use millrace_engine::coordinator::{
    Coordinator, CoordinatorCommand, CoordinatorEvent, INITIAL_LINK_BACKOFF, MAX_LINK_BACKOFF, MAX_LINK_FAILURES,
    RequiredAgents, ResumeState, RunOutcome,
};
use millrace_engine::message::{AgentCommand, AgentReport, FailureCause, ParameterSource, ShardState, SnapshotRequest};
use millrace_engine::types::{
    AgentId, ComputeWork, Epoch, Iteration, IterationKind as Work, LeafResult, OtherLosses, Role,
};

use crate::setup::SimulatedJob;

const SHARD: AgentId = AgentId::new(Role::MemoryX, 0);
const NODE: AgentId = AgentId::new(Role::SwarmX, 0);
const SERVER: AgentId = AgentId::new(Role::Activation, 0);

/// The agents of the fixture's job on one system.
const ONE_SYSTEM: RequiredAgents =
    RequiredAgents { systems: 1, min_systems: 1, shards: 1, replicas: 1, fan_out: 2, activation_servers: 1 };

const fn system(index: u32) -> AgentId {
    AgentId::new(Role::Cs2, index)
}

struct CoordinatorFixture {
    machine: Coordinator,
    job: SimulatedJob,
    shards: Vec<AgentId>,
    systems: Vec<AgentId>,
    /// Commands of the last event.
    out: Vec<CoordinatorCommand>,
}

impl CoordinatorFixture {
    /// A coordinator with one shard, node and server, and one of the two requested systems, in its first epoch.
    fn running() -> Self {
        Self::running_with(&[SHARD])
    }

    fn running_with(shards: &[AgentId]) -> Self {
        let job = SimulatedJob::small();
        let count = shards.len() as u32;
        let wanted = RequiredAgents { systems: 2, shards: count, ..ONE_SYSTEM };
        let (plan, policy) = (job.plan.clone(), job.policy.clone());
        let machine = Coordinator::new(plan, policy, wanted, ParameterSource::Initial, 1, ResumeState::default());
        let shards = shards.to_vec();
        let mut desk = Self { machine, job, shards: shards.clone(), systems: Vec::new(), out: Vec::new() };
        for agent in shards.iter().copied().chain([NODE, SERVER, system(0)]) {
            desk.join(agent);
        }
        for shard in shards {
            desk.report(shard, AgentReport::Loaded { state: ShardState { loaded: true, ..ShardState::default() } });
        }
        assert_eq!(desk.configured(), Some(1));
        desk.link();
        desk
    }

    /// As [`CoordinatorFixture::running`], in the epoch that begins after step 1 because the other system has joined.
    fn on_two_systems() -> Self {
        let mut desk = Self::running();
        let iteration = desk.opened().unwrap();
        desk.join(system(1));
        desk.finish(iteration);
        desk.report(SHARD, AgentReport::Committed { step: 1 });
        assert_eq!(desk.configured(), Some(2));
        desk
    }

    fn on(&mut self, event: CoordinatorEvent) {
        self.out.clear();
        self.machine.handle_event(event, &mut self.out);
    }

    fn join(&mut self, agent: AgentId) {
        let shard = (agent.role == Role::MemoryX).then(ShardState::default);
        self.on(CoordinatorEvent::Joined { agent, address: format!("{agent}:1"), shard });
    }

    fn report(&mut self, agent: AgentId, report: AgentReport) {
        self.on(CoordinatorEvent::Report { agent, report });
    }

    /// Returns the systems of the epoch that began at the last event, if any.
    fn configured(&mut self) -> Option<usize> {
        let placement = self.out.iter().find_map(|command| match command {
            CoordinatorCommand::Epoch { placement, .. } => Some(placement.clone()),
            _ => None,
        })?;
        self.systems = placement.systems.iter().map(|system| AgentId::new(Role::Cs2, system.id)).collect();
        Some(self.systems.len())
    }

    /// Reports that all agents of the epoch have established their links.
    fn link(&mut self) {
        let epoch = self.machine.epoch();
        for agent in [NODE, SERVER].into_iter().chain(self.shards.clone()).chain(self.systems.clone()) {
            self.report(agent, AgentReport::Linked { epoch });
        }
    }

    fn opened(&self) -> Option<Iteration> {
        self.out.iter().find_map(|command| match command {
            CoordinatorCommand::Send(_, AgentCommand::Open { iteration, .. }) => Some(*iteration),
            _ => None,
        })
    }

    /// Completes the most recently opened iteration up to its commit; later commands are in `out`.
    fn finish(&mut self, iteration: Iteration) {
        let (epoch, Work::Train { step, .. }) = (self.machine.epoch(), iteration.task) else { panic!("{iteration:?}") };
        let other = OtherLosses::default();
        let metrics = Vec::new;
        let result =
            |leaf| LeafResult { leaf, loss: 1.0, tokens: 1, correct: 0, other, metrics: metrics(), bad_layer: None };
        let results = (0..self.job.plan.leaves.count).map(result).collect();
        self.report(
            system(0),
            AgentReport::Leaves { epoch, iteration: iteration.number, results, work: ComputeWork::default() },
        );
        let norms: Vec<_> = (0..self.job.plan.chunks.len()).map(|chunk| (chunk, 1.0)).collect();
        for shard in self.shards.clone() {
            self.report(shard, AgentReport::Prepared { epoch, step, norms: norms.clone() });
        }
    }

    fn lose_link(&mut self, reporter: AgentId, peer: AgentId) -> Option<(Epoch, Duration, u32)> {
        let epoch = self.machine.epoch();
        self.report(reporter, AgentReport::LinkLost { epoch, peer: Some(peer) });
        self.out.iter().find_map(|command| match command {
            CoordinatorCommand::Backoff { epoch, after, failures, .. } => Some((*epoch, *after, *failures)),
            _ => None,
        })
    }
}

#[test]
fn joining_system_waits_for_the_current_iteration() {
    let mut desk = CoordinatorFixture::running();
    let iteration = desk.opened().unwrap();
    desk.join(system(1));
    assert!(desk.out.is_empty(), "the iteration in flight is disturbed: {:?}", desk.out);
    desk.finish(iteration);
    let commits =
        |command: &CoordinatorCommand| matches!(command, CoordinatorCommand::Send(_, AgentCommand::Commit { .. }));
    assert!(desk.out.iter().any(commits) && desk.opened().is_none());
    desk.report(SHARD, AgentReport::Committed { step: 1 });
    assert_eq!(desk.configured(), Some(2), "it works from the next iteration on");
}

#[test]
fn resize_waits_for_the_current_iteration() {
    let mut desk = CoordinatorFixture::on_two_systems();
    desk.link();
    let iteration = desk.opened().unwrap();
    desk.on(CoordinatorEvent::Resized(ONE_SYSTEM));
    assert!(desk.out.is_empty() && !desk.machine.is_within_size(), "the iteration in flight is disturbed");
    desk.finish(iteration);
    desk.report(SHARD, AgentReport::Committed { step: 2 });
    assert_eq!((desk.configured(), desk.machine.is_within_size()), (Some(1), true));
    desk.on(CoordinatorEvent::Lost { agent: system(1) });
    assert!(desk.out.is_empty(), "a system that takes no part is missed");
}

/// A system beyond the required ones is used while one of these is missing, and gives way to it.
#[test]
fn spare_system_of_a_resized_job_gives_way_to_a_required_one() {
    let mut desk = CoordinatorFixture::running();
    desk.join(system(1));
    desk.on(CoordinatorEvent::Resized(ONE_SYSTEM));
    desk.on(CoordinatorEvent::Lost { agent: system(0) });
    assert_eq!((desk.configured(), desk.machine.is_within_size()), (Some(1), false));
    desk.link();
    let iteration = desk.opened().unwrap();
    desk.join(system(0));
    desk.finish(iteration);
    desk.report(SHARD, AgentReport::Committed { step: 1 });
    assert_eq!((desk.configured(), desk.systems.clone()), (Some(1), vec![system(0)]));
    assert!(desk.machine.is_within_size());
}

#[test]
fn repeated_link_failures_back_off_and_end_the_run() {
    let mut desk = CoordinatorFixture::running();
    let mut pauses = Vec::new();
    for failures in 1..MAX_LINK_FAILURES {
        // Either end may report first, and others report links that were closed in consequence.
        let (reporter, peer) = if failures % 2 == 0 { (NODE, SHARD) } else { (SHARD, NODE) };
        let (epoch, pause, counted) = desk.lose_link(reporter, peer).unwrap();
        assert_eq!(counted, failures);
        pauses.push(pause);
        assert_eq!(desk.lose_link(system(0), NODE), None);
        // Nothing begins before the backoff has elapsed, and the end of an older backoff has no effect.
        let before = Epoch { number: epoch.number - 1, ..epoch };
        desk.on(CoordinatorEvent::BackoffElapsed { epoch: before });
        assert_eq!(desk.configured(), None);
        desk.on(CoordinatorEvent::BackoffElapsed { epoch });
        assert_eq!(desk.configured(), Some(1));
    }
    assert_eq!((pauses[0], *pauses.last().unwrap()), (INITIAL_LINK_BACKOFF, MAX_LINK_BACKOFF));
    assert!(pauses.is_sorted());
    assert_eq!(desk.lose_link(NODE, SHARD), None);
    let Some(CoordinatorCommand::End(RunOutcome::Failed { reason, agent, cause })) = desk.out.pop() else {
        panic!("it goes on")
    };
    assert_eq!((agent, cause), (Some(SHARD), FailureCause::Other));
    assert!(reason.contains("swarmx-0 and memoryx-0") && reason.contains("12 times"), "{reason}");
}

#[test]
fn link_failures_reset_on_new_epoch_or_finished_iteration() {
    let mut desk = CoordinatorFixture::running();
    desk.lose_link(system(0), NODE).unwrap();
    desk.on(CoordinatorEvent::Lost { agent: NODE });
    desk.join(NODE);
    assert_eq!(desk.configured(), Some(1), "who replaced the lost end is not waited for");
    desk.link();
    let (epoch, _, failures) = desk.lose_link(system(0), NODE).unwrap();
    assert_eq!(failures, 1);
    desk.on(CoordinatorEvent::BackoffElapsed { epoch });
    desk.configured();
    desk.link();
    let iteration = desk.opened().unwrap();
    desk.finish(iteration);
    assert_eq!(desk.lose_link(system(0), NODE).unwrap().2, 1);
}

/// A shard that has not acknowledged a commit may still record it, so it must not keep its parameters.
#[test]
fn restored_shards_load_again_despite_a_commit_in_flight() {
    let other = AgentId::new(Role::MemoryX, 1);
    let mut desk = CoordinatorFixture::running_with(&[SHARD, other]);
    let iteration = desk.opened().unwrap();
    desk.finish(iteration);
    desk.on(CoordinatorEvent::Lost { agent: SHARD });
    desk.join(SHARD);
    let loads = |command: &CoordinatorCommand| match command {
        CoordinatorCommand::Send(agent, AgentCommand::Load(source)) => Some((*agent, source.step())),
        _ => None,
    };
    assert_eq!(desk.out.iter().filter_map(loads).collect::<Vec<_>>(), [(SHARD, 0), (other, 0)]);
    assert!(desk.out.iter().any(|command| matches!(command, CoordinatorCommand::ReportRestore { from: 0, to: 1, .. })));
}

/// A shard is lost while the directory of a checkpoint is created; the shard that replaces it has nothing to write.
#[test]
fn shard_without_parameters_writes_no_snapshot() {
    let mut desk = CoordinatorFixture::running();
    desk.on(CoordinatorEvent::CheckpointRequested);
    let iteration = Iteration { number: 0, task: Work::Train { step: 1, batch: 0 } };
    desk.finish(iteration);
    desk.report(SHARD, AgentReport::Committed { step: 1 });
    assert!(desk.out.iter().any(|command| matches!(command, CoordinatorCommand::StageCheckpoint { step: 1 })));
    desk.on(CoordinatorEvent::Lost { agent: SHARD });
    desk.join(SHARD);
    desk.on(CoordinatorEvent::Staged(SnapshotRequest { step: 1, path: "1".to_owned() }));
    let commands = desk.out.iter().filter_map(|command| match command {
        CoordinatorCommand::Send(SHARD, command) => Some(command),
        _ => None,
    });
    let commands: Vec<_> = commands.collect();
    assert!(matches!(commands[..], [AgentCommand::Load(_)]), "{commands:?}");
}

#[test]
fn failed_system_is_disconnected_and_failed_shard_ends_the_run() {
    for (agent, cause, ends) in [
        (system(1), FailureCause::Other, false),
        (system(1), FailureCause::BadInput, true),
        (SHARD, FailureCause::Other, true),
        (SERVER, FailureCause::Other, true),
    ] {
        let mut desk = CoordinatorFixture::on_two_systems();
        desk.report(agent, AgentReport::Failed { reason: "it broke".to_owned(), cause });
        let ended =
            desk.out.iter().any(|command| matches!(command, CoordinatorCommand::End(RunOutcome::Failed { .. })));
        assert_eq!(ended, ends, "{agent} {cause:?}");
        if !ends {
            assert!(
                desk.out
                    .iter()
                    .any(|command| matches!(command, CoordinatorCommand::Disconnect { agent: it, .. } if *it == agent))
            );
            assert_eq!(desk.configured(), Some(1), "the others go on");
        }
    }
}
