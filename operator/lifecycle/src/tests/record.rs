//! Jobs whose record or agents are of another release.

use super::*;

/// Message of a program that can't use the record of a job's first admission.
const UNUSABLE: &str = "status.resolved has version 9: run the release that admitted the job";

impl JobFixture {
    /// Replaces the program by one that can't use the job's record, and therefore does not know the required agents.
    fn lose_the_record(&mut self) {
        self.seen.resolution = Some(Err(ResolutionError { message: UNUSABLE.to_owned(), is_temporary: false }));
        self.seen.largest_num_csx = None;
    }

    /// Reconciles like [`JobFixture::visit`], by a program that can't use the record.
    fn visit_without_record(&mut self) -> JobState {
        self.seen.desired_agents = Vec::new();
        let decision = decide(&self.job, &self.seen);
        self.last = decision.commands;
        self.job.status = Some(decision.status);
        self.status().state().expect("a state that is known")
    }
}

#[test]
fn unreadable_record_is_reported_in_every_state() {
    type Case = (&'static str, fn() -> JobFixture, JobState);
    let starting = || {
        let mut world = JobFixture::new(2);
        world.grant();
        world.visit();
        world
    };
    let cases: [Case; 6] = [
        ("its agents train", || JobFixture::training(2), JobState::Training),
        ("no agent of the attempt was created yet", starting, JobState::Queued),
        (
            "its agents are starting",
            || {
                let mut world = JobFixture::new(2);
                world.grant();
                world.visit();
                world.create();
                world
            },
            JobState::Starting,
        ),
        (
            "its agents ended while no operator was running",
            || {
                let mut world = JobFixture::training(2);
                world.remove_agents();
                world
            },
            JobState::Queued,
        ),
        (
            "it has just been granted systems again",
            || {
                let mut world = JobFixture::training(2);
                world.ends(Role::Cs2, 1, "Error");
                world.visit();
                world.remove_agents();
                world.spec().num_csx = 1;
                assert_eq!(world.visit(), JobState::Queued);
                world.grant();
                world
            },
            JobState::Queued,
        ),
        (
            "it waits to start again",
            || {
                let mut world = JobFixture::training(2);
                world.ends(Role::Cs2, 1, "Error");
                assert_eq!(world.visit(), JobState::Restarting);
                world.remove_agents();
                world
            },
            JobState::Queued,
        ),
    ];
    for (case, world, expected) in cases {
        let mut world = world();
        world.lose_the_record();
        for visit in 0..3 {
            assert_eq!(world.visit_without_record(), expected, "{case}, visit {visit}");
            assert!(
                !world.last.iter().any(|command| matches!(command, JobCommand::RunAgents { .. })),
                "{case}: nothing is started"
            );
            let followed = world.last.contains(&JobCommand::FollowCoordinator { attempt: world.attempt() });
            assert_eq!(followed, expected != JobState::Queued, "{case}: its coordinator's journal is followed");
            let accepted = world.status().condition(ConditionType::Accepted).cloned().unwrap();
            let found = (accepted.status.as_str(), accepted.reason.as_str(), accepted.message.as_str());
            assert_eq!(found, ("False", "ResolvedUnreadable", UNUSABLE), "{case}");
            if expected == JobState::Queued {
                assert_eq!(world.reason(ConditionType::Admitted), "ResolvedUnreadable", "{case}");
                assert!(world.status().systems.is_empty(), "{case}: it holds nothing");
            }
        }
        let restarts = world.status().restarts;
        // The release that admitted the job is installed again.
        world.seen.resolution = Some(Ok(world.status().resolved.unwrap()));
        world.seen.grant = None;
        world.visit();
        assert!(world.is(ConditionType::Accepted), "{case}");
        assert_eq!(world.status().restarts, restarts, "{case}: nothing failed");
    }
}

#[test]
fn attempt_with_unreadable_record_still_ends() {
    let mut world = JobFixture::training(2);
    world.lose_the_record();
    world.outcome(0, "Succeeded");
    assert_eq!(world.visit_without_record(), JobState::Succeeded);

    let mut world = JobFixture::training(2);
    world.lose_the_record();
    world.spec().suspend = true;
    assert_eq!(world.visit_without_record(), JobState::Suspending);
    world.remove_agents();
    assert_eq!(world.visit_without_record(), JobState::Suspended);

    let mut world = JobFixture::training(2);
    world.lose_the_record();
    world.seen.agents.retain(|agent| agent.role != Role::SwarmX);
    assert_eq!(world.visit_without_record(), JobState::Restarting, "the status says which agents must exist");
    assert!(world.status().failure.unwrap().message.unwrap().contains("swarmx"));
}

/// Message of a program that starts no agents of the job's release.
const REFUSED: &str = "agents of release 0.1.0 can't prove who they are: create the job again";

#[test]
fn unsupported_agents_finish_their_attempt() {
    let mut world = JobFixture::training(2);
    world.seen.agents_refused = Some(REFUSED.to_owned());
    world.spec().num_csx = 1;
    assert_eq!(world.visit(), JobState::Training, "the attempt under way goes on as it is");
    assert_eq!(runs(&world), Some((1, 2)));
    let condition = |world: &JobFixture, condition_type| {
        world.status().condition(condition_type).map(|condition| (condition.reason.clone(), condition.message.clone()))
    };
    let refused = Some(("AgentsUnsupported".to_owned(), REFUSED.to_owned()));
    assert_eq!(condition(&world, ConditionType::Accepted), refused, "another number of systems takes another attempt");
    world.spec().num_csx = 2;
    assert_eq!(world.visit(), JobState::Training);
    assert!(world.is(ConditionType::Accepted));
    world.ends(Role::Cs2, 1, "Error");
    assert_eq!(world.visit(), JobState::Restarting);
    world.remove_agents();
    for _ in 0..2 {
        assert_eq!(world.visit(), JobState::Queued);
        assert_eq!((runs(&world), world.attempt()), (None, 1), "no second attempt");
        assert_eq!(condition(&world, ConditionType::Admitted), refused);
        assert!(world.status().systems.is_empty(), "it holds nothing");
    }
    world.grant();
    assert_eq!(world.visit(), JobState::Queued);
    assert_eq!((runs(&world), world.attempt()), (None, 2), "the grant is declined, and its systems are free");
    world.spec().suspend = true;
    assert_eq!(world.visit(), JobState::Suspended);

    let mut new = JobFixture::new(2);
    new.seen.agents_refused = Some(REFUSED.to_owned());
    new.grant();
    assert_eq!(new.visit(), JobState::Starting, "a job without a record gets agents of this release");
}

#[test]
fn attempt_of_unsupported_agents_can_succeed() {
    let mut world = JobFixture::training(2);
    world.seen.agents_refused = Some(REFUSED.to_owned());
    world.outcome(0, "Succeeded");
    assert_eq!(world.visit(), JobState::Succeeded);
    assert!(world.is(ConditionType::Accepted));
}

#[test]
fn slow_planning_is_reported() {
    let mut world = JobFixture::new(2);
    let planned = world.seen.resolution.take();
    world.grant();
    assert_eq!(world.visit(), JobState::Queued);
    assert_eq!(world.status().queue.unwrap().reason.as_deref(), Some("Planning"));
    assert_eq!(world.attempt(), 0, "nothing is begun without a plan");
    let status = world.status();
    let accepted = status.condition(ConditionType::Accepted).unwrap();
    assert_eq!((accepted.status.as_str(), accepted.reason.as_str()), ("Unknown", "Planning"));
    world.seen.resolution = planned;
    assert_eq!(world.visit(), JobState::Starting);
    assert_eq!((world.attempt(), world.status().queue), (1, None));
}

#[test]
fn job_waits_while_its_uploads_are_unavailable() {
    let unavailable = || {
        let message = "the REST server does not answer".to_owned();
        Some(Err(ResolutionError { message, is_temporary: true }))
    };
    let mut world = JobFixture::new(2);
    let planned = std::mem::replace(&mut world.seen.resolution, unavailable());
    world.grant();
    assert_eq!(world.visit_without_record(), JobState::Queued);
    for condition_type in [ConditionType::Accepted, ConditionType::Admitted] {
        let status = world.status();
        let condition = status.condition(condition_type).unwrap();
        assert_eq!((&*condition.status, &*condition.reason), ("False", "UploadsUnavailable"), "{condition_type:?}");
        assert_eq!(condition.message, "the REST server does not answer");
    }
    assert!(!world.is(ConditionType::Finished) && world.status().systems.is_empty(), "the grant is declined");
    world.seen.resolution = planned;
    world.grant();
    world.visit();
    assert!(world.is(ConditionType::Accepted));

    let mut training = JobFixture::training(2);
    training.seen.resolution = unavailable();
    assert_eq!(training.visit_without_record(), JobState::Training, "its agents need no plan");
    assert!(!training.is(ConditionType::Accepted));
}
