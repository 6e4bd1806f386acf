//! The coordinator alone, told by hand what its agents do: links that fail, and systems that join.

use std::time::Duration;

use millrace_engine::coordinator::{
    Command, Coordinator, Event, FIRST_PAUSE, Known, LONGEST_PAUSE, MOST_FAILURES, Outcome, Wanted,
};
use millrace_engine::message::{Cause, Order, Report, ShardState, Source};
use millrace_engine::types::{AgentId, Epoch, LeafResult, Role, Task as Work, Turn};

use crate::setup::Task;

const SHARD: AgentId = AgentId::new(Role::MemoryX, 0);
const NODE: AgentId = AgentId::new(Role::SwarmX, 0);
const SERVER: AgentId = AgentId::new(Role::Activation, 0);

const fn system(index: u32) -> AgentId {
    AgentId::new(Role::Cs2, index)
}

struct Desk {
    machine: Coordinator,
    task: Task,
    /// Systems of the epoch.
    systems: Vec<AgentId>,
    /// What it wanted done at the last event.
    out: Vec<Command>,
}

impl Desk {
    /// A coordinator with one shard, node and server, and one of the two systems it wants; the first epoch runs.
    fn running() -> Self {
        let task = Task::small();
        let wanted = Wanted { systems: 2, least_systems: 1, shards: 1, fan_out: 2, activation_servers: 1 };
        let (plan, policy) = (task.plan.clone(), task.policy.clone());
        let machine = Coordinator::new(plan, policy, wanted, Source::Initial, 1, Known::default());
        let mut desk = Self { machine, task, systems: Vec::new(), out: Vec::new() };
        for agent in [SHARD, NODE, SERVER, system(0)] {
            desk.join(agent);
        }
        desk.report(SHARD, Report::Loaded { state: ShardState { loaded: true, ..ShardState::default() } });
        assert_eq!(desk.configured(), Some(1));
        desk.link();
        desk
    }

    fn on(&mut self, event: Event) {
        self.out.clear();
        self.machine.on(event, &mut self.out);
    }

    fn join(&mut self, agent: AgentId) {
        let shard = (agent.role == Role::MemoryX).then(ShardState::default);
        self.on(Event::Joined { agent, address: format!("{agent}:1"), shard });
    }

    fn report(&mut self, agent: AgentId, report: Report) {
        self.on(Event::Report { agent, report });
    }

    /// Systems of the epoch that began at the last event, if one did.
    fn configured(&mut self) -> Option<usize> {
        let placement = self.out.iter().find_map(|command| match command {
            Command::Epoch { placement, .. } => Some(placement.clone()),
            _ => None,
        })?;
        self.systems = placement.systems.iter().map(|system| AgentId::new(Role::Cs2, system.id)).collect();
        Some(self.systems.len())
    }

    /// Every agent of the epoch has its links.
    fn link(&mut self) {
        let epoch = self.machine.epoch();
        for agent in [SHARD, NODE, SERVER].into_iter().chain(self.systems.clone()) {
            self.report(agent, Report::Linked { epoch });
        }
    }

    fn opened(&self) -> Option<Turn> {
        self.out.iter().find_map(|command| match command {
            Command::Send(_, Order::Open { turn, .. }) => Some(*turn),
            _ => None,
        })
    }

    /// Brings the turn that was opened last to its commit; what follows is in `out`.
    fn finish(&mut self, turn: Turn) {
        let (epoch, Work::Train { step }) = (self.machine.epoch(), turn.task) else { panic!("{turn:?}") };
        let result = |leaf| LeafResult { leaf, loss: 1.0, tokens: 1, correct: 0, bad_layer: None };
        let results = (0..self.task.plan.leaves.count).map(result).collect();
        self.report(system(0), Report::Leaves { epoch, turn: turn.serial, results });
        let norms = (0..self.task.plan.chunks.len()).map(|chunk| (chunk, 1.0)).collect();
        self.report(SHARD, Report::Prepared { epoch, step, norms });
    }

    fn lose_link(&mut self, reporter: AgentId, peer: AgentId) -> Option<(Epoch, Duration, u32)> {
        let epoch = self.machine.epoch();
        self.report(reporter, Report::LinkLost { epoch, peer: Some(peer) });
        self.out.iter().find_map(|command| match command {
            Command::Pause { epoch, after, failures, .. } => Some((*epoch, *after, *failures)),
            _ => None,
        })
    }
}

