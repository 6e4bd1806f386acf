//! Measures the time and memory of compiling a GPT and of the report on its plan.
//!
//! `cargo run --release -p millrace-emulator --example plan_cost -- LAYERS HIDDEN SEQUENCE BATCH SYSTEMS`

use std::time::Instant;

use millrace_emulator::compile::{BatchSpec, CompileRequest, compile};
use millrace_emulator::families;
use millrace_emulator::plan::{DEFAULT_CHUNK_ELEMENTS, Encoding};
use millrace_emulator::report::PlanReport;
use millrace_params::{MachineSpec, ModelFamily, ModelSize, ModelSpec, Precision};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|number| number.parse()).collect::<Result<_, _>>()?;
    let &[layers, hidden, sequence, batch, systems] = &numbers[..] else {
        return Err("give LAYERS HIDDEN SEQUENCE BATCH SYSTEMS".into());
    };
    let appliance = MachineSpec::default();
    let mut clock = Instant::now();
    let mut lap = |phase: &str| {
        println!("{phase:<8} {:.3} s, peak {}", clock.elapsed().as_secs_f64(), peak_memory());
        clock = Instant::now();
    };
    lap("start");
    let graph = families::decoder(&model(layers, hidden, sequence), sequence)?;
    lap("graph");
    let plan = compile(CompileRequest {
        graph,
        train: BatchSpec { samples: batch, leaf_bound: 1 },
        trains: true,
        eval: None,
        encoding: Encoding::Bf16,
        wafer_memory: appliance.wafer.memory_bytes,
        chunk_elements: DEFAULT_CHUNK_ELEMENTS,
        window_chunks: appliance.link.window_chunks,
        memoryx_memory: appliance.memoryx.bytes_per_copy(),
        whole_tensor_state: None,
        extra_state_tensors: 0,
    })?;
    lap("compile");
    println!("         {} parameters, {} chunks, plan {}", plan.parameters(), plan.chunks.len(), plan.hash());
    lap("hash");
    let report = PlanReport::new(&plan, &appliance, u32::try_from(systems)?)?;
    lap("report");
    println!("{report}");
    lap("text");
    Ok(())
}

/// Returns the peak memory of this process, as the kernel reports it.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or_else(|| "unknown".to_owned(), |line| line.trim().to_owned())
}

fn model(layers: usize, hidden: usize, sequence: usize) -> ModelSpec {
    ModelSpec {
        family: ModelFamily::Gpt3,
        precision: Precision::Bf16,
        ..ModelSpec::gpt2(ModelSize {
            vocab_size: 50_257,
            hidden_size: hidden,
            num_hidden_layers: layers,
            num_heads: 1,
            max_position_embeddings: sequence,
        })
    }
}
