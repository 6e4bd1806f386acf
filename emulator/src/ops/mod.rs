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
mod arg_max;
mod attention;
mod average_pool;
mod binary;
mod broadcast;
mod cast;
mod causal_attention;
mod class_counts;
mod compare;
mod concatenate;
mod convolution;
mod cross_attention;
mod cross_entropy;
mod cumulative_sum;
mod dropout;
mod embedding;
#[cfg(feature = "kernels")]
pub mod execute;
mod expand;
mod flatten;
mod gate;
mod gather;
mod gather_rows;
mod heads;
mod index_bounds;
mod layer_norm;
mod linear;
mod logical;
mod logits_cross_entropy;
mod matmul;
mod max_pool;
mod metric;
mod ngram_overlap;
mod one_hot;
mod operator;
mod pad;
mod parameter;
mod patches;
mod permute;
mod prepend_row;
mod random;
#[cfg(all(test, feature = "kernels"))]
mod random_graphs;
mod reduce;
mod relative_positions;
mod reshape;
mod rms_norm;
mod rotary;
mod scale;
mod select;
mod select_row;
mod signature;
mod slice;
mod softmax;
mod stop_gradient;
mod sum_loss;
#[cfg(all(test, feature = "kernels"))]
pub(crate) mod testing;
mod token_dropout;
mod transpose;
mod unary;
mod window;

pub use binary::BinaryFunction;
pub use compare::Relation;
pub use cross_entropy::VOCABULARY_BLOCK;
pub(crate) use index_bounds::IndexBounds;
pub use logical::LogicalFunction;
pub use millrace_params::{Nonlinearity, RotaryScaling};
pub use operator::{Flops, GradientForm, Operator, RowDependency, SavedForBackward};
pub use random::Distribution;
pub use reduce::Reduction;
pub use relative_positions::RelativePositions;
pub use rotary::RotaryPairing;
pub use signature::{OpError, Signature};
pub use unary::UnaryFunction;
pub use window::Window;

use operator::check_rate;

/// Registers operators; see the module documentation.
macro_rules! operators {
    ($($module:ident::$Name:ident,)*) => {
        $(pub use $module::$Name;)*

        /// The kind of an operator, with its attributes. Inputs, output and tensors are positional, as documented in
        /// the operator's file.
        #[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    unary::Unary,
    binary::Binary,
    compare::Compare,
    logical::Logical,
    select::Select,
    cast::Cast,
    reshape::Reshape,
    permute::Permute,
    expand::Expand,
    slice::Slice,
    concatenate::Concatenate,
    pad::Pad,
    reduce::Reduce,
    cumulative_sum::CumulativeSum,
    softmax::Softmax,
    matmul::Matmul,
    gather::Gather,
    one_hot::OneHot,
    parameter::Parameter,
    sum_loss::SumLoss,
    convolution::Convolution,
    max_pool::MaxPool,
    average_pool::AveragePool,
    metric::Metric,
    class_counts::ClassCounts,
    ngram_overlap::NgramOverlap,
    arg_max::ArgMax,
    stop_gradient::StopGradient,
    random::Random,
}

impl OpKind {
    /// Returns a loss times `factor`; any other operator unchanged.
    #[must_use]
    pub fn times(mut self, factor: f64) -> Self {
        let own = match &mut self {
            Self::SumLoss(SumLoss { factor }) | Self::LogitsCrossEntropy(LogitsCrossEntropy { factor }) => factor,
            Self::CrossEntropy(CrossEntropy { factor, .. }) => factor,
            _ => return self,
        };
        *own = (f64::from(*own) * factor) as f32;
        self
    }
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
    use crate::graph::{Axes, DType, Dimensions};

    const WINDOW: Window = Window { stride: [2, 1], padding: [0; 2], dilation: [1; 2] };

    fn sizes(sizes: &[usize]) -> Dimensions {
        Dimensions::new(sizes).unwrap()
    }

    fn axes(axes: &[usize]) -> Axes {
        Axes::new(axes).unwrap()
    }

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
            (Unary { function: UnaryFunction::Rsqrt }.into(), r#"{"op":"unary","function":"rsqrt"}"#),
            (Binary { function: BinaryFunction::Mul }.into(), r#"{"op":"binary","function":"mul"}"#),
            (Compare { relation: Relation::Le }.into(), r#"{"op":"compare","relation":"le"}"#),
            (Logical { function: LogicalFunction::And }.into(), r#"{"op":"logical","function":"and"}"#),
            (Select.into(), r#"{"op":"select"}"#),
            (Cast { to: DType::F32 }.into(), r#"{"op":"cast","to":"f32"}"#),
            (Reshape { dimensions: sizes(&[2, 3]) }.into(), r#"{"op":"reshape","dimensions":[2,3]}"#),
            (Permute { order: axes(&[1, 0]) }.into(), r#"{"op":"permute","order":[1,0]}"#),
            (Expand { dimensions: sizes(&[2, 3]) }.into(), r#"{"op":"expand","dimensions":[2,3]}"#),
            (
                Slice { axis: 1, start: 0, end: 4, step: 1, drop: false }.into(),
                r#"{"op":"slice","axis":1,"start":0,"end":4}"#,
            ),
            (Concatenate { axis: 1 }.into(), r#"{"op":"concatenate","axis":1}"#),
            (Pad { axis: 1, before: 2, after: 3 }.into(), r#"{"op":"pad","axis":1,"before":2,"after":3}"#),
            (
                Reduce { reduction: Reduction::Mean, axes: axes(&[1]), keep: true }.into(),
                r#"{"op":"reduce","reduction":"mean","axes":[1],"keep":true}"#,
            ),
            (CumulativeSum { axis: 1 }.into(), r#"{"op":"cumulative_sum","axis":1}"#),
            (Softmax { log: true }.into(), r#"{"op":"softmax","log":true}"#),
            (Matmul { transpose_a: false, transpose_b: true }.into(), r#"{"op":"matmul","transpose_b":true}"#),
            (Gather { axis: 1 }.into(), r#"{"op":"gather","axis":1}"#),
            (OneHot { classes: 3 }.into(), r#"{"op":"one_hot","classes":3}"#),
            (Parameter.into(), r#"{"op":"parameter"}"#),
            (SumLoss { factor: 0.5 }.into(), r#"{"op":"sum_loss","factor":0.5}"#),
            (Convolution { window: WINDOW, groups: 1 }.into(), r#"{"op":"convolution","stride":[2,1]}"#),
            (MaxPool { kernel: [2, 3], window: WINDOW }.into(), r#"{"op":"max_pool","kernel":[2,3],"stride":[2,1]}"#),
            (
                AveragePool { kernel: [2, 3], window: WINDOW, counts_padding: true }.into(),
                r#"{"op":"average_pool","kernel":[2,3],"stride":[2,1],"counts_padding":true}"#,
            ),
            (Metric.into(), r#"{"op":"metric"}"#),
            (ClassCounts.into(), r#"{"op":"class_counts"}"#),
            (NgramOverlap { length: 2 }.into(), r#"{"op":"ngram_overlap","length":2}"#),
            (ArgMax { axis: 1 }.into(), r#"{"op":"arg_max","axis":1}"#),
            (StopGradient.into(), r#"{"op":"stop_gradient"}"#),
            (
                Random { distribution: Distribution::Normal, dimensions: sizes(&[2, 3]) }.into(),
                r#"{"op":"random","distribution":"normal","dimensions":[2,3]}"#,
            ),
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
