//! Products against f64, bits against each other.

use super::*;
use crate::kernels::testing::sum_along_tree;
use crate::kernels::{ComputeThreads, Simd};
use crate::numerics::init::Initializer;
use crate::numerics::{Precision, bf16};
use crate::tree::Node;

fn random(len: usize, key: u64) -> Vec<f32> {
    let mut values = vec![0.0; len];
    Initializer::Uniform { low: -1.0, high: 1.0 }.fill(key, 0, &mut values);
    values
}

/// The documented order, one element at a time.
fn element(a: MatRef<'_>, b: MatRef<'_>, precision: Precision, row: usize, col: usize) -> f32 {
    let round = |x| if precision == Precision::Bf16 { bf16::round(x) } else { x };
    let element = |m: MatRef<'_>, r: usize, c: usize| round(m.data()[r * m.row_stride() + c * m.col_stride()]);
    let mut total = None;
    for start in (0..a.cols()).step_by(GEMM_INNER_BLOCK) {
        let block = start..(start + GEMM_INNER_BLOCK).min(a.cols());
        let chain = block.fold(0.0f32, |sum, i| element(a, row, i).mul_add(element(b, i, col), sum));
        total = Some(total.map_or(chain, |t: f32| t + chain));
    }
    total.unwrap_or(0.0)
}

/// Stores `rows x cols` either way round, or with gaps, and views it.
fn view(data: &[f32], rows: usize, cols: usize, layout: usize) -> MatRef<'_> {
    match layout {
        0 => MatRef::row_major(data, rows, cols),
        1 => MatRef::row_major(data, cols, rows).t(),
        _ => MatRef::new(data, rows, cols, 2 * cols + 1, 2),
    }
}

