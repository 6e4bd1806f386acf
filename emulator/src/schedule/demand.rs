//! Computes how much memory each pass needs.

use super::{PassSchedule, StorageSlot};

/// Memory of one pass, in the unit of `size`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassMemory {
    /// Held for every leaf of the round.
    pub retained: u64,
    /// Used for the current leaf.
    pub working: u64,
}

impl PassSchedule {
    /// Returns the peak memory of each pass, in the order of execution. `size` returns the size of a slot for one
    /// sample.
    pub fn demand(&self, size: impl Fn(&StorageSlot) -> u64) -> Vec<PassMemory> {
        let passes = self.forward.len() + self.backward.len();
        // Changes of held memory from pass to pass, and of working memory from step to step.
        let mut retained = vec![0i128; passes + 1];
        let steps = self.forward.iter().chain(self.backward.iter().rev());
        let mut working: Vec<Vec<i128>> = steps.map(|steps| vec![0; steps.len() + 1]).collect();
        for piece in &self.storage {
            let bytes = i128::from(size(piece));
            let (changes, (first, last)) = match piece.every_leaf() {
                true => (&mut retained, piece.passes),
                false => (&mut working[piece.passes.0], piece.steps),
            };
            changes[first] += bytes;
            changes[last + 1] -= bytes;
        }
        let highest = |changes: &[i128]| sums(changes).max().unwrap_or(0);
        let demand = |(retained, working): (u64, &Vec<i128>)| PassMemory { retained, working: highest(working) };
        sums(&retained).zip(&working).map(demand).collect()
    }
}

fn sums(changes: &[i128]) -> impl Iterator<Item = u64> {
    changes.iter().scan(0i128, |sum, change| {
        *sum += change;
        Some(u64::try_from(*sum).unwrap_or(u64::MAX))
    })
}
