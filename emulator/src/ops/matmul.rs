//! `(a [.., M, K], b [.., K, N]) -> [.., M, N]`: the matrix product of the last two dimensions, for each of the others,
//! which are the same. Either operand may be given transposed, as `[.., K, M]` or `[.., N, K]`.

use serde::{Deserialize, Serialize};

use super::{Flops, OpError, Operator, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. Saves both inputs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Matmul {
    /// Whether the first operand is transposed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transpose_a: bool,
    /// Whether the second operand is transposed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transpose_b: bool,
}

/// The sizes of `batch` products of `rows x inner` with `inner x columns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sizes {
    batch: usize,
    rows: usize,
    inner: usize,
    columns: usize,
}

impl Matmul {
    /// Returns the sizes for these operands; `None` if they do not fit together.
    fn sizes(&self, a: &[usize], b: &[usize]) -> Option<Sizes> {
        let (a_outer, &[first, second]) = a.split_last_chunk::<2>()?;
        let (b_outer, &[third, fourth]) = b.split_last_chunk::<2>()?;
        let (rows, inner) = if self.transpose_a { (second, first) } else { (first, second) };
        let (b_inner, columns) = if self.transpose_b { (fourth, third) } else { (third, fourth) };
        let batch = a_outer.iter().fold(1, |product: usize, size| product.saturating_mul(*size));
        (a_outer == b_outer && inner == b_inner).then_some(Sizes { batch, rows, inner, columns })
    }
}

