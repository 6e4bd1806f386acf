//! Attempts that are resized while they run.

use super::*;

/// Creates a job whose attempt 1 trains and can be resized, as pods or as processes.
fn resizable(systems: u32, are_agents_replaceable: bool) -> JobFixture {
    let mut world = JobFixture::training(systems);
    (world.seen.is_resizable, world.seen.are_agents_replaceable) = (true, are_agents_replaceable);
    world.seen.queue_place = None;
    world
}

/// Returns the agents that the last decision removes.
fn removed(world: &JobFixture) -> Vec<String> {
    let removed = world.last.iter().filter_map(|command| match command {
        JobCommand::RemoveAgent { instance, .. } => Some(instance.split('/').next()?.to_owned()),
        _ => None,
    });
    removed.collect()
}

fn remove(world: &mut JobFixture, names: &[&str]) {
    world.seen.agents.retain(|agent| !names.contains(&agent.id().as_str()));
}

#[test]
fn growing_attempt_gets_its_systems_without_a_restart() {
    for are_agents_replaceable in [true, false] {
        let mut world = resizable(2, are_agents_replaceable);
        world.spec().num_csx = 4;
        let waits = "waits for 2 more systems; 1 of 4 are free".to_owned();
        world.seen.queue_place = Some(QueueStatus { message: Some(waits), ..QueueStatus::default() });
        assert_eq!((world.visit(), runs(&world)), (JobState::Training, Some((1, 2))));
        let message = world.message(ConditionType::Succeeded);
        assert!(
            message.ends_with("2 system(s); 4 are requested: waits for 2 more systems; 1 of 4 are free"),
            "{message}"
        );
        world.extend_grant();
        assert_eq!((world.visit(), runs(&world)), (JobState::Training, Some((1, 4))));
        assert_eq!((world.status().systems.len(), world.status().resizes), (4, Some(1)));
        assert!(!world.is(ConditionType::RolesReady), "the new agents do not exist yet");
        world.seen.desired_agents = wanted(4);
        world.create_missing();
        world.report(|report| report.systems = Some(2));
        assert_eq!((world.visit(), world.attempt()), (JobState::Training, 1));
        assert!(world.message(ConditionType::Succeeded).ends_with("training on 2 of 4 system(s)"));
        world.begin_training();
        world.report(|report| report.systems = Some(4));
        assert_eq!(world.visit(), JobState::Training);
        assert!(world.is(ConditionType::RolesReady) && world.status().lost_agents.is_empty());
        assert_eq!((world.status().displayed_csx, world.status().replacements), (Some(4), None));
        assert_eq!(world.events.iter().filter(|reason| *reason == "Resized").count(), 1);
    }
}

#[test]
fn shrinking_attempt_keeps_systems_until_their_agents_are_gone() {
    for are_agents_replaceable in [true, false] {
        let mut world = resizable(4, are_agents_replaceable);
        world.report(|report| report.requested_csx = Some(4));
        world.spec().num_csx = 2;
        assert_eq!((world.visit(), runs(&world)), (JobState::Training, Some((1, 2))));
        assert_eq!((removed(&world).len(), world.status().systems.len()), (0, 4), "the coordinator uses them");
        let message = world.message(ConditionType::Succeeded);
        assert!(message.ends_with("training on 2 system(s); csx-2 csx-3 will be released"), "{message}");
        world.report(|report| report.requested_csx = Some(2));
        world.visit();
        let excess = ["activation-2", "activation-3", "cs2-2", "cs2-3"];
        assert_eq!(removed(&world), excess);
        // One of them ends as a failure, and one does not end yet.
        world.seen.agents.iter_mut().find(|agent| agent.id() == "cs2-3").unwrap().state =
            AgentState::Ended(ProcessEnd { exit_code: Some(2), reason: "Error".to_owned(), ..ProcessEnd::default() });
        remove(&mut world, &excess[..2]);
        assert_eq!((world.visit(), world.status().systems.len()), (JobState::Training, 4));
        remove(&mut world, &excess);
        assert_eq!((world.visit(), world.status().resizes), (JobState::Training, Some(1)));
        assert_eq!(world.status().systems, ["csx-0", "csx-1"]);
        assert!(world.is(ConditionType::RolesReady) && world.status().lost_agents.is_empty());
        assert_eq!((world.visit(), world.attempt(), world.status().restarts), (JobState::Training, 1, Some(0)));
    }
}

/// Only the status shows the ledger what became of a grant, so the job takes the systems first.
#[test]
fn systems_granted_too_late_are_taken_and_released() {
    let mut world = resizable(2, true);
    world.spec().num_csx = 4;
    world.extend_grant();
    world.spec().num_csx = 2;
    world.report(|report| report.requested_csx = Some(2));
    assert_eq!((world.visit(), runs(&world)), (JobState::Training, Some((1, 2))));
    assert_eq!((world.status().systems.len(), world.status().resizes), (2, Some(2)));
    // A grant of another attempt, or one that the status has seen already, is not used.
    for (attempt, resizes) in [(1, 2), (1, 1), (2, 3), (1, 4)] {
        let systems = ["csx-0", "csx-1", "csx-9"].map(str::to_owned).to_vec();
        world.seen.grant = Some(LedgerEntry { attempt, systems, resizes });
        world.spec().num_csx = 3;
        world.visit();
        assert_eq!(world.status().systems.len(), 2, "attempt {attempt}, resizes {resizes}");
    }
}

#[test]
fn impossible_sizes_are_reported_and_change_nothing() {
    let mut world = resizable(2, true);
    world.spec().num_csx = 9;
    assert_eq!(world.visit(), JobState::Training);
    assert!(world.message(ConditionType::Accepted).contains("numCsx is 9, but a batch has 8 leaves"));
    world.spec().num_csx = 1;
    let error = ResolutionError { message: "it would take 9 rounds".to_owned(), is_temporary: false };
    world.seen.resized_attempt = Some(Err(error));
    let decision = decide(&world.job, &world.seen);
    assert_eq!(decision.status.num_csx, Some(2));
    let accepted = decision.status.condition(ConditionType::Accepted).unwrap();
    assert!(accepted.message.contains("numCsx is 1, but it would take 9 rounds"), "{}", accepted.message);
}

#[test]
fn lost_agents_of_a_resized_attempt_are_replaced() {
    let mut world = resizable(4, true);
    world.ends(Role::Cs2, 137, "Error");
    world.visit();
    assert_eq!(removed(&world), ["cs2-0"]);
    world.spec().num_csx = 1;
    world.report(|report| report.requested_csx = Some(4));
    world.visit();
    assert_eq!(removed(&world), ["cs2-0"], "the coordinator uses another system until it is back");
    assert!(world.message(ConditionType::Succeeded).contains("cs2-0 is being replaced"));
}
