//! Compares loss and gradients with f64, and block sizes with each other.

use super::*;
use crate::kernels::testing::{assert_close, every_simd, gradient, uniform};
use crate::kernels::{ComputeThreads, Simd};
use crate::numerics::Precision;

struct Case {
    tokens: usize,
    hidden: usize,
    vocabulary: usize,
    labels: Vec<i32>,
    softcap: Option<f32>,
}

/// Sum of losses in f64 of x, W and bias one after the other.
fn reference(case: &Case, all: &[f64]) -> f64 {
    let (x, rest) = all.split_at(case.tokens * case.hidden);
    let (w, bias) = rest.split_at(case.vocabulary * case.hidden);
    let mut total = 0.0;
    for (x, label) in x.chunks(case.hidden).zip(&case.labels) {
        let logit = |v: usize| bias[v] + x.iter().zip(&w[v * case.hidden..]).map(|(x, w)| x * w).sum::<f64>();
        if let Ok(label) = usize::try_from(*label) {
            let sum: f64 = (0..case.vocabulary).map(|v| logit(v).exp()).sum();
            total += sum.ln() - logit(label);
        }
    }
    total
}

/// Sums, then the gradients of x, W and bias one after the other, with factor 1.
fn run(simd: Simd, threads: usize, case: &Case, all: &[f32]) -> (LossSums, Vec<f32>) {
    run_with_factor(simd, threads, case, all, 1.0)
}

fn run_with_factor(simd: Simd, threads: usize, case: &Case, all: &[f32], factor: f32) -> (LossSums, Vec<f32>) {
    let pool = ComputeThreads::new(threads).unwrap();
    let cx = Context { simd, pool: &pool, precision: Precision::F32 };
    let (x, rest) = all.split_at(case.tokens * case.hidden);
    let (weights, bias) = rest.split_at(case.vocabulary * case.hidden);
    let classifier = Classifier {
        weights,
        vocabulary: case.vocabulary,
        hidden: case.hidden,
        bias: Some(bias),
        softcap: case.softcap,
    };
    let recomputed = forward_and_backward(cx, &classifier, &case.labels, x, factor, false);
    let kept = forward_and_backward(cx, &classifier, &case.labels, x, factor, true);
    assert!(same_bits(&recomputed, &kept), "logits that are kept give other bits");
    recomputed
}

fn same_bits(a: &(LossSums, Vec<f32>), b: &(LossSums, Vec<f32>)) -> bool {
    let bits = |gradients: &[f32]| gradients.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    a.0.loss.to_bits() == b.0.loss.to_bits() && bits(&a.1) == bits(&b.1)
}

/// One pass of each kind. Keeps the logits, or recomputes them.
fn forward_and_backward(
    cx: Context<'_>,
    classifier: &Classifier<'_>,
    labels: &[i32],
    x: &[f32],
    factor: f32,
    keeps_logits: bool,
) -> (LossSums, Vec<f32>) {
    let mut grads = vec![0.25; x.len() + classifier.weights.len() + classifier.vocabulary];
    let (dx, rest) = grads.split_at_mut(x.len());
    let (dw, db) = rest.split_at_mut(classifier.weights.len());
    let (dweights, dbias) = (Some(dw), Some(db));
    let gradients = LossGradients { dx: Some(dx), dweights, dbias, leaves: 1, accumulate: Accumulate::Add, factor };
    let mut workspace = LossWorkspace::new();
    let tokens = ClassifierInput { x, labels };
    let mut lse = vec![f32::NAN; labels.len()];
    let mut logits = vec![f32::NAN; logits_len(labels.len(), classifier.vocabulary)];
    let mut kept = vec![f32::NAN; labels.len() * classifier.vocabulary];
    let memory = if keeps_logits { &mut kept } else { &mut logits };
    let mut sums = [LossSums::default()];
    forward(cx, classifier, tokens, &mut lse, memory, &mut sums, &mut workspace);
    let saved = SavedLosses { lse: &lse, logits: keeps_logits.then_some(&kept[..]) };
    backward(cx, classifier, tokens, saved, gradients, &mut logits, &mut workspace);
    (sums[0], grads)
}

