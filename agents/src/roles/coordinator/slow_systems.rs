//! Finds systems that compute much more slowly than the others: every step waits for them.
//!
//! ```text
//!  10 s    work / time of computing       cs2-0  9.8 GFLOP/s   cs2-1  3.1 GFLOP/s   cs2-2  10.0 GFLOP/s
//!          relative to the others' median          0.98               0.31                1.02
//!                                                                     slow
//! ```
//!
//! * Time in which a system waits for weights, samples or the coordinator does not count, so that a slow system does
//!   not make others slow.
//! * A system is slow below half of the median of the others, and until it is above 70 % of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millrace_engine::types::{AgentId, ComputeWork};
use millrace_telemetry::journal::SlowAgent;
use millrace_telemetry::unix_ms;

/// The time over which speeds are measured.
const MEASURING_INTERVAL: Duration = Duration::from_secs(10);
/// A system that computed for less time in the interval, such as one that has just joined, is not judged.
const MIN_COMPUTING_SECONDS: f64 = 1.0;
/// A system below this share of the others' speed, in percent, becomes slow.
const SLOW_PERCENT: u32 = 50;
/// A slow system above this share is not slow any more.
const RECOVERED_PERCENT: u32 = 70;

/// The speeds of the systems of a run.
pub struct SystemSpeeds {
    began: Instant,
    systems: BTreeMap<AgentId, MeasuredWork>,
    slow: BTreeMap<AgentId, SlowAgent>,
}

/// The work of a system at the beginning of the interval, and now.
struct MeasuredWork {
    first: ComputeWork,
    last: ComputeWork,
}

impl MeasuredWork {
    /// Returns the FLOP/s in the interval; `None` if too little was computed.
    fn speed(&self) -> Option<f64> {
        let (flops, seconds) =
            (self.last.flops.saturating_sub(self.first.flops), self.last.seconds - self.first.seconds);
        (flops > 0 && seconds >= MIN_COMPUTING_SECONDS).then(|| flops as f64 / seconds)
    }
}

impl SystemSpeeds {
    /// Creates speeds that are measured from `now` on.
    pub fn new(now: Instant) -> Self {
        Self { began: now, systems: BTreeMap::new(), slow: BTreeMap::new() }
    }

    /// Records what a system has computed so far.
    pub fn record(&mut self, system: AgentId, work: ComputeWork) {
        let measured = self.systems.entry(system).or_insert(MeasuredWork { first: work, last: work });
        // Another epoch counts from zero.
        if work.flops < measured.last.flops || work.seconds < measured.last.seconds {
            measured.first = work;
        }
        measured.last = work;
    }

    /// Forgets a system that is lost.
    pub fn forget(&mut self, system: AgentId) {
        self.systems.remove(&system);
        self.slow.remove(&system);
    }

    /// Returns the systems that are slow.
    pub const fn slow(&self) -> &BTreeMap<AgentId, SlowAgent> {
        &self.slow
    }

    /// Returns the speed of each system that computed, relative to the median of the others, if an interval has ended.
    pub fn measure(&mut self, now: Instant) -> Option<Vec<(AgentId, f64)>> {
        if now.duration_since(self.began) < MEASURING_INTERVAL {
            return None;
        }
        self.began = now;
        let speeds: BTreeMap<AgentId, f64> =
            self.systems.iter().filter_map(|(system, work)| Some((*system, work.speed()?))).collect();
        self.systems.values_mut().for_each(|work| work.first = work.last);
        let relative: Vec<(AgentId, f64)> = speeds
            .iter()
            .filter_map(|(system, speed)| Some((*system, speed / median_of_others(&speeds, *system)?)))
            .collect();
        for &(system, relative) in &relative {
            let percent = (relative * 100.0).round() as u32;
            if percent >= RECOVERED_PERCENT {
                self.slow.remove(&system);
            } else if percent < SLOW_PERCENT {
                self.slow
                    .entry(system)
                    .or_insert_with(|| SlowAgent { since_unix_ms: unix_ms(), speed_percent: percent });
            }
        }
        Some(relative)
    }
}

fn median_of_others(speeds: &BTreeMap<AgentId, f64>, system: AgentId) -> Option<f64> {
    let mut others: Vec<f64> = speeds.iter().filter(|(other, _)| **other != system).map(|(_, speed)| *speed).collect();
    others.sort_by(f64::total_cmp);
    others.get(others.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use millrace_engine::types::Role;

    use super::*;

    fn system(index: u32) -> AgentId {
        AgentId::new(Role::Cs2, index)
    }

    /// Lets each system compute for `seconds[index]` on the same work, and returns the result of the interval.
    fn interval(speeds: &mut SystemSpeeds, at: u64, began: Instant, seconds: &[f64]) -> Vec<(AgentId, f64)> {
        for (index, seconds) in (0..).zip(seconds) {
            let before = speeds.systems.get(&system(index)).map_or(ComputeWork::default(), |work| work.last);
            speeds.record(system(index), before);
            let work = ComputeWork { seconds: before.seconds + seconds, flops: before.flops + 1_000 };
            speeds.record(system(index), work);
        }
        assert_eq!(speeds.measure(began + MEASURING_INTERVAL * at as u32 - Duration::from_millis(1)), None);
        speeds.measure(began + MEASURING_INTERVAL * at as u32).unwrap()
    }

    #[test]
    fn slow_system_is_named_until_it_recovers() {
        let began = Instant::now();
        let mut speeds = SystemSpeeds::new(began);
        let slow = |speeds: &SystemSpeeds| {
            speeds.slow().iter().map(|(system, slow)| (system.index, slow.speed_percent)).collect::<Vec<_>>()
        };
        interval(&mut speeds, 1, began, &[1.0, 1.125, 1.25]);
        assert_eq!(slow(&speeds), []);
        let relative = interval(&mut speeds, 2, began, &[1.0, 4.0, 1.0]);
        assert_eq!((slow(&speeds), relative[1]), (vec![(1, 25)], (system(1), 0.25)));
        interval(&mut speeds, 3, began, &[1.0, 1.75, 1.0]);
        assert_eq!(slow(&speeds), [(1, 25)], "slow until it is above 70 %");
        interval(&mut speeds, 4, began, &[1.0, 1.25, 1.0]);
        assert_eq!(slow(&speeds), []);
    }

    #[test]
    fn lost_system_is_forgotten_and_a_single_one_is_never_slow() {
        let began = Instant::now();
        let mut speeds = SystemSpeeds::new(began);
        interval(&mut speeds, 1, began, &[1.0, 4.0]);
        assert!(speeds.slow().contains_key(&system(1)));
        speeds.forget(system(1));
        assert_eq!(*speeds.slow(), BTreeMap::new());
        assert_eq!(interval(&mut speeds, 2, began, &[9.0]), []);
        let relative = interval(&mut speeds, 3, began, &[1.0, 0.9]);
        assert_eq!((relative, speeds.slow().len()), (vec![], 0), "it has just joined");
        // The work of a new epoch counts from zero.
        speeds.record(system(0), ComputeWork { seconds: 0.5, flops: 10 });
        assert_eq!(speeds.systems[&system(0)].speed(), None);
    }
}
