//! The contract of [`World`], as checks that every implementation passes: the cluster
//! (`operator/tests/cluster_world.rs`) and the processes of one machine (`api/tests/process_world.rs`). Not a test by
//! itself.
//!
//! * Every call is made twice, because the loop repeats it after a failure.
//! * A decision that was made from an old version is rejected, and changes nothing.
//! * Agents that were ensured are observed, and removed ones are not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use millrace_control::{AgentsFound, AttemptContext, JobSite, PlanCache, WorkerPool, World};
use millrace_crds::{Appliance, JobProgress, StoredParams, TrainJob, TrainJobSpec, TrainJobStatus};
use millrace_lifecycle::{JobEvent, ObservedAgent};

/// Longer than any wait takes on a slow machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Time until a state is observed again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Grace period of removed agents, in seconds.
const GRACE_SECONDS: u32 = 10;
const NAMESPACE: &str = "conformance";

/// A world and its objects.
#[allow(async_fn_in_trait, reason = "used in this workspace only")]
pub trait Fixture {
    type World: World;

    fn world(&self) -> &Self::World;

    fn site(&self) -> Arc<dyn JobSite>;

    /// Creates the job as the API does, and returns it.
    async fn create(&self, job: &TrainJob) -> TrainJob;

    /// Returns the newest version of the job, unless it is deleted.
    async fn newest(&self, job: &TrainJob) -> Option<TrainJob>;

    /// Returns the newest version of the only appliance, which no job uses.
    async fn appliance(&self) -> Appliance;
}

/// Runs all checks; panics at the first violation.
pub async fn check_world(fixture: &impl Fixture) {
    check_status(fixture).await;
    check_progress(fixture).await;
    check_ledger(fixture).await;
    check_agents(fixture).await;
    check_deletion(fixture).await;
    let priorities = fixture.world().priorities().await.unwrap();
    assert_eq!(fixture.world().priorities().await.unwrap(), priorities);
}

fn new_job(name: &str) -> TrainJob {
    let params = serde_json::json!({
        "train_input": {
            "data_processor": "SyntheticDataProcessor",
            "batch_size": 4,
            "micro_batch_size": 1,
            "max_sequence_length": 8,
        },
        "model": {
            "name": "gpt2", "vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 1, "num_heads": 1,
            "max_position_embeddings": 8,
        },
        "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1},
        "runconfig": {"max_steps": 1_000_000},
    });
    let mut job = TrainJob::new(name, TrainJobSpec::new(1, StoredParams(params)));
    job.metadata.namespace = Some(NAMESPACE.to_owned());
    job
}

async fn newest(fixture: &impl Fixture, job: &TrainJob) -> TrainJob {
    fixture.newest(job).await.expect("the job exists")
}

fn attempt_of(job: &TrainJob) -> Option<u32> {
    job.status.as_ref().and_then(|status| status.attempt)
}

/// A status is recorded if it was decided from the newest version, once.
async fn check_status(fixture: &impl Fixture) {
    let world = fixture.world();
    let first = fixture.create(&new_job("status")).await;
    let status = |attempt| TrainJobStatus { attempt: Some(attempt), ..TrainJobStatus::default() };
    assert!(world.record_status(&first, &status(1)).await.unwrap());
    let second = newest(fixture, &first).await;
    assert_eq!(attempt_of(&second), Some(1));
    assert!(!world.record_status(&first, &status(2)).await.unwrap(), "decided from an old version");
    assert_eq!(attempt_of(&newest(fixture, &first).await), Some(1), "nothing was recorded");
    assert!(world.record_status(&second, &second.status.clone().unwrap()).await.unwrap());
    let stored = newest(fixture, &first).await;
    assert_eq!(stored.resource_version(), second.resource_version(), "the same status is no new version");
    assert!(world.record_status(&second, &status(2)).await.unwrap());
    assert_eq!(attempt_of(&newest(fixture, &first).await), Some(2));
    world.delete_job(&first).await.unwrap();
}

