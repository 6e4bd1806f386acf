//! What optimizers keep and compute. Each is one file here, and one line of the table in this file.
//!
//! The settings of an optimizer, and the keys of params that they come from, are in `crds/params/src/optimizers`.
//! `docs/dev/add-an-optimizer.md` describes each step.
//!
//! * An update is the formula of `torch.optim` in f32; its scalars are computed in f64, once per call.
//! * An update is a function of single elements: a tensor may be updated in any pieces, on any shards, with the same
//!   bits. An optimizer that needs statistics of whole tensors says so by [`Optimizer::whole_tensor_state`] and gets
//!   whole tensors; it adds in an order of its own, so that its bits do not depend on shards and chunks either.
//! * Gradient, weights and state are read once and written once, because updates are bound by memory bandwidth.
//! * Names of state tensors are part of the format of checkpoints.

use std::fmt::Debug;

use millrace_params::{MomentumSchedule, OptimizerKind};

#[cfg(feature = "kernels")]
use crate::kernels::Simd;
use crate::plan::StateShape;

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod lamb;
mod lion;
mod nadam;
mod radam;
mod rmsprop;
mod sgd;

/// Maximum state tensors of an optimizer.
pub const MAX_STATE_TENSORS: usize = 3;
/// State tensors that the memory and the bandwidth of MemoryX are planned for at least, if an optimizer updates single
/// elements. Plans of almost all optimizers are the same.
pub const PLANNED_STATE_TENSORS: usize = 2;

/// State and arithmetic of an optimizer.
pub trait Optimizer: Debug + Send + Sync {
    /// Returns the names of the tensors that it keeps for each tensor of weights, at most [`MAX_STATE_TENSORS`].
    /// Each starts at zero. A checkpoint stores it in files whose names end with its name, which has only `a-z`,
    /// `0-9` and `_`.
    fn state(&self) -> &'static [&'static str];

    /// Returns the shape of each tensor of [`Optimizer::state`] if an update depends on sums over a whole tensor;
    /// `None` if it is a function of single elements, whose state has the shape of the weights.
    fn whole_tensor_state(&self) -> Option<&'static [StateShape]> {
        None
    }

    /// Updates a piece of a tensor; the whole tensor if [`Optimizer::whole_tensor_state`] returns shapes.
    ///
    /// # Panics
    /// If the lengths of the arrays do not fit each other.
    #[cfg(feature = "kernels")]
    fn update(&self, simd: Simd, step: &UpdateStep<'_>, arrays: UpdateArrays<'_>);
}

/// What an update needs to know of its step.
#[derive(Clone, Copy, Debug)]
pub struct UpdateStep<'a> {
    /// Number of the step, from 1.
    pub step: u64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Weight decay; 0 for a tensor to which none applies.
    pub weight_decay: f64,
    /// Factor on the gradient: loss scaling, clipping by the global norm, and -1 if the loss is maximized.
    pub gradient_scale: f32,
    /// The momentum of each step; `None` for that of the optimizer at every step.
    pub momentum_schedule: Option<&'a MomentumSchedule>,
}

impl UpdateStep<'_> {
    /// Returns the momentum, or the decay rate of the first moment, at this step; `constant` without a schedule.
    pub fn momentum(&self, constant: f64) -> f64 {
        self.momentum_at(self.step, constant)
    }

    /// Returns the share of the weights that is added to the gradient, and the factor on the weights.
    #[cfg(feature = "kernels")]
    fn decay(&self, is_decoupled: bool) -> [f64; 2] {
        if is_decoupled { [0.0, 1.0 - self.learning_rate * self.weight_decay] } else { [self.weight_decay, 1.0] }
    }

    /// Returns the momentum at a step that counts from 1.
    fn momentum_at(&self, step: u64, constant: f64) -> f64 {
        self.momentum_schedule.map_or(constant, |schedule| schedule.at(step.saturating_sub(1)))
    }
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
    /// Dimensions of the whole tensor.
    pub shape: &'a [usize],
}

/// Sums the lanes of a reduction in f64 by halves, as `squared_norm` does.
#[cfg(feature = "kernels")]
#[inline(always)]
fn sum_of_lanes(mut lanes: [f64; crate::kernels::isa::REDUCTION_LANES]) -> f64 {
    let mut half = lanes.len() / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
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
    adamax::Adamax,
    adadelta::Adadelta,
    lamb::Lamb,
    adafactor::Adafactor,
}

#[cfg(all(test, feature = "kernels"))]
mod testing;
