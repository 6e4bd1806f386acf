//! The binary tree over leaf indices that fixes the order of every gradient sum.
//!
//! A batch is cut into K leaves. The tree halves `[0, K)` at the midpoint, down to single leaves; the gradient of a
//! node is *left child + right child*, in f32. The owner of leaves `[a, b)` sends the sums of the maximal nodes inside
//! that range ([`LeafTree::cover`]); a receiver of two siblings joins them ([`PartialSums`]).
//!
//! * The bits of the root's sum depend on K alone, not on which agent summed or in which order sums arrived.

use std::ops::{Range, RangeInclusive};

use serde::{Deserialize, Serialize};

/// Maximum leaves that a device computes together, see [`crate::schedule`].
pub const MAX_BLOCK_LEAVES: usize = 64;

/// A node of the leaf tree: the half-open range `[start, end)` of leaf indices below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Node {
    /// First leaf below the node.
    pub start: u32,
    /// One past the last leaf below the node.
    pub end: u32,
}

impl Node {
    /// Returns the node over `[start, end)`.
    pub const fn new(start: u32, end: u32) -> Self {
        Self { start, end }
    }

    /// Returns the number of leaves below the node.
    pub const fn leaves(self) -> u32 {
        self.end - self.start
    }

    /// Returns the two halves, or `None` for a single leaf.
    pub const fn children(self) -> Option<(Node, Node)> {
        if self.end - self.start < 2 {
            return None;
        }
        let middle = self.start + (self.end - self.start) / 2;
        Some((Node::new(self.start, middle), Node::new(middle, self.end)))
    }

    /// Returns the number of nodes below this one, itself included, that have several leaves and end with `leaf`: the
    /// joins that follow when the leaves are summed from left to right.
    pub const fn joins_after(self, leaf: u32) -> u32 {
        let (mut node, mut joins) = (self, 0);
        while let Some((left, right)) = node.children() {
            joins += (leaf + 1 == node.end) as u32;
            node = if leaf < left.end { left } else { right };
        }
        joins
    }

    /// Returns the leaf indices below the node.
    pub const fn range(self) -> Range<u32> {
        self.start..self.end
    }
}

impl std::fmt::Display for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{},{})", self.start, self.end)
    }
}

/// The sibling and the parent of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// The node it is joined with.
    pub sibling: Node,
    /// The result of joining the two.
    pub parent: Node,
}

/// The binary tree over `K >= 1` leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafTree {
    leaves: u32,
}

impl LeafTree {
    /// Creates the tree over `leaves` leaves; with zero leaves it has no nodes.
    pub const fn new(leaves: u32) -> Self {
        Self { leaves }
    }

    /// Returns the number of leaves (K).
    pub const fn leaves(self) -> u32 {
        self.leaves
    }

    /// Returns the node over all leaves.
    pub const fn root(self) -> Node {
        Node::new(0, self.leaves)
    }

    /// Returns the sibling and parent of `node`; `None` for the root and for ranges that are not nodes of this tree.
    pub fn join_of(self, node: Node) -> Option<Join> {
        let mut parent = self.root();
        while let Some((left, right)) = parent.children() {
            if node == left {
                return Some(Join { sibling: right, parent });
            }
            if node == right {
                return Some(Join { sibling: left, parent });
            }
            parent = if node.end <= left.end { left } else { right };
        }
        None
    }

    /// Returns whether `node` is a node of this tree.
    pub fn contains(self, node: Node) -> bool {
        node.start < node.end && (node == self.root() || self.join_of(node).is_some())
    }

    /// Returns the one of `positions` at which the largest subtrees end: the shallowest midpoint among them, or the
    /// first position if none is a midpoint, as at the ends of the tree.
    pub fn boundary(self, positions: RangeInclusive<u32>) -> u32 {
        let mut node = self.root();
        while let Some((left, right)) = node.children() {
            if positions.contains(&left.end) {
                return left.end;
            }
            node = if *positions.end() < left.end { left } else { right };
        }
        *positions.start()
    }

    /// Returns the maximal nodes inside `[range.start, range.end)`, left to right: the sums that the owner of these
    /// leaves sends. At most `2 log2 K` nodes; none for an empty range.
    pub fn cover(self, range: Range<u32>) -> Vec<Node> {
        let mut nodes = Vec::new();
        if range.start < range.end && range.end <= self.leaves {
            cover_into(self.root(), &range, &mut nodes);
        }
        nodes
    }

    /// Returns nodes of at most `leaves` leaves that together have the leaves `range`, left to right, each as large as
    /// possible.
    pub fn blocks(self, range: Range<u32>, leaves: u32) -> impl Iterator<Item = Node> {
        let mut next = range.start;
        std::iter::from_fn(move || {
            let mut node = (next < range.end && range.end <= self.leaves).then(|| self.root())?;
            while let Some((left, right)) = node.children()
                && (node.start < next || node.end > range.end || node.leaves() > leaves)
            {
                node = if next < left.end { left } else { right };
            }
            next = node.end;
            Some(node)
        })
    }
}

fn cover_into(node: Node, range: &Range<u32>, nodes: &mut Vec<Node>) {
    if node.end <= range.start || range.end <= node.start {
        return;
    }
    if range.start <= node.start && node.end <= range.end {
        nodes.push(node);
    } else if let Some((left, right)) = node.children() {
        cover_into(left, range, nodes);
        cover_into(right, range, nodes);
    }
}

/// Reason why a partial sum is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartialSumError {
    /// The range is not a node of the tree.
    #[error("{0} is not a node of the tree over {1} leaves")]
    NotANode(Node, u32),
    /// The leaves of this node were counted already.
    #[error("leaves {0} have already been summed")]
    Repeated(Node),
}

