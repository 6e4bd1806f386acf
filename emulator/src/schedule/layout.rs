//! Assigns each storage slot a position in one arena.

use std::cmp::Reverse;
use std::ops::Range;

use super::{PassSchedule, StorageSlot};

/// Slots begin at multiples of this many elements: a cache line.
const ALIGNMENT: usize = 16;

/// Position of a slot in the arena, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// First element.
    pub start: usize,
    /// Elements of one leaf. Leaves follow one another without a gap.
    pub leaf: usize,
    /// Whether the slot holds every leaf of the round rather than those of one block.
    pub every_leaf: bool,
}

impl Extent {
    /// Returns the range of the leaves at positions `leaves` of the round, which belong to the block that begins at
    /// position `block`.
    pub const fn of_leaves(self, leaves: Range<usize>, block: usize) -> Range<usize> {
        let first = if self.every_leaf { leaves.start } else { leaves.start - block };
        let start = self.start + first * self.leaf;
        start..start + (leaves.end - leaves.start) * self.leaf
    }
}

/// An arena for rounds of some number of leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaLayout {
    /// One region for each slot of the schedule.
    pub extents: Vec<Extent>,
    /// Size of the arena, in elements.
    pub len: usize,
}

impl ArenaLayout {
    /// Lays out the slots of `schedule` for rounds of up to `leaves` leaves of `samples` samples, in blocks of up to
    /// `block` leaves: the largest slot first, or those of every leaf first, whichever takes less memory.
    pub fn new(schedule: &PassSchedule, samples: usize, leaves: usize, block: usize) -> Self {
        let extents: Vec<Extent> = schedule.storage.iter().map(|piece| extent(piece, samples)).collect();
        let size = |extent: Extent| extent.leaf * if extent.every_leaf { leaves } else { block.min(leaves) };
        let mut order: Vec<usize> = (0..extents.len()).collect();
        order.sort_by_key(|&piece| (Reverse(size(extents[piece])), piece));
        let by_size = Self::place(schedule, extents.clone(), &order, size);
        order.sort_by_key(|&piece| Reverse(extents[piece].every_leaf));
        let by_lifetime = Self::place(schedule, extents, &order, size);
        if by_lifetime.len < by_size.len { by_lifetime } else { by_size }
    }

    /// Assigns each slot, in the given order, the lowest position that is free during its whole lifetime.
    fn place(
        schedule: &PassSchedule,
        mut extents: Vec<Extent>,
        order: &[usize],
        size: impl Fn(Extent) -> usize,
    ) -> Self {
        let mut placed: Vec<usize> = Vec::new(); // by place
        let mut len = 0;
        for &piece in order {
            let mut start = 0;
            for &other in &placed {
                let occupied = extents[other];
                if !overlap_in_time(&schedule.storage[piece], &schedule.storage[other]) {
                    continue;
                }
                if start + size(extents[piece]) <= occupied.start {
                    break;
                }
                start = start.max((occupied.start + size(occupied)).next_multiple_of(ALIGNMENT));
            }
            extents[piece].start = start;
            len = len.max(start + size(extents[piece]));
            let index = placed.partition_point(|&other| extents[other].start <= start);
            placed.insert(index, piece);
        }
        Self { extents, len }
    }
}

fn extent(piece: &StorageSlot, samples: usize) -> Extent {
    Extent { start: 0, leaf: piece.elements as usize * samples, every_leaf: piece.every_leaf() }
}

/// Returns whether two slots are ever alive at the same time.
fn overlap_in_time(a: &StorageSlot, b: &StorageSlot) -> bool {
    let overlap = |a: (usize, usize), b: (usize, usize)| a.0 <= b.1 && b.0 <= a.1;
    overlap(a.passes, b.passes) && (a.every_leaf() || b.every_leaf() || overlap(a.steps, b.steps))
}
