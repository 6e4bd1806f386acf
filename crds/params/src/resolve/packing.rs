//! Resolves `use_vsl`: whether samples contain several sequences (variable sequence length).

use super::check::ResolveContext;
use super::input_section::InputSection;
use crate::document::{ModelParams, Params};
use crate::job::{DataSource, DecoderOptions, EncoderTask, ModelFamily, ModelSpec};

/// Returns whether samples are packed, which the training data say, or else the model.
pub(super) fn is_packed(
    check: &mut ResolveContext<'_>,
    params: &Params,
    p: &ModelParams,
    family: ModelFamily,
    decoder: &DecoderOptions,
) -> bool {
    let key = "model.use_vsl";
    let of_data = params.train_input.as_ref().and_then(|input| input.use_vsl);
    if family.is_encoder() {
        // In files for TensorFlow, the key of the model means that padding is not computed.
        if p.use_vsl == Some(true) && of_data != Some(true) {
            check.note(
                "model.use_vsl has no effect: train_input.use_vsl says whether samples contain several sequences",
            );
        }
        return of_data.unwrap_or(false);
    }
    if let (Some(of_data), Some(of_model)) = (of_data, p.use_vsl)
        && of_data != of_model
    {
        let message = format!("is {of_model}, but train_input.use_vsl is {of_data}");
        check.report_invalid(key, message, "leave model.use_vsl out");
    }
    let is_packed = of_data.or(p.use_vsl).unwrap_or(false);
    if is_packed && decoder.attention_window.is_some() {
        let message = "excludes model.attention_sliding_window_length";
        check.report_invalid(key, message, "leave one of the two out");
    }
    is_packed
}

/// Checks that an input has the samples that the model reads.
pub(super) fn check_input(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    source: &DataSource,
    model: &ModelSpec,
) {
    let (key, value) = (s.key("use_vsl"), s.params.use_vsl);
    if let Some(encoder) = &model.encoder {
        return check_encoder_input(check, s, source, &encoder.task, model.decoder.is_packed);
    }
    if model.seq2seq.is_some() {
        if value == Some(true) {
            check.note(format!("{key} has no effect: samples of this model are padded"));
        }
        return;
    }
    if model.image.is_some() || model.graph.is_some() {
        return check.require_value(&key, value, false);
    }
    let is_packed = model.decoder.is_packed;
    if let Some(value) = value.filter(|value| *value != is_packed) {
        let message = format!("is {value}, but that of train_input is {is_packed}");
        check.report_invalid(&key, message, "give both inputs samples of one kind");
    }
    if !is_packed {
        return;
    }
    // An evaluation without a processor of its own has the source of training.
    let has_own_source = s.name == "train_input" || s.params.data_processor.is_some();
    if !matches!(source, DataSource::Hdf5 { .. }) && has_own_source && !s.inherits_silently {
        let message = format!("is true, but samples of {} are not packed", source.description());
        check.report_invalid(&key, message, "use GptHDF5DataProcessor, or leave it out");
    }
    if s.params.data_transforms.as_ref().is_some_and(|transforms| !transforms.is_empty()) {
        let message = "is true, which excludes data_transforms";
        check.report_invalid(&key, message, "leave one of the two out");
    }
}

/// Checks an input of an encoder. Samples of one sequence may be evaluated by a model that is trained on packed ones.
fn check_encoder_input(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    source: &DataSource,
    task: &EncoderTask,
    is_packed: bool,
) {
    let (key, value) = (s.key("use_vsl"), s.params.use_vsl);
    if value == Some(true) && !is_packed {
        return check.report_invalid(&key, "is true, but that of train_input is false", "set it in train_input, too");
    }
    if value != Some(true) || s.inherits_silently {
        return;
    }
    // An evaluation without a processor of its own has the source of training.
    let has_own_source = s.name == "train_input" || s.params.data_processor.is_some();
    if !matches!(source, DataSource::EncoderHdf5 { .. }) && has_own_source {
        let message = format!("is true, but samples of {} are not packed", source.description());
        return check.report_invalid(&key, message, "use BertHDF5DataProcessor, or leave it out");
    }
    if !matches!(task, EncoderTask::Pretraining { predicts_next_sentence: false, .. }) {
        let message = "is true, which only models that predict masked tokens alone can read";
        check.report_invalid(&key, message, "leave it out, or set model.disable_nsp");
    }
}
