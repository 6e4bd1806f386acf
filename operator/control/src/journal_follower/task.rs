//! The task that follows one attempt.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use millrace_crds::TrainJob;
use millrace_lifecycle::{CoordinatorReport, SlowAgent, StorageStall};
use millrace_protocol::journal::{self, JournalError};
use millrace_protocol::proto::journal_client::JournalClient;
use millrace_protocol::proto::{FollowRequest, ResizeRequest, StopRequest};
use millrace_protocol::{error_chain, proto};
use millrace_telemetry::journal::{self as telemetry, JournalEvent, RunPhase};
use tokio::sync::{mpsc, watch};
use tonic::Code;
use tonic::transport::Channel;

use super::progress::ProgressWriter;
use super::{AttemptRequests, AttemptSize, FollowTarget};
use crate::report::reported_outcome;
use crate::world::World;

/// Delay before connecting again to a coordinator, which may not have started yet or have ended.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// Decisions need to know that steps advance, not how many: minimum time between two reconciles for that reason alone.
const PROGRESS_RECONCILE_INTERVAL: Duration = Duration::from_secs(20);

/// The connection to a coordinator failed or was lost.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Connect(#[from] JournalError),
    #[error(transparent)]
    Stream(#[from] tonic::Status),
}

/// Follows until the report is no longer needed, or the attempt has ended.
pub(super) async fn run<W: World>(
    world: Arc<W>,
    visits: mpsc::UnboundedSender<ObjectRef<TrainJob>>,
    target: FollowTarget,
    reports: watch::Sender<CoordinatorReport>,
    requests: watch::Receiver<AttemptRequests>,
) {
    let mut writer = ProgressWriter::new(&target);
    loop {
        if let Err(error) = follow_connection(&*world, &visits, &target, &reports, &requests, &mut writer).await {
            let (job, attempt) = (&target.job, target.attempt);
            tracing::debug!(%job, attempt, "can't follow the attempt, retrying: {}", error_chain(&error));
        }
        let is_over = reports.is_closed() || reports.borrow().outcome.is_some();
        if !is_over {
            writer.pause();
        }
        writer.flush(&*world, &target).await;
        if is_over {
            return;
        }
        tokio::time::sleep(RECONNECT_INTERVAL).await;
    }
}

/// Follows while the coordinator is reachable.
async fn follow_connection<W: World>(
    world: &W,
    visits: &mpsc::UnboundedSender<ObjectRef<TrainJob>>,
    target: &FollowTarget,
    reports: &watch::Sender<CoordinatorReport>,
    requests: &watch::Receiver<AttemptRequests>,
    writer: &mut ProgressWriter,
) -> Result<(), FollowError> {
    let Some(journal) = world.journal_endpoint(&target.job, &target.uid, target.attempt) else { return Ok(()) };
    let client = journal.connect().await?;
    let mut listener = Listener { world, target, visits, reports, writer, visited: None };
    Ok(listener.listen(client, requests.clone()).await?)
}

struct Listener<'a, W> {
    world: &'a W,
    target: &'a FollowTarget,
    visits: &'a mpsc::UnboundedSender<ObjectRef<TrainJob>>,
    reports: &'a watch::Sender<CoordinatorReport>,
    writer: &'a mut ProgressWriter,
    visited: Option<tokio::time::Instant>,
}