/// Progress is recorded at any version, does not touch decisions, and is not touched by them.
async fn check_progress(fixture: &impl Fixture) {
    let world = fixture.world();
    let old = fixture.create(&new_job("progress")).await;
    let uid = old.uid().unwrap();
    let decided = TrainJobStatus { attempt: Some(1), ..TrainJobStatus::default() };
    assert!(world.record_status(&old, &decided).await.unwrap());
    let progress = JobProgress { attempt: Some(1), step: Some(7), ..JobProgress::default() };
    for _ in 0..2 {
        world.record_progress(&ObjectRef::from_obj(&old), &uid, &progress).await.unwrap();
    }
    let step_of = |job: &TrainJob| job.status.as_ref()?.progress.as_ref()?.step;
    let with_progress = newest(fixture, &old).await;
    assert_eq!((attempt_of(&with_progress), step_of(&with_progress)), (Some(1), Some(7)));
    assert!(world.record_status(&with_progress, &TrainJobStatus { attempt: Some(2), ..decided }).await.unwrap());
    let decided_again = newest(fixture, &old).await;
    assert_eq!((attempt_of(&decided_again), step_of(&decided_again)), (Some(2), Some(7)));
    // Whether progress of another job of that name is an error is up to the world.
    let other = JobProgress { step: Some(8), ..progress };
    let _ = world.record_progress(&ObjectRef::from_obj(&old), "00000000-0000-4000-8000-000000000000", &other).await;
    assert_eq!(step_of(&newest(fixture, &old).await), Some(7), "progress of another job");
    let event = JobEvent {
        warning: false,
        reason: "Conformance".to_owned(),
        message: "the contract is checked".to_owned(),
        attempt: None,
        role: None,
        num_csx: None,
    };
    world.publish_job_event(&decided_again, &event).await;
    world.publish_job_event(&decided_again, &event).await;
    world.delete_job(&old).await.unwrap();
}

/// A ledger is recorded if it was decided from the newest version, and the appliance is protected while it is in use.
async fn check_ledger(fixture: &impl Fixture) {
    let world = fixture.world();
    let first = fixture.appliance().await;
    let ledger = |waiting| {
        let mut status = first.status.clone().unwrap_or_default();
        status.waiting = waiting;
        status
    };
    assert!(world.record_ledger(&first, ledger(Some(3))).await.unwrap());
    let second = fixture.appliance().await;
    assert_eq!(second.status.as_ref().and_then(|status| status.waiting), Some(3));
    assert!(!world.record_ledger(&first, ledger(Some(4))).await.unwrap(), "decided from an old version");
    assert!(world.record_ledger(&second, second.status.clone().unwrap()).await.unwrap());
    assert_eq!(fixture.appliance().await.resource_version(), second.resource_version(), "the same is no new version");
    assert!(world.record_ledger(&second, ledger(Some(0))).await.unwrap());
    for in_use in [true, false] {
        world.set_in_use(&fixture.appliance().await, in_use).await.unwrap();
        let now = fixture.appliance().await;
        assert!(!world.set_in_use(&now, in_use).await.unwrap(), "written twice: {in_use}");
        assert_eq!(fixture.appliance().await.resource_version(), now.resource_version());
    }
}

