//! Resolves `train_input` and `eval_input` together, because evaluation takes its defaults from training.

use super::check::ResolveContext;
use super::encoder_input;
use super::input_section::InputSection;
use super::line_input;
use super::packing;
use super::sample_transforms;
use super::selection::{data_subset, num_samples};
use super::source::source;
use crate::document::{InputParams, MicroBatchSetting, Params};
use crate::job::{DataSource, ImageOptions, InputSpec, ModelSpec, RunSpec, Split};
use crate::keywords::{MICRO_BATCH_RULES, MicroBatchRule, SPLIT_NAMES, SplitName};

/// Maximum number of samples, so that products with the sequence length can't overflow.
const MAX_BATCH_SAMPLES: usize = 1 << 24;
/// Maximum sequence length of a model without position embedding.
const MAX_SEQUENCE_TOKENS: usize = 1 << 22;
/// Maximum tokens of a leaf if `micro_batch_size` is `auto` and a single sample has no more.
const MAX_AUTO_LEAF_TOKENS: usize = 1024;
/// Minimum leaves of a batch if `micro_batch_size` is `auto` and the batch has as many samples: that many systems can
/// share the batch, even if the job starts with fewer.
const MIN_AUTO_LEAVES: usize = 8;
/// Maximum tokens of a leaf if `micro_batch_size` is a number. The zoo's numbers (264 samples of 2,048 tokens) are what
/// one real wafer processes at once; as leaves they would leave nothing to distribute and would not fit the memory of
/// any host.
const MAX_LEAF_TOKENS: usize = 16_384;
/// Validation fraction of a synthetic source, which only distinguishes its two streams: it has no end to cut.
const SYNTHETIC_VALIDATION_FRACTION: f64 = 0.1;

/// The two inputs.
pub(super) struct ResolvedInputs {
    pub train: InputSpec,
    pub eval: Option<InputSpec>,
}

pub(super) fn resolve(
    check: &mut ResolveContext<'_>,
    params: &Params,
    model: &ModelSpec,
    run: &RunSpec,
) -> ResolvedInputs {
    let none = InputParams::default();
    if params.train_input.is_none() {
        check.report_missing("train_input", "name at least data_processor, data_files and batch_size");
    }
    if params.eval_input.is_none() && run.mode.evaluates() {
        check.report_missing("eval_input", format!("mode {} evaluates: describe the evaluation data", run.mode));
    }
    let section = params.train_input.as_ref().unwrap_or(&none);
    let of_model = params.model.as_ref().and_then(|model| model.vocab_file.as_deref());
    let classes_of_model = params.model.as_ref().and_then(|model| model.label_vocab_file.as_deref());
    let t = InputSection {
        name: "train_input",
        params: section,
        vocab_file: vocab_file(section).or(of_model),
        tgt_vocab_file: section.tgt_vocab_file.as_deref(),
        label_vocab_file: section.label_vocab_file.as_deref().or(classes_of_model),
        inherits_silently: params.train_input.is_none(),
    };
    let mut train = input(check, &t, None, model, run);
    let eval = params.eval_input.as_ref().map(|section| {
        let vocab_file = vocab_file(section).or(t.vocab_file);
        let tgt_vocab_file = section.tgt_vocab_file.as_deref().or(t.tgt_vocab_file);
        let label_vocab_file = section.label_vocab_file.as_deref().or(t.label_vocab_file);
        let e = InputSection {
            name: "eval_input",
            params: section,
            vocab_file,
            tgt_vocab_file,
            label_vocab_file,
            inherits_silently: false,
        };
        let mut eval = input(check, &e, Some(&train), model, run);
        let [train_fraction, eval_fraction] = fractions(check, [&t, &e], [&train.source, &eval.source]);
        train.split = split(check, &t, &train.source, train_fraction, SplitName::Train);
        eval.split = split(check, &e, &eval.source, eval_fraction, SplitName::Validation);
        let is_same_part = train.data_subset == eval.data_subset;
        let overlap = is_same_part
            && train.source == eval.source
            && train.split == (Split::All {})
            && eval.split == (Split::All {});
        if overlap && run.mode.evaluates() {
            check.note(
                "evaluation reads the same samples as training: set train_input.validation_fraction to hold some out",
            );
        }
        eval
    });
    if eval.is_none() {
        let fraction = fraction(check, &t);
        train.split = split(check, &t, &train.source, fraction, SplitName::Train);
    }
    ResolvedInputs { train, eval }
}

