//! The section `sparsity` of the params: weights that are zero.

use serde::{Deserialize, Serialize};

use super::OneOrMany;
use crate::keys::SectionReference;
use crate::keys::facts::{alias_of, default, otherwise, required, required_if};
use crate::keywords::{DROP_FRACTIONS, SPARSITY_ALGORITHMS, SPARSITY_MASKS};
use crate::yaml::{FromNode, TreeReader, YamlNode, YamlValue, section};

section! {
    /// Weights that are zero, always equally many. Patterns are compared with the names that the public
    /// model zoo gives to parameters, such as `transformer_decoder.layers.0.self_attn.proj_q_dense_layer.weight`, and
    /// with those of Millrace's tensors, such as `h.0.attn.qkv.weight`.
    pub struct SparsityParams {
        /// Share of the weights of each parameter that are zero, at least 0 and less than 1.
        sparsity: f64 = required(),
        /// Rule by which the zeros change: never; or at certain steps, when the smallest weights become zero, and as
        /// many others begin to train, chosen at random (`set`) or by the size of their gradients (`rigl`).
        algorithm: String = default("static").one_of(&SPARSITY_ALGORITHMS),
        /// Older spelling of `algorithm`.
        r#type: String = alias_of("algorithm"),
        /// Rule by which the zeros are chosen: at random, as a function of the seed.
        init_method: String = default("random").one_of(&SPARSITY_MASKS),
        /// Parameters that have zeros: patterns of whole names in which `*` stands for any text, `?` for one character
        /// and `[abc]` for one of these.
        param_filter: OneOrMany = otherwise("all matrices but embeddings and the output layer"),
        /// The same as regular expressions, as older files have them. Excludes `param_filter`.
        param_name_patterns: OneOrMany = otherwise("those of `param_filter`"),
        /// Share of the weights that are not zero which become zero when the zeros change: a number, or a schedule.
        drop_fraction: DropFractionSetting = default("0.3"),
        /// Steps at which the zeros change.
        update: MaskUpdateParams = required_if("`algorithm` is `set` or `rigl`"),
        /// Older spelling of `update`.
        schedule: MaskUpdateParams = alias_of("update"),
    }
    ignored {}
    unsupported {
        "groups" => "give one sparsity for all parameters",
    }
}

section! {
    /// Steps after which the zeros of sparse weights change: `start`, and every `freq` steps from then on.
    pub struct MaskUpdateParams {
        /// Number of steps between two changes.
        freq: u64 = required(),
        /// First step, if it is not 0.
        start: u64 = default("0"),
        /// Step from which on the zeros stay.
        stop: u64 = otherwise("the end of the run"),
    }
    ignored {}
    unsupported {}
}

/// The share of weights that become zero when the zeros change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum DropFractionSetting {
    /// The same share at every change.
    Number(f64),
    /// A share that depends on the step.
    Schedule(DropFractionParams),
}

impl FromNode for DropFractionSetting {
    const TYPE: &'static str = "a number or a schedule";
    const SECTION: Option<&'static SectionReference> = Some(DropFractionParams::REFERENCE);

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        match &node.value {
            YamlValue::Map(_) => reader.value(node).map(Self::Schedule),
            YamlValue::Scalar { .. } => reader.value(node).map(Self::Number),
            YamlValue::List(_) => {
                reader.wrong_type(node, Self::TYPE);
                None
            }
        }
    }
}

section! {
    /// A schedule of the share of weights that become zero.
    pub struct DropFractionParams {
        /// Kind of schedule: always `init`, or half a cosine from `init` to `minimum`.
        r#type: String = default("constant").one_of(&DROP_FRACTIONS),
        /// Share at the first step.
        init: f64 = default("0.3"),
        /// Number of steps to the minimum of `cosine`.
        half_period: u64 = required_if("`type` is `cosine`"),
        /// Share at the end of `cosine`.
        minimum: f64 = default("0"),
    }
    ignored {}
    unsupported {}
}
