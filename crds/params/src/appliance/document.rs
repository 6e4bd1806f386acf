//! The appliance's description as the user writes it.

use super::ByteSize;
use crate::error::ParamsError;
use crate::yaml::{KeyStyle, LineNumbers, YamlValue, parse, read_tree, section};

section! {
    /// What an appliance is made of; what is left out is that of a cluster of CS-2s.
    #[serde(rename_all = "camelCase")]
    pub struct MachineDocument {
        /// How many systems exist; 192 by default.
        systems: u64,
        /// The wafer inside each of them.
        wafer: WaferDocument,
        /// The parameter service.
        memoryx: MemoryXDocument,
        /// The broadcast and reduce tree.
        swarmx: SwarmXDocument,
        /// Activation servers of a system; 1 by default.
        activation_servers: u64,
        /// Compute threads of a system's agent; 0, the default, shares the machine's cores.
        threads: u64,
        /// The links between agents.
        link: LinkDocument,
    }
    without_effect {}
    not_yet {}
    elsewhere {
        // Keys about pods, which only a cluster reads.
        "image", "image_pull_policy", "image_pull_secrets", "storage", "resources", "node_selector", "tolerations",
    }
}

section! {
    /// The modelled processor of a system.
    #[serde(rename_all = "camelCase")]
    pub struct WaferDocument {
        /// Memory; 40GB by default.
        memory_bytes: ByteSize,
        /// Bandwidth of that memory in bytes per second; 20e15 by default.
        memory_bandwidth: f64,
        /// Bandwidth of the fabric between cores in bytes per second; 28e15 by default.
        fabric_bandwidth: f64,
        /// Cores; 850,000 by default.
        cores: u64,
        /// Clock in hertz, which paces the sums over cores; 1.1e9 by default.
        clock_hz: f64,
        /// Dense 16-bit peak in FLOP per second; 7.5e15 by default.
        peak_flops: f64,
        /// Share of the wafer's modelled rate that real runs sustain; 0.346 by default, fitted to public ones.
        utilisation: f64,
        /// Bandwidth of the system's network in each direction in bytes per second; 150e9 by default.
        link_bytes_per_s: f64,
    }
    without_effect {}
    not_yet {}
}

section! {
    /// The parameter and optimizer-state service.
    #[serde(rename_all = "camelCase")]
    pub struct MemoryXDocument {
        /// Shards; 2 by default.
        shards: u64,
        /// Memory of all shards together; 2.4PB by default.
        memory_bytes: ByteSize,
        /// Bandwidth of that memory in bytes per second; 4e12 by default.
        memory_bandwidth: f64,
    }
    without_effect {}
    not_yet {}
}

section! {
    /// The broadcast and reduce tree between MemoryX and the systems.
    #[serde(rename_all = "camelCase")]
    pub struct SwarmXDocument {
        /// Children of a node: 2 or 4, the default.
        fan_out: u64,
        /// How many nodes exist; as many as jobs need by default.
        nodes: u64,
    }
    without_effect {}
    not_yet {}
}

section! {
    /// How agents send chunks to each other.
    #[serde(rename_all = "camelCase")]
    pub struct LinkDocument {
        /// Largest chunk; 4MiB by default and at most.
        chunk_bytes: ByteSize,
        /// Chunks of that size a receiver has room for; 8 by default. More smaller ones fit in the same room.
        window_chunks: u64,
    }
    without_effect {}
    not_yet {}
}

section! {
    /// A whole `Appliance` document.
    #[serde(rename_all = "camelCase")]
    pub struct MachineManifest {
        /// `millrace.dev/v1alpha1`.
        api_version: String,
        /// `Appliance`.
        kind: String,
        /// The document's name and labels.
        metadata: serde_json::Value,
        /// What the appliance is made of.
        spec: MachineDocument,
        /// What the cluster says about it; not read.
        status: serde_json::Value,
    }
    without_effect {}
    not_yet {}
}

const KEY_STYLE: KeyStyle = KeyStyle { camel_case: true, sections_with_key: |_| Vec::new() };

/// Reads a bare spec or a whole document; also returns the prefix of the spec's keys: empty, or `spec.`.
pub(super) fn read(text: &str) -> Result<(MachineDocument, &'static str, LineNumbers), ParamsError> {
    let root = parse(text)?;
    // A whole document has the keys that every Kubernetes document has.
    let of_kubernetes = |key: &str| ["apiVersion", "kind", "spec"].contains(&key);
    if matches!(&root.value, YamlValue::Map(entries) if entries.iter().any(|entry| of_kubernetes(&entry.key))) {
        let (wrapped, lines) = read_tree::<MachineManifest>(&root, KEY_STYLE)?;
        return Ok((wrapped.spec.unwrap_or_default(), "spec.", lines));
    }
    let (bare, lines) = read_tree(&root, KEY_STYLE)?;
    Ok((bare, "", lines))
}
