//! Measures the rates of the operators between the matrix products: attention in GFLOP/s (only the causal half counts)
//! compared with the measured peak, the others in nanoseconds per element.
//!
//! `cargo run --release -p millrace-emulator --example operator_rate`

use std::hint::black_box;
use std::time::Instant;

use millrace_emulator::kernels::attention::{self, AttentionParams, AttentionWorkspace, Qkv, QkvGradient};
use millrace_emulator::kernels::loss::{self, Classifier, ClassifierInput, LossGradients, LossSums, LossWorkspace};
use millrace_emulator::kernels::{Accumulate, ComputeThreads, Context, Simd, activation, dropout, norm, peak};
use millrace_emulator::numerics::Precision;
use millrace_emulator::numerics::random::DropoutMask;
use millrace_emulator::optimizers::{Optimizer as _, UpdateArrays, UpdateStep};
use millrace_params::optimizers::AdamW;

/// Returns the shortest time of a call in seconds.
fn time(mut f: impl FnMut()) -> f64 {
    f();
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    let mut calls = 0;
    while begin.elapsed().as_secs_f64() < 0.4 || calls < 5 {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
        calls += 1;
    }
    best
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) % 2048) as f32 / 1024.0 - 1.0).collect()
}

/// Returns the GFLOP/s of forward and backward pass together. A pair below the diagonal takes 2 and 5 products.
fn attention_rate(
    cx: Context<'_>,
    samples: usize,
    tokens: usize,
    heads: usize,
    head_dim: usize,
    rate: f64,
) -> [f64; 2] {
    let sample_keys: Vec<u64> = (0..samples as u64).collect();
    let scale = 1.0 / (head_dim as f32).sqrt();
    let dropout = DropoutMask::new(rate);
    let a = AttentionParams {
        samples,
        tokens,
        key_tokens: tokens,
        heads,
        key_heads: heads,
        head_dim,
        scale,
        causal: true,
        window: None,
        sinks: 0,
        alibi: false,
        softcap: None,
        relative: None,
        key_mask: None,
        spans: None,
        earlier: None,
        dropout,
        sample_keys: &sample_keys,
    };
    let (qkv, dout) = (values(a.rows() * 3 * a.hidden()), values(a.rows() * a.hidden()));
    let (mut out, mut lse, mut dqkv) = (dout.clone(), vec![0.0; a.saved_len()], qkv.clone());
    let mut ws = AttentionWorkspace::new();
    let product = (samples * heads * tokens * (tokens + 1) / 2 * head_dim * 2) as f64 / 1e9;
    let packed = Qkv::packed(&a, &qkv);
    let forward = time(|| attention::forward(cx, &a, packed, &mut out, &mut lse, &mut ws));
    let backward = time(|| {
        let dqkv = QkvGradient::Together(&mut dqkv);
        attention::backward(cx, &a, packed, &out, &lse, &dout, dqkv, &mut [], &mut ws);
    });
    [2.0 * product / forward, 5.0 * product / backward]
}

fn loss_rate(cx: Context<'_>, tokens: usize, hidden: usize, vocabulary: usize) -> f64 {
    let (x, w) = (values(tokens * hidden), values(vocabulary * hidden));
    let (mut dx, mut dw) = (x.clone(), w.clone());
    let labels: Vec<i32> = (0..tokens).map(|t| (t * 7919 % vocabulary) as i32).collect();
    let classifier = Classifier { weights: &w, vocabulary, hidden, bias: None, softcap: None };
    let tokens_in = ClassifierInput { x: &x, labels: &labels };
    let (mut lse, mut logits) = (vec![0.0; tokens], vec![0.0; loss::logits_len(tokens, vocabulary)]);
    let mut ws = LossWorkspace::new();
    let seconds = time(|| {
        let accumulate = Accumulate::Add;
        let (dx, dweights) = (Some(&mut dx[..]), Some(&mut dw[..]));
        let gradients = LossGradients { dx, dweights, dbias: None, leaves: 1, accumulate, factor: 1.0 };
        let mut sums = [LossSums::default()];
        loss::forward(cx, &classifier, tokens_in, &mut lse, &mut logits, &mut sums, &mut ws);
        black_box(sums);
        let saved = loss::SavedLosses { lse: &lse, logits: None };
        loss::backward(cx, &classifier, tokens_in, saved, gradients, &mut logits, &mut ws);
    });
    6.0 * (tokens * hidden * vocabulary) as f64 / 1e9 / seconds
}

