//! The params document as the user writes it: the classic layout of the public model zoo.
//!
//! Every key is an `Option` here, exactly as given; [`Params::resolve`](crate::Params::resolve) fills in defaults,
//! settles unions and checks one key against another. Keys that only tune the real machine are part of the types, so
//! that a document can be kept and shown as it is, and are named by [`Params::without_effect`].

mod input;
mod model;
mod optimizer;
mod run;
mod unions;

pub use input::InputParams;
pub use model::ModelParams;
pub use optimizer::{OptimizerParams, ScheduleParams};
pub use run::RunParams;
pub use unions::{InitializerChoice, InitializerParams, LearningRate, MicroBatchChoice, MicroBatchRange, OneOrMany};

use crate::error::ParamsError;
use crate::yaml::{Dialect, Lines, Node, Section, read_document, read_tree, section};

section! {
    /// The user's params document.
    pub struct Params {
        /// What the model is trained on: where samples come from, and how many make a batch.
        train_input: InputParams,
        /// What the model is evaluated on; what it does not say is that of `train_input`.
        eval_input: InputParams,
        /// The model: a decoder of the GPT-2 or GPT-3 family, its sizes, its initial values and its precision.
        model: ModelParams,
        /// How gradients change the weights: the optimizer, its learning rate and the clipping of gradients.
        optimizer: OptimizerParams,
        /// How long, how often, where, and on how many systems.
        runconfig: RunParams,
    }
    without_effect {}
    not_yet {
        "sparsity" => "leave the section out to train dense weights",
        "trainer" => "write the classic layout: train_input, eval_input, model, optimizer and runconfig at the top",
        "inference_input" => "leave the section out; inference is no part of a training job",
    }
    beside {
        /// Where the keys stood, when the document came from YAML.
        lines: Lines,
    }
}

impl Params {
    /// Reads a params document strictly.
    ///
    /// # Errors
    /// Text that is not YAML, unknown and duplicate keys, keys that are not supported yet, and values of the wrong
    /// type, each with its line; all of them are collected. Whether the values make sense together is for
    /// [`Params::resolve`] to say.
    pub fn parse_yaml(text: &str) -> Result<Self, ParamsError> {
        let (mut params, lines): (Self, Lines) = read_document(text, DIALECT)?;
        params.lines = lines;
        Ok(params)
    }

    /// Reads a params document that came as JSON, as strictly and in the same words.
    ///
    /// # Errors
    /// As [`Params::parse_yaml`], without lines.
    pub fn read_json(json: &serde_json::Value) -> Result<Self, ParamsError> {
        Ok(read_tree(&Node::from(json), DIALECT)?.0)
    }

    /// The keys given that have no effect here because they only tune the real machine, as `train_input.num_workers`.
    pub fn without_effect(&self) -> Vec<String> {
        fn given<T: Section>(section: &Option<T>) -> Option<&dyn Section> {
            section.as_ref().map(|section| section as &dyn Section)
        }
        let mut keys = Vec::new();
        for (name, section) in [
            ("train_input", given(&self.train_input)),
            ("eval_input", given(&self.eval_input)),
            ("model", given(&self.model)),
            ("optimizer", given(&self.optimizer)),
            ("runconfig", given(&self.runconfig)),
        ] {
            if let Some(section) = section {
                section.keys_without_effect(name, &mut keys);
            }
        }
        keys
    }
}

const DIALECT: Dialect = Dialect { camel_case: false, homes };

/// The sections that know `key`, for a key that stands in another one.
fn homes(key: &str) -> Vec<&'static str> {
    let sections = [
        ("train_input", InputParams::KEYS),
        ("model", ModelParams::KEYS),
        ("optimizer", OptimizerParams::KEYS),
        ("runconfig", RunParams::KEYS),
    ];
    let knows = |(_, keys): &(&str, &[&str])| keys.contains(&key);
    sections.into_iter().filter(knows).map(|(name, _)| name).collect()
}
