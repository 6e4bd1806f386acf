//! Resolves the source of an input's tokens: processor, files and tokenizer.

use super::check::ResolveContext;
use super::encoder_input;
use super::input_section::InputSection;
use super::line_input;
use super::text_input;
use super::transforms::images;
use crate::document::{MixtureParams, OneOrMany};
use crate::job::{DataSource, ImageFormat, MixturePart, ModelFamily, ModelSpec, TfRecordRows, TokenType};
use crate::keywords::{PROCESSORS, Processor};

const PROCESSOR_HINT: &str = "use GptTextDataProcessor (text files), GptTokenDataProcessor (.bin or .npy files of \
                              tokens), GptHDF5DataProcessor or SyntheticDataProcessor";
/// Weights of a mixture are whole multiples of 1 / `MIXTURE_UNITS` of their sum, so that shares of up to four decimals
/// are exact.
const MIXTURE_UNITS: f64 = 10_000.0;
/// Maximum sources of a mixture; each needs at least one unit.
const MAX_MIXTURE_SOURCES: usize = 1_000;

/// Returns the source of a section. An evaluation (`train` is given) takes its defaults from training.
pub(super) fn source(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    train: Option<&DataSource>,
    model: &ModelSpec,
) -> DataSource {
    let p = s.params;
    let directories =
        check.either_spelling(&s.key("data_dir"), p.data_dir.as_ref(), &s.key("src_data_dir"), p.src_data_dir.as_ref());
    let (files, older) = (p.data_files.as_ref(), p.data_file.as_ref());
    let files = check.either_spelling(&s.key("data_files"), files, &s.key("data_file"), older);
    let paths = [directories, files].into_iter().flatten().flat_map(OneOrMany::as_slice);
    let mut paths: Vec<String> = paths.cloned().collect();
    let processor = match (&p.data_processor, train) {
        (None, Some(DataSource::Images { images, .. })) => Processor::Images(images.format),
        (None, _) if model.image.is_some() => Processor::Images(image_format(model)),
        (None, Some(train)) if paths.is_empty() && p.mixture.is_none() => {
            text_input::check_same_files(check, s, train);
            return train.clone();
        }
        (None, Some(DataSource::Text { .. })) => Processor::Text,
        (None, Some(DataSource::Tokens { .. })) => Processor::Tokens,
        (None, Some(DataSource::Hdf5 { .. })) => Processor::Hdf5,
        (None, Some(DataSource::Csv { rows, .. })) => Processor::Csv(*rows),
        (None, Some(DataSource::EncoderHdf5 { .. })) => Processor::EncoderHdf5,
        (None, Some(DataSource::Arrays { .. })) => Processor::Arrays,
        (None, Some(DataSource::Python { .. })) => Processor::Python,
        (None, Some(DataSource::TfRecords { rows, .. })) => Processor::TfRecords(*rows),
        (None, Some(DataSource::Synthetic {})) => Processor::Synthetic,
        (None, Some(DataSource::Lines { rows, .. })) => Processor::Lines(*rows),
        (None, None) => {
            if !s.inherits_silently {
                check.report_missing(&s.key("data_processor"), PROCESSOR_HINT);
            }
            return placeholder_source();
        }
        (Some(name), _) => match processor(check, s, name) {
            Some(processor) => processor,
            None => return placeholder_source(),
        },
    };
    check_processor(check, s, processor, model);
    if let (true, Some(train @ DataSource::Images { .. })) = (paths.is_empty(), train) {
        paths = images_paths(train);
    }
    let mixture = mixture(check, s, processor, &mut paths);
    let source = match processor {
        Processor::Synthetic => {
            if !paths.is_empty() {
                check.note(format!("the files of {} are not read: its samples are synthetic", s.name));
            }
            DataSource::Synthetic {}
        }
        Processor::Lines(rows) => line_input::lines(check, s, paths, rows),
        Processor::Tokens => text_input::tokens(check, s, train, paths),
        Processor::Hdf5 => DataSource::Hdf5 { paths, mixture },
        Processor::Csv(rows) => encoder_input::csv(check, s, model, paths, rows),
        Processor::EncoderHdf5 => DataSource::EncoderHdf5 { paths },
        Processor::Arrays => DataSource::Arrays { paths },
        Processor::Python => DataSource::Python { paths },
        Processor::TfRecords(rows) => encoder_input::records(check, s, model, paths, rows),
        Processor::Images(format) => {
            DataSource::Images { paths, images: images(check, s, format, model, train.is_some()) }
        }
        Processor::Text => text_input::text(check, s, train, model, paths),
    };
    if let DataSource::Tokens { paths, .. }
    | DataSource::Hdf5 { paths, .. }
    | DataSource::EncoderHdf5 { paths }
    | DataSource::Arrays { paths }
    | DataSource::Python { paths }
    | DataSource::TfRecords { paths, .. }
    | DataSource::Images { paths, .. } = &source
        && p.mixture.is_none()
    {
        check_paths(check, s, paths);
    }
    if let DataSource::Python { paths } = &source
        && paths.len() > 1
    {
        let hint = "name the directory of one package; a dataset in Python can read several others";
        check.report_invalid(&s.key("data_dir"), format!("names {} directories", paths.len()), hint);
    }
    text_input::note_unused_keys(check, s, processor);
    source
}

/// Checks that an input names files.
pub(super) fn check_paths(check: &mut ResolveContext<'_>, s: &InputSection<'_>, paths: &[String]) {
    if !s.inherits_silently && (paths.is_empty() || paths.iter().any(|path| path.trim().is_empty())) {
        check.report_missing(&s.key("data_files"), "name at least one file, directory or glob");
    }
}

