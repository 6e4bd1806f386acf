//! Decides whether, and when, a lost agent is replaced: the rules of the launcher of a local run, of the process
//! backend of the REST server, and of the operator. Without a clock, processes or pods.
//!
//! ```text
//!  an agent is lost ─► Backoff of this agent ─► Replace { after }   the others continue, or wait for it
//!                                           └─► GiveUp              the caller ends or restarts the attempt
//! ```
//!
//! * Only the lost agent is replaced; no other agent restarts.
//! * The first replacement starts at once. Each further one of the same agent waits longer, from [`INITIAL_BACKOFF`] up
//!   to [`MAX_BACKOFF`], until an instance has run for [`STABLE_UPTIME`].
//! * An agent without which the others continue is replaced without end. Any other one is given up after
//!   [`MAX_LOSSES_IN_A_ROW`] losses without a stable instance.
//! * An agent that was given invalid input is never replaced: every instance would fail in the same way.
//! * An agent that exceeds its memory limit is given up after [`MAX_MEMORY_LOSSES`] losses, however long its instances
//!   ran: memory can run out in every step.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::time::Duration;

use millrace_outcome::Exit;
use millrace_params::{Role, shard_of_agent};

/// Delay before the second replacement of an agent in a row; doubled for each further one.
pub const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
/// Maximum delay before a replacement.
pub const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// Time for which an instance must have run for its loss to count as the first one again.
pub const STABLE_UPTIME: Duration = Duration::from_secs(10);
/// Losses in a row after which an agent that the others need is given up: about 16 s of delays.
pub const MAX_LOSSES_IN_A_ROW: u32 = 7;
/// Losses after which an agent that exceeds its memory limit is given up.
pub const MAX_MEMORY_LOSSES: u32 = 3;
/// Time for the coordinator to report the failure of an agent, and to end the run with it.
pub const FAILURE_REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the coordinator has to end after an agent has left, if that was the end of the run.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the other agents of an attempt continue without an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Necessity {
    /// The others wait for it.
    Required,
    /// The others continue, with less capacity.
    Optional,
}

impl Necessity {
    /// Returns the necessity of the agent `lost`, by role and index, if the agents `remaining` are left. MemoryX has
    /// `shards` shards; with 0 their number is unknown, and no agent counts as another replica. A job trains on
    /// `min_systems` systems or more.
    pub fn of_agent(
        lost: (Role, u32),
        remaining: impl IntoIterator<Item = (Role, u32)>,
        shards: u32,
        min_systems: usize,
    ) -> Self {
        let (role, index) = lost;
        let shard = |index| shard_of_agent(index, shards);
        let is_replica = |other: u32| shards > 0 && other != index && shard(other) == shard(index);
        let can_do_its_work =
            |&(other, other_index): &(Role, u32)| other == role && (role != Role::MemoryX || is_replica(other_index));
        Self::of(role, remaining.into_iter().filter(can_do_its_work).count(), min_systems)
    }

    /// Returns the necessity of a lost agent of `role`, if `others` other agents can do its work: those of its role
    /// that run, for MemoryX only the replicas of its shard. A job trains on `min_systems` systems or more.
    fn of(role: Role, others: usize, min_systems: usize) -> Self {
        let is_optional = match role {
            Role::Cs2 => others >= min_systems.max(1),
            Role::SwarmX | Role::Activation | Role::MemoryX => others > 0,
            Role::Coordinator => false,
        };
        if is_optional { Self::Optional } else { Self::Required }
    }
}

/// How an agent was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its process ended with this code of [`Exit`].
    Exited(Exit),
    /// A signal, a crash, a deletion or the loss of its machine ended it.
    Killed,
    /// It exceeded its memory limit.
    OutOfMemory,
    /// It runs, but the coordinator counts it as lost.
    Unresponsive,
}

impl Loss {
    /// Returns how long the end of an agent may be part of the end of its run: an agent that fails can be the cause,
    /// and an agent that leaves has been instructed to. A loss counts after this time.
    pub const fn settling_time(self) -> Duration {
        match self {
            Self::Exited(Exit::Failed | Exit::BadInput) => FAILURE_REPORT_TIMEOUT,
            Self::Exited(_) => LEAVE_TIMEOUT,
            Self::Killed | Self::OutOfMemory | Self::Unresponsive => Duration::ZERO,
        }
    }
}

/// What follows from the loss of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consequence {
    /// Another instance of the agent is started after this time.
    Replace {
        /// The delay; zero for the first loss.
        after: Duration,
    },
    /// No instance is started.
    GiveUp(GiveUpReason),
}

/// Why an agent is not replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUpReason {
    /// Every instance would fail in the same way.
    FailsEachTime,
    /// It was lost [`MAX_LOSSES_IN_A_ROW`] times in a row, or exceeded its memory limit [`MAX_MEMORY_LOSSES`] times.
    LostTooOften,
}

