//! Estimates how long a step takes on the machine that emulates it, from counted operations and bytes and from the
//! machine's rates. This is not a projection of a real system.

use serde::{Deserialize, Serialize};

use super::Traffic;
use crate::compile::format_bytes;
use crate::placement::Placement;
use crate::plan::{LayerPlan, StreamPlan};

/// Share of the FMA peak, measured in registers, that a training step reaches: between 0.45 (models of 10 million
/// parameters) and 0.7 (124 million), with one or two compute threads on CPUs with AVX-512.
const SUSTAINED_PEAK_FRACTION: f64 = 0.5;
/// Core seconds per byte on a link between two processes, both ends together: 0.4 s per gigabyte, measured over
/// loopback.
const LINK_CORE_SECONDS_PER_BYTE: f64 = 0.4e-9;

/// Seconds that a chunk waits in a step until the processes on its path are woken, on any number of cores.
const CHUNK_SECONDS: f64 = 40e-6;
/// Core seconds per message between two processes, independent of its length.
const MESSAGE_CORE_SECONDS: f64 = 20e-6;
/// Core seconds that a system takes to begin, report and commit a step. This constant and the two above are fitted to
/// steps of models of 2 and 24 layers, too small for arithmetic and bytes to matter, with 1 to 8 systems on a Xeon with
/// two cores.
const SYSTEM_CORE_SECONDS: f64 = 1e-3;

/// Work of all processes of a run in a training step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostWork {
    /// Floating-point operations, including recomputation.
    pub flops: u64,
    /// Bytes over all links.
    pub link_bytes: u64,
    /// Chunks of weights and gradients, which are streamed one after the other.
    #[serde(default)]
    pub chunks: u64,
    /// Messages over all links for these chunks.
    #[serde(default)]
    pub messages: u64,
    /// Number of systems.
    #[serde(default)]
    pub systems: u64,
}

/// How fast a machine computes and sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostRate {
    /// Floating-point operations per second, all cores together.
    pub flops_per_second: f64,
    /// Bytes per second over all links, if all cores do nothing else.
    pub link_bytes_per_second: f64,
    /// Number of cores.
    pub cores: f64,
}

impl HostRate {
    /// Returns the rates of a machine with this FMA peak, in FLOP/s, and this number of cores.
    pub fn of_machine(peak_flops_per_second: f64, cores: usize) -> Self {
        Self {
            flops_per_second: SUSTAINED_PEAK_FRACTION * peak_flops_per_second,
            link_bytes_per_second: cores as f64 / LINK_CORE_SECONDS_PER_BYTE,
            cores: cores as f64,
        }
    }
}

impl HostWork {
    /// Returns the work of a step of `plan` under `placement` with this traffic.
    pub fn new(plan: &StreamPlan, placement: &Placement, traffic: &Traffic) -> Self {
        let flops = |layer: &LayerPlan| {
            layer.forward_flops.saturating_add(layer.backward_flops).saturating_add(layer.recompute_flops)
        };
        let per_sample = plan.layers.iter().map(flops).fold(0, u64::saturating_add);
        let chunks = ((plan.down_train.len() + plan.up.len()) as u64).saturating_mul(placement.rounds.len() as u64);
        Self {
            flops: per_sample.saturating_mul(plan.leaves.batch()),
            link_bytes: traffic.training_step(),
            chunks,
            messages: chunks.saturating_mul(traffic.links),
            systems: placement.systems.len() as u64,
        }
    }

    /// Estimates the seconds of a step on an otherwise idle machine with these rates. Computation and transfer share
    /// its cores, and chunks wait for each process on their path.
    pub fn seconds(self, rate: HostRate) -> f64 {
        let computing = self.flops as f64 / rate.flops_per_second;
        let moving = self.link_bytes as f64 / rate.link_bytes_per_second;
        let core_seconds = self.messages as f64 * MESSAGE_CORE_SECONDS + self.systems as f64 * SYSTEM_CORE_SECONDS;
        computing + moving + core_seconds / rate.cores.max(1.0) + self.chunks as f64 * CHUNK_SECONDS
    }
}

/// Formats a size for display, such as `40.0 GB`, in powers of ten as hardware is sold.
pub fn format_size(size: u64) -> String {
    format_bytes(size)
}

/// Formats a time with the precision of an estimate: `0.02 s`, `45 s`, `14 min`, `3.5 h`, `12 days`.
pub fn format_rough_duration(seconds: f64) -> String {
    const MINUTE: f64 = 60.0;
    const HOUR: f64 = 60.0 * MINUTE;
    const DAY: f64 = 24.0 * HOUR;
    match seconds {
        s if s < 1.0 => format!("{:.2} s", s.max(0.01)),
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 2.0 * MINUTE => format!("{s:.0} s"),
        s if s < 2.0 * HOUR => format!("{:.0} min", s / MINUTE),
        s if s < 10.0 * HOUR => format!("{:.1} h", s / HOUR),
        s if s < 2.0 * DAY => format!("{:.0} h", s / HOUR),
        s if s < 1e6 * DAY => format!("{:.0} days", s / DAY),
        _ => "more than a million days".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computing_moving_and_waiting_take_turns() {
        let rate = HostRate::of_machine(400e9, 2);
        let work = HostWork { flops: 400_000_000_000, link_bytes: 5_000_000_000, ..HostWork::default() };
        assert!((work.seconds(rate) - 3.0).abs() < 1e-9, "2 s computing, 1 s moving: {}", work.seconds(rate));
        // A model so small that neither counts still takes milliseconds, and more on more systems.
        let small = HostWork { chunks: 21, messages: 42, systems: 1, ..HostWork::default() };
        assert!((1e-3..4e-3).contains(&small.seconds(rate)), "{}", small.seconds(rate));
        let larger = HostWork { messages: 200, systems: 8, ..small };
        assert!(larger.seconds(rate) > 2.0 * small.seconds(rate), "{}", larger.seconds(rate));
    }

    #[test]
    fn estimates_are_rounded() {
        for (seconds, text) in [
            (0.0, "0.01 s"),
            (0.254, "0.25 s"),
            (9.96, "10.0 s"),
            (45.4, "45 s"),
            (840.0, "14 min"),
            (3.5 * 3600.0, "3.5 h"),
            (12.2 * 86_400.0, "12 days"),
            (f64::INFINITY, "more than a million days"),
        ] {
            assert_eq!(format_rough_duration(seconds), text);
        }
    }
}
