//! MemoryX: the driver of one shard.
//!
//! * The thread of the runtime receives commands and frames and drives the engine's state machine.
//! * A second thread processes the chunk store (updates, encoding, gathering), so that an update never delays the
//!   network.
//! * A third thread writes a snapshot.
//! * Other replicas of the shard copy its parameters through the data port.

mod replica;
mod store;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use millrace_emulator::placement::{Placement, shard_of_agent};
use millrace_engine::chunk_store::{SnapshotAction, SnapshotTracker};
use millrace_engine::message::{
    AgentCommand, AgentReport, EpochConfig, ParameterSource, SnapshotRequest, StalledWrite,
};
use millrace_engine::shard::{Shard, ShardCommand, ShardError};
use millrace_engine::slots::Direction;
use millrace_engine::types::{AgentId, Epoch, Role};
use millrace_protocol::proto::replica_server::ReplicaServer;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::RoleContext;
use super::link_senders::{IterationSteps, LinkSenders};
use super::swarmx::serve;
use super::watchdog::Watchdog;
use super::work_meter::{WorkMeter, WorkReports};
use super::work_queue::{WorkReceiver, WorkSender, work_queue};
use crate::control::client::{ComputeUsage, ControlSession, SessionEvent};
use crate::control::job::CompiledJob;
use crate::error::AgentError;
use crate::links::{LinkEvent, LinkEventKind, LinkEventQueue, LinkJob, LinkKey, LinkService};
use crate::write_watch::MAX_CHECKPOINT_WRITE_TIME;
pub use replica::ReplicaService;
use replica::{CopySource, copy_replica};
use store::ShardStore;
use worker::{StoreTask, StoreTaskResult, StoreWorker, SumBacklog, spawn};

/// Time between two checks whether a write of a snapshot takes too long.
const STORAGE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Creates the backlog: up to one window of sums may wait for the store's thread.
fn backlog_of(job: &CompiledJob) -> SumBacklog {
    SumBacklog::new(usize::try_from(job.window()).unwrap_or(usize::MAX))
}

/// Runs the shard until the job ends.
pub async fn run(context: RoleContext, terminate: Signal) -> Result<(), AgentError> {
    let (listener, address) = context.listen().await?;
    let (mailbox, events) = LinkEventQueue::new();
    let settings = context.link_settings(events);
    let (copies, copy_source) = watch::channel(None);
    let replica = ReplicaServer::new(ReplicaService::new(context.me().index, copy_source));
    serve(context.args.member.accept_data(listener), LinkService::new(settings.clone()), Some(replica));
    let session = context.join(address, Some(Default::default()), terminate).await?;
    settings.job.send_replace(Some(LinkJob::of(&session.job)));
    let shard = Shard::new(context.me().index, session.job.plan.clone());
    // The channel is unbounded; sends are bounded by the root's grants, sums and their results by the backlog.
    let (work, jobs) = work_queue();
    let (done, results) = mpsc::unbounded_channel();
    let backlog = Arc::new(backlog_of(&session.job));
    let meter = WorkMeter::start()?;
    let work_reports = meter.report_to(session.outbox.clone());
    let mut storage_checks = interval(STORAGE_CHECK_INTERVAL);
    storage_checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let driver = ShardDriver {
        context,
        session,
        mailbox,
        shard,
        store: None,
        copies,
        jobs: Some(jobs),
        work,
        done,
        results,
        backlog,
        link: None,
        loading: None,
        snapshots: SnapshotTracker::default(),
        leaving: false,
        storage_checks,
        is_storage_stalled: false,
        meter,
        _work_reports: work_reports,
    };
    driver.run().await
}

struct ShardEpoch {
    epoch: Epoch,
    root: AgentId,
    ends: LinkSenders,
    steps: IterationSteps,
    linked: bool,
    first: Vec<ShardCommand>,
    /// The newest total that is not granted yet, because the store's thread is behind.
    held_grant: Option<u64>,
}

