//! Resolves `train_input` and `eval_input` together, because evaluation takes its defaults from training.

use super::check::Check;
use super::source::source;
use crate::document::{InputParams, MicroBatchChoice, Params};
use crate::job::{InputSpec, ModelSpec, RunSpec, Source, Split};

/// Maximum number of samples, so that products with the sequence length can't overflow.
const MOST_SAMPLES: usize = 1 << 24;
/// Maximum sequence length of a model without position embedding.
const MOST_TOKENS: usize = 1 << 22;
/// Maximum tokens of a leaf if `micro_batch_size` is `auto` and a single sample has no more.
const AUTO_LEAF_TOKENS: usize = 1024;
/// Minimum leaves of a batch if `micro_batch_size` is `auto` and the batch has as many samples: that many systems can
/// share the batch, even if the job starts with fewer.
const MIN_AUTO_LEAVES: usize = 8;
/// Maximum tokens of a leaf if `micro_batch_size` is a number. The zoo's numbers (264 samples of 2,048 tokens) are what
/// one real wafer processes at once; as leaves they would leave nothing to distribute and would not fit the memory of
/// any host.
const MOST_LEAF_TOKENS: usize = 16_384;
/// Validation fraction of a synthetic source, which only distinguishes its two streams: it has no end to cut.
const SYNTHETIC_FRACTION: f64 = 0.1;

/// The two inputs.
pub(super) struct Inputs {
    pub train: InputSpec,
    pub eval: Option<InputSpec>,
}

pub(super) fn resolve(check: &mut Check<'_>, params: &Params, model: &ModelSpec, run: &RunSpec) -> Inputs {
    let none = InputParams::default();
    if params.train_input.is_none() {
        check.missing("train_input", "name at least data_processor, data_files and batch_size");
    }
    if params.eval_input.is_none() && run.mode.evaluates() {
        check.missing("eval_input", format!("mode {} evaluates: describe what on", run.mode));
    }
    let t = Section {
        name: "train_input",
        given: params.train_input.as_ref().unwrap_or(&none),
        quiet: params.train_input.is_none(),
    };
    let mut train = input(check, &t, None, model, run);
    let eval = params.eval_input.as_ref().map(|given| {
        let e = Section { name: "eval_input", given, quiet: false };
        let mut eval = input(check, &e, Some(&train), model, run);
        let [train_fraction, eval_fraction] = fractions(check, [&t, &e], [&train.source, &eval.source]);
        train.split = split(check, &t, train_fraction, Part::Train);
        eval.split = split(check, &e, eval_fraction, Part::Validation);
        let overlap = train.source == eval.source && train.split == (Split::All {}) && eval.split == (Split::All {});
        if overlap && run.mode.evaluates() {
            check.note(
                "evaluation reads the same samples as training: set train_input.validation_fraction to keep some apart",
            );
        }
        eval
    });
    if eval.is_none() {
        let fraction = fraction(check, &t);
        train.split = split(check, &t, fraction, Part::Train);
    }
    Inputs { train, eval }
}

/// One of the two sections.
pub(super) struct Section<'a> {
    pub name: &'static str,
    pub given: &'a InputParams,
    /// Whether the section is missing: that is recorded already, so no problems with its keys are.
    pub quiet: bool,
}

impl Section<'_> {
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }
}

fn input(
    check: &mut Check<'_>,
    s: &Section<'_>,
    train: Option<&InputSpec>,
    model: &ModelSpec,
    run: &RunSpec,
) -> InputSpec {
    let p = s.given;
    let source = source(check, s, train.map(|t| &t.source), model);
    let batch_size = match (p.batch_size, train) {
        (None, Some(train)) => train.batch_size,
        (None, None) if s.quiet => 1,
        (given, _) => check.required_count(&s.key("batch_size"), given, MOST_SAMPLES),
    };
    let tokens = max_sequence_length(check, s, train, model);
    if let Some(vocabulary) = p.vocab_size.filter(|v| *v != model.vocab_size as u64) {
        let says = format!("is {vocabulary}, but model.vocab_size is {}", model.vocab_size);
        check.invalid(&s.key("vocab_size"), says, "leave it out");
    }
    check.only(&s.key("repeat"), p.repeat, train.is_none());
    InputSpec {
        source,
        split: Split::All {},
        batch_size,
        micro_batch_size: micro_batch_size(check, s, batch_size, tokens),
        is_micro_batch_auto: is_micro_batch_auto(p.micro_batch_size.as_ref()),
        max_sequence_length: tokens,
        shuffle: p.shuffle.unwrap_or(false),
        shuffle_seed: p.shuffle_seed.unwrap_or(run.seed),
    }
}

