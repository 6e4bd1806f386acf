//! Converts the parts of the `trainer` layout whose keys are the names of classes: the optimizer, the schedulers and
//! the callbacks.

use super::convert::Converter;
use super::keys::{CALLBACKS_WITHOUT_EFFECT, MACHINE_FLAG_PREFIX, MICRO_BATCH_FLAG};
use crate::error::ParamsProblemKind;
use crate::yaml::{MapEntry, YamlNode, YamlValue};

/// Returns the only entry of a mapping such as `{AdamW: {eps: 1e-8}}`.
fn only_entry(node: &YamlNode) -> Option<&MapEntry> {
    match &node.value {
        YamlValue::Map(entries) => match entries.as_slice() {
            [only] => Some(only),
            _ => None,
        },
        _ => None,
    }
}

fn plain_scalar(text: &str, line: usize) -> YamlNode {
    YamlNode { line, value: YamlValue::Scalar { text: text.to_owned(), plain: true } }
}

impl Converter {
    /// Converts `{AdamW: {…}}` to the section `optimizer`.
    pub(super) fn optimizer(&mut self, path: &str, entry: &MapEntry) {
        let Some(optimizer) = only_entry(&entry.value) else {
            let message = format!("{path} must be a mapping of one optimizer's name to its keys");
            self.report(ParamsProblemKind::WrongType, entry.line, path, message, "write it as in AdamW: {eps: 1e-8}");
            return;
        };
        let key_path = format!("{path}.{}", optimizer.key);
        self.names.insert("optimizer".to_owned(), key_path.clone());
        let name = plain_scalar(&optimizer.key, optimizer.line);
        self.set("optimizer.optimizer_type", optimizer.line, name, path.to_owned());
        match &optimizer.value.value {
            // The schedulers, if there are any, replace the optimizer's own rate.
            YamlValue::Map(entries) => self.entries("optimizer", optimizer.line).extend(entries.iter().cloned()),
            _ if optimizer.value.is_null() => {}
            _ => {
                let message =
                    format!("{key_path} must be a mapping of keys to values, not {}", optimizer.value.describe());
                self.report(
                    ParamsProblemKind::WrongType,
                    optimizer.line,
                    &key_path,
                    message,
                    "give its keys and values",
                );
            }
        }
    }

    /// Converts a list of one schedule to `optimizer.learning_rate`.
    pub(super) fn schedulers(&mut self, path: &str, entry: &MapEntry) {
        let (schedule_path, schedule) = match &entry.value.value {
            YamlValue::List(schedules) => match schedules.as_slice() {
                [] => return,
                [only] => (format!("{path}.0"), only),
                [_, second, ..] => {
                    let message = format!("{path} has {} schedules, and one is supported", schedules.len());
                    let hint = "write schedules that follow each other within SequentialLR; all parameters share one \
                                learning rate, and other values have no schedules";
                    self.report(ParamsProblemKind::NotSupported, second.line, path, message, hint);
                    return;
                }
            },
            _ => (path.to_owned(), &entry.value),
        };
        let rate = self.entries("optimizer", entry.line);
        if let Some(position) = rate.iter().position(|entry| entry.key == "learning_rate") {
            rate.remove(position);
            self.ignored.push(self.names.written("optimizer.learning_rate"));
        }
        let value = self.schedule("optimizer.learning_rate".to_owned(), schedule_path.clone(), schedule);
        let line = schedule.line;
        self.entries("optimizer", line).push(MapEntry { key: "learning_rate".into(), line, value });
    }

    /// Converts `{LinearLR: {…}}` to `{scheduler: LinearLR, …}`, and the schedules within it.
    fn schedule(&mut self, classic: String, path: String, node: &YamlNode) -> YamlNode {
        let Some(schedule) = only_entry(node) else { return node.clone() };
        let schedule_path = format!("{path}.{}", schedule.key);
        self.names.insert(classic.clone(), schedule_path.clone());
        self.names.insert(format!("{classic}.scheduler"), path);
        let name = plain_scalar(&schedule.key, schedule.line);
        let mut converted = vec![MapEntry { key: "scheduler".into(), line: schedule.line, value: name }];
        if let YamlValue::Map(entries) = &schedule.value.value {
            for entry in entries {
                let value = match &entry.value.value {
                    YamlValue::List(nested) if entry.key == "schedulers" => {
                        let nested_path = |parent: &str, i: usize| format!("{parent}.schedulers.{i}");
                        let nested = nested.iter().enumerate();
                        let nested = nested.map(|(i, node)| {
                            self.schedule(nested_path(&classic, i), nested_path(&schedule_path, i), node)
                        });
                        YamlNode { line: entry.value.line, value: YamlValue::List(nested.collect()) }
                    }
                    // The wrapper is rejected by its name.
                    _ if entry.key == "scheduler" => continue,
                    _ => entry.value.clone(),
                };
                converted.push(MapEntry { key: entry.key.clone(), line: entry.line, value });
            }
        }
        YamlNode { line: schedule.line, value: YamlValue::Map(converted) }
    }

