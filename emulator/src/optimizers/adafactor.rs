//! Adafactor, as `transformers.optimization.Adafactor`. With β₂ = 1 - t^decay_rate and means over rows r and columns
//! c of g² + ε₁, each kept with rate β₂: u = g / √(r·c / mean(r)), and for a vector u = g / √v. Then
//! u ← lr · max(ε₂, RMS(w)) · u / max(1, RMS(u)/clip), m ← β₁m + (1-β₁)u, w ← w - lr · max(ε₂, RMS(w)) · decay·w - m.
//!
//! * State of a matrix is one number for each row and each column. A vector has one for each element, as if each were a
//!   row. Dimensions before the last two count matrices.
//! * The factor max(ε₂, RMS(w)) is 1 without `scale_parameter`, and m is u without `beta1`.
//! * A tensor is read three times: for the second moment, for the norm of the update, and for the update.

use millrace_params::optimizers::Adafactor;

use super::Optimizer;
use crate::plan::StateShape;

impl Optimizer for Adafactor {
    fn state(&self) -> &'static [&'static str] {
        if self.beta1.is_some() { &["v_row", "v_col", "m"] } else { &["v_row", "v_col"] }
    }

    fn whole_tensor_state(&self) -> Option<&'static [StateShape]> {
        const STATE: &[StateShape] = &[StateShape::Rows, StateShape::Columns, StateShape::Full];
        Some(if self.beta1.is_some() { STATE } else { &STATE[..2] })
    }

    #[cfg(feature = "kernels")]
    fn update(&self, simd: crate::kernels::Simd, step: &super::UpdateStep<'_>, arrays: super::UpdateArrays<'_>) {
        run::update(self, simd, step, arrays);
    }
}

#[cfg(feature = "kernels")]
mod run {
    use std::ops::Range;

    use super::Adafactor;
    use crate::kernels::Simd;
    use crate::kernels::elementwise::squared_norm;
    use crate::kernels::isa::{REDUCTION_LANES, simd_fn};
    use crate::optimizers::{UpdateArrays, UpdateStep, sum_of_lanes};

    /// Dimensions of a tensor: `matrices` times `rows` times `columns`. A vector has one column.
    #[derive(Clone, Copy)]
    struct Extent {
        rows: usize,
        columns: usize,
        is_vector: bool,
    }

    /// The parts of a tensor and of its state that belong to one of its matrices.
    struct Matrix {
        elements: Range<usize>,
        rows: Range<usize>,
        columns: Range<usize>,
    }

    impl Extent {
        /// Returns the matrices of a tensor of `elements` elements.
        fn matrices(self, elements: usize) -> impl Iterator<Item = Matrix> {
            let Self { rows, columns, is_vector } = self;
            let part = |index: usize, size: usize| index * size..(index + 1) * size;
            (0..elements / (rows * columns)).map(move |index| Matrix {
                elements: part(index, rows * columns),
                rows: part(index, rows),
                columns: if is_vector { 0..0 } else { part(index, columns) },
            })
        }

        fn of(shape: &[usize]) -> Self {
            match *shape {
                [.., rows, columns] => Self { rows: rows.max(1), columns: columns.max(1), is_vector: false },
                [rows] => Self { rows: rows.max(1), columns: 1, is_vector: true },
                [] => Self { rows: 1, columns: 1, is_vector: true },
            }
        }
    }

    pub fn update(adafactor: &Adafactor, simd: Simd, step: &UpdateStep<'_>, arrays: UpdateArrays<'_>) {
        let UpdateArrays { weights, gradient, state: [rows, columns, momentum], shape } = arrays;
        assert_eq!(gradient.len(), weights.len());
        let extent = Extent::of(shape);
        let rms = |squares: f64| libm::sqrt(squares / weights.len().max(1) as f64);
        let scale =
            if adafactor.scale_parameter { rms(squared_norm(simd, weights)).max(adafactor.eps[1]) } else { 1.0 };
        let rate = step.learning_rate * scale;
        let beta2 = 1.0 - libm::pow(step.step as f64, adafactor.decay_rate);
        let added = adafactor.eps[0] as f32;
        let second =
            Second { gradient_scale: step.gradient_scale, added, beta2: beta2 as f32, rest: (1.0 - beta2) as f32 };
        let mut factors = Factors::new(extent);
        let mut squares = 0.0;
        for Matrix { elements, rows: own_rows, columns: own_columns } in extent.matrices(weights.len()) {
            let (gradient, rows, columns) = (&gradient[elements], &mut rows[own_rows], &mut columns[own_columns]);
            factors.observe(simd, second, gradient, rows, columns);
            factors.compute(rows, columns);
            squares += factors.squared_update(simd, step.gradient_scale, gradient);
        }
        let clip = (rms(squares) / adafactor.clip_threshold).max(1.0);
        let beta1 = adafactor.beta1.unwrap_or(0.0);
        let apply = Apply {
            scale: (f64::from(step.gradient_scale) * rate / clip) as f32,
            keep: (1.0 - step.weight_decay * rate) as f32,
            beta1: beta1 as f32,
            rest: (1.0 - beta1) as f32,
        };
        for Matrix { elements, rows: own_rows, columns: own_columns } in extent.matrices(weights.len()) {
            factors.compute(&rows[own_rows], &columns[own_columns]);
            let momentum = adafactor.beta1.map(|_| &mut momentum[elements.clone()]);
            factors.apply(simd, apply, &mut weights[elements.clone()], &gradient[elements], momentum);
        }
    }

