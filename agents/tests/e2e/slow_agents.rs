//! Tests of agents that work much more slowly than the others of their role.

use std::time::Duration;

use rustix::process::Signal;

use super::harness::{TestDir, kill};
use super::job::{Job, wait_for_state};

/// How long the agent is stopped, less than the time after which it counts as lost, and how long it runs in between.
const STOPPED: Duration = Duration::from_millis(600);
const RUNNING: Duration = Duration::from_millis(150);

/// A shard and an activation server are stopped again and again, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn agent_that_hardly_runs_is_named_until_it_runs_again() {
    let place = TestDir::new();
    place.params("params.yaml", &[("log_steps: 1", "log_steps: 20"), ("eval_frequency: 2", "eval_frequency: 1000000")]);
    let mut job = Job::start(&place, 1_000_000);
    job.wait_for_step(20);
    let mut entries = job.follow().await;
    for agent in ["memoryx-1", "activation-0"] {
        let process = job.agent_id(agent);
        let slowed = tokio::spawn(async move {
            loop {
                kill(process, Signal::STOP);
                tokio::time::sleep(STOPPED).await;
                kill(process, Signal::CONT);
                tokio::time::sleep(RUNNING).await;
            }
        });
        let state = wait_for_state(&mut entries, |state| !state.slow_agents.is_empty()).await;
        slowed.abort();
        slowed.await.unwrap_err();
        kill(process, Signal::CONT);
        let slow: Vec<&str> = state.slow_agents.keys().map(String::as_str).collect();
        assert_eq!(slow, [agent]);
        assert!(state.slow_agents[agent].speed_percent < 50, "{state:?}");
        wait_for_state(&mut entries, |state| state.slow_agents.is_empty()).await;
    }
    job.stop().await;
}
