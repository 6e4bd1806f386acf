//! The keywords that keys of the params accept, with the values they stand for.
//!
//! Each table is used three times: by `resolve` to look up a value, by the [`reference`](crate::reference) to list the
//! choices, and by the JSON schema for editors. Keywords are compared without regard to case, unless two differ by it:
//! the data processors `SST2DataProcessor` and `Sst2DataProcessor` of the public model zoo read different files.

use crate::job::{
    AnnealStrategy, CsvRows, Fan, ImageFormat, LineRows, LogLevel, LossScaling, LossSpikeAction, MaskGrowth, Mode,
    ModelFamily, MomentumCurve, Nonlinearity, Norm, ScalingDistribution, TfRecordRows, TokenType, TokenizerName,
};

/// The keywords of one key.
pub(crate) struct Keywords<T: 'static> {
    /// Each keyword with its value, the preferred spelling first.
    pub values: &'static [(&'static str, T)],
    /// Keywords of the public model zoo that are not supported yet.
    pub unsupported: &'static [&'static str],
}

impl<T: Copy> Keywords<T> {
    /// Returns the value of a supported keyword. Of two that differ by case only, that with the case of `text`, or the
    /// first.
    pub(crate) fn get(&self, text: &str) -> Option<T> {
        let is_same = |(keyword, _): &&(&str, T)| *keyword == text;
        let is_alike = |(keyword, _): &&(&str, T)| keyword.eq_ignore_ascii_case(text);
        let found = self.values.iter().find(is_same).or_else(|| self.values.iter().find(is_alike));
        found.map(|(_, value)| *value)
    }

    /// Returns whether `text` is a keyword that is not supported yet.
    pub(crate) fn is_unsupported(&self, text: &str) -> bool {
        self.unsupported.iter().any(|keyword| keyword.eq_ignore_ascii_case(text))
    }
}

/// The names in a table of keywords, whatever they stand for.
pub(crate) trait KeywordNames: Sync {
    /// Returns the supported keywords.
    fn names(&self) -> Vec<&'static str>;
    /// Returns the keywords that are not supported yet.
    fn unsupported(&self) -> &'static [&'static str];
}

impl<T: Sync> KeywordNames for Keywords<T> {
    fn names(&self) -> Vec<&'static str> {
        self.values.iter().map(|(keyword, _)| *keyword).collect()
    }

    fn unsupported(&self) -> &'static [&'static str] {
        self.unsupported
    }
}

/// A data processor: the kind of source that an input reads.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Processor {
    Text,
    Tokens,
    Hdf5,
    Images(ImageFormat),
    Synthetic,
    /// Files of lines for an encoder with a decoder.
    Lines(LineRows),
    /// CSV files with rows for an encoder.
    Csv(CsvRows),
    /// HDF5 files with samples for an encoder.
    EncoderHdf5,
    TfRecords(TfRecordRows),
    /// NumPy arrays, one for each input of a graph.
    Arrays,
    /// A dataset in Python, for a graph.
    Python,
}