/// Returns the vocabulary of words, in either spelling.
fn vocab_file(section: &InputParams) -> Option<&str> {
    section.src_vocab_file.as_deref().or(section.vocab_file.as_deref())
}

fn input(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    train: Option<&InputSpec>,
    model: &ModelSpec,
    run: &RunSpec,
) -> InputSpec {
    let p = s.params;
    let source = source(check, s, train.map(|t| &t.source), model);
    let batch_size = match (p.batch_size, train) {
        (None, Some(train)) => train.batch_size,
        (None, None) if s.inherits_silently => 1,
        (value, _) => check.required_count(&s.key("batch_size"), value, MAX_BATCH_SAMPLES),
    };
    let tokens = max_sequence_length(check, s, train, model);
    let image_rows = model.image.as_ref().map_or(1, ImageOptions::rows);
    if let Some(vocabulary) = p.vocab_size.filter(|v| *v != model.vocab_size as u64) {
        let message = format!("is {vocabulary}, but model.vocab_size is {}", model.vocab_size);
        check.report_invalid(&s.key("vocab_size"), message, "leave it out");
    }
    if train.is_none() {
        check.require_value(&s.key("repeat"), p.repeat, true);
    } else if p.repeat == Some(true) && run.eval_steps.is_none() {
        let message = "is true, but an evaluation without runconfig.eval_steps has no other end than that of the data";
        check.report_invalid(&s.key("repeat"), message, "set runconfig.eval_steps, or leave it out");
    }
    check.require_value(&s.key("sort_files"), p.sort_files, true);
    // Other processors of the zoo either always add them, or read samples that are complete.
    if matches!(p.data_processor.as_deref(), Some("Sst2DataProcessor" | "MnliDataProcessor")) {
        check.require_value(&s.key("add_special_tokens"), p.add_special_tokens, true);
    }
    packing::check_input(check, s, &source, model);
    line_input::check_special_tokens(check, &source, model);
    let masking = encoder_input::masking(check, s, &source, model);
    InputSpec {
        source,
        split: Split::All {},
        data_subset: data_subset(check, s),
        num_samples: num_samples(check, s),
        batch_size,
        micro_batch_size: micro_batch_size(check, s, batch_size, tokens.saturating_mul(image_rows)),
        is_micro_batch_auto: is_micro_batch_auto(p.micro_batch_size.as_ref()),
        max_sequence_length: tokens,
        shuffle: p.shuffle.unwrap_or(false),
        shuffle_seed: check
            .either_spelling(&s.key("shuffle_seed"), p.shuffle_seed, &s.key("seed"), p.seed)
            .unwrap_or(run.seed),
        masking,
        sinks: sample_transforms::sinks(check, s, model, tokens),
    }
}

fn max_sequence_length(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    train: Option<&InputSpec>,
    model: &ModelSpec,
) -> usize {
    let key = s.key("max_sequence_length");
    let older = s.key("src_max_sequence_length");
    let value = check.either_spelling(&key, s.params.max_sequence_length, &older, s.params.src_max_sequence_length);
    check_target_length(check, s, model);
    if model.image.is_some() {
        if value.is_some() {
            check.note(format!("{key} has no effect: samples are images"));
        }
        return 1;
    }
    let default = train.map_or(model.max_position_embeddings, |t| t.max_sequence_length);
    let tokens = check.count(&key, value, default, MAX_SEQUENCE_TOKENS);
    let max_positions = model.max_position_embeddings;
    if value.is_some() && model.use_position_embedding && tokens > max_positions {
        check.report_invalid(
            &key,
            format!("is {tokens}, longer than model.max_position_embeddings {max_positions}"),
            "shorten the samples or raise max_position_embeddings",
        );
    }
    tokens
}

/// Checks that the samples of both inputs have the length that the decoder of the model has.
fn check_target_length(check: &mut ResolveContext<'_>, s: &InputSection<'_>, model: &ModelSpec) {
    let Some(value) = s.params.tgt_max_sequence_length else { return };
    let key = s.key("tgt_max_sequence_length");
    match &model.seq2seq {
        None => check.report_invalid(&key, "has no meaning for this model", "leave it out"),
        Some(options) if options.target_length as u64 != value => {
            let message = format!("is {value}, but the decoder reads {} tokens", options.target_length);
            check.report_invalid(&key, message, "give both inputs the same length");
        }
        Some(_) => {}
    }
}

