//! Families of models: from a specification in the params to a graph of operators.

mod gpt;

pub use gpt::gpt;
