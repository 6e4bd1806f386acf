//! The reference of the `trainer` layout, made of its table of keys.

use std::fmt::Write;

use super::wrap;
use crate::trainer::{TRAINER, TRAINER_KEYS, TrainerKey};

const DESCRIPTION: &str = "\
Releases 2.3 and later of the public model zoo write one section `trainer`. A file in this layout means the same as \
one with the classic keys below, and messages name its own keys. YAML's anchors, aliases and merge keys are read in \
both layouts.";

const RULES: &[&str] = &[
    "`trainer` may be a list of at most 16 phases, which are run one after the other. Each continues from the last \
     checkpoint of the one before, so all have one `init.model_dir`, and the phases that train have increasing \
     `init.loop.max_steps`. The model, its data, the optimizer and the schedules may differ.",
    "If `fit` has a `val_dataloader`, the mode is `train_and_eval`, and the model is evaluated at the end unless \
     `init.loop.eval_frequency` is given. `validate.val_dataloader` must then be the same.",
    "Of the callbacks, `KeepNCheckpoints` and `LoadCheckpointStates` set `runconfig.max_checkpoints` and \
     `runconfig.load_checkpoint_states`. `GlobalFlags`, `ScopedTrainFlags` and `ScopedValidateFlags` set \
     `micro_batch_size` of the inputs by `csx.performance.micro_batch_size`. Callbacks that only observe a run have no \
     effect, and all others are rejected.",
];

/// Returns what a key stands for, in Markdown.
fn meaning(key: TrainerKey) -> String {
    match key {
        TrainerKey::Same(classic) => format!("`{classic}`"),
        TrainerKey::Section(section) => format!("the keys of `{section}`"),
        TrainerKey::NoEffect(description) => {
            format!("accepted without effect. {description}")
        }
        TrainerKey::Unsupported(remedy) => format!("not supported yet: {remedy}"),
        TrainerKey::Optimizer => {
            "`optimizer.optimizer_type` with the other keys of `optimizer`, as in `AdamW: {eps: 1e-8}`".into()
        }
        TrainerKey::Schedulers => {
            "`optimizer.learning_rate`: a list of one schedule, as in `LinearLR: {total_iters: 10}`; `SequentialLR` \
             has several in its `schedulers`"
                .into()
        }
        TrainerKey::Callbacks => "a list of callbacks, see above".into(),
        TrainerKey::ValidationData => "the keys of `eval_input`, if `fit` has no `val_dataloader`".into(),
        TrainerKey::AllValidationData => "accepted without effect: `eval_input` is evaluated".into(),
    }
}

/// Appends the section about this layout to the reference in Markdown.
pub(super) fn to_markdown(text: &mut String, width: usize) {
    let _ = write!(text, "\n## The `{TRAINER}` layout\n{}\n\n", wrap(DESCRIPTION, width, ""));
    for rule in RULES {
        let _ = writeln!(text, "{}", wrap(&format!("* {rule}"), width, "  "));
    }
    text.push_str("\nThese are the keys below `trainer`, each with the classic key or section that it stands for.\n\n");
    for (path, key) in TRAINER_KEYS {
        let item = format!("* `{path}`: {}.", meaning(*key).trim_end_matches('.'));
        let _ = writeln!(text, "{}", wrap(&item, width, "  "));
    }
}

/// Describes the layout for a terminal.
pub(super) fn explain(width: usize) -> String {
    let mut text = format!("{TRAINER}\n  {}\n\nkeys\n", wrap(&DESCRIPTION.replace('`', ""), width, "  "));
    for (path, key) in TRAINER_KEYS {
        let meaning = meaning(*key).replace('`', "");
        let _ = writeln!(text, "  {TRAINER}.{path}\n      {}", wrap(&meaning, width, "      "));
    }
    text
}

/// What a path of this layout is.
pub(super) enum TrainerPath {
    /// A path of the classic layout.
    Classic(String),
    /// A key that has no classic one, with its description.
    Own(String),
}

/// Returns what a path below `trainer` stands for; `None` if it is not one of this layout. The path has no indexes.
pub(super) fn resolve(path: &str) -> Option<TrainerPath> {
    let below = path.strip_prefix(TRAINER)?.strip_prefix('.')?;
    let below = below.strip_prefix("trainer.").unwrap_or(below);
    let (found, key) = TRAINER_KEYS
        .iter()
        .find(|(key, _)| below == *key || below.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')))?;
    let rest = &below[found.len()..];
    // The name of the optimizer's class is not a key.
    let after_class = || rest.splitn(3, '.').nth(2).map(|key| format!(".{key}")).unwrap_or_default();
    Some(match key {
        TrainerKey::Same(classic) | TrainerKey::Section(classic) => TrainerPath::Classic(format!("{classic}{rest}")),
        TrainerKey::Optimizer => TrainerPath::Classic(format!("optimizer{}", after_class())),
        TrainerKey::Schedulers => {
            let key = rest.rsplit('.').next().filter(|key| key.starts_with(|c: char| c.is_ascii_lowercase()));
            let key = key.map(|key| format!(".{key}")).unwrap_or_default();
            TrainerPath::Classic(format!("optimizer.learning_rate{key}"))
        }
        TrainerKey::ValidationData => TrainerPath::Classic(format!("eval_input{rest}")),
        other => TrainerPath::Own(format!("{path}\n  {}.\n", meaning(*other).replace('`', "").trim_end_matches('.'))),
    })
}
