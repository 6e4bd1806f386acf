//! The appliance's description as the user writes it.

use super::ByteSize;
use crate::error::ParamsError;
use crate::keys::facts::{default, otherwise};
use crate::yaml::{KeyStyle, LineNumbers, YamlValue, parse, read_tree, section};

section! {
    /// The machine that an appliance emulates. Keys that are omitted describe a cluster of CS-2 systems.
    #[serde(rename_all = "camelCase")]
    pub struct MachineDocument {
        /// Number of systems.
        systems: u64 = default("192"),
        /// The wafer in each system.
        wafer: WaferDocument = otherwise("that of a CS-2"),
        /// The parameter service.
        memoryx: MemoryXDocument = otherwise("the default of each key"),
        /// The broadcast and reduce tree.
        swarmx: SwarmXDocument = otherwise("the default of each key"),
        /// Maximum number of activation servers of a system.
        activation_servers: u64 = default("1"),
        /// Number of compute threads of a system's agent; 0 shares the cores of the machine among its agents.
        threads: u64 = default("0"),
        /// The links between agents.
        link: LinkDocument = otherwise("the default of each key"),
    }
    ignored {}
    unsupported {}
    read_elsewhere {
        // Keys about pods, which only a cluster reads.
        "image", "loader_image", "image_pull_policy", "image_pull_secrets", "storage", "resources", "node_selector",
        "tolerations",
    }
}

section! {
    /// The modelled processor of a system.
    #[serde(rename_all = "camelCase")]
    pub struct WaferDocument {
        /// Size of the memory.
        memory_bytes: ByteSize = default("40GB"),
        /// Bandwidth of the memory, in bytes per second.
        memory_bandwidth: f64 = default("20e15"),
        /// Bandwidth of the fabric between cores, in bytes per second.
        fabric_bandwidth: f64 = default("28e15"),
        /// Number of cores.
        cores: u64 = default("850000"),
        /// Frequency of the clock, in hertz; it paces the sums over cores.
        clock_hz: f64 = default("1.1e9"),
        /// Peak rate of dense 16-bit arithmetic, in FLOP per second.
        peak_flops: f64 = default("7.5e15"),
        /// Share of the modelled rate of the wafer that real runs reach; the default is fitted to public rates.
        utilisation: f64 = default("0.346"),
        /// Bandwidth of the network of the system in each direction, in bytes per second.
        link_bytes_per_s: f64 = default("150e9"),
    }
    ignored {}
    unsupported {}
}

section! {
    /// The parameter and optimizer-state service.
    #[serde(rename_all = "camelCase")]
    pub struct MemoryXDocument {
        /// Number of shards.
        shards: u64 = default("2"),
        /// Number of agents that hold each shard: 1 to 3. While one of them is left, the loss of another costs at most
        /// the step in progress; with a single one, the steps since the newest checkpoint are run again.
        replicas: u64 = default("1"),
        /// Memory of all agents together.
        memory_bytes: ByteSize = default("2.4PB"),
        /// Bandwidth of the memory, in bytes per second.
        memory_bandwidth: f64 = default("4e12"),
    }
    ignored {}
    unsupported {}
}

section! {
    /// The broadcast and reduce tree between MemoryX and the systems.
    #[serde(rename_all = "camelCase")]
    pub struct SwarmXDocument {
        /// Number of children of a node: 2 or 4.
        fan_out: u64 = default("4"),
        /// Number of nodes.
        nodes: u64 = otherwise("as many as jobs need"),
    }
    ignored {}
    unsupported {}
}

section! {
    /// How agents send chunks to each other.
    #[serde(rename_all = "camelCase")]
    pub struct LinkDocument {
        /// Maximum size of a chunk, at most 4MiB.
        chunk_bytes: ByteSize = default("4MiB"),
        /// Number of chunks of the maximum size for which a receiver has room. More smaller chunks fit in the same
        /// room.
        window_chunks: u64 = default("8"),
    }
    ignored {}
    unsupported {}
}

section! {
    /// A whole `Appliance` document.
    #[serde(rename_all = "camelCase")]
    pub struct MachineManifest {
        /// API version of the document.
        api_version: String = default("millrace.dev/v1alpha1"),
        /// Kind of the document.
        kind: String = default("Appliance"),
        /// Name and labels of the document.
        metadata: serde_json::Value = otherwise("none"),
        /// The appliance.
        spec: MachineDocument = otherwise("the default of each key"),
        /// Status in the cluster, which is not read.
        status: serde_json::Value = otherwise("none"),
    }
    ignored {}
    unsupported {}
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
