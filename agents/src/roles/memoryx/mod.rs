//! MemoryX: drives one shard.
//!
//! The runtime's thread takes orders and frames and asks the machine; a thread of its own works through the chunk
//! store (updates, encoding, gathering), so that the network never waits for an update; a snapshot has a third.

mod store;

use std::sync::{Arc, OnceLock, mpsc as blocking};

use bytes::Bytes;
use millrace_emulator::placement::Placement;
use millrace_emulator::plan::{ChunkId, PlanHash};
use millrace_engine::frame::{Frame, Place};
use millrace_engine::message::{Configure, Order, Report, Snapshot, Source};
use millrace_engine::shard::{Command, Shard};
use millrace_engine::types::{AgentId, CommitRecord, Epoch, Role};
use millrace_protocol::codec::{self, LinkContext};
use millrace_telemetry::stall::{StallClock, StallReason};
use tokio::sync::mpsc;

use super::Context;
use super::swarmx::serve;
use super::tree::{Ends, TurnSteps};
use crate::control::agent::{Outbox, Session, Work};
use crate::failure::Failure;
use crate::links::{End, Happening, LinkEvent, Mailbox, Settings};
use store::Store;

pub use store::moments_of;

/// Runs the shard until the job is over.
pub async fn run(context: Context) -> Result<(), Failure> {
    let (listener, address) = context.listen().await?;
    let (mailbox, events) = Mailbox::new();
    let settings = Settings { events, plan: Arc::new(OnceLock::new()), metrics: context.metrics.clone() };
    serve(listener, settings.clone());
    let session = context.join(address, Some(Default::default())).await?;
    let _ = settings.plan.set(session.job.hash);
    let shard = Shard::new(context.me().index, session.job.plan.clone());
    let (work, jobs) = blocking::channel();
    let (done, results) = mpsc::unbounded_channel();
    let driver =
        Driver { context, session, mailbox, shard, store: None, jobs: Some(jobs), work, done, results, link: None };
    driver.run().await
}

/// Work for the store's thread.
enum Job {
    Send { place: Place, step: u64, end: End },
    Gather { chunk: ChunkId, first: bool, last: bool, sum: Bytes },
    Commit(CommitRecord),
    Snapshot(Snapshot),
}

/// What comes back from other threads.
enum Done {
    Gathered { chunk: ChunkId, norm: f64 },
    Loaded { step: u64, result: Result<(), Failure> },
}

struct LinkInEpoch {
    epoch: Epoch,
    root: AgentId,
    ends: Ends,
    steps: TurnSteps,
    linked: bool,
    first: Vec<Command>,
}

struct Driver {
    context: Context,
    session: Session,
    mailbox: Mailbox,
    shard: Shard,
    store: Option<Arc<Store>>,
    jobs: Option<blocking::Receiver<Job>>,
    work: blocking::Sender<Job>,
    done: mpsc::UnboundedSender<Done>,
    results: mpsc::UnboundedReceiver<Done>,
    link: Option<LinkInEpoch>,
}

impl Driver {
    async fn run(mut self) -> Result<(), Failure> {
        loop {
            tokio::select! {
                order = self.session.next() => match order? {
                    Some(Order::Finish) => break,
                    Some(order) => self.order(order)?,
                    None => return Err(self.context.coordinator_lost()),
                },
                Some(done) = self.results.recv() => self.done(done)?,
                Some(event) = self.mailbox.next() => self.link(event)?,
            }
        }
        self.session.leave(&self.context.metrics, Work::default()).await;
        Ok(())
    }

    fn order(&mut self, order: Order) -> Result<(), Failure> {
        let mut out = Vec::new();
        match order {
            Order::Load(source) => self.load(source)?,
            Order::Configure(configure) => self.configure(&configure),
            Order::Open { epoch, turn } => {
                if let Some(link) = self.link.as_mut().filter(|link| link.epoch == epoch) {
                    link.steps.open(turn);
                }
                self.shard.open(epoch, turn, &mut out).map_err(Failure::own)?;
            }
            Order::Commit { record } => {
                self.context.metrics.committed(record.step);
                self.shard.commit(record, &mut out).map_err(Failure::own)?;
            }
            Order::Snapshot(snapshot) => {
                let _ = self.work.send(Job::Snapshot(snapshot));
            }
            Order::Finish => {}
        }
        self.carry(out);
        Ok(())
    }

    /// Makes the store and fills it on another thread.
    fn load(&mut self, source: Source) -> Result<(), Failure> {
        let stall = self.context.metrics.stall().clone();
        // The number of shards is the appliance's or the job's; a placement never changes it within an attempt.
        let shards = self.session.job.shards();
        let store = match &self.store {
            Some(store) => store.clone(),
            None => Arc::new(Store::new(self.session.job.clone(), self.context.me().index, shards, stall)?),
        };
        if let Some(jobs) = self.jobs.take() {
            let worker = StoreWorker {
                store: store.clone(),
                done: self.done.clone(),
                outbox: self.session.outbox.clone(),
                stall: self.context.metrics.stall().clone(),
                plan: self.session.job.hash,
            };
            spawn("store", move || worker.run(jobs))?;
        }
        self.store = Some(store.clone());
        let done = self.done.clone();
        spawn("load", move || {
            let (step, result) = match source {
                Source::Initial => {
                    store.initialise();
                    (0, Ok(()))
                }
                Source::Checkpoint { path, optimizer, step } => (step, store.restore(&path, optimizer, step)),
            };
            let _ = done.send(Done::Loaded { step, result });
        })
    }

