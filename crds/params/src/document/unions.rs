//! Keys whose value may have one of several shapes.

use serde::{Deserialize, Serialize};

use super::ScheduleParams;
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
    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        match &node.value {
            YamlValue::List(items) => reader.items(items).map(Self::Many),
            YamlValue::Scalar { .. } => reader.value(node).map(Self::One),
            YamlValue::Map(_) => {
                reader.wrong_type(node, "a string or a list of strings");
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
    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        match &node.value {
            YamlValue::Map(_) => reader.value(node).map(|s| Self::Schedule(Box::new(s))),
            YamlValue::List(items) => reader.items(items).map(Self::Sequence),
            YamlValue::Scalar { .. } => reader.value(node).map(Self::Number),
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
    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        let word = |text: &str| ["auto", "none", "explore"].contains(&text.to_lowercase().as_str());
        match &node.value {
            YamlValue::Map(_) => reader.value(node).map(Self::Range),
            YamlValue::Scalar { text, .. } if word(text) => Some(Self::Keyword(text.clone())),
            YamlValue::Scalar { .. } => reader.value(node).map(Self::Samples),
            YamlValue::List(_) => {
                reader.wrong_type(node, "a whole number, auto or none");
                None
            }
        }
    }
}

section! {
    /// A range of micro-batch sizes to explore.
    pub struct MicroBatchRange {
        /// The smallest size to try.
        min: u64,
        /// The largest size to try.
        max: u64,
    }
    without_effect {}
    not_yet {}
}

/// How a tensor's initial values are drawn: a name alone, or a name with its arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum InitializerSetting {
    /// An initializer with its default arguments.
    Name(String),
    /// An initializer with arguments.
    Detailed(InitializerParams),
}

impl FromNode for InitializerSetting {
    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        match &node.value {
            YamlValue::Map(_) => reader.value(node).map(Self::Detailed),
            YamlValue::Scalar { .. } => reader.value(node).map(Self::Name),
            YamlValue::List(_) => {
                reader.wrong_type(node, "an initializer's name or a mapping with its name");
                None
            }
        }
    }
}

section! {
    /// An initializer and its arguments.
    pub struct InitializerParams {
        /// `normal`, `truncated_normal`, `uniform`, `constant`, `zeros` or `ones`.
        name: String,
        /// Mean of a normal distribution; 0 by default.
        mean: f64,
        /// Standard deviation of a normal distribution; 0.05 by default.
        std: f64,
        /// Lower bound: of `uniform` (-0.05 by default) or of `truncated_normal` (-2 std by default).
        a: f64,
        /// Upper bound: of `uniform` (0.05 by default) or of `truncated_normal` (2 std by default).
        b: f64,
        /// The value of `constant`; 0 by default.
        val: f64,
    }
    without_effect {}
    not_yet {
        "gain" => "use normal or truncated_normal with an explicit std",
        "scale" => "use normal or truncated_normal with an explicit std",
        "mode" => "use normal or truncated_normal with an explicit std",
        "distribution" => "use normal or truncated_normal with an explicit std",
        "nonlinearity" => "use normal or truncated_normal with an explicit std",
    }
}
