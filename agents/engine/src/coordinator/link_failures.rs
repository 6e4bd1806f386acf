//! Link failures: the delay before the next epoch, and the end of the run after repeated failures.
//!
//! If a link fails because one of its agents died, the loss of that agent's control stream follows, and the failure is
//! discarded. If both agents stay, the next epoch would fail in the same way: each consecutive failure doubles the
//! delay, and after [`MAX_LINK_FAILURES`] the run ends with a message that names both agents. A finished iteration
//! shows that all links work, and resets the counts.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::message::FailureCause;
use crate::types::{AgentId, Epoch};

use super::{Coordinator, CoordinatorCommand, Phase, RunOutcome};

/// Delay after the first failure; doubled for each consecutive one, up to [`MAX_LINK_BACKOFF`].
pub const INITIAL_LINK_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum delay before a new epoch.
pub const MAX_LINK_BACKOFF: Duration = Duration::from_secs(10);
/// Consecutive failures of one link after which the run ends, within about a minute.
pub const MAX_LINK_FAILURES: u32 = 12;

/// The agents of a link, the lower name first; only one if the other is unknown.
type LinkEndpoints = (AgentId, Option<AgentId>);

/// Failures since the last finished iteration, by link.
#[derive(Debug, Default)]
pub(super) struct LinkFailures {
    counts: BTreeMap<LinkEndpoints, u32>,
    /// The epoch whose failure is being waited for.
    backing_off_epoch: Option<Epoch>,
}

impl LinkFailures {
    /// Returns whether a delay must elapse before the next epoch.
    pub(super) const fn is_backing_off(&self) -> bool {
        self.backing_off_epoch.is_some()
    }

    /// Ends the delay after `epoch`.
    pub(super) fn backoff_elapsed(&mut self, epoch: Epoch) {
        self.backing_off_epoch.take_if(|paused| *paused == epoch);
    }

    /// Resets all counts after a finished iteration.
    pub(super) fn clear(&mut self) {
        self.counts.clear();
    }

    /// Discards the failures of an agent that joined or disconnected: they no longer apply.
    pub(super) fn forget_agent(&mut self, agent: AgentId) {
        let before = self.counts.len();
        self.counts.retain(|(low, high), _| *low != agent && *high != Some(agent));
        if self.counts.len() < before {
            self.backing_off_epoch = None;
        }
    }
}

fn backoff_after(failures: u32) -> Duration {
    MAX_LINK_BACKOFF.min(INITIAL_LINK_BACKOFF.saturating_mul(1 << (failures - 1).min(16)))
}

impl Coordinator {
    /// Handles the failure of a link in the current epoch. Only the first report of an epoch counts: further links are
    /// closed as a consequence of it.
    pub(super) fn on_link_lost(&mut self, reporter: AgentId, peer: Option<AgentId>, out: &mut Vec<CoordinatorCommand>) {
        if !matches!(self.phase, Phase::Linking(_) | Phase::Running) {
            return;
        }
        self.restart_gathering();
        let ends = match peer {
            Some(peer) => (reporter.min(peer), Some(reporter.max(peer))),
            None => (reporter, None),
        };
        let failures = self.failures.counts.entry(ends).and_modify(|count| *count += 1).or_insert(1);
        let failures = *failures;
        if failures >= MAX_LINK_FAILURES {
            let other = peer.map_or_else(|| "another agent".to_owned(), |peer| peer.to_string());
            let reason = format!(
                "the link between {reporter} and {other} failed {failures} times in a row; see their logs. Check that \
                 {reporter} can reach the data port of {other}, and that both run the same build"
            );
            self.end(RunOutcome::Failed { reason, agent: peer.or(Some(reporter)), cause: FailureCause::Other }, out);
            return;
        }
        self.failures.backing_off_epoch = Some(self.epoch);
        let after = backoff_after(failures);
        out.push(CoordinatorCommand::Backoff { epoch: self.epoch, after, reporter, peer, failures });
    }
}
