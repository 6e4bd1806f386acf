//! Resolves the keys of `model` that only encoders have.

use super::check::ResolveContext;
use super::model::MAX_POSITIONS;
use crate::document::{ModelParams, Params};
use crate::job::{
    CsvRows, DecoderOptions, EncoderOptions, EncoderTask, ModelFamily, Nonlinearity, Norm, Positions, TfRecordRows,
};
use crate::keywords::{LAYER_NONLINEARITIES, PROBLEM_TYPES, PROCESSORS, Processor};

/// Entries of the vocabularies that were published with BERT.
pub(super) const BERT_VOCABULARY: u64 = 30_522;
const MAX_CLASSES: usize = 1 << 20;

/// Returns the family of an encoder whose params do not name it, as in older files: its data and keys show it.
pub(super) fn recognize(params: &Params, p: &ModelParams) -> Option<ModelFamily> {
    let input = params.train_input.as_ref();
    let processor = input.and_then(|input| input.data_processor.as_deref()).and_then(|name| PROCESSORS.get(name));
    // Of the zoo's models only ESM-2 has this key.
    let pretrained = if p.token_dropout == Some(true) { ModelFamily::Esm2 } else { ModelFamily::Bert };
    match processor {
        Some(Processor::Csv(rows)) => Some(match rows {
            CsvRows::Words | CsvRows::Masked => pretrained,
            CsvRows::Sentences | CsvRows::SentencePairs => ModelFamily::BertClassifier,
            CsvRows::TokenClasses => ModelFamily::BertTokenClassifier,
            CsvRows::Summaries | CsvRows::SummariesWithWords => ModelFamily::BertSummarization,
            CsvRows::Answers => ModelFamily::BertQa,
        }),
        Some(Processor::EncoderHdf5) => Some(pretrained),
        Some(Processor::TfRecords(rows)) if rows != TfRecordRows::Tokens => Some(match rows {
            TfRecordRows::Tokens | TfRecordRows::Masked | TfRecordRows::Words => pretrained,
            TfRecordRows::Sentences | TfRecordRows::SentencePairs => ModelFamily::BertClassifier,
            TfRecordRows::TokenClasses => ModelFamily::BertTokenClassifier,
            TfRecordRows::Summaries | TfRecordRows::SummariesWithWords => ModelFamily::BertSummarization,
            TfRecordRows::Answers => ModelFamily::BertQa,
        }),
        _ => {
            let has_keys = p.encoder_nonlinearity.is_some() || p.mlm_loss_weight.is_some() || p.disable_nsp.is_some();
            has_keys.then_some(pretrained)
        }
    }
}

/// Resolves the options of an encoder; `None` if the family is one of decoders.
pub(super) fn resolve(
    check: &mut ResolveContext<'_>,
    params: &Params,
    p: &ModelParams,
    family: ModelFamily,
) -> Option<EncoderOptions> {
    if !family.is_encoder() {
        reject_foreign_keys(check, p, family);
        return None;
    }
    check.keyword("model.problem_type", p.problem_type.as_deref(), (), &PROBLEM_TYPES);
    let norm_first = p.norm_first.unwrap_or(family == ModelFamily::Esm2);
    if p.use_final_layer_norm.is_some_and(|use_final_norm| use_final_norm != norm_first) {
        let message = format!("is {}, but norm_first is {norm_first}", !norm_first);
        check.report_invalid("model.use_final_layer_norm", message, "leave it out: a norm follows blocks without one");
    }
    if p.num_segments.is_some_and(|segments| segments != 2) {
        check.report_invalid("model.num_segments", "must be 2, the number of segments of a sample", "leave it out");
    }
    let predicts_next_sentence = family == ModelFamily::Bert && !p.disable_nsp.unwrap_or(false);
    let has_segments = match family {
        ModelFamily::Esm2 => false,
        _ => !p.disable_nsp.unwrap_or(false),
    };
    let has_token_dropout = p.token_dropout.unwrap_or(false);
    if has_token_dropout && p.mask_token_id.is_none() {
        check.report_missing("model.mask_token_id", "give the number of the token that masks others");
    }
    Some(EncoderOptions {
        use_segment_embedding: p.use_segment_embedding.unwrap_or(has_segments),
        pooler_nonlinearity: nonlinearity(
            check,
            "model.pooler_nonlinearity",
            p.pooler_nonlinearity.as_deref(),
            Nonlinearity::Tanh,
        ),
        task: task(check, params, p, family, predicts_next_sentence),
        norm_first,
        is_embedding_plain: !p.embedding_layer_norm.unwrap_or(true),
        mask_token: mask_token(check, p),
        has_token_dropout,
    })
}

