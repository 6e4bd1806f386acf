//! The two services of a reader: files, and the journal from its files.

use std::path::PathBuf;

use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryFutureExt, TryStreamExt};
use millrace_protocol::error_chain;
use millrace_protocol::proto::read_reply::Reply;
use millrace_protocol::proto::read_request::Request as ReadKind;
use millrace_protocol::proto::{self, ByteRange, FileRef, ReadReply, ReadRequest};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::ReaderSource;
use super::activity::RequestActivity;
use crate::error::{ApiError, ErrorReason, Result};
use crate::files::{FileContent, Files, LocalFiles, OpenFile, wire};
use crate::journal_files;

type ResponseStream<T> = BoxStream<'static, Result<T, Status>>;

pub struct FilesService {
    files: LocalFiles,
    activity: RequestActivity,
}

impl FilesService {
    /// Serves the files of this reader.
    pub fn new(reads: &ReaderSource, activity: RequestActivity) -> Self {
        Self {
            files: LocalFiles::new(reads.model_dir.clone(), reads.exports.clone(), reads.generator.clone()),
            activity,
        }
    }
}

#[tonic::async_trait]
impl proto::files_server::Files for FilesService {
    type CheckpointsStream = ResponseStream<proto::CheckpointFiles>;
    type ListStream = ResponseStream<proto::FileInfo>;
    type ReadStream = ResponseStream<ReadReply>;
    type GenerateStream = ResponseStream<proto::GenerateReply>;

    async fn checkpoints(
        &self,
        _: Request<proto::CheckpointsRequest>,
    ) -> Result<Response<Self::CheckpointsStream>, Status> {
        let activity = self.activity.begin();
        let checkpoints = self.files.checkpoints().await.map_err(wire::to_status)?;
        Ok(Response::new(activity.hold_until_end(stream::iter(checkpoints).map(|checkpoint| Ok(checkpoint.into())))))
    }

    async fn list(&self, request: Request<proto::FileSet>) -> Result<Response<Self::ListStream>, Status> {
        let activity = self.activity.begin();
        let file_set = request.into_inner().try_into().map_err(wire::to_status)?;
        let files = self.files.list(&file_set).await.map_err(wire::to_status)?;
        Ok(Response::new(activity.hold_until_end(stream::iter(files).map(|file| Ok(file.into())))))
    }

    async fn read(&self, request: Request<Streaming<ReadRequest>>) -> Result<Response<Self::ReadStream>, Status> {
        let activity = self.activity.begin();
        let mut requests = request.into_inner();
        let Some(ReadKind::File(FileRef { file_set, path })) = next(&mut requests).await? else {
            return Err(unexpected_request());
        };
        let file_set = file_set.unwrap_or_default().try_into().map_err(wire::to_status)?;
        let OpenFile { bytes, tag, content } = self.files.open(&file_set, &path).await.map_err(wire::to_status)?;
        let file = stream::once(async move { Ok(reply(Reply::File(proto::File { bytes, tag }))) });
        let part = read_chunks(requests, content).try_flatten_stream();
        Ok(Response::new(activity.hold_until_end(file.chain(part))))
    }

    async fn generate(
        &self,
        request: Request<proto::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let activity = self.activity.begin();
        let request = request.into_inner().try_into().map_err(wire::to_status)?;
        let events = self.files.generate(request).await.map_err(wire::to_status)?;
        Ok(Response::new(activity.hold_until_end(events.map_ok(Into::into).map_err(wire::to_status))))
    }
}

/// Reads the next request, which selects a part of the open file; empty if there is none.
async fn read_chunks(
    mut requests: Streaming<ReadRequest>,
    content: Box<dyn FileContent>,
) -> Result<ResponseStream<ReadReply>, Status> {
    match next(&mut requests).await? {
        Some(ReadKind::Range(ByteRange { first, length })) => {
            let chunks = content.read_range(first, length).await.map_err(wire::to_status)?;
            Ok(chunks.map_ok(|bytes| reply(Reply::ChunkData(bytes))).map_err(wire::to_status).boxed())
        }
        Some(ReadKind::File(_)) => Err(unexpected_request()),
        None => Ok(stream::empty().boxed()),
    }
}

async fn next(requests: &mut Streaming<ReadRequest>) -> Result<Option<ReadKind>, Status> {
    Ok(requests.message().await?.and_then(|request| request.request))
}

fn reply(reply: Reply) -> ReadReply {
    ReadReply { reply: Some(reply) }
}

fn unexpected_request() -> Status {
    wire::to_status(ApiError::new(ErrorReason::BadRequest, "name a file, then a range of its bytes"))
}

/// The service for the journal, read from files.
pub struct FileJournalService {
    model_dir: PathBuf,
    uid: String,
    activity: RequestActivity,
}

impl FileJournalService {
    /// Serves the journal of this reader.
    pub fn new(reads: &ReaderSource, activity: RequestActivity) -> Self {
        Self { model_dir: reads.model_dir.clone(), uid: reads.uid.clone(), activity }
    }
}

#[tonic::async_trait]
impl proto::journal_server::Journal for FileJournalService {
    type FollowStream = ResponseStream<proto::Entry>;

    async fn follow(&self, request: Request<proto::FollowRequest>) -> Result<Response<Self::FollowStream>, Status> {
        let activity = self.activity.begin();
        let proto::FollowRequest { from, from_current_state } = request.into_inner();
        if from_current_state {
            return Err(Status::unimplemented("a reader serves the journal from an entry number on"));
        }
        let entries = journal_files::entries(self.model_dir.clone(), self.uid.clone(), from);
        let entries =
            ReceiverStream::new(entries).map(|entry| entry.map_err(|error| Status::data_loss(error_chain(&error))));
        Ok(Response::new(activity.hold_until_end(entries)))
    }

    async fn checkpoint(&self, _: Request<proto::CheckpointRequest>) -> Result<Response<proto::CommandReply>, Status> {
        Err(no_coordinator())
    }

    async fn stop(&self, _: Request<proto::StopRequest>) -> Result<Response<proto::CommandReply>, Status> {
        Err(no_coordinator())
    }

    async fn resize(&self, _: Request<proto::ResizeRequest>) -> Result<Response<proto::ResizeReply>, Status> {
        Err(no_coordinator())
    }
}

fn no_coordinator() -> Status {
    Status::unimplemented("a reader is read-only: send this to the job's coordinator")
}
