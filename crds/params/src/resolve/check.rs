//! Checks that every section needs. Each returns a usable value even after recording a problem, so that one mistake
//! does not hide the next. The job is built only if there was no problem.

use crate::error::{ParamsProblem, ParamsProblemKind};
use crate::keywords::Keywords;
use crate::yaml::{LineNumbers, closest_match};

/// Collects problems and notes while a document is resolved.
pub(crate) struct ResolveContext<'a> {
    lines: &'a LineNumbers,
    pub problems: Vec<ParamsProblem>,
    pub notes: Vec<String>,
}

impl<'a> ResolveContext<'a> {
    pub(crate) fn new(lines: &'a LineNumbers) -> Self {
        Self { lines, problems: Vec::new(), notes: Vec::new() }
    }

    /// Records the problem `KEY MESSAGE`. A flag (`--num_csx`) has no line.
    pub(crate) fn report(
        &mut self,
        kind: ParamsProblemKind,
        key: &str,
        message: impl AsRef<str>,
        hint: impl Into<String>,
    ) {
        self.problems.push(ParamsProblem {
            kind,
            line: if key.starts_with("--") { None } else { self.lines.of(key) },
            key: key.to_owned(),
            message: format!("{key} {}", message.as_ref()),
            hint: Some(hint.into()),
        });
    }

    pub(crate) fn report_invalid(&mut self, key: &str, message: impl AsRef<str>, hint: impl Into<String>) {
        self.report(ParamsProblemKind::Invalid, key, message, hint);
    }

    pub(crate) fn report_missing(&mut self, key: &str, hint: impl Into<String>) {
        self.report(ParamsProblemKind::Missing, key, "is missing", hint);
    }

    pub(crate) fn unsupported(&mut self, key: &str, value: &str, hint: impl Into<String>) {
        self.report(ParamsProblemKind::NotSupported, key, format!("{value} is not supported yet"), hint);
    }

    /// Returns whether a problem of `key` itself is recorded: its value is then a substitute.
    pub(crate) fn has_problem(&self, key: &str) -> bool {
        self.problems.iter().any(|problem| problem.key == key)
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Checks a number from 1 to `max`.
    pub(crate) fn count(&mut self, key: &str, value: Option<u64>, default: usize, max: usize) -> usize {
        let Some(value) = value else { return default };
        match usize::try_from(value) {
            Ok(count) if (1..=max).contains(&count) => count,
            _ => {
                let hint = format!("give a whole number from 1 to {max}");
                self.report_invalid(key, format!("is {value}, which is out of range"), hint);
                default.max(1)
            }
        }
    }

    /// Checks a number from 1 to `max` without a default.
    pub(crate) fn required_count(&mut self, key: &str, value: Option<u64>, max: usize) -> usize {
        if value.is_none() {
            self.report_missing(key, format!("give a whole number from 1 to {max}"));
        }
        self.count(key, value, 1, max)
    }

    /// Checks a probability in [0, 1).
    pub(crate) fn probability(&mut self, key: &str, value: Option<f64>, default: f64) -> f64 {
        let hint = "give a number of at least 0 and less than 1";
        self.number(key, value, default, |p| (0.0..1.0).contains(&p), hint)
    }

    /// Checks a share, in [0, 1].
    pub(crate) fn share(&mut self, key: &str, value: Option<f64>, default: f64) -> f64 {
        self.number(key, value, default, |share| (0.0..=1.0).contains(&share), "give a number from 0 to 1")
    }

    /// Checks a number greater than 0.
    pub(crate) fn positive(&mut self, key: &str, value: Option<f64>, default: f64) -> f64 {
        self.number(key, value, default, |x| x > 0.0, "give a number greater than 0")
    }

    /// Checks a number of at least 0.
    pub(crate) fn non_negative(&mut self, key: &str, value: Option<f64>, default: f64) -> f64 {
        self.number(key, value, default, |x| x >= 0.0, "give a number of at least 0")
    }

    /// Checks a number greater than 1.
    pub(crate) fn above_one(&mut self, key: &str, value: Option<f64>, default: f64) -> f64 {
        self.number(key, value, default, |x| x > 1.0, "give a number greater than 1")
    }

    fn number(
        &mut self,
        key: &str,
        value: Option<f64>,
        default: f64,
        is_valid: impl Fn(f64) -> bool,
        hint: &str,
    ) -> f64 {
        match value {
            None => default,
            Some(x) if x.is_finite() && is_valid(x) => x,
            Some(x) => {
                self.report_invalid(key, format!("is {x}, which is out of range"), hint);
                default
            }
        }
    }

    /// Looks up a keyword, ignoring case; returns `default` if none is given or the given one is rejected.
    pub(crate) fn keyword<T: Copy>(&mut self, key: &str, value: Option<&str>, default: T, keywords: &Keywords<T>) -> T {
        let Some(value) = value else { return default };
        if let Some(value) = keywords.get(value) {
            return value;
        }
        let known = keywords.values.iter().map(|(keyword, _)| *keyword);
        let names: Vec<&str> = known.clone().collect();
        let use_one = match names.as_slice() {
            [first @ .., last] if !first.is_empty() => format!("use {} or {last}", first.join(", ")),
            one => format!("use {}", one.concat()),
        };
        if keywords.is_unsupported(value) {
            self.unsupported(key, value, use_one);
        } else {
            let hint = closest_match(value, known).map_or(use_one, |near| format!("did you mean {near}?"));
            self.report_invalid(key, format!("is \"{value}\", which is unknown"), hint);
        }
        default
    }

    /// Checks a switch that has only one supported value.
    pub(crate) fn require_value(&mut self, key: &str, value: Option<bool>, supported: bool) {
        if let Some(value) = value.filter(|value| *value != supported) {
            self.unsupported(key, &value.to_string(), format!("leave it out or set it to {supported}"));
        }
    }

    /// Returns the value of the spelling that was given; two different values are rejected.
    pub(crate) fn either_spelling<T: PartialEq>(
        &mut self,
        key: &str,
        value: Option<T>,
        older: &str,
        older_value: Option<T>,
    ) -> Option<T> {
        if value.is_some() && older_value.is_some() && value != older_value {
            self.report_invalid(
                older,
                format!("is another spelling of {key}, which is given too, with another value"),
                "keep one of the two",
            );
        }
        value.or(older_value)
    }
}
