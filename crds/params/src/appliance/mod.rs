//! The machine that a job runs on: its systems, the wafer they emulate, MemoryX, SwarmX and links.
//!
//! [`MachineDocument`] is the `spec` of an `Appliance` as the user writes it, with every key optional.
//! [`MachineSpec`] is the same with the defaults of a cluster of CS-2s filled in. Keys are documented in camel case,
//! as in Kubernetes, and accepted in snake case too.

mod bytes;
mod document;

pub use bytes::ByteSize;
pub use document::{LinkDocument, MachineDocument, MemoryXDocument, SwarmXDocument, WaferDocument};

use serde::{Deserialize, Serialize};

use crate::error::{ParamsError, ParamsProblem, ParamsProblemKind};
use crate::yaml::LineNumbers;

/// Maximum chunk of the wire protocol, in bytes.
const MAX_CHUNK_BYTES: u64 = 4 << 20;

/// The machine, fully specified.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// Number of systems.
    pub systems: usize,
    /// The wafer inside each of them.
    pub wafer: WaferSpec,
    /// The parameter service.
    pub memoryx: MemoryXSpec,
    /// The broadcast and reduce tree.
    pub swarmx: SwarmXSpec,
    /// Maximum activation servers of a system. In this emulation a system reads from one at a time.
    pub activation_servers: usize,
    /// Compute threads of a system's agent; 0 shares the machine's cores among the agents that run on it.
    pub threads: usize,
    /// The links between agents.
    pub link: LinkSpec,
}

/// The modelled processor of a system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaferSpec {
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Bandwidth of that memory, in bytes per second.
    pub memory_bandwidth: f64,
    /// Bandwidth of the fabric between cores, in bytes per second.
    pub fabric_bandwidth: f64,
    /// Number of cores.
    pub cores: u64,
    /// Clock, in hertz.
    pub clock_hz: f64,
    /// Dense 16-bit peak, in FLOP per second.
    pub peak_flops: f64,
    /// Share of the wafer's modelled rate that real runs reach, in (0, 1].
    pub utilisation: f64,
    /// Bandwidth of the system's network in each direction, in bytes per second.
    pub link_bytes_per_s: f64,
}

/// The parameter and optimizer-state service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryXSpec {
    /// Number of shards.
    pub shards: usize,
    /// Number of agents that hold each shard, at least 1.
    #[serde(default = "MemoryXSpec::one_replica", skip_serializing_if = "MemoryXSpec::is_one_replica")]
    pub replicas: usize,
    /// Memory of all agents together, in bytes.
    pub memory_bytes: u64,
    /// Bandwidth of that memory, in bytes per second.
    pub memory_bandwidth: f64,
}

impl MemoryXSpec {
    /// Returns the memory for one copy of all shards, in bytes.
    pub const fn bytes_per_copy(&self) -> u64 {
        self.memory_bytes / if self.replicas == 0 { 1 } else { self.replicas as u64 }
    }

    /// Returns the number of replicas in documents that do not state it.
    pub const fn one_replica() -> usize {
        1
    }

    /// Returns whether a document may leave out this number of replicas.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub const fn is_one_replica(replicas: &usize) -> bool {
        *replicas == 1
    }
}

/// The broadcast and reduce tree between MemoryX and the systems.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwarmXSpec {
    /// Children of a node: 2 or 4.
    pub fan_out: usize,
    /// Number of nodes; `None` for as many as jobs need.
    pub nodes: Option<usize>,
}

/// How agents send chunks to each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkSpec {
    /// Largest chunk, in bytes.
    pub chunk_bytes: u64,
    /// Number of chunks of that size for which a receiver has room, in each direction.
    pub window_chunks: usize,
}

impl LinkSpec {
    /// Returns the bytes that may be in flight to a receiver, in each direction.
    pub const fn window_bytes(&self) -> u64 {
        self.chunk_bytes * self.window_chunks as u64
    }
}

