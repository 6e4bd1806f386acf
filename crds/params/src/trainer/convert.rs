//! Walks through a phase by the table of keys, and collects the sections of the classic layout.

use std::collections::BTreeMap;

use super::keys::{MACHINE_FLAG_PREFIX, TRAINER_KEYS, TrainerKey};
use super::{ClassicDocument, WrittenNames, problem};
use crate::error::{ParamsProblem, ParamsProblemKind};
use crate::yaml::{MapEntry, YamlNode, YamlValue, closest_match};

/// The sections that have been converted so far, and what was found on the way.
pub(super) struct Converter {
    path: String,
    /// Entries of each section of the classic layout, with the line of the section.
    sections: BTreeMap<&'static str, (usize, Vec<MapEntry>)>,
    pub names: WrittenNames,
    pub ignored: Vec<String>,
    /// The evaluation data, without keys that callbacks set.
    eval_data: Option<YamlNode>,
    problems: Vec<ParamsProblem>,
}

impl Converter {
    pub(super) fn new(path: String) -> Self {
        Self {
            names: WrittenNames::of_phase(path.clone()),
            path,
            sections: BTreeMap::new(),
            ignored: Vec::new(),
            eval_data: None,
            problems: Vec::new(),
        }
    }

    /// Converts the sections `init`, `fit`, `validate` and `validate_all`.
    pub(super) fn phase(&mut self, phase: &YamlNode) {
        self.group("", phase);
        self.complete_evaluation();
    }

    /// Converts a mapping whose keys are those of the table below `prefix`.
    fn group(&mut self, prefix: &str, node: &YamlNode) {
        if node.is_null() {
            return;
        }
        let YamlValue::Map(entries) = &node.value else {
            let path = self.written(prefix);
            let message = format!("{path} must be a mapping of keys to values, not {}", node.describe());
            self.report(ParamsProblemKind::WrongType, node.line, &path, message, "give its keys and values");
            return;
        };
        let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
        for entry in entries {
            let key = if prefix.is_empty() { entry.key.clone() } else { format!("{prefix}.{}", entry.key) };
            if let Some(first) = lines.insert(&entry.key, entry.line) {
                let path = self.written(&key);
                let message = format!("{path} is given twice, first on line {first}");
                self.report(ParamsProblemKind::DuplicateKey, entry.line, &path, message, "keep one of the two");
                continue;
            }
            let below = format!("{key}.");
            match TRAINER_KEYS.iter().find(|(path, _)| *path == key) {
                Some((_, target)) => self.entry(&key, *target, entry),
                None if TRAINER_KEYS.iter().any(|(path, _)| path.starts_with(&below)) => {
                    self.group(&key, &entry.value);
                }
                None if entry.key.starts_with(MACHINE_FLAG_PREFIX) => self.ignored.push(self.written(&key)),
                None => self.unknown(prefix, &key, entry),
            }
        }
    }

    fn entry(&mut self, key: &str, target: TrainerKey, entry: &MapEntry) {
        if entry.value.is_null() && !matches!(target, TrainerKey::Section(_)) {
            return;
        }
        let path = self.written(key);
        match target {
            TrainerKey::Same(classic) => self.set(classic, entry.line, entry.value.clone(), path),
            TrainerKey::Section(section) => self.section(section, entry),
            TrainerKey::NoEffect(_) => self.ignored.push(path),
            TrainerKey::Unsupported(remedy) => {
                let message = format!("{path} is not supported yet");
                self.report(ParamsProblemKind::NotSupported, entry.line, &path, message, remedy);
            }
            TrainerKey::Optimizer => self.optimizer(&path, entry),
            TrainerKey::Schedulers => self.schedulers(&path, entry),
            TrainerKey::Callbacks => self.callbacks(&path, &entry.value),
            TrainerKey::ValidationData => self.validation_data(&path, entry),
            TrainerKey::AllValidationData => self.all_validation_data(path, entry),
        }
    }

    /// Adds a key to its section.
    pub(super) fn set(&mut self, classic: &'static str, line: usize, value: YamlNode, written: String) {
        let Some((section, key)) = classic.split_once('.') else { return };
        self.names.insert(classic.to_owned(), written);
        self.entries(section, line).push(MapEntry { key: key.to_owned(), line, value });
    }

    /// Returns the entries of a section, which is created on this line if it does not exist yet.
    pub(super) fn entries(&mut self, section: &'static str, line: usize) -> &mut Vec<MapEntry> {
        &mut self.sections.entry(section).or_insert_with(|| (line, Vec::new())).1
    }

