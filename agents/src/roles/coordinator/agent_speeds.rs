//! Finds agents that work much more slowly than the others of their role: every step waits for them.
//!
//! ```text
//!  10 s    work / time of working         cs2-0  9.8 GFLOP/s   cs2-1  3.1 GFLOP/s   cs2-2  10.0 GFLOP/s
//!          relative to the others' median          0.98               0.31                1.02
//!                                                                     slow
//! ```
//!
//! * Time in which an agent waits for others does not count, so that a slow agent does not make others slow.
//! * The speed of an agent whose process was kept from running is reduced by the share of that time. If that happens to
//!   all, because their machine has too few processors, it makes none slow.
//! * An agent is compared with those of its role only, and the only one of a role is never slow.
//! * An agent is slow below half of the median of the others, and until it is above 70 % of it. One that hardly works
//!   is not slow, because no other agent waits for it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millrace_engine::types::{AgentId, AgentWork, Role};
use millrace_telemetry::journal::SlowAgent;
use millrace_telemetry::unix_ms;

/// The time over which speeds are measured.
const MEASURING_INTERVAL: Duration = Duration::from_secs(10);
/// A system that computed for less time in the interval, such as one that has just joined, has no speed. Other agents
/// that worked for less, and were kept from running for less, do not become slow.
const MIN_WORKING_SECONDS: f64 = 1.0;
/// Agents other than systems have a speed if they worked for this time: they have less to do.
const MIN_MEASURED_SECONDS: f64 = 0.001;
/// An agent below this share of the others' speed, in percent, becomes slow.
const SLOW_PERCENT: u32 = 50;
/// A slow agent above this share is not slow any more.
const RECOVERED_PERCENT: u32 = 70;

/// The speeds of the agents of a run.
pub struct AgentSpeeds {
    began: Instant,
    agents: BTreeMap<AgentId, MeasuredWork>,
    slow: BTreeMap<AgentId, SlowAgent>,
}

/// The work of an agent at the beginning of the interval, and now.
struct MeasuredWork {
    first: AgentWork,
    last: AgentWork,
}

impl MeasuredWork {
    /// Returns the work in the interval.
    fn in_interval(&self) -> AgentWork {
        let (first, last) = (self.first, self.last);
        AgentWork {
            units: last.units.saturating_sub(first.units),
            seconds: last.seconds - first.seconds,
            observed: last.observed - first.observed,
            delayed: last.delayed - first.delayed,
        }
    }

    /// Returns the units per second in the interval; `None` if the agent of `role` has done too little.
    fn speed(&self, role: Role) -> Option<f64> {
        let AgentWork { units, seconds, observed, delayed } = self.in_interval();
        let min_seconds = if role == Role::Cs2 { MIN_WORKING_SECONDS } else { MIN_MEASURED_SECONDS };
        if units == 0 || seconds < min_seconds {
            return None;
        }
        let running = if observed > 0.0 { (1.0 - delayed / observed).clamp(0.01, 1.0) } else { 1.0 };
        Some(units as f64 / seconds * running)
    }

    /// Returns whether others can have waited for the agent noticeably.
    fn is_noticeable(&self) -> bool {
        let AgentWork { seconds, delayed, .. } = self.in_interval();
        seconds + delayed >= MIN_WORKING_SECONDS
    }
}

impl AgentSpeeds {
    /// Creates speeds that are measured from `now` on.
    pub fn new(now: Instant) -> Self {
        Self { began: now, agents: BTreeMap::new(), slow: BTreeMap::new() }
    }

    /// Records what an agent has done so far.
    pub fn record(&mut self, agent: AgentId, work: AgentWork) {
        let measured = self.agents.entry(agent).or_insert(MeasuredWork { first: work, last: work });
        // Another epoch or process counts from zero.
        if work.units < measured.last.units || work.seconds < measured.last.seconds {
            measured.first = work;
        }
        measured.last = work;
    }

    /// Forgets an agent that is lost.
    pub fn forget(&mut self, agent: AgentId) {
        self.agents.remove(&agent);
        self.slow.remove(&agent);
    }

    /// Returns the agents that are slow.
    pub const fn slow(&self) -> &BTreeMap<AgentId, SlowAgent> {
        &self.slow
    }

    /// Returns the speed of each agent that worked, relative to the median of the others of its role, if an interval
    /// has ended.
    pub fn measure(&mut self, now: Instant) -> Option<Vec<(AgentId, f64)>> {
        if now.duration_since(self.began) < MEASURING_INTERVAL {
            return None;
        }
        self.began = now;
        let speeds: BTreeMap<AgentId, f64> =
            self.agents.iter().filter_map(|(agent, work)| Some((*agent, work.speed(agent.role)?))).collect();
        let relative: Vec<(AgentId, f64)> = speeds
            .iter()
            .filter_map(|(agent, speed)| Some((*agent, speed / median_of_others(&speeds, *agent)?)))
            .collect();
        for &(agent, relative) in &relative {
            let percent = (relative * 100.0).round() as u32;
            if percent >= RECOVERED_PERCENT {
                self.slow.remove(&agent);
            } else if percent < SLOW_PERCENT && self.agents.get(&agent).is_some_and(MeasuredWork::is_noticeable) {
                self.slow
                    .entry(agent)
                    .or_insert_with(|| SlowAgent { since_unix_ms: unix_ms(), speed_percent: percent });
            }
        }
        self.agents.values_mut().for_each(|work| work.first = work.last);
        Some(relative)
    }
}