/// Returns the bound on a leaf's samples for `auto`. It depends only on the batch and the length of a sample, because
/// the number of systems must not change the bits.
fn auto_micro_batch_size(batch_size: usize, tokens: usize) -> usize {
    (MAX_AUTO_LEAF_TOKENS / tokens).min(batch_size / MIN_AUTO_LEAVES).max(1)
}

/// Returns whether the params leave the size of leaves to the appliance.
fn is_micro_batch_auto(value: Option<&MicroBatchSetting>) -> bool {
    match value {
        None => true,
        Some(MicroBatchSetting::Keyword(word)) => word.eq_ignore_ascii_case("auto"),
        Some(MicroBatchSetting::Samples(_) | MicroBatchSetting::Range(_)) => false,
    }
}

fn micro_batch_size(check: &mut ResolveContext<'_>, s: &InputSection<'_>, batch_size: usize, tokens: usize) -> usize {
    let key = s.key("micro_batch_size");
    let auto = auto_micro_batch_size(batch_size, tokens);
    match &s.params.micro_batch_size {
        None => auto,
        Some(MicroBatchSetting::Samples(samples)) => {
            let bound = check.count(&key, Some(*samples), auto, MAX_BATCH_SAMPLES).min(batch_size);
            let max_samples = (MAX_LEAF_TOKENS / tokens).max(1);
            if bound > max_samples {
                check.note(format!(
                    "{key} {bound} is an upper bound: a leaf has at most {MAX_LEAF_TOKENS} tokens, here {max_samples} \
                     samples"
                ));
            }
            bound.min(max_samples)
        }
        Some(MicroBatchSetting::Keyword(word)) => {
            match check.keyword(&key, Some(word), MicroBatchRule::Auto, &MICRO_BATCH_RULES) {
                MicroBatchRule::Auto => auto,
                MicroBatchRule::WholeBatch => batch_size,
            }
        }
        Some(MicroBatchSetting::Range(_)) => {
            check.unsupported(&key, "a range to explore", "give a number, auto or none");
            auto
        }
    }
}

/// Returns the fraction of a section; `None` if it is 0 or not given.
fn fraction(check: &mut ResolveContext<'_>, s: &InputSection<'_>) -> Option<f64> {
    let value = check.probability(&s.key("validation_fraction"), s.params.validation_fraction, 0.0);
    (value > 0.0).then_some(value)
}

/// Returns the fraction of each input. If both read the same files, a fraction given in one section applies to both.
fn fractions(
    check: &mut ResolveContext<'_>,
    [t, e]: [&InputSection<'_>; 2],
    [train, eval]: [&DataSource; 2],
) -> [Option<f64>; 2] {
    let (of_train, of_eval) = (fraction(check, t), fraction(check, e));
    if train != eval {
        return [of_train, of_eval];
    }
    if of_train.is_some() && of_eval.is_some() && of_train != of_eval {
        check.report_invalid(
            &e.key("validation_fraction"),
            "differs from train_input.validation_fraction, though both read the same files",
            "leave it out in one of the two",
        );
    }
    let synthetic = matches!(train, DataSource::Synthetic {}).then_some(SYNTHETIC_VALIDATION_FRACTION);
    [of_train.or(of_eval).or(synthetic); 2]
}

/// Returns whether a source has a part for training and one for evaluation, so that none is split.
const fn has_parts(source: &DataSource) -> bool {
    matches!(source, DataSource::Images { .. })
}

/// Returns the part that an input reads: the given one, else `default_part` if a fraction is set, else all.
fn split(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    source: &DataSource,
    fraction: Option<f64>,
    default_part: SplitName,
) -> Split {
    if has_parts(source) {
        if fraction.is_some() {
            let hint = "leave it out: images to evaluate on are files of their own";
            check.unsupported(&s.key("validation_fraction"), "of images", hint);
        }
        return Split::All {};
    }
    let default = if fraction.is_some() { default_part } else { SplitName::All };
    let part = check.keyword(&s.key("split"), s.params.split.as_deref(), default, &SPLIT_NAMES);
    if matches!(part, SplitName::All) {
        return Split::All {};
    }
    let fraction = fraction.unwrap_or_else(|| {
        check.report_missing(
            &s.key("validation_fraction"),
            "a split needs it: give the fraction of the tokens that is held out",
        );
        SYNTHETIC_VALIDATION_FRACTION
    });
    match part {
        SplitName::Validation => Split::Validation { fraction },
        _ => Split::Train { fraction },
    }
}