/// Partial sums of one gradient. Siblings are joined as soon as both are present.
///
/// `T` holds a sum (a buffer). The set contains the maximal nodes so far, at most `log2 K + 1` if they arrive left to
/// right.
#[derive(Clone, Debug)]
pub struct PartialSums<T> {
    tree: LeafTree,
    open_sums: Vec<(Node, T)>,
}

impl<T> PartialSums<T> {
    /// Creates an empty set of sums.
    pub const fn new(tree: LeafTree) -> Self {
        Self { tree, open_sums: Vec::new() }
    }

    /// Adds the sum of `node` and joins siblings with `join(left, right) -> parent` while there are any.
    ///
    /// # Errors
    /// `node` is not in the tree, or one of its leaves was counted before (a repeated sum is never added twice).
    pub fn insert(&mut self, node: Node, value: T, mut join: impl FnMut(T, T) -> T) -> Result<(), PartialSumError> {
        if !self.tree.contains(node) {
            return Err(PartialSumError::NotANode(node, self.tree.leaves()));
        }
        if self.open_sums.iter().any(|(sum_node, _)| sum_node.start < node.end && node.start < sum_node.end) {
            return Err(PartialSumError::Repeated(node));
        }
        let (mut node, mut value) = (node, value);
        while let Some(Join { sibling, parent }) = self.tree.join_of(node) {
            let Some(index) = self.open_sums.iter().position(|(sum_node, _)| *sum_node == sibling) else { break };
            let (_, other) = self.open_sums.swap_remove(index);
            value = if sibling.start < node.start { join(other, value) } else { join(value, other) };
            node = parent;
        }
        self.open_sums.push((node, value));
        Ok(())
    }

    /// Returns the number of open partial sums.
    pub fn len(&self) -> usize {
        self.open_sums.len()
    }

    /// Returns whether there are no partial sums.
    pub fn is_empty(&self) -> bool {
        self.open_sums.is_empty()
    }

    /// Returns whether the open nodes are exactly the cover of `range`: no more can be joined inside it.
    pub fn covers(&self, range: Range<u32>) -> bool {
        let cover = self.tree.cover(range);
        cover.len() == self.open_sums.len()
            && cover.iter().all(|node| self.open_sums.iter().any(|(sum_node, _)| sum_node == node))
    }

    /// Removes and returns all sums, left to right.
    pub fn take(&mut self) -> Vec<(Node, T)> {
        let mut sums = std::mem::take(&mut self.open_sums);
        sums.sort_by_key(|(node, _)| *node);
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cover_of_any_split_joins_to_the_root_in_tree_order() {
        for leaves in 1..=13u32 {
            let tree = LeafTree::new(leaves);
            let direct = bracket(tree.root());
            for split in 0..=leaves {
                // The right part first: arrival order must not affect the result.
                let pieces = tree.cover(split..leaves).into_iter().chain(tree.cover(0..split));
                let mut partials = PartialSums::new(tree);
                for node in pieces {
                    partials.insert(node, bracket(node), |l, r| format!("({l}+{r})")).unwrap();
                }
                assert_eq!(partials.take(), vec![(tree.root(), direct.clone())], "K={leaves} cut={split}");
            }
        }
    }

    #[test]
    fn blocks_are_the_largest_nodes_within_the_bound() {
        let blocks = |leaves, range, bound| {
            LeafTree::new(leaves).blocks(range, bound).map(|node| (node.start, node.end)).collect::<Vec<_>>()
        };
        assert_eq!(blocks(8, 0..8, 4), [(0, 4), (4, 8)]);
        assert_eq!(blocks(8, 1..8, 3), [(1, 2), (2, 4), (4, 6), (6, 8)]);
        assert_eq!(blocks(6, 0..6, 64), [(0, 6)]);
        assert_eq!(blocks(6, 0..6, 1).len(), 6);
        assert!(blocks(6, 3..3, 4).is_empty());
        for (start, end) in (0..=13).flat_map(|start| (start..=13).map(move |end| (start, end))) {
            let tree = LeafTree::new(13);
            assert_eq!(tree.blocks(start..end, 13).collect::<Vec<_>>(), tree.cover(start..end));
        }
    }

    #[test]
    fn joins_follow_the_last_leaf_of_a_node() {
        for leaves in 1..=MAX_BLOCK_LEAVES as u32 {
            let root = Node::new(3, 3 + leaves);
            let mut open: Vec<String> = Vec::new();
            for leaf in root.range() {
                open.push(leaf.to_string());
                for _ in 0..root.joins_after(leaf) {
                    let (right, left) = (open.pop().unwrap(), open.pop().unwrap());
                    open.push(format!("({left}+{right})"));
                }
                assert!(open.len() <= MAX_BLOCK_LEAVES.ilog2() as usize + 1);
            }
            assert_eq!(open, [bracket(root)]);
        }
    }

    fn bracket(node: Node) -> String {
        match node.children() {
            None => node.start.to_string(),
            Some((l, r)) => format!("({}+{})", bracket(l), bracket(r)),
        }
    }

    #[test]
    fn leaf_is_counted_once_and_foreign_nodes_are_rejected() {
        let mut partials = PartialSums::new(LeafTree::new(6));
        partials.insert(Node::new(0, 3), 1.0f32, |l, r| l + r).unwrap();
        let repeated = partials.insert(Node::new(1, 3), 1.0, |l, r| l + r);
        assert_eq!(repeated, Err(PartialSumError::Repeated(Node::new(1, 3))));
        let foreign = partials.insert(Node::new(3, 5), 1.0, |l, r| l + r);
        assert_eq!(foreign, Err(PartialSumError::NotANode(Node::new(3, 5), 6)));
        assert_eq!(partials.len(), 1);
    }
}