/// Returns the median speed of the other agents of the role of `agent`.
fn median_of_others(speeds: &BTreeMap<AgentId, f64>, agent: AgentId) -> Option<f64> {
    let is_other = |other: &AgentId| other.role == agent.role && *other != agent;
    let mut others: Vec<f64> = speeds.iter().filter(|(other, _)| is_other(other)).map(|(_, speed)| *speed).collect();
    others.sort_by(f64::total_cmp);
    others.get(others.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(index: u32) -> AgentId {
        AgentId::new(Role::Cs2, index)
    }

    /// Lets each system compute for `seconds[index]` on the same work, and returns the result of the interval.
    fn interval(speeds: &mut AgentSpeeds, at: u64, began: Instant, seconds: &[f64]) -> Vec<(AgentId, f64)> {
        for (index, seconds) in (0..).zip(seconds) {
            let before = speeds.agents.get(&system(index)).map_or(AgentWork::default(), |work| work.last);
            speeds.record(system(index), before);
            let work = AgentWork { seconds: before.seconds + seconds, units: before.units + 1_000, ..before };
            speeds.record(system(index), work);
        }
        assert_eq!(speeds.measure(began + MEASURING_INTERVAL * at as u32 - Duration::from_millis(1)), None);
        speeds.measure(began + MEASURING_INTERVAL * at as u32).unwrap()
    }

    #[test]
    fn slow_system_is_named_until_it_recovers() {
        let began = Instant::now();
        let mut speeds = AgentSpeeds::new(began);
        let slow = |speeds: &AgentSpeeds| {
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
        let mut speeds = AgentSpeeds::new(began);
        interval(&mut speeds, 1, began, &[1.0, 4.0]);
        assert!(speeds.slow().contains_key(&system(1)));
        speeds.forget(system(1));
        assert_eq!(*speeds.slow(), BTreeMap::new());
        assert_eq!(interval(&mut speeds, 2, began, &[9.0]), []);
        let relative = interval(&mut speeds, 3, began, &[1.0, 0.9]);
        assert_eq!((relative, speeds.slow().len()), (vec![], 0), "it has just joined");
        // The work of a new epoch counts from zero.
        speeds.record(system(0), AgentWork { seconds: 0.5, units: 10, ..AgentWork::default() });
        assert_eq!(speeds.agents[&system(0)].speed(Role::Cs2), None);
    }

    /// Each row: the role, then of each agent the units, and the seconds of work and of delays in ten seconds; the slow
    /// ones, with their speed in percent.
    #[test]
    fn agents_are_compared_with_their_role() {
        type Row = (&'static str, Role, &'static [(u64, f64, f64)], &'static [(u32, u32)]);
        let rows: [Row; 9] = [
            ("a shard on a slow machine", Role::MemoryX, &[(9, 1.0, 0.0), (9, 1.0, 0.0), (9, 4.0, 0.0)], &[(2, 25)]),
            ("all shards on slow machines", Role::MemoryX, &[(9, 4.0, 0.0), (9, 4.5, 0.0), (9, 5.0, 0.0)], &[]),
            ("the only shard", Role::MemoryX, &[(9, 9.0, 9.0)], &[]),
            ("a node with twice the work", Role::SwarmX, &[(18, 4.0, 0.0), (9, 2.0, 0.0)], &[]),
            ("a node that hardly works", Role::SwarmX, &[(9, 0.9, 0.0), (9, 0.1, 0.0)], &[]),
            ("a node that is stopped now and then", Role::SwarmX, &[(9, 0.1, 8.0), (9, 0.1, 0.0)], &[(0, 20)]),
            ("all wait for a processor", Role::SwarmX, &[(9, 0.1, 6.0), (18, 0.2, 5.0), (4, 0.05, 6.0)], &[]),
            ("a server with slow storage", Role::Activation, &[(8, 3.0, 0.0), (8, 0.01, 0.0)], &[(0, 0)]),
            ("an idle server", Role::Activation, &[(0, 0.0, 9.0), (8, 0.1, 0.0)], &[]),
        ];
        for (what, role, agents, expected) in rows {
            let began = Instant::now();
            let mut speeds = AgentSpeeds::new(began);
            for (index, &(units, seconds, delayed)) in (0..).zip(agents) {
                let agent = AgentId::new(role, index);
                speeds.record(agent, AgentWork::default());
                speeds.record(agent, AgentWork { units, seconds, delayed, observed: 10.0 });
            }
            // Agents of another role do not matter.
            speeds.record(system(0), AgentWork::default());
            speeds.record(system(0), AgentWork { units: 1_000_000, seconds: 1.0, ..AgentWork::default() });
            speeds.measure(began + MEASURING_INTERVAL).unwrap();
            let slow: Vec<_> = speeds.slow().iter().map(|(agent, slow)| (agent.index, slow.speed_percent)).collect();
            assert_eq!(slow, expected, "{what}");
        }
    }
}
