//! The host of the emulation: the memory that the processes of a run may use, and the speed of computation.
//!
//! * Memory is that of `/proc/meminfo`, or less if the control group of this process (version 1 or 2) or a group above
//!   it has a lower limit, as in a container.
//! * Speed is measured once per process.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use millrace_emulator::kernels::{ComputeThreads, Simd, peak};
use millrace_emulator::report::{HostRate, HostWork, format_rough_duration, format_size};
use schemars::JsonSchema;
use serde::Serialize;

/// Number of multiply-add bursts for measuring the rate, about a millisecond each. The best one counts; among this
/// many, at least one is not disturbed by other programs.
const PEAK_MEASUREMENTS: usize = 24;
/// FMA peak per core in FLOP/s that is assumed if no threads can be started to measure it.
const ASSUMED_PEAK_FLOPS: f64 = 50e9;
/// Limits of version 1 control groups from this value on mean "no limit".
const CGROUP_UNLIMITED_BYTES: u64 = 1 << 60;

/// Memory of the machine, or the part of it that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Total bytes.
    pub total: u64,
    /// Bytes that are free now or can be reclaimed.
    pub available: u64,
}

impl HostMemory {
    /// Reads the memory; returns `None` if the system does not report it.
    pub fn read() -> Option<Self> {
        Self::read_from(Path::new("/"))
    }

    /// Reads the memory from `proc` and `sys` below `root`.
    fn read_from(root: &Path) -> Option<Self> {
        let machine = fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| Self::of_meminfo(&text))?;
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let limits = groups.lines().flat_map(|line| group_dirs(root, line)).filter_map(|dir| Self::of_group(&dir));
        Some(limits.fold(machine, |least, group| Self {
            total: least.total.min(group.total),
            available: least.available.min(group.available),
        }))
    }

    fn of_meminfo(text: &str) -> Option<Self> {
        let kibibytes = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
            line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
        };
        let total = kibibytes("MemTotal")?.saturating_mul(1024);
        let available = kibibytes("MemAvailable").map_or(total, |available| available.saturating_mul(1024));
        Some(Self { total, available })
    }

    /// Returns the limit of one control group and the unused part of it; `None` if the group has no limit. Inactive
    /// cached files count as free.
    fn of_group(dir: &Path) -> Option<Self> {
        let number = |names: [&str; 2]| {
            let text = names.into_iter().find_map(|name| fs::read_to_string(dir.join(name)).ok())?;
            text.trim().parse::<u64>().ok()
        };
        let total = number(["memory.max", "memory.limit_in_bytes"]).filter(|limit| *limit < CGROUP_UNLIMITED_BYTES)?;
        let used = number(["memory.current", "memory.usage_in_bytes"]).unwrap_or(0);
        let statistics = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let cached = ["total_inactive_file ", "inactive_file "].into_iter().find_map(|key| {
            statistics
                .lines()
                .find_map(|line| line.strip_prefix(key))
                .and_then(|value| value.trim().parse::<u64>().ok())
        });
        let available = total.saturating_sub(used.saturating_sub(cached.unwrap_or(0)));
        Some(Self { total, available })
    }
}

/// Returns the directory of the control group in a line of `/proc/self/cgroup` (`0::/a/b`, or `4:memory:/a/b`) and
/// those of all groups above it. In a container the path may not be visible; the container's own group is then the
/// topmost one.
fn group_dirs(root: &Path, line: &str) -> Vec<PathBuf> {
    let mut fields = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
        return Vec::new();
    };
    let mount = match controllers {
        "" => root.join("sys/fs/cgroup"),
        controllers if controllers.split(',').any(|name| name == "memory") => root.join("sys/fs/cgroup/memory"),
        _ => return Vec::new(),
    };
    let path = Path::new(path.trim_start_matches('/'));
    path.ancestors().map(|inside| mount.join(inside)).collect()
}

/// What a run would be on this host. Agent and REST server answer with the same document, whose keys are single words.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct HostPlan {
    /// Whether the memory is enough for the processes; omitted if the operating system does not report it.
    pub fits: Option<bool>,
    /// Memory of the processes and of the host.
    pub memory: RunMemory,
    /// Time of a training step on the host.
    pub step: HostStep,
}

/// Memory that a run needs, and that a host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RunMemory {
    /// Bytes that the processes of the run need.
    pub needed: u64,
    /// Bytes of the host, or of the control group that limits this process; omitted if the operating system does not
    /// report them.
    pub total: Option<u64>,
    /// Bytes that are available now.
    pub available: Option<u64>,
}

/// How long a training step may take on a host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct HostStep {
    /// Estimate in seconds, from the speed of the host, measured once. Other load at that time makes it longer.
    pub seconds: f64,
}

