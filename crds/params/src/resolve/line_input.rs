//! Resolves the keys of an input that only models with an encoder and a decoder have.

use super::check::ResolveContext;
use super::input_section::InputSection;
use crate::document::OneOrMany;
use crate::job::{DataSource, LineRows, ModelSpec};
use crate::keywords::Processor;

/// Tokens at the end of the vocabulary that a source without words of its own needs: padding, the end, a sentinel.
const SPECIAL_TOKENS: usize = 3;

/// Returns the source of files of lines, whose sources are `paths`.
pub(super) fn lines(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    mut paths: Vec<String>,
    rows: LineRows,
) -> DataSource {
    if paths.is_empty() || paths.iter().any(|path| path.trim().is_empty()) {
        check.report_missing(&s.key("src_data_dir"), "name at least one file, directory or glob");
    }
    let targets = s.params.tgt_data_dir.as_ref().map(OneOrMany::as_slice).unwrap_or_default();
    if rows == LineRows::Pairs {
        if s.params.tgt_data_dir.is_some() && (targets.is_empty() || targets.iter().any(|path| path.trim().is_empty()))
        {
            check.report_missing(&s.key("tgt_data_dir"), "name the files of translations, or leave it out");
        }
        paths.extend_from_slice(targets);
    } else if s.params.tgt_data_dir.is_some() {
        check.note(format!("{} has no effect: the targets are spans of the sources", s.key("tgt_data_dir")));
    }
    let targets = if rows == LineRows::Pairs { targets.len() } else { 0 };
    let mut vocabularies = 0;
    match s.vocab_file {
        Some(file) if !file.trim().is_empty() => {
            paths.push(file.to_owned());
            vocabularies += 1;
        }
        _ => {
            check.report_missing(&s.key("src_vocab_file"), "name the text file with a word of the vocabulary per line")
        }
    }
    let of_target = s.tgt_vocab_file.filter(|file| rows == LineRows::Pairs && Some(*file) != s.vocab_file);
    if let Some(file) = of_target {
        if file.trim().is_empty() {
            check.report_missing(&s.key("tgt_vocab_file"), "name the vocabulary of translations, or leave it out");
        }
        paths.push(file.to_owned());
        vocabularies += 1;
    }
    DataSource::Lines { paths, rows, targets, vocabularies, is_lower_case: s.params.do_lower.unwrap_or(false) }
}

/// Checks that samples of two sequences are read by a model of two sequences, and only these.
pub(super) fn check_processor(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    processor: Processor,
    model: &ModelSpec,
) {
    let key = s.key("data_processor");
    let name = s.params.data_processor.as_deref().unwrap_or_default();
    match (processor, &model.seq2seq) {
        (Processor::Lines(_), None) => {
            let message = format!("{name} has samples of two sequences, but the model reads one");
            check.report_invalid(&key, message, "set model.name to t5 or transformer");
        }
        (Processor::Csv(_) | Processor::EncoderHdf5 | Processor::TfRecords(_), Some(_)) => {
            let hint = "use T5DynamicDataProcessor, TransformerDynamicDataProcessor or GptTextDataProcessor";
            check.report_invalid(&key, format!("is {name}, but the model reads two sequences"), hint);
        }
        _ => {}
    }
}

/// Checks that the vocabulary has room for the special tokens of a text, which are its last ones.
pub(super) fn check_special_tokens(check: &mut ResolveContext<'_>, source: &DataSource, model: &ModelSpec) {
    let (Some(options), DataSource::Text { tokenizer, .. }) = (&model.seq2seq, source) else { return };
    let (Some(words), key) = (tokenizer.vocab_size(), vocabulary_key(model)) else { return };
    let found = model.vocab_size.min(options.target_vocab_size);
    if (words..words + SPECIAL_TOKENS).contains(&found) && !check.has_problem(key) {
        let message = format!("is {found}, too small for {words} tokens, padding, the end and sentinels");
        check.report_invalid(key, message, format!("set it to {words}, and model.extra_ids to 102"));
    }
}