pub(crate) static PROCESSORS: Keywords<Processor> = Keywords {
    values: &[
        ("GptTextDataProcessor", Processor::Text),
        ("GptTokenDataProcessor", Processor::Tokens),
        ("GptHDF5DataProcessor", Processor::Hdf5),
        ("GptHDF5MapDataProcessor", Processor::Hdf5),
        ("MNISTDataProcessor", Processor::Images(ImageFormat::Idx)),
        ("ImageNet1KProcessor", Processor::Images(ImageFormat::Folder)),
        ("ArrayDataProcessor", Processor::Arrays),
        ("PythonDataProcessor", Processor::Python),
        ("SyntheticDataProcessor", Processor::Synthetic),
        ("T5DynamicDataProcessor", Processor::Lines(LineRows::Spans)),
        ("TransformerDynamicDataProcessor", Processor::Lines(LineRows::Pairs)),
        ("BertCSVDynamicMaskDataProcessor", Processor::Csv(CsvRows::Words)),
        ("BertCSVDataProcessor", Processor::Csv(CsvRows::Masked)),
        ("SST2DataProcessor", Processor::Csv(CsvRows::Sentences)),
        ("MNLIDataProcessor", Processor::Csv(CsvRows::SentencePairs)),
        ("BertTokenClassifierDataProcessor", Processor::Csv(CsvRows::TokenClasses)),
        ("BertSumCSVDataProcessor", Processor::Csv(CsvRows::Summaries)),
        ("BertQADataProcessor", Processor::Csv(CsvRows::Answers)),
        ("BertHDF5DataProcessor", Processor::EncoderHdf5),
        ("GptTfRecordsProcessor", Processor::TfRecords(TfRecordRows::Tokens)),
        ("BertTfRecordsProcessor", Processor::TfRecords(TfRecordRows::Masked)),
        ("BertMlmOnlyTfRecordsProcessor", Processor::TfRecords(TfRecordRows::Masked)),
        ("BertMlmOnlyTfRecordsDynamicMaskProcessor", Processor::TfRecords(TfRecordRows::Words)),
        ("Sst2DataProcessor", Processor::TfRecords(TfRecordRows::Sentences)),
        ("MnliDataProcessor", Processor::TfRecords(TfRecordRows::SentencePairs)),
        ("NerDataProcessor", Processor::TfRecords(TfRecordRows::TokenClasses)),
        ("BertSumTfRecordsProcessor", Processor::TfRecords(TfRecordRows::Summaries)),
        ("QuestionAnsweringDataProcessor", Processor::TfRecords(TfRecordRows::Answers)),
    ],
    unsupported: &[
        "HuggingFaceDataProcessorEli5",
        "HuggingFaceIterableDataProcessorEli5",
        "DummyDataProcessor",
        "DummyIterableDataProcessor",
        "InferenceDataProcessor",
        "RawDatasetProcessor",
    ],
};

pub(crate) static TOKENIZERS: Keywords<TokenizerName> =
    Keywords { values: &[("gpt2", TokenizerName::Gpt2), ("bytes", TokenizerName::Bytes)], unsupported: &[] };

pub(crate) static TOKEN_TYPES: Keywords<TokenType> =
    Keywords { values: &[("uint16", TokenType::Uint16), ("uint32", TokenType::Uint32)], unsupported: &[] };

/// The part of the files that an input reads.
#[derive(Clone, Copy)]
pub(crate) enum SplitName {
    All,
    Train,
    Validation,
}

pub(crate) static SPLIT_NAMES: Keywords<SplitName> = Keywords {
    values: &[
        ("all", SplitName::All),
        ("train", SplitName::Train),
        ("validation", SplitName::Validation),
        ("val", SplitName::Validation),
    ],
    unsupported: &[],
};

/// A rule for the bound on the samples of a leaf.
#[derive(Clone, Copy)]
pub(crate) enum MicroBatchRule {
    /// At most 1,024 tokens, and at least 8 leaves.
    Auto,
    /// One leaf for the whole batch.
    WholeBatch,
}

pub(crate) static MICRO_BATCH_RULES: Keywords<MicroBatchRule> = Keywords {
    values: &[("auto", MicroBatchRule::Auto), ("none", MicroBatchRule::WholeBatch)],
    unsupported: &["explore"],
};

#[rustfmt::skip]
pub(crate) static FAMILIES: Keywords<ModelFamily> = Keywords {
    values: &[
        ("gpt2", ModelFamily::Gpt2), ("gpt3", ModelFamily::Gpt3), ("gptj", ModelFamily::Gptj),
        ("gpt-neox", ModelFamily::Gptj), ("llama", ModelFamily::Llama), ("mistral", ModelFamily::Mistral),
        ("falcon", ModelFamily::Falcon), ("bloom", ModelFamily::Bloom), ("mpt", ModelFamily::Mpt),
        ("btlm", ModelFamily::Btlm), ("jais", ModelFamily::Jais), ("starcoder", ModelFamily::Starcoder),
        ("santacoder", ModelFamily::Santacoder), ("gemma2", ModelFamily::Gemma2),
        ("t5", ModelFamily::T5), ("transformer", ModelFamily::Transformer),
        ("bert", ModelFamily::Bert), ("roberta", ModelFamily::Bert),
        ("bert/classifier", ModelFamily::BertClassifier), ("bert/token_classifier", ModelFamily::BertTokenClassifier),
        ("bert/extractive_summarization", ModelFamily::BertSummarization), ("bert/qa", ModelFamily::BertQa),
        ("esm2", ModelFamily::Esm2),
        ("fc_mnist", ModelFamily::FcMnist), ("vision_transformer", ModelFamily::VisionTransformer),
    ],
    unsupported: &[
        "dit", "dino", "dpo", "dpr", "esm2/classification", "layers_api_demo", "linformer", "llava", "mixtral",
        "multimodal_simple", "unet",
    ],
};

