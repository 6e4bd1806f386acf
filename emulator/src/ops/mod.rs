//! The operators of a graph. Each is one file here, and one line of the table in this file.
//!
//! ```text
//! ops/dropout.rs          struct Dropout { rate }        attributes, as they stand in a graph document
//!                         impl Operator for Dropout      shape rule, work, what the backward pass needs
//!                         impl Executor for Dropout      forward and backward pass (feature `kernels`)
//!                         impl OperatorTests for Dropout reference in f64, shapes and graphs to test with
//! ops/mod.rs              mod dropout;  dropout::Dropout (the registration)
//! ```
//!
//! The table generates [`OpKind`], which a graph holds, its dispatch, and the tests of every operator. A registered
//! operator that lacks one of the parts does not compile. `docs/dev/add-an-operator.md` describes each step.
//!
//! * Compiler, schedule and device know operators by the traits [`Operator`] and `Executor` only. Model families
//!   construct operators; exporters match on [`OpKind`] to recognize an architecture.
//! * What an operator *saves* is a contract with the [schedule](crate::schedule): in a layer that is not recomputed,
//!   exactly the values named by [`SavedForBackward`] and its `floats` extra numbers per sample are kept from the
//!   forward to the backward pass. Dropout masks are never saved, because they are a function of their key.
//! * An operator is `{"op": NAME, ATTRIBUTES...}` in a document, with its name in snake case. Both are part of the
//!   format of checkpoints.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::graph::{Graph, LayerId, NodeId};

mod activation;
mod add;
mod add_position;
mod add_sinusoids;
mod attention;
mod causal_attention;
mod cross_attention;
mod cross_entropy;
mod dropout;
mod embedding;
#[cfg(feature = "kernels")]
pub mod execute;
mod flatten;
mod gate;
mod gather_rows;
mod heads;
mod layer_norm;
mod linear;
mod logits_cross_entropy;
mod operator;
mod patches;
mod prepend_row;
mod relative_positions;
mod rms_norm;
mod rotary;
mod scale;
mod select_row;
mod signature;
#[cfg(all(test, feature = "kernels"))]
pub(crate) mod testing;
mod token_dropout;
mod transpose;

pub use cross_entropy::VOCABULARY_BLOCK;
pub use millrace_params::{Nonlinearity, RotaryScaling};
pub use operator::{Flops, GradientForm, Operator, RowDependency, SavedForBackward};
pub use relative_positions::RelativePositions;
pub use rotary::RotaryPairing;
pub use signature::{OpError, Signature};

use operator::check_rate;

/// Registers operators; see the module documentation.
macro_rules! operators {
    ($($module:ident::$Name:ident,)*) => {
        $(pub use $module::$Name;)*

        /// The kind of an operator, with its attributes. Inputs, output and tensors are positional, as documented in
        /// the operator's file.
        #[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case", tag = "op")]
        pub enum OpKind {
            $(#[doc = concat!("See [`", stringify!($Name), "`].")] $Name($Name),)*
        }

        impl OpKind {
            /// Names of all operators.
            #[cfg(test)]
            const NAMES: &[&str] = &[$(stringify!($Name)),*];

            /// Returns the name, for messages.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$Name(_) => stringify!($Name),)*
                }
            }

            /// Returns the static properties.
            pub const fn operator(&self) -> &dyn Operator {
                match self {
                    $(Self::$Name(operator) => operator,)*
                }
            }

            /// Returns the execution.
            #[cfg(feature = "kernels")]
            pub const fn executor(&self) -> &dyn execute::Executor {
                match self {
                    $(Self::$Name(operator) => operator,)*
                }
            }

            #[cfg(all(test, feature = "kernels"))]
            pub(crate) const fn reference(&self) -> &dyn testing::OperatorTests {
                match self {
                    $(Self::$Name(operator) => operator,)*
                }
            }
        }

        impl fmt::Debug for OpKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$Name(operator) => operator.fmt(f),)*
                }
            }
        }

        $(impl From<$Name> for OpKind {
            fn from(operator: $Name) -> Self {
                Self::$Name(operator)
            }
        })*

        /// The tests that every operator has.
        #[cfg(all(test, feature = "kernels"))]
        mod every {
            $(mod $module {
                use super::super::{$Name, testing};

                #[test]
                fn shape_rule_accepts_and_rejects() {
                    testing::check_shape_rule::<$Name>();
                }

                #[test]
                fn gradients_agree_with_the_reference() {
                    testing::check_gradients::<$Name>(stringify!($Name));
                }
            })*
        }
    };
}

operators! {
    embedding::Embedding,
    add_position::AddPosition,
    dropout::Dropout,
    add::Add,
    layer_norm::LayerNorm,
    linear::Linear,
    activation::Activation,
    causal_attention::CausalAttention,
    cross_entropy::CrossEntropy,
    scale::Scale,
    rms_norm::RmsNorm,
    rotary::Rotary,
    gate::Gate,
    attention::Attention,
    cross_attention::CrossAttention,
    add_sinusoids::AddSinusoids,
    gather_rows::GatherRows,
    select_row::SelectRow,
    flatten::Flatten,
    patches::Patches,
    prepend_row::PrependRow,
    token_dropout::TokenDropout,
    logits_cross_entropy::LogitsCrossEntropy,
    transpose::Transpose,
}

