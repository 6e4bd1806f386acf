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
/// Maximum number of phases of a document. A job stores and plans all of them.
pub(crate) const MAX_PHASES: usize = 16;

/// A phase, converted to the classic layout.
pub(crate) struct ClassicDocument {
    pub root: YamlNode,
    pub names: WrittenNames,
    /// Keys of the user's document that have no effect and no place in the classic layout.
    pub ignored: Vec<String>,
}

/// Converts every phase of a document that has the `trainer` layout; returns `None` for any other document.
///
/// # Errors
/// Keys that the layout does not have, callbacks that change the training, and no phase or too many. The problems of
/// all phases are collected.
pub(crate) fn convert(root: &YamlNode) -> Result<Option<Vec<ClassicDocument>>, ParamsError> {
    let YamlValue::Map(entries) = &root.value else { return Ok(None) };
    let Some(trainer) = entries.iter().find(|entry| entry.key == TRAINER) else { return Ok(None) };
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
    let phases = phases(trainer).unwrap_or_else(|problem| {
        problems.push(problem);
        Vec::new()
    });
    let mut documents = Vec::with_capacity(phases.len());
    for (path, phase) in phases {
        let mut converter = convert::Converter::new(path);
        converter.phase(phase);
        documents.push(converter.finish(root.line, &mut problems));
    }
    ParamsError::check(problems)?;
    Ok(Some(documents))
}

/// Returns the phases of the trainer with their paths. Each item of a list is a phase, with or without a key `trainer`.
fn phases(trainer: &MapEntry) -> Result<Vec<(String, &YamlNode)>, ParamsProblem> {
    let YamlValue::List(phases) = &trainer.value.value else {
        return Ok(vec![(TRAINER.to_owned(), &trainer.value)]);
    };
    let invalid = |message: &str, hint: &str| {
        Err(problem(ParamsProblemKind::Invalid, trainer.line, TRAINER, message.to_owned(), hint))
    };
    match phases.len() {
        0 => return invalid("trainer is an empty list", "give init and fit"),
        1..=MAX_PHASES => {}
        count => {
            return invalid(&format!("trainer has {count} phases"), &format!("give at most {MAX_PHASES} phases"));
        }
    }
    let phase = |(index, phase)| {
        let (path, phase): (String, &YamlNode) = (format!("{TRAINER}.{index}"), phase);
        match &phase.value {
            YamlValue::Map(entries) => match entries.as_slice() {
                [only] if only.key == TRAINER => (format!("{path}.{TRAINER}"), &only.value),
                _ => (path, phase),
            },
            _ => (path, phase),
        }
    };
    Ok(phases.iter().enumerate().map(phase).collect())
}

/// Returns a problem on `line`, which is 0 in a document that has no lines.
pub(crate) fn problem(kind: ParamsProblemKind, line: usize, key: &str, message: String, hint: &str) -> ParamsProblem {
    ParamsProblem { kind, line: (line > 0).then_some(line), key: key.to_owned(), message, hint: Some(hint.to_owned()) }
}