/// The kinds of classification of samples.
pub(crate) static PROBLEM_TYPES: Keywords<()> = Keywords {
    values: &[("single_label_classification", ())],
    unsupported: &["regression", "multi_label_classification"],
};

/// A kind of position embedding.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum PositionKind {
    Learned,
    Rotary,
    Alibi,
    Fixed,
    Relative,
}

pub(crate) static POSITION_EMBEDDINGS: Keywords<PositionKind> = Keywords {
    values: &[
        ("learned", PositionKind::Learned),
        ("rotary", PositionKind::Rotary),
        ("alibi", PositionKind::Alibi),
        ("fixed", PositionKind::Fixed),
        ("relative", PositionKind::Relative),
    ],
    unsupported: &[],
};

/// A change of an image, without its arguments.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum TransformKind {
    Resize,
    CenterCrop,
    RandomResizedCrop,
    RandomHorizontalFlip,
    ToTensor,
    Normalize,
}

#[rustfmt::skip]
pub(crate) static TRANSFORMS: Keywords<TransformKind> = Keywords {
    values: &[
        ("resize", TransformKind::Resize), ("center_crop", TransformKind::CenterCrop),
        ("random_resized_crop", TransformKind::RandomResizedCrop),
        ("random_horizontal_flip", TransformKind::RandomHorizontalFlip), ("to_tensor", TransformKind::ToTensor),
        ("normalize", TransformKind::Normalize),
    ],
    unsupported: &[
        "expand", "random_vertical_flip", "resize_center_crop", "random_crop", "color_jitter", "gaussian_blur",
        "random_grayscale", "pad", "lambda", "to_dtype", "auto_augment", "rand_augment", "random_erasing",
    ],
};

pub(crate) static INTERPOLATIONS: Keywords<()> =
    Keywords { values: &[("bilinear", ())], unsupported: &["nearest", "bicubic", "lanczos", "box", "hamming"] };

/// A rule for the frequencies of rotary position embeddings.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum RotaryScalingKind {
    Linear,
    Llama3,
}

pub(crate) static ROTARY_SCALINGS: Keywords<RotaryScalingKind> = Keywords {
    values: &[("linear", RotaryScalingKind::Linear), ("llama3", RotaryScalingKind::Llama3)],
    unsupported: &["yarn", "longrope"],
};

pub(crate) static NORMS: Keywords<Norm> = Keywords {
    values: &[
        ("layernorm", Norm::LayerNorm),
        ("rmsnorm", Norm::RmsNorm),
        ("biasless-layernorm", Norm::BiaslessLayerNorm),
    ],
    unsupported: &["group", "instance"],
};

/// The attention types, with whether products of queries and keys are divided by the square root of the head's width.
pub(crate) static ATTENTION_TYPES: Keywords<bool> =
    Keywords { values: &[("scaled_dot_product", true), ("dot_product", false)], unsupported: &["scaled_cosine"] };

/// The attention modules, with whether heads of queries may share keys and values.
pub(crate) static ATTENTION_MODULES: Keywords<bool> = Keywords {
    values: &[("aiayn_attention", false), ("multiquery_attention", true)],
    unsupported: &["multilatent_attention"],
};

