//! Finds iterations that take much longer than the ones before. Their epoch ends, so that every link is opened again
//! and the iteration is repeated: what a damaged connection without encryption has lost is never sent again.
//!
//! The bound follows from the measured seconds of each leaf on the system with most of them, because fewer systems have
//! more leaves each. It doubles with every iteration in a row that exceeds it: a machine that has become slower must be
//! able to finish. The first iteration has no bound.

use std::time::{Duration, Instant};

use millrace_emulator::placement::{Placement, Round};
use millrace_engine::coordinator::{Coordinator, CoordinatorEvent};
use millrace_engine::types::{Epoch, Iteration};

use super::CoordinatorDriver;

/// Minimum time after which an iteration is overdue.
const MIN_TIMEOUT: Duration = Duration::from_secs(30);
/// An iteration is overdue after this multiple of the expected time.
const TIMEOUT_FACTOR: f64 = 10.0;
/// Weight of the longest iteration after each further one, so that it is forgotten after some dozens.
const DECAY: f64 = 0.95;
/// Maximum doublings of the bound.
const MAX_DOUBLINGS: u32 = 10;

/// Measures iterations; see the module documentation.
#[derive(Clone, Debug, Default)]
pub struct IterationTimeout {
    /// Maximum leaves of a system in a training and in an evaluation iteration of this epoch.
    leaves: [u32; 2],
    /// The iteration in progress.
    open: Option<OpenIteration>,
    /// Seconds of a leaf in the longest recent iteration.
    longest: Option<f64>,
    /// Iterations in a row that were overdue.
    overdue: u32,
}

#[derive(Clone, Copy, Debug)]
struct OpenIteration {
    epoch: Epoch,
    /// Number within the epoch.
    number: u64,
    opened: Instant,
    /// Leaves of the system that has most of them, at least 1.
    leaves: u32,
}

impl CoordinatorDriver {
    /// Returns the event for the state machine if the iteration in progress is overdue.
    pub(super) fn overdue_iteration(&mut self) -> Option<CoordinatorEvent> {
        if !self.machine.as_ref().is_some_and(Coordinator::is_iterating) {
            // It was abandoned because an agent was lost, or the run is stopping.
            self.iteration_timeout.open = None;
        }
        let (epoch, elapsed) = self.iteration_timeout.take_overdue(Instant::now())?;
        let seconds = elapsed.as_secs();
        tracing::warn!(
            %epoch,
            "an iteration has not finished in {seconds} s, far longer than the ones before; it is repeated in a new \
             epoch"
        );
        Some(CoordinatorEvent::IterationOverdue { epoch })
    }
}

/// Returns the leaves of the system that has most of them over all rounds.
fn max_leaves(rounds: &[Round]) -> u32 {
    let systems = rounds.first().map_or(0, |round| round.owned.len());
    let of_system = |index: usize| -> u32 {
        rounds.iter().filter_map(|round| round.owned.get(index)).map(|owned| owned.end - owned.start).sum()
    };
    (0..systems).map(of_system).max().unwrap_or(0)
}

impl IterationTimeout {
    /// Records the beginning of an epoch, which abandons the iteration in progress.
    pub fn on_epoch(&mut self, placement: &Placement) {
        self.leaves = [max_leaves(&placement.rounds), max_leaves(&placement.eval_rounds)];
        self.open = None;
    }

    /// Records that an iteration was opened at `now`. May be repeated for every agent.
    pub fn on_opened(&mut self, epoch: Epoch, iteration: Iteration, now: Instant) {
        let leaves = self.leaves[usize::from(!iteration.task.is_training())];
        let is_open = |open: OpenIteration| (open.epoch, open.number) == (epoch, iteration.number);
        if !self.open.is_some_and(is_open) {
            self.open = Some(OpenIteration { epoch, number: iteration.number, opened: now, leaves: leaves.max(1) });
        }
    }