struct ShardDriver {
    context: RoleContext,
    session: ControlSession,
    mailbox: LinkEventQueue,
    shard: Shard,
    store: Option<Arc<ShardStore>>,
    /// What other replicas may copy.
    copies: watch::Sender<Option<CopySource>>,
    jobs: Option<WorkReceiver<StoreTask>>,
    work: WorkSender<StoreTask>,
    done: mpsc::UnboundedSender<StoreTaskResult>,
    results: mpsc::UnboundedReceiver<StoreTaskResult>,
    backlog: Arc<SumBacklog>,
    link: Option<ShardEpoch>,
    /// The parameters that are being loaded, or were loaded last.
    loading: Option<Loading>,
    snapshots: SnapshotTracker,
    /// Whether this process was asked to leave. It ends when the coordinator has saved the parameters of this shard.
    leaving: bool,
    storage_checks: Interval,
    /// Whether the coordinator was told that a write does not return.
    is_storage_stalled: bool,
    meter: WorkMeter,
    _work_reports: WorkReports,
}

/// The state of loading parameters.
struct Loading {
    source: ParameterSource,
    done: bool,
    /// Whether the present coordinator has requested it.
    is_requested: bool,
    /// Another source, requested during loading.
    next: Option<ParameterSource>,
}

impl ShardDriver {
    async fn run(mut self) -> Result<(), AgentError> {
        loop {
            tokio::select! {
                received = self.session.next() => match received? {
                    SessionEvent::Command(AgentCommand::Finish) => break,
                    SessionEvent::Command(command) => {
                        let result = self.on_command(command);
                        self.report_failure(result);
                    }
                    SessionEvent::Lost if self.leaving => break,
                    SessionEvent::Lost => self.rejoin().await?,
                    // A second SIGTERM ends the process at once; unsaved steps are lost.
                    SessionEvent::Leave if self.leaving => break,
                    SessionEvent::Leave => {
                        self.leaving = true;
                        self.session.outbox.send_leave_request();
                    }
                },
                Some(result) = self.results.recv() => {
                    let result = self.on_task_done(result);
                    self.report_failure(result);
                }
                Some(event) = self.mailbox.next() => self.link(event),
                _ = self.storage_checks.tick() => self.check_storage(),
            }
        }
        self.session.leave(&self.context.metrics, ComputeUsage::default()).await;
        Ok(())
    }

    /// Reports to the coordinator when a write of a snapshot has not returned for long, and when it has.
    fn check_storage(&mut self) {
        let ongoing = self.store.as_ref().and_then(|store| store.ongoing_write());
        let stalled = ongoing.filter(|write| write.exceeds(MAX_CHECKPOINT_WRITE_TIME));
        if std::mem::replace(&mut self.is_storage_stalled, stalled.is_some()) == stalled.is_some() {
            return;
        }
        let write = stalled.map(|write| StalledWrite {
            file: write.file.to_string_lossy().into_owned(),
            seconds: write.began.elapsed().as_secs(),
        });
        self.session.outbox.send_report(&AgentReport::StorageStalled { write });
    }

    /// Reports to the coordinator that this shard failed. A run needs all its shards, so it ends for this reason.
    fn report_failure(&self, result: Result<(), AgentError>) {
        if let Err(failure) = result {
            tracing::error!("{failure}");
            self.session.outbox.send_report(&failure.report());
        }
    }

