//! The params document (`train_input`, `eval_input`, `model`, `optimizer`, `runconfig`) and the appliance's
//! description.
//!
//! Each has two forms, with one conversion between them:
//!
//! * [`Params`] is the document as the user writes it, read strictly by [`Params::parse_yaml`] in the classic layout or
//!   the `trainer` layout, and [`PhasedParams`] are those of a document with several phases;
//! * [`JobSpec`] is the resolved document that every agent receives, built by [`Params::resolve`];
//! * [`MachineDocument`] and [`MachineSpec`] are the same for the machine that runs it.
//!
//! [`ObjectName`], [`LabelName`], [`FileName`] and [`BlobDigest`] are names that may become parts of paths.
//!
//! [`Role`] is one of the five roles of a job's processes.
//!
//! [`mod@reference`] describes every key of the params.
//!
//! All functions are pure: no file is opened, so callers check whether data files exist. With the feature `schema` the
//! document types have JSON schemas.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod appliance;
mod document;
mod error;
mod job;
mod keys;
mod keywords;
mod name;
pub mod optimizers;
mod phases;
pub mod reference;
mod resolve;
mod role;
mod trainer;
mod yaml;

pub use appliance::{
    ByteSize, LinkDocument, LinkSpec, MachineDocument, MachineSpec, MemoryXDocument, MemoryXSpec, SwarmXDocument,
    SwarmXSpec, WaferDocument, WaferSpec,
};
pub use document::{
    AttentionParams, DropFractionParams, DropFractionSetting, EpsSetting, ImageSize, ImageTransformParams,
    InitializerParams, InitializerSetting, InputParams, LearningRateScaleParams, LearningRateSetting, MaskUpdateParams,
    MicroBatchRange, MicroBatchSetting, MixtureParams, ModelParams, MomentumScheduleParams, NestedSchedules, OneOrMany,
    OptimizerGroupParams, OptimizerParams, Params, RotaryScalingParams, RunParams, SampleTransformParams,
    ScheduleParams, SparsityParams,
};
pub use error::{ParamsError, ParamsProblem, ParamsProblemKind};
pub use job::{
    AnnealStrategy, CheckpointStates, CsvRows, CycleAmplitude, DEFAULT_TEXT_KEY, DataSource, DecoderOptions,
    DropFraction, EncoderOptions, EncoderTask, Fan, ImageFormat, ImageNetwork, ImageOptions, ImagePart, ImageShape,
    ImageSource, ImageTransform, InitializerSpec, Initializers, InputSpec, JobSpec, LearningRateScale, LineRows,
    LogLevel, LossScaling, LossSpikeAction, LossSpikeSpec, MaskGrowth, MaskUpdate, MaskingSpec, MixturePart, Mode,
    ModelFamily, ModelSize, ModelSpec, MomentumCurve, MomentumSchedule, Nonlinearity, Norm, OptimizerGroup,
    OptimizerSpec, ParallelBlocks, ParameterFilter, Positions, Precision, ResolveOutput, RotaryPositions,
    RotaryScaling, RunSpec, ScalingDistribution, Schedule, ScheduleSegment, ScheduleSegmentKind, Seq2SeqDecoder,
    Seq2SeqOptions, Seq2SeqPositions, SinkTokens, SparsitySpec, Split, TensorSettings, TfRecordRows, TokenType,
    TokenizerName,
};
pub use name::{BlobDigest, FileName, InvalidName, LabelName, ObjectName};
pub use optimizers::OptimizerKind;
pub use phases::PhasedParams;
pub use resolve::FlagOverrides;
pub use role::{Role, UnknownRole, shard_of_agent};
