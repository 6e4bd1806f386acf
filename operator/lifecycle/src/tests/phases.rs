//! Jobs with several phases.

use millrace_crds::ResolvedPhase;

use super::*;

/// Returns the record of a job with `count` phases.
pub(super) fn phased_record(count: usize) -> ResolvedJob {
    ResolvedJob { later_phases: vec![ResolvedPhase::default(); count - 1], ..ResolvedJob::default() }
}

/// Creates a job with two phases whose first attempt trains.
fn two_phases() -> JobFixture {
    let mut world = JobFixture::new(2);
    world.seen.resolution = Some(Ok(phased_record(2)));
    world.with_first_attempt()
}

#[test]
fn completed_phase_is_followed_by_the_next_on_the_same_systems() {
    let mut world = two_phases();
    let systems = world.status().systems;
    world.outcome(0, "Succeeded");
    assert_eq!(world.visit(), JobState::Restarting);
    assert_eq!(world.status().completed_phase_count(), 1);
    assert_eq!(world.visit(), JobState::Restarting, "the outcome is counted once, however often it is observed");
    assert_eq!(world.status().completed_phase_count(), 1);
    world.seen.agents.clear();
    assert_eq!(world.visit(), JobState::Starting);
    let status = world.status();
    assert_eq!((status.attempt, status.restarts, &status.systems), (Some(2), Some(0), &systems));
    assert!(world.seen.grant.is_some(), "the job never gave its systems back");

    world.create();
    world.begin_training();
    assert_eq!(world.visit(), JobState::Training);
    world.outcome(0, "Succeeded");
    assert_eq!(world.visit(), JobState::Succeeded);
    assert_eq!(world.status().completed_phase_count(), 1, "the job is complete instead");
}

#[test]
fn job_that_is_suspended_between_phases_resumes_with_the_next() {
    let mut world = two_phases();
    world.spec().suspend = true;
    assert_eq!(world.visit(), JobState::Suspending);
    world.outcome(0, "Succeeded");
    assert_eq!(world.visit(), JobState::Restarting);
    world.seen.agents.clear();
    world.seen.report = None;
    assert_eq!(world.visit(), JobState::Suspended);
    world.spec().suspend = false;
    world.seen.grant = None;
    assert_eq!(world.visit(), JobState::Queued);
    world.grant();
    assert_eq!(world.visit(), JobState::Starting);
    assert_eq!((world.attempt(), world.status().completed_phase_count()), (2, 1));
}

#[test]
fn failed_phase_ends_the_job() {
    let mut world = two_phases();
    world.outcome(2, "BadParams");
    assert_eq!(world.visit(), JobState::BadParams);
    assert_eq!(world.status().completed_phase_count(), 0);
}
