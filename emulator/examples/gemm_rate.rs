//! Measures the rates of matrix products with transformer shapes, as a share of this machine's measured peak.
//!
//! `cargo run --release -p millrace-emulator --example gemm_rate [threads ...] [portable|avx2|avx512]`; each rate is
//! the best of many calls.

use std::time::Instant;

use millrace_emulator::kernels::{
    Accumulate, Buffer, ComputeThreads, Context, GemmWorkspace, MatMut, MatRef, PackedB, Simd, gemm, peak,
};
use millrace_emulator::numerics::{Isa, Precision};

/// Returns the shortest time of a call in seconds.
fn time(mut f: impl FnMut()) -> f64 {
    f();
    let begin = Instant::now();
    let (mut best, mut calls) = (f64::INFINITY, 0);
    while begin.elapsed().as_secs_f64() < 0.4 || calls < 5 {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
        calls += 1;
    }
    best
}

/// Numbers in memory as a device has it, with huge pages.
fn values(len: usize) -> Buffer {
    let mut values = Buffer::with_len(len);
    for (i, value) in values.as_mut_slice().iter_mut().enumerate() {
        *value = (i.wrapping_mul(2_654_435_761) % 2048) as f32 / 1024.0 - 1.0;
    }
    values
}

/// Measures the three products of a linear layer: forward, input gradient, weight gradient (accumulated).
fn linear(cx: Context<'_>, tokens: usize, inputs: usize, outputs: usize) -> [f64; 3] {
    let (x, w, dy) = (values(tokens * inputs), values(outputs * inputs), values(tokens * outputs));
    let [mut y, mut dx, mut dw] = [tokens * outputs, tokens * inputs, outputs * inputs].map(Buffer::with_len);
    let [y, dx, dw] = [&mut y, &mut dx, &mut dw].map(Buffer::as_mut_slice);
    let mut workspace = GemmWorkspace::new();
    let (x, dy) = (MatRef::row_major(x.as_slice(), tokens, inputs), MatRef::row_major(dy.as_slice(), tokens, outputs));
    let w = MatRef::row_major(w.as_slice(), outputs, inputs);
    let (mut forward, mut backward) = (PackedB::new(), PackedB::new());
    forward.pack(cx, w.t());
    backward.pack(cx, w);
    let mut rate = |f: &mut dyn FnMut(&mut GemmWorkspace)| {
        2.0 * (tokens * inputs * outputs) as f64 / time(|| f(&mut workspace)) / 1e9
    };
    let (store, add) = (Accumulate::Store, Accumulate::Add);
    [
        rate(&mut |ws| gemm(cx, x, &forward, MatMut::row_major(y, tokens, outputs), store, None, ws)),
        rate(&mut |ws| gemm(cx, dy, &backward, MatMut::row_major(dx, tokens, inputs), store, None, ws)),
        rate(&mut |ws| gemm(cx, dy.t(), x, MatMut::row_major(dw, outputs, inputs), add, None, ws)),
    ]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut threads, mut simd) = (Vec::new(), Simd::detect());
    for argument in std::env::args().skip(1) {
        match Isa::ALL.into_iter().find(|isa| isa.to_string() == argument) {
            Some(isa) => simd = Simd::new(isa)?,
            None => threads.push(argument.parse::<usize>()?),
        }
    }
    if threads.is_empty() {
        threads = vec![1, 2];
    }
    for threads in threads {
        let pool = ComputeThreads::new(threads)?;
        println!("{threads} thread(s), {}", simd.isa());
        println!(
            "{:>6} {:>6} {:>6}  {:>16} {:>16} {:>16}",
            "tokens", "in", "out", "forward", "input grad", "weight grad"
        );
        let (mut shares, mut count) = (0.0, 0.0);
        for (inputs, outputs) in [(384, 1536), (1536, 384), (768, 3072), (3072, 768)] {
            for tokens in [256, 512, 1024] {
                let peak = peak::fma_gflops(simd, &pool, 20);
                let cx = Context { simd, pool: &pool, precision: Precision::F32 };
                let rates = pool.install(|| linear(cx, tokens, inputs, outputs));
                let cell = |rate: f64| format!("{rate:8.1} {:6.1}%", 100.0 * rate / peak);
                println!(
                    "{tokens:6} {inputs:6} {outputs:6}  {} {} {}  of {peak:.0}",
                    cell(rates[0]),
                    cell(rates[1]),
                    cell(rates[2])
                );
                for rate in rates {
                    shares += (rate / peak).ln();
                    count += 1.0;
                }
            }
        }
        println!("geometric mean {:.1}% of the peak", 100.0 * f64::exp(shares / count));
    }
    Ok(())
}
