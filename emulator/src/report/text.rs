//! Formats the report as text.

use std::fmt;

use super::{LayerReport, PlanReport};
use crate::compile::{SystemBytes, format_bytes};
use crate::plan::Encoding;
use crate::time::{Bottleneck, PublishedResultUse};

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.model(f)?;
        self.memory(f)?;
        self.traffic(f)?;
        self.projection(f)
    }
}

impl PlanReport {
    fn model(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encoding = if self.encoding == Encoding::Bf16 { "bf16" } else { "f32" };
        writeln!(f, "Stream plan {}", self.plan)?;
        writeln!(
            f,
            "  parameters      {} in {} chunks, {encoding} on the wire",
            format_thousands(self.parameters),
            self.chunks
        )?;
        let leaves = self.leaves;
        // Images, and samples of a graph document, have no tokens.
        let tokens = if self.sequence > 1 { format!(" of {} tokens", self.sequence) } else { String::new() };
        writeln!(
            f,
            "  batch           {} samples{tokens}: {} leaves of {}, tree of {} levels",
            leaves.batch(),
            leaves.count,
            leaves.samples,
            self.tree_depth
        )?;
        let placement = &self.placement;
        let replicas = placement.memoryx / placement.shards.max(1) as usize;
        writeln!(
            f,
            "  placement       {} of at most {} systems, {} SwarmX, {} MemoryX{}; {}, at most {} of {} leaves a system at once",
            placement.systems,
            self.largest_num_csx,
            placement.swarmx,
            placement.memoryx,
            if replicas > 1 { format!(" ({replicas} replicas)") } else { String::new() },
            pluralize(placement.rounds, "round"),
            self.leaves_per_round,
            leaves.count
        )?;
        let resident = if self.resident.is_empty() { "none".to_owned() } else { self.resident.join(", ") };
        writeln!(f, "  kept on wafer   {resident}: weights not streamed again for the backward pass")?;
        let saving = if self.recompute { "layers recomputed inside" } else { "everything saved" };
        writeln!(f, "  activations     {saving}, {:.3e} FLOP a step", self.step_flops as f64)?;
        if self.tiles > 1 {
            let saved_bytes = self.layers.iter().map(|layer| layer.saved.wafer).fold(0, u64::saturating_add);
            writeln!(
                f,
                "  tiles           {} of {} tokens; values between layers, {} a sample, are on the activation servers",
                self.tiles,
                self.sequence.div_ceil(self.tiles as usize),
                format_bytes(saved_bytes)
            )?;
        }
        writeln!(f, "\n  layer             parameters  chunks   FLOP/sample   saved/sample: wafer, host   recomputed")?;
        let mut written: Vec<&LayerReport> = Vec::new();
        let mut repeated = 0;
        for layer in &self.layers {
            // Blocks are identical: one set of lines for all of them.
            let is_equal =
                |other: &&LayerReport| LayerReport { name: layer.name.clone(), ..(*other).clone() } == *layer;
            if written.iter().any(is_equal) {
                repeated += 1;
                continue;
            }
            if repeated > 0 {
                write_repeated(f, std::mem::take(&mut repeated))?;
                written.clear();
            }
            write_layer(f, layer)?;
            written.push(layer);
        }
        write_repeated(f, repeated)
    }

