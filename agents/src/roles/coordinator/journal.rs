//! The `Journal` service: the run's numbered stream and its two commands.

use std::pin::Pin;

use millrace_protocol::proto;
use millrace_telemetry::journal::{Entry, Journal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// A user's command, answered when it is carried out.
#[derive(Debug)]
pub enum UserCommand {
    /// Write a checkpoint.
    Checkpoint(oneshot::Sender<proto::CommandReply>),
    /// End the run.
    Stop(oneshot::Sender<proto::CommandReply>),
}

/// Serves `journal`, once it is there, and hands commands to `commands`.
pub struct JournalService {
    journal: watch::Receiver<Option<Journal>>,
    commands: mpsc::UnboundedSender<UserCommand>,
}

/// Entries read from the journal at a time.
const BATCH: usize = 256;

impl JournalService {
    /// Serves on `listener`, in `server`'s way, for as long as the process lives.
    pub fn serve(
        mut server: Server,
        listener: tokio::net::TcpListener,
        journal: watch::Receiver<Option<Journal>>,
        commands: mpsc::UnboundedSender<UserCommand>,
    ) {
        let service = proto::journal_server::JournalServer::new(Self { journal, commands });
        tokio::spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            if let Err(error) = server.add_service(service).serve_with_incoming(incoming).await {
                log::error!("the journal is no longer served: {error}");
            }
        });
    }

    async fn command(
        &self,
        command: impl FnOnce(oneshot::Sender<proto::CommandReply>) -> UserCommand,
    ) -> Result<Response<proto::CommandReply>, Status> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(command(reply));
        answer.await.map(Response::new).map_err(|_| Status::unavailable("the run has ended"))
    }
}

#[tonic::async_trait]
impl proto::journal_server::Journal for JournalService {
    type FollowStream = Pin<Box<dyn Stream<Item = Result<proto::Entry, Status>> + Send>>;

    async fn follow(&self, request: Request<proto::FollowRequest>) -> Result<Response<Self::FollowStream>, Status> {
        let from = request.into_inner().from;
        let (sender, receiver) = mpsc::channel(BATCH);
        let mut journal = self.journal.clone();
        tokio::spawn(async move {
            let opened = journal.wait_for(Option::is_some).await.ok().and_then(|journal| journal.clone());
            if let Some(journal) = opened {
                follow(&journal, from, &sender).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn checkpoint(
        &self,
        _request: Request<proto::CheckpointRequest>,
    ) -> Result<Response<proto::CommandReply>, Status> {
        self.command(UserCommand::Checkpoint).await
    }

    async fn stop(&self, request: Request<proto::StopRequest>) -> Result<Response<proto::CommandReply>, Status> {
        log::info!("asked to stop: {}", request.into_inner().reason);
        self.command(UserCommand::Stop).await
    }
}

/// Sends every entry from number `from` on, for as long as somebody listens.
async fn follow(journal: &Journal, from: u64, sender: &mpsc::Sender<Result<proto::Entry, Status>>) {
    let (newest, mut appended) = watch::channel(0);
    let _subscription = journal.subscribe(move |number| {
        let _ = newest.send(number);
    });
    let mut follower = journal.follow(from);
    loop {
        let entries = match follower.poll(BATCH) {
            Ok(entries) => entries,
            Err(error) => {
                let _ = sender.send(Err(Status::data_loss(error.to_string()))).await;
                return;
            }
        };
        if entries.is_empty() {
            tokio::select! {
                changed = appended.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
        }
        for entry in entries {
            if sender.send(Ok(message(&entry))).await.is_err() {
                return;
            }
        }
    }
}

fn message(entry: &Entry) -> proto::Entry {
    let body = serde_json::to_value(&entry.event).unwrap_or_default();
    let kind = body.as_object().and_then(|body| body.keys().next().cloned()).unwrap_or_default();
    let body = body.get(&kind).map(ToString::to_string).unwrap_or_default();
    proto::Entry { number: entry.seq, attempt: entry.attempt as u32, time_ms: entry.unix_ms, kind, body }
}