#[test]
fn elements_have_documented_bits_for_all_shapes_and_threads() {
    // Shapes around the edges of vectors, panels, tiles and inner blocks.
    let shapes =
        [(1, 1, 1), (3, 5, 0), (8, 48, 16), (7, 47, 3), (9, 49, 33), (100, 70, 40), (13, 97, 2 * GEMM_INNER_BLOCK + 5)];
    let pools = [ComputeThreads::inline(), ComputeThreads::new(2).unwrap()];
    for (number, (m, n, k)) in shapes.into_iter().enumerate() {
        let (a_data, b_data) = (random(2 * (m * k + m + k), 1), random(2 * (n * k + n + k), 2));
        let (former, bias) = (random(m * (n + 3), 3), random(n, 4));
        for (layout, precision) in [(0, Precision::F32), (1, Precision::F32), (2, Precision::F32), (0, Precision::Bf16)]
        {
            let (a, b) = (view(&a_data, m, k, layout), view(&b_data, k, n, (layout + number) % 3));
            for accumulate in [Accumulate::Store, Accumulate::Add] {
                for bias in [None, Some(&bias[..])] {
                    let mut expected = former.clone();
                    for (i, row) in expected.chunks_mut(n + 3).enumerate() {
                        for (j, c) in row[..n].iter_mut().enumerate() {
                            let product = element(a, b, precision, i, j);
                            *c = if accumulate == Accumulate::Add { *c + product } else { product };
                            *c += bias.map_or(0.0, |bias| bias[j]);
                        }
                    }
                    for simd in Simd::all() {
                        for pool in &pools {
                            let cx = Context { simd, pool, precision };
                            let mut workspace = GemmWorkspace::new();
                            let mut packed = PackedB::new();
                            packed.pack(cx, b);
                            for b in [RightOperand::View(b), RightOperand::from(&packed)] {
                                let mut c = former.clone();
                                let view = MatMut::new(&mut c, m, n, n + 3);
                                gemm(cx, a, b, view, accumulate, bias, &mut workspace);
                                assert_eq!(c, expected, "{m}x{n}x{k} {layout} {simd:?} {accumulate:?}");
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn sums_over_leaves_have_the_bits_of_separate_products() {
    let pools = [ComputeThreads::inline(), ComputeThreads::new(2).unwrap()];
    let shapes = [(9, 49, 33, 7), (100, 70, 1, 64), (17, 97, 5, 2), (8, 48, 40, 8), (3, 1000, 6, 3), (7, 5, 0, 4)];
    for (number, (m, n, steps, leaves)) in shapes.into_iter().enumerate() {
        let k = steps * leaves;
        let (a_data, b_data) = (random(2 * (m * k + m + k), 1), random(2 * (n * k + n + k), 2));
        let former = random(m * (n + 3), 3);
        for (layout, precision) in [(0, Precision::F32), (1, Precision::F32), (2, Precision::Bf16)] {
            let (a, b) = (view(&a_data, m, k, layout), view(&b_data, k, n, (layout + number) % 3));
            let product = |i: usize, j: usize, start: usize| {
                element(a.col_range(start, steps), b.row_range(start, steps), precision, i, j)
            };
            for accumulate in [Accumulate::Store, Accumulate::Add] {
                let mut expected = former.clone();
                for (i, row) in expected.chunks_mut(n + 3).enumerate() {
                    for (j, c) in row[..n].iter_mut().enumerate() {
                        let root = Node::new(0, leaves as u32);
                        let sum = sum_along_tree(root, &|leaf| product(i, j, leaf as usize * steps));
                        *c = if accumulate == Accumulate::Add { *c + sum } else { sum };
                    }
                }
                for (simd, pool) in Simd::all().flat_map(|simd| pools.iter().map(move |pool| (simd, pool))) {
                    let cx = Context { simd, pool, precision };
                    let (mut workspace, mut packed) = (GemmWorkspace::new(), PackedB::new());
                    packed.pack_for_leaves(cx, b, leaves);
                    for b in [RightOperand::View(b), RightOperand::from(&packed)] {
                        let mut c = former.clone();
                        let view = MatMut::new(&mut c, m, n, n + 3);
                        gemm_over_leaves(cx, a, b, leaves, view, accumulate, &mut workspace);
                        assert_eq!(c, expected, "{m}x{n}x{steps} of {leaves} {layout} {simd:?} {accumulate:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn agrees_with_f64() {
    let (m, n, k) = (33, 65, 500);
    let (a, b) = (random(m * k, 1), random(k * n, 2));
    let mut c = vec![f32::NAN; m * n];
    let pool = ComputeThreads::inline();
    let cx = Context { simd: Simd::detect(), pool: &pool, precision: Precision::F32 };
    let (av, bv) = (MatRef::row_major(&a, m, k), MatRef::row_major(&b, k, n));
    gemm(cx, av, bv, MatMut::row_major(&mut c, m, n), Accumulate::Store, None, &mut GemmWorkspace::new());
    for i in 0..m {
        for j in 0..n {
            let exact: f64 = (0..k).map(|l| f64::from(a[i * k + l]) * f64::from(b[l * n + j])).sum();
            assert!((f64::from(c[i * n + j]) - exact).abs() < 1e-5 * (k as f64).sqrt());
        }
    }
}

#[test]
fn workspace_grows_once() {
    let (a, b) = (random(64 * 2048, 1), random(64 * 2048, 2));
    let pool = ComputeThreads::inline();
    let cx = Context { simd: Simd::detect(), pool: &pool, precision: Precision::F32 };
    let mut workspace = GemmWorkspace::new();
    let mut bytes = 0;
    for round in 0..3 {
        let mut c = vec![0.0; 64 * 64];
        let (a, b) = (MatRef::row_major(&a, 64, 2048), MatRef::row_major(&b, 2048, 64));
        gemm(cx, a, b, MatMut::row_major(&mut c, 64, 64), Accumulate::Add, None, &mut workspace);
        assert!(round == 0 || workspace.bytes() == bytes);
        bytes = workspace.bytes();
    }
}

#[test]
fn denormals_are_taken_as_zero_on_every_thread() {
    let (m, n, k) = (200, 200, 16);
    let (a, b) = (vec![1e-30f32; m * k], vec![1e-10f32; k * n]);
    for threads in [1, 2] {
        let pool = ComputeThreads::new(threads).unwrap();
        let cx = Context { simd: Simd::detect(), pool: &pool, precision: Precision::F32 };
        let mut c = vec![1.0; m * n];
        let (a, b) = (MatRef::row_major(&a, m, k), MatRef::row_major(&b, k, n));
        gemm(cx, a, b, MatMut::row_major(&mut c, m, n), Accumulate::Store, None, &mut GemmWorkspace::new());
        assert!(c.iter().all(|c| *c == 0.0), "{threads} threads");
    }
}

#[test]
fn operand_that_is_packed_in_pieces_is_the_one_packed_at_once() {
    let pools = [ComputeThreads::inline(), ComputeThreads::new(2).unwrap()];
    for (rows, columns) in [(1, 1), (7, 5), (48, 64), (50, 100), (101, 131), (3, GEMM_INNER_BLOCK + 9), (1030, 10)] {
        let matrix = random(rows * columns, 5);
        // Pieces that begin and end inside of rows, of less than a row, and of whole rows.
        for piece in [1, columns, 3 * columns / 2 + 1, 37 * columns + 5, rows * columns] {
            if rows * columns / piece > 4000 {
                continue;
            }
            for (simd, is_transposed) in
                Simd::all().flat_map(|simd| [false, true].map(|is_transposed| (simd, is_transposed)))
            {
                for pool in &pools {
                    let cx = Context { simd, pool, precision: Precision::F32 };
                    let form = PackedForm::new(simd, cx.precision, (rows, columns), is_transposed);
                    let mut panels = vec![f32::NAN; form.len()];
                    for (index, values) in matrix.chunks(piece).enumerate() {
                        form.put(cx, index * piece, values, &mut panels);
                    }
                    let view = MatRef::row_major(&matrix, rows, columns);
                    let mut packed = PackedB::new();
                    packed.pack(cx, if is_transposed { view.t() } else { view });
                    let expected = packed.operand();
                    assert_eq!(panels, expected.panels, "{rows}x{columns} in pieces of {piece}, {simd:?}");
                    assert_eq!(form.operand(&panels).layout, expected.layout);
                }
            }
        }
    }
}