/// Returns the token that masks others, which is in the vocabulary.
fn mask_token(check: &mut ResolveContext<'_>, p: &ModelParams) -> Option<u32> {
    let mask_token = p.mask_token_id?;
    let entries = p.vocab_size.unwrap_or(BERT_VOCABULARY);
    if mask_token < entries {
        return u32::try_from(mask_token).ok();
    }
    let message = format!("is {mask_token}, but the vocabulary has {entries} tokens");
    check.report_invalid("model.mask_token_id", message, "give a number below model.vocab_size");
    None
}

fn task(
    check: &mut ResolveContext<'_>,
    params: &Params,
    p: &ModelParams,
    family: ModelFamily,
    predicts_next_sentence: bool,
) -> EncoderTask {
    let input = params.train_input.as_ref();
    let rate = p.dropout_rate.unwrap_or(0.1);
    let classes = check.either_spelling("model.num_labels", p.num_labels, "model.num_cls_classes", p.num_cls_classes);
    let dropout_key = "model.task_dropout";
    let dropout = check.either_spelling(dropout_key, p.task_dropout, "model.cls_dropout_rate", p.cls_dropout_rate);
    if family != ModelFamily::BertClassifier {
        note_keys_of_classifiers(check, p);
    }
    match family {
        ModelFamily::BertClassifier => EncoderTask::Classifier {
            classes: check.count("model.num_labels", classes, 2, MAX_CLASSES),
            dropout_rate: check.probability(dropout_key, dropout, rate),
        },
        ModelFamily::BertTokenClassifier => EncoderTask::TokenClassifier {
            classes: check.required_count("model.num_classes", p.num_classes, MAX_CLASSES),
            dropout_rate: check.probability("model.encoder_output_dropout_rate", p.encoder_output_dropout_rate, 0.0),
            counts_padding: p.include_padding_in_loss.unwrap_or(false),
        },
        ModelFamily::BertSummarization => {
            let value = input.and_then(|input| input.max_cls_tokens);
            let max_sentences = check.count("train_input.max_cls_tokens", value, 50, MAX_POSITIONS);
            let has_vocabulary = [input, params.eval_input.as_ref()]
                .into_iter()
                .flatten()
                .map(|input| &input.vocab_file)
                .chain([&p.vocab_file])
                .any(|file| file.as_ref().is_some_and(|file| !file.trim().is_empty()));
            let compares_words = has_vocabulary && p.compute_eval_metrics.unwrap_or(true);
            EncoderTask::Summarization { max_sentences, compares_words }
        }
        ModelFamily::BertQa => EncoderTask::QuestionAnswering {},
        _ => {
            reject_classes(check, p, family);
            let value = input.and_then(|input| input.max_predictions_per_seq);
            EncoderTask::Pretraining {
                max_predictions: value
                    .map(|value| check.count("train_input.max_predictions_per_seq", Some(value), 1, MAX_POSITIONS)),
                masked_token_weight: check.positive("model.mlm_loss_weight", p.mlm_loss_weight, 1.0),
                nonlinearity: nonlinearity(
                    check,
                    "model.mlm_nonlinearity",
                    p.mlm_nonlinearity.as_deref(),
                    Nonlinearity::Gelu,
                ),
                predicts_next_sentence,
            }
        }
    }
}

/// Rejects numbers of classes in a model that predicts tokens: it was meant as another one.
fn reject_classes(check: &mut ResolveContext<'_>, p: &ModelParams, family: ModelFamily) {
    let keys = [("num_labels", p.num_labels.is_some()), ("num_classes", p.num_classes.is_some())];
    for (key, _) in keys.into_iter().filter(|(_, is_given)| *is_given) {
        let key = format!("model.{key}");
        if family == ModelFamily::Esm2 {
            let hint = "leave it out for pre-training; classifiers are of the families bert/classifier and others";
            check.unsupported(&key, "in esm2", hint);
        } else {
            let hint = "leave it out, or set model.name to bert/classifier or bert/token_classifier";
            check.report_invalid(&key, "has no meaning in pre-training, which predicts tokens", hint);
        }
    }
}

/// Notes keys that only a classifier of samples uses. The zoo's TensorFlow files have them for other tasks, too.
fn note_keys_of_classifiers(check: &mut ResolveContext<'_>, p: &ModelParams) {
    let keys = [("cls_dropout_rate", p.cls_dropout_rate.is_some()), ("num_cls_classes", p.num_cls_classes.is_some())];
    for (key, _) in keys.into_iter().filter(|(_, is_given)| *is_given) {
        check.note(format!("model.{key} has no effect: only a classifier of samples uses it"));
    }
}

