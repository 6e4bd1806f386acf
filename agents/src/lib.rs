//! The five roles as processes, the launcher of local runs, and the command line of `millrace-agent`.
//!
//! * [`launch`] runs a whole job on one machine. It is the entry point for other programs that run jobs.
//! * `roles` has the driver of each role. A driver is one process and executes the commands of `millrace-engine`.
//! * `control` is the stream between each agent and the coordinator; `links` connects the agents of the data tree.
//! * [`cli`] is the command line.
//! * `fetch` brings the uploads of a job into a pod of a cluster, before its agent starts.
//! * [`start_checkpoint`] decides which checkpoint a run starts from.
//! * [`generation`] continues a text with the model of a checkpoint. * [`checkpoint_tokenizer`] opens the tokenizer of
//!   a checkpoint, and [`exported_tokenizer`] converts it for `transformers`.
//! * [`model`] builds or reads the graph of a job's model.
//! * [`host`] reports cores, memory and speed of this machine.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

pub mod checkpoint_tokenizer;
mod checkpoints;
pub mod cli;
mod control;
pub mod dataset_epoch;
mod error;
pub mod exported_tokenizer;
mod fetch;
pub mod generation;
pub mod host;
mod http;
pub mod input;
pub mod launch;
mod links;
mod loader_args;
mod member;
pub mod model;
mod model_dir_uploads;
mod roles;
pub mod start_checkpoint;
mod write_watch;

pub use roles::role_process;
