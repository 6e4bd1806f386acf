//! The files of a job, served by a reader.

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use millrace_protocol::journal::{self, JournalError};
use millrace_protocol::proto::files_client::FilesClient;
use millrace_protocol::proto::journal_client::JournalClient;
use millrace_protocol::proto::read_reply::Reply;
use millrace_protocol::proto::read_request::Request;
use millrace_protocol::proto::{self, ByteRange, CheckpointsRequest, File, FileRef, ReadReply, ReadRequest};
use millrace_protocol::security::{ExpectedPeer, Identity};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::{ByteChunks, CheckpointFiles, FileContent, FileInfo, FileSet, Files, OpenFile, wire};
use crate::error::{ApiError, ErrorReason, Result};
use crate::generation::{self, GenerationRequest, GenerationStream};

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
    pub fn new(address: &str, identity: &Identity, reader: ExpectedPeer) -> Result<Self, JournalError> {
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
        let checkpoints = self.client().checkpoints(CheckpointsRequest {}).await.map_err(api_error)?.into_inner();
        checkpoints.map_ok(Into::into).map_err(api_error).try_collect().await
    }

    async fn list(&self, file_set: &FileSet) -> Result<Vec<FileInfo>> {
        let files = self.client().list(proto::FileSet::from(file_set)).await.map_err(api_error)?.into_inner();
        files.map_ok(Into::into).map_err(api_error).try_collect().await
    }

    async fn open(&self, file_set: &FileSet, path: &str) -> Result<OpenFile> {
        // Room for the two requests that are sent.
        let (requests, receiver) = mpsc::channel(2);
        let file = FileRef { file_set: Some(file_set.into()), path: path.to_owned() };
        // Can't fail: the receiver is in this function.
        let _ = requests.send(ReadRequest { request: Some(Request::File(file)) }).await;
        let replies = self.client().read(ReceiverStream::new(receiver)).await;
        let mut replies = replies.map_err(api_error)?.into_inner();
        match replies.message().await.map_err(api_error)? {
            Some(ReadReply { reply: Some(Reply::File(File { bytes, tag })) }) => {
                Ok(OpenFile { bytes, tag, content: Box::new(RemoteContent { requests, replies }) })
            }
            other => Err(unexpected_reply(other.is_some())),
        }
    }

    async fn generate(&self, request: GenerationRequest) -> Result<GenerationStream> {
        let request = proto::GenerateRequest::from(request);
        let replies = self.client().generate(request).await.map_err(api_error)?.into_inner();
        let events = replies.map(|reply| {
            let event = generation::wire::event(reply.map_err(api_error)?);
            event.ok_or_else(|| unexpected_reply(true))
        });
        Ok(events.boxed())
    }
}

/// A file that the reader keeps open until this is dropped.
struct RemoteContent {
    requests: mpsc::Sender<ReadRequest>,
    replies: Streaming<ReadReply>,
}

#[async_trait]
impl FileContent for RemoteContent {
    async fn read_range(self: Box<Self>, first: u64, length: u64) -> Result<ByteChunks> {
        let Self { requests, replies } = *self;
        // If the call has ended, the replies have its error.
        let _ = requests.send(ReadRequest { request: Some(Request::Range(ByteRange { first, length })) }).await;
        let chunks = replies.map(|reply| match reply.map_err(api_error)? {
            ReadReply { reply: Some(Reply::ChunkData(bytes)) } => Ok(bytes),
            _ => Err(unexpected_reply(true)),
        });
        Ok(chunks.boxed())
    }
}

/// Converts the error of a reader, or reports that it does not respond.
fn api_error(status: Status) -> ApiError {
    wire::from_status(&status).unwrap_or_else(|| reader_unavailable().with_source(status))
}

fn unexpected_reply(is_message: bool) -> ApiError {
    let received = if is_message { "an unexpected message" } else { "no message" };
    reader_unavailable()
        .with_source(format!("the reader replied with {received}: check that its image has this server's version"))
}

fn reader_unavailable() -> ApiError {
    ApiError::new(ErrorReason::Unavailable, "the job's file reader is not responding: try again in a moment")
}
