//! The facts that the tables of keys state about each key, in the words of the tables.
//!
//! ```text
//! dropout_rate: f64 = default("0.1"),
//! embedding_dropout_rate: f64 = default_from("model.dropout_rate"),
//! nonlinearity: String = default("gelu").one_of(&NONLINEARITIES),
//! ```

use crate::keywords::KeywordNames;

/// What applies if a key is omitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultValue {
    /// The key must be given.
    Required,
    /// The key must be given on a condition, which completes a sentence that begins with "required if".
    RequiredIf(&'static str),
    /// A value, as YAML.
    Yaml(&'static str),
    /// The value of another key, by its path.
    FromKey(&'static str),
    /// A value that the words describe.
    Described(&'static str),
}

/// The facts about a key that its name, type and description do not say.
#[derive(Clone, Copy)]
pub struct KeyFacts {
    pub(crate) default: DefaultValue,
    /// The default in `eval_input`, if it differs from that in `train_input`.
    pub(crate) eval_default: Option<DefaultValue>,
    pub(crate) keywords: Option<&'static dyn KeywordNames>,
    /// Whether no other value than the default is supported yet.
    pub(crate) is_fixed: bool,
    pub(crate) alias_of: Option<&'static str>,
    pub(crate) has_effect: bool,
}

/// Describes a key that must be given.
pub(crate) const fn required() -> KeyFacts {
    with_default(DefaultValue::Required)
}

/// Describes a key that must be given if the condition is true.
pub(crate) const fn required_if(condition: &'static str) -> KeyFacts {
    with_default(DefaultValue::RequiredIf(condition))
}

/// Describes a key by its default, as YAML.
pub(crate) const fn default(yaml: &'static str) -> KeyFacts {
    with_default(DefaultValue::Yaml(yaml))
}

/// Describes a key whose default is the value of the key with this path.
pub(crate) const fn default_from(path: &'static str) -> KeyFacts {
    with_default(DefaultValue::FromKey(path))
}

/// Describes a key whose default is computed, or has no YAML, in words.
pub(crate) const fn otherwise(words: &'static str) -> KeyFacts {
    with_default(DefaultValue::Described(words))
}

/// Describes another spelling of a key of the same section.
pub(crate) const fn alias_of(key: &'static str) -> KeyFacts {
    KeyFacts { alias_of: Some(key), ..with_default(DefaultValue::Described("omitted")) }
}

/// Describes a key that is read and then ignored.
pub(crate) const fn no_effect() -> KeyFacts {
    KeyFacts { has_effect: false, ..with_default(DefaultValue::Described("omitted")) }
}

const fn with_default(default: DefaultValue) -> KeyFacts {
    KeyFacts { default, eval_default: None, keywords: None, is_fixed: false, alias_of: None, has_effect: true }
}

impl KeyFacts {
    /// Adds the keywords that the key accepts.
    pub(crate) const fn one_of(self, keywords: &'static dyn KeywordNames) -> Self {
        Self { keywords: Some(keywords), ..self }
    }

    /// States that no other value than the default is supported yet.
    pub(crate) const fn fixed(self) -> Self {
        Self { is_fixed: true, ..self }
    }

    /// Adds a different default in `eval_input`.
    pub(crate) const fn in_eval_input(self, facts: Self) -> Self {
        Self { eval_default: Some(facts.default), ..self }
    }
}