fn values(case: &Case) -> Vec<f32> {
    uniform(case.tokens * case.hidden + case.vocabulary * (case.hidden + 1), -1.0, 1.0, 1)
}

#[test]
fn gradients_agree_with_differences_of_f64() {
    let case = Case { tokens: 5, hidden: 7, vocabulary: 35, labels: vec![3, -1, 34, 0, 3], softcap: None };
    let all = values(&case);
    let (sums, grads) = every_simd(|simd| run(simd, 1, &case, &all));
    let logits64: Vec<f64> = all.iter().map(|x| f64::from(*x)).collect();
    assert!((sums.loss / reference(&case, &logits64) - 1.0).abs() < 1e-6);
    assert_eq!(sums.tokens, 4);
    let mut expected = gradient(|x| reference(&case, x), &all);
    expected[case.tokens * case.hidden..].iter_mut().for_each(|e| *e += 0.25);
    assert_close(&grads, &expected, 1e-6);
    assert_eq!(grads[case.hidden..2 * case.hidden], [0.0; 7], "the token left out");
    let (_, scaled) = every_simd(|simd| run_with_factor(simd, 1, &case, &all, 0.5));
    for (position, (scaled, gradient)) in scaled.iter().zip(&grads).enumerate() {
        // The tensors' gradients are added to 0.25.
        let before = if position < case.tokens * case.hidden { 0.0 } else { 0.25 };
        assert!((scaled - before - 0.5 * (gradient - before)).abs() < 1e-6, "element {position}");
    }
}

#[test]
fn blocks_fit_together_on_any_team() {
    let vocabulary = 2 * VOCABULARY_BLOCK + 77;
    let labels = vec![5, 2047, 2048, 4172, -1, 4095, 0];
    let case = Case { tokens: 7, hidden: 4, vocabulary, labels, softcap: None };
    let all = values(&case);
    let results = every_simd(|simd| run(simd, 1, &case, &all));
    assert!(run(Simd::detect(), 2, &case, &all) == results);
    every_simd(|simd| run(simd, 1, &Case { softcap: Some(1.5), labels: case.labels.clone(), ..case }, &all));
    let logits64: Vec<f64> = all.iter().map(|x| f64::from(*x)).collect();
    assert!((results.0.loss / reference(&case, &logits64) - 1.0).abs() < 1e-6);
    // The gradient's components over words add up to zero for each token: Σ dbias = 0 here, besides what was there.
    let dbias = &results.1[all.len() - vocabulary..];
    let total: f64 = dbias.iter().map(|d| f64::from(*d) - 0.25).sum();
    assert!(total.abs() < 1e-4, "{total}");
    let dx = gradient(
        |x| {
            let mut moved = logits64.clone();
            moved[..x.len()].copy_from_slice(x);
            reference(&case, &moved)
        },
        &all[..4],
    );
    assert_close(&results.1[..4], &dx, 2e-6);
}

#[test]
fn correct_means_no_logit_is_higher() {
    let case = Case { tokens: 3, hidden: 1, vocabulary: 2, labels: vec![1, 0, -1], softcap: None };
    let all = [1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0];
    let (sums, _) = every_simd(|simd| run(simd, 1, &case, &all));
    assert_eq!((sums.tokens, sums.correct), (2, 1));
}

#[test]
fn labels_outside_are_found() {
    assert_eq!(check_labels(&[0, -1, 6], 7), Ok(()));
    assert_eq!(check_labels(&[0, -1, 7], 7), Err((2, 7)));
}

#[test]
fn non_finite_logit_gives_non_finite_loss() {
    let case = Case { tokens: 1, hidden: 1, vocabulary: 20, labels: vec![1], softcap: None };
    for bad in [f32::NAN, f32::INFINITY] {
        let mut all = vec![1.0; 41];
        all[0] = bad;
        assert!(!every_simd(|simd| run(simd, 1, &case, &all).0.loss.is_finite()));
    }
}
