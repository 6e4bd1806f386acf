//! Credits: limit how far a sender may be ahead of the receiver, per link and direction.
//!
//! Both ends count slots (a chunk with all its partial sums is one slot) since the link was established. The receiver
//! grants a running total, so repeated or reordered grants are harmless.
//!
//! Neither end trusts the other: [`FrameCheck`] detects a sender that exceeds its credits, [`GrantCheck`] a receiver
//! that grants more than its window. Queues between the two are therefore bounded by windows, whatever a peer sends.

use crate::frame::FrameKey;

/// The sender's side.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendCredit {
    granted: u64,
    used: u64,
}

impl SendCredit {
    /// Records a grant, given as a running total.
    pub fn grant(&mut self, total: u64) {
        self.granted = self.granted.max(total);
    }

    /// Returns whether another slot may be sent.
    pub const fn has_credit(&self) -> bool {
        self.used < self.granted
    }

    /// Counts one slot as sent; returns false without counting if there is no credit.
    pub const fn spend(&mut self) -> bool {
        if !self.has_credit() {
            return false;
        }
        self.used += 1;
        true
    }
}

/// The receiver's side: a window of `size` slots.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveWindow {
    size: u64,
    done: u64,
}

impl ReceiveWindow {
    /// A window of `size >= 1` slots.
    pub const fn new(size: u64) -> Self {
        Self { size: if size == 0 { 1 } else { size }, done: 0 }
    }

    /// Returns the total to grant now; also the initial grant.
    pub const fn total(&self) -> u64 {
        self.size + self.done
    }

    /// Counts one slot as consumed; returns the total to grant.
    pub const fn consume(&mut self) -> u64 {
        self.done += 1;
        self.total()
    }
}

/// Maximum frames of one slot: a range of leaves is covered by at most two nodes per level of the tree, and leaf
/// indices have 32 bits.
pub const MAX_FRAMES_PER_SLOT: u64 = 64;

/// A violation of the link protocol by a peer.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreditError {
    /// More slots were sent than granted.
    #[error(
        "received a frame beyond the credits of the link: iteration {iteration}, round {round}, slot {slot} after \
         {granted} slots"
    )]
    NoCredit { iteration: u64, round: u32, slot: u32, granted: u64 },
    /// There are more frames in one slot than a slot can have.
    #[error("received more than {MAX_FRAMES_PER_SLOT} frames of one slot")]
    TooManyFrames,
    /// A grant does not increase the total.
    #[error("received a grant of {total} slots after one of {before}")]
    NotIncreasing { total: u64, before: u64 },
    /// A grant exceeds the slots sent by more than a window.
    #[error("received a grant of {total} slots with {sent} sent and a window of {window}")]
    BeyondWindow {
        total: u64,
        /// Slots whose first frame was sent.
        sent: u64,
        /// Slots of a window.
        window: u64,
    },
}

/// Counts slots by their frames, which are consecutive.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotCount {
    slots: u64,
    frames: u64,
    last: Option<(u64, u32, u32)>,
}

impl SlotCount {
    /// Counts a frame of `(iteration, round, slot)`; returns the slots so far, including this one.
    pub fn frame(&mut self, slot: (u64, u32, u32)) -> u64 {
        if self.last.replace(slot) == Some(slot) {
            self.frames += 1;
        } else {
            (self.slots, self.frames) = (self.slots + 1, 1);
        }
        self.slots
    }
}

/// Checks the received frames of one link and direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameCheck(SlotCount);

impl FrameCheck {
    /// Checks a frame that arrived after `granted` slots were granted.
    ///
    /// # Errors
    /// The frame exceeds the credits.
    pub fn frame(&mut self, key: &FrameKey, granted: u64) -> Result<(), CreditError> {
        let FrameKey { iteration, round, slot, .. } = *key;
        if self.0.frame((iteration, round, slot)) > granted {
            return Err(CreditError::NoCredit { iteration, round, slot, granted });
        }
        if self.0.frames > MAX_FRAMES_PER_SLOT {
            return Err(CreditError::TooManyFrames);
        }
        Ok(())
    }
}

/// Checks the received grants of one link and direction.
#[derive(Clone, Copy, Debug)]
pub struct GrantCheck {
    window: u64,
    last: u64,
}

impl GrantCheck {
    /// Creates the check for a receiver whose window has `window` slots.
    pub const fn new(window: u64) -> Self {
        Self { window, last: 0 }
    }

    /// Checks a running total that was granted when `sent` slots had been passed to the network, at least in part. The
    /// receiver can't have consumed more than these.
    ///
    /// # Errors
    /// The total is impossible for a receiver with this window.
    pub const fn grant(&mut self, total: u64, sent: u64) -> Result<(), CreditError> {
        let (before, window) = (self.last, self.window);
        if total <= before {
            return Err(CreditError::NotIncreasing { total, before });
        }
        if total > sent.saturating_add(window) {
            return Err(CreditError::BeyondWindow { total, sent, window });
        }
        self.last = total;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use millrace_emulator::tree::Node;

    use super::*;
    use crate::types::Epoch;

    #[test]
    fn frames_and_grants_beyond_the_window_are_rejected() {
        let key =
            |slot| FrameKey { epoch: Epoch::default(), iteration: 0, round: 0, slot, chunk: 0, node: Node::new(0, 1) };
        let mut check = FrameCheck::default();
        for slot in [0, 0, 0, 1] {
            assert_eq!(check.frame(&key(slot), 2), Ok(()));
        }
        assert!(matches!(check.frame(&key(2), 2), Err(CreditError::NoCredit { slot: 2, granted: 2, .. })));
        let mut check = FrameCheck::default();
        (0..MAX_FRAMES_PER_SLOT).for_each(|_| assert_eq!(check.frame(&key(0), 1), Ok(())));
        assert_eq!(check.frame(&key(0), 1), Err(CreditError::TooManyFrames));

        let mut check = GrantCheck::new(3);
        assert_eq!((check.grant(3, 0), check.grant(4, 1), check.grant(8, 5)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(check.grant(8, 9), Err(CreditError::NotIncreasing { total: 8, before: 8 }));
        assert_eq!(check.grant(10, 6), Err(CreditError::BeyondWindow { total: 10, sent: 6, window: 3 }));
        assert!(check.grant(u64::MAX, u64::MAX).is_ok());
    }
}
