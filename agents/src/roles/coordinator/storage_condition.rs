//! Decides when a run shows that its storage does not respond, and when that it does again.
//!
//! ```text
//!  metrics.jsonl   ──write────────────────────┐  write ─┐      write ─┐
//!                     │                       │    │    │             │◄── RECOVERY_TIME ──►│
//!  shown              └─ stalled ───────────────────────────────────────────────────────────┘ responds
//! ```
//!
//! Storage that stalls again and again is shown as one stall.

use std::time::{Duration, Instant};

use crate::write_watch::OngoingWrite;

/// How long storage must respond until it counts as responding again.
const RECOVERY_TIME: Duration = Duration::from_secs(10);

/// What a run shows about its storage.
#[derive(Debug, Default)]
pub struct StorageCondition {
    shown: Option<OngoingWrite>,
    /// Since when no write stalls although a stall is shown.
    responding_since: Option<Instant>,
}

/// A change of what is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorageChange {
    /// This write has not returned for long.
    Stalled(OngoingWrite),
    /// The storage responds again; this is the write that was shown, and how long nothing responded.
    Responds(OngoingWrite, Duration),
}

impl StorageCondition {
    /// Updates the condition from the writes that have not returned for long at `now`. Returns the change of what is
    /// shown, if there is one.
    pub fn update(&mut self, now: Instant, stalled: impl IntoIterator<Item = OngoingWrite>) -> Option<StorageChange> {
        if let Some(oldest) = stalled.into_iter().min_by_key(|write| write.began) {
            self.responding_since = None;
            if self.shown.is_some() {
                return None;
            }
            self.shown = Some(oldest.clone());
            return Some(StorageChange::Stalled(oldest));
        }
        self.shown.as_ref()?;
        let since = *self.responding_since.get_or_insert(now);
        if now.duration_since(since) < RECOVERY_TIME {
            return None;
        }
        self.responding_since = None;
        let shown = self.shown.take()?;
        let stalled_for = since.duration_since(shown.began);
        Some(StorageChange::Responds(shown, stalled_for))
    }

    /// Returns the write that is shown, and since when it has not returned.
    pub const fn shown(&self) -> Option<&OngoingWrite> {
        self.shown.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_in_a_row_are_shown_as_one() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let write = |file: &str, began| OngoingWrite { file: file.into(), began: at(began) };
        let (metrics, checkpoint) = (write("metrics.jsonl", 1), write("checkpoint_4", 0));
        let mut condition = StorageCondition::default();
        let stalled = |writes: &[&OngoingWrite]| writes.iter().copied().cloned().collect::<Vec<_>>();
        for (second, writes, change) in [
            (0, stalled(&[]), None),
            (3, stalled(&[&metrics, &checkpoint]), Some(StorageChange::Stalled(checkpoint.clone()))),
            (4, stalled(&[&metrics]), None),
            (5, stalled(&[]), None),
            (14, stalled(&[]), None),
            (15, stalled(&[&metrics]), None), // again, within the time of recovery
            (16, stalled(&[]), None),
            (25, stalled(&[]), None),
            (26, stalled(&[]), Some(StorageChange::Responds(checkpoint.clone(), Duration::from_secs(16)))),
            (40, stalled(&[]), None),
            (41, stalled(&[&metrics]), Some(StorageChange::Stalled(metrics.clone()))),
        ] {
            assert_eq!(condition.update(at(second), writes), change, "second {second}");
        }
        assert_eq!(condition.shown(), Some(&metrics));
    }
}
