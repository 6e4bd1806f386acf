//! The momentum of each step, in the section `optimizer` of the params.

use crate::keys::facts::{default, required};
use crate::keywords::MOMENTUM_CURVES;
use crate::yaml::section;

section! {
    /// Momentum at some steps, and the curve between them.
    pub struct MomentumScheduleParams {
        /// Steps from the first one, 0, in ascending order.
        steps: Vec<u64> = required(),
        /// Momentum at each of `steps`. The last one holds from then on.
        values: Vec<f64> = required(),
        /// Momentum between two of `steps`: that of the first one, on a straight line, or on half a cosine.
        interpolation: String = default("constant").one_of(&MOMENTUM_CURVES),
    }
    ignored {}
    unsupported {}
}
