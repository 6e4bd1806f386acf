//! S3-compatible buckets: their addresses, the connection to one, and model_dirs whose files are objects of one.
//!
//! * [`BucketAddress`] is `s3://BUCKET/PREFIX`. Region, endpoint and credentials are those of the environment
//!   (`AWS_*`), as for other programs.
//! * [`Bucket`] reads, writes, lists and deletes objects below the prefix, with bounded retries and memory.
//! * [`ModelDirCopy`] is a directory of this machine in which a run works, and whose files are uploaded to a bucket
//!   while it does.
//!
//! Names and content of objects are input from outside: each has a bound, and no content can make this crate panic.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod bucket;
mod error;
mod model_dir;
mod transfer;

pub use address::BucketAddress;
pub use bucket::Bucket;
pub use error::BucketError;
pub use model_dir::{
    CopyEvent, ModelDirCopy, ModelDirError, Reporter, UploadControl, UploadHandle, WantedCheckpoints,
    fetch_checkpoints, upload_handle,
};
