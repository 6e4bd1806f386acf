//! Tests every transition between states, by table, and the invariants in random simulations.

mod losses;
mod phases;
mod random_histories;
mod record;
mod reports;
mod resizing;
mod retries;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use millrace_crds::{
    ConditionType, JobState, MaxDeadlines, QueueReason, QueueStatus, ResolvedJob, RetryStatus, Role, StoredParams,
    TrainJob, TrainJobSpec, TrainJobStatus,
};

use super::*;
use crate::agent::is_optional_for_saving;

/// A job with its observation and a clock.
struct JobFixture {
    job: TrainJob,
    seen: JobObservation,
    last: Vec<JobCommand>,
    events: Vec<String>,
    /// How often agents were created; part of their instances.
    created: u32,
}

fn wanted(systems: u32) -> Vec<(Role, u32)> {
    vec![
        (Role::Coordinator, 1),
        (Role::MemoryX, 2),
        (Role::SwarmX, 1),
        (Role::Activation, systems),
        (Role::Cs2, systems),
    ]
}

impl JobFixture {
    fn new(systems: u32) -> Self {
        let mut job = TrainJob::new("job", TrainJobSpec::new(systems, StoredParams::default()));
        job.metadata.generation = Some(1);
        let seen = JobObservation {
            now: Timestamp::from_second(1_000_000).unwrap(),
            agents: Vec::new(),
            are_agents_replaceable: false,
            grant: None,
            queue_place: Some(QueueStatus {
                position: Some(1),
                reason: Some(QueueReason::Waiting.as_str().to_owned()),
                message: Some("waits for 2 systems; 0 of 4 are free".to_owned()),
            }),
            report: None,
            resolution: Some(Ok(ResolvedJob { job: Some("{}".to_owned()), ..ResolvedJob::default() })),
            agents_refused: None,
            creation_error: None,
            is_resizable: false,
            resized_attempt: None,
            max_deadlines: MaxDeadlines::default(),
            desired_agents: wanted(systems),
            memoryx_shards: 2,
            largest_num_csx: Some(8),
        };
        Self { job, seen, last: Vec::new(), events: Vec::new(), created: 1 }
    }

    /// Creates a job whose attempt 1 trains.
    fn training(systems: u32) -> Self {
        Self::new(systems).with_first_attempt()
    }

    /// Makes attempt 1 train.
    fn with_first_attempt(mut self) -> Self {
        self.grant();
        self.visit();
        self.create();
        self.begin_training();
        assert_eq!(self.visit(), JobState::Training);
        self
    }

    fn spec(&mut self) -> &mut TrainJobSpec {
        &mut self.job.spec
    }

    fn status(&self) -> TrainJobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    fn attempt(&self) -> u32 {
        self.status().attempt.unwrap_or(0)
    }

    /// Reconciles the job and records the decision.
    fn visit(&mut self) -> JobState {
        self.seen.desired_agents = wanted(self.status().num_csx.unwrap_or(self.job.spec.num_csx));
        let target = target_systems(&self.job, self.seen.grant.as_ref());
        self.seen.resized_attempt = target.map(|num_csx| Ok(ResizedAttempt { num_csx, agents: wanted(num_csx) }));
        let decision = decide(&self.job, &self.seen);
        self.last = decision.commands;
        self.events.extend(decision.events.iter().map(|event| event.reason.clone()));
        self.job.status = Some(decision.status);
        self.status().state().expect("a state that is known")
    }

    fn grant(&mut self) {
        let systems = (0..self.job.spec.num_csx).map(|index| format!("csx-{index}")).collect();
        self.seen.grant = Some(LedgerEntry { attempt: self.attempt() + 1, systems, resizes: 0 });
    }

    /// Grants the running attempt as many systems as the job requests.
    fn extend_grant(&mut self) {
        let (status, requested) = (self.status(), self.job.spec.num_csx as usize);
        let names = (0..).map(|index| format!("csx-{index}")).filter(|name| !status.systems.contains(name));
        let systems = status.systems.iter().cloned().chain(names).take(requested).collect();
        let resizes = status.resizes.unwrap_or(0) + 1;
        self.seen.grant = Some(LedgerEntry { attempt: self.attempt(), systems, resizes });
    }

