//! The initial values of a tensor, from an initializer of the params.

use millrace_params::{Fan, InitializerSpec, ScalingDistribution};

use crate::graph::{Initializer, TensorRole};

/// Standard deviation of the normal distribution with variance 1 after it is truncated at two standard deviations.
const TRUNCATED_STD: f64 = 0.879_625_661_034_239_8;

/// Returns the initial values of a tensor of this shape. A weight is a matrix of outputs and inputs; an embedding, by
/// which a one-hot vector is multiplied, one of inputs and outputs.
pub(super) fn initial_values(spec: InitializerSpec, shape: [usize; 2], role: TensorRole) -> Initializer {
    match spec {
        InitializerSpec::Normal { mean, std } => Initializer::Normal { mean, std },
        InitializerSpec::TruncatedNormal { mean, std, a, b } => {
            Initializer::TruncatedNormal { mean, std, low: a, high: b }
        }
        InitializerSpec::Uniform { a, b } => Initializer::Uniform { low: a, high: b },
        InitializerSpec::Constant { val } => Initializer::Constant { value: val },
        InitializerSpec::VarianceScaling { scale, fan, distribution } => {
            let [rows, columns] = shape.map(|size| size.max(1) as f64);
            let (inputs, outputs) = if role == TensorRole::Embedding { (rows, columns) } else { (columns, rows) };
            let count = match fan {
                Fan::In => inputs,
                Fan::Out => outputs,
                Fan::Average => f64::midpoint(inputs, outputs),
            };
            scaled(distribution, scale / count)
        }
    }
}

/// Returns a distribution around 0 with this variance.
fn scaled(distribution: ScalingDistribution, variance: f64) -> Initializer {
    let std = variance.sqrt();
    match distribution {
        ScalingDistribution::Normal => Initializer::Normal { mean: 0.0, std },
        ScalingDistribution::TruncatedNormal => {
            let std = std / TRUNCATED_STD;
            Initializer::TruncatedNormal { mean: 0.0, std, low: -2.0 * std, high: 2.0 * std }
        }
        ScalingDistribution::Uniform => {
            let bound = (3.0 * variance).sqrt();
            Initializer::Uniform { low: -bound, high: bound }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variance_is_scaled_by_the_inputs_or_outputs() {
        let initializer = |fan, distribution, role| {
            initial_values(InitializerSpec::VarianceScaling { scale: 3.0, fan, distribution }, [12, 48], role)
        };
        let normal = |std| Initializer::Normal { mean: 0.0, std };
        for (fan, role, std) in [
            (Fan::In, TensorRole::Weight, 0.25),
            (Fan::Out, TensorRole::Weight, 0.5),
            (Fan::Average, TensorRole::Weight, 0.1f64.sqrt()),
            (Fan::In, TensorRole::Embedding, 0.5),
            (Fan::Out, TensorRole::Embedding, 0.25),
        ] {
            assert_eq!(initializer(fan, ScalingDistribution::Normal, role), normal(std), "{fan:?} {role:?}");
        }
        let uniform = initializer(Fan::In, ScalingDistribution::Uniform, TensorRole::Weight);
        assert_eq!(uniform, Initializer::Uniform { low: -0.1875f64.sqrt(), high: 0.1875f64.sqrt() });
        let std = 0.25 / TRUNCATED_STD;
        let truncated = initializer(Fan::In, ScalingDistribution::TruncatedNormal, TensorRole::Weight);
        assert_eq!(truncated, Initializer::TruncatedNormal { mean: 0.0, std, low: -2.0 * std, high: 2.0 * std });
    }
}