    /// How the second moment takes a gradient.
    #[derive(Clone, Copy)]
    struct Second {
        gradient_scale: f32,
        added: f32,
        beta2: f32,
        rest: f32,
    }

    #[derive(Clone, Copy)]
    struct Apply {
        scale: f32,
        keep: f32,
        beta1: f32,
        rest: f32,
    }

    /// The factors of a matrix's gradient, by row and by column: their product is 1/√v.
    struct Factors {
        extent: Extent,
        rows: Vec<f32>,
        columns: Vec<f32>,
        sums: Vec<f64>,
    }

    impl Factors {
        fn new(extent: Extent) -> Self {
            let columns = if extent.is_vector { 1 } else { extent.columns };
            Self { extent, rows: vec![0.0; extent.rows], columns: vec![1.0; columns], sums: vec![0.0; columns] }
        }

        /// Adds the squares of a gradient to the second moment.
        fn observe(&mut self, simd: Simd, second: Second, gradient: &[f32], rows: &mut [f32], columns: &mut [f32]) {
            if self.extent.is_vector {
                return observe_vector(simd, second, gradient, rows);
            }
            self.sums.fill(0.0);
            for (gradient, row) in gradient.chunks_exact(self.extent.columns).zip(rows) {
                let sum = observe_row(simd, second, gradient, &mut self.sums);
                *row = second.beta2.mul_add(*row, second.rest * (sum / self.extent.columns as f64) as f32);
            }
            for (column, sum) in columns.iter_mut().zip(&self.sums) {
                *column = second.beta2.mul_add(*column, second.rest * (sum / self.extent.rows as f64) as f32);
            }
        }

        fn compute(&mut self, rows: &[f32], columns: &[f32]) {
            let sum: f64 = rows.iter().copied().map(f64::from).sum();
            let mean = if self.extent.is_vector { 1.0 } else { (sum / rows.len().max(1) as f64) as f32 };
            for (factor, row) in self.rows.iter_mut().zip(rows) {
                *factor = 1.0 / (row / mean).sqrt();
            }
            if !self.extent.is_vector {
                for (factor, column) in self.columns.iter_mut().zip(columns) {
                    *factor = 1.0 / column.sqrt();
                }
            }
        }

        /// Returns the squared norm of the update before it is clipped. Rows are added in ascending order.
        fn squared_update(&self, simd: Simd, gradient_scale: f32, gradient: &[f32]) -> f64 {
            if self.extent.is_vector {
                return squared_product(simd, gradient_scale, gradient, &self.rows);
            }
            let rows = gradient.chunks_exact(self.extent.columns).zip(&self.rows);
            rows.map(|(gradient, row)| squared_product(simd, gradient_scale * row, gradient, &self.columns)).sum()
        }

        fn apply(&self, simd: Simd, apply: Apply, weights: &mut [f32], gradient: &[f32], momentum: Option<&mut [f32]>) {
            let is_vector = self.extent.is_vector;
            let width = if is_vector { gradient.len().max(1) } else { self.extent.columns };
            let rows = weights.chunks_exact_mut(width).zip(gradient.chunks_exact(width));
            let mut momentum = momentum.map(|momentum| momentum.chunks_exact_mut(width));
            for (index, (weights, gradient)) in rows.enumerate() {
                let (scale, factors) =
                    if is_vector { (apply.scale, &self.rows) } else { (apply.scale * self.rows[index], &self.columns) };
                let apply = Apply { scale, ..apply };
                match momentum.as_mut().and_then(Iterator::next) {
                    Some(momentum) => move_by_mean(simd, apply, weights, gradient, factors, momentum),
                    None => move_weights(simd, apply, weights, gradient, factors),
                }
            }
        }
    }

    simd_fn! {
        /// Adds the squares of a row to the sums of the columns; returns their sum.
        fn observe_row(s: Second, gradient: &[f32], sums: &mut [f64]) -> f64 {
            let mut lanes = [0.0f64; REDUCTION_LANES];
            for (gradient, sums) in gradient.chunks(REDUCTION_LANES).zip(sums.chunks_mut(REDUCTION_LANES)) {
                for ((g, sum), lane) in gradient.iter().zip(sums).zip(&mut lanes) {
                    let g = g * s.gradient_scale;
                    let square = f64::from(g.mul_add(g, s.added));
                    *sum += square;
                    *lane += square;
                }
            }
            sum_of_lanes(lanes)
        }
    }