    /// Records the end of the iteration in progress.
    pub fn on_finished(&mut self, now: Instant) {
        let Some(OpenIteration { opened, leaves, .. }) = self.open.take() else { return };
        let seconds = (now - opened).as_secs_f64() / f64::from(leaves);
        self.longest = Some(self.longest.map_or(seconds, |longest| seconds.max(longest * DECAY)));
        self.overdue = 0;
    }

    /// Returns when the iteration in progress is overdue.
    pub fn deadline(&self) -> Option<Instant> {
        let OpenIteration { opened, leaves, .. } = self.open?;
        let expected = self.longest? * f64::from(leaves);
        let timeout = MIN_TIMEOUT.max(Duration::try_from_secs_f64(expected * TIMEOUT_FACTOR).unwrap_or(Duration::MAX));
        opened.checked_add(timeout.saturating_mul(1 << self.overdue.min(MAX_DOUBLINGS)))
    }

    /// Returns the epoch of the iteration in progress and its time until `now`, if it is overdue. The iteration is
    /// abandoned.
    pub fn take_overdue(&mut self, now: Instant) -> Option<(Epoch, Duration)> {
        self.deadline().filter(|deadline| *deadline <= now)?;
        let OpenIteration { epoch, opened, .. } = self.open.take()?;
        self.overdue += 1;
        Some((epoch, now - opened))
    }
}

#[cfg(test)]
mod tests {
    use millrace_engine::types::IterationKind;

    use super::*;

    const EPOCH: Epoch = Epoch { attempt: 1, number: 1 };

    fn train(number: u64) -> Iteration {
        Iteration { number, task: IterationKind::Train { step: number + 1, batch: number } }
    }

    /// Runs an iteration of `seconds`; returns when it would have been overdue, after its start.
    fn iteration(timeout: &mut IterationTimeout, number: u64, seconds: f64) -> Option<f64> {
        let start = Instant::now();
        timeout.on_opened(EPOCH, train(number), start);
        let deadline = timeout.deadline().map(|deadline| (deadline - start).as_secs_f64());
        timeout.on_opened(EPOCH, train(number), start + Duration::from_secs(1));
        timeout.on_finished(start + Duration::from_secs_f64(seconds));
        deadline
    }

    #[test]
    fn bound_follows_from_longest_recent_iteration_and_leaves() {
        let mut timeout = IterationTimeout { leaves: [4, 2], ..IterationTimeout::default() };
        assert_eq!(iteration(&mut timeout, 0, 40.0), None, "nothing was measured");
        assert_eq!(iteration(&mut timeout, 1, 1.0), Some(400.0));
        timeout.leaves = [8, 4];
        assert_eq!(iteration(&mut timeout, 2, 1.0), Some(760.0));
        for number in 3..100 {
            iteration(&mut timeout, number, 1.0);
        }
        assert_eq!(iteration(&mut timeout, 100, 1.0), Some(30.0));
        assert_eq!(timeout.deadline(), None, "no iteration is open");
    }

    #[test]
    fn overdue_iterations_in_a_row_double_the_bound() {
        let mut timeout = IterationTimeout { leaves: [1, 1], ..IterationTimeout::default() };
        iteration(&mut timeout, 0, 1.0);
        let start = Instant::now();
        for (number, bound) in [30, 60, 120, 240].into_iter().enumerate() {
            timeout.on_opened(EPOCH, train(number as u64), start);
            assert_eq!(timeout.take_overdue(start + Duration::from_secs(bound - 1)), None);
            let end = Duration::from_secs(bound);
            assert_eq!(timeout.take_overdue(start + end), Some((EPOCH, end)));
            assert_eq!(timeout.take_overdue(start + end), None);
        }
        assert_eq!(iteration(&mut timeout, 9, 1.0), Some(480.0));
        assert_eq!(iteration(&mut timeout, 10, 1.0), Some(30.0));
    }
}