/// Agents that were ensured are observed, each once; removed ones are gone, and hold no grant.
async fn check_agents(fixture: &impl Fixture) {
    let world = fixture.world();
    let appliance = fixture.appliance().await;
    let mut job = fixture.create(&new_job("agents")).await;
    let uid = job.uid().unwrap();
    let found = world.observe(&job).await.unwrap();
    assert!(found.agents.is_empty() && found.termination_report.is_none());
    world.remove_agents(&job, &found.handle, GRACE_SECONDS).await.unwrap();
    assert!(!world.has_leftover_agents(NAMESPACE, &uid).await.unwrap());

    let plans = PlanCache::new(fixture.site(), WorkerPool::new(1));
    let (resolution, needs) = plans.plan_uncached(&job, &appliance.spec, &|_| Ok(())).unwrap();
    let systems = ["csx-0".to_owned()];
    let decided = TrainJobStatus {
        attempt: Some(1),
        resolved: Some(resolution.clone()),
        systems: systems.to_vec(),
        ..TrainJobStatus::default()
    };
    assert!(world.record_status(&job, &decided).await.unwrap());
    job = newest(fixture, &job).await;
    let context = AttemptContext {
        job: &job,
        resolution: &resolution,
        cluster: &appliance.spec,
        number: 1,
        needs: &needs,
        systems: &systems,
    };
    let wanted: u32 = needs.wanted.iter().map(|(_, count)| count).sum();
    for _ in 0..2 {
        let found = world.observe(&job).await.unwrap();
        world.ensure_agents(&context, &found.handle).await.unwrap();
        let found = world.observe(&job).await.unwrap();
        assert_eq!(found.agents.len(), wanted as usize, "{:?}", found.agents);
        for agent in &found.agents {
            let copies = found.agents.iter().filter(|other| (other.role, other.index) == (agent.role, agent.index));
            assert_eq!(copies.count(), 1, "{agent:?}");
        }
    }
    assert!(world.has_leftover_agents(NAMESPACE, &uid).await.unwrap());
    check_replacement(world, &job, &context).await;
    for _ in 0..2 {
        let AgentsFound { handle, .. } = world.observe(&job).await.unwrap();
        world.remove_agents(&job, &handle, GRACE_SECONDS).await.unwrap();
    }
    let began = Instant::now();
    while !world.observe(&job).await.unwrap().agents.is_empty() {
        assert!(began.elapsed() < TEST_TIMEOUT, "removed agents are observed after {TEST_TIMEOUT:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    assert!(!world.has_leftover_agents(NAMESPACE, &uid).await.unwrap());
    let grants = world.leftover_grants(&appliance.name_any()).await.unwrap();
    assert!(grants.iter().all(|grant| grant.uid != uid), "{grants:?}");
    world.delete_job(&job).await.unwrap();
}

/// One agent is removed, twice, and created again as another instance; the others are not touched.
async fn check_replacement<W: World>(world: &W, job: &TrainJob, context: &AttemptContext<'_>) {
    if !W::AGENTS_ARE_REPLACEABLE {
        return;
    }
    let AgentsFound { agents: before, handle, .. } = world.observe(job).await.unwrap();
    let removed = &before[0].instance;
    for _ in 0..2 {
        world.remove_agent(job, &handle, removed, 0).await.unwrap();
    }
    let began = Instant::now();
    let after = loop {
        let AgentsFound { agents, handle, .. } = world.observe(job).await.unwrap();
        if agents.len() == before.len() && agents.iter().all(|agent| agent.instance != *removed) {
            break agents;
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "the agent is not replaced after {TEST_TIMEOUT:?}");
        world.ensure_agents(context, &handle).await.unwrap();
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    let kept = |agent: &ObservedAgent| before[1..].iter().any(|other| other.instance == agent.instance);
    assert_eq!(after.iter().filter(|agent| kept(agent)).count(), before.len() - 1, "the others are not touched");
}

/// A job is deleted once, and another job of its name is not.
async fn check_deletion(fixture: &impl Fixture) {
    let world = fixture.world();
    let first = fixture.create(&new_job("deleted")).await;
    world.delete_job(&first).await.unwrap();
    assert!(fixture.newest(&first).await.is_none());
    let second = fixture.create(&new_job("deleted")).await;
    world.delete_job(&first).await.unwrap();
    assert!(fixture.newest(&second).await.is_some(), "another job of the name");
    world.finalize(&second).await.unwrap();
    world.delete_job(&second).await.unwrap();
}