/// Returns the key that sets the size of the vocabulary.
pub(super) const fn vocabulary_key(model: &ModelSpec) -> &'static str {
    if model.seq2seq.is_some() { "model.src_vocab_size" } else { "model.vocab_size" }
}

#[cfg(test)]
mod tests {
    use crate::{DataSource, FlagOverrides, InputSpec, LineRows, Params, ParamsError};

    fn inputs(model: &str, train: &str, eval: &str) -> Result<[InputSpec; 2], ParamsError> {
        let text = format!(
            "train_input: {{batch_size: 8, src_max_sequence_length: 64, tgt_max_sequence_length: 24, {train}}}\n\
             eval_input: {{{eval}}}\n\
             model: {{{model}}}\n\
             optimizer: {{optimizer_type: AdamW, learning_rate: 0.1}}\nrunconfig: {{max_steps: 1}}\n"
        );
        let job = Params::parse_yaml(&text)?.resolve(&FlagOverrides::default())?.job;
        Ok([job.train_input, job.eval_input.unwrap()])
    }

    const T5: &str = "name: t5, d_model: 64, num_heads: 4, encoder_num_hidden_layers: 2, src_vocab_size: 256";

    #[test]
    fn files_follow_each_other_with_their_vocabularies() {
        let source = |paths: &[&str], rows, targets, vocabularies| DataSource::Lines {
            paths: paths.iter().map(|path| (*path).to_owned()).collect(),
            rows,
            targets,
            vocabularies,
            is_lower_case: false,
        };
        let spans = "data_processor: T5DynamicDataProcessor, data_dir: a, vocab_file: v";
        let [train, eval] = inputs(T5, spans, "src_data_dir: [b, c]").unwrap();
        assert_eq!(train.source, source(&["a", "v"], LineRows::Spans, 0, 1));
        assert_eq!(eval.source, source(&["b", "c", "v"], LineRows::Spans, 0, 1));
        let pairs = "data_processor: TransformerDynamicDataProcessor, src_data_dir: [a, b], tgt_data_dir: [x, y], \
                     src_vocab_file: v, tgt_vocab_file: w";
        let [train, eval] = inputs(T5, pairs, "src_data_dir: c").unwrap();
        assert_eq!(train.source, source(&["a", "b", "x", "y", "v", "w"], LineRows::Pairs, 2, 2));
        assert_eq!(eval.source, source(&["c", "v", "w"], LineRows::Pairs, 0, 2));
        let shared = pairs.replace("tgt_vocab_file: w", "tgt_vocab_file: v");
        let [train, eval] = inputs(T5, &shared, "batch_size: 4").unwrap();
        assert_eq!((&train.source, train.paths().len()), (&eval.source, 5));
    }

    #[test]
    fn sources_that_do_not_fit_are_rejected() {
        let lines = "data_processor: T5DynamicDataProcessor, src_data_dir: a, src_vocab_file: v";
        let text = "data_processor: GptTextDataProcessor, data_dir: a, tokenizer: bytes";
        let gpt = "name: gpt2, hidden_size: 64, num_heads: 4, num_hidden_layers: 2, vocab_size: 256";
        for (model, train, message) in [
            (gpt, lines, "T5DynamicDataProcessor has samples of two sequences, but the model reads one"),
            (T5, &lines.replace("src_vocab_file: v", ""), "train_input.src_vocab_file is missing"),
            (T5, &lines.replace("src_data_dir: a,", ""), "train_input.src_data_dir is missing"),
            (T5, text, "model.src_vocab_size is 256, too small for 256 tokens, padding, the end and sentinels"),
            (T5, "data_processor: BertCSVDataProcessor, data_dir: a", "but the model reads two sequences"),
        ] {
            let error = inputs(model, train, "batch_size: 4").unwrap_err().report();
            assert!(error.contains(message), "{train}: {error}");
        }
    }
}