    fn memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roles = &self.bytes;
        let system = |system: SystemBytes| {
            let weights = system.weights;
            let parts = [
                (weights.resident, "resident weights"),
                (weights.window, "weights in flight"),
                (system.packed, "packed copies"),
                (weights.gradients, "gradients"),
                (system.activations, "activations"),
            ];
            let present = parts.into_iter().filter(|(size, _)| *size > 0);
            present.map(|(size, name)| format!("{} {name}", format_bytes(size))).collect::<Vec<_>>().join(", ")
        };
        let wafer = roles.cs2.wafer;
        writeln!(f, "\nWafer memory (modelled machine)")?;
        writeln!(f, "  each cs2        {}: {}", format_bytes(wafer.total()), system(wafer))?;
        writeln!(
            f,
            "\nHost memory (this emulation): {} for all processes together, each of which needs {} besides",
            format_bytes(self.host_bytes),
            format_bytes(roles.process)
        )?;
        let shard = roles.memoryx_shards.iter().max().copied().unwrap_or(0);
        writeln!(f, "  memoryx         {}, at most {} a shard", format_bytes(roles.memoryx), format_bytes(shard))?;
        writeln!(f, "  each swarmx     {}", format_bytes(roles.swarmx))?;
        writeln!(f, "  each cs2        {}: {}", format_bytes(roles.cs2.host.total()), system(roles.cs2.host))?;
        writeln!(f, "  each activation {}", format_bytes(roles.activation))
    }

    fn traffic(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let traffic = &self.traffic;
        writeln!(
            f,
            "\nPayload of a step over {}, zeros included: {} ({} weights down, {} gradients up, {} samples)",
            pluralize(traffic.links as usize, "link"),
            format_bytes(traffic.training_step()),
            format_bytes(traffic.weights_down),
            format_bytes(traffic.gradients_up),
            format_bytes(traffic.samples)
        )?;
        writeln!(
            f,
            "  partial sums    at most {} of each gradient on a link and in a round, each over a subtree of the leaves",
            traffic.max_partial_sums
        )
    }

    /// Writes the bottleneck and the utilization of links.
    fn bound(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = &self.projection;
        let (bound, share) = time.bound();
        let percent = 100.0 * share;
        match bound {
            Bottleneck::Compute => writeln!(f, "  bound by        compute, {percent:.0}% of the step")?,
            Bottleneck::WeightsDown => writeln!(
                f,
                "  bound by        weights on the links down (MemoryX to SwarmX to systems): systems wait for them for {percent:.0}% of the step"
            )?,
            Bottleneck::GradientsUp => writeln!(
                f,
                "  bound by        gradients on the links up (systems to SwarmX to MemoryX): systems wait for them for {percent:.0}% of the step"
            )?,
            Bottleneck::Latency => {
                writeln!(f, "  bound by        latency: the tree's hops and the commit take {percent:.0}% of the step")?
            }
            Bottleneck::Activations => writeln!(
                f,
                "  bound by        values between layers on the links to activation servers: systems wait for them for {percent:.0}% of the step"
            )?,
            Bottleneck::MemoryX => writeln!(
                f,
                "  bound by        MemoryX's memory: systems wait for updates of weights for {percent:.0}% of the step"
            )?,
        }
        writeln!(
            f,
            "  links           carry weights down for {:.0}% of the step and gradients up for {:.0}%",
            100.0 * time.weights_link_seconds / time.step_seconds,
            100.0 * time.gradients_link_seconds / time.step_seconds
        )
    }

    fn projection(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = &self.projection;
        writeln!(f, "\nProjection for {} (not a measurement)", pluralize(time.systems as usize, "real system"))?;
        writeln!(
            f,
            "  step            {}: {} computing, {} waiting for links, {} between steps",
            format_seconds(time.step_seconds),
            format_seconds(time.compute_seconds),
            format_seconds(time.link_seconds),
            format_seconds(time.boundary_seconds)
        )?;
        writeln!(
            f,
            "  rate            {:.1} samples/s, {} tokens/s, {:.1}% of peak",
            time.samples_per_second,
            format_thousands(time.tokens_per_second as u64),
            time.utilisation * 100.0
        )?;
        self.bound(f)?;
        for anchor in &self.anchors {
            let used_for = match anchor.used_for {
                PublishedResultUse::Fit => "fitted to      ",
                PublishedResultUse::Check => "checked by     ",
            };
            writeln!(
                f,
                "  {used_for} {}: {:.1} samples/s projected, {:.1} published, {:+.0}%",
                anchor.name,
                anchor.projected,
                anchor.measured,
                anchor.error * 100.0
            )?;
        }
        Ok(())
    }
}

fn write_layer(f: &mut fmt::Formatter<'_>, layer: &LayerReport) -> fmt::Result {
    writeln!(
        f,
        "  {:<14} {:>13} {:>7} {:>13.3e} {:>14}, {:>10}   {}",
        layer.name,
        format_thousands(layer.parameters),
        layer.chunks,
        layer.flops as f64,
        format_bytes(layer.saved.wafer),
        format_bytes(layer.saved.host),
        if layer.recompute { "yes" } else { "no" }
    )
}

fn write_repeated(f: &mut fmt::Formatter<'_>, repeated: usize) -> fmt::Result {
    if repeated == 0 { Ok(()) } else { writeln!(f, "    and {repeated} more identical layers") }
}

fn pluralize(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Formats a number with separators: `124,439,808`.
pub fn format_thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats seconds: `226 ms`, `1.48 s`.
fn format_seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}
