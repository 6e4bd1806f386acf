//! Everything a run records: metrics, curves, logs, the journal, progress lines and performance figures.
//!
//! The consumers are scripts, users, TensorBoard, Prometheus, and clients that follow the run over the network. All
//! functions are synchronous; nothing here uses sockets, an async runtime or the training loop. The coordinator writes
//! all files in `model_dir`; each other role only keeps its counters and passes on its log records:
//!
//! ```text
//!   every role                              coordinator                            model_dir
//!   RoleMetrics, StallClock --/metrics-->   (scraped by Prometheus)
//!   logs::Logger --record--> (wire) -->     logs::LogFiles         ----------->    logs/attempt-N/ROLE-I.log
//!                                           journal::Journal       ----------->    journal/attempt-N.jsonl
//!                                           metrics::MetricsLog    ----------->    metrics.jsonl
//!                                           tensorboard::EventWriter --------->    events.out.tfevents.*
//!                                           performance::Performance --------->    performance.json
//! ```
//!
//! Invariants:
//! * An append-only file contains only complete lines, except for one torn line at its end after a crash. The next
//!   opening of the file removes it. After a failed append (full disk) the file is truncated to its last complete line
//!   before the next append. The line of the failed append is kept in memory and written later. That memory is bounded,
//!   and what is dropped beyond the bound is counted.
//! * A file that is replaced is replaced by a rename ([`atomic_file`]): a reader sees the old or the new file.
//! * Updating a counter costs an atomic add: no lock and no allocation in the step loop.
//! * Nothing read from a disk or received from a peer can cause a panic or name a path outside `model_dir`.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

pub mod atomic_file;
mod backlog;
mod error;
pub mod journal;
mod jsonl;
pub mod logs;
pub mod memory;
pub mod metric_definitions;
mod metric_point;
pub mod metrics_log;
pub mod performance;
mod process;
pub mod progress;
pub mod prometheus;
pub mod stall;
pub mod tensorboard;
mod time;

pub use error::{Error, Result};
pub use time::unix_ms;
