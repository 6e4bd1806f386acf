//! Credits: how far a sender may run ahead of a receiver on one link and direction.
//!
//! Both count slots (a chunk with all its partial sums is one slot) since the link was opened. The receiver grants a
//! running total, so that a repeated or reordered grant is harmless.

/// The sender's side.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowance {
    granted: u64,
    used: u64,
}

impl Allowance {
    /// Takes note of a running total.
    pub fn grant(&mut self, total: u64) {
        self.granted = self.granted.max(total);
    }

    /// Whether another slot may be sent.
    pub const fn open(&self) -> bool {
        self.used < self.granted
    }

    /// Sends one slot; answers whether it was allowed.
    pub const fn spend(&mut self) -> bool {
        if !self.open() {
            return false;
        }
        self.used += 1;
        true
    }
}

/// The receiver's side: a window of `size` slots.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    size: u64,
    done: u64,
}

impl Window {
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
