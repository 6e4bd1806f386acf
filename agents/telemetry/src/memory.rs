//! Memory of this process, as the kernel reports it.

/// Resident memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    pub resident: u64,
    /// Highest resident memory since the process started.
    pub peak: u64,
}

impl ProcessMemory {
    /// Returns the memory of this process; `None` if `/proc/self/status` can't be read.
    pub fn now() -> Option<Self> {
        parse(&std::fs::read_to_string("/proc/self/status").ok()?)
    }
}

/// Parses `VmRSS` and `VmHWM` in the text of `/proc/<pid>/status`.
fn parse(status: &str) -> Option<ProcessMemory> {
    let bytes = |key: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
        kib.checked_mul(1024)
    };
    let resident = bytes("VmRSS:")?;
    Some(ProcessMemory {
        resident,
        // The kernel updates the peak lazily, so it may be slightly below the current value.
        peak: bytes("VmHWM:")?.max(resident),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_texts() {
        let status = "Name:\tcs2\nVmPeak:\t 9 kB\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        let expected = ProcessMemory { resident: 1 << 20, peak: 2 << 20 };
        assert_eq!(parse(status), Some(expected));
        for damaged in [
            "",
            "VmRSS:\t1 kB",
            "VmHWM: 1 kB\nVmRSS: x kB",
            "VmHWM: 1\nVmRSS: 1 kB",
            "VmHWM: 1 kB\nVmRSS: 18446744073709551615 kB",
        ] {
            assert_eq!(parse(damaged), None, "{damaged:?}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_memory() {
        let memory = ProcessMemory::now().unwrap();
        assert!(memory.peak >= memory.resident && memory.resident > 100_000);
    }
}