    /// Applies `RunAgents` to an attempt without agents.
    fn create(&mut self) {
        self.seen.agents.clear();
        self.create_missing();
        let attempt = self.attempt();
        self.seen.report = Some(CoordinatorReport { attempt, ..CoordinatorReport::default() });
    }

    /// Applies `RunAgents`.
    fn create_missing(&mut self) {
        let attempt = self.attempt();
        let number = self.created;
        let all = self.seen.desired_agents.clone();
        let agents = all.into_iter().flat_map(|(role, count)| {
            (0..count).map(move |index| ObservedAgent {
                role,
                index,
                attempt,
                name: format!("job-{role}-{index}"),
                instance: format!("{role}-{index}/{number}"),
                created: None,
                started: None,
                node: Some("node".to_owned()),
                is_terminating: false,
                removal_deadline: None,
                is_evicted: false,
                state: AgentState::Starting,
            })
        });
        let exists = |agent: &ObservedAgent| self.seen.agents.iter().any(|other| other.id() == agent.id());
        let missing: Vec<_> = agents.filter(|agent| !exists(agent)).collect();
        self.seen.agents.extend(missing);
        self.created += 1;
    }

    fn all(&mut self, state: &AgentState) {
        self.seen.agents.iter_mut().for_each(|agent| agent.state = state.clone());
    }

    /// Makes every agent ready, and reports that the attempt trains.
    fn begin_training(&mut self) {
        self.all(&AgentState::Ready);
        let now = self.seen.now;
        self.report(|report| report.advanced = Some(now));
    }

    fn agent(&mut self, role: Role) -> &mut ObservedAgent {
        self.seen.agents.iter_mut().find(|agent| agent.role == role).expect("such an agent")
    }

    fn ends(&mut self, role: Role, exit_code: i32, reason: &str) {
        let at = Some(self.seen.now);
        let end = ProcessEnd {
            exit_code: Some(exit_code),
            reason: reason.to_owned(),
            message: "why".to_owned(),
            at,
            ..ProcessEnd::default()
        };
        self.agent(role).state = AgentState::Ended(end);
    }

    fn report(&mut self, change: impl FnOnce(&mut CoordinatorReport)) {
        let attempt = self.attempt();
        let report =
            self.seen.report.get_or_insert_with(|| CoordinatorReport { attempt, ..CoordinatorReport::default() });
        change(report);
    }

    fn outcome(&mut self, exit_code: u8, reason: &str) {
        let outcome =
            ReportedOutcome { exit_code, reason: reason.to_owned(), message: "text".to_owned(), failed_agent: None };
        self.report(|report| report.outcome = Some(outcome));
    }

    fn advance_time(&mut self, seconds: i64) {
        self.seen.now += SignedDuration::from_secs(seconds);
    }

    fn remove_agents(&mut self) {
        self.seen.agents.clear();
    }

    fn message(&self, condition_type: ConditionType) -> String {
        self.status().condition(condition_type).expect("set from the first visit on").message.clone()
    }

    fn retry(&self) -> RetryStatus {
        self.status().retry.expect("an attempt has failed")
    }

    fn is(&self, condition_type: ConditionType) -> bool {
        self.status().is(condition_type)
    }

    fn reason(&self, condition_type: ConditionType) -> String {
        self.status().condition(condition_type).expect("set from the first visit on").reason.clone()
    }
}

fn stops(world: &JobFixture) -> bool {
    world.last.iter().any(|command| matches!(command, JobCommand::StopAttempt { .. }))
}

fn removes(world: &JobFixture) -> Option<u32> {
    world.last.iter().find_map(|command| match command {
        JobCommand::RemoveAgents { grace } => Some(*grace),
        _ => None,
    })
}

fn runs(world: &JobFixture) -> Option<(u32, u32)> {
    world.last.iter().find_map(|command| match command {
        JobCommand::RunAgents { attempt, num_csx } => Some((*attempt, *num_csx)),
        _ => None,
    })
}

