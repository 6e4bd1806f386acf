//! Links that fail: how long to wait before the next epoch, whom to name, and when to give up.
//!
//! A link may fail because one of its ends died; then the end of that agent's control stream follows, and the failure
//! is forgotten. Where both ends stay, the next epoch would fail in the same way: each failure in a row doubles the
//! pause before it, and after [`MOST_FAILURES`] the run ends and names both ends. A finished turn shows that every link
//! works.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::message::Cause;
use crate::types::{AgentId, Epoch};

use super::{Command, Coordinator, Outcome, Phase};

/// Pause after the first failure in a row; each one is twice as long as the one before, up to [`LONGEST_PAUSE`].
pub const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// See [`FIRST_PAUSE`].
pub const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Failures in a row of one link after which the run ends: within about a minute.
pub const MOST_FAILURES: u32 = 12;

/// The ends of a link, the lower name first; only one where the other is not known.
type Ends = (AgentId, Option<AgentId>);

/// Failures since the last finished turn, by link.
#[derive(Debug, Default)]
pub(super) struct LinkFailures {
    counts: BTreeMap<Ends, u32>,
    /// The epoch whose failure is being waited out.
    pause: Option<Epoch>,
}

impl LinkFailures {
    /// Whether a pause must end before the next epoch.
    pub(super) const fn pauses(&self) -> bool {
        self.pause.is_some()
    }

    /// The pause after `epoch` is over.
    pub(super) fn pause_over(&mut self, epoch: Epoch) {
        self.pause.take_if(|paused| *paused == epoch);
    }

    /// A turn is finished.
    pub(super) fn clear(&mut self) {
        self.counts.clear();
    }

    /// An agent came or went: its links fail no more, or for another reason.
    pub(super) fn forget(&mut self, agent: AgentId) {
        let before = self.counts.len();
        self.counts.retain(|(low, high), _| *low != agent && *high != Some(agent));
        if self.counts.len() < before {
            self.pause = None;
        }
    }
}

fn pause_after(failures: u32) -> Duration {
    LONGEST_PAUSE.min(FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(16)))
}

impl Coordinator {
    /// A link of the current epoch failed. Only the first such report of an epoch counts: the others are of links that
    /// were closed in consequence.
    pub(super) fn link_lost(&mut self, reporter: AgentId, peer: Option<AgentId>, out: &mut Vec<Command>) {
        if !matches!(self.phase, Phase::Linking(_) | Phase::Running) {
            return;
        }
        self.regather();
        let ends = match peer {
            Some(peer) => (reporter.min(peer), Some(reporter.max(peer))),
            None => (reporter, None),
        };
        let failures = self.failures.counts.entry(ends).and_modify(|count| *count += 1).or_insert(1);
        let failures = *failures;
        if failures >= MOST_FAILURES {
            let other = peer.map_or_else(|| "another agent".to_owned(), |peer| peer.to_string());
            let reason = format!(
                "the link between {reporter} and {other} failed {failures} times in a row; their logs say why. Check that \
                 {reporter} can reach the data port of {other}, and that both run the same build"
            );
            self.end(Outcome::Failed { reason, agent: peer.or(Some(reporter)), cause: Cause::Other }, out);
            return;
        }
        self.failures.pause = Some(self.epoch);
        let after = pause_after(failures);
        out.push(Command::Pause { epoch: self.epoch, after, reporter, peer, failures });
    }
}
