//! Resolves the keys of an input of text, or of files of tokens.

use super::check::ResolveContext;
use super::input_section::InputSection;
use super::line_input::vocabulary_key;
use super::source::check_paths;
use crate::job::{DEFAULT_TEXT_KEY, DataSource, ModelSpec, TokenType, TokenizerName};
use crate::keywords::{Processor, TOKEN_TYPES, TOKENIZERS};

/// Returns the source of files of tokens. An evaluation (`train` is given) takes its defaults from training.
pub(super) fn tokens(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    train: Option<&DataSource>,
    paths: Vec<String>,
) -> DataSource {
    let default = if let Some(DataSource::Tokens { token_type, .. }) = train { *token_type } else { TokenType::Uint16 };
    let value = s.params.token_dtype.as_deref();
    let token_type = check.keyword(&s.key("token_dtype"), value, default, &TOKEN_TYPES);
    DataSource::Tokens { paths, token_type }
}

/// Returns the source of text. An evaluation (`train` is given) takes its defaults from training.
pub(super) fn text(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    train: Option<&DataSource>,
    model: &ModelSpec,
    mut paths: Vec<String>,
) -> DataSource {
    check_paths(check, s, &paths);
    if let Some(train) = train {
        check_tokenizer(check, s, train);
    }
    let of_train = train.and_then(tokenizer_of);
    let (tokenizer, file) = match (&s.params.tokenizer_file, &s.params.tokenizer, of_train) {
        (Some(file), value, _) => {
            check_file(check, s, file, value.is_some());
            (TokenizerName::File, Some(file.as_str()))
        }
        // The fallback for an unknown word must not also be reported as too large for the vocabulary.
        (None, Some(value), _) => {
            (check.keyword(&s.key("tokenizer"), Some(value), TokenizerName::Bytes, &TOKENIZERS), None)
        }
        (None, None, Some(of_train)) => of_train,
        (None, None, None) => (TokenizerName::Gpt2, None),
    };
    check_vocabulary(check, s, tokenizer, model);
    paths.extend(file.map(str::to_owned));
    let of_train =
        if let Some(DataSource::Text { text_key, .. }) = train { text_key.as_str() } else { DEFAULT_TEXT_KEY };
    let text_key = s.params.text_key.as_deref().unwrap_or(of_train).to_owned();
    if text_key.is_empty() {
        check.report_invalid(&s.key("text_key"), "is empty", "name the key of the text, such as text");
    }
    DataSource::Text { paths, tokenizer, text_key }
}

fn check_file(check: &mut ResolveContext<'_>, s: &InputSection<'_>, file: &str, has_name: bool) {
    let key = s.key("tokenizer_file");
    if file.trim().is_empty() {
        check.report_invalid(&key, "is empty", "name the file tokenizer.json of a model");
    } else if has_name {
        let message = format!("is given beside {}", s.key("tokenizer"));
        check.report_invalid(&key, message, "leave one of the two out");
    }
}

/// Checks that the model has all tokens of the tokenizer. That of a file is checked when the file is read.
fn check_vocabulary(check: &mut ResolveContext<'_>, s: &InputSection<'_>, tokenizer: TokenizerName, model: &ModelSpec) {
    let Some(tokens) = tokenizer.vocab_size().filter(|tokens| *tokens > model.vocab_size) else { return };
    let message = format!("is {}, too small for the {tokens} tokens of {}'s tokenizer", model.vocab_size, s.name);
    let hint = format!("set it to {tokens}, or choose tokenizer: bytes with vocab_size: 256");
    check.report_invalid(vocabulary_key(model), message, hint);
}

/// Returns the tokenizer of a source, and its file; `None` if its samples are tokens already.
fn tokenizer_of(source: &DataSource) -> Option<(TokenizerName, Option<&str>)> {
    match source {
        DataSource::Text { paths, tokenizer: TokenizerName::File, .. } => {
            Some((TokenizerName::File, paths.last().map(String::as_str)))
        }
        DataSource::Text { tokenizer, .. } => Some((*tokenizer, None)),
        _ => None,
    }
}

/// Checks that evaluation uses the tokenizer of training, because a model has one vocabulary.
fn check_tokenizer(check: &mut ResolveContext<'_>, s: &InputSection<'_>, train: &DataSource) {
    let Some((of_train, file)) = tokenizer_of(train) else { return };
    let (name, of_eval) = (&s.params.tokenizer, &s.params.tokenizer_file);
    let others = [
        ("tokenizer", name, name.as_ref().is_some_and(|name| TOKENIZERS.get(name) != Some(of_train))),
        ("tokenizer_file", of_eval, of_eval.is_some() && of_eval.as_deref() != file),
    ];
    for (key, value, _) in others.into_iter().filter(|(_, _, is_other)| *is_other) {
        let message = format!("is \"{}\", another one than train_input's", value.as_deref().unwrap_or_default());
        check.report_invalid(&s.key(key), message, "leave it out");
    }
}

/// Checks an evaluation of the files of training, which are read in the same way.
pub(super) fn check_same_files(check: &mut ResolveContext<'_>, s: &InputSection<'_>, train: &DataSource) {
    check_tokenizer(check, s, train);
    let (key, value, is_same) = match train {
        DataSource::Text { text_key, .. } => {
            ("text_key", &s.params.text_key, s.params.text_key.as_ref() == Some(text_key))
        }
        DataSource::Tokens { token_type, .. } => {
            let value = &s.params.token_dtype;
            let read = check.keyword(&s.key("token_dtype"), value.as_deref(), *token_type, &TOKEN_TYPES);
            ("token_dtype", value, read == *token_type)
        }
        _ => return,
    };
    if let Some(value) = value.as_ref().filter(|_| !is_same) {
        check.report_invalid(&s.key(key), format!("is \"{value}\", another one than train_input's"), "leave it out");
    }
}

/// Notes keys that have no effect on the files of a processor.
pub(super) fn note_unused_keys(check: &mut ResolveContext<'_>, s: &InputSection<'_>, processor: Processor) {
    let p = s.params;
    let keys = [
        ("tokenizer", p.tokenizer.is_some(), Processor::Text, "its samples are tokens already"),
        ("tokenizer_file", p.tokenizer_file.is_some(), Processor::Text, "its samples are tokens already"),
        ("text_key", p.text_key.is_some(), Processor::Text, "its files are not text"),
        ("token_dtype", p.token_dtype.is_some(), Processor::Tokens, "its files are not tokens without a header"),
    ];
    for (key, is_given, reader, reason) in keys {
        if is_given && processor != reader {
            check.note(format!("{} is not used: {reason}", s.key(key)));
        }
    }
}
