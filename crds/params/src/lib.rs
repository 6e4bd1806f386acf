//! The params document (`train_input`, `eval_input`, `model`, `optimizer`, `runconfig`) and the appliance's description.
//!
//! Each has two forms, with one conversion between them:
//!
//! * [`Params`] is the document as the user writes it, read strictly by [`Params::parse_yaml`];
//! * [`Job`] is the resolved document that every agent receives, built by [`Params::resolve`];
//! * [`ApplianceDocument`] and [`ApplianceSpec`] are the same for the machine that runs it.
//!
//! [`ObjectName`], [`LabelName`] and [`FileName`] are names that may become parts of paths.
//!
//! All functions are pure: no file is opened, so callers check whether data files exist. With the feature `schema` the
//! document types have JSON schemas.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![warn(missing_docs)]

mod appliance;
mod document;
mod error;
mod job;
mod name;
mod resolve;
mod yaml;

pub use appliance::{
    ApplianceDocument, ApplianceSpec, Bytes, LinkDocument, LinkSpec, MemoryXDocument, MemoryXSpec, SwarmXDocument,
    SwarmXSpec, WaferDocument, WaferSpec,
};
pub use document::{
    InitializerChoice, InitializerParams, InputParams, LearningRate, MicroBatchChoice, MicroBatchRange, ModelParams,
    OneOrMany, OptimizerParams, Params, RunParams, ScheduleParams,
};
pub use error::{ParamsError, Problem, ProblemKind};
pub use job::{
    CheckpointStates, Family, Initializer, Initializers, InputSpec, Job, LogLevel, LossScaling, Mode, ModelSpec,
    Nonlinearity, OptimizerKind, OptimizerSpec, Piece, Precision, Resolved, RunSpec, Schedule, Segment, Source, Split,
    Tokenizer,
};
pub use name::{FileName, InvalidName, LabelName, ObjectName};
pub use resolve::Overrides;
