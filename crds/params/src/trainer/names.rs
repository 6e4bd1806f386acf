//! The names that keys of a converted document have in the user's file.

use std::collections::BTreeMap;

use super::keys::trainer_key_of;
use crate::error::ParamsProblem;

/// The sections whose keys are renamed in messages.
const SECTIONS: [&str; 6] = ["train_input", "eval_input", "model", "optimizer", "runconfig", "sparsity"];

/// The names of keys in the user's document, if it had the `trainer` layout; empty for the classic layout.
#[derive(Debug, Clone, Default)]
pub(crate) struct WrittenNames {
    /// The path of the phase, `trainer` or `trainer.0.trainer`; empty for the classic layout.
    root: String,
    /// Paths in the classic layout with those in the document. They apply to the keys below as well.
    paths: BTreeMap<String, String>,
}

impl WrittenNames {
    pub(super) fn of_phase(root: String) -> Self {
        Self { root, paths: BTreeMap::new() }
    }

    pub(super) fn insert(&mut self, classic: String, written: String) {
        self.paths.insert(classic, written);
    }

    /// Returns the user's path of a key of the classic layout.
    pub(crate) fn written(&self, classic: &str) -> String {
        if self.root.is_empty() {
            return classic.to_owned();
        }
        let mut around = classic;
        loop {
            let rest = &classic[around.len()..];
            if let Some(written) = self.paths.get(around) {
                return format!("{written}{rest}");
            }
            if let Some(written) = trainer_key_of(around) {
                return format!("{}.{written}{rest}", self.root);
            }
            match around.rsplit_once('.') {
                Some((outer, _)) => around = outer,
                None => return classic.to_owned(),
            }
        }
    }

    /// Replaces the paths of keys in a text. A word without a dot is no path.
    pub(crate) fn rename_in(&self, text: &str) -> String {
        if self.root.is_empty() {
            return text.to_owned();
        }
        let is_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let mut renamed = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(begin) = rest.find(is_path) {
            let (before, from) = rest.split_at(begin);
            let (word, after) = from.split_at(from.find(|c| !is_path(c)).unwrap_or(from.len()));
            let path = word.trim_end_matches('.');
            renamed.push_str(before);
            match path.split_once('.') {
                Some((section, _)) if SECTIONS.contains(&section) => renamed.push_str(&self.written(path)),
                _ => renamed.push_str(path),
            }
            renamed.push_str(&word[path.len()..]);
            rest = after;
        }
        renamed.push_str(rest);
        renamed
    }

    /// Names the keys of a problem as in the user's document.
    pub(crate) fn rename(&self, problem: ParamsProblem) -> ParamsProblem {
        if self.root.is_empty() {
            return problem;
        }
        let key = self.written(&problem.key);
        let message = match problem.message.strip_prefix(&problem.key) {
            Some(message) if !problem.key.is_empty() => format!("{key}{}", self.rename_in(message)),
            _ => self.rename_in(&problem.message),
        };
        let hint = problem.hint.as_deref().map(|hint| self.rename_in(hint));
        ParamsProblem { key, message, hint, ..problem }
    }
}
