//! Worker processes that read samples of Python datasets.
//!
//! ```text
//!  activation server                          host (python/loader.py)
//!  ┌───────────────────────────┐   start,kill  ┌──────────────┐
//!  │ LoaderServer ◄────────────┼──────────────►│ host         │
//!  │   socket                  │    exited     │  ├─ worker 1 │
//!  │ LoaderPool (a dataset)    │  samples      │  └─ worker 2 │
//!  │   thread ◄────────────────┼──────────────►│   (Python)   │
//!  └───────────────────────────┘               └──────────────┘
//! ```
//!
//! A [`LoaderServer`] has the socket and the host: a small Python program that starts and ends workers, a process of
//! this machine or a container of its own. A [`LoaderPool`] reads the samples of one dataset with several workers; a
//! thread for each worker sends numbers of samples and receives their elements.
//!
//! Guarantees:
//!
//! * A worker that ends, hangs or sends invalid messages is replaced, and the same samples are read again. A sample
//!   that does this repeatedly, or whose code raises an exception, is reported with its index and the Python traceback.
//! * The global random generators of Python, NumPy and PyTorch are seeded for each sample, so that a sample is a
//!   function of its number if the dataset keeps no state of its own.
//! * A dataset that can only be iterated over is a [`LoaderStream`]: one worker iterates, and sample n is the n-th.
//! * A request occupies the memory of its own samples; messages of workers are bounded by it.
//! * Host and workers end with the server, however it ends.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

mod error;
mod host;
mod message;
mod pool;
mod server;
mod stream;
mod worker;

pub use error::LoaderError;
pub use message::{MAX_REPORT_BYTES, Message, parse_message};
pub use pool::LoaderPool;
pub use server::{HostLocation, LoaderServer};
pub use stream::LoaderStream;
