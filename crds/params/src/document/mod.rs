//! The params document as the user writes it: the classic layout of the public model zoo. A document in the `trainer`
//! layout is converted before it is read.
//!
//! Every key is an `Option`, exactly as given. [`Params::resolve`](crate::Params::resolve) fills in defaults, settles
//! unions and checks keys against each other. Keys that only tune the real machine are part of the types, so that a
//! document can be stored and shown unchanged; [`Params::ignored_keys`] lists them.

mod image;
mod input;
mod kinds;
mod model;
mod momentum;
mod optimizer;
mod pretrained;
mod run;
mod schedule;
mod sparsity;
mod unions;

pub use image::{ImageSize, ImageTransformParams};
pub use input::{InputParams, MixtureParams, SampleTransformParams};
pub use model::{AttentionParams, ModelParams, RotaryScalingParams};
pub use momentum::MomentumScheduleParams;
pub use optimizer::{LearningRateScaleParams, OptimizerGroupParams, OptimizerParams};
pub use run::RunParams;
pub use schedule::{NestedSchedules, ScheduleParams};
pub use sparsity::{DropFractionParams, DropFractionSetting, MaskUpdateParams, SparsityParams};
pub use unions::{
    EpsSetting, InitializerParams, InitializerSetting, LearningRateSetting, MicroBatchRange, MicroBatchSetting,
    OneOrMany,
};

use crate::PhasedParams;
use crate::error::{ParamsError, ParamsProblem, ParamsProblemKind};
use crate::keys::SectionReference;
use crate::keys::facts::{otherwise, required, required_if};
use crate::trainer::{self, ClassicDocument, WrittenNames};
use crate::yaml::{KeyStyle, LineNumbers, ParamsSection, YamlNode, parse, read_tree, section};

section! {
    /// The params: the document that describes a job.
    pub struct Params {
        /// Data that the model is trained on: the source of samples, and the number of samples in a batch.
        train_input: InputParams = required(),
        /// Data that the model is evaluated on. Some of its keys default to the values in `train_input`.
        eval_input: InputParams = required_if("the mode evaluates"),
        /// Model: its family, sizes, parts, initial values and precision.
        model: ModelParams = required(),
        /// Optimizer, its learning rate, and the clipping of gradients.
        optimizer: OptimizerParams = required(),
        /// Length, intervals, directories and systems of the run.
        runconfig: RunParams = otherwise("the default of each key"),
        /// Weights that stay zero.
        sparsity: SparsityParams = otherwise("no such weights"),
    }
    ignored {
        /// Description of the params.
        description: String,
        /// Settings of the real machine in an older release.
        csconfig: serde_json::Value,
        /// Data for predictions; a training job makes none.
        predict_input: serde_json::Value,
    }
    unsupported {
        "inference_input" => "leave the section out; a training job does no inference",
    }
    internal {
        /// Lines and names of the keys in the document that was read.
        origin: DocumentOrigin,
    }
}

/// Where the keys of a document came from.
#[derive(Debug, Clone, Default)]
pub(crate) struct DocumentOrigin {
    /// Lines of the keys, if the document came from YAML.
    pub lines: LineNumbers,
    /// Names of the keys, if the document had the `trainer` layout.
    pub names: WrittenNames,
    /// Keys without effect that the classic layout does not have.
    ignored: Vec<String>,
}

impl PartialEq for DocumentOrigin {
    /// Always true: the origin of keys is not part of a document's meaning.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Params {
    /// Returns whether the training input states the length of its samples.
    pub fn states_sample_length(&self) -> bool {
        self.train_input.as_ref().is_none_or(|input| input.max_sequence_length.is_some())
    }

    /// Returns the params with this length of the samples of the training input, which evaluations have by default.
    #[must_use]
    pub fn with_sample_length(&self, length: usize) -> Self {
        let mut params = self.clone();
        if let Some(input) = &mut params.train_input {
            input.max_sequence_length = Some(length as u64);
        }
        params
    }

    /// Reads a params document of one phase strictly; [`PhasedParams`] reads those of several.
    ///
    /// # Errors
    /// Text that is not YAML, unknown and duplicate keys, keys that are not supported yet, and values of the wrong
    /// type, each with its line. All of them are collected. [`Params::resolve`] checks whether the values are
    /// consistent.
    pub fn parse_yaml(text: &str) -> Result<Self, ParamsError> {
        Self::read_only_phase(&parse(text)?)
    }

    /// Reads a params document of one phase from JSON, as strictly and with the same messages.
    ///
    /// # Errors
    /// As [`Params::parse_yaml`], without lines.
    pub fn read_json(json: &serde_json::Value) -> Result<Self, ParamsError> {
        Self::read_only_phase(&YamlNode::from(json))
    }

