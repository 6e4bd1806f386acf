//! What a step costs the machine that emulates it: an estimate from counted operations and bytes, and from the
//! machine's rates. It is no projection of a real system.

use serde::{Deserialize, Serialize};

use super::Traffic;
use crate::compile::format_bytes;
use crate::placement::Placement;
use crate::plan::{LayerPlan, StreamPlan};

/// Share of the FMA peak, measured in registers, that a whole step of training reaches: between the 0.45 of models of
/// 10 million parameters and the 0.7 of models of 124 million, with one or two compute threads on CPUs with AVX-512.
const SUSTAINED_PEAK_FRACTION: f64 = 0.5;
/// Seconds of one core that a byte costs on a link between two processes, both ends together: 0.4 s a gigabyte,
/// measured over loopback.
const LINK_CORE_SECONDS_PER_BYTE: f64 = 0.4e-9;

/// Seconds that a chunk on its way through a step waits for processes to be woken, one after the other, on any number of
/// cores.
const CHUNK_SECONDS: f64 = 40e-6;
/// Seconds of one core that a message between two processes costs, whatever its length.
const MESSAGE_CORE_SECONDS: f64 = 20e-6;
/// Seconds of one core that a system takes to begin, report and commit a step. This and the two above are fitted to steps
/// of models of 2 and 24 layers, too small for arithmetic and bytes to count, on 1 to 8 systems on a Xeon of two cores.
const SYSTEM_CORE_SECONDS: f64 = 1e-3;

/// What the processes of a run do in a training step, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostWork {
    /// Floating-point operations, repeated ones included.
    pub flops: u64,
    /// Bytes over all links.
    pub link_bytes: u64,
    /// Chunks of weights and gradients that are streamed, one after the other.
    #[serde(default)]
    pub chunks: u64,
    /// Messages over all links that carry them.
    #[serde(default)]
    pub messages: u64,
    /// Systems.
    #[serde(default)]
    pub systems: u64,
}

/// How fast a machine does it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostRate {
    /// Floating-point operations a second, all cores together.
    pub flops_per_second: f64,
    /// Bytes a second over all links, where all cores do nothing else.
    pub link_bytes_per_second: f64,
    /// Cores.
    pub cores: f64,
}

impl HostRate {
    /// Of a machine with this FMA peak, in FLOP/s, and so many cores.
    pub fn of_machine(peak_flops_per_second: f64, cores: usize) -> Self {
        Self {
            flops_per_second: SUSTAINED_PEAK_FRACTION * peak_flops_per_second,
            link_bytes_per_second: cores as f64 / LINK_CORE_SECONDS_PER_BYTE,
            cores: cores as f64,
        }
    }
}

impl HostWork {
    /// Of a step of `plan` under `placement`, with its traffic.
    pub fn new(plan: &StreamPlan, placement: &Placement, traffic: &Traffic) -> Self {
        let of = |layer: &LayerPlan| {
            layer.forward_flops.saturating_add(layer.backward_flops).saturating_add(layer.recompute_flops)
        };
        let per_sample = plan.layers.iter().map(of).fold(0, u64::saturating_add);
        let chunks = ((plan.down_train.len() + plan.up.len()) as u64).saturating_mul(placement.rounds.len() as u64);
        Self {
            flops: per_sample.saturating_mul(plan.leaves.batch()),
            link_bytes: traffic.training_step(),
            chunks,
            messages: chunks.saturating_mul(traffic.links),
            systems: placement.systems.len() as u64,
        }
    }

    /// Estimates the seconds of a step on a machine of this rate that does nothing else: computing and moving share its
    /// cores, and chunks wait for each process that they pass.
    pub fn seconds(self, rate: HostRate) -> f64 {
        let computing = self.flops as f64 / rate.flops_per_second;
        let moving = self.link_bytes as f64 / rate.link_bytes_per_second;
        let core_seconds = self.messages as f64 * MESSAGE_CORE_SECONDS + self.systems as f64 * SYSTEM_CORE_SECONDS;
        computing + moving + core_seconds / rate.cores.max(1.0) + self.chunks as f64 * CHUNK_SECONDS
    }
}

/// A size for people: `40.0 GB`, in powers of ten, as hardware is sold.
pub fn format_size(size: u64) -> String {
    format_bytes(size)
}

/// A time for people, as rough as an estimate is: `0.02 s`, `45 s`, `14 min`, `3.5 h`, `12 days`.
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
        let wide = HostWork { messages: 200, systems: 8, ..small };
        assert!(wide.seconds(rate) > 2.0 * small.seconds(rate), "{}", wide.seconds(rate));
    }

    #[test]
    fn an_estimate_is_not_told_more_precisely_than_it_is() {
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
