//! The keys of sections as values: name, type, default, choices and description of each.
//!
//! The tables of sections (`crate::yaml::section`) create them; [`crate::reference`] shows them to users.

pub(crate) mod facts;

pub use facts::{DefaultValue, KeyFacts};

/// One section of the document, and the keys it may have.
pub struct SectionReference {
    /// Name of the Rust type, which is also the name of its JSON schema.
    pub type_name: &'static str,
    pub(crate) description: &'static str,
    /// The keys, in the order in which they are documented.
    pub keys: &'static [KeyReference],
    /// Keys of the public model zoo that are not supported yet, each with what to do instead.
    pub unsupported: &'static [(&'static str, &'static str)],
}

/// One key of a section.
pub struct KeyReference {
    /// The name, in snake case.
    pub name: &'static str,
    description: &'static str,
    /// The type of its values, as a phrase such as "a whole number".
    pub value_type: &'static str,
    /// The section that its value is, or may be.
    pub section: Option<&'static SectionReference>,
    facts: KeyFacts,
}

/// Prefix of a field whose name is a keyword of Rust.
const RAW_PREFIX: &str = "r#";

/// Returns the key of a field of a section: without the prefix of a keyword.
pub(crate) const fn key_of_field(field: &'static str) -> &'static str {
    let bytes = field.as_bytes();
    if bytes.len() > 2 && bytes[0] == b'r' && bytes[1] == b'#' { field.split_at(RAW_PREFIX.len()).1 } else { field }
}

/// Returns the field of a key, as `stringify!` writes it.
pub(crate) fn field_of_key(key: &str) -> &str {
    if key == "type" { "r#type" } else { key }
}

impl KeyReference {
    /// Creates the reference of a key with values of the type `value`: its phrase, and the section that it is.
    pub(crate) const fn new(
        name: &'static str,
        description: &'static str,
        value: (&'static str, Option<&'static SectionReference>),
        facts: KeyFacts,
    ) -> Self {
        Self { name: key_of_field(name), description, value_type: value.0, section: value.1, facts }
    }

    /// Returns the description: what the key does, without its default and choices.
    pub fn description(&self) -> &'static str {
        self.description.trim()
    }

    /// Returns what applies if the key is omitted, in `train_input` if the section is an input.
    pub fn default(&self) -> DefaultValue {
        self.facts.default
    }

    /// Returns the default in `eval_input`, if it differs.
    pub fn eval_default(&self) -> Option<DefaultValue> {
        self.facts.eval_default
    }

    /// Returns the keywords that the key accepts; empty if it does not take keywords.
    pub fn choices(&self) -> Vec<&'static str> {
        self.facts.keywords.map(|keywords| keywords.names()).unwrap_or_default()
    }

    /// Returns the keywords of the public model zoo that are not supported yet.
    pub fn unsupported_choices(&self) -> &'static [&'static str] {
        self.facts.keywords.map(|keywords| keywords.unsupported()).unwrap_or_default()
    }

    /// Returns whether no other value than the default is supported yet.
    pub fn is_fixed(&self) -> bool {
        self.facts.is_fixed
    }

    /// Returns the key of the same section of which this one is another spelling.
    pub fn alias_of(&self) -> Option<&'static str> {
        self.facts.alias_of
    }

    /// Returns whether the key changes anything; the others are accepted and reported as ignored.
    pub fn has_effect(&self) -> bool {
        self.facts.has_effect
    }

    /// Returns the description with the default and the choices, as schemas and lists show it.
    pub fn summary(&self) -> String {
        let mut text = self.description().to_owned();
        if !self.has_effect() {
            text.push_str(" Has no effect here.");
        } else if self.alias_of().is_none() {
            text.push(' ');
            text.push_str(&self.default_sentences());
            let choices = self.choices();
            if choices.len() > 1 {
                text.push_str(&format!(" Choices: {}.", quoted(&choices)));
            }
        }
        text
    }

    /// Returns the sentences about the default, and about the default in `eval_input` if that differs.
    fn default_sentences(&self) -> String {
        let mut text = match self.default() {
            DefaultValue::Yaml(yaml) if self.is_fixed() => format!("Must be `{yaml}`."),
            default => default.sentence("Default"),
        };
        if let Some(eval) = self.eval_default() {
            let subject = if self.is_fixed() { "In `eval_input`" } else { "Default in `eval_input`" };
            text.push(' ');
            text.push_str(&eval.sentence(subject));
        }
        text
    }
}

impl DefaultValue {
    fn sentence(self, subject: &str) -> String {
        match self {
            Self::Required => "Required.".to_owned(),
            Self::RequiredIf(condition) => format!("Required if {condition}."),
            Self::Yaml(yaml) => format!("{subject}: `{yaml}`."),
            Self::FromKey(path) => format!("{subject}: the value of `{path}`."),
            Self::Described(words) => format!("{subject}: {words}."),
        }
    }
}

impl SectionReference {
    /// Returns the description of the section.
    pub fn description(&self) -> &'static str {
        self.description.trim()
    }

    /// Returns the key with this name.
    pub fn key(&self, name: &str) -> Option<&'static KeyReference> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Returns the other spellings of a key.
    pub fn aliases_of(&self, name: &str) -> impl Iterator<Item = &'static KeyReference> {
        self.keys.iter().filter(move |key| key.alias_of() == Some(name))
    }
}

/// Lists words in backquotes.
pub(crate) fn quoted(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    words.join(", ")
}