/// Returns the factor of the loss of an encoder, whose sum is divided by the number of samples.
///
/// Two of the zoo's TensorFlow programs compute it in another way: that of answers adds the losses of both positions,
/// of which the graph has the mean, and that of classes of tokens has a mean over all tokens if padding counts.
pub(super) fn loss_weight(params: &Params, p: &ModelParams, weight: f64) -> f64 {
    let input = params.train_input.as_ref();
    let processor = input.and_then(|input| input.data_processor.as_deref()).and_then(|name| PROCESSORS.get(name));
    match processor {
        Some(Processor::TfRecords(TfRecordRows::Answers)) => 2.0 * weight,
        Some(Processor::TfRecords(TfRecordRows::TokenClasses)) if p.include_padding_in_loss == Some(true) => {
            let length = input.and_then(|input| input.max_sequence_length).or(p.max_position_embeddings);
            length.map_or(weight, |length| (length.max(1) as f64).recip())
        }
        _ => weight,
    }
}

fn nonlinearity(check: &mut ResolveContext<'_>, key: &str, value: Option<&str>, default: Nonlinearity) -> Nonlinearity {
    check.keyword(key, value, default, &LAYER_NONLINEARITIES)
}

/// Rejects what decoders have and encoders lack.
pub(super) fn check_decoder_options(check: &mut ResolveContext<'_>, options: &DecoderOptions) {
    let rejected = [
        ("model.norm_type", options.norm != Norm::LayerNorm, "layernorm"),
        ("model.position_embedding_type", options.positions == Positions::Alibi, "learned or rotary"),
        ("model.attention_module", options.num_key_heads.is_some(), "aiayn_attention"),
        ("model.nonlinearity", options.is_gated, "gelu"),
    ];
    for (key, is_rejected, supported) in rejected {
        if is_rejected {
            check.unsupported(key, "of this kind in an encoder", format!("use {supported}"));
        }
    }
    let left_out = [
        ("model.attention_sliding_window_length", options.attention_window.is_some()),
        ("model.attention_inner_dim", options.attention_width.is_some()),
        ("model.scale_qk_dot_by_layer_idx", options.is_attention_scaled_by_block),
    ];
    for (key, is_rejected) in left_out {
        if is_rejected {
            check.unsupported(key, "in an encoder", "leave it out");
        }
    }
}

