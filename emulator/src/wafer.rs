//! How fast the modelled wafer works: products, memory and network in seconds.
//!
//! One law, no table: features lie along one side of the grid of cores, `sqrt(cores)` long. A product over `w` features
//! does `w` steps of work on that side and one pass along it to broadcast and reduce, so it keeps the cores busy for
//! `w / (w + sqrt(cores))` of the time. One number is measured rather than derived: the appliance's `utilisation`, what
//! public runs of models about [`REFERENCE_WIDTH`] wide reached.

use millrace_params::WaferSpec;

/// Width of the models that the appliance's utilisation was measured on.
pub const REFERENCE_WIDTH: f64 = 4096.0;

/// Operations executed for each one that a published rate counts. Those count no recomputation; but saved activations of
/// their batches would not fit on the wafer (67 GB for GPT-2 117M at batch 112), so that about a fifth was done twice.
const EXECUTED_PER_COUNTED: f64 = 1.2;

/// A wafer at work.
#[derive(Clone, Copy, Debug)]
pub struct Wafer<'a> {
    spec: &'a WaferSpec,
}

impl<'a> Wafer<'a> {
    /// The wafer that `spec` describes.
    pub const fn new(spec: &'a WaferSpec) -> Self {
        Self { spec }
    }

    /// Share of the peak that products over `width` features reach.
    pub fn efficiency(self, width: u64) -> f64 {
        let side = (self.spec.cores as f64).sqrt();
        let busy = |width: f64| width / (width + side);
        let reference = self.spec.utilisation * EXECUTED_PER_COUNTED;
        (reference * busy(width as f64) / busy(REFERENCE_WIDTH)).min(1.0)
    }

    /// Seconds for `flops` operations in products over `width` features.
    pub fn product_seconds(self, flops: f64, width: u64) -> f64 {
        if flops == 0.0 { 0.0 } else { flops / (self.spec.peak_flops * self.efficiency(width)) }
    }

    /// Seconds to read or write `bytes` of wafer memory.
    pub fn memory_seconds(self, bytes: f64) -> f64 {
        bytes / self.spec.memory_bandwidth
    }

    /// Seconds to receive, or to send, `bytes` over the system's network.
    pub fn link_seconds(self, bytes: f64) -> f64 {
        bytes / self.spec.link_bytes_per_s
    }
}

#[cfg(test)]
mod tests {
    use millrace_params::ApplianceSpec;

    use super::*;

    #[test]
    fn wider_products_fill_the_wafer_better_up_to_its_peak() {
        let mut spec = ApplianceSpec::default().wafer;
        let rates: Vec<f64> = [64, 768, 2048, 4096, 12_288].map(|width| Wafer::new(&spec).efficiency(width)).into();
        assert!(rates.is_sorted() && rates[0] > 0.0, "{rates:?}");
        assert!((rates[3] - 1.2 * spec.utilisation).abs() < 1e-12);
        spec.utilisation = 1.0;
        assert_eq!(Wafer::new(&spec).efficiency(1 << 20), 1.0);
    }
}
