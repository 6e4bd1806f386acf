//! CPU time and open files of this process, as the kernel reports them.

use std::time::Duration;

/// Clock ticks per second in `/proc`: constant in the kernel's user interface on all architectures we build for.
const USER_HZ: u64 = 100;

/// Returns the CPU time of all threads of this process; `None` if `/proc/self/stat` can't be read.
pub fn cpu_time() -> Option<Duration> {
    parse_cpu_time(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

/// Returns the number of open file descriptors; `None` if `/proc/self/fd` can't be read.
pub fn open_files() -> Option<usize> {
    // Reading the directory uses one descriptor itself.
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

/// Returns the soft limit of open file descriptors; `None` if it is unlimited or `/proc/self/limits` can't be read.
pub fn max_open_files() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    soft.split_whitespace().next()?.parse().ok()
}

/// Parses `utime` and `stime`, fields 14 and 15 of `/proc/<pid>/stat`. The second field is the program's name in
/// parentheses, which may contain any character.
fn parse_cpu_time(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    let ticks = ticks.next()??.checked_add(ticks.next()??)?;
    Some(Duration::from_millis(ticks.checked_mul(1000 / USER_HZ)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_texts() {
        let stat = "7 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 99 0 0";
        assert_eq!(parse_cpu_time(stat), Some(Duration::from_secs(3)));
        for damaged in ["", "7 (a", "7 (a) R 1 2", "7 (a) R 1 2 3 4 5 6 7 8 9 10 x 50"] {
            assert_eq!(parse_cpu_time(damaged), None, "{damaged:?}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_uses_something() {
        let files: Vec<_> = (0..10).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        assert!(open_files().unwrap() >= files.len());
        assert!(max_open_files().is_none_or(|most| most > 10));
        let before = cpu_time().unwrap();
        while cpu_time().unwrap() == before {
            std::hint::black_box((0..100_000_u64).sum::<u64>());
        }
    }
}
