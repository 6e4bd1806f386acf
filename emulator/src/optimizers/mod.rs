//! What optimizers keep and compute. Each is one file here, and one line of the table in this file.
//!
//! The settings of an optimizer, and the keys of params that they come from, are in `crds/params/src/optimizers`.
//! `docs/dev/add-an-optimizer.md` describes each step.
//!
//! * An update is the formula of `torch.optim` in f32; its scalars are computed in f64, once per call.
//! * An update is a function of single elements: a tensor may be updated in any pieces, on any shards, with the same
//!   bits.
//! * Gradient, weights and state are read once and written once, because updates are bound by memory bandwidth.
//! * Names of state tensors are part of the format of checkpoints.

use std::fmt::Debug;

use millrace_params::OptimizerKind;

#[cfg(feature = "kernels")]
use crate::kernels::Simd;

mod adagrad;
mod adam;
mod lion;
mod nadam;
mod radam;
mod rmsprop;
mod sgd;

/// Maximum state tensors of an optimizer. The memory and the bandwidth of MemoryX are planned for this many.
pub const MAX_STATE_TENSORS: usize = 2;

/// State and arithmetic of an optimizer.
pub trait Optimizer: Debug + Send + Sync {
    /// Returns the names of the tensors that it keeps for each tensor of weights, at most [`MAX_STATE_TENSORS`].
    /// Each starts at zero. A checkpoint stores it in files whose names end with its name, which has only `a-z`,
    /// `0-9` and `_`.
    fn state(&self) -> &'static [&'static str];

    /// Updates a piece of a tensor.
    ///
    /// # Panics
    /// If the lengths of the arrays differ.
    #[cfg(feature = "kernels")]
    fn update(&self, simd: Simd, step: &UpdateStep, arrays: UpdateArrays<'_>);
}

/// What an update needs to know of its step.
#[derive(Clone, Copy, Debug)]
pub struct UpdateStep {
    /// Number of the step, from 1.
    pub step: u64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Weight decay; 0 for a tensor to which none applies.
    pub weight_decay: f64,
    /// Factor on the gradient: loss scaling, and clipping by the global norm.
    pub gradient_scale: f32,
}

/// A piece of a tensor with its gradient and state.
#[derive(Debug)]
pub struct UpdateArrays<'a> {
    /// Weights.
    pub weights: &'a mut [f32],
    /// Gradient, before it is scaled.
    pub gradient: &'a [f32],
    /// State, in the order of [`Optimizer::state`]; further ones are empty.
    pub state: [&'a mut [f32]; MAX_STATE_TENSORS],
}

/// Registers the implementations of all kinds of optimizers.
macro_rules! optimizers {
    ($($module:ident::$Name:ident,)*) => {
        /// Returns state and arithmetic of an optimizer.
        pub const fn optimizer(kind: &OptimizerKind) -> &dyn Optimizer {
            match kind {
                $(OptimizerKind::$Name(optimizer) => optimizer,)*
            }
        }

        /// The tests that every optimizer has.
        #[cfg(all(test, feature = "kernels"))]
        #[allow(non_snake_case)]
        mod every {
            $(mod $Name {
                use crate::optimizers::testing;

                #[test]
                fn update_agrees_with_the_reference() {
                    testing::check_updates::<millrace_params::optimizers::$Name>();
                }
            })*
        }
    };
}

optimizers! {
    adam::AdamW,
    adam::Adam,
    sgd::Sgd,
    lion::Lion,
    rmsprop::RmsProp,
    adagrad::Adagrad,
    nadam::NAdam,
    radam::RAdam,
}

#[cfg(all(test, feature = "kernels"))]
mod testing;