    simd_fn! {
        fn observe_vector(s: Second, gradient: &[f32], v: &mut [f32]) {
            for (g, v) in gradient.iter().zip(v) {
                let g = g * s.gradient_scale;
                *v = s.beta2.mul_add(*v, s.rest * g.mul_add(g, s.added));
            }
        }
    }

    simd_fn! {
        /// Returns the squared norm of scale·g·factor, element by element, in the order of `squared_norm`.
        fn squared_product(scale: f32, gradient: &[f32], factors: &[f32]) -> f64 {
            let mut lanes = [0.0f64; REDUCTION_LANES];
            for (gradient, factors) in gradient.chunks(REDUCTION_LANES).zip(factors.chunks(REDUCTION_LANES)) {
                for ((g, factor), lane) in gradient.iter().zip(factors).zip(&mut lanes) {
                    let u = f64::from(scale * g * factor);
                    *lane += u * u;
                }
            }
            sum_of_lanes(lanes)
        }
    }

    simd_fn! {
        fn move_weights(s: Apply, w: &mut [f32], gradient: &[f32], factors: &[f32]) {
            for ((w, g), factor) in w.iter_mut().zip(gradient).zip(factors) {
                *w = w.mul_add(s.keep, -(s.scale * g * factor));
            }
        }
    }

    simd_fn! {
        fn move_by_mean(s: Apply, w: &mut [f32], gradient: &[f32], factors: &[f32], m: &mut [f32]) {
            for (((w, g), factor), m) in w.iter_mut().zip(gradient).zip(factors).zip(m) {
                *m = s.beta1.mul_add(*m, s.rest * (s.scale * g * factor));
                *w = w.mul_add(s.keep, -*m);
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Adafactor;
    use crate::optimizers::UpdateStep;
    use crate::optimizers::testing::{OptimizerTests, TensorF64};

    fn rms(values: &[f64]) -> f64 {
        (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64).sqrt()
    }

    impl OptimizerTests for Adafactor {
        fn reference_tensor(&self, step: &UpdateStep<'_>, tensor: &mut TensorF64, gradient: &[f64]) {
            let TensorF64 { shape, weights, state } = tensor;
            let beta2 = 1.0 - (step.step as f64).powf(self.decay_rate);
            let squares: Vec<f64> = gradient.iter().map(|g| g * g + self.eps[0]).collect();
            let mut update = gradient.to_vec();
            if let [.., rows, columns] = *shape.as_slice() {
                for index in 0..gradient.len() {
                    // Every mean is updated once, by its first element.
                    let (matrix, row, column) = (index / (rows * columns), index / columns, index % columns);
                    let first = matrix * rows * columns;
                    if column == 0 {
                        let mean = squares[index..index + columns].iter().sum::<f64>() / columns as f64;
                        state[0][row] = beta2 * state[0][row] + (1.0 - beta2) * mean;
                    }
                    if row % rows == 0 {
                        let all = squares[first + column..first + rows * columns].iter().step_by(columns);
                        let mean = all.sum::<f64>() / rows as f64;
                        let average = &mut state[1][matrix * columns + column];
                        *average = beta2 * *average + (1.0 - beta2) * mean;
                    }
                }
                for (index, update) in update.iter_mut().enumerate() {
                    let (matrix, row, column) = (index / (rows * columns), index / columns, index % columns);
                    let of_matrix = &state[0][matrix * rows..(matrix + 1) * rows];
                    let mean = of_matrix.iter().sum::<f64>() / rows as f64;
                    *update /= (state[0][row] * state[1][matrix * columns + column] / mean).sqrt();
                }
            } else {
                for (index, square) in squares.iter().enumerate() {
                    state[0][index] = beta2 * state[0][index] + (1.0 - beta2) * square;
                    update[index] /= state[0][index].sqrt();
                }
            }
            let scale = if self.scale_parameter { rms(weights).max(self.eps[1]) } else { 1.0 };
            let rate = step.learning_rate * scale;
            let clip = (rms(&update) / self.clip_threshold).max(1.0);
            for (index, update) in update.into_iter().enumerate() {
                let mut update = rate * update / clip;
                if let Some(beta1) = self.beta1 {
                    state[2][index] = beta1 * state[2][index] + (1.0 - beta1) * update;
                    update = state[2][index];
                }
                weights[index] -= rate * step.weight_decay * weights[index] + update;
            }
        }

        fn cases() -> Vec<Self> {
            let plain = Adafactor {
                eps: [1e-30, 1e-3],
                clip_threshold: 1.0,
                decay_rate: -0.8,
                beta1: None,
                scale_parameter: true,
            };
            let momentum = Adafactor { beta1: Some(0.9), clip_threshold: 0.5, ..plain };
            vec![
                plain,
                momentum,
                Adafactor { eps: [1e-3, 2.0], ..momentum },
                Adafactor { scale_parameter: false, ..plain },
            ]
        }
    }
}