fn main() {
    let pool = ComputeThreads::inline();
    let simd = Simd::detect();
    let cx = Context { simd, pool: &pool, precision: Precision::F32 };
    let peak = peak::fma_gflops(simd, &pool, 20);
    println!("1 thread, {}, peak {peak:.0} GFLOP/s", simd.isa());
    for (samples, tokens, heads, dim, rate) in [
        (4, 256, 6, 64, 0.0),
        (4, 256, 6, 64, 0.1),
        (1, 1024, 12, 64, 0.0),
        (1, 1024, 6, 128, 0.0),
        (1, 2048, 4, 128, 0.0),
    ] {
        let [forward, backward] = attention_rate(cx, samples, tokens, heads, dim, rate);
        println!("attention T {tokens} d {dim} dropout {rate}: forward {forward:.0}, backward {backward:.0} GFLOP/s");
    }
    for (tokens, hidden, vocabulary) in [(1024, 384, 256), (512, 384, 50257), (1024, 768, 50257)] {
        let rate = loss_rate(cx, tokens, hidden, vocabulary);
        println!(
            "classifier and loss, {tokens} tokens, hidden {hidden}, vocabulary {vocabulary}: {rate:.0} GFLOP/s needed"
        );
    }
    elementwise_rates(simd);
}

fn elementwise_rates(simd: Simd) {
    const ROWS: usize = 256;
    const WIDTH: usize = 384;
    let (x, mut y, mut z) = (values(ROWS * WIDTH), values(ROWS * WIDTH), values(ROWS * WIDTH));
    let (gamma, beta) = (values(WIDTH), values(WIDTH));
    let (mut mean, mut rstd) = (vec![0.0; ROWS], vec![0.0; ROWS]);
    let (mut dgamma, mut dbeta) = (vec![0.0; WIDTH], vec![0.0; WIDTH]);
    let keep = DropoutMask::new(0.1).expect("a rate below one");
    let show =
        |name: &str, seconds: f64| println!("{name}: {:.3} ns an element", seconds * 1e9 / (ROWS * WIDTH) as f64);
    show("GELU forward", time(|| (activation::GELU.forward)(simd, &x, &mut y)));
    show("GELU backward", time(|| (activation::GELU.backward)(simd, &x, &mut y)));
    show("GELU tanh forward", time(|| (activation::GELU_TANH.forward)(simd, &x, &mut y)));
    show("GELU tanh backward", time(|| (activation::GELU_TANH.backward)(simd, &x, &mut y)));
    show(
        "layer norm forward",
        time(|| norm::layer_norm_forward(simd, &x, &gamma, Some(&beta), 1e-5, &mut y, &mut mean, &mut rstd)),
    );
    show(
        "layer norm input gradient",
        time(|| norm::layer_norm_backward_input(simd, &x, &gamma, &mean, &rstd, &y, &mut z, true)),
    );
    show(
        "layer norm parameter gradient",
        time(|| {
            norm::layer_norm_backward_params(simd, &x, WIDTH, &mean, &rstd, &y, 0, &mut dgamma, &mut dbeta, false);
        }),
    );
    show("dropout and residual", time(|| dropout::add_residual(simd, keep, 7, 0, &x, &y, &mut z)));
    const LARGE: usize = 8 << 20;
    // Arrays with the same offset in a page compete for cache lines: begin each a few lines further.
    let [mut w, g, mut m, mut v] = [0, 1, 2, 3].map(|i| values(LARGE + i * 144));
    let (weights, gradient, m, v) = (&mut w[..], &g[144..], &mut m[288..], &mut v[432..]);
    v.fill(0.1);
    let adamw = AdamW { betas: [0.9, 0.95], eps: 1e-8, correct_bias: true, epsilon_hat: false, amsgrad: false };
    let step =
        UpdateStep { step: 10, learning_rate: 1e-3, weight_decay: 0.1, gradient_scale: 1.0, momentum_schedule: None };
    let seconds = time(|| {
        let arrays = UpdateArrays { weights: &mut *weights, gradient, state: [&mut *m, &mut *v, &mut []], shape: &[] };
        adamw.update(simd, &step, arrays);
    });
    println!(
        "AdamW: {:.3} ns an element, {:.1} GB/s",
        seconds * 1e9 / LARGE as f64,
        28.0 * LARGE as f64 / seconds / 1e9
    );
}