/// Returns the work of an operator of a valid graph on one sample.
pub fn node_flops(graph: &Graph, node: NodeId) -> Flops {
    let node = &graph.nodes[node];
    node.op.operator().flops(&Signature::of(graph, node))
}

/// Returns the work of all operators of a layer of a valid graph on one sample.
pub fn layer_flops(graph: &Graph, layer: LayerId) -> Flops {
    let nodes = graph.layers[layer].nodes.clone().map(|node| node_flops(graph, node));
    nodes.fold(Flops::default(), |sum, flops| Flops {
        forward: sum.forward.saturating_add(flops.forward),
        backward: sum.backward.saturating_add(flops.backward),
        forward_sums: sum.forward_sums.saturating_add(flops.forward_sums),
        backward_sums: sum.backward_sums.saturating_add(flops.backward_sums),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The form of each operator in documents: checkpoints of every release contain it.
    #[test]
    fn documents_keep_their_form() {
        let cases: Vec<(OpKind, &str)> = vec![
            (Embedding.into(), r#"{"op":"embedding"}"#),
            (AddPosition.into(), r#"{"op":"add_position"}"#),
            (Dropout { rate: 0.5 }.into(), r#"{"op":"dropout","rate":0.5}"#),
            (Add.into(), r#"{"op":"add"}"#),
            (LayerNorm { epsilon: 0.25 }.into(), r#"{"op":"layer_norm","epsilon":0.25}"#),
            (Linear.into(), r#"{"op":"linear"}"#),
            (Activation { kind: Nonlinearity::GeluTanh }.into(), r#"{"op":"activation","kind":"gelu_tanh"}"#),
            (
                CausalAttention::new(2, 0.5, 0.25).into(),
                r#"{"op":"causal_attention","heads":2,"scale":0.5,"dropout":0.25}"#,
            ),
            (CrossEntropy::new().into(), r#"{"op":"cross_entropy"}"#),
            (Scale { factor: 0.5 }.into(), r#"{"op":"scale","factor":0.5}"#),
            (RmsNorm { epsilon: 0.25 }.into(), r#"{"op":"rms_norm","epsilon":0.25}"#),
            (
                Rotary {
                    heads: 2,
                    head_dim: 8,
                    dimensions: 4,
                    base: 1e4,
                    pairing: RotaryPairing::Halves,
                    scaling: None,
                }
                .into(),
                r#"{"op":"rotary","heads":2,"head_dim":8,"dimensions":4,"base":10000.0,"pairing":"halves"}"#,
            ),
            (Gate { kind: Nonlinearity::Silu }.into(), r#"{"op":"gate","kind":"silu"}"#),
            (
                Attention { heads: 2, scale: 0.5, dropout: 0.25 }.into(),
                r#"{"op":"attention","heads":2,"scale":0.5,"dropout":0.25}"#,
            ),
            (
                CrossAttention::new(2, 0.5, 0.25).into(),
                r#"{"op":"cross_attention","heads":2,"scale":0.5,"dropout":0.25}"#,
            ),
            (AddSinusoids.into(), r#"{"op":"add_sinusoids"}"#),
            (GatherRows.into(), r#"{"op":"gather_rows"}"#),
            (SelectRow { row: 3 }.into(), r#"{"op":"select_row","row":3}"#),
            (Flatten.into(), r#"{"op":"flatten"}"#),
            (Patches { height: 2, width: 3 }.into(), r#"{"op":"patches","height":2,"width":3}"#),
            (PrependRow.into(), r#"{"op":"prepend_row"}"#),
            (
                TokenDropout { mask_token: 32, expected: 0.25 }.into(),
                r#"{"op":"token_dropout","mask_token":32,"expected":0.25}"#,
            ),
            (LogitsCrossEntropy { factor: 0.5 }.into(), r#"{"op":"logits_cross_entropy","factor":0.5}"#),
            (Transpose.into(), r#"{"op":"transpose"}"#),
        ];
        assert_eq!(
            cases.iter().map(|(op, _)| op.name()).collect::<Vec<_>>(),
            OpKind::NAMES,
            "a line for each operator"
        );
        let grouped =
            CausalAttention { key_heads: Some(1), window: Some(9), alibi: true, ..CausalAttention::new(2, 0.5, 0.0) };
        let document =
            r#"{"op":"causal_attention","heads":2,"scale":0.5,"dropout":0.0,"key_heads":1,"window":9,"alibi":true}"#;
        let weighted = (CrossEntropy::with_factor(0.5).into(), r#"{"op":"cross_entropy","factor":0.5}"#);
        for (op, document) in cases.into_iter().chain([(grouped.into(), document), weighted]) {
            assert_eq!(serde_json::to_string(&op).unwrap(), document);
            assert_eq!(serde_json::from_str::<OpKind>(document).unwrap(), op);
        }
    }
}