    fn read_only_phase(root: &YamlNode) -> Result<Self, ParamsError> {
        let PhasedParams { first, later } = Self::read_phases(root)?;
        let Some(second) = later.first() else { return Ok(first) };
        Err(ParamsProblem {
            kind: ParamsProblemKind::Invalid,
            line: second.origin.lines.of("runconfig"),
            key: trainer::TRAINER.to_owned(),
            message: format!("trainer has {} phases, and only one can be read here", later.len() + 1),
            hint: Some("write the phase to a file of its own".to_owned()),
        }
        .into())
    }

    /// Reads a document whose model may continue that of another file, which `load` returns.
    pub(crate) fn parse_phases(
        text: &str,
        load: impl FnOnce(&str) -> std::io::Result<String>,
    ) -> Result<PhasedParams, ParamsError> {
        let mut root = parse(text)?;
        pretrained::inherit_model(&mut root, load)?;
        Self::read_phases(&root)
    }

    /// Reads the first and all later phases of a document. The problems of all phases are collected.
    pub(crate) fn read_phases(root: &YamlNode) -> Result<PhasedParams, ParamsError> {
        let Some(documents) = trainer::convert(root)? else {
            return Self::read_classic(root.clone(), WrittenNames::default(), Vec::new()).map(PhasedParams::from);
        };
        let (mut phases, mut problems) = (Vec::with_capacity(documents.len()), Vec::new());
        for ClassicDocument { root, names, ignored } in documents {
            match Self::read_classic(root, names, ignored) {
                Ok(phase) => phases.push(phase),
                Err(error) => problems.extend(error.problems().cloned()),
            }
        }
        ParamsError::check(problems)?;
        let mut phases = phases.into_iter();
        // A converted document has a phase.
        Ok(PhasedParams { first: phases.next().unwrap_or_default(), later: phases.collect() })
    }

    fn read_classic(mut root: YamlNode, names: WrittenNames, ignored: Vec<String>) -> Result<Self, ParamsError> {
        rename_keys(&mut root);
        let (mut params, lines): (Self, LineNumbers) = read_tree(&root, KEY_STYLE).map_err(|error: ParamsError| {
            let error = kinds::unsupported_kinds(&root).unwrap_or(error);
            error.map_problems(|problem| names.rename(problem))
        })?;
        params.origin = DocumentOrigin { lines, names, ignored };
        Ok(params)
    }

    /// Returns the keys that were given but have no effect here because they only tune the real machine, such as
    /// `train_input.num_workers`.
    pub fn ignored_keys(&self) -> Vec<String> {
        fn given<T: ParamsSection>(section: &Option<T>) -> Option<&dyn ParamsSection> {
            section.as_ref().map(|section| section as &dyn ParamsSection)
        }
        let mut keys = Vec::new();
        for (name, section) in [
            ("train_input", given(&self.train_input)),
            ("eval_input", given(&self.eval_input)),
            ("model", given(&self.model)),
            ("optimizer", given(&self.optimizer)),
            ("runconfig", given(&self.runconfig)),
            ("sparsity", given(&self.sparsity)),
        ] {
            if let Some(section) = section {
                section.ignored_keys(name, &mut keys);
            }
        }
        if self.csconfig.is_some() {
            keys.push("csconfig".to_owned());
        }
        keys.extend(self.predict_input.is_some().then(|| "predict_input".to_owned()));
        let names = &self.origin.names;
        keys.iter().map(|key| names.written(key)).chain(self.origin.ignored.iter().cloned()).collect()
    }
}

/// Spellings that a section can't have as keys, because they are the same in the camel case of custom resources: the
/// section, the spelling, and the key.
const SPELLINGS: [(&str, &str, &str); 2] = [("optimizer", "beta_1", "beta1"), ("optimizer", "beta_2", "beta2")];

/// Gives keys with another spelling their names.
fn rename_keys(root: &mut YamlNode) {
    for (section, spelling, key) in SPELLINGS {
        let entries = pretrained::section_mut(root, section).into_iter().flatten();
        entries.filter(|entry| entry.key == spelling).for_each(|entry| key.clone_into(&mut entry.key));
    }
}

const KEY_STYLE: KeyStyle = KeyStyle { camel_case: false, sections_with_key };

/// Returns the sections of the document with their names. `train_input` and `eval_input` have the same keys.
pub fn sections() -> impl Iterator<Item = (&'static str, &'static SectionReference)> {
    Params::REFERENCE.keys.iter().filter_map(|key| Some((key.name, key.section?)))
}

/// Returns the sections that have `key`, for a key in the wrong section.
fn sections_with_key(key: &str) -> Vec<&'static str> {
    let inputs_once = sections().filter(|(name, _)| *name != "eval_input");
    inputs_once.filter(|(_, section)| section.key(key).is_some()).map(|(name, _)| name).collect()
}
