//! How the columns of queries, keys and values are divided into heads.

use super::{Flops, OpError};

/// Heads of queries, keys and values in rows of `heads + 2 key_heads` times `head_dim` columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLayout {
    pub heads: usize,
    /// Heads of keys, and as many of values. Divides `heads`.
    pub key_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
}

impl HeadLayout {
    /// Divides rows of `columns`.
    ///
    /// # Errors
    /// [`OpError::Heads`] if that is not possible.
    pub fn of(heads: usize, key_heads: usize, columns: usize) -> Result<Self, OpError> {
        let all = key_heads.checked_mul(2).and_then(|keys| keys.checked_add(heads));
        let is_shared = heads > 0 && key_heads > 0 && heads.is_multiple_of(key_heads);
        match all.filter(|all| is_shared && columns.is_multiple_of(*all)) {
            Some(all) => Ok(Self { heads, key_heads, head_dim: columns / all }),
            None => Err(OpError::Heads { columns, heads, key_heads }),
        }
    }

    /// Returns the columns of the output.
    pub fn width(self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the work on a sample of `rows`, of which `pairs` attend to each other.
    pub fn flops(self, rows: u64, pairs: u64) -> Flops {
        // Each pair of rows takes a product of all heads' columns for the score and one for the value.
        let (width, key_width) = (self.width() as u64, (self.key_heads * self.head_dim) as u64);
        let forward = 4u64.saturating_mul(pairs).saturating_mul(width);
        // The features of a head are on 1 / heads of the cores of the whole width, so the sums of its scores cost
        // proportionally less: all heads together cost one number per pair. Values and the gradients of queries, keys
        // and values are summed over rows.
        let row = rows.saturating_mul(width);
        let gradients = rows.saturating_mul(width + 2 * key_width);
        Flops {
            forward,
            backward: forward.saturating_mul(2),
            forward_sums: pairs.saturating_add(row),
            backward_sums: pairs.saturating_add(gradients),
        }
    }

    /// Returns the numbers that the backward pass needs for a sample of `rows` only during computation: the gradients
    /// of shared keys and values for each head of queries, before they are summed, and the product of the output and
    /// its gradient, for each row and head.
    pub fn scratch(self, rows: u64) -> u64 {
        let partial = if self.key_heads == self.heads { 0 } else { 2 * self.head_dim as u64 };
        rows * self.heads as u64 * (partial + 1)
    }
}