/// Rejects keys that have a meaning for encoders only.
fn reject_foreign_keys(check: &mut ResolveContext<'_>, p: &ModelParams, family: ModelFamily) {
    let keys = [
        ("pooler_nonlinearity", p.pooler_nonlinearity.is_some()),
        ("mlm_nonlinearity", p.mlm_nonlinearity.is_some()),
        ("mlm_loss_weight", p.mlm_loss_weight.is_some()),
        ("disable_nsp", p.disable_nsp.is_some()),
        ("token_dropout", p.token_dropout.is_some()),
        ("mask_token_id", p.mask_token_id.is_some()),
        ("num_classes", p.num_classes.is_some()),
        ("num_labels", p.num_labels.is_some()),
        ("num_cls_classes", p.num_cls_classes.is_some()),
        ("cls_dropout_rate", p.cls_dropout_rate.is_some()),
    ];
    for (key, _) in keys.into_iter().filter(|(_, is_given)| *is_given) {
        let message = format!("has no meaning for a decoder, and the model is a {family:?}");
        check.report_invalid(&format!("model.{key}"), message, "leave it out, or name an encoder, for example bert");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{LossScaling, ModelSpec};
    use crate::{FlagOverrides, Params, ParamsError};

    fn model(input: &str, model: &str) -> Result<ModelSpec, ParamsError> {
        let text = format!(
            "train_input: {{data_dir: x, batch_size: 8, max_sequence_length: 64, {input}}}\n\
             model: {{hidden_size: 64, num_hidden_layers: 2, num_heads: 4, max_position_embeddings: 128, {model}}}\n\
             optimizer: {{optimizer_type: AdamW, learning_rate: 0.1}}\nrunconfig: {{max_steps: 1}}\n"
        );
        Ok(Params::parse_yaml(&text)?.resolve(&FlagOverrides::default())?.job.model)
    }

    #[test]
    fn unnamed_encoder_is_recognized_by_its_data() {
        let words = "vocab_file: v";
        for (processor, more, keys, family) in [
            ("BertCSVDynamicMaskDataProcessor", words, "", ModelFamily::Bert),
            ("BertCSVDataProcessor", "shuffle: True", "", ModelFamily::Bert),
            ("SST2DataProcessor", words, "num_labels: 2", ModelFamily::BertClassifier),
            ("MNLIDataProcessor", words, "num_labels: 3", ModelFamily::BertClassifier),
            (
                "BertTokenClassifierDataProcessor",
                "vocab_file: v, label_vocab_file: l",
                "num_classes: 7",
                ModelFamily::BertTokenClassifier,
            ),
            ("BertSumCSVDataProcessor", words, "use_cls_bias: True", ModelFamily::BertSummarization),
            ("BertQADataProcessor", words, "", ModelFamily::BertQa),
            (
                "BertCSVDataProcessor",
                "shuffle: True",
                "token_dropout: True, mask_token_id: 9, vocab_size: 30522",
                ModelFamily::Esm2,
            ),
        ] {
            let spec = model(&format!("data_processor: {processor}, {more}"), keys).unwrap();
            assert_eq!((spec.family, spec.vocab_size), (family, 30_522), "{processor}");
            assert_eq!((spec.loss_scaling, spec.loss_weight), (LossScaling::BatchSize, 1.0));
        }
    }

    #[test]
    fn keys_of_pretraining_are_resolved() {
        let input = "data_processor: BertCSVDynamicMaskDataProcessor, vocab_file: v, max_predictions_per_seq: 20";
        let spec =
            model(input, "encoder_nonlinearity: relu, pooler_nonlinearity: gelu, mlm_loss_weight: 0.058").unwrap();
        let options = spec.encoder.unwrap();
        assert_eq!((spec.nonlinearity, options.pooler_nonlinearity), (Nonlinearity::Relu, Nonlinearity::Gelu));
        assert!(options.use_segment_embedding && !options.norm_first && !options.is_embedding_plain);
        let task = EncoderTask::Pretraining {
            max_predictions: Some(20),
            masked_token_weight: 0.058,
            nonlinearity: Nonlinearity::Gelu,
            predicts_next_sentence: true,
        };
        assert_eq!(options.task, task);
        let esm = "name: esm2, vocab_size: 33, disable_nsp: True, embedding_layer_norm: False, \
                   mask_token_id: 32, token_dropout: True, use_final_layer_norm: True, \
                   position_embedding_type: rotary";
        let options = model("data_processor: BertCSVDataProcessor", esm).unwrap().encoder.unwrap();
        assert!(options.norm_first && options.is_embedding_plain && !options.use_segment_embedding);
        assert_eq!((options.mask_token, options.has_token_dropout), (Some(32), true));
    }

    #[test]
    fn settings_that_do_not_fit_are_rejected_by_key() {
        let csv = "data_processor: BertCSVDataProcessor";
        let text = "data_processor: GptTextDataProcessor, tokenizer: bytes";
        for (input, keys, message) in [
            (csv, "norm_type: rmsnorm", "model.norm_type"),
            (csv, "position_embedding_type: alibi", "model.position_embedding_type"),
            (csv, "attention_sliding_window_length: 8", "model.attention_sliding_window_length"),
            (csv, "pooler_nonlinearity: swiglu", "model.pooler_nonlinearity swiglu"),
            (csv, "use_final_layer_norm: True", "model.use_final_layer_norm is true"),
            (csv, "token_dropout: True", "model.mask_token_id is missing"),
            (csv, "num_labels: 3", "model.num_labels has no meaning in pre-training"),
            (csv, "name: esm2, vocab_size: 33, num_labels: 3", "model.num_labels in esm2 is not supported yet"),
            (csv, "token_dropout: True, vocab_size: 9, mask_token_id: 9", "the vocabulary has 9 tokens"),
            (text, "name: bert, vocab_size: 260, mask_token_id: 7", "must be one of the last 4 tokens"),
            (csv, "name: bert/token_classifier", "model.num_classes is missing"),
            ("data_processor: BertCSVDataProcessor, use_vsl: True", "", "samples of CSV files are not packed"),
            ("data_processor: BertHDF5DataProcessor, use_vsl: True", "name: bert", "alone can read"),
            (csv, "name: bert/classifier, num_labels: 2", "BertCSVDataProcessor"),
            ("data_processor: BertCSVDynamicMaskDataProcessor", "", "train_input.vocab_file is missing"),
            (csv, "name: gpt2, vocab_size: 9", "train_input.data_processor"),
            ("data_processor: GptTokenDataProcessor", "name: gpt2, vocab_size: 9, num_labels: 2", "model.num_labels"),
        ] {
            let error = model(input, keys).unwrap_err().report();
            assert!(error.contains(message), "{keys}: {error}");
        }
    }
}
