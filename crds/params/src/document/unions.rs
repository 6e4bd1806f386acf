//! Keys whose value may have one of several shapes.

use serde::{Deserialize, Serialize};

use super::ScheduleParams;
use crate::keys::SectionReference;
use crate::keys::facts::{default, otherwise, required};
use crate::keywords::{FAN_MODES, INITIALIZERS, MICRO_BATCH_RULES, SCALE_TYPES, SCALING_DISTRIBUTIONS, SIZE_KEYS};
use crate::yaml::{FromNode, TreeReader, YamlNode, YamlValue, section};

/// One string or a list of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum OneOrMany {
    /// A single string.
    One(String),
    /// A list of strings.
    Many(Vec<String>),
}

impl OneOrMany {
    /// Returns the strings as a slice.
    pub fn as_slice(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl FromNode for OneOrMany {
    const TYPE: &'static str = "a string or a list of strings";

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        match &node.value {
            YamlValue::List(items) => reader.items(items).map(Self::Many),
            YamlValue::Scalar { .. } => reader.value(node).map(Self::One),
            YamlValue::Map(_) => {
                reader.wrong_type(node, Self::TYPE);
                None
            }
        }
    }
}

/// A learning rate: a number, one schedule, or a list of schedules that follow each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum LearningRateSetting {
    /// The same rate at every step.
    Number(f64),
    /// One schedule.
    Schedule(Box<ScheduleParams>),
    /// Schedules that follow each other, each for its own number of steps, the last one to the end.
    Sequence(Vec<ScheduleParams>),
}

impl FromNode for LearningRateSetting {
    const TYPE: &'static str = "a number, a schedule or a list of schedules";
    const SECTION: Option<&'static SectionReference> = Some(ScheduleParams::REFERENCE);

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        match &node.value {
            YamlValue::Map(_) => reader.value(node).map(|s| Self::Schedule(Box::new(s))),
            YamlValue::List(items) => reader.items(items).map(Self::Sequence),
            YamlValue::Scalar { .. } => reader.value(node).map(Self::Number),
        }
    }
}

/// The terms that keep an optimizer from dividing by zero: one number, or the two of Adafactor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum EpsSetting {
    /// One number.
    Number(f64),
    /// A list of numbers.
    Terms(Vec<f64>),
}

impl FromNode for EpsSetting {
    const TYPE: &'static str = "a number or a list of two numbers";

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        match &node.value {
            YamlValue::List(items) => reader.items(items).map(Self::Terms),
            YamlValue::Scalar { .. } => reader.value(node).map(Self::Number),
            YamlValue::Map(_) => {
                reader.wrong_type(node, Self::TYPE);
                None
            }
        }
    }
}

/// The bound on a leaf: a number of samples, or how to find one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum MicroBatchSetting {
    /// At most this many samples in a leaf.
    Samples(u64),
    /// `auto` (at most 1,024 tokens, and at least 8 leaves), `none` (the whole batch is one leaf); `explore` is not
    /// supported yet.
    Keyword(String),
    /// A range to explore; not supported yet.
    Range(MicroBatchRange),
}

impl FromNode for MicroBatchSetting {
    const TYPE: &'static str = "a whole number, auto or none";

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        let is_rule = |text: &str| MICRO_BATCH_RULES.get(text).is_some() || MICRO_BATCH_RULES.is_unsupported(text);
        match &node.value {
            YamlValue::Map(_) => reader.value(node).map(Self::Range),
            YamlValue::Scalar { text, .. } if is_rule(text) => Some(Self::Keyword(text.clone())),
            YamlValue::Scalar { .. } => reader.value(node).map(Self::Samples),
            YamlValue::List(_) => {
                reader.wrong_type(node, Self::TYPE);
                None
            }
        }
    }
}

section! {
    /// A range of micro-batch sizes to explore.
    pub struct MicroBatchRange {
        /// Smallest size to try.
        min: u64 = required(),
        /// Largest size to try.
        max: u64 = required(),
    }
    ignored {}
    unsupported {}
}

/// How a tensor's initial values are drawn: a name alone, or a name with its arguments, which may be in a list of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum InitializerSetting {
    /// An initializer with its default arguments.
    Name(String),
    /// An initializer with arguments.
    Detailed(Box<InitializerParams>),
}

impl FromNode for InitializerSetting {
    const TYPE: &'static str = "an initializer's name, or a mapping with its name, or a list of one";
    const SECTION: Option<&'static SectionReference> = Some(InitializerParams::REFERENCE);

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        match &node.value {
            YamlValue::Map(_) => reader.value(node).map(|params| Self::Detailed(Box::new(params))),
            YamlValue::Scalar { .. } => reader.value(node).map(Self::Name),
            YamlValue::List(items) => match items.as_slice() {
                // Older files have a list of one.
                [one] if !matches!(one.value, YamlValue::List(_)) => reader.value(one),
                _ => {
                    reader.wrong_type(node, Self::TYPE);
                    None
                }
            },
        }
    }
}

section! {
    /// An initializer and its arguments.
    pub struct InitializerParams {
        /// Distribution of the initial values.
        name: String = required().one_of(&INITIALIZERS),
        /// Mean of `normal` or `truncated_normal`.
        mean: f64 = default("0"),
        /// Standard deviation of `normal` or `truncated_normal`.
        std: f64 = default("0.05"),
        /// Lower bound of `uniform` or `truncated_normal`.
        a: f64 = otherwise("-0.05 for `uniform`, -2 `std` for `truncated_normal`"),
        /// Upper bound of `uniform` or `truncated_normal`.
        b: f64 = otherwise("0.05 for `uniform`, 2 `std` for `truncated_normal`"),
        /// Value of `constant`.
        val: f64 = default("0"),
        /// Variance of `variance_scaling`, times the size that `mode` names.
        scale: f64 = default("1"),
        /// Another way to give `scale`: `small_init` is 0.4, and `wang_init` 4, divided by the square of the number of
        /// blocks.
        scale_type: String = otherwise("the value of `scale`").one_of(&SCALE_TYPES),
        /// Size by which `variance_scaling` or an initializer of Kaiming divides: the number of inputs or outputs of
        /// the layer, or their mean. Entries of an embedding are inputs.
        mode: String = default("fan_in").one_of(&FAN_MODES),
        /// Distribution of `variance_scaling`.
        distribution: String = default("truncated_normal").one_of(&SCALING_DISTRIBUTIONS),
        /// Factor of the standard deviation of an initializer of Xavier.
        gain: f64 = default("1"),
        /// Size of the model whose inverse is the variance of `scaled_init_normal`.
        key: String = default("vocab_size").one_of(&SIZE_KEYS),
    }
    ignored {}
    unsupported {
        "nonlinearity" => "use variance_scaling with an explicit scale",
    }
}