/// Returns how the images of a model are stored if the params do not say it.
fn image_format(model: &ModelSpec) -> ImageFormat {
    if model.family == ModelFamily::FcMnist { ImageFormat::Idx } else { ImageFormat::Folder }
}

/// Returns the paths of the training data, of which an evaluation without its own reads the other part.
fn images_paths(train: &DataSource) -> Vec<String> {
    if let DataSource::Images { paths, .. } = train { paths.clone() } else { Vec::new() }
}

/// Checks that the samples are what the model reads: images or tokens.
fn check_processor(check: &mut ResolveContext<'_>, s: &InputSection<'_>, processor: Processor, model: &ModelSpec) {
    let key = s.key("data_processor");
    let name = s.params.data_processor.as_deref().unwrap_or_default();
    let is_for_graphs = match processor {
        Processor::Text | Processor::Tokens | Processor::Hdf5 | Processor::Synthetic => true,
        Processor::Arrays | Processor::Python => true,
        Processor::TfRecords(rows) => rows == TfRecordRows::Tokens,
        Processor::Images(_) | Processor::Lines(_) | Processor::Csv(_) | Processor::EncoderHdf5 => false,
    };
    if model.graph.is_some() && !is_for_graphs {
        let hint = "use ArrayDataProcessor, or GptTextDataProcessor and its like for a graph that reads input_ids";
        return check.report_invalid(&key, format!("is {name}, which only models of a family read"), hint);
    }
    if model.graph.is_none() && matches!(processor, Processor::Arrays | Processor::Python) {
        let hint = "describe the model by model.graph, or use another data_processor";
        return check.report_invalid(&key, format!("is {name}, but the model has no graph document"), hint);
    }
    match (matches!(processor, Processor::Images(_)), model.image.is_some()) {
        (false, true) => {
            let hint = "use MNISTDataProcessor or ImageNet1KProcessor";
            check.report_invalid(&key, format!("is {name}, but the model reads images"), hint);
        }
        (true, false) => check.report_invalid(&key, format!("is {name}, but the model reads tokens"), PROCESSOR_HINT),
        _ => {}
    }
    line_input::check_processor(check, s, processor, model);
}

/// Returns the parts of the mixture, and adds their paths to `paths`.
fn mixture(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    processor: Processor,
    paths: &mut Vec<String>,
) -> Vec<MixturePart> {
    let Some(mixture) = &s.params.mixture else { return Vec::new() };
    let key = s.key("mixture");
    if processor != Processor::Hdf5 {
        check.unsupported(&key, "of other files than HDF5", "concatenate the sources in data_files");
    } else if !paths.is_empty() {
        check.report_invalid(&key, "is given beside data_dir or data_files", "name all files in the mixture");
    } else if mixture.is_empty() || mixture.len() > MAX_MIXTURE_SOURCES {
        let hint = format!("name from 1 to {MAX_MIXTURE_SOURCES} sources, each with data_dir and weight");
        check.report_invalid(&key, format!("has {} sources", mixture.len()), hint);
    } else {
        return mixture_parts(check, &key, mixture, paths);
    }
    Vec::new()
}

fn mixture_parts(
    check: &mut ResolveContext<'_>,
    key: &str,
    mixture: &[MixtureParams],
    paths: &mut Vec<String>,
) -> Vec<MixturePart> {
    let weight = |source: &MixtureParams| source.weight.filter(|weight| weight.is_finite() && *weight > 0.0);
    let total: f64 = mixture.iter().filter_map(weight).sum();
    let mut parts = Vec::new();
    for (index, source) in mixture.iter().enumerate() {
        let source_paths = source.data_dir.as_ref().map(OneOrMany::as_slice).unwrap_or_default();
        let key = format!("{key}.{index}");
        if source_paths.is_empty() || source_paths.iter().any(|path| path.trim().is_empty()) {
            check.report_missing(&format!("{key}.data_dir"), "name at least one file, directory or glob");
        }
        let units = match (source.weight, weight(source)) {
            (None, _) => {
                check.report_missing(&format!("{key}.weight"), "give a number greater than 0");
                continue;
            }
            (Some(mixture), None) => {
                let key = format!("{key}.weight");
                check.report_invalid(
                    &key,
                    format!("is {mixture}, which is out of range"),
                    "give a number greater than 0",
                );
                continue;
            }
            (_, Some(weight)) => (weight / total * MIXTURE_UNITS).round(),
        };
        if units < 1.0 {
            let message = format!("is less than 1/{MIXTURE_UNITS} of the sum of all weights");
            check.report_invalid(&format!("{key}.weight"), message, "leave the source out, or give it more weight");
        }
        paths.extend_from_slice(source_paths);
        parts.push(MixturePart { paths: source_paths.len(), weight: units as u32 });
    }
    parts
}

/// Returns a placeholder for a rejected source, so that the section's other keys about files are not reported.
fn placeholder_source() -> DataSource {
    DataSource::Tokens { paths: Vec::new(), token_type: TokenType::default() }
}

fn processor(check: &mut ResolveContext<'_>, s: &InputSection<'_>, name: &str) -> Option<Processor> {
    let key = s.key("data_processor");
    let processor = PROCESSORS.get(name);
    if processor.is_none() && name.to_ascii_lowercase().contains("hdf5") {
        check.unsupported(&key, name, PROCESSOR_HINT);
        return None;
    }
    // The value is used only if the name is known; otherwise a problem has been recorded.
    check.keyword(&key, Some(name), Processor::Synthetic, &PROCESSORS);
    processor
}