/// The activation functions, with whether the result is multiplied by a second projection.
#[rustfmt::skip]
pub(crate) static NONLINEARITIES: Keywords<(Nonlinearity, bool)> = Keywords {
    values: &[
        ("gelu", (Nonlinearity::Gelu, false)), ("gelu_new", (Nonlinearity::GeluTanh, false)),
        ("gelu_fast", (Nonlinearity::GeluTanh, false)), ("quick_gelu", (Nonlinearity::QuickGelu, false)),
        ("squared_gelu", (Nonlinearity::SquaredGelu, false)), ("relu", (Nonlinearity::Relu, false)),
        ("relu2", (Nonlinearity::SquaredRelu, false)), ("silu", (Nonlinearity::Silu, false)),
        ("swish", (Nonlinearity::Silu, false)), ("tanh", (Nonlinearity::Tanh, false)),
        ("sigmoid", (Nonlinearity::Sigmoid, false)), ("linear", (Nonlinearity::Identity, false)),
        ("swiglu", (Nonlinearity::Silu, true)), ("geglu", (Nonlinearity::Gelu, true)),
        ("reglu", (Nonlinearity::Relu, true)), ("liglu", (Nonlinearity::Identity, true)),
    ],
    unsupported: &["leaky_relu"],
};

/// The divisors of the loss of T5 and the Transformer.
pub(crate) static SEQ2SEQ_LOSS_SCALINGS: Keywords<LossScaling> = Keywords {
    values: &[
        ("batch_size", LossScaling::BatchSize),
        ("num_masked", LossScaling::NumTokens),
        ("precomputed_num_masked", LossScaling::NumTokens),
    ],
    unsupported: &[],
};

/// The activation functions of single layers, which multiply nothing.
#[rustfmt::skip]
pub(crate) static LAYER_NONLINEARITIES: Keywords<Nonlinearity> = Keywords {
    values: &[
        ("gelu", Nonlinearity::Gelu), ("gelu_new", Nonlinearity::GeluTanh), ("gelu_fast", Nonlinearity::GeluTanh),
        ("relu", Nonlinearity::Relu), ("silu", Nonlinearity::Silu), ("swish", Nonlinearity::Silu),
        ("tanh", Nonlinearity::Tanh), ("sigmoid", Nonlinearity::Sigmoid), ("linear", Nonlinearity::Identity),
    ],
    unsupported: &["leaky_relu", "swiglu", "geglu", "reglu", "liglu"],
};

pub(crate) static LOSS_SCALINGS: Keywords<LossScaling> = Keywords {
    values: &[("num_tokens", LossScaling::NumTokens), ("batch_size", LossScaling::BatchSize)],
    unsupported: &[],
};

/// The 16-bit types, with whether each is bfloat16.
pub(crate) static HALF_TYPES: Keywords<bool> = Keywords {
    values: &[("bfloat16", true), ("float16", false), ("cbfloat16", false), ("fp16", false), ("bf16", true)],
    unsupported: &[],
};

/// A distribution of initial values, without its arguments.
#[derive(Clone, Copy)]
pub(crate) enum InitializerKind {
    Normal,
    TruncatedNormal,
    Uniform,
    Constant,
    Fixed(f64),
    /// A variance divided by a size; `None` where the params give the part.
    Scaling {
        scale: Option<f64>,
        fan: Option<Fan>,
        distribution: Option<ScalingDistribution>,
    },
    /// Normal, with the inverse of a size of the model as its variance.
    ByModelSize,
}

/// Returns an initializer that divides `scale` by the number of inputs, unless the params say otherwise.
const fn by_inputs(scale: f64, distribution: ScalingDistribution) -> InitializerKind {
    InitializerKind::Scaling { scale: Some(scale), fan: None, distribution: Some(distribution) }
}

/// Returns an initializer of Xavier, which has a gain.
const fn by_average(distribution: ScalingDistribution) -> InitializerKind {
    InitializerKind::Scaling { scale: Some(1.0), fan: Some(Fan::Average), distribution: Some(distribution) }
}