impl Default for MachineSpec {
    /// The largest cluster of CS-2s that its manufacturer describes: 192 systems of 850,000 cores at 1.1 GHz, 40 GB at
    /// 20 PB/s, a fabric of 28 PB/s (220 Pb/s) and 1.2 Tb/s of network each; MemoryX of 2.4 PB at 4 TB/s.
    ///
    /// The peak is 7.5 PFLOP/s dense: a core multiplies and adds four 16-bit numbers in each cycle, so 850,000 cores do
    /// 7.48 PFLOP/s at 1.1 GHz, and 16 systems are sold as 120 PFLOP/s. An earlier text states 5.8 PFLOP/s of "raw
    /// throughput", which the same cores do at 0.85 GHz. The utilization is fitted to public rates, together with this
    /// peak.
    fn default() -> Self {
        Self {
            systems: 192,
            wafer: WaferSpec {
                memory_bytes: 40_000_000_000,
                memory_bandwidth: 20e15,
                fabric_bandwidth: 28e15,
                cores: 850_000,
                clock_hz: 1.1e9,
                peak_flops: 7.5e15,
                utilisation: 0.346,
                link_bytes_per_s: 150e9,
            },
            memoryx: MemoryXSpec {
                shards: 2,
                replicas: 1,
                memory_bytes: 2_400_000_000_000_000,
                memory_bandwidth: 4e12,
            },
            swarmx: SwarmXSpec { fan_out: 4, nodes: None },
            activation_servers: 1,
            threads: 0,
            link: LinkSpec { chunk_bytes: MAX_CHUNK_BYTES, window_chunks: 8 },
        }
    }
}

impl MachineSpec {
    /// Reads an appliance from YAML: the spec alone, or a whole `Appliance` document with `apiVersion`, `kind`,
    /// `metadata` and `spec`.
    ///
    /// # Errors
    /// As [`Params::parse_yaml`](crate::Params::parse_yaml), and values out of range.
    pub fn parse_yaml(text: &str) -> Result<Self, ParamsError> {
        let (document, prefix, lines) = document::read(text)?;
        document.resolve_at(prefix, &lines)
    }

    /// Returns the document with every key given, which a job stores as the machine it was admitted to.
    pub fn to_document(&self) -> MachineDocument {
        let count = |count: usize| Some(count as u64);
        MachineDocument {
            systems: count(self.systems),
            wafer: Some(WaferDocument {
                memory_bytes: Some(ByteSize(self.wafer.memory_bytes)),
                memory_bandwidth: Some(self.wafer.memory_bandwidth),
                fabric_bandwidth: Some(self.wafer.fabric_bandwidth),
                cores: Some(self.wafer.cores),
                clock_hz: Some(self.wafer.clock_hz),
                peak_flops: Some(self.wafer.peak_flops),
                utilisation: Some(self.wafer.utilisation),
                link_bytes_per_s: Some(self.wafer.link_bytes_per_s),
            }),
            memoryx: Some(MemoryXDocument {
                shards: count(self.memoryx.shards),
                replicas: count(self.memoryx.replicas),
                memory_bytes: Some(ByteSize(self.memoryx.memory_bytes)),
                memory_bandwidth: Some(self.memoryx.memory_bandwidth),
            }),
            swarmx: Some(SwarmXDocument {
                fan_out: count(self.swarmx.fan_out),
                nodes: self.swarmx.nodes.and_then(count),
            }),
            activation_servers: count(self.activation_servers),
            threads: count(self.threads),
            link: Some(LinkDocument {
                chunk_bytes: Some(ByteSize(self.link.chunk_bytes)),
                window_chunks: count(self.link.window_chunks),
            }),
        }
    }
}

impl MachineDocument {
    /// Fills in the defaults and checks ranges.
    ///
    /// # Errors
    /// Values out of range; all of them are collected.
    pub fn resolve(&self) -> Result<MachineSpec, ParamsError> {
        self.resolve_at("", &LineNumbers::default())
    }

    fn resolve_at(&self, prefix: &str, lines: &LineNumbers) -> Result<MachineSpec, ParamsError> {
        let none =
            (WaferDocument::default(), MemoryXDocument::default(), SwarmXDocument::default(), LinkDocument::default());
        let default = MachineSpec::default();
        let mut range = RangeChecks { prefix, lines, problems: Vec::new() };
        let wafer = self.wafer.as_ref().unwrap_or(&none.0);
        let memoryx = self.memoryx.as_ref().unwrap_or(&none.1);
        let swarmx = self.swarmx.as_ref().unwrap_or(&none.2);
        let link = self.link.as_ref().unwrap_or(&none.3);
        let spec = MachineSpec {
            systems: range.count("systems", self.systems, default.systems, 1..=65_536),
            wafer: range.wafer(wafer, default.wafer),
            memoryx: MemoryXSpec {
                shards: range.count("memoryx.shards", memoryx.shards, default.memoryx.shards, 1..=4096),
                replicas: range.count("memoryx.replicas", memoryx.replicas, default.memoryx.replicas, 1..=3),
                memory_bytes: range.bytes("memoryx.memoryBytes", memoryx.memory_bytes, default.memoryx.memory_bytes),
                memory_bandwidth: range.positive(
                    "memoryx.memoryBandwidth",
                    memoryx.memory_bandwidth,
                    default.memoryx.memory_bandwidth,
                ),
            },
            swarmx: SwarmXSpec {
                fan_out: range.fan_out(swarmx.fan_out, default.swarmx.fan_out),
                nodes: swarmx.nodes.map(|nodes| range.count("swarmx.nodes", Some(nodes), 1, 1..=65_536)),
            },
            activation_servers: range.count("activationServers", self.activation_servers, 1, 1..=4096),
            threads: range.count("threads", self.threads, 0, 0..=4096),
            link: LinkSpec {
                chunk_bytes: range.chunk_bytes(link.chunk_bytes),
                window_chunks: range.count(
                    "link.windowChunks",
                    link.window_chunks,
                    default.link.window_chunks,
                    1..=4096,
                ),
            },
        };
        ParamsError::check(range.problems)?;
        Ok(spec)
    }
}

