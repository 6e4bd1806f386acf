//! The tokenizer of an exported model, with the special tokens that the model was trained with.
//!
//! ```text
//! decoder                          the end of a document
//! encoder                          mask, beginning, end, padding, of the tokenizer or at the end of the vocabulary
//! encoder and decoder, of text     from the end of the vocabulary: padding, end, sentinels
//! encoder and decoder, of lines    beginning and end of their vocabulary; sentinels from the end of the model's
//! ```

use std::path::Path;

use millrace_checkpoint::hf::{ExportedTokenizer, SpecialToken, SpecialTokens};
use millrace_data::{DataError, ENCODER_TOKENS, SPECIAL_TOKENS, SampleTemplate, Tokenizer, with_special_tokens};
use millrace_params::{DataSource, JobSpec};

use crate::checkpoint_tokenizer::open_any;

/// Maximum number of sentinels that get a name; T5 has as many.
const MAX_SENTINELS: u32 = 100;

/// Returns the tokenizer of the checkpoint of a job as files of an export; `None` if its training data were tokens, or
/// the copy of its file is missing: the weights can be used without it.
///
/// # Errors
/// Its file can't be used.
pub fn exported_tokenizer(job: &JobSpec, checkpoint: &Path) -> Result<Option<ExportedTokenizer>, DataError> {
    match open_any(job, checkpoint) {
        Err(DataError::NotFound { .. }) => Ok(None),
        opened => opened?.map_or(Ok(None), |tokenizer| exported_for(&tokenizer, job)),
    }
}

/// Returns a tokenizer as files of an export of a job's model; `None` if the model's special tokens are others in it.
///
/// # Errors
/// Its file can't be read.
pub fn exported_for(tokenizer: &Tokenizer, job: &JobSpec) -> Result<Option<ExportedTokenizer>, DataError> {
    let (json, model) = (tokenizer.to_json()?, &job.model);
    if let Some(encoder) = &model.encoder {
        return Ok(for_encoder(tokenizer, json, vocabulary(model.vocab_size), encoder.mask_token));
    }
    if let Some(seq2seq) = &model.seq2seq {
        let vocabulary = vocabulary(model.vocab_size.min(seq2seq.target_vocab_size));
        let is_of_lines = matches!(job.train_input.source, DataSource::Lines { .. });
        return Ok(for_seq2seq(tokenizer, &json, vocabulary, is_of_lines));
    }
    let end = SpecialToken { id: tokenizer.separator(), name: tokenizer.separator_name().to_owned() };
    Ok(Some(ExportedTokenizer { json, special: SpecialTokens::Decoder { end } }))
}

fn vocabulary(entries: usize) -> u32 {
    u32::try_from(entries).unwrap_or(u32::MAX)
}

fn for_encoder(tokenizer: &Tokenizer, json: Vec<u8>, vocabulary: u32, mask: Option<u32>) -> Option<ExportedTokenizer> {
    let special = |ids: [u32; 4], names: [&str; 4]| {
        let token = |index: usize| SpecialToken { id: ids[index], name: names[index].to_owned() };
        SpecialTokens::Encoder { mask: token(0), begin: token(1), end: token(2), padding: token(3) }
    };
    let known = ENCODER_TOKENS.iter().find_map(|names| {
        let [mask, begin, end, padding] = names.map(|name| tokenizer.token(name));
        Some(special([mask?, begin?, end?, padding?], *names))
    });
    if let Some(special) = known {
        return Some(ExportedTokenizer { json, special });
    }
    let first = vocabulary.checked_sub(SPECIAL_TOKENS)?;
    let tokens = millrace_data::SpecialTokens::following(first, mask).ok()?;
    let ids = [tokens.mask, tokens.begin, tokens.end, tokens.padding];
    let ids = ids.map(|token| u32::try_from(token).unwrap_or_default());
    let names = ENCODER_TOKENS[0];
    let added: Vec<(u32, String)> = ids.into_iter().zip(names.map(str::to_owned)).collect();
    let template = SampleTemplate { begin: Some(names[1]), end: names[2] };
    Some(ExportedTokenizer { json: with_special_tokens(&json, &added, template)?, special: special(ids, names) })
}

fn for_seq2seq(tokenizer: &Tokenizer, json: &[u8], vocabulary: u32, is_of_lines: bool) -> Option<ExportedTokenizer> {
    let token = |id: u32, name: &str| SpecialToken { id, name: name.to_owned() };
    let special = |name: &str| tokenizer.token(name).map(|id| token(id, name));
    // A tokenizer of T5 has tokens of these names, but those of the model are the last ones of its vocabulary.
    let is_taken = !is_of_lines && ["<pad>", "</s>", "<extra_id_0>"].iter().any(|name| tokenizer.token(name).is_some());
    let [padding, end, sentinel] = match is_taken {
        true => ["<model_pad>", "<model_end>", "<model_extra_id_"],
        false => ["<pad>", "</s>", "<extra_id_"],
    };
    let (begin, end, sentinels_end) = match is_of_lines {
        true => (special("<s>").or_else(|| special(padding))?, special(end)?, vocabulary),
        false => {
            let end = token(vocabulary.checked_sub(2)?, end);
            (token(vocabulary - 1, padding), end, vocabulary - 2)
        }
    };
    let sentinels = sentinels_end.saturating_sub(tokenizer.vocab_size()).min(MAX_SENTINELS);
    let sentinels = (0..sentinels).map(|index| (sentinels_end - 1 - index, format!("{sentinel}{index}>")));
    let markers = [&begin, &end].map(|token| (token.id, token.name.clone()));
    let added: Vec<(u32, String)> = markers.into_iter().chain(sentinels).collect();
    let template = SampleTemplate { begin: None, end: &end.name };
    let json = with_special_tokens(json, &added, template)?;
    Some(ExportedTokenizer { json, special: SpecialTokens::Seq2Seq { begin, end } })
}
