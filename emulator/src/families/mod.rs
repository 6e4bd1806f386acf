//! Model families: build the graph of a model from its specification in the params.

mod gpt;

pub use gpt::gpt;
