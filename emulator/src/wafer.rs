//! Rates of the modelled wafer: products, memory, fabric and network, in seconds.
//!
//! Features lie along one side of the square grid of cores, `sqrt(cores)` long, and tokens along the other. Each weight
//! that arrives is multiplied with all tokens at once, at the peak rate. Each number of a product is then summed over
//! the cores that share its features: the sum passes along one side of the grid, and every core on the way spends
//! [`PARTIAL_SUM_CYCLES`] on it. That work does not decrease with the features per core, so narrow products utilize the
//! wafer less: with `w` features by a factor of `w / (w + constant * side)`. The fabric carries the sums at the same
//! time, and is the bound if it is slower.
//!
//! One constant is fitted to the published results that [`crate::time`] marks for this: the appliance's `utilisation`,
//! the share of this rate that public runs sustained. [`PARTIAL_SUM_CYCLES`] is derived from the vendor's description
//! of the core. Everything else is a parameter of the appliance.

use millrace_params::WaferSpec;

/// Cycles that a core spends on each number of a partial sum that passes through it. The vendor describes four
/// operations (one to copy the sum, one to clear it, two for a double-wide addition); a double-wide operation of a core
/// with four-wide arithmetic takes eight cycles in total.
pub const PARTIAL_SUM_CYCLES: f64 = 4.0 / 8.0;
/// Bytes of a partial sum on the fabric.
const PARTIAL_SUM_BYTES: f64 = 4.0;

/// Rates of a wafer, computed from its specification.
#[derive(Clone, Copy, Debug)]
pub struct WaferModel<'a> {
    spec: &'a WaferSpec,
}

impl<'a> WaferModel<'a> {
    /// Computes the rates of the wafer that `spec` describes.
    pub const fn new(spec: &'a WaferSpec) -> Self {
        Self { spec }
    }

    /// Returns the number of cores on one side of the grid.
    fn side(self) -> f64 {
        (self.spec.cores as f64).sqrt()
    }

    /// Returns the seconds for `flops` operations in products that compute `sums` numbers.
    pub fn product_seconds(self, flops: f64, sums: f64) -> f64 {
        let visits = sums * self.side();
        let multiplying = flops / self.spec.peak_flops;
        let adding = visits * PARTIAL_SUM_CYCLES / (self.spec.cores as f64 * self.spec.clock_hz);
        let carrying = visits * PARTIAL_SUM_BYTES / self.spec.fabric_bandwidth;
        (multiplying + adding).max(carrying) / self.spec.utilisation
    }

    /// Returns the seconds to read or write `bytes` of wafer memory.
    pub fn memory_seconds(self, bytes: f64) -> f64 {
        bytes / self.spec.memory_bandwidth
    }

    /// Returns the seconds to receive, or to send, `bytes` over the system's network.
    pub fn link_seconds(self, bytes: f64) -> f64 {
        bytes / self.spec.link_bytes_per_s
    }

    /// Returns the seconds to receive `bytes` of weights while forwarding them along one side of the grid.
    pub fn broadcast_seconds(self, bytes: f64) -> f64 {
        self.link_seconds(bytes).max(bytes * self.side() / self.spec.fabric_bandwidth)
    }
}

#[cfg(test)]
mod tests {
    use millrace_params::MachineSpec;

    use super::*;

    /// Returns the rate of a product of many rows over `width` features, as a share of the peak.
    fn efficiency(spec: &WaferSpec, width: f64) -> f64 {
        let (rows, flops) = (2048.0, 2.0 * 2048.0 * width * width);
        flops / spec.peak_flops / WaferModel::new(spec).product_seconds(flops, rows * width)
    }

    #[test]
    fn wider_products_fill_the_wafer_better_up_to_its_peak() {
        let mut spec = MachineSpec::default().wafer;
        let rates = [64.0, 768.0, 2048.0, 4096.0, 12_288.0].map(|width| efficiency(&spec, width));
        assert!(rates.is_sorted() && rates[0] > 0.0 && rates[4] < spec.utilisation, "{rates:?}");
        spec.utilisation = 1.0;
        assert!((0.99..1.0).contains(&efficiency(&spec, 1e6)));
    }

    /// Making any parameter of the wafer that the model reads worse increases the projected time.
    #[test]
    fn clock_cores_and_fabric_take_part() {
        let spec = MachineSpec::default().wafer;
        let full_width = efficiency(&spec, 2048.0);
        for worse in [
            WaferSpec { clock_hz: spec.clock_hz / 2.0, ..spec.clone() },
            WaferSpec { fabric_bandwidth: spec.fabric_bandwidth / 20.0, ..spec.clone() },
            WaferSpec { utilisation: spec.utilisation / 2.0, ..spec.clone() },
        ] {
            assert!(efficiency(&worse, 2048.0) < 0.9 * full_width, "{worse:?}");
        }
        let slow_fabric = WaferSpec { fabric_bandwidth: spec.fabric_bandwidth / 1000.0, ..spec.clone() };
        assert!(
            WaferModel::new(&slow_fabric).broadcast_seconds(1e9) > 2.0 * WaferModel::new(&spec).broadcast_seconds(1e9)
        );
    }
}
