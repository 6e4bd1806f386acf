//! Decides whether, and when, a lost agent is replaced: the rules of the launcher of a local run and of the process
//! backend of the REST server. Without a clock, processes or pods, so that the operator can use them, too.
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

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::time::Duration;

use millrace_outcome::Exit;

/// Delay before the second replacement of an agent in a row; doubled for each further one.
pub const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
/// Maximum delay before a replacement.
pub const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// Time for which an instance must have run for its loss to count as the first one again.
pub const STABLE_UPTIME: Duration = Duration::from_secs(10);
/// Losses in a row after which an agent that the others need is given up: about 16 s of delays.
pub const MAX_LOSSES_IN_A_ROW: u32 = 7;

/// Whether the other agents of an attempt continue without an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Necessity {
    /// The others wait for it.
    Required,
    /// The others continue, with less capacity.
    Optional,
}

/// How an agent was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its process ended with this code of [`Exit`].
    Exited(Exit),
    /// A signal, a crash, a deletion or the loss of its machine ended it.
    Killed,
    /// It runs, but the coordinator counts it as lost.
    Unresponsive,
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
    /// It was lost [`MAX_LOSSES_IN_A_ROW`] times in a row.
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
        self.0 = if uptime >= STABLE_UPTIME { 1 } else { self.0.saturating_add(1) };
        if necessity == Necessity::Required && self.0 >= MAX_LOSSES_IN_A_ROW {
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
    fn invalid_input_is_never_tried_again() {
        let consequence = LossCount(0).on_loss(Loss::Exited(Exit::BadInput), Necessity::Optional, STABLE_UPTIME);
        assert_eq!(consequence, Consequence::GiveUp(GiveUpReason::FailsEachTime));
    }
}