    /// Adds a whole section, after the keys of other groups that belong to it.
    fn section(&mut self, section: &'static str, entry: &MapEntry) {
        match &entry.value.value {
            YamlValue::Map(entries) => {
                let (line, all) = self.sections.entry(section).or_insert_with(|| (entry.line, Vec::new()));
                *line = entry.line;
                all.extend(entries.iter().cloned());
                if section == "eval_input" {
                    self.eval_data = Some(entry.value.clone());
                }
            }
            _ if entry.value.is_null() => {}
            _ => {
                let path = self.names.written(section);
                let message = format!("{path} must be a mapping of keys to values, not {}", entry.value.describe());
                self.report(ParamsProblemKind::WrongType, entry.line, &path, message, "give its keys and values");
            }
        }
    }

    /// Uses the data of `validate` if `fit` has none; rejects other data than those of `fit`.
    fn validation_data(&mut self, path: &str, entry: &MapEntry) {
        match &self.eval_data {
            None => {
                self.names.insert("eval_input".to_owned(), path.to_owned());
                self.section("eval_input", entry);
            }
            Some(value) if value.is_same(&entry.value) => {}
            Some(_) => {
                let message = format!("{path} differs from {}", self.names.written("eval_input"));
                let hint = "a run has one evaluation input: write the same, or leave one of them out";
                self.report(ParamsProblemKind::Invalid, entry.line, path, message, hint);
            }
        }
    }

    /// Accepts the data of `validate_all` without effect if they are not those of the evaluation.
    fn all_validation_data(&mut self, path: String, entry: &MapEntry) {
        if !self.eval_data.as_ref().is_some_and(|value| value.is_same(&entry.value)) {
            self.ignored.push(path);
        }
    }

    /// Sets what the classic layout expects where `fit` has evaluation data: the mode, and an evaluation at the end.
    fn complete_evaluation(&mut self) {
        let has_training = self.sections.contains_key("train_input");
        if self.eval_data.is_none() {
            // A callback may have set a key of evaluation data that do not exist.
            if let Some((_, entries)) = self.sections.remove("eval_input") {
                let keys = entries.iter().map(|entry| format!("eval_input.{}", entry.key));
                self.ignored.extend(keys.map(|key| self.names.written(&key)));
            }
            return;
        }
        let mode = if has_training { "train_and_eval" } else { "eval" };
        let (line, run) = self.sections.entry("runconfig").or_default();
        let line = *line;
        let run_value = |key: &str| run.iter().find(|entry| entry.key == key).map(|entry| entry.value.clone());
        let last_step = run_value("max_steps").filter(|_| has_training && run_value("eval_frequency").is_none());
        if let Some(value) = last_step {
            run.push(MapEntry { key: "eval_frequency".into(), line: value.line, value });
        }
        let value = YamlNode { line, value: YamlValue::Scalar { text: mode.into(), plain: true } };
        run.push(MapEntry { key: "mode".into(), line, value });
    }

    fn unknown(&mut self, prefix: &str, key: &str, entry: &MapEntry) {
        let path = self.written(key);
        let depth = prefix.split_terminator('.').count();
        let is_below = |path: &&str| prefix.is_empty() || path.starts_with(&format!("{prefix}."));
        let mut siblings: Vec<&str> = TRAINER_KEYS
            .iter()
            .map(|(path, _)| *path)
            .filter(is_below)
            .filter_map(|path| path.split('.').nth(depth))
            .collect();
        siblings.dedup();
        let hint = match closest_match(&entry.key, siblings.iter().copied()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("remove it; the valid keys are {}", siblings.join(", ")),
        };
        let message = format!("{path} is not a known key");
        self.report(ParamsProblemKind::UnknownKey, entry.line, &path, message, &hint);
    }

    /// Returns the path of a key of the table in the user's document.
    pub(super) fn written(&self, key: &str) -> String {
        if key.is_empty() { self.path.clone() } else { format!("{}.{key}", self.path) }
    }

    pub(super) fn report(&mut self, kind: ParamsProblemKind, line: usize, path: &str, message: String, hint: &str) {
        self.problems.push(problem(kind, line, path, message, hint));
    }

    /// Returns the converted document, and adds the problems that were found.
    pub(super) fn finish(self, line: usize, problems: &mut Vec<ParamsProblem>) -> ClassicDocument {
        let sections = self.sections.into_iter().map(|(key, (line, entries))| MapEntry {
            key: key.to_owned(),
            line,
            value: YamlNode { line, value: YamlValue::Map(entries) },
        });
        let root = YamlNode { line, value: YamlValue::Map(sections.collect()) };
        problems.extend(self.problems);
        ClassicDocument { root, names: self.names, ignored: self.ignored }
    }
}
