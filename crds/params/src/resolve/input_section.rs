//! A section of input as the params have it: `train_input` or `eval_input`.

use crate::document::InputParams;

/// One of the two sections, while it is resolved.
pub(super) struct InputSection<'a> {
    pub name: &'static str,
    pub params: &'a InputParams,
    /// Vocabulary of words: that of the section, of training, or of the model.
    pub vocab_file: Option<&'a str>,
    /// Vocabulary of the target: that of the section, or of training.
    pub tgt_vocab_file: Option<&'a str>,
    /// Names of the classes of tokens, likewise.
    pub label_vocab_file: Option<&'a str>,
    /// Whether the section is missing: that is recorded already, so no problems with its keys are.
    pub inherits_silently: bool,
}

impl InputSection<'_> {
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }
}