#[test]
fn a_system_that_joins_waits_for_the_turn_in_flight() {
    let mut desk = Desk::running();
    let turn = desk.opened().unwrap();
    desk.join(system(1));
    assert!(desk.out.is_empty(), "the turn in flight is disturbed: {:?}", desk.out);
    desk.finish(turn);
    let commits = |command: &Command| matches!(command, Command::Send(_, Order::Commit { .. }));
    assert!(desk.out.iter().any(commits) && desk.opened().is_none());
    desk.report(SHARD, Report::Committed { step: 1 });
    assert_eq!(desk.configured(), Some(2), "it works from the next turn on");
}

#[test]
fn a_link_that_fails_again_and_again_is_tried_more_and_more_rarely_and_ends_the_run() {
    let mut desk = Desk::running();
    let mut pauses = Vec::new();
    for failures in 1..MOST_FAILURES {
        // Either end may be the one that tells, and others tell of links that were closed in consequence.
        let (reporter, peer) = if failures % 2 == 0 { (NODE, SHARD) } else { (SHARD, NODE) };
        let (epoch, pause, counted) = desk.lose_link(reporter, peer).unwrap();
        assert_eq!(counted, failures);
        pauses.push(pause);
        assert_eq!(desk.lose_link(system(0), NODE), None);
        // Nothing begins before the pause is over, and the end of an older pause is none of this one.
        let before = Epoch { number: epoch.number - 1, ..epoch };
        desk.on(Event::PauseOver { epoch: before });
        assert_eq!(desk.configured(), None);
        desk.on(Event::PauseOver { epoch });
        assert_eq!(desk.configured(), Some(1));
    }
    assert_eq!((pauses[0], *pauses.last().unwrap()), (FIRST_PAUSE, LONGEST_PAUSE));
    assert!(pauses.is_sorted());
    assert_eq!(desk.lose_link(NODE, SHARD), None);
    let Some(Command::End(Outcome::Failed { reason, agent, cause })) = desk.out.pop() else { panic!("it goes on") };
    assert_eq!((agent, cause), (Some(SHARD), Cause::Other));
    assert!(reason.contains("swarmx-0 and memoryx-0") && reason.contains("12 times"), "{reason}");
}

#[test]
fn a_failed_link_is_forgotten_when_an_end_of_it_comes_or_goes_or_a_turn_is_finished() {
    let mut desk = Desk::running();
    desk.lose_link(system(0), NODE).unwrap();
    desk.on(Event::Lost { agent: NODE });
    desk.join(NODE);
    assert_eq!(desk.configured(), Some(1), "who replaced the lost end is not waited for");
    desk.link();
    let (epoch, _, failures) = desk.lose_link(system(0), NODE).unwrap();
    assert_eq!(failures, 1);
    desk.on(Event::PauseOver { epoch });
    desk.configured();
    desk.link();
    let turn = desk.opened().unwrap();
    desk.finish(turn);
    assert_eq!(desk.lose_link(system(0), NODE).unwrap().2, 1);
}

#[test]
fn a_system_that_fails_is_dismissed_and_a_shard_that_fails_ends_the_run() {
    for (agent, cause, ends) in [
        (system(1), Cause::Other, false),
        (system(1), Cause::BadInput, true),
        (SHARD, Cause::Other, true),
        (SERVER, Cause::Other, true),
    ] {
        let mut desk = Desk::running();
        let turn = desk.opened().unwrap();
        desk.join(system(1));
        desk.finish(turn);
        desk.report(SHARD, Report::Committed { step: 1 });
        assert_eq!(desk.configured(), Some(2));
        desk.report(agent, Report::Failed { reason: "it broke".to_owned(), cause });
        let ended = desk.out.iter().any(|command| matches!(command, Command::End(Outcome::Failed { .. })));
        assert_eq!(ended, ends, "{agent} {cause:?}");
        if !ends {
            assert!(
                desk.out.iter().any(|command| matches!(command, Command::Dismiss { agent: it, .. } if *it == agent))
            );
            assert_eq!(desk.configured(), Some(1), "the others go on");
        }
    }
}
