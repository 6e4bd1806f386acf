use super::*;
use crate::kernels::testing::uniform;
use crate::kernels::{Accumulate, ComputeThreads, Simd};
use crate::numerics::Precision;

/// Runs `f` with one and with three threads, and returns the result, which must be the same.
fn on_any_threads(f: impl Fn(Context<'_>) -> Vec<f32>) -> Vec<f32> {
    let results = [1, 3].map(|threads| {
        let pool = ComputeThreads::new(threads).unwrap();
        f(Context { simd: Simd::detect(), pool: &pool, precision: Precision::F32 })
    });
    assert_eq!(results[0], results[1]);
    results[0].clone()
}

fn sub([a, b]: [&[f32]; 2], out: &mut [f32]) {
    assert!(a.len() == out.len() && b.len() == out.len());
    out.iter_mut().zip(a.iter().zip(b)).for_each(|(out, (a, b))| *out = a - b);
}

/// An outer dimension, one that is larger than a block, and an inner one.
const SIZES: [usize; 3] = [3, BLOCK_ELEMENTS + 7, 20];

#[test]
fn map_follows_all_strides() {
    let [samples, rows, columns] = SIZES;
    let a = uniform(samples * rows * columns, -1.0, 1.0, 1);
    // Beside a dense operand: a vector for each row, a number for each row, and the transpose of a matrix.
    let b = uniform(rows * columns, -1.0, 1.0, 2);
    let vector = View::of_each_sample(samples, &[columns]).broadcast(&SIZES);
    let numbers = View::of_each_sample(samples, &[rows, 1]).broadcast(&SIZES);
    let transposed = View::of_each_sample(samples, &[columns, rows]).permuted(&[0, 2, 1]);
    type IndexOf = fn(usize, usize, usize) -> usize;
    let cases: [(View, IndexOf); 3] = [
        (vector, |_, column, _| column),
        (numbers, |row, _, _| row),
        (transposed, |row, column, rows| column * rows + row),
    ];
    for (view, index_of) in cases {
        let found = on_any_threads(|cx| {
            let mut out = vec![0.0; a.len()];
            map(cx, [View::dense(&SIZES), view], [&a, &b], &mut out, sub);
            out
        });
        for (index, found) in found.iter().enumerate() {
            let (row, column) = (index / columns % rows, index % columns);
            assert_eq!(*found, a[index] - b[index_of(row, column, rows)], "{index} of {view:?}");
        }
    }
}

#[test]
fn copies_of_parts() {
    let x: Vec<f32> = (0..60).map(|i| i as f32).collect();
    let part = View::dense(&[3, 4, 5]).sliced(2, 1, 2, 2).sliced(0, 1, 1, 2);
    let found = on_any_threads(|cx| {
        let mut out = vec![0.0; 16];
        copy(cx, part, &x, &mut out);
        out
    });
    let expected = [1, 2].map(|i| (0..4).flat_map(move |j| [1, 3].map(|k| (20 * i + 5 * j + k) as f32)));
    assert_eq!(found, expected.into_iter().flatten().collect::<Vec<_>>());
    let mut out = vec![-1.0; 60];
    copy_to(part, &found, &mut out);
    let written = out.iter().enumerate().filter(|(_, out)| **out >= 0.0);
    assert!(written.clone().all(|(index, out)| *out == index as f32) && written.count() == 16);
}

#[test]
fn folds_keep_the_order_of_elements() {
    let a = uniform(SIZES.iter().product(), -1.0, 1.0, 1);
    let b = uniform(SIZES[2], -1.0, 1.0, 2);
    let views = [View::dense(&SIZES), View::dense(&[1, 1, SIZES[2]]).broadcast(&SIZES)];
    // The order of the dimensions, and how many are kept: rows, columns, samples and columns, and none.
    let cases: [(&[usize], usize); 5] =
        [(&[0, 1, 2], 2), (&[2, 0, 1], 1), (&[0, 2, 1], 2), (&[0, 1, 2], 0), (&[0, 1, 2], 3)];
    for (order, kept_axes) in cases {
        let views = views.map(|view| view.permuted(order));
        let kept_elements: usize = views[0].sizes()[..kept_axes].iter().product();
        let mut terms = vec![0.0; a.len()];
        on_any_threads(|cx| {
            let mut terms = vec![0.0; a.len()];
            map(cx, views, [&a, &b], &mut terms, sub);
            terms
        })
        .iter()
        .zip(&mut terms)
        .for_each(|(from, to)| *to = *from);
        for (fold_kind, join) in
            [(Fold::Sum, (|a, b| a + b) as fn(f64, f64) -> f64), (Fold::Max, f64::max), (Fold::Min, f64::min)]
        {
            let found = on_any_threads(|cx| {
                let mut out = vec![0.5; kept_elements];
                fold(cx, fold_kind, views, |axis| axis < kept_axes, [&a, &b], &mut out, Accumulate::Store, sub);
                fold(cx, fold_kind, views, |axis| axis < kept_axes, [&a, &b], &mut out, Accumulate::Add, sub);
                out
            });
            let joined = |terms: &[f32]| terms.iter().map(|&term| f64::from(term)).reduce(join).unwrap() as f32;
            let expected: Vec<f32> = terms.chunks(terms.len() / kept_elements).map(|part| 2.0 * joined(part)).collect();
            assert_eq!(found, expected, "{fold_kind:?} of {order:?}, {kept_axes} kept");
        }
    }
}

#[test]
fn extremes_propagate_nan() {
    let x = [1.0, f32::NAN, 3.0];
    let found = on_any_threads(|cx| {
        let mut out = [0.0; 2];
        let kernel = |[x]: [&[f32]; 1], out: &mut [f32]| out.copy_from_slice(x);
        for (fold_kind, out) in [Fold::Max, Fold::Min].into_iter().zip(out.chunks_mut(1)) {
            fold(cx, fold_kind, [View::dense(&[3])], |_| false, [&x], out, Accumulate::Store, kernel);
        }
        out.iter().map(|found| f32::from(u8::from(found.is_nan()))).collect()
    });
    assert_eq!(found, [1.0, 1.0]);
}