#[rustfmt::skip]
pub(crate) static INITIALIZERS: Keywords<InitializerKind> = Keywords {
    values: &[
        ("normal", InitializerKind::Normal),
        ("truncated_normal", InitializerKind::TruncatedNormal),
        ("uniform", InitializerKind::Uniform),
        ("constant", InitializerKind::Constant),
        ("zeros", InitializerKind::Fixed(0.0)),
        ("ones", InitializerKind::Fixed(1.0)),
        ("variance_scaling", InitializerKind::Scaling { scale: None, fan: None, distribution: None }),
        ("xavier_normal", by_average(ScalingDistribution::Normal)),
        ("xavier_uniform", by_average(ScalingDistribution::Uniform)),
        ("glorot_normal", by_average(ScalingDistribution::Normal)),
        ("glorot_uniform", by_average(ScalingDistribution::Uniform)),
        ("kaiming_normal", by_inputs(2.0, ScalingDistribution::Normal)),
        ("kaiming_uniform", by_inputs(2.0, ScalingDistribution::Uniform)),
        ("lecun_normal", by_inputs(1.0, ScalingDistribution::TruncatedNormal)),
        ("lecun_uniform", by_inputs(1.0, ScalingDistribution::Uniform)),
        ("scaled_init_normal", InitializerKind::ByModelSize),
    ],
    unsupported: &["eye"],
};

pub(crate) static FAN_MODES: Keywords<Fan> =
    Keywords { values: &[("fan_in", Fan::In), ("fan_out", Fan::Out), ("fan_avg", Fan::Average)], unsupported: &[] };

#[rustfmt::skip]
pub(crate) static SCALING_DISTRIBUTIONS: Keywords<ScalingDistribution> = Keywords {
    values: &[
        ("truncated_normal", ScalingDistribution::TruncatedNormal), ("normal", ScalingDistribution::Normal),
        ("untruncated_normal", ScalingDistribution::Normal), ("uniform", ScalingDistribution::Uniform),
    ],
    unsupported: &[],
};

/// A scale that depends on the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleType {
    /// 0.4.
    Small,
    /// 4, divided by the square of the number of blocks.
    Wang,
}

pub(crate) static SCALE_TYPES: Keywords<ScaleType> =
    Keywords { values: &[("small_init", ScaleType::Small), ("wang_init", ScaleType::Wang)], unsupported: &[] };

/// A size of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeKey {
    Vocabulary,
    Hidden,
}

pub(crate) static SIZE_KEYS: Keywords<SizeKey> =
    Keywords { values: &[("vocab_size", SizeKey::Vocabulary), ("hidden_size", SizeKey::Hidden)], unsupported: &[] };

/// A schedule of the learning rate, without its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ScheduleKind {
    Constant,
    Linear,
    Polynomial,
    CosineDecay,
    Exponential,
    InverseExponentialTimeDecay,
    InverseSquareRootDecay,
    PiecewiseConstant,
    Step,
    MultiStep,
    Multiplicative,
    CosineAnnealing,
    CosineAnnealingWarmRestarts,
    Cyclic,
    OneCycle,
    Sequential,
    Chained,
}

#[rustfmt::skip]
pub(crate) static SCHEDULERS: Keywords<ScheduleKind> = Keywords {
    values: &[
        ("Linear", ScheduleKind::Linear), ("LinearLR", ScheduleKind::Linear),
        ("CosineDecay", ScheduleKind::CosineDecay), ("CosineDecayLR", ScheduleKind::CosineDecay),
        ("Cosine", ScheduleKind::CosineDecay),
        ("Constant", ScheduleKind::Constant), ("ConstantLR", ScheduleKind::Constant),
        ("Polynomial", ScheduleKind::Polynomial), ("PolynomialLR", ScheduleKind::Polynomial),
        ("Exponential", ScheduleKind::Exponential), ("ExponentialLR", ScheduleKind::Exponential),
        ("InverseExponentialTimeDecay", ScheduleKind::InverseExponentialTimeDecay),
        ("InverseExponentialTimeDecayLR", ScheduleKind::InverseExponentialTimeDecay),
        ("InverseSquareRootDecay", ScheduleKind::InverseSquareRootDecay),
        ("InverseSquareRootDecayLR", ScheduleKind::InverseSquareRootDecay),
        ("PiecewiseConstant", ScheduleKind::PiecewiseConstant),
        ("PiecewiseConstantLR", ScheduleKind::PiecewiseConstant),
        ("Step", ScheduleKind::Step), ("StepLR", ScheduleKind::Step),
        ("MultiStep", ScheduleKind::MultiStep), ("MultiStepLR", ScheduleKind::MultiStep),
        ("Multiplicative", ScheduleKind::Multiplicative), ("MultiplicativeLR", ScheduleKind::Multiplicative),
        ("CosineAnnealing", ScheduleKind::CosineAnnealing), ("CosineAnnealingLR", ScheduleKind::CosineAnnealing),
        ("CosineAnnealingWarmRestarts", ScheduleKind::CosineAnnealingWarmRestarts),
        ("CosineAnnealingWarmRestartsLR", ScheduleKind::CosineAnnealingWarmRestarts),
        ("Cyclic", ScheduleKind::Cyclic), ("CyclicLR", ScheduleKind::Cyclic),
        ("OneCycle", ScheduleKind::OneCycle), ("OneCycleLR", ScheduleKind::OneCycle),
        ("Sequential", ScheduleKind::Sequential), ("SequentialLR", ScheduleKind::Sequential),
        ("Chained", ScheduleKind::Chained), ("ChainedScheduler", ScheduleKind::Chained),
    ],
    // Lambda computes its rate by Python code, ScalePerParam has one rate for each group of parameters.
    unsupported: &["Lambda", "LambdaLR", "ScalePerParam", "ScalePerParamLR"],
};

