//! The `Journal` service: streams the journal of the run, and accepts the commands to write a checkpoint, to stop and
//! to resize.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use millrace_checkpoint::lock::Owner;
use millrace_emulator::placement::PlacementError;
use millrace_protocol::error_chain;
use millrace_protocol::journal::to_proto;
use millrace_protocol::security::AuthenticatedIncoming;
use millrace_protocol::{proto, transport};
use millrace_telemetry::journal::{JournalEntry, JournalEvent, JournalFollower, JournalWriter};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// A command of a user. The reply is sent when the command has been executed.
#[derive(Debug)]
pub enum RunCommand {
    /// Write a checkpoint.
    Checkpoint(oneshot::Sender<proto::CommandReply>),
    /// End the run.
    Stop {
        /// Why.
        reason: String,
        /// Receives the reply when the run has ended.
        reply: oneshot::Sender<proto::CommandReply>,
    },
    Resize(ResizeCommand),
}

/// A command to continue on another number of systems.
#[derive(Debug)]
pub struct ResizeCommand {
    pub systems: u32,
    /// Minimum number of systems with which the run continues.
    pub min_systems: u32,
    /// Receives the reply when the number is accepted, or why it is not.
    pub reply: oneshot::Sender<Result<(), PlacementError>>,
}

/// The journal of model_dir as a view of the current job: entries of earlier jobs are left out, and attempts are
/// numbered from the job's first.
#[derive(Clone, Debug)]
pub struct JobJournal {
    /// The journal of all jobs that used model_dir.
    pub journal: JournalWriter,
    /// The owner of model_dir's lock, which numbers the attempts of the job.
    pub owner: Owner,
}

/// Serves `journal` once it is set, and sends commands to `commands`.
pub struct JournalService {
    journal: watch::Receiver<Option<JobJournal>>,
    commands: mpsc::Sender<RunCommand>,
}

/// A running service.
pub struct JournalServerHandle {
    end: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

impl JournalServerHandle {
    /// Accepts no more calls, and waits until those in progress have ended, at most for `timeout`. In this time
    /// followers receive the last entry, and callers receive the replies to their commands.
    pub async fn finish(self, timeout: Duration) {
        let _ = self.end.send(());
        let _ = tokio::time::timeout(timeout, self.server).await;
    }
}

/// Maximum entries read from the journal at a time.
const READ_BATCH_ENTRIES: usize = 256;

/// Maximum commands of users that wait for the coordinator.
pub const MAX_QUEUED_COMMANDS: usize = 64;

impl JournalService {
    /// Serves the peers that `incoming` admits, until the process ends or [`JournalServerHandle::finish`] is called.
    pub fn serve(
        incoming: AuthenticatedIncoming,
        journal: watch::Receiver<Option<JobJournal>>,
        commands: mpsc::Sender<RunCommand>,
    ) -> JournalServerHandle {
        let service = proto::journal_server::JournalServer::new(Self { journal, commands });
        let (end, ended) = oneshot::channel::<()>();
        let server = tokio::spawn(async move {
            let ended = async { drop(ended.await) };
            if let Err(error) =
                transport::server().add_service(service).serve_with_incoming_shutdown(incoming, ended).await
            {
                tracing::error!("the journal is no longer served: {error}");
            }
        });
        JournalServerHandle { end, server }
    }

    async fn command(
        &self,
        command: impl FnOnce(oneshot::Sender<proto::CommandReply>) -> RunCommand,
    ) -> Result<Response<proto::CommandReply>, Status> {
        let (reply, response) = oneshot::channel();
        let _ = self.commands.send(command(reply)).await;
        response.await.map(Response::new).map_err(|_| Status::unavailable("the run has ended"))
    }
}

#[tonic::async_trait]
impl proto::journal_server::Journal for JournalService {
    type FollowStream = Pin<Box<dyn Stream<Item = Result<proto::Entry, Status>> + Send>>;

    async fn follow(&self, request: Request<proto::FollowRequest>) -> Result<Response<Self::FollowStream>, Status> {
        let request = request.into_inner();
        let (sender, receiver) = mpsc::channel(READ_BATCH_ENTRIES);
        let mut journal = self.journal.clone();
        tokio::spawn(async move {
            let opened = journal.wait_for(Option::is_some).await.ok().and_then(|journal| journal.clone());
            if let Some(journal) = opened {
                follow(&journal, &request, &sender).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn checkpoint(
        &self,
        _request: Request<proto::CheckpointRequest>,
    ) -> Result<Response<proto::CommandReply>, Status> {
        self.command(RunCommand::Checkpoint).await
    }

    async fn stop(&self, request: Request<proto::StopRequest>) -> Result<Response<proto::CommandReply>, Status> {
        let reason = request.into_inner().reason;
        tracing::info!("stop requested: {reason}");
        self.command(|reply| RunCommand::Stop { reason, reply }).await
    }

    async fn resize(&self, request: Request<proto::ResizeRequest>) -> Result<Response<proto::ResizeReply>, Status> {
        let proto::ResizeRequest { num_csx: systems, min_csx: min_systems } = request.into_inner();
        let (reply, response) = oneshot::channel();
        let _ = self.commands.send(RunCommand::Resize(ResizeCommand { systems, min_systems, reply })).await;
        let accepted = response.await.map_err(|_| Status::unavailable("the run has ended"))?;
        accepted
            .map(|()| Response::new(proto::ResizeReply {}))
            .map_err(|error| Status::invalid_argument(error.to_string()))
    }
}

/// Returns the next entries. Files are read on another thread, because their storage may not respond.
async fn next_entries(mut follower: JournalFollower) -> Result<(JournalFollower, Vec<Arc<JournalEntry>>), Status> {
    let reads_files = follower.reads_files();
    let poll = move || follower.poll(READ_BATCH_ENTRIES).map(|entries| (follower, entries));
    let next = match reads_files {
        true => tokio::task::spawn_blocking(poll).await.map_err(|error| Status::internal(error.to_string()))?,
        false => poll(),
    };
    next.map_err(|error| Status::data_loss(error_chain(&error)))
}

/// Sends the requested entries until the client disconnects or the outcome of the attempt was sent.
async fn follow(
    JobJournal { journal, owner }: &JobJournal,
    request: &proto::FollowRequest,
    sender: &mpsc::Sender<Result<proto::Entry, Status>>,
) {
    let (newest, mut appended) = watch::channel(0);
    let _subscription = journal.subscribe(move |number| {
        let _ = newest.send(number);
    });
    let (mut entries, mut follower) = if request.from_current_state {
        journal.follow_from_current_state()
    } else {
        (Vec::new(), journal.follow(request.from))
    };
    loop {
        for entry in std::mem::take(&mut entries) {
            let last = entry.attempt == journal.attempt() && matches!(entry.event, JournalEvent::Outcome(_));
            let Some(attempt) = owner.attempt_of_job(entry.attempt) else { continue };
            if sender.send(Ok(to_proto(&entry, attempt))).await.is_err() || last {
                return;
            }
        }
        (follower, entries) = match next_entries(follower).await {
            Ok(next) => next,
            Err(status) => {
                let _ = sender.send(Err(status)).await;
                return;
            }
        };
        if entries.is_empty() {
            tokio::select! {
                changed = appended.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
        }
    }
}