impl Operator for Matmul {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [a, b] = io.inputs([DType::F32; 2])?;
        io.params(&[], 0)?;
        let Some(Sizes { rows, columns, .. }) = self.sizes(a.dimensions(), b.dimensions()) else {
            return Err(OpError::Product { first: a.to_string(), second: b.to_string() });
        };
        let last = a.dimensions().len() - 1;
        Ok(Some(a.with_dimensions(a.dimension_list().with_size(last - 1, rows).with_size(last, columns))))
    }

    fn flops(&self, io: &Signature<'_>) -> Flops {
        let [a, b] = [0, 1].map(|input| io.inputs.get(input).map_or(&[][..], Shape::dimensions));
        let Sizes { batch, rows, inner, columns } = self.sizes(a, b).unwrap_or_default();
        Flops::product((batch as u64).saturating_mul(rows as u64), inner as u64, columns as u64)
    }

    fn saved(&self, _: &Signature<'_>) -> SavedForBackward {
        SavedForBackward { inputs: &[0, 1], ..SavedForBackward::default() }
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::{Matmul, Sizes};
    use crate::kernels::{Accumulate, MatMut, MatRef, gemm};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, TargetMut};

    impl Matmul {
        fn leaf_sizes(&self, shape: &NodeShape, samples: usize) -> Sizes {
            let [a, b] = [0, 1].map(|input| shape.inputs[input].dimensions());
            let sizes = self.sizes(a, b).unwrap_or_default();
            Sizes { batch: samples * sizes.batch, ..sizes }
        }
    }

    /// A stack of matrices, each stored as it is or transposed.
    #[derive(Clone, Copy)]
    struct Stack<'a> {
        data: &'a [f32],
        rows: usize,
        columns: usize,
        is_transposed: bool,
    }

    impl<'a> Stack<'a> {
        /// Returns matrix number `index`.
        fn at(self, index: usize) -> MatRef<'a> {
            let size = self.rows * self.columns;
            let data = &self.data[index * size..(index + 1) * size];
            if self.is_transposed {
                MatRef::row_major(data, self.columns, self.rows).t()
            } else {
                MatRef::row_major(data, self.rows, self.columns)
            }
        }
    }

    /// Writes `batch` products of two matrices, or their transposes.
    fn write_products<'a>(
        context: &mut OperatorContext<'_>,
        batch: usize,
        target: TargetMut<'_>,
        is_transposed: bool,
        factors: impl Fn(usize) -> [MatRef<'a>; 2],
    ) {
        let TargetMut::Memory(target, accumulate) = target else { return };
        for (index, target) in (0..batch).zip(target.chunks_exact_mut(target.len() / batch)) {
            let [left, right] = factors(index);
            let (left, right) = if is_transposed { (right.t(), left.t()) } else { (left, right) };
            let target = MatMut::row_major(target, left.rows(), right.cols());
            gemm(context.cx, left, right, target, accumulate, None, context.products);
        }
    }

    impl Executor for Matmul {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let Sizes { batch, rows, inner, columns } = self.leaf_sizes(io.shape, context.samples);
            let [a, b, ..] = io.inputs.map(|input| input.values());
            let a = Stack { data: a, rows, columns: inner, is_transposed: self.transpose_a };
            let b = Stack { data: b, rows: inner, columns, is_transposed: self.transpose_b };
            for (index, y) in (0..batch).zip(io.output.chunks_exact_mut(rows * columns)) {
                let y = MatMut::row_major(y, rows, columns);
                gemm(context.cx, a.at(index), b.at(index), y, Accumulate::Store, None, context.products);
            }
        }

        /// The gradient of A is dY·Bᵀ, that of B is Aᵀ·dY; a transposed operand has the transpose of its gradient.
        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let Sizes { batch, rows, inner, columns } = self.leaf_sizes(io.shape, context.samples);
            let [a, b, ..] = io.inputs.map(|input| input.values());
            let a = Stack { data: a, rows, columns: inner, is_transposed: self.transpose_a };
            let b = Stack { data: b, rows: inner, columns, is_transposed: self.transpose_b };
            let dy = Stack { data: io.gradient, rows, columns, is_transposed: false };
            let [to_a, to_b, _] = io.targets;
            let of_a = |index| [dy.at(index), b.at(index).t()];
            let of_b = |index| [a.at(index).t(), dy.at(index)];
            write_products(context, batch, to_a, self.transpose_a, of_a);
            write_products(context, batch, to_b, self.transpose_b, of_b);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Matmul;
    use crate::graph::Graph;
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, f32_shape, rejects,
    };
    use crate::ops::{Flops, Operator as _, Signature};

    const PLAIN: Matmul = Matmul { transpose_a: false, transpose_b: false };

    impl OperatorTests for Matmul {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let [a, b] = [0, 1].map(|inner_index| args.io.inputs[inner_index].dimensions());
            let sizes = self.sizes(a, b).unwrap();
            let (rows, inner, columns) = (sizes.rows, sizes.inner, sizes.columns);
            let of_a =
                |row, inner_index| if self.transpose_a { inner_index * rows + row } else { row * inner + inner_index };
            let of_b = |inner_index, column| {
                if self.transpose_b { column * inner + inner_index } else { inner_index * columns + column }
            };
            let matrices = args.inputs[0].chunks(rows * inner).zip(args.inputs[1].chunks(inner * columns));
            let product = |(a, b): (&[f64], &[f64])| -> Vec<f64> {
                let element = |(row, column)| {
                    (0..inner).map(|inner_index| a[of_a(row, inner_index)] * b[of_b(inner_index, column)]).sum()
                };
                (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))).map(element).collect()
            };
            matrices.flat_map(product).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let transposed = |transpose_a, transpose_b| Matmul { transpose_a, transpose_b };
            vec![
                accepts(PLAIN, &[X, f32_shape(&[4, 3])], &[], f32_shape(&[8, 3])),
                accepts(
                    transposed(true, true),
                    &[f32_shape(&[2, 4, 8]), f32_shape(&[2, 3, 4])],
                    &[],
                    f32_shape(&[2, 8, 3]),
                ),
                rejects(PLAIN, &[X, X], &[], "f32 [8, 4] and f32 [8, 4] have no product"),
                rejects(PLAIN, &[f32_shape(&[1, 8, 4]), f32_shape(&[2, 4, 3])], &[], "no product"),
                rejects(PLAIN, &[f32_shape(&[4]), f32_shape(&[4, 3])], &[], "no product"),
                rejects(PLAIN, &[X, TOKENS], &[], "type f32"),
                rejects(PLAIN, &[X, f32_shape(&[4, 3])], &[&[4]], "0 tensors"),
            ]
        }

        /// Each transposition, of stacks of matrices, and a product of a value with itself.
        fn graphs() -> Vec<Graph> {
            let graph = |(transpose_a, transpose_b)| {
                TestGraph::build(|s, x| {
                    let stack = |s: &mut TestGraph, is_transposed, rows, columns| {
                        let y = s.linear(x, 2 * rows * columns / ROWS, true);
                        let sizes = if is_transposed { [2, columns, rows] } else { [2, rows, columns] };
                        s.reshape(y, &sizes)
                    };
                    let (a, b) = (stack(s, transpose_a, ROWS, 3), stack(s, transpose_b, 3, ROWS));
                    let y = s.node(Matmul { transpose_a, transpose_b }, &[a, b], &[]);
                    s.weighted_loss(y);
                    x
                })
            };
            let of_itself = TestGraph::build(|s, x| {
                let gram = s.node(Matmul { transpose_b: true, ..PLAIN }, &[x, x], &[]);
                let y = s.node(PLAIN, &[gram, x], &[]);
                assert_eq!(s.shape(y).dimensions(), [ROWS, WIDTH]);
                y
            });
            let cases = [(false, false), (false, true), (true, false), (true, true)];
            cases.map(graph).into_iter().chain([of_itself]).collect()
        }
    }

    #[test]
    fn multiply_add_counts_as_two_operations() {
        let io = Signature { inputs: vec![f32_shape(&[2, 8, 4]), f32_shape(&[2, 4, 3])], params: vec![] };
        assert_eq!(PLAIN.flops(&io), Flops::product(2 * 8, 4, 3));
    }
}