impl<W: World> Listener<'_, W> {
    /// Reads entries until the stream ends. Sends the commands that are requested.
    async fn listen(
        &mut self,
        mut client: JournalClient<Channel>,
        requests: watch::Receiver<AttemptRequests>,
    ) -> Result<(), tonic::Status> {
        // The status needs only the newest state; clients that need every point read from a given number.
        let mut entries = client.follow(FollowRequest { from: 0, from_current_state: true }).await?.into_inner();
        let stopping = send_stop(client.clone(), requests.clone());
        let resizing = send_sizes(client.clone(), requests, &self.target.job);
        tokio::pin!(stopping, resizing);
        let mut stop_sent = false;
        loop {
            tokio::select! {
                entry = entries.message() => match entry? {
                    Some(entry) if entry.attempt == self.target.attempt => self.handle_entry(&entry).await,
                    Some(_) => {}
                    None => return Ok(()),
                },
                saved = &mut stopping, if !stop_sent => {
                    stop_sent = true;
                    if let Some((step, digest)) = saved {
                        self.update_report(true, |report| {
                            report.saved = true;
                            if !digest.is_empty() {
                                report.checkpoint = Some((step, digest));
                            }
                        });
                    }
                }
                error = &mut resizing => return Err(error),
                () = self.writer.due() => self.writer.flush(self.world, self.target).await,
                () = self.reports.closed() => return Ok(()),
            }
        }
    }

    /// Handles an entry. Entries that can't be read are of a later version, and are ignored.
    async fn handle_entry(&mut self, entry: &proto::Entry) {
        let Ok(entry) = journal::from_proto(entry) else { return };
        let at = timestamp(entry.unix_ms);
        match entry.event {
            JournalEvent::Metric(point) => {
                self.writer.point(&point, at);
                let first = self.reports.borrow().advanced.is_none();
                self.update_report(first, |report| report.advanced = Some(at));
            }
            JournalEvent::State(state) => {
                self.writer.total_steps(state.total_steps);
                if state.state == RunPhase::Starting {
                    self.writer.pause();
                }
                // A heartbeat of a run is not progress.
                let is_news = state.note.is_none() || self.reports.borrow().advanced.is_none();
                self.update_report(is_news, |report| {
                    report.evaluating = state.state == RunPhase::Evaluating;
                    report.systems = state.epoch.is_some().then_some(state.num_csx);
                    report.requested_csx = state.requested_csx;
                    let lost = state.lost_agents.iter();
                    report.unresponsive = lost.map(|(agent, since)| (agent.clone(), timestamp(*since))).collect();
                    let slow = state.slow_agents.into_iter();
                    report.slow_agents = slow.map(|(agent, slow)| (agent, slow_agent(slow))).collect();
                    report.storage = Some(state.storage_stall.map_or(Ok(()), |stall| {
                        Err(StorageStall { file: stall.file, since: timestamp(stall.since_unix_ms) })
                    }));
                    report.resumed = state.resumed.map(|resumed| (resumed.step, resumed.repeated_steps));
                    if state.state != RunPhase::Starting && is_news {
                        report.advanced = Some(at);
                    }
                });
            }
            JournalEvent::Checkpoint { step, digest } => self.update_report(true, |report| {
                report.checkpoint = Some((step, digest));
                report.failed_checkpoint = None;
            }),
            JournalEvent::CheckpointFailed { message, .. } => {
                self.update_report(true, |report| report.failed_checkpoint = Some(message))
            }
            JournalEvent::Outcome(outcome) => {
                // The progress is written to the status before the end, because the attempt is not followed after that.
                self.writer.flush(self.world, self.target).await;
                self.update_report(true, |report| {
                    if let Some(digest) = &outcome.digest {
                        report.checkpoint = Some((outcome.step, digest.clone()));
                        report.saved = true;
                    }
                    report.outcome = Some(reported_outcome(outcome));
                });
            }
            JournalEvent::Log(_) | JournalEvent::Dropped(_) => {}
        }
    }

    /// Changes the report, and enqueues the job: at once if the change matters, otherwise at intervals.
    fn update_report(&mut self, is_urgent: bool, change: impl FnOnce(&mut CoordinatorReport)) {
        self.reports.send_modify(change);
        let is_recent = self.visited.is_some_and(|visited| visited.elapsed() < PROGRESS_RECONCILE_INTERVAL);
        if is_urgent || !is_recent {
            self.visited = Some(tokio::time::Instant::now());
            let _ = self.visits.send(self.target.job.clone());
        }
    }
}

fn slow_agent(slow: telemetry::SlowAgent) -> SlowAgent {
    SlowAgent { since: timestamp(slow.since_unix_ms), speed_percent: slow.speed_percent }
}

/// Converts milliseconds since 1970; a number out of range becomes the current time.
fn timestamp(unix_ms: u64) -> Timestamp {
    let millis = i64::try_from(unix_ms).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(millis).unwrap_or_else(|_| Timestamp::now())
}

/// Sends every requested number of systems to the coordinator, also the first one: the coordinator may have replaced
/// one that received it. Returns the error that shows that the connection is lost.
async fn send_sizes(
    mut client: JournalClient<Channel>,
    mut requests: watch::Receiver<AttemptRequests>,
    job: &ObjectRef<TrainJob>,
) -> tonic::Status {
    let mut sent = None;
    loop {
        let requested =
            requests.wait_for(|requests| requests.size != sent).await.ok().and_then(|requests| requests.size);
        let Some(size @ AttemptSize { num_csx, min_csx }) = requested else {
            // The attempt is no longer followed; the caller notices that.
            return std::future::pending().await;
        };
        sent = Some(size);
        match client.resize(ResizeRequest { num_csx, min_csx }).await {
            Ok(_) => {}
            Err(status) if status.code() == Code::InvalidArgument => {
                tracing::warn!(%job, "the coordinator does not resize the job: {}", status.message());
            }
            Err(status) => return status,
        }
    }
}

/// Waits until a stop is requested, and sends it to the coordinator. Returns step and digest of the saved checkpoint;
/// `None` if the coordinator ended without an answer: its outcome has the rest.
async fn send_stop(
    mut client: JournalClient<Channel>,
    mut requests: watch::Receiver<AttemptRequests>,
) -> Option<(u64, String)> {
    let reason = requests.wait_for(|requests| requests.stop.is_some()).await.ok()?.stop.clone()?;
    let reply = client.stop(StopRequest { reason }).await.ok()?.into_inner();
    Some((reply.step, reply.parameters_blake3))
}