    /// Converts the callbacks that set keys of the classic layout, and rejects those that change the training.
    pub(super) fn callbacks(&mut self, path: &str, node: &YamlNode) {
        let YamlValue::List(callbacks) = &node.value else {
            let message = format!("{path} must be a list, not {}", node.describe());
            self.report(ParamsProblemKind::WrongType, node.line, path, message, "write each callback as a list item");
            return;
        };
        for (i, item) in callbacks.iter().enumerate() {
            match (only_entry(item), &item.value) {
                (Some(callback), _) => {
                    self.callback(format!("{path}.{i}.{}", callback.key), &callback.key, &callback.value);
                }
                (None, YamlValue::Scalar { text, .. }) => self.callback(format!("{path}.{i}.{text}"), text, item),
                (None, _) => {
                    let item_path = format!("{path}.{i}");
                    let message = format!("{item_path} must be a mapping of one callback's name to its keys");
                    self.report(
                        ParamsProblemKind::WrongType,
                        item.line,
                        &item_path,
                        message,
                        "write it as in ComputeNorm: {}",
                    );
                }
            }
        }
    }

    fn callback(&mut self, path: String, name: &str, node: &YamlNode) {
        match name {
            "KeepNCheckpoints" => self.argument(path, node, "n", "runconfig.max_checkpoints"),
            "LoadCheckpointStates" => {
                self.argument(path, node, "load_checkpoint_states", "runconfig.load_checkpoint_states");
            }
            "GlobalFlags" => self.flags(&path, node, &["train_input.micro_batch_size", "eval_input.micro_batch_size"]),
            "ScopedTrainFlags" => self.flags(&path, node, &["train_input.micro_batch_size"]),
            "ScopedValidateFlags" => self.flags(&path, node, &["eval_input.micro_batch_size"]),
            _ if CALLBACKS_WITHOUT_EFFECT.contains(&name) => self.ignored.push(path),
            _ => {
                let message = format!("{path}: the callback {name} is not supported yet");
                let hint = "leave the callback out if the training does not need it";
                self.report(ParamsProblemKind::NotSupported, node.line, &path, message, hint);
            }
        }
    }

    /// Converts the only argument of a callback.
    fn argument(&mut self, path: String, node: &YamlNode, name: &str, classic: &'static str) {
        match only_entry(node) {
            Some(argument) if argument.key == name => {
                let value = joined(&argument.value);
                if !value.is_null() {
                    self.set(classic, argument.line, value, format!("{path}.{name}"));
                }
            }
            _ => {
                let message = format!("{path} must be a mapping with the key {name}");
                self.report(ParamsProblemKind::WrongType, node.line, &path, message, "give the key, or leave it out");
            }
        }
    }

    /// Converts flags of the real machine: only the size of a micro-batch has an effect.
    fn flags(&mut self, path: &str, node: &YamlNode, micro_batch_keys: &[&'static str]) {
        let entries = match &node.value {
            YamlValue::Map(entries) => entries.as_slice(),
            _ => &[],
        };
        for entry in entries {
            let flag_path = format!("{path}.{}", entry.key);
            if entry.key == MICRO_BATCH_FLAG {
                for key in micro_batch_keys {
                    self.set(key, entry.line, entry.value.clone(), flag_path.clone());
                }
            } else if entry.key.starts_with(MACHINE_FLAG_PREFIX) {
                self.ignored.push(flag_path);
            } else {
                let message = format!("{flag_path} is not a known flag");
                self.report(ParamsProblemKind::UnknownKey, entry.line, &flag_path, message, "leave the flag out");
            }
        }
    }
}

/// Returns a list of words as one text with commas, as the classic layout has it.
fn joined(node: &YamlNode) -> YamlNode {
    let YamlValue::List(items) = &node.value else { return node.clone() };
    let words: Vec<&str> = items
        .iter()
        .filter_map(|item| match &item.value {
            YamlValue::Scalar { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    plain_scalar(&words.join(","), node.line)
}
