//! A strict YAML reader: text to a tree with lines ([`tree`]), the tree to typed sections ([`read`]).
//!
//! * Nothing is dropped silently: every key is read, rejected, or listed as ignored.
//! * Every mistake has its line, and one reading finds all mistakes of a document.
//! * `True`/`on` are booleans and `1e-8` is a number, as users of the public model zoo write them.

#[cfg(feature = "schema")]
mod key_schema;
mod read;
mod scalar;
mod section;
mod suggest;
mod tree;

#[cfg(feature = "schema")]
pub(crate) use key_schema::describe_keys;
#[cfg(feature = "schema")]
pub(crate) use read::camel_case;
pub(crate) use read::{FromNode, KeyStyle, LineNumbers, TreeReader, list_of, read_tree};
pub(crate) use section::{ParamsSection, section};
pub(crate) use suggest::closest_match;
pub(crate) use tree::{MapEntry, YamlNode, YamlValue, parse};