#[test]
fn first_reconcile_sets_every_condition() {
    let mut world = JobFixture::new(2);
    assert_eq!(world.visit(), JobState::Queued);
    let conditions = world.status().conditions;
    let types: Vec<_> = conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(types, ConditionType::ALL.map(ConditionType::as_str));
    assert!(conditions.iter().all(|condition| condition.observed_generation == Some(1)));
    assert_eq!(world.reason(ConditionType::Admitted), "Waiting");
    assert_eq!(world.status().queue.unwrap().position, Some(1));
    assert!(world.last.is_empty());
}

#[test]
fn job_runs_to_completion_and_releases_everything() {
    let mut world = JobFixture::new(2);
    world.visit();
    world.grant();
    assert_eq!((world.visit(), runs(&world)), (JobState::Starting, Some((1, 2))));
    assert!(world.is(ConditionType::Admitted) && world.status().resolved.is_some());
    assert_eq!(world.status().systems, ["csx-0", "csx-1"]);
    world.create();
    assert_eq!(world.visit(), JobState::Starting);
    assert!(!world.is(ConditionType::RolesReady));
    world.begin_training();
    assert_eq!(world.visit(), JobState::Training);
    assert!(world.is(ConditionType::RolesReady) && world.is(ConditionType::Progressing));
    world.report(|report| report.failed_checkpoint = Some("no space is left".to_owned()));
    assert_eq!((world.visit(), world.visit()), (JobState::Training, JobState::Training));
    assert!(!world.is(ConditionType::Checkpointed));
    world.report(|report| (report.evaluating, report.failed_checkpoint) = (true, None));
    assert_eq!(world.visit(), JobState::Evaluating);
    world.report(|report| report.checkpoint = Some((7, "digest".to_owned())));
    world.outcome(0, "Succeeded");
    assert_eq!(world.visit(), JobState::Succeeded);
    assert!(world.is(ConditionType::Finished) && world.is(ConditionType::Checkpointed));
    assert!(world.is(ConditionType::Admitted), "systems are held until the agents are gone");
    assert!(removes(&world).is_some());
    world.remove_agents();
    assert_eq!(world.visit(), JobState::Succeeded);
    assert!(!world.is(ConditionType::Admitted) && world.status().systems.is_empty());
    assert_eq!(world.status().checkpoint.unwrap().digest.as_deref(), Some("digest"));
    let expected = ["Queued", "Starting", "Training", "CheckpointWriteFailed", "Evaluating", "Succeeded"];
    assert_eq!(world.events, expected, "each once");
}

#[test]
fn suspension_waits_for_save_at_most_its_grace() {
    for acknowledged in [true, false] {
        let mut world = JobFixture::training(2);
        world.spec().suspend = true;
        assert_eq!((world.visit(), stops(&world)), (JobState::Suspending, true));
        world.advance_time(10);
        assert_eq!((world.visit(), removes(&world)), (JobState::Suspending, None), "not saved yet");
        if acknowledged {
            world.report(|report| {
                report.saved = true;
                report.checkpoint = Some((9, "saved".to_owned()));
            });
        } else {
            world.advance_time(300);
        }
        assert_eq!(world.visit(), JobState::Suspending);
        assert!(removes(&world).is_some());
        world.remove_agents();
        assert_eq!(world.visit(), JobState::Suspended);
        assert!(world.is(ConditionType::Suspended) && !world.is(ConditionType::Admitted));
        assert_eq!(world.status().num_csx, None);
        world.spec().suspend = false;
        assert_eq!(world.visit(), JobState::Queued, "the old grant is for an attempt that is over");
        world.grant();
        assert_eq!((world.visit(), runs(&world)), (JobState::Starting, Some((2, 2))));
        assert_eq!(world.status().restarts, Some(0), "a suspension costs nothing");
    }
}

#[test]
fn resize_saves_and_requeues() {
    let mut world = JobFixture::training(2);
    world.spec().num_csx = 4;
    assert_eq!((world.visit(), stops(&world)), (JobState::Resizing, true));
    world.outcome(130, "Interrupted");
    assert_eq!(world.visit(), JobState::Resizing);
    world.remove_agents();
    assert_eq!(world.visit(), JobState::Queued);
    world.grant();
    assert_eq!((world.visit(), runs(&world)), (JobState::Starting, Some((2, 4))));
}