fn max_sequence_length(check: &mut Check<'_>, s: &Section<'_>, train: Option<&InputSpec>, model: &ModelSpec) -> usize {
    let key = s.key("max_sequence_length");
    let given = s.given.max_sequence_length;
    let default = train.map_or(model.max_position_embeddings, |t| t.max_sequence_length);
    let tokens = check.count(&key, given, default, MOST_TOKENS);
    let longest = model.max_position_embeddings;
    if given.is_some() && model.use_position_embedding && tokens > longest {
        check.invalid(
            &key,
            format!("is {tokens}, longer than model.max_position_embeddings {longest}"),
            "shorten the samples or raise max_position_embeddings",
        );
    }
    tokens
}

/// Returns the bound on a leaf's samples for `auto`. It depends only on the batch and the length of a sample, because
/// the number of systems must not change the bits.
fn auto_micro_batch_size(batch_size: usize, tokens: usize) -> usize {
    (AUTO_LEAF_TOKENS / tokens).min(batch_size / MIN_AUTO_LEAVES).max(1)
}

/// Returns whether the params leave the size of leaves to the appliance.
fn is_micro_batch_auto(given: Option<&MicroBatchChoice>) -> bool {
    match given {
        None => true,
        Some(MicroBatchChoice::Keyword(word)) => word.eq_ignore_ascii_case("auto"),
        Some(MicroBatchChoice::Samples(_) | MicroBatchChoice::Range(_)) => false,
    }
}

fn micro_batch_size(check: &mut Check<'_>, s: &Section<'_>, batch_size: usize, tokens: usize) -> usize {
    let key = s.key("micro_batch_size");
    let auto = auto_micro_batch_size(batch_size, tokens);
    match &s.given.micro_batch_size {
        None => auto,
        Some(MicroBatchChoice::Samples(samples)) => {
            let bound = check.count(&key, Some(*samples), auto, MOST_SAMPLES).min(batch_size);
            let most = (MOST_LEAF_TOKENS / tokens).max(1);
            if bound > most {
                check.note(format!(
                    "{key} {bound} is an upper bound: a leaf has at most {MOST_LEAF_TOKENS} tokens, here {most} samples"
                ));
            }
            bound.min(most)
        }
        Some(MicroBatchChoice::Keyword(word)) => {
            let table = &[("auto", auto), ("none", batch_size)];
            check.word(&key, Some(word), auto, table, &["explore"])
        }
        Some(MicroBatchChoice::Range(_)) => {
            check.not_yet(&key, "a range to explore", "give a number, auto or none");
            auto
        }
    }
}

/// Returns the fraction of a section; `None` if it is 0 or not given.
fn fraction(check: &mut Check<'_>, s: &Section<'_>) -> Option<f64> {
    let given = check.probability(&s.key("validation_fraction"), s.given.validation_fraction, 0.0);
    (given > 0.0).then_some(given)
}

/// Returns the fraction of each input. If both read the same files, a fraction given in one section applies to both.
fn fractions(check: &mut Check<'_>, [t, e]: [&Section<'_>; 2], [train, eval]: [&Source; 2]) -> [Option<f64>; 2] {
    let (of_train, of_eval) = (fraction(check, t), fraction(check, e));
    if train != eval {
        return [of_train, of_eval];
    }
    if of_train.is_some() && of_eval.is_some() && of_train != of_eval {
        check.invalid(
            &e.key("validation_fraction"),
            "differs from train_input.validation_fraction, though both read the same files",
            "leave it out in one of the two",
        );
    }
    let synthetic = matches!(train, Source::Synthetic {}).then_some(SYNTHETIC_FRACTION);
    [of_train.or(of_eval).or(synthetic); 2]
}

#[derive(Clone, Copy)]
enum Part {
    All,
    Train,
    Validation,
}

const PARTS: &[(&str, Part)] = &[("all", Part::All), ("train", Part::Train), ("validation", Part::Validation)];

/// Returns the part that an input reads: the given one, else `own` if a fraction is set, else all.
fn split(check: &mut Check<'_>, s: &Section<'_>, fraction: Option<f64>, own: Part) -> Split {
    let default = if fraction.is_some() { own } else { Part::All };
    let part = check.word(&s.key("split"), s.given.split.as_deref(), default, PARTS, &[]);
    if matches!(part, Part::All) {
        return Split::All {};
    }
    let fraction = fraction.unwrap_or_else(|| {
        check.missing(&s.key("validation_fraction"), "a split needs it: say which share of the tokens is kept apart");
        SYNTHETIC_FRACTION
    });
    match part {
        Part::Validation => Split::Validation { fraction },
        _ => Split::Train { fraction },
    }
}
