//! Resolves `data_transforms`: what is done with each sample of tokens.

use super::check::ResolveContext;
use super::input_section::InputSection;
use crate::document::SampleTransformParams;
use crate::job::{ModelSpec, SinkTokens};
use crate::keywords::SAMPLE_TRANSFORMS;

/// Resolves the tokens that are inserted into every sample of `length` tokens.
pub(super) fn sinks(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    model: &ModelSpec,
    length: usize,
) -> Option<SinkTokens> {
    let key = s.key("data_transforms");
    let transforms = s.params.data_transforms.as_deref()?;
    let [transform] = transforms else {
        if !transforms.is_empty() {
            check.unsupported(&key, "a list of several transforms", "give one");
        }
        return None;
    };
    if model.encoder.is_some() || model.seq2seq.is_some() || model.image.is_some() {
        check.report_invalid(&key, "has a meaning for decoders only", "leave it out");
        return None;
    }
    Some(sink_tokens(check, &format!("{key}.0"), transform, model, length))
}

fn sink_tokens(
    check: &mut ResolveContext<'_>,
    key: &str,
    p: &SampleTransformParams,
    model: &ModelSpec,
    length: usize,
) -> SinkTokens {
    let key_path = |part: &str| format!("{key}.{part}");
    match p.name.as_deref() {
        None => check.report_missing(&key_path("name"), "name the transform: add_sink_tokens"),
        value => check.keyword(&key_path("name"), value, (), &SAMPLE_TRANSFORMS),
    }
    let max_position = length.saturating_sub(1).max(1);
    let count = check.count(&key_path("num_sink_tokens"), p.num_sink_tokens, 1, max_position);
    let position = p.sink_token_start_pos.unwrap_or(0);
    if position > (length - count.min(length)) as u64 {
        let message = format!("is {position}, which is beyond the end of a sample");
        check.report_invalid(&key_path("sink_token_start_pos"), message, "choose a smaller number");
    }
    let token = p.sink_token_id.unwrap_or(0);
    if token >= model.vocab_size as u64 {
        let message = format!("is {token}, but the vocabulary has {} tokens", model.vocab_size);
        check.report_invalid(&key_path("sink_token_id"), message, "choose a token of the vocabulary");
    }
    SinkTokens {
        token: u32::try_from(token).unwrap_or(0),
        count,
        position: usize::try_from(position).unwrap_or(0),
        keeps_length: p.truncate_to_original_length.unwrap_or(false),
    }
}

#[cfg(test)]
mod tests {
    use crate::{FlagOverrides, JobSpec, Params, ParamsError, SinkTokens};

    fn job(transforms: &str) -> Result<JobSpec, ParamsError> {
        let text = format!(
            "train_input: {{data_processor: GptHDF5DataProcessor, data_dir: x, batch_size: 8, \
             data_transforms: {transforms}}}\n\
             model: {{vocab_size: 100, hidden_size: 8, num_hidden_layers: 1, num_heads: 1, \
             max_position_embeddings: 40}}\n\
             optimizer: {{optimizer_type: AdamW, learning_rate: 0.1}}\nrunconfig: {{max_steps: 1}}\n"
        );
        Ok(Params::parse_yaml(&text)?.resolve(&FlagOverrides::default())?.job)
    }

    #[test]
    fn sinks_count_in_the_length_of_samples() {
        let input = job("[{name: add_sink_tokens, sink_token_id: 99, num_sink_tokens: 8}]").unwrap().train_input;
        let expected = SinkTokens { token: 99, count: 8, position: 0, keeps_length: false };
        assert_eq!((input.max_sequence_length, input.sinks), (40, Some(expected)));
        assert_eq!(job("[]").unwrap().train_input.sinks, None);
    }

    #[test]
    fn sinks_outside_of_sample_or_vocabulary_are_rejected() {
        for (transform, message) in [
            ("{name: add_sink_tokens, num_sink_tokens: 40}", "num_sink_tokens is 40"),
            ("{name: add_sink_tokens, sink_token_start_pos: 40}", "sink_token_start_pos is 40"),
            ("{name: add_sink_tokens, sink_token_id: 100}", "sink_token_id is 100"),
            ("{name: add_memory_tokens}", "data_transforms.0.name add_memory_tokens is not supported"),
            ("{sink_token_id: 1}", "data_transforms.0.name is missing"),
            ("{name: add_sink_tokens}, {name: add_sink_tokens}", "data_transforms a list of several"),
        ] {
            let error = job(&format!("[{transform}]")).unwrap_err().report();
            assert!(error.contains(message), "{transform}: {error}");
        }
    }
}