#[test]
fn more_systems_than_leaves_is_reported_and_ignored() {
    let mut world = JobFixture::training(2);
    world.spec().num_csx = 9;
    assert_eq!((world.visit(), stops(&world)), (JobState::Training, false));
    assert!(!world.is(ConditionType::Accepted));
    world.spec().num_csx = 2;
    world.visit();
    assert!(world.is(ConditionType::Accepted));
}

#[test]
fn failed_agent_restarts_job_on_same_systems() {
    for role in Role::ALL {
        let mut world = JobFixture::training(2);
        world.ends(role, 1, "Error");
        assert_eq!(world.visit(), JobState::Restarting, "{role}");
        assert_eq!(removes(&world), Some(if is_optional_for_saving(role) { 300 } else { 10 }), "{role}");
        let failure = world.status().failure.unwrap();
        assert_eq!((failure.role.as_deref(), failure.exit_code), (Some(role.as_str()), Some(1)));
        world.remove_agents();
        assert_eq!((world.visit(), runs(&world)), (JobState::Starting, Some((2, 2))));
        assert_eq!((world.status().restarts, world.status().systems.len()), (Some(1), 2));
        assert!(world.is(ConditionType::Admitted), "it never let go of its systems");
    }
}

#[test]
fn deleted_pod_restarts_and_drained_pod_is_not_counted() {
    for (moved, restarts) in [(false, 1), (true, 0)] {
        let mut world = JobFixture::training(2);
        let agent = world.agent(Role::Cs2);
        (agent.is_terminating, agent.is_evicted) = (true, moved);
        assert_eq!(world.visit(), JobState::Restarting);
        assert_eq!(world.status().restarts, Some(restarts));
    }
    let mut world = JobFixture::training(2);
    world.seen.agents.retain(|agent| agent.role != Role::SwarmX);
    assert_eq!(world.visit(), JobState::Restarting, "gone between two visits");
}

#[test]
fn terminated_shard_is_the_cause_in_any_order() {
    for (moved, restarts) in [(false, 1), (true, 0)] {
        for coordinator_seen in [false, true] {
            let mut world = JobFixture::training(2);
            let shard = world.agent(Role::MemoryX);
            (shard.is_terminating, shard.is_evicted) = (true, moved);
            world.outcome(130, "Interrupted");
            world.report(|report| report.outcome.as_mut().unwrap().failed_agent = Some("memoryx-0".to_owned()));
            if coordinator_seen {
                world.ends(Role::Coordinator, 130, "Interrupted");
            }
            assert_eq!(world.visit(), JobState::Restarting);
            assert_eq!(world.status().restarts, Some(restarts), "{moved} {coordinator_seen}");
            assert_eq!(world.status().failure.unwrap().role.as_deref(), Some("memoryx"));
        }
    }
    let mut world = JobFixture::training(2);
    world.outcome(130, "Interrupted");
    assert_eq!(
        (world.visit(), world.status().restarts),
        (JobState::Restarting, Some(1)),
        "the restart was not requested by the user"
    );
}

#[test]
fn root_cause_is_blamed_not_its_victims() {
    let mut world = JobFixture::training(2);
    world.ends(Role::Coordinator, 1, "Error");
    world.advance_time(-5);
    world.ends(Role::Cs2, 137, "OOMKilled");
    world.advance_time(-5);
    world.ends(Role::SwarmX, 3, "Error");
    world.advance_time(10);
    world.visit();
    let failure = world.status().failure.unwrap();
    assert_eq!((failure.role.as_deref(), failure.reason.as_deref()), (Some("cs2"), Some("OOMKilled")));
}

#[test]
fn clean_exit_is_a_failure_only_if_the_job_continues() {
    let mut world = JobFixture::training(2);
    world.ends(Role::Cs2, 0, "Completed");
    assert_eq!(world.visit(), JobState::Training, "perhaps all leave");
    world.advance_time(20);
    assert_eq!(world.visit(), JobState::Restarting);
}

