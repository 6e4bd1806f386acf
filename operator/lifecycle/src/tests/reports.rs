//! The reports of the coordinator, and the state that follows from them.

use super::*;
use crate::transitions::REPORT_TIMEOUT_SECONDS;

#[test]
fn attempt_trains_after_report_with_first_step() {
    let mut world = JobFixture::new(2);
    world.grant();
    world.visit();
    world.create();
    world.all(&AgentState::Ready);
    assert_eq!(world.visit(), JobState::Starting, "the checkpoint is still being read");
    world.begin_training();
    world.report(|report| report.resumed = Some((1800, 22)));
    assert_eq!(world.visit(), JobState::Training);
    let message = "attempt 1 is training on 2 system(s) from step 1800; rerunning 22 lost step(s)";
    assert_eq!(world.message(ConditionType::Succeeded), message);
    // The next leader has not connected to the coordinator yet.
    world.report(|report| *report = CoordinatorReport { attempt: 1, ..CoordinatorReport::default() });
    assert_eq!((world.visit(), world.message(ConditionType::Succeeded)), (JobState::Training, message.to_owned()));
}

#[test]
fn first_attempt_names_an_existing_checkpoint() {
    let mut world = JobFixture::new(2);
    world.grant();
    world.visit();
    world.create();
    world.all(&AgentState::Ready);
    world.begin_training();
    world.report(|report| report.resumed = Some((162, 0)));
    assert_eq!(world.visit(), JobState::Training);
    let message = "attempt 1 is training on 2 system(s) from step 162 of an existing checkpoint";
    assert_eq!(world.message(ConditionType::Succeeded), message);
}

#[test]
fn attempt_trains_without_reachable_coordinator() {
    let mut world = JobFixture::new(2);
    world.grant();
    world.visit();
    world.create();
    world.all(&AgentState::Ready);
    assert_eq!(world.visit(), JobState::Starting);
    world.advance_time(REPORT_TIMEOUT_SECONDS);
    assert_eq!(world.visit(), JobState::Training);
}

/// A short job can begin and end between two reconciles.
#[test]
fn event_of_a_missed_state_is_published() {
    let start = || {
        let mut world = JobFixture::new(2);
        world.grant();
        world.visit();
        world.create();
        assert_eq!(world.visit(), JobState::Starting);
        world
    };
    let mut world = start();
    world.begin_training();
    world.outcome(0, "Complete");
    assert_eq!(world.visit(), JobState::Succeeded);
    assert_eq!(world.events, ["Starting", "Training", "Succeeded"]);
    // Without a step there is nothing to publish.
    let mut world = start();
    world.outcome(2, "BadParams");
    assert_eq!(world.visit(), JobState::BadParams);
    assert_eq!(world.events, ["Starting", "BadParams"]);
}

#[test]
fn stalled_storage_is_a_condition_until_it_responds() {
    let mut world = JobFixture::training(2);
    let storage = |world: &JobFixture| {
        let condition = world.status().condition(ConditionType::StorageResponding).unwrap().clone();
        (condition.status, condition.reason)
    };
    let is = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    assert_eq!(storage(&world), is("Unknown", "Training"), "nothing is reported yet");
    world.report(|report| report.storage = Some(Ok(())));
    world.visit();
    assert_eq!(storage(&world), is("True", "StorageResponds"));
    let since = "2026-01-02T03:04:05Z".parse().unwrap();
    let stall = StorageStall { file: "m/metrics.jsonl".to_owned(), since };
    world.report(|report| report.storage = Some(Err(stall.clone())));
    assert_eq!((world.visit(), world.visit()), (JobState::Training, JobState::Training), "training continues");
    let sentence =
        "the storage of model_dir has not responded to a write to m/metrics.jsonl since 2026-01-02T03:04:05Z";
    assert_eq!(storage(&world), is("False", "StorageStalled"));
    assert_eq!(world.message(ConditionType::StorageResponding), sentence);
    assert!(world.message(ConditionType::Succeeded).ends_with(&format!("; {sentence}")));
    // The next leader has not connected to the coordinator yet.
    world.report(|report| report.storage = None);
    world.visit();
    assert_eq!(storage(&world), is("False", "StorageStalled"));
    // A job that is suspended waits for the storage.
    world.report(|report| report.storage = Some(Err(stall)));
    world.spec().suspend = true;
    assert_eq!((world.visit(), storage(&world)), (JobState::Suspending, is("False", "StorageStalled")));
    world.report(|report| report.storage = Some(Ok(())));
    world.visit();
    assert_eq!(storage(&world), is("True", "StorageResponds"));
    world.remove_agents();
    world.outcome(130, "Interrupted");
    assert_eq!((world.visit(), storage(&world)), (JobState::Suspended, is("Unknown", "Suspended")));
    for reason in ["StorageStalled", "StorageResponds"] {
        assert_eq!(world.events.iter().filter(|event| *event == reason).count(), 1, "{reason}");
    }
}
