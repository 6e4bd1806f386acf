//! Tests of a job with a model_dir that an earlier job has used, as a job of the same name does.

use millrace_protocol::journal::from_proto;
use millrace_protocol::proto::FollowRequest;
use millrace_telemetry::journal::JournalEvent;
use tokio_stream::StreamExt;

use super::harness::TestDir;
use super::job::Job;

/// Returns the steps that a follower of this attempt receives. Checks that all received entries are of the attempt.
async fn steps(job: Job<'_>, attempt: u32) -> Vec<u64> {
    let mut client = job.journal().connect().await.unwrap();
    let mut entries = client.follow(FollowRequest { from: 0, from_current_state: false }).await.unwrap().into_inner();
    let mut steps = Vec::new();
    while let Some(entry) = entries.next().await {
        let entry = entry.unwrap();
        assert_eq!(entry.attempt, attempt, "{entry:?}");
        if let JournalEvent::Metric(point) = from_proto(&entry).unwrap().event {
            steps.push(point.step());
        }
    }
    assert_eq!(job.end(), Some(0));
    steps.dedup();
    steps
}

#[tokio::test]
async fn next_job_restarts_attempt_numbers_and_resumes() {
    let place = TestDir::new();
    place.params("params.yaml", &[]);
    let of = |uid, attempt, max_steps| steps(Job::attempt(&place, uid, attempt, max_steps), attempt);
    assert_eq!(of("first", 3, 4).await, [1, 2, 3, 4]);
    assert_eq!(of("second", 1, 6).await, [5, 6]);
    assert!(place.path("m/logs/attempt-4").exists(), "model_dir counts on");
}
