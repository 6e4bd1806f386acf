//! Resolves the source of an input's tokens: processor, files and tokenizer.

use super::check::ResolveContext;
use super::input::InputSection;
use crate::document::OneOrMany;
use crate::job::{DataSource, ModelSpec, TokenizerName};
use crate::keywords::{PROCESSORS, Processor, TOKENIZERS};

const HDF5_REMEDY: &str = "use GptTextDataProcessor (UTF-8 text files), GptTokenDataProcessor \
                           (.bin files of u16 tokens) or SyntheticDataProcessor";

/// Returns the source of a section. An evaluation (`train` is given) takes its defaults from training.
pub(super) fn source(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    train: Option<&DataSource>,
    model: &ModelSpec,
) -> DataSource {
    let p = s.given;
    let paths = [&p.data_dir, &p.data_files].into_iter().flatten().flat_map(OneOrMany::as_slice);
    let paths: Vec<String> = paths.cloned().collect();
    let processor = match (&p.data_processor, train) {
        (None, Some(train)) if paths.is_empty() => {
            check_tokenizer(check, s, train);
            return train.clone();
        }
        (None, Some(DataSource::Text { .. })) => Processor::Text,
        (None, Some(DataSource::Tokens { .. })) => Processor::Tokens,
        (None, Some(DataSource::Synthetic {})) => Processor::Synthetic,
        (None, None) => {
            if !s.inherits_silently {
                check.report_missing(&s.key("data_processor"), HDF5_REMEDY);
            }
            return placeholder_source();
        }
        (Some(name), _) => match processor(check, s, name) {
            Some(processor) => processor,
            None => return placeholder_source(),
        },
    };
    let source = match processor {
        Processor::Synthetic => {
            if !paths.is_empty() {
                check.note(format!("the files of {} are not read: its samples are synthetic", s.name));
            }
            DataSource::Synthetic {}
        }
        Processor::Tokens => DataSource::Tokens { paths },
        Processor::Text => DataSource::Text { paths, tokenizer: tokenizer(check, s, train, model) },
    };
    if let DataSource::Text { paths, .. } | DataSource::Tokens { paths } = &source
        && (paths.is_empty() || paths.iter().any(|path| path.trim().is_empty()))
    {
        check.report_missing(&s.key("data_files"), "name at least one file, directory or glob");
    }
    if p.tokenizer.is_some() && processor != Processor::Text {
        check.note(format!("{} is not used: its samples are tokens already", s.key("tokenizer")));
    }
    source
}

/// Returns a placeholder for a rejected source, so that the section's other keys about files are not reported.
fn placeholder_source() -> DataSource {
    DataSource::Tokens { paths: Vec::new() }
}

fn processor(check: &mut ResolveContext<'_>, s: &InputSection<'_>, name: &str) -> Option<Processor> {
    let key = s.key("data_processor");
    let known = PROCESSORS.get(name);
    if known.is_none() && name.to_ascii_lowercase().contains("hdf5") {
        check.unsupported(&key, name, HDF5_REMEDY);
        return None;
    }
    // The value is used only if the name is known; otherwise a problem has been recorded.
    check.keyword(&key, Some(name), Processor::Synthetic, &PROCESSORS);
    known
}

fn tokenizer(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    train: Option<&DataSource>,
    model: &ModelSpec,
) -> TokenizerName {
    if let Some(train) = train {
        check_tokenizer(check, s, train);
    }
    let default = match train {
        // The fallback for an unknown word must not also be reported as too large for the vocabulary.
        _ if s.given.tokenizer.is_some() => TokenizerName::Bytes,
        Some(DataSource::Text { tokenizer, .. }) => *tokenizer,
        _ => TokenizerName::Gpt2,
    };
    let key = s.key("tokenizer");
    let tokenizer = check.keyword(&key, s.given.tokenizer.as_deref(), default, &TOKENIZERS);
    if tokenizer.vocab_size() > model.vocab_size {
        let (tokens, vocabulary) = (tokenizer.vocab_size(), model.vocab_size);
        let says = format!("is {vocabulary}, too small for the {tokens} tokens of {}'s tokenizer", s.name);
        check.report_invalid(
            "model.vocab_size",
            says,
            format!("set it to {tokens}, or choose tokenizer: bytes with vocab_size: 256"),
        );
    }
    tokenizer
}

/// Checks that evaluation uses the tokenizer of training, because a model has one vocabulary.
fn check_tokenizer(check: &mut ResolveContext<'_>, s: &InputSection<'_>, train: &DataSource) {
    let (Some(given), DataSource::Text { tokenizer, .. }) = (&s.given.tokenizer, train) else { return };
    if TOKENIZERS.get(given) != Some(*tokenizer) {
        let says = format!("is \"{given}\", another one than train_input's");
        check.report_invalid(&s.key("tokenizer"), says, "leave it out");
    }
}
