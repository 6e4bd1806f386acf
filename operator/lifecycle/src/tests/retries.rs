//! Retries: a failed attempt is followed by another one after a growing backoff, and an attempt that can't start
//! releases its systems until then.

use millrace_crds::JobProgress;

use super::*;

const QUOTA: &str =
    "the API server rejected an object of the attempt: pods \"job-cs2-0\" is forbidden: exceeded quota: small";

/// Creates a job with attempt 1 admitted and no agents.
fn admitted() -> JobFixture {
    let mut world = JobFixture::new(2);
    world.grant();
    assert_eq!(world.visit(), JobState::Starting);
    world
}

fn refuse(world: &mut JobFixture, is_temporary: bool) {
    world.seen.creation_error = Some(CreationError { message: QUOTA.to_owned(), is_temporary, ..Default::default() });
}

/// Grants systems and begins the next attempt.
fn begin(world: &mut JobFixture) {
    world.seen.creation_error = None;
    world.grant();
    world.visit();
    world.create();
}

#[test]
fn rejected_start_quotes_the_rejection_and_releases_systems() {
    for some_agents in [false, true] {
        let mut world = admitted();
        if some_agents {
            world.create();
            world.seen.agents.truncate(2);
        }
        refuse(&mut world, false);
        let state = world.visit();
        if some_agents {
            assert_eq!((state, removes(&world)), (JobState::Restarting, Some(10)));
            assert!(world.is(ConditionType::Admitted), "systems are held until the agents are gone");
            world.remove_agents();
            assert_eq!(world.visit(), JobState::Queued);
        } else {
            assert_eq!(state, JobState::Queued);
        }
        assert!(world.status().systems.is_empty());
        assert_eq!(world.reason(ConditionType::Admitted), "BackingOff");
        let message = world.message(ConditionType::Admitted);
        assert!(
            message.contains(QUOTA) && message.contains("attempt 2 starts no earlier than 1970-01-12T13:46:50Z"),
            "{message}"
        );
        assert!(world.events.contains(&"StartRejected".to_owned()));
        assert_eq!(world.status().failure.unwrap().message.as_deref(), Some(QUOTA));
        assert_eq!(world.status().restarts, Some(0), "nothing failed");
        // A grant during the backoff is declined; one after it is used.
        world.grant();
        assert_eq!((world.visit(), world.attempt(), runs(&world)), (JobState::Queued, 2, None));
        world.advance_time(10);
        world.grant();
        assert_eq!((world.visit(), world.attempt()), (JobState::Starting, 3));
        assert_eq!(world.retry().next_attempt_time, None);
    }
}

#[test]
fn rejected_starts_back_off_until_one_succeeds() {
    let mut world = admitted();
    for pause in [10, 20, 40, 80, 160, 300, 300] {
        refuse(&mut world, false);
        assert_eq!(world.visit(), JobState::Queued);
        assert_eq!(seconds_until_next_attempt(&world.retry(), world.seen.now), Some(pause));
        world.advance_time(pause as i64);
        world.seen.creation_error = None;
        world.grant();
        assert_eq!(world.visit(), JobState::Starting);
    }
    world.create();
    world.begin_training();
    assert_eq!(world.visit(), JobState::Training);
    assert_eq!(world.status().retry, None, "it has started");
}

#[test]
fn temporary_start_error_is_reported_and_keeps_systems() {
    let mut world = admitted();
    refuse(&mut world, true);
    assert_eq!(world.visit(), JobState::Starting);
    assert_eq!(world.reason(ConditionType::RolesReady), "CreationFailed");
    assert!(world.message(ConditionType::RolesReady).contains(QUOTA));
    world.advance_time(900);
    assert_eq!(world.visit(), JobState::Queued, "but not for longer than the startup deadline");
    let mut training = JobFixture::training(2);
    refuse(&mut training, false);
    assert_eq!(training.visit(), JobState::Training, "its agents are there");
}

