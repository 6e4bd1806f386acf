//! Lost agents: one agent is replaced and its attempt continues, or it is given up and the attempt restarts.

use super::*;
use crate::transitions::NODE_LOST_SECONDS;

/// Creates a job whose attempt 1 trains on two systems, and whose agents can be replaced.
fn replaceable() -> JobFixture {
    replaceable_on(2)
}

fn replaceable_on(systems: u32) -> JobFixture {
    let mut world = JobFixture::training(systems);
    world.seen.are_agents_replaceable = true;
    let created = world.seen.now;
    for agent in &mut world.seen.agents {
        (agent.created, agent.started) = (Some(created), Some(created));
    }
    world.advance_time(60);
    world
}

/// Returns the instances that the last decision removes, with their grace periods.
fn removed(world: &JobFixture) -> Vec<(String, u32)> {
    let of_command = |command: &JobCommand| match command {
        JobCommand::RemoveAgent { instance, grace } => Some((instance.clone(), *grace)),
        _ => None,
    };
    world.last.iter().filter_map(of_command).collect()
}

/// Replaces the agent of this role by another instance, in this state.
fn replace(world: &mut JobFixture, role: Role, state: AgentState) {
    let now = world.seen.now;
    let agent = world.agent(role);
    agent.instance.push_str("/next");
    (agent.created, agent.started, agent.state) = (Some(now), Some(now), state);
    (agent.is_terminating, agent.removal_deadline) = (false, None);
}

#[test]
fn ended_agent_is_replaced_and_its_attempt_continues() {
    for role in Role::ALL {
        let mut world = replaceable();
        world.ends(role, 137, "Error");
        let is_required = matches!(role, Role::Coordinator | Role::MemoryX | Role::SwarmX);
        let state = if is_required { JobState::Starting } else { JobState::Training };
        assert_eq!(world.visit(), state, "{role}");
        assert_eq!(removed(&world), [(format!("{role}-0/1"), 1)], "{role}");
        assert!(runs(&world).is_some() && !world.is(ConditionType::RolesReady));
        let message = world.message(ConditionType::Succeeded);
        assert!(message.contains(&format!("{role}-0 is being replaced: Error: why")), "{message}");
        replace(&mut world, role, AgentState::Starting);
        assert_eq!((world.visit(), removed(&world)), (state, Vec::new()), "{role}: counted once");
        assert!(!world.is(ConditionType::RolesReady), "{role}: the replacement has not joined");
        world.agent(role).state = AgentState::Ready;
        assert_eq!(world.visit(), JobState::Training, "{role}");
        assert!(world.is(ConditionType::RolesReady));
        let status = world.status();
        assert_eq!((status.attempt, status.restarts, status.replacements), (Some(1), Some(0), Some(1)));
        assert_eq!(world.message(ConditionType::Succeeded), "attempt 1 is training on 2 system(s)");
        assert_eq!(world.events.iter().filter(|event| *event == "AgentLost").count(), 1, "{role}");
    }
}

/// The other replica of its shard continues.
#[test]
fn job_trains_while_a_replica_is_replaced() {
    let mut world = replaceable();
    world.seen.memoryx_shards = 1;
    world.ends(Role::MemoryX, 137, "Error");
    assert_eq!((world.visit(), removed(&world)), (JobState::Training, vec![("memoryx-0/1".to_owned(), 1)]));
    world.seen.agents.retain(|agent| agent.role != Role::MemoryX);
    assert_eq!(world.visit(), JobState::Starting, "no replica is left");
}

#[test]
fn systems_in_use_are_shown_while_one_is_replaced() {
    let mut world = replaceable();
    world.ends(Role::Cs2, 137, "Error");
    world.report(|report| report.systems = Some(1));
    world.visit();
    let message = world.message(ConditionType::Succeeded);
    assert!(message.starts_with("attempt 1 is training on 1 of 2 system(s); cs2-0 is being replaced"), "{message}");
}

#[test]
fn job_waits_below_its_minimum_of_systems() {
    let mut world = replaceable();
    world.spec().min_csx = 2;
    world.ends(Role::Cs2, 137, "Error");
    assert_eq!(world.visit(), JobState::Starting);
}

