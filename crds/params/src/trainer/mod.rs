//! Converts the `trainer` layout of the public model zoo (releases 2.3 and later) to the classic layout.
//!
//! ```text
//! trainer:                                          train_input, eval_input: …
//!   init:                                           model: …
//!     model: …                                      optimizer:
//!     optimizer: {AdamW: {eps: 1e-8}}        ──►      optimizer_type: AdamW
//!     loop: {max_steps: 100}                          eps: 1e-8
//!   fit: {train_dataloader: …, val_dataloader: …}   runconfig: {max_steps: 100}
//! ```
//!
//! * The conversion works on the tree, before values are read: the same reader checks both layouts.
//! * Each value keeps its line, and [`WrittenNames`] has its name in the user's document for messages.
//! * Keys without effect are listed, all other keys are converted or rejected.

mod convert;
mod keys;
mod named;
mod names;

pub(crate) use keys::{TRAINER_KEYS, TrainerKey};
pub(crate) use names::WrittenNames;

use crate::error::{ParamsError, ParamsProblem, ParamsProblemKind};
use crate::yaml::{MapEntry, YamlNode, YamlValue};

/// The key that distinguishes the layout.
pub(crate) const TRAINER: &str = "trainer";

/// A document in the classic layout.
#[derive(Default)]
pub(crate) struct ClassicDocument {
    pub root: Option<YamlNode>,
    pub names: WrittenNames,
    /// Keys of the user's document that have no effect and no place in the classic layout.
    pub ignored: Vec<String>,
}

/// Converts a document that has the `trainer` layout; returns one without a root for any other document.
///
/// # Errors
/// Keys that the layout does not have, callbacks that change the training, and several phases.
pub(crate) fn convert(root: &YamlNode) -> Result<ClassicDocument, ParamsError> {
    let YamlValue::Map(entries) = &root.value else { return Ok(ClassicDocument::default()) };
    let Some(trainer) = entries.iter().find(|entry| entry.key == TRAINER) else {
        return Ok(ClassicDocument::default());
    };
    let mut problems = Vec::new();
    for other in entries.iter().filter(|entry| !std::ptr::eq(*entry, trainer)) {
        let message = match other.key == TRAINER {
            true => "trainer is given twice".to_owned(),
            false => format!("{} has no place beside trainer", other.key),
        };
        problems.push(problem(
            ParamsProblemKind::UnknownKey,
            other.line,
            &other.key,
            message,
            "write it below trainer",
        ));
    }
    let (path, phase) = match only_phase(trainer) {
        Ok(phase) => phase,
        Err(problem) => {
            problems.push(problem);
            ParamsError::check(problems)?;
            return Ok(ClassicDocument::default());
        }
    };
    let mut converter = convert::Converter::new(path, problems);
    converter.phase(phase);
    converter.finish(root.line)
}

/// Returns the only phase of the trainer with its path. A list may have one item, with or without a key `trainer`.
fn only_phase(trainer: &MapEntry) -> Result<(String, &YamlNode), ParamsProblem> {
    let YamlValue::List(phases) = &trainer.value.value else { return Ok((TRAINER.to_owned(), &trainer.value)) };
    let (phase, others) = match phases.as_slice() {
        [phase, others @ ..] => (phase, others),
        [] => {
            let (message, hint) = ("trainer is an empty list".to_owned(), "give init and fit");
            return Err(problem(ParamsProblemKind::Invalid, trainer.line, TRAINER, message, hint));
        }
    };
    if let Some(second) = others.first() {
        let message = format!("trainer has {} phases, and running several is not supported yet", phases.len());
        let hint = "write each phase to a file of its own, and start it from the checkpoint of the phase before by \
                    fit.ckpt_path";
        return Err(problem(ParamsProblemKind::NotSupported, second.line, TRAINER, message, hint));
    }
    let path = format!("{TRAINER}.0");
    match &phase.value {
        YamlValue::Map(entries) => match entries.as_slice() {
            [only] if only.key == TRAINER => Ok((format!("{path}.{TRAINER}"), &only.value)),
            _ => Ok((path, phase)),
        },
        _ => Ok((path, phase)),
    }
}

fn problem(kind: ParamsProblemKind, line: usize, key: &str, message: String, hint: &str) -> ParamsProblem {
    ParamsProblem { kind, line: (line > 0).then_some(line), key: key.to_owned(), message, hint: Some(hint.to_owned()) }
}