#[test]
fn failures_map_to_final_states() {
    let mut world = JobFixture::training(2);
    world.ends(Role::Coordinator, 2, "Error");
    assert_eq!(world.visit(), JobState::BadParams, "bad input is never tried again");
    for pod_seen in [false, true] {
        let mut world = JobFixture::training(2);
        if pod_seen {
            world.ends(Role::Coordinator, 1, "NonFiniteLoss");
        } else {
            world.outcome(1, "NonFiniteLoss");
        }
        assert_eq!(world.visit(), JobState::NonFiniteLoss, "the next attempt would come to the same bits");
        assert_eq!(world.status().failure.unwrap().reason.as_deref(), Some("NonFiniteLoss"));
    }
    let mut world = JobFixture::training(2);
    world.ends(Role::Coordinator, 2, "ModelDirInUse");
    assert_eq!(world.visit(), JobState::Restarting, "an earlier job of the same name lets go in a moment");
    for (reason, expected) in [("OOMKilled", JobState::OutOfMemory), ("Error", JobState::RetriesExhausted)] {
        let mut world = JobFixture::training(2);
        world.spec().failure_policy.max_restarts = 1;
        world.ends(Role::MemoryX, 137, reason);
        assert_eq!(world.visit(), JobState::Restarting);
        world.remove_agents();
        assert_eq!(world.visit(), JobState::Starting, "the first restart waits for nothing");
        world.create();
        world.ends(Role::MemoryX, 137, reason);
        assert_eq!(world.visit(), expected);
        assert!(world.is(ConditionType::Finished) && !world.is(ConditionType::Succeeded));
        world.remove_agents();
        assert_eq!(world.visit(), expected, "and stays so");
        assert!(!world.is(ConditionType::Admitted));
    }
    let mut refused = JobFixture::new(2);
    let message = "model.num_heads does not divide hidden_size".to_owned();
    refused.seen.resolution = Some(Err(ResolutionError { message, is_temporary: false }));
    assert_eq!(refused.visit(), JobState::BadParams);
    assert!(!refused.is(ConditionType::Accepted) && refused.is(ConditionType::Finished));
    assert_eq!(refused.visit(), JobState::BadParams);
    assert!(!refused.is(ConditionType::Accepted), "still not accepted at the second visit");
}

#[test]
fn deadlines_are_enforced() {
    let mut world = JobFixture::new(2);
    world.grant();
    world.visit();
    world.create();
    world.agent(Role::Cs2).state =
        AgentState::Waiting { reason: "ImagePullBackOff".to_owned(), message: "no such image".to_owned() };
    assert_eq!(world.visit(), JobState::Starting);
    assert_eq!(world.reason(ConditionType::RolesReady), "ImagePullBackOff");
    world.advance_time(900);
    assert_eq!(world.visit(), JobState::DeadlineExceeded);
    let message = world.status().condition(ConditionType::Succeeded).unwrap().message.clone();
    assert!(message.contains("ImagePullBackOff") && message.contains("no such image"), "{message}");

    let mut world = JobFixture::training(2);
    let now = world.seen.now;
    world.report(|report| report.advanced = Some(now));
    world.advance_time(1799);
    assert_eq!(world.visit(), JobState::Training);
    world.advance_time(1);
    assert_eq!(world.visit(), JobState::Restarting);

    let mut world = JobFixture::training(2);
    world.spec().deadlines.active_seconds = Some(100);
    world.advance_time(100);
    assert_eq!(world.visit(), JobState::DeadlineExceeded);
}

#[test]
fn unused_grant_is_declined_by_skipping_its_attempt() {
    let mut world = JobFixture::new(2);
    world.grant();
    world.spec().suspend = true;
    assert_eq!((world.visit(), world.attempt()), (JobState::Suspended, 1));
    assert!(!world.is(ConditionType::Admitted));
    let mut world = JobFixture::new(2);
    world.grant();
    world.spec().num_csx = 3;
    assert_eq!((world.visit(), world.attempt()), (JobState::Queued, 1));
    assert!(world.last.is_empty());
}

#[test]
fn finished_job_is_deleted_after_its_ttl() {
    let mut world = JobFixture::training(1);
    world.spec().ttl_seconds_after_finished = Some(60);
    world.outcome(0, "Succeeded");
    world.visit();
    world.remove_agents();
    world.visit();
    assert!(world.last.is_empty());
    world.advance_time(60);
    world.visit();
    assert_eq!(world.last, [JobCommand::DeleteJob]);
}
