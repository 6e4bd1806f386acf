//! Where in one arena each piece of memory lies.

use super::{PassSchedule, StorageSlot};

/// Pieces begin at multiples of this many numbers: a cache line.
const ALIGNMENT: usize = 16;

/// A piece's place in the arena, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins.
    pub start: usize,
    /// Numbers of one leaf.
    pub leaf: usize,
    /// Distance from leaf to leaf; 0 where it holds one leaf at a time.
    pub stride: usize,
}

impl Extent {
    /// The range that holds the leaf at place `leaf` of the round.
    pub const fn of_leaf(self, leaf: usize) -> std::ops::Range<usize> {
        let start = self.start + leaf * self.stride;
        start..start + self.leaf
    }
}

/// An arena for rounds of up to `leaves` leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaLayout {
    /// Most leaves of a round.
    pub leaves: usize,
    /// One place for each piece of the schedule's storage.
    pub extents: Vec<Extent>,
    /// Size of the arena, in numbers.
    pub len: usize,
}

impl ArenaLayout {
    /// Places the memory of `schedule` for rounds of `leaves` leaves of `samples` samples: the largest piece first,
    /// each at the lowest place that is free throughout its life.
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
                let taken = extents[other];
                if !overlap_in_time(&schedule.storage[piece], &schedule.storage[other]) {
                    continue;
                }
                if start + size(extents[piece]) <= taken.start {
                    break;
                }
                start = start.max((taken.start + size(taken)).next_multiple_of(ALIGNMENT));
            }
            extents[piece].start = start;
            len = len.max(start + size(extents[piece]));
            let at = placed.partition_point(|&other| extents[other].start <= start);
            placed.insert(at, piece);
        }
        Self { leaves, extents, len }
    }
}

fn extent(piece: &StorageSlot, samples: usize) -> Extent {
    let leaf = piece.elements as usize * samples;
    Extent { start: 0, leaf, stride: if piece.every_leaf() { leaf.next_multiple_of(ALIGNMENT) } else { 0 } }
}

/// Whether two pieces are ever alive at the same time.
fn overlap_in_time(a: &StorageSlot, b: &StorageSlot) -> bool {
    let overlap = |a: (usize, usize), b: (usize, usize)| a.0 <= b.1 && b.0 <= a.1;
    overlap(a.passes, b.passes) && (a.every_leaf() || b.every_leaf() || overlap(a.steps, b.steps))
}