/// How the amplitude of `Cyclic` changes, without its factor.
#[derive(Clone, Copy)]
pub(crate) enum CycleMode {
    Triangular,
    Triangular2,
    ExpRange,
}

pub(crate) static CYCLE_MODES: Keywords<CycleMode> = Keywords {
    values: &[
        ("triangular", CycleMode::Triangular),
        ("triangular2", CycleMode::Triangular2),
        ("exp_range", CycleMode::ExpRange),
    ],
    unsupported: &[],
};

pub(crate) static ANNEAL_STRATEGIES: Keywords<AnnealStrategy> =
    Keywords { values: &[("cos", AnnealStrategy::Cosine), ("linear", AnnealStrategy::Linear)], unsupported: &[] };

pub(crate) static MOMENTUM_CURVES: Keywords<MomentumCurve> = Keywords {
    values: &[("constant", MomentumCurve::Constant), ("linear", MomentumCurve::Linear), ("cos", MomentumCurve::Cosine)],
    unsupported: &[],
};

pub(crate) static MODES: Keywords<Mode> = Keywords { values: Mode::NAMES, unsupported: &[] };

pub(crate) static LOSS_SPIKE_ACTIONS: Keywords<LossSpikeAction> =
    Keywords { values: &[("stop", LossSpikeAction::Stop), ("skip", LossSpikeAction::Skip)], unsupported: &[] };

pub(crate) static LOG_LEVELS: Keywords<LogLevel> = Keywords {
    values: &[
        ("DEBUG", LogLevel::Debug),
        ("VERBOSE", LogLevel::Verbose),
        ("INFO", LogLevel::Info),
        ("WARNING", LogLevel::Warning),
        ("ERROR", LogLevel::Error),
    ],
    unsupported: &[],
};

/// How the zeros of sparse weights change; `None` if they do not.
pub(crate) static SPARSITY_ALGORITHMS: Keywords<Option<MaskGrowth>> = Keywords {
    values: &[("static", None), ("set", Some(MaskGrowth::Random)), ("rigl", Some(MaskGrowth::Gradient))],
    unsupported: &["gmp", "dynamic"],
};

/// How the share of weights that become zero changes; the value is whether it does.
pub(crate) static DROP_FRACTIONS: Keywords<bool> =
    Keywords { values: &[("constant", false), ("cosine", true)], unsupported: &["linear", "exp", "power"] };

/// How the zeros of sparse weights are chosen.
pub(crate) static SPARSITY_MASKS: Keywords<()> =
    Keywords { values: &[("random", ())], unsupported: &["topk", "balanced-topk", "checkerboard", "from_zeros"] };

/// Changes of samples of tokens.
pub(crate) static SAMPLE_TRANSFORMS: Keywords<()> =
    Keywords { values: &[("add_sink_tokens", ())], unsupported: &["add_memory_tokens"] };
