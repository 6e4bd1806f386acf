//! Fuzz targets. Each accepts arbitrary bytes and must neither panic nor take unbounded time or memory.
//!
//! * `tests/corpus.rs` runs every target over the committed corpus and over mutations of it, with the stable toolchain
//!   and without further tools.
//! * `libfuzzer/` runs the same targets with cargo-fuzz.
//! * If possible, a target also checks a round trip: what was read and is written again must read as an equal value.

#![forbid(unsafe_code)]

mod bucket;
mod cluster;
mod disk;
mod graph;
mod hugging_face;
mod lines;
mod names;
mod rest;
mod shared_memory;
mod wire;

pub mod mutate;

/// A target: its name, which is also its directory in `corpus/`, and the function that is run with an input.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: [Target; 34] = [
    ("params", cluster::params),
    ("trainjob", cluster::trainjob),
    ("record", cluster::record),
    ("names", names::names),
    ("paths", names::paths),
    ("graph", graph::document),
    ("launch", wire::launch),
    ("role_command", wire::role_command),
    ("frame", wire::frame),
    ("packets", wire::packets),
    ("location", shared_memory::location),
    ("copy", wire::copy),
    ("control", wire::control),
    ("entry", wire::entry),
    ("journal", disk::journal),
    ("manifest", disk::manifest),
    ("safetensors", hugging_face::safetensors),
    ("hf_config", hugging_face::hf_config),
    ("hf_import", hugging_face::hf_import),
    ("python_package", disk::python_package),
    ("loader_message", wire::loader_message),
    ("tokens", disk::tokens),
    ("hdf5", disk::hdf5),
    ("csv", disk::csv),
    ("tfrecord", disk::tfrecord),
    ("images", disk::images),
    ("json_lines", disk::json_lines),
    ("parquet", disk::parquet),
    ("compressed", disk::compressed),
    ("tokenizer", disk::tokenizer),
    ("lines", lines::lines),
    ("bucket", bucket::bucket),
    ("upload", rest::upload),
    ("body", rest::body),
];

/// Returns the target with this name; `None` if there is none.
pub fn target(name: &str) -> Option<fn(&[u8])> {
    TARGETS.into_iter().find(|(known, _)| *known == name).map(|(_, run)| run)
}
