//! The files of a job, served by a reader.

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use millrace_protocol::journal::{self, JournalError};
use millrace_protocol::proto::files_client::FilesClient;
use millrace_protocol::proto::journal_client::JournalClient;
use millrace_protocol::proto::read_reply::Reply;
use millrace_protocol::proto::read_request::Request;
use millrace_protocol::proto::{self, CheckpointsRequest, File, Part, Place, ReadReply, ReadRequest};
use millrace_protocol::security::{Expected, Identity};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::{CheckpointFiles, Content, FileInfo, Files, Opened, Pieces, Shelf, wire};
use crate::refusal::{Reason, Refusal, Result};

/// The files of a job that a [`reader`](crate::reader) on another machine serves. Clones share its one connection,
/// which is opened at the first request.
#[derive(Clone, Debug)]
pub struct RemoteFiles {
    channel: Channel,
}

impl RemoteFiles {
    /// Creates a client of the `reader` at `address` (`host:port`). Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// The address is invalid; no connection is opened yet.
    pub fn new(address: &str, identity: &Identity, reader: Expected) -> Result<Self, JournalError> {
        Ok(Self { channel: journal::channel(address, identity, reader)? })
    }

    /// Returns a client for the job's journal, which the same reader reads from its files: `follow` ends after the last
    /// entry.
    pub fn journal(&self) -> JournalClient<Channel> {
        JournalClient::new(self.channel.clone())
    }

    fn client(&self) -> FilesClient<Channel> {
        FilesClient::new(self.channel.clone())
    }
}

#[async_trait]
impl Files for RemoteFiles {
    async fn checkpoints(&self) -> Result<Vec<CheckpointFiles>> {
        let checkpoints = self.client().checkpoints(CheckpointsRequest {}).await.map_err(refused)?.into_inner();
        checkpoints.map_ok(Into::into).map_err(refused).try_collect().await
    }

    async fn list(&self, shelf: &Shelf) -> Result<Vec<FileInfo>> {
        let files = self.client().list(proto::Shelf::from(shelf)).await.map_err(refused)?.into_inner();
        files.map_ok(Into::into).map_err(refused).try_collect().await
    }

    async fn open(&self, shelf: &Shelf, path: &str) -> Result<Opened> {
        // Room for the two requests that are sent.
        let (asks, asked) = mpsc::channel(2);
        let place = Place { shelf: Some(shelf.into()), path: path.to_owned() };
        // Can't fail: the receiver is in this function.
        let _ = asks.send(ReadRequest { request: Some(Request::Place(place)) }).await;
        let replies = self.client().read(ReceiverStream::new(asked)).await;
        let mut replies = replies.map_err(refused)?.into_inner();
        match replies.message().await.map_err(refused)? {
            Some(ReadReply { reply: Some(Reply::File(File { bytes, tag })) }) => {
                Ok(Opened { bytes, tag, content: Box::new(Reading { asks, replies }) })
            }
            other => Err(unexpected(other)),
        }
    }
}

/// A file that the reader keeps open until this is dropped.
struct Reading {
    asks: mpsc::Sender<ReadRequest>,
    replies: Streaming<ReadReply>,
}

#[async_trait]
impl Content for Reading {
    async fn part(self: Box<Self>, first: u64, length: u64) -> Result<Pieces> {
        let Self { asks, replies } = *self;
        // If the call has ended, the replies have its error.
        let _ = asks.send(ReadRequest { request: Some(Request::Part(Part { first, length })) }).await;
        let pieces = replies.map(|reply| match reply.map_err(refused)? {
            ReadReply { reply: Some(Reply::Piece(bytes)) } => Ok(bytes),
            other => Err(unexpected(Some(other))),
        });
        Ok(pieces.boxed())
    }
}

/// Converts the error of a reader, or reports that it does not respond.
fn refused(status: Status) -> Refusal {
    wire::refusal(&status).unwrap_or_else(|| {
        tracing::warn!("a reader of a job's files does not answer: {status}");
        away()
    })
}

fn unexpected(reply: Option<ReadReply>) -> Refusal {
    let said = if reply.is_some() { "what was not asked for" } else { "nothing" };
    tracing::warn!("a reader of a job's files answers {said}: is its image another version's?");
    away()
}

fn away() -> Refusal {
    Refusal::new(Reason::Unavailable, "what reads the job's files does not answer: try again in a moment")
}