/// Checks ranges and collects problems.
struct RangeChecks<'a> {
    prefix: &'a str,
    lines: &'a LineNumbers,
    problems: Vec<ParamsProblem>,
}

impl RangeChecks<'_> {
    fn reject(&mut self, key: &str, value: impl std::fmt::Display, hint: impl Into<String>) {
        let key = format!("{}{key}", self.prefix);
        self.problems.push(ParamsProblem {
            kind: ParamsProblemKind::Invalid,
            line: self.lines.of(&key),
            message: format!("{key} is {value}, which is out of range"),
            key,
            hint: Some(hint.into()),
        });
    }

    fn count(
        &mut self,
        key: &str,
        value: Option<u64>,
        default: usize,
        range: std::ops::RangeInclusive<usize>,
    ) -> usize {
        let Some(value) = value else { return default };
        match usize::try_from(value) {
            Ok(count) if range.contains(&count) => count,
            _ => {
                let hint = format!("give a whole number from {} to {}", range.start(), range.end());
                self.reject(key, value, hint);
                default
            }
        }
    }

    fn positive(&mut self, key: &str, value: Option<f64>, default: f64) -> f64 {
        match value {
            None => default,
            Some(x) if x.is_finite() && x > 0.0 => x,
            Some(x) => {
                self.reject(key, x, "give a number greater than 0");
                default
            }
        }
    }

    fn bytes(&mut self, key: &str, value: Option<ByteSize>, default: u64) -> u64 {
        match value {
            None => default,
            Some(ByteSize(0)) => {
                self.reject(key, 0, "give a size greater than 0, as in 40GB or 4MiB");
                default
            }
            Some(ByteSize(bytes)) => bytes,
        }
    }

    fn fan_out(&mut self, value: Option<u64>, default: usize) -> usize {
        let fan_out = self.count("swarmx.fanOut", value, default, 2..=4);
        if fan_out == 3 {
            self.reject("swarmx.fanOut", 3, "give 2 or 4");
        }
        fan_out
    }

    /// Checks that chunks are multiples of 64 bytes, so that they hold whole f32 numbers, and fit in one message of the
    /// protocol.
    fn chunk_bytes(&mut self, value: Option<ByteSize>) -> u64 {
        match value {
            None => MAX_CHUNK_BYTES,
            Some(ByteSize(bytes)) if (64..=MAX_CHUNK_BYTES).contains(&bytes) && bytes.is_multiple_of(64) => bytes,
            Some(ByteSize(bytes)) => {
                self.reject("link.chunkBytes", bytes, "give a multiple of 64 bytes up to 4MiB");
                MAX_CHUNK_BYTES
            }
        }
    }

    fn wafer(&mut self, wafer: &WaferDocument, default: WaferSpec) -> WaferSpec {
        let utilisation = self.positive("wafer.utilisation", wafer.utilisation, default.utilisation);
        if utilisation > 1.0 {
            self.reject("wafer.utilisation", utilisation, "give a share of at most 1");
        }
        WaferSpec {
            memory_bytes: self.bytes("wafer.memoryBytes", wafer.memory_bytes, default.memory_bytes),
            memory_bandwidth: self.positive("wafer.memoryBandwidth", wafer.memory_bandwidth, default.memory_bandwidth),
            fabric_bandwidth: self.positive("wafer.fabricBandwidth", wafer.fabric_bandwidth, default.fabric_bandwidth),
            cores: self.count("wafer.cores", wafer.cores, default.cores as usize, 1..=usize::MAX) as u64,
            clock_hz: self.positive("wafer.clockHz", wafer.clock_hz, default.clock_hz),
            peak_flops: self.positive("wafer.peakFlops", wafer.peak_flops, default.peak_flops),
            utilisation,
            link_bytes_per_s: self.positive("wafer.linkBytesPerS", wafer.link_bytes_per_s, default.link_bytes_per_s),
        }
    }
}