#[test]
fn unschedulable_job_queues_again() {
    let mut world = admitted();
    for (round, pause) in [60, 120, 240].into_iter().enumerate() {
        world.create();
        let message = "0/3 nodes are available: 3 Insufficient memory.".to_owned();
        world.agent(Role::Cs2).state = AgentState::Waiting { reason: "Unschedulable".to_owned(), message };
        assert_eq!(world.visit(), JobState::Starting);
        world.advance_time(900);
        assert_eq!((world.visit(), removes(&world)), (JobState::Restarting, Some(10)), "round {round}");
        world.remove_agents();
        assert_eq!(world.visit(), JobState::Queued);
        let message = world.message(ConditionType::Admitted);
        assert!(message.contains("within 900 s") && message.contains("Insufficient memory"), "{message}");
        assert_eq!(seconds_until_next_attempt(&world.retry(), world.seen.now), Some(pause));
        world.advance_time(pause as i64);
        begin(&mut world);
    }
}

#[test]
fn deadlines_are_bounded_by_appliance() {
    let mut world = admitted();
    world.spec().deadlines.startup_seconds = 2_592_000;
    world.create();
    let message = "persistentvolumeclaim not found".to_owned();
    world.agent(Role::Cs2).state = AgentState::Waiting { reason: "Unschedulable".to_owned(), message };
    world.advance_time(3600);
    assert_eq!(world.visit(), JobState::Restarting);
    let bounds = MaxDeadlines::default();
    let (field, message) = bounds.find_violation(&world.job.spec).unwrap();
    assert_eq!(field, "spec.deadlines.startupSeconds");
    assert!(message.contains("set it to 3600 or less"), "{message}");
    world.spec().deadlines.startup_seconds = 3600;
    assert_eq!(bounds.find_violation(&world.job.spec), None);
}

/// Returns the backoffs before the restarts of a job whose agents fail at once each time, and its final state.
fn crash_loop(world: &mut JobFixture) -> (Vec<u64>, JobState) {
    let mut pauses = Vec::new();
    loop {
        world.ends(Role::Cs2, 137, "Error");
        let state = world.visit();
        if state != JobState::Restarting {
            return (pauses, state);
        }
        world.remove_agents();
        let pause = seconds_until_next_attempt(&world.retry(), world.seen.now);
        pauses.push(pause.unwrap_or(0));
        if let Some(pause) = pause {
            assert_eq!((world.visit(), runs(world)), (JobState::Restarting, None), "not yet");
            assert!(world.is(ConditionType::Admitted), "it keeps its systems");
            assert!(world.message(ConditionType::Succeeded).contains("no earlier than"));
            world.advance_time(pause as i64);
        }
        assert_eq!(world.visit(), JobState::Starting);
        world.create();
    }
}

#[test]
fn restarts_back_off_and_end_when_there_is_no_progress() {
    let mut world = JobFixture::training(2);
    let (pauses, end) = crash_loop(&mut world);
    assert_eq!((pauses, end), (vec![0, 2, 4, 8, 16, 32, 64, 128, 256, 300], JobState::RetriesExhausted));
    assert_eq!(world.status().restarts, Some(10));
}

#[test]
fn progress_refills_the_budget_and_its_lack_does_not() {
    for (seconds, saved, refilled) in [(600, 50, true), (599, 50, false), (1700, 0, false)] {
        let mut world = JobFixture::training(2);
        world.spec().failure_policy.max_restarts = 3;
        for _ in 0..3 {
            world.ends(Role::Cs2, 1, "Error");
            world.visit();
            world.remove_agents();
            world.advance_time(10);
            world.visit();
            world.create();
        }
        world.begin_training();
        assert_eq!(world.visit(), JobState::Training);
        world.advance_time(seconds);
        let now = world.seen.now;
        // The status as another operator finds it that has not received the coordinator's report.
        let progress = JobProgress { attempt: Some(4), last_update_time: Some(Time(now)), ..JobProgress::default() };
        world.job.status.as_mut().unwrap().progress = Some(progress);
        if saved > 0 {
            world.report(|report| report.checkpoint = Some((saved, "digest".to_owned())));
        }
        world.visit();
        world.ends(Role::Cs2, 1, "Error");
        let expected = if refilled { JobState::Restarting } else { JobState::RetriesExhausted };
        assert_eq!(world.visit(), expected, "{seconds} s, checkpoint {saved}");
        assert_eq!(world.status().restarts, Some(if refilled { 4 } else { 3 }), "the total only grows");
    }
}