    fn on_command(&mut self, command: AgentCommand) -> Result<(), AgentError> {
        let mut out = Vec::new();
        match command {
            AgentCommand::Load(source) => self.load(source)?,
            AgentCommand::Configure(configure) => self.configure(&configure),
            AgentCommand::Open { epoch, iteration } => {
                if let Some(link) = self.link.as_mut().filter(|link| link.epoch == epoch) {
                    link.steps.open(iteration);
                }
                match self.shard.open(epoch, iteration, &mut out) {
                    Err(ShardError::Frame(error)) => self.root_link_lost(&error),
                    opened => opened.map_err(AgentError::local)?,
                }
            }
            AgentCommand::Commit { record } => {
                self.context.metrics.record_step(record.step);
                self.shard.commit(record, &mut out).map_err(AgentError::local)?;
            }
            AgentCommand::Snapshot(snapshot) => self.snapshot(snapshot),
            AgentCommand::Finish | AgentCommand::WeighLosses { .. } | AgentCommand::ScaleLosses { .. } => {}
        }
        self.execute(out);
        Ok(())
    }

    /// Joins the next coordinator after the current one was lost. Keeps the parameters, abandons the epoch.
    async fn rejoin(&mut self) -> Result<(), AgentError> {
        self.context.ready.set(false);
        self.link = None;
        self.loading.iter_mut().for_each(|loading| loading.is_requested = false);
        self.snapshots.on_coordinator_lost();
        self.is_storage_stalled = false;
        self.session.rejoin(Some(self.shard.state())).await
    }

    /// Begins a snapshot, unless it was already requested on an earlier control stream.
    fn snapshot(&mut self, snapshot: SnapshotRequest) {
        match self.snapshots.on_snapshot_command(&snapshot) {
            SnapshotAction::Begin => {
                let _ = self.work.send(StoreTask::Snapshot(snapshot));
            }
            SnapshotAction::Wait => {}
            SnapshotAction::Report(report) => self.session.outbox.send_report(&report),
        }
    }

    /// Loads the parameters from `source`, unless this load is in progress or was finished for an earlier coordinator.
    fn load(&mut self, source: ParameterSource) -> Result<(), AgentError> {
        let state = self.shard.state();
        // A coordinator that requests a copy while one is in progress may take the report of the first for its own, and
        // relies on the parameters from then on. All parameters of a step are the same.
        let is_copied = matches!(source, ParameterSource::Replica { .. }) && state.is_at(source.step());
        // A load that failed is repeated: the file may be readable now.
        let is_unchanged = state.is_at(source.step()) && state.record.is_none();
        match &mut self.loading {
            Some(loading) if !loading.done => {
                loading.is_requested = true;
                loading.next = (loading.source != source).then_some(source);
            }
            Some(loading) if is_copied || (loading.source == source && is_unchanged) => {
                self.session.outbox.send_report(&AgentReport::Loaded { state });
            }
            _ => self.begin_loading(source)?,
        }
        Ok(())
    }

    /// Creates the store and fills it in the background.
    fn begin_loading(&mut self, source: ParameterSource) -> Result<(), AgentError> {
        if self.loading.is_some() {
            self.discard_store();
        }
        let store = self.store()?;
        self.loading = Some(Loading { source: source.clone(), done: false, is_requested: true, next: None });
        let (done, loaded) = (self.done.clone(), source.clone());
        let finish = move |result| drop(done.send(StoreTaskResult::Loaded { source: loaded, result }));
        match source {
            ParameterSource::Initial => {
                spawn("load", move || finish(store.initialise().map_err(AgentError::local))).map(drop)
            }
            ParameterSource::Checkpoint { path, optimizer, step } => {
                spawn("load", move || finish(store.restore(&path, optimizer, step))).map(drop)
            }
            ParameterSource::Replica { agent, address, step, .. } => {
                tracing::info!(peer = %agent, step, "copying the parameters of step {step} from {agent}");
                let (member, plan) = (self.context.args.member.clone(), self.session.job.hash);
                tokio::spawn(async move {
                    let copied = copy_replica(&member, (agent, &address), &store, plan, step).await;
                    finish(copied.map_err(|error| AgentError::peer(error).context(format!("can't copy {agent}"))));
                });
                Ok(())
            }
        }
    }