/// The losses of one agent in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossCount(pub u32);

impl LossCount {
    /// Counts the loss of an instance that ran for `uptime`; returns what follows from it.
    pub fn on_loss(&mut self, loss: Loss, necessity: Necessity, uptime: Duration) -> Consequence {
        if loss == Loss::Exited(Exit::BadInput) {
            return Consequence::GiveUp(GiveUpReason::FailsEachTime);
        }
        let is_first = uptime >= STABLE_UPTIME && loss != Loss::OutOfMemory;
        self.0 = if is_first { 1 } else { self.0.saturating_add(1) };
        let is_memory_exhausted = loss == Loss::OutOfMemory && self.0 >= MAX_MEMORY_LOSSES;
        if is_memory_exhausted || (necessity == Necessity::Required && self.0 >= MAX_LOSSES_IN_A_ROW) {
            return Consequence::GiveUp(GiveUpReason::LostTooOften);
        }
        Consequence::Replace { after: self.backoff() }
    }

    fn backoff(self) -> Duration {
        match self.0.checked_sub(2) {
            None => Duration::ZERO,
            Some(doublings) => INITIAL_BACKOFF.saturating_mul(1 << doublings.min(16)).min(MAX_BACKOFF),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(1);

    fn delays(necessity: Necessity, losses: usize) -> Vec<Option<f64>> {
        let mut count = LossCount::default();
        let mut next = || match count.on_loss(Loss::Killed, necessity, SHORT) {
            Consequence::Replace { after } => Some(after.as_secs_f64()),
            Consequence::GiveUp(reason) => {
                assert_eq!(reason, GiveUpReason::LostTooOften);
                None
            }
        };
        (0..losses).map(|_| next()).collect()
    }

    #[test]
    fn required_agent_is_given_up_and_optional_one_is_not() {
        let expected = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0].map(Some);
        assert_eq!(delays(Necessity::Required, 7), [&expected[..], &[None]].concat());
        let optional = delays(Necessity::Optional, 40);
        assert_eq!(optional[..6], expected);
        assert_eq!(optional[6..11], [16.0, 32.0, 60.0, 60.0, 60.0].map(Some));
        assert!(optional.iter().all(Option::is_some));
    }

    #[test]
    fn stable_instance_resets_the_count() {
        let mut count = LossCount(6);
        let consequence = count.on_loss(Loss::Unresponsive, Necessity::Required, STABLE_UPTIME);
        assert_eq!((consequence, count), (Consequence::Replace { after: Duration::ZERO }, LossCount(1)));
    }

    #[test]
    fn memory_limit_gives_up_slow_instances_too() {
        let mut count = LossCount::default();
        let mut is_given_up = || {
            let consequence = count.on_loss(Loss::OutOfMemory, Necessity::Optional, 10 * STABLE_UPTIME);
            consequence == Consequence::GiveUp(GiveUpReason::LostTooOften)
        };
        assert_eq!([is_given_up(), is_given_up(), is_given_up()], [false, false, true]);
    }

    #[test]
    fn necessity_follows_from_remaining_agents() {
        use Necessity::{Optional, Required};
        for (role, others, expected) in [
            (Role::Cs2, 2, Optional),
            (Role::Cs2, 1, Required),
            (Role::SwarmX, 0, Required),
            (Role::Activation, 1, Optional),
            (Role::MemoryX, 1, Optional),
            (Role::MemoryX, 0, Required),
            (Role::Coordinator, 0, Required),
        ] {
            assert_eq!(Necessity::of(role, others, 2), expected, "{role}");
        }
        assert_eq!(Necessity::of(Role::Cs2, 0, 0), Required, "one system is always needed");
    }

    #[test]
    fn only_replicas_of_its_shard_replace_a_memoryx_agent() {
        let agents = |indices: &[u32]| indices.iter().map(|&index| (Role::MemoryX, index)).collect::<Vec<_>>();
        let optional = |remaining: Vec<(Role, u32)>, shards| {
            Necessity::of_agent((Role::MemoryX, 1), remaining, shards, 1) == Necessity::Optional
        };
        assert!(optional(agents(&[0, 2, 3]), 2) && optional(agents(&[5]), 2));
        assert!(!optional(agents(&[0, 1, 2]), 2) && !optional(vec![(Role::Cs2, 3)], 2));
        assert!(!optional(agents(&[0, 2, 3]), 0), "the number of shards is unknown");
    }

    #[test]
    fn invalid_input_is_never_tried_again() {
        let consequence = LossCount(0).on_loss(Loss::Exited(Exit::BadInput), Necessity::Optional, STABLE_UPTIME);
        assert_eq!(consequence, Consequence::GiveUp(GiveUpReason::FailsEachTime));
    }
}