#[test]
fn drain_has_no_backoff_and_suspension_clears_it() {
    let mut world = JobFixture::training(2);
    for _ in 0..4 {
        let agent = world.agent(Role::Cs2);
        (agent.is_terminating, agent.is_evicted) = (true, true);
        assert_eq!(world.visit(), JobState::Restarting);
        world.remove_agents();
        assert_eq!(world.visit(), JobState::Starting);
        world.create();
        world.begin_training();
        assert_eq!(world.visit(), JobState::Training);
    }
    for _ in 0..2 {
        world.ends(Role::Cs2, 1, "Error");
        assert_eq!(world.visit(), JobState::Restarting);
        world.remove_agents();
        world.visit();
        if world.seen.now == Timestamp::from_second(1_000_000).unwrap() && world.retry().next_attempt_time.is_none() {
            world.create();
        }
    }
    world.spec().suspend = true;
    assert_eq!(world.visit(), JobState::Suspended);
    world.spec().suspend = false;
    world.grant();
    assert_eq!(world.visit(), JobState::Starting, "a resumed job starts without a backoff");
}

#[test]
fn events_name_attempt_and_role_and_a_killed_agent_its_signal() {
    let mut world = JobFixture::training(2);
    world.ends(Role::Cs2, 137, "Error");
    let decision = decide(&world.job, &world.seen);
    let event = decision.events.iter().find(|event| event.reason == "Restarting").unwrap();
    assert_eq!((event.attempt, event.role.as_deref()), (Some(1), Some("cs2")));
    assert!(event.message.starts_with("attempt 1 failed: cs2: "), "{}", event.message);
    assert_eq!(describe_exit(137), "killed by signal 9 (exit code 137)");
    assert_eq!(describe_exit(1), "it exited with code 1");
}

#[test]
fn last_observed_time_is_refreshed_at_intervals() {
    let mut world = JobFixture::training(2);
    let first = world.status();
    assert_eq!(first.last_observed_time, Some(Time(world.seen.now)));
    world.advance_time(24);
    world.visit();
    assert_eq!(world.status(), first, "nothing to write");
    world.advance_time(1);
    world.visit();
    assert_eq!(world.status().last_observed_time, Some(Time(world.seen.now)));
    let mut waiting = JobFixture::new(2);
    waiting.visit();
    let first = waiting.status();
    waiting.advance_time(10_000);
    waiting.visit();
    assert_eq!(waiting.status(), first, "a job that waits is written only when something changes");
}

#[test]
fn csx_column_shows_the_systems_that_ran() {
    let mut world = JobFixture::new(3);
    world.visit();
    assert_eq!(world.status().displayed_csx, Some(3), "it asks for them");
    world.grant();
    world.visit();
    world.create();
    world.begin_training();
    world.visit();
    world.spec().num_csx = 2;
    assert_eq!((world.visit(), world.status().displayed_csx), (JobState::Resizing, Some(3)));
    world.outcome(0, "Succeeded");
    world.visit();
    world.remove_agents();
    assert_eq!((world.visit(), world.status().displayed_csx), (JobState::Succeeded, Some(3)));
}

#[test]
fn terminating_agent_is_not_ready() {
    let mut world = JobFixture::training(2);
    world.ends(Role::Cs2, 1, "Error");
    world.visit();
    world.seen.agents.iter_mut().for_each(|agent| agent.is_terminating = true);
    assert_eq!(world.visit(), JobState::Restarting);
    assert!(world.status().roles.iter().all(|role| role.ready == 0), "{:?}", world.status().roles);
    let hint = "numCsx is 9";
    let mut many = JobFixture::training(2);
    many.spec().num_csx = 9;
    many.visit();
    let conditions = many.status().conditions.iter().filter(|condition| condition.message.contains(hint)).count();
    assert_eq!(conditions, 1, "reported once");
}