#[test]
fn end_with_the_run_is_not_a_loss() {
    for (exit_code, settles) in [(0, 10), (3, 10), (1, 2)] {
        let mut world = replaceable();
        world.ends(Role::Cs2, exit_code, "Error");
        assert_eq!(world.visit(), JobState::Training, "{exit_code}");
        assert_eq!(world.status().replacements, None, "{exit_code}");
        let mut ended = replaceable();
        ended.ends(Role::Cs2, exit_code, "Error");
        ended.outcome(0, "Succeeded");
        assert_eq!(ended.visit(), JobState::Succeeded);
        world.advance_time(settles);
        world.visit();
        assert_eq!(world.status().replacements, Some(1), "{exit_code}");
    }
}

#[test]
fn outcome_of_the_coordinator_restarts_the_attempt() {
    let mut world = replaceable();
    world.ends(Role::Coordinator, 1, "Failed");
    world.outcome(1, "Failed");
    assert_eq!(world.visit(), JobState::Restarting);
    let mut world = replaceable();
    world.ends(Role::Cs2, 2, "Error");
    assert_eq!(world.visit(), JobState::BadParams, "a replacement would fail in the same way");
}

#[test]
fn repeated_losses_back_off_and_a_required_agent_is_given_up() {
    let mut world = replaceable();
    let mut waits = Vec::new();
    for _ in 0..6 {
        world.ends(Role::MemoryX, 137, "Error");
        assert_eq!(world.visit(), JobState::Starting);
        let mut waited = 0;
        while removed(&world).is_empty() {
            world.advance_time(1);
            world.visit();
            waited += 1;
        }
        waits.push(waited);
        replace(&mut world, Role::MemoryX, AgentState::Starting);
        world.visit();
    }
    assert_eq!(waits, [0, 1, 1, 2, 4, 8]);
    world.ends(Role::MemoryX, 137, "Error");
    assert_eq!(world.visit(), JobState::Restarting);
    assert_eq!((world.status().restarts, world.status().replacements), (Some(1), Some(6)));
    world.remove_agents();
    assert_eq!(world.visit(), JobState::Starting);
    assert!(world.status().lost_agents.is_empty(), "a new attempt counts again");
}

#[test]
fn moved_agents_are_replaced_and_may_save_first() {
    for (role, saves) in
        [(Role::Cs2, false), (Role::Activation, false), (Role::MemoryX, true), (Role::Coordinator, true)]
    {
        let mut world = replaceable();
        let deadline = world.seen.now + SignedDuration::from_secs(300);
        let agent = world.agent(role);
        (agent.is_terminating, agent.is_evicted, agent.removal_deadline) = (true, true, Some(deadline));
        world.visit();
        assert_eq!(removed(&world).is_empty(), saves, "{role}");
        assert_eq!(world.status().lost_agents[0].reason, "Evicted");
        world.seen.agents.retain(|agent| (agent.role, agent.index) != (role, 0));
        world.visit();
        assert!(runs(&world).is_some(), "it is created again");
        assert_eq!((world.status().restarts, world.status().replacements), (Some(0), Some(1)));
    }
}

#[test]
fn agent_of_a_lost_node_is_removed_without_the_node() {
    let mut world = replaceable();
    let since = world.seen.now;
    world.report(|report| report.unresponsive = [("memoryx-0".to_owned(), since)].into());
    assert_eq!(world.visit(), JobState::Starting);
    assert_eq!(removed(&world), [("memoryx-0/1".to_owned(), 1)]);
    assert_eq!(world.status().lost_agents[0].reason, "Unresponsive");
    assert!(!world.is(ConditionType::RolesReady), "although its probe may still answer");
    let agent = world.agent(Role::MemoryX);
    (agent.is_terminating, agent.removal_deadline) = (true, Some(since));
    world.advance_time(NODE_LOST_SECONDS);
    assert_eq!(world.visit(), JobState::Starting);
    assert_eq!(removed(&world), [("memoryx-0/1".to_owned(), 0)]);
    let status = world.status();
    assert_eq!((status.lost_agents[0].reason.as_str(), status.replacements), ("NodeLost", Some(1)));
    assert!(world.events.contains(&"NodeLost".to_owned()));
    let message = world.message(ConditionType::Succeeded);
    assert!(
        message.contains("memoryx-0 is being replaced: NodeLost: node has not ended the pod for 10 s"),
        "{message}"
    );
    // The coordinator reports the loss until the replacement has joined.
    replace(&mut world, Role::MemoryX, AgentState::Starting);
    world.advance_time(60);
    assert_eq!((world.visit(), removed(&world)), (JobState::Starting, Vec::new()));
}