    /// Discards the parameters that were loaded before, with all work and results of their threads.
    fn discard_store(&mut self) {
        let ((work, jobs), (done, results)) = (work_queue(), mpsc::unbounded_channel());
        (self.store, self.work, self.jobs, self.done, self.results) = (None, work, Some(jobs), done, results);
        self.copies.send_replace(None);
        self.backlog = Arc::new(backlog_of(&self.session.job));
        self.shard = Shard::new(self.context.me().index, self.session.job.plan.clone());
        self.snapshots = SnapshotTracker::default();
        // The coordinator configures an epoch after the parameters are loaded.
        self.link = None;
    }

    /// Returns the store; creates it and its thread on the first call.
    fn store(&mut self) -> Result<Arc<ShardStore>, AgentError> {
        if let Some(store) = &self.store {
            return Ok(store.clone());
        }
        let stall = self.context.metrics.stall();
        // The number of shards is that of the job or of the appliance; placements never change it within an attempt.
        let shards = self.session.job.shards();
        let shard = shard_of_agent(self.context.me().index, shards);
        let store = ShardStore::new(self.session.job.clone(), shard, shards, stall.clone())?;
        let store = Arc::new(store);
        if let Some(jobs) = self.jobs.take() {
            let (plan, done) = (self.session.job.hash, self.done.clone());
            let memory = self.context.memory.clone();
            let (backlog, meter) = (self.backlog.clone(), self.meter.clone());
            let worker = StoreWorker::new(store.clone(), done, backlog, stall.clone(), plan, memory, meter);
            let watchdog = Watchdog::watch("store", stall.clone(), jobs.queued());
            let run = move || {
                worker.run(jobs);
                drop(watchdog);
            };
            spawn("store", run).map(drop)?;
        }
        self.store = Some(store.clone());
        Ok(store)
    }

    fn configure(&mut self, configure: &EpochConfig) {
        let (epoch, job) = (configure.epoch, &self.session.job);
        self.context.metrics.set_epoch(epoch.attempt.into(), epoch.number.into());
        tracing::info!(%epoch, "epoch begins");
        self.context.ready.set(false);
        self.context.begin_memory_epoch(job);
        let placement: Arc<Placement> = Arc::new(configure.placement.clone());
        let root = AgentId::new(Role::SwarmX, placement.swarm.first().map_or(0, |root| root.id));
        let first = self.shard.configure(placement, epoch, job.window());
        let (ends, steps) = (LinkSenders::new([root]), IterationSteps::default());
        self.link = Some(ShardEpoch { epoch, root, ends, steps, linked: false, first, held_grant: None });
        self.mailbox.set_epoch(epoch);
    }

    fn on_task_done(&mut self, done: StoreTaskResult) -> Result<(), AgentError> {
        let mut out = Vec::new();
        match done {
            StoreTaskResult::Gathered { chunk, norm } => self.shard.gathered(chunk, norm, &mut out),
            StoreTaskResult::Loaded { source, result } => self.loaded(&source, result, &mut out)?,
            StoreTaskResult::Snapshot { snapshot, report } => {
                self.snapshots
                    .on_finished(&snapshot, report)
                    .iter()
                    .for_each(|report| self.session.outbox.send_report(report));
            }
            StoreTaskResult::BacklogCleared => {
                if let Some(total) = self.link.as_mut().and_then(|link| link.held_grant.take()) {
                    self.grant(total);
                }
            }
            StoreTaskResult::Failed(error) => return Err(AgentError::local(error)),
        }
        self.execute(out);
        Ok(())
    }

