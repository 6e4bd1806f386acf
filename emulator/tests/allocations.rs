//! Checks that a device allocates nothing after its first round.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use common::generic::{self, DecoderSizes};
use common::*;
use millrace_emulator::compile::BatchSpec;
use millrace_emulator::device::Device;
use millrace_emulator::families;
use millrace_emulator::plan::{Encoding, Pass};

thread_local! {
    /// Allocations of this thread; the test harness has other threads.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: forwards every call to the system's allocator and counts it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(f: impl FnOnce()) -> usize {
    let before = COUNT.get();
    f();
    COUNT.get() - before
}

#[test]
fn second_step_allocates_nothing() {
    assert_eq!(allocations(|| drop(black_box(vec![1u8; 100]))), 1);
    let gpt = families::decoder(&with_dropout(spec(2, 48, 3, 64, 20), 0.1), 20).unwrap();
    let generic = generic::decoder(DecoderSizes {
        vocabulary: 64,
        tokens: 20,
        blocks: 2,
        heads: 3,
        head_dim: 16,
        dropout: 0.1,
        is_known: false,
    });
    for (graph, wafer) in [(gpt.clone(), LARGE), (gpt, 1 << 20), (generic, LARGE)] {
        let plan = plan(graph, BatchSpec { samples: 12, leaf_bound: 2 }, Encoding::F32, wafer);
        let mut device = device(&plan, 1);
        let (weights, samples) = (initial_weights(&plan, 1), Samples::random(&plan, 2));
        let payloads: Vec<Vec<u8>> = (0..plan.chunks.len())
            .map(|chunk| {
                weights[plan.chunks[chunk].group][plan.chunk_range(chunk)]
                    .iter()
                    .flat_map(|w| w.to_le_bytes())
                    .collect()
            })
            .collect();
        let samples = samples.leaves(plan.leaves, 0..6);
        let leaves: Vec<_> = samples.iter().map(Leaf::input).collect();
        let nodes = plan.leaves.tree().cover(0..6);
        let mut step = || {
            for training in [true, false] {
                device.begin(training, if training { &nodes } else { &[] }, &leaves).unwrap();
                let forward = (0..plan.layers.len()).map(|layer| (Pass::Forward, layer));
                let backward = (0..plan.layers.len()).rev().map(|layer| (Pass::Backward, layer));
                for (pass, layer) in forward.chain(backward.filter(|_| training)) {
                    let slots = if training { &plan.down_train } else { &plan.down_eval };
                    for slot in slots.iter().filter(|slot| (slot.pass, slot.layer) == (pass, layer)) {
                        device.load(slot.chunk, plan.encoding, &payloads[slot.chunk]).unwrap();
                    }
                    match pass {
                        Pass::Forward => device.forward(layer).unwrap(),
                        Pass::Backward => device.backward(layer).unwrap(),
                    }
                    black_box(device.gradient(layer, 0, nodes[0]));
                }
                black_box(device.losses());
            }
        };
        assert!(allocations(&mut step) > 0);
        assert_eq!(allocations(&mut step), 0);
    }
}