    fn configure(&mut self, configure: &Configure) {
        let (epoch, job) = (configure.epoch, &self.session.job);
        self.context.metrics.set_epoch(epoch.attempt.into(), epoch.number.into());
        log::info!("epoch {epoch}");
        self.context.ready.set(false);
        let placement: Arc<Placement> = Arc::new(configure.placement.clone());
        let root = AgentId::new(Role::SwarmX, placement.swarm.first().map_or(0, |root| root.id));
        let first = self.shard.configure(placement, epoch, job.window());
        let (ends, steps) = (Ends::new([root]), TurnSteps::default());
        self.link = Some(LinkInEpoch { epoch, root, ends, steps, linked: false, first });
        self.mailbox.enter(epoch);
    }

    fn done(&mut self, done: Done) -> Result<(), Failure> {
        let mut out = Vec::new();
        match done {
            Done::Gathered { chunk, norm } => self.shard.gathered(chunk, norm, &mut out),
            Done::Loaded { step, result } => match result {
                Ok(()) => out.push(Command::Report(self.shard.loaded(step))),
                Err(failure) => {
                    let bad_input = failure.cause == crate::failure::Cause::BadInput;
                    self.session.outbox.report(&Report::Failed { reason: failure.to_string(), bad_input });
                }
            },
        }
        self.carry(out);
        Ok(())
    }

    fn link(&mut self, LinkEvent { key, what }: LinkEvent) -> Result<(), Failure> {
        let Some(link) = self.link.as_mut().filter(|link| link.epoch == key.epoch) else { return Ok(()) };
        let mut out = Vec::new();
        match what {
            Happening::Open(end) => {
                link.ends.open(key, end);
                if link.ends.complete() && !std::mem::replace(&mut link.linked, true) {
                    out = std::mem::take(&mut link.first);
                    self.context.ready.set(true);
                    self.session.outbox.report(&Report::Linked { epoch: key.epoch });
                }
            }
            Happening::Frame(frame) => self.shard.gradient(frame, &mut out).map_err(Failure::own)?,
            Happening::Grant(total) => self.shard.grant(key.epoch, total, &mut out),
            Happening::Broken(reason) => {
                log::info!("link to {} is gone: {reason}", key.peer);
                self.session.outbox.report(&Report::LinkLost { epoch: key.epoch, peer: Some(key.peer) });
                self.link = None;
            }
        }
        self.carry(out);
        Ok(())
    }

    fn carry(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Send(place) => {
                    let Some(link) = &self.link else { continue };
                    let step = link.steps.of(place.turn);
                    let Some(end) = link.ends.frames(link.root) else { continue };
                    let _ = self.work.send(Job::Send { place, step, end });
                }
                Command::Gather { chunk, first, last, sum } => {
                    let _ = self.work.send(Job::Gather { chunk, first, last, sum });
                }
                Command::Commit(record) => {
                    let _ = self.work.send(Job::Commit(record));
                }
                Command::Grant(total) => {
                    if let Some(link) = &self.link {
                        link.ends.grant(link.root, total);
                    }
                }
                Command::Report(report) => self.session.outbox.report(&report),
            }
        }
    }
}

/// Starts a thread that may compute.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let computing = move || {
        millrace_emulator::kernels::ftz::enable();
        work();
    };
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(computing);
    spawned.map(drop).map_err(|error| Failure::own(format!("can't start a thread: {error}")))
}

/// The store's thread: works in the order in which the machine decided.
struct StoreWorker {
    store: Arc<Store>,
    done: mpsc::UnboundedSender<Done>,
    outbox: Outbox,
    stall: StallClock,
    plan: PlanHash,
}

impl StoreWorker {
    fn run(self, jobs: blocking::Receiver<Job>) {
        loop {
            let waiting = self.stall.start(StallReason::Grads);
            let Ok(job) = jobs.recv() else { return };
            drop(waiting);
            match job {
                Job::Send { place, step, end } => {
                    if let Some((encoding, payload)) = self.store.read(place.chunk) {
                        let context = LinkContext { plan: self.plan, encoding, step };
                        end.frame(codec::pack(Frame::new(place, payload), context));
                    }
                }
                Job::Gather { chunk, first, last, sum } => {
                    if let Some(norm) = self.store.gather(chunk, first, last, &sum) {
                        let _ = self.done.send(Done::Gathered { chunk, norm });
                    }
                }
                Job::Commit(record) => self.store.commit(record),
                Job::Snapshot(snapshot) => self.snapshot(snapshot),
            }
        }
    }

    /// Marks the chunks, so that no later update overtakes the snapshot, and writes them on another thread.
    fn snapshot(&self, snapshot: Snapshot) {
        let Snapshot { step, path } = snapshot;
        self.store.begin_snapshot(step);
        let (store, outbox) = (self.store.clone(), self.outbox.clone());
        let not_written = move |reason: String| Report::NotWritten { step, reason };
        let write = move || {
            let report = match store.write_snapshot(&path) {
                Ok(digests) => Report::Written { step, digests },
                Err(error) => {
                    store.abandon_snapshot();
                    not_written(super::checkpoint_failure(&error).to_string())
                }
            };
            outbox.report(&report);
        };
        if let Err(failure) = spawn("snapshot", write) {
            self.store.abandon_snapshot();
            self.outbox.report(&not_written(failure.to_string()));
        }
    }
}