impl HostPlan {
    /// Describes a run whose processes need `needed` bytes and do `work` per step, on this host in its current state.
    pub fn new(needed: u64, work: HostWork) -> Self {
        let memory = HostMemory::read();
        Self {
            fits: memory.map(|memory| needed <= memory.total),
            memory: RunMemory {
                needed,
                total: memory.map(|memory| memory.total),
                available: memory.map(|memory| memory.available),
            },
            step: HostStep { seconds: work.seconds(measured_rate()) },
        }
    }
}

impl fmt::Display for HostPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = format_size(self.memory.needed);
        let memory = self.memory.total.zip(self.memory.available);
        let memory = memory.map(|(total, available)| HostMemory { total, available });
        writeln!(f, "\nA run on this host")?;
        match memory {
            Some(memory) if self.fits == Some(true) => writeln!(f, "  fits            yes: {needed} needed; {memory}")?,
            Some(memory) => writeln!(f, "  fits            no on this host: {needed} needed; {memory}")?,
            None => writeln!(
                f,
                "  fits            unknown: {needed} needed; the operating system does not report its memory"
            )?,
        }
        let step = format_rough_duration(self.step.seconds);
        writeln!(f, "  step            about {step}: estimated from the speed just now, which other load makes lower")
    }
}

/// Returns the number of cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the compute threads of each of `systems` systems on a machine with `cores` cores: `requested`, or an equal
/// share of the cores if that is 0.
pub fn threads_per_system(requested: usize, systems: usize, cores: usize) -> usize {
    match requested {
        0 => (cores / systems.max(1)).max(1),
        threads => threads,
    }
}

/// Returns the emulation speed of this machine: its FMA peak and its cores. The first call measures the peak, which
/// takes some tens of milliseconds.
pub fn measured_rate() -> HostRate {
    static RATE: OnceLock<HostRate> = OnceLock::new();
    *RATE.get_or_init(|| {
        let cores = cores();
        let measured =
            ComputeThreads::new(cores).map(|pool| 1e9 * peak::fma_gflops(Simd::detect(), &pool, PEAK_MEASUREMENTS));
        HostRate::of_machine(measured.unwrap_or(ASSUMED_PEAK_FLOPS * cores as f64), cores)
    })
}

/// Returns why a run whose processes need `needed` bytes does not fit on this host, as part of a sentence; `None` if it
/// fits.
pub fn insufficient_memory(needed: u64, memory: HostMemory) -> Option<String> {
    (needed > memory.total).then(|| format!("its processes need {} of memory; {memory}", format_size(needed)))
}

impl fmt::Display for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, available) = (format_size(self.total), format_size(self.available));
        write!(f, "this host has {total}, of which {available} are available")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn systems_share_the_cores_by_default() {
        assert_eq!([1, 2, 5, 8].map(|cores| threads_per_system(0, 2, cores)), [1, 1, 2, 4]);
        assert_eq!((threads_per_system(3, 2, 8), threads_per_system(0, 0, 8)), (3, 8));
    }

    #[test]
    fn memory_is_the_least_of_machine_and_control_groups() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        assert_eq!(HostMemory::read_from(root), None);
        write(root, "proc/meminfo", "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:   6291456 kB\n");
        assert_eq!(HostMemory::read_from(root), Some(HostMemory { total: 8 * GIB, available: 6 * GIB }));

        write(root, "proc/self/cgroup", "0::/pod/container\n");
        write(root, "sys/fs/cgroup/pod/container/memory.max", "max\n");
        write(root, "sys/fs/cgroup/pod/memory.max", &format!("{}\n", 4 * GIB));
        write(root, "sys/fs/cgroup/pod/memory.current", &format!("{}\n", 3 * GIB));
        write(root, "sys/fs/cgroup/pod/memory.stat", &format!("anon 5\ninactive_file {}\n", 2 * GIB));
        assert_eq!(HostMemory::read_from(root), Some(HostMemory { total: 4 * GIB, available: 3 * GIB }));

        // Version 1, in which a group without a limit has a large number; the path of a container is not visible in it.
        write(root, "proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n");
        write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(HostMemory::read_from(root).unwrap().total, 8 * GIB);
        write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", &format!("{}\n", 2 * GIB));
        write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", &format!("{GIB}\n"));
        assert_eq!(HostMemory::read_from(root), Some(HostMemory { total: 2 * GIB, available: GIB }));
    }

    #[test]
    fn this_machine_has_memory_and_a_rate() {
        let memory = HostMemory::read().unwrap();
        assert!(memory.available <= memory.total && memory.total > 1 << 26, "{memory:?}");
        let rate = measured_rate();
        assert!(rate.flops_per_second > 1e8 && rate.link_bytes_per_second > 1e8, "{rate:?}");
        let small = HostMemory { total: 23_000_000_000, available: 21_400_000_000 };
        assert_eq!(insufficient_memory(small.total, small), None);
        assert_eq!(
            insufficient_memory(407_600_000_000, small).unwrap(),
            "its processes need 407.6 GB of memory; this host has 23.0 GB, of which 21.4 GB are available"
        );
    }
}
