//! Credits: how far a sender may run ahead of a receiver on one link and direction.
//!
//! Both count slots (a chunk with all its partial sums is one slot) since the link was opened. The receiver grants a
//! running total, so that a repeated or reordered grant is harmless.
//!
//! Neither end trusts the other to keep to this. [`FrameCheck`] finds a sender that exceeds its credits, [`GrantCheck`]
//! a receiver that grants what it can't have room for; so what waits between the two is bounded by windows, whatever a
//! peer does.

use crate::frame::FrameKey;

/// The sender's side.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendCredit {
    granted: u64,
    used: u64,
}

impl SendCredit {
    /// Takes note of a running total.
    pub fn grant(&mut self, total: u64) {
        self.granted = self.granted.max(total);
    }

    /// Whether another slot may be sent.
    pub const fn has_credit(&self) -> bool {
        self.used < self.granted
    }

    /// Sends one slot; answers whether it was allowed.
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

    /// The total to grant now; also right as the first grant.
    pub const fn total(&self) -> u64 {
        self.size + self.done
    }

    /// One slot was consumed; returns the total to grant.
    pub const fn consume(&mut self) -> u64 {
        self.done += 1;
        self.total()
    }
}

/// Most frames of one slot: a run of leaves is covered by at most two nodes a level of the tree, and leaves are
/// numbered by 32 bits.
pub const MAX_FRAMES_PER_SLOT: u64 = 64;

/// A peer that breaks the rules of a link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreditError {
    /// More slots were sent than granted.
    #[error(
        "a frame came beyond the credits of the link: of iteration {iteration}, round {round}, slot {slot} after {granted} slots"
    )]
    NoCredit {
        /// Turn of the frame.
        iteration: u64,
        /// Round of the frame.
        round: u32,
        /// Slot of the frame.
        slot: u32,
        /// Slots granted.
        granted: u64,
    },
    /// More frames came for a slot than any slot has.
    #[error("more than {MAX_FRAMES_PER_SLOT} frames came for one slot")]
    TooManyFrames,
    /// A grant that grants nothing more.
    #[error("a grant of {total} slots came after one of {before}")]
    NotIncreasing {
        /// The new total.
        total: u64,
        /// The total before.
        before: u64,
    },
    /// A grant of more than fits into a window beyond what was sent.
    #[error("a grant of {total} slots came when {sent} had been sent; a window has {window}")]
    BeyondWindow {
        /// The new total.
        total: u64,
        /// Slots whose first frame has been sent.
        sent: u64,
        /// Slots of a window.
        window: u64,
    },
}

/// Counts slots by their frames, which come one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotCount {
    slots: u64,
    frames: u64,
    last: Option<(u64, u32, u32)>,
}

impl SlotCount {
    /// A frame of `(iteration, round, slot)`; returns the slots so far, this one included.
    pub fn frame(&mut self, slot: (u64, u32, u32)) -> u64 {
        if self.last.replace(slot) == Some(slot) {
            self.frames += 1;
        } else {
            (self.slots, self.frames) = (self.slots + 1, 1);
        }
        self.slots
    }
}

/// Checks the frames of one link and direction on receipt.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameCheck(SlotCount);

impl FrameCheck {
    /// A frame came when `granted` slots had been granted.
    ///
    /// # Errors
    /// It exceeds the credits.
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

/// Checks the grants of one link and direction on receipt.
#[derive(Clone, Copy, Debug)]
pub struct GrantCheck {
    window: u64,
    last: u64,
}

impl GrantCheck {
    /// Of a receiver whose window has `window` slots.
    pub const fn new(window: u64) -> Self {
        Self { window, last: 0 }
    }

    /// A running total was granted when `sent` slots had been handed to the network, at least in part. The receiver can
    /// have consumed no more than these.
    ///
    /// # Errors
    /// No receiver with such a window grants that.
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
