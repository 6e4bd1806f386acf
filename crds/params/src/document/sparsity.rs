//! The section `sparsity` of the params: weights that stay zero.

use super::OneOrMany;
use crate::keys::facts::{alias_of, default, otherwise, required};
use crate::keywords::{SPARSITY_ALGORITHMS, SPARSITY_MASKS};
use crate::yaml::section;

section! {
    /// Weights that are zero from the first step to the last. Patterns are compared with the names that the public
    /// model zoo gives to parameters, such as `transformer_decoder.layers.0.self_attn.proj_q_dense_layer.weight`, and
    /// with those of Millrace's tensors, such as `h.0.attn.qkv.weight`.
    pub struct SparsityParams {
        /// Share of the weights of each parameter that are zero, at least 0 and less than 1.
        sparsity: f64 = required(),
        /// Rule by which the zeros change.
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
    }
    ignored {
        /// Share of the weights that an algorithm drops at an update of the zeros; `static` never does.
        drop_fraction: serde_json::Value,
        /// Steps at which an algorithm updates the zeros; `static` never does.
        update: serde_json::Value,
        /// Older spelling of `update`.
        schedule: serde_json::Value,
    }
    unsupported {
        "groups" => "give one sparsity for all parameters",
    }
}
