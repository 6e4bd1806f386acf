//! A strict YAML reader: text to a tree with lines ([`tree`]), the tree to typed sections ([`read`]).
//!
//! Invariants: nothing is dropped in silence (every key is read, refused, or listed as without effect); every mistake
//! carries its line; all mistakes of a document are found in one reading; `True`/`on` are booleans and `1e-8` is a
//! number, as the users of the public model zoo write them.

mod nearest;
mod read;
mod scalar;
mod section;
mod tree;

pub(crate) use nearest::nearest;
pub(crate) use read::{Dialect, FromNode, Lines, Reader, read_document, read_tree};
pub(crate) use section::{Section, section};
pub(crate) use tree::{Node, Value, parse};