#[test]
fn slow_agent_is_named_and_replaced_after_its_time() {
    let mut world = replaceable();
    let since = world.seen.now;
    let slow = SlowAgent { since, speed_percent: 31 };
    let less_slow = SlowAgent { speed_percent: 40, ..slow };
    let slow = [("cs2-0", slow), ("memoryx-0", less_slow), ("activation-0", less_slow)]
        .map(|(agent, slow)| (agent.to_owned(), slow));
    world.report(|report| report.slow_agents = slow.into());
    world.advance_time(600);
    assert_eq!((world.visit(), removed(&world)), (JobState::Training, Vec::new()), "without a bound it stays");
    let message = world.message(ConditionType::Succeeded);
    assert!(
        message.contains("; cs2-0 is slow: it works at 31 % of the speed of the other agents of its role"),
        "{message}"
    );

    world.spec().failure_policy.slow_after_seconds = Some(601);
    assert_eq!((world.visit(), removed(&world)), (JobState::Training, Vec::new()));
    world.advance_time(1);
    assert_eq!(world.visit(), JobState::Training);
    let mut replaced = removed(&world);
    replaced.sort();
    // No other agent has the parameters of the shard, so it stays.
    assert_eq!(replaced, [("activation-0/1".to_owned(), 1), ("cs2-0/1".to_owned(), 1)]);
    let status = world.status();
    let lost = status.lost_agents.iter().find(|lost| lost.name == "cs2-0").unwrap();
    let message = "it worked at 31 % of the speed of the other agents of its role for 601 s";
    assert_eq!((lost.reason.as_str(), lost.message.as_str()), ("Slow", message));
    // The coordinator reports them until the replacements have been measured.
    replace(&mut world, Role::Cs2, AgentState::Ready);
    replace(&mut world, Role::Activation, AgentState::Ready);
    world.advance_time(700);
    assert_eq!((world.visit(), removed(&world)), (JobState::Training, Vec::new()));
}

#[test]
fn agents_that_vanish_together_are_created_again() {
    let mut world = replaceable();
    world.remove_agents();
    assert_eq!(world.visit(), JobState::Starting);
    assert_eq!((runs(&world), world.status().restarts), (Some((1, 2)), Some(0)));
    assert_eq!(world.status().lost_agents.len(), 8, "all roles");
    world.create();
    world.begin_training();
    assert_eq!(world.visit(), JobState::Training);
}

#[test]
fn losses_at_once_are_bounded_and_counted_once() {
    for (systems, state, replacements) in [(100, JobState::Starting, Some(200)), (150, JobState::Restarting, None)] {
        let mut world = replaceable_on(systems);
        let is_worker = |agent: &&mut ObservedAgent| matches!(agent.role, Role::Cs2 | Role::Activation);
        let end = ProcessEnd { exit_code: Some(137), ..ProcessEnd::default() };
        world.seen.agents.iter_mut().filter(is_worker).for_each(|agent| agent.state = AgentState::Ended(end.clone()));
        assert_eq!((world.visit(), world.visit()), (state, state));
        assert_eq!(world.status().replacements, replacements);
        assert!(world.status().lost_agents.len() <= 256);
    }
}

#[test]
fn suspension_of_a_degraded_job_still_saves() {
    let mut world = replaceable();
    world.ends(Role::Cs2, 137, "Error");
    world.visit();
    world.spec().suspend = true;
    assert_eq!((world.visit(), stops(&world)), (JobState::Suspending, true));
}
