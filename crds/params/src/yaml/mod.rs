//! A strict YAML reader: text to a tree with lines ([`tree`]), the tree to typed sections ([`read`]).
//!
//! * Nothing is dropped silently: every key is read, rejected, or listed as without effect.
//! * Every mistake has its line, and one reading finds all mistakes of a document.
//! * `True`/`on` are booleans and `1e-8` is a number, as users of the public model zoo write them.

mod nearest;
mod read;
mod scalar;
mod section;
mod tree;

pub(crate) use nearest::nearest;
pub(crate) use read::{Dialect, FromNode, Lines, Reader, read_document, read_tree};
pub(crate) use section::{Section, section};
pub(crate) use tree::{Node, Value, parse};
