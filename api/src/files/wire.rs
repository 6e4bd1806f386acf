//! Conversion of files and errors to and from the messages of the reader's protocol.

use std::error::Error;

use k8s_openapi::jiff::Timestamp;
use millrace_protocol::{error_chain, proto};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use super::{CheckpointFiles, FileInfo, FileSet};
use crate::error::{ApiError, ErrorReason, Result};

/// Metadata key of the reason of an error. A status without it comes from gRPC itself.
const REASON_METADATA_KEY: &str = "millrace-refusal";
/// The source of an internal error of a reader.
const READER_LOGS_CAUSE: &str = "the log of the job's file reader has the cause";
/// Limit on the message of an error: it is sent in a header, whose size both ends limit.
const MAX_MESSAGE_BYTES: usize = 2 << 10;
/// The reasons that occur for files, with their status codes.
const REASON_CODES: [(ErrorReason, Code); 7] = [
    (ErrorReason::BadRequest, Code::InvalidArgument),
    (ErrorReason::NotFound, Code::NotFound),
    (ErrorReason::Gone, Code::DataLoss),
    (ErrorReason::Internal, Code::Internal),
    (ErrorReason::Unavailable, Code::Unavailable),
    (ErrorReason::TooManyRequests, Code::ResourceExhausted),
    (ErrorReason::PayloadTooLarge, Code::OutOfRange),
];

/// Converts an error to a gRPC status, and logs it if it is one of the reader.
pub fn to_status(error: ApiError) -> Status {
    if let Some(source) = error.source() {
        tracing::error!("{}: {}", error.detail, error_chain(source));
    }
    let ApiError { reason, mut detail, .. } = error;
    let code = REASON_CODES.iter().find(|(known, _)| *known == reason).map_or(Code::Internal, |(_, code)| *code);
    detail.truncate(detail.floor_char_boundary(MAX_MESSAGE_BYTES));
    let mut metadata = MetadataMap::new();
    metadata.insert(REASON_METADATA_KEY, MetadataValue::from_static(reason.as_str()));
    Status::with_metadata(code, detail, metadata)
}

/// Converts a status back to the error; `None` if it is not one of ours.
pub fn from_status(status: &Status) -> Option<ApiError> {
    let name = status.metadata().get(REASON_METADATA_KEY)?.to_str().ok()?;
    let reason = REASON_CODES.iter().map(|(reason, _)| *reason).find(|reason| reason.as_str() == name);
    let reason = reason.unwrap_or(ErrorReason::Internal);
    let error = ApiError::new(reason, status.message());
    Some(if reason == ErrorReason::Internal { error.with_source(READER_LOGS_CAUSE) } else { error })
}

impl From<FileInfo> for proto::FileInfo {
    fn from(FileInfo { path, bytes, time }: FileInfo) -> Self {
        Self { path, bytes, time_ns: time.and_then(nanoseconds) }
    }
}

impl From<proto::FileInfo> for FileInfo {
    fn from(proto::FileInfo { path, bytes, time_ns }: proto::FileInfo) -> Self {
        Self { path, bytes, time: time_ns.and_then(timestamp) }
    }
}

impl From<CheckpointFiles> for proto::CheckpointFiles {
    fn from(CheckpointFiles { step, digest, bytes, time, files }: CheckpointFiles) -> Self {
        let files = files.into_iter().map(Into::into).collect();
        Self { step, parameters_blake3: digest, bytes, time_ns: time.and_then(nanoseconds), files }
    }
}

impl From<proto::CheckpointFiles> for CheckpointFiles {
    fn from(message: proto::CheckpointFiles) -> Self {
        let proto::CheckpointFiles { step, parameters_blake3: digest, bytes, time_ns, files } = message;
        let files = files.into_iter().map(Into::into).collect();
        Self { step, digest, bytes, time: time_ns.and_then(timestamp), files }
    }
}

impl From<&FileSet> for proto::FileSet {
    fn from(file_set: &FileSet) -> Self {
        use proto::file_set::Set;
        Self {
            set: Some(match file_set {
                FileSet::Checkpoint(step) => Set::Checkpoint(*step),
                FileSet::HuggingFace(step) => Set::HuggingFace(*step),
                FileSet::Artifacts => Set::Artifacts(proto::Artifacts {}),
            }),
        }
    }
}

impl TryFrom<proto::FileSet> for FileSet {
    type Error = ApiError;

    fn try_from(message: proto::FileSet) -> Result<Self> {
        use proto::file_set::Set;
        match message.set {
            Some(Set::Checkpoint(step)) => Ok(Self::Checkpoint(step)),
            Some(Set::HuggingFace(step)) => Ok(Self::HuggingFace(step)),
            Some(Set::Artifacts(_)) => Ok(Self::Artifacts),
            None => Err(ApiError::new(
                ErrorReason::BadRequest,
                "this file reader does not support the requested file set: update its image",
            )),
        }
    }
}

fn nanoseconds(time: Timestamp) -> Option<i64> {
    time.as_nanosecond().try_into().ok()
}

fn timestamp(nanoseconds: i64) -> Option<Timestamp> {
    Timestamp::from_nanosecond(nanoseconds.into()).ok()
}
