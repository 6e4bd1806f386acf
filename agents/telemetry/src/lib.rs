//! What a run tells: to scripts, to people, to TensorBoard, to Prometheus and to those who follow it over the network.
//!
//! Plain blocking library pieces; nothing here knows a socket, an async runtime or the training loop. The coordinator
//! writes everything that lies in `model_dir`, each role only keeps its counters and hands its log records over:
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
//! * An append-only file only ever holds whole lines, up to one torn line at its end after a crash, which the next
//!   opening removes. A failed append (full disk) is cut back before the next one, and its line is kept in memory and
//!   written then. That memory is bounded: what is dropped beyond the bound is counted.
//! * A file that is replaced is replaced by rename ([`atomic_file`]): a reader sees the old one or the new one.
//! * Counting costs an atomic add: no lock and no allocation in the step loop.
//! * Nothing read from a disk or given by a peer can panic or name a path outside `model_dir`.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod atomic_file;
mod backlog;
mod error;
pub mod journal;
mod jsonl;
pub mod logs;
pub mod memory;
pub mod metric_definitions;
pub mod metrics;
pub mod performance;
mod process;
pub mod progress;
pub mod prometheus;
pub mod stall;
pub mod tensorboard;
mod time;

pub use error::{Error, Result};
