//! Assigns each storage slot a position in one arena.

use super::{PassSchedule, StorageSlot};

/// Slots begin at multiples of this many elements: a cache line.
const ALIGNMENT: usize = 16;

/// Position of a slot in the arena, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// First element.
    pub start: usize,
    /// Elements of one leaf.
    pub leaf: usize,
    /// Distance between leaves; 0 if the slot holds one leaf at a time.
    pub stride: usize,
}

impl Extent {
    /// Returns the range of the leaf at position `leaf` of the round.
    pub const fn of_leaf(self, leaf: usize) -> std::ops::Range<usize> {
        let start = self.start + leaf * self.stride;
        start..start + self.leaf
    }
}

/// An arena for rounds of up to `leaves` leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaLayout {
    /// Maximum leaves of a round.
    pub leaves: usize,
    /// One region for each slot of the schedule.
    pub extents: Vec<Extent>,
    /// Size of the arena, in elements.
    pub len: usize,
}

impl ArenaLayout {
    /// Lays out the slots of `schedule` for rounds of `leaves` leaves of `samples` samples: the largest slot first,
    /// each at the lowest position that is free during its whole lifetime.
    pub fn new(schedule: &PassSchedule, samples: usize, leaves: usize) -> Self {
        let mut extents: Vec<Extent> = schedule.storage.iter().map(|piece| extent(piece, samples)).collect();
        let size = |extent: Extent| if extent.stride == 0 { extent.leaf } else { extent.stride * leaves };
        let mut order: Vec<usize> = (0..extents.len()).collect();
        order.sort_by_key(|&piece| (std::cmp::Reverse(size(extents[piece])), piece));
        let mut placed: Vec<usize> = Vec::new(); // by place
        let mut len = 0;
        for piece in order {
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
        Self { leaves, extents, len }
    }
}

fn extent(piece: &StorageSlot, samples: usize) -> Extent {
    let leaf = piece.elements as usize * samples;
    Extent { start: 0, leaf, stride: if piece.every_leaf() { leaf.next_multiple_of(ALIGNMENT) } else { 0 } }
}

/// Returns whether two slots are ever alive at the same time.
fn overlap_in_time(a: &StorageSlot, b: &StorageSlot) -> bool {
    let overlap = |a: (usize, usize), b: (usize, usize)| a.0 <= b.1 && b.0 <= a.1;
    overlap(a.passes, b.passes) && (a.every_leaf() || b.every_leaf() || overlap(a.steps, b.steps))
}