    fn loaded(
        &mut self,
        source: &ParameterSource,
        result: Result<(), AgentError>,
        out: &mut Vec<ShardCommand>,
    ) -> Result<(), AgentError> {
        let next = self.loading.as_mut().and_then(|loading| {
            loading.done = true;
            loading.next.take()
        });
        match (next, result) {
            (Some(next), _) => self.begin_loading(next)?,
            (None, Ok(())) => {
                let (work, plan) = (self.work.clone(), self.session.job.hash);
                let shards = self.session.job.shards();
                self.copies.send_replace(self.store.clone().map(|store| CopySource { store, work, plan, shards }));
                out.push(ShardCommand::Report(self.shard.on_loaded(source)));
            }
            (None, Err(failure)) if matches!(source, ParameterSource::Replica { .. }) => {
                tracing::warn!("{failure}");
                self.session.outbox.send_report(&AgentReport::CopyFailed { reason: failure.message() });
            }
            (None, Err(failure)) if self.loading.as_ref().is_some_and(|loading| !loading.is_requested) => {
                // An earlier coordinator has requested it. The present one may load something else.
                tracing::warn!("{failure}");
            }
            (None, Err(failure)) => self.session.outbox.send_report(&failure.report()),
        }
        Ok(())
    }

    fn link(&mut self, LinkEvent { key, kind: what }: LinkEvent) {
        let Some(link) = self.link.as_mut().filter(|link| link.epoch == key.epoch) else { return };
        let mut out = Vec::new();
        match what {
            LinkEventKind::Open(end) => {
                link.ends.open(key, end);
                if link.ends.is_complete() && !std::mem::replace(&mut link.linked, true) {
                    out = std::mem::take(&mut link.first);
                    self.context.ready.set(true);
                    self.session.outbox.send_report(&AgentReport::Linked { epoch: key.epoch });
                }
            }
            LinkEventKind::Frame(frame) => {
                if let Err(error) = self.shard.gradient(frame, &mut out) {
                    self.link_lost(key, &error);
                }
            }
            LinkEventKind::Grant(total) => self.shard.grant(key.epoch, total, &mut out),
            LinkEventKind::Broken(reason) => self.link_lost(key, &reason),
        }
        self.execute(out);
    }

    /// Abandons the epoch after a link has failed or delivered invalid data.
    fn link_lost(&mut self, key: LinkKey, reason: &dyn std::fmt::Display) {
        tracing::warn!(peer = %key.peer, epoch = %key.epoch, "link failed: {reason}");
        self.session.outbox.send_report(&AgentReport::LinkLost { epoch: key.epoch, peer: Some(key.peer) });
        self.link = None;
    }

    /// Abandons the epoch after the root has sent an invalid sum, which waited for its iteration.
    fn root_link_lost(&mut self, reason: &dyn std::fmt::Display) {
        if let Some(ShardEpoch { epoch, root, .. }) = self.link {
            self.link_lost(LinkKey { epoch, peer: root, direction: Direction::Up }, reason);
        }
    }

    /// Grants gradient slots to the root. If the store's thread is more than a window of sums behind, holds the grant
    /// back until it has caught up.
    fn grant(&mut self, total: u64) {
        let Some(link) = &mut self.link else { return };
        if self.backlog.exceeded() {
            link.held_grant = Some(total);
        } else {
            link.held_grant = None;
            link.ends.send_grant(link.root, total);
        }
    }

    fn execute(&mut self, commands: Vec<ShardCommand>) {
        for command in commands {
            match command {
                ShardCommand::Send(key) => {
                    let Some(link) = &self.link else { continue };
                    let step = link.steps.of(key.iteration);
                    let Some(end) = link.ends.frames(link.root) else { continue };
                    let _ = self.work.send(StoreTask::Send { key, step, end });
                }
                ShardCommand::Gather { chunk, first, last, sum } => {
                    self.backlog.add();
                    let _ = self.work.send(StoreTask::Gather { chunk, first, last, sum });
                }
                ShardCommand::Commit(record) => {
                    let _ = self.work.send(StoreTask::Commit(record));
                }
                ShardCommand::Update(chunk) => {
                    let _ = self.work.send(StoreTask::Update(chunk));
                }
                ShardCommand::Grant(total) => self.grant(total),
                ShardCommand::Report(report) => self.session.outbox.send_report(&report),
            }
        }
    }
}
