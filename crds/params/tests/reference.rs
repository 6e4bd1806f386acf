//! Tests that the reference of the keys states what the resolver does.

mod common;

use std::collections::BTreeSet;

use common::{SEQUENCE_KEYS, SMALL, optimizer_with};
use millrace_params::reference::{self, DefaultValue, KeyReference, SectionReference};
use millrace_params::{FlagOverrides, JobSpec, MachineDocument, MachineSpec, Params, ParamsProblem, ParamsProblemKind};
use serde_json::{Map, Value, json};

/// A key with its path, such as `optimizer.learning_rate.scheduler`.
struct Key {
    path: String,
    key: &'static KeyReference,
    section: &'static SectionReference,
}

impl Key {
    fn is_in_eval_input(&self) -> bool {
        self.path.starts_with("eval_input.")
    }

    fn default(&self) -> DefaultValue {
        self.key.eval_default().filter(|_| self.is_in_eval_input()).unwrap_or(self.key.default())
    }
}

/// Returns every key below the sections of the document.
fn keys() -> Vec<Key> {
    fn add(parent: &str, section: &'static SectionReference, keys: &mut Vec<Key>) {
        for key in section.keys {
            let path = format!("{parent}.{}", key.name);
            if let Some(nested) = key.section {
                add(&path, nested, keys);
            }
            keys.push(Key { path, key, section });
        }
    }
    let mut keys = Vec::new();
    for (name, section) in reference::sections() {
        add(name, section, &mut keys);
    }
    keys
}

/// A document as JSON, in which keys are set and removed by their paths. Its text is YAML, because JSON is YAML.
#[derive(Clone)]
struct Document(Value);

impl Document {
    /// Returns a complete document in which `path` may be given: with the schedule, the initializer or the optimizer
    /// that has it.
    fn with_place_for(path: &str) -> Self {
        let params = Params::parse_yaml(SMALL).unwrap();
        let document = Self(serde_json::to_value(params).unwrap());
        match path {
            "train_input.tokenizer" | "eval_input.tokenizer" => document.set("model.vocab_size", "50257"),
            _ if path.starts_with("sparsity.") => document.set("sparsity", sparsity_with(path)),
            _ if optimizer_with(path).is_some() => {
                document.set("optimizer.optimizer_type", optimizer_with(path).unwrap_or_default())
            }
            _ if path.starts_with("optimizer.learning_rate.") => {
                let key = path.trim_start_matches("optimizer.learning_rate.");
                document.set("optimizer.learning_rate", schedule_with(key))
            }
            _ if path.starts_with("optimizer.adjust_learning_rate.") => {
                document.set("optimizer.adjust_learning_rate", "{}")
            }
            "model.num_labels" | "model.task_dropout" | "model.problem_type" => document.with_sentences(),
            "train_input.vocab_file" | "eval_input.vocab_file" => document.with_sentences(),
            "model.num_classes" | "model.encoder_output_dropout_rate" | "model.include_padding_in_loss" => {
                document.with_classes_of_words()
            }
            "train_input.tgt_data_dir"
            | "eval_input.tgt_data_dir"
            | "train_input.tgt_vocab_file"
            | "eval_input.tgt_vocab_file" => {
                document.with_sequences().set("train_input.data_processor", "TransformerDynamicDataProcessor")
            }
            "train_input.label_vocab_file" | "eval_input.label_vocab_file" => document.with_classes_of_words(),
            "model.hidden_sizes" | "model.depth" => {
                document.with_layers().set("model", "{name: fc_mnist, depth: 2, hidden_size: 16}")
            }
            "model.dropout" | "model.activation_fn" => document.with_layers(),
            "model.image_size" | "model.num_channels" => document.with_layers(),
            _ if path.ends_with("_input.image_size") || path.ends_with("_input.num_classes") => document.with_layers(),
            "train_input.transforms" | "eval_input.transforms" => document.with_layers(),
            "model.patch_size"
            | "model.use_embed_proj_bias"
            | "model.prepend_cls_token"
            | "model.use_encoder_pooler_layer" => document.with_patches(),
            _ if SEQUENCE_KEYS.contains(&path.rsplit('.').next().unwrap_or_default()) => document.with_sequences(),
            _ if ENCODER_KEYS.contains(&path) => document.set("model.name", "bert").set("model.vocab_size", "260"),
            "model.residual_dropout_rate" => document.set("model.name", "gpt2"),
            "model.use_untied_layer_norm" => document.set("model.name", "gptj"),
            "model.rotary_dim" | "model.rope_theta" | "model.pos_scaling_factor" | "model.pos_scaling_type" => {
                document.set("model.position_embedding_type", "rotary")
            }
            _ if path.starts_with("model.pos_scaling_extra_args") => document
                .set("model.position_embedding_type", "rotary")
                .set("model.pos_scaling_type", "llama3")
                .set("model.pos_scaling_extra_args", "{}"),
            _ if path.starts_with("model.extra_attention_params") => {
                document.set("model.attention_module", "multiquery_attention")
            }
            _ => match path.split_once("initializer.") {
                Some((_, argument)) => {
                    let name = match argument {
                        "val" => "constant",
                        "scale" | "scale_type" | "mode" | "distribution" => "variance_scaling",
                        "gain" => "xavier_normal",
                        "key" => "scaled_init_normal",
                        _ => "normal",
                    };
                    let parent = path.rsplit_once('.').unwrap().0;
                    document.set(parent, &json!({ "name": name }).to_string())
                }
                None => document,
            },
        }
    }

    /// Makes the model a classifier of sentences.
    fn with_sentences(self) -> Self {
        self.set("train_input.data_processor", "SST2DataProcessor").set("train_input.vocab_file", "vocab.txt")
    }

    /// Makes the model a classifier of tokens.
    fn with_classes_of_words(self) -> Self {
        self.set("train_input.data_processor", "BertTokenClassifierDataProcessor")
            .set("train_input.vocab_file", "vocab.txt")
            .set("train_input.label_vocab_file", "classes.json")
            .set("model.num_classes", "3")
    }

    /// Makes the model a classifier of images by linear layers.
    fn with_layers(self) -> Self {
        self.set("train_input", "{data_processor: MNISTDataProcessor, data_dir: images, batch_size: 8}")
            .set("model", "{name: fc_mnist, hidden_sizes: [16]}")
    }

    /// Makes the model a classifier of images by their patches.
    fn with_patches(self) -> Self {
        let model = "{name: vision_transformer, hidden_size: 64, num_hidden_layers: 2, num_heads: 4}";
        self.set("train_input", "{data_processor: ImageNet1KProcessor, data_dir: images, batch_size: 8}")
            .set("model", model)
    }

    /// Makes the model an encoder with a decoder.
    fn with_sequences(self) -> Self {
        let model = "{hidden_size: 64, d_kv: 8, filter_size: 96, num_heads: 4, encoder_num_hidden_layers: 2, name: t5}";
        let input = "{data_processor: T5DynamicDataProcessor, batch_size: 8, max_sequence_length: 64, \
                     tgt_max_sequence_length: 24, data_dir: text, vocab_file: vocab.txt}";
        self.set("train_input", input).set("model", model)
    }

    /// Returns the document for a choice of `path`, which may need another kind of model.
    fn for_choice(&self, path: &str, choice: &str) -> Self {
        let document = self.clone();
        match choice {
            "fixed" | "relative" if path == "model.position_embedding_type" => document.with_sequences(),
            _ if !path.ends_with("data_processor") => document,
            "MNISTDataProcessor" => document.with_layers(),
            "ImageNet1KProcessor" => document.with_patches(),
            "T5DynamicDataProcessor" | "TransformerDynamicDataProcessor" => document.with_sequences(),
            "BertHDF5DataProcessor" => document.set("model.disable_nsp", "true"),
            _ => document,
        }
    }

    fn parent(&mut self, path: &str) -> &mut Map<String, Value> {
        let mut value = &mut self.0;
        for segment in path.split('.').take(path.split('.').count() - 1) {
            value = value.as_object_mut().unwrap().entry(segment).or_insert_with(|| json!({}));
        }
        value.as_object_mut().unwrap_or_else(|| panic!("{path} has no place"))
    }

    /// Sets a key to a value that is given as YAML.
    fn set(mut self, path: &str, yaml: &str) -> Self {
        let document = format!("value: {yaml}");
        let parsed: Value = serde_saphyr::from_str(&document).unwrap_or_else(|error| panic!("{yaml}: {error}"));
        let name = path.rsplit('.').next().unwrap().to_owned();
        self.parent(path).insert(name, parsed["value"].clone());
        self
    }

    fn without(mut self, path: &str) -> Self {
        let name = path.rsplit('.').next().unwrap().to_owned();
        self.parent(path).remove(&name);
        self
    }

    fn resolve(&self) -> Result<JobSpec, Vec<ParamsProblem>> {
        let params = Params::read_json(&self.0);
        let resolved = params.and_then(|params| params.resolve(&FlagOverrides::default()));
        resolved.map(|resolved| resolved.job).map_err(|error| error.problems().cloned().collect())
    }

    #[track_caller]
    fn job(&self) -> JobSpec {
        self.resolve().unwrap_or_else(|problems| panic!("{problems:?}\nin {}", self.0))
    }

    /// Returns the kind of the problem with `path`.
    fn problem(&self, path: &str) -> Option<ParamsProblemKind> {
        let problems = self.resolve().err().unwrap_or_default();
        problems.into_iter().find(|problem| problem.key == path).map(|problem| problem.kind)
    }
}

/// Keys that only encoders have, whatever their task.
const ENCODER_KEYS: &[&str] = &[
    "model.pooler_nonlinearity",
    "model.mlm_nonlinearity",
    "model.mlm_loss_weight",
    "model.disable_nsp",
    "model.use_segment_embedding",
    "model.num_segments",
    "model.use_final_layer_norm",
    "model.token_dropout",
    "model.mask_token_id",
];

/// Returns whether a key belongs to the items of a list, which other tests cover.
fn is_in_a_list(path: &str) -> bool {
    ["mixture.", "transforms."].iter().any(|list| path.contains(list))
}

/// Returns a section that may have the key.
fn sparsity_with(path: &str) -> &'static str {
    match path.split('.').nth(1) {
        Some("drop_fraction") if path.matches('.').count() > 1 => {
            "{sparsity: 0.5, algorithm: set, update: {freq: 1}, drop_fraction: {type: cosine, half_period: 9}}"
        }
        Some("schedule") => "{sparsity: 0.5, algorithm: set, schedule: {freq: 1}}",
        Some("drop_fraction" | "update") => "{sparsity: 0.5, algorithm: set, update: {freq: 1}}",
        Some("algorithm" | "type") => "{sparsity: 0.5, update: {freq: 1}}",
        _ => "{sparsity: 0.5}",
    }
}

/// Returns a schedule that may have the key.
fn schedule_with(key: &str) -> &'static str {
    const EACH: &[(&[&str], &str)] = &[
        (&["learning_rate", "val"], "{scheduler: Constant, learning_rate: 0.5}"),
        (&["power"], "{scheduler: Polynomial, initial_learning_rate: 1, total_iters: 10}"),
        (
            &["decay_rate", "staircase", "step_exponent"],
            "{scheduler: InverseExponentialTimeDecay, initial_learning_rate: 1, decay_rate: 0.5, total_iters: 10}",
        ),
        (&["scale", "warmup_steps"], "{scheduler: InverseSquareRootDecay}"),
        (&["milestones", "learning_rates"], "{scheduler: PiecewiseConstant, milestones: [2], learning_rates: [2, 1]}"),
        (&["gamma", "step_size"], "{scheduler: Step, initial_learning_rate: 1, gamma: 0.5, step_size: 3}"),
        (&["coefficient"], "{scheduler: Multiplicative, initial_learning_rate: 1, coefficient: 0.5}"),
        (&["T_max", "eta_min"], "{scheduler: CosineAnnealing, initial_learning_rate: 1, T_max: 10}"),
        (&["T_0", "T_mult"], "{scheduler: CosineAnnealingWarmRestarts, initial_learning_rate: 1, T_0: 10}"),
        (
            &["base_lr", "max_lr", "step_size_up", "step_size_down", "mode", "scale_mode"],
            "{scheduler: Cyclic, base_lr: 0.5, max_lr: 1}",
        ),
        (
            &["total_steps", "pct_start", "final_div_factor", "three_phase", "anneal_strategy"],
            "{scheduler: OneCycle, initial_learning_rate: 0.5, max_lr: 1}",
        ),
        (&["schedulers"], "{scheduler: Sequential, schedulers: [{scheduler: Constant, learning_rate: 1}]}"),
    ];
    let found = EACH.iter().find(|(keys, _)| keys.contains(&key));
    found.map_or("{scheduler: Linear, initial_learning_rate: 1, total_iters: 10}", |(_, schedule)| schedule)
}

/// A value of a key other than its default, as YAML.
fn sample(path: &str) -> &'static str {
    match path {
        "model.dropout_rate" => "0.25",
        "model.initializer" => "{name: normal, std: 0.25}",
        "model.max_position_embeddings" | "train_input.max_sequence_length" | "eval_input.max_sequence_length" => "128",
        "model.hidden_size" | "model.filter_size" => "32",
        "model.image_size" => "[20, 20]",
        "model.num_classes" => "5",
        "model.src_vocab_size" | "model.num_layers" => "300",
        "model.encoder_num_hidden_layers" | "model.num_hidden_layers" => "3",
        "train_input.tgt_max_sequence_length" | "model.tgt_max_position_embeddings" => "16",
        "train_input.drop_last" => "true",
        "train_input.data_dir" | "eval_input.data_dir" => "corpus",
        "train_input.vocab_file" | "eval_input.vocab_file" | "train_input.tgt_vocab_file" => "words.txt",
        "model.nonlinearity" => "relu",
        "model.encoder_nonlinearity" => "gelu",
        "model.vocab_size" => "256",
        "train_input.mask_whole_word" | "eval_input.mask_whole_word" => "true",
        "train_input.batch_size" => "16",
        "train_input.tokenizer" => "bytes",
        "runconfig.seed" => "7",
        "runconfig.model_dir" => "elsewhere",
        "runconfig.log_steps" | "runconfig.max_epochs" | "runconfig.max_checkpoints" => "3",
        "runconfig.checkpoint_steps" => "50",
        "optimizer.weight_decay" => "0.2",
        "optimizer.eps" => "1e-5",
        "optimizer.correct_bias" => "false",
        "optimizer.nesterov" => "false",
        "sparsity.algorithm" => "static",
        "sparsity.update" => "{freq: 3}",
        "optimizer.learning_rate.total_iters" => "20",
        "optimizer.learning_rate.learning_rate" => "0.25",
        "optimizer.learning_rate.step_size_up" => "5",
        _ => panic!("a sample of {path} is missing in this test"),
    }
}

/// Defaults that the reference describes in words, with what they are in this test's document; `None` if there is no
/// value that means the same as leaving the key out.
fn described(path: &str) -> Option<&'static str> {
    match path {
        "model.filter_size" => Some("256"),
        "model.attention_inner_dim" => Some("64"),
        "model.name" => Some("gpt2"),
        "model.norm_first" | "model.use_segment_embedding" | "model.use_position_embeddings" => Some("true"),
        // The job records only a token that is given.
        "model.mask_token_id" => None,
        "model.use_final_layer_norm" => Some("false"),
        "model.rotary_dim" => Some("16"),
        "model.extra_attention_params" => Some("{num_kv_groups: 1}"),
        "model.embedding_initializer" | "model.initializer" => Some("{name: truncated_normal, std: 0.02}"),
        "model.output_layer_initializer" | "model.ffn_output_layer_initializer" => {
            Some("{name: truncated_normal, std: 0.01}")
        }
        "model.fp16_type" => Some("float16"),
        "eval_input.data_processor" => Some("GptTextDataProcessor"),
        "eval_input.data_dir" | "eval_input.data_files" => Some("[a.txt, b.txt]"),
        "eval_input.validation_fraction" => Some("0.1"),
        "train_input.max_sequence_length" => Some("256"),
        "train_input.split" => Some("train"),
        "eval_input.split" => Some("validation"),
        "optimizer.adjust_learning_rate" => Some("{decoder_kernel: 1}"),
        "sparsity.param_filter" | "sparsity.param_name_patterns" => None,
        path if path.starts_with("sparsity.") && path.ends_with(".stop") => None,
        path if path.starts_with("optimizer.adjust_learning_rate.") => Some("1"),
        "optimizer.betas" => Some("[0.9, 0.999]"),
        "optimizer.eps" => Some("1e-6"),
        "runconfig.eval_frequency" => Some("100"),
        "runconfig.log_steps" => Some("1"),
        "runconfig.job_labels" => Some("[]"),
        // Required by the schedules of this test's documents.
        "optimizer.learning_rate.milestones" | "optimizer.learning_rate.gamma" => None,
        // None of the values that these keys may have is their default.
        "runconfig.max_epochs"
        | "runconfig.steps_per_epoch"
        | "runconfig.eval_steps"
        | "runconfig.max_checkpoints"
        | "runconfig.checkpoint_path"
        | "model.mup_base_hidden_size"
        | "model.mup_base_filter_size"
        | "model.attention_sliding_window_length" => None,
        path if path.ends_with("vocab_file") || path.ends_with("_input.max_predictions_per_seq") => None,
        path if path.ends_with("transforms") || path.ends_with("_input.tgt_data_dir") => None,
        "model.d_kv" => Some("16"),
        "model.hidden_sizes" => Some("[16, 16]"),
        "model.num_classes" => None,
        "model.position_embedding_type" => Some("learned"),
        "model.norm_type" => Some("layernorm"),
        "model.use_t5_layer_norm"
        | "model.use_relative_attention_bias"
        | "model.use_pre_encoder_decoder_layer_norm"
        | "model.use_dropout_outside_residual_path" => Some("true"),
        "model.use_transformer_initialization" => Some("false"),
        "model.attention_logit_softcapping" | "model.final_logit_softcapping" => None,
        "model.image_size" => Some("[28, 28]"),
        "model.num_channels" => Some("1"),
        path if path.ends_with("_input.mixture") || path.ends_with("_input.num_samples") => None,
        _ => match path.split_once("initializer.") {
            Some((_, "a")) => Some("-0.05"),
            Some((_, "b")) => Some("0.05"),
            // No name stands for the default scale, 1.
            Some((_, "scale_type")) => None,
            _ => panic!("the default of {path} is missing in this test"),
        },
    }
}

#[test]
fn documented_defaults_equal_those_of_the_resolver() {
    for key in keys().iter().filter(|key| key.key.has_effect() && key.key.alias_of().is_none()) {
        let path = key.path.as_str();
        if is_in_a_list(path) {
            continue;
        }
        let mut document = Document::with_place_for(path);
        if let Some((parent, "a" | "b")) = path.rsplit_once('.') {
            document = document.set(parent, "{name: uniform}");
        }
        if path == "eval_input.data_processor" {
            // A processor needs files.
            document = document.set("eval_input.data_files", "[c.txt]");
        }
        let omitted = document.clone().without(path);
        match key.default() {
            DefaultValue::Required => assert_eq!(omitted.problem(path), Some(ParamsProblemKind::Missing), "{path}"),
            DefaultValue::RequiredIf(_) => check_condition(path, &omitted),
            DefaultValue::Yaml(yaml) => {
                assert_eq!(document.set(path, yaml).job(), omitted.job(), "{path}: {yaml}");
            }
            DefaultValue::FromKey(source) => {
                let source_given = omitted.set(source, sample(source));
                let given = source_given.clone().set(path, sample(source));
                assert_eq!(given.job(), source_given.job(), "{path} is not {source}");
                assert_ne!(document.without(path).without(source).resolve().ok(), Some(given.job()), "{source}");
            }
            DefaultValue::Described(_) => {
                if path.ends_with(".milestones") || path.ends_with(".gamma") {
                    assert_eq!(omitted.problem(path), Some(ParamsProblemKind::Missing), "{path}");
                    continue;
                }
                let job = omitted.job();
                if let Some(yaml) = described(path) {
                    assert_eq!(document.set(path, yaml).job(), job, "{path}: {yaml}");
                }
            }
        }
    }
}

/// Checks a key that is required on a condition: `omitted` fulfils it.
fn check_condition(path: &str, omitted: &Document) {
    let (reported, omitted) = match path {
        "train_input.data_dir" => ("train_input.data_files", omitted.clone().without("train_input.data_files")),
        "runconfig.max_steps" => {
            assert!(omitted.clone().set("runconfig.max_epochs", "1").resolve().is_ok());
            assert!(omitted.clone().set("runconfig.mode", "eval").resolve().is_ok());
            (path, omitted.clone())
        }
        _ => (path, omitted.clone()),
    };
    assert_eq!(omitted.problem(reported), Some(ParamsProblemKind::Missing), "{path}");
}

#[test]
fn eval_input_is_required_by_modes_that_evaluate() {
    let document = Document::with_place_for("").without("eval_input");
    assert_eq!(document.problem("eval_input"), Some(ParamsProblemKind::Missing));
    assert!(document.set("runconfig.mode", "train").resolve().is_ok());
}

#[test]
fn documented_choices_equal_those_of_the_resolver() {
    for key in keys().into_iter().filter(|key| !is_in_a_list(&key.path)) {
        let path = key.path.as_str();
        let document = Document::with_place_for(path);
        // A problem with an initializer is reported at the mapping, not at its name.
        let reported = match path.strip_suffix(".name") {
            Some(initializer) if initializer.ends_with("initializer") => initializer,
            _ => path,
        };
        let problem = |yaml: &str| {
            let mut document = document.for_choice(path, yaml).set(path, yaml);
            if path == "eval_input.tokenizer" {
                // Both inputs have the same tokenizer.
                document = document.set("train_input.tokenizer", yaml);
            }
            if path == "eval_input.data_processor" {
                // Both inputs are for the same kind of model.
                document = document.set("train_input.data_processor", yaml);
            }
            document.problem(reported)
        };
        for choice in key.key.choices() {
            // A distribution without its bounds or a schedule without its lengths is a problem of another key.
            assert_eq!(problem(choice), None, "{path}: {choice}");
        }
        for choice in key.key.unsupported_choices() {
            assert_eq!(problem(choice), Some(ParamsProblemKind::NotSupported), "{path}: {choice}");
        }
        if !key.key.choices().is_empty() {
            let wrong = problem("no_such_choice").unwrap_or_else(|| panic!("{path} accepts any word"));
            assert!(matches!(wrong, ParamsProblemKind::Invalid | ParamsProblemKind::WrongType), "{path}: {wrong:?}");
        }
        if key.key.is_fixed() {
            let DefaultValue::Yaml(only) = key.default() else { panic!("{path} has no value") };
            let other = match only {
                "true" => "false",
                "false" => "true",
                _ => "7",
            };
            assert_eq!(problem(other), Some(ParamsProblemKind::NotSupported), "{path}: {other}");
        }
    }
}

#[test]
fn aliases_mean_the_same_as_their_keys() {
    for key in keys() {
        let Some(name) = key.key.alias_of() else { continue };
        assert!(key.section.key(name).is_some_and(|key| key.alias_of().is_none()), "{}: {name}", key.path);
        let canonical = format!("{}.{name}", key.path.rsplit_once('.').unwrap().0);
        let document = Document::with_place_for(&key.path).without(&canonical);
        let (alias, canonical) = match key.key.name {
            "beta1" => (document.clone().set(&key.path, "0.5"), document.set(&canonical, "[0.5, 0.999]")),
            "beta2" => (document.clone().set(&key.path, "0.5"), document.set(&canonical, "[0.9, 0.5]")),
            _ => {
                let yaml = sample(&canonical);
                (document.clone().set(&key.path, yaml), document.set(&canonical, yaml))
            }
        };
        assert_eq!(alias.job(), canonical.job(), "{}", key.path);
    }
}

#[test]
fn ignored_keys_do_not_change_the_job() {
    for key in keys().iter().filter(|key| !key.key.has_effect() && !is_in_a_list(&key.path)) {
        let yaml = match key.key.value_type {
            "true or false" => "true",
            "a string" | "a string or a list of strings" => "text",
            _ => "3",
        };
        let document = Document::with_place_for(&key.path);
        assert_eq!(document.clone().set(&key.path, yaml).job(), document.job(), "{}", key.path);
    }
}

#[test]
fn every_key_is_described_in_sentences() {
    let mut undescribed = BTreeSet::new();
    for key in keys() {
        let text = key.key.description();
        let starts = text.starts_with(|c: char| c.is_uppercase());
        if !(starts && text.ends_with('.') && !text.contains("by default")) {
            undescribed.insert(key.path);
        }
    }
    assert_eq!(undescribed, BTreeSet::new());
}

#[test]
fn documented_defaults_of_the_machine_are_those_of_its_spec() {
    let document = serde_json::to_value(MachineSpec::default().to_document()).unwrap();
    fn check(parent: &str, section: &SectionReference, document: &Value) {
        for key in section.keys {
            let (at, given) = (format!("{parent}{}", key.name), document.get(camel_case(key.name)));
            if let (Some(nested), Some(given)) = (key.section, given) {
                check(&format!("{at}."), nested, given);
            } else if let DefaultValue::Yaml(yaml) = key.default() {
                let path: Vec<String> = at.split('.').map(camel_case).collect();
                let nested = path.iter().rev().fold(yaml.to_owned(), |yaml, key| format!("{{{key}: {yaml}}}"));
                assert_eq!(MachineSpec::parse_yaml(&nested).unwrap(), MachineSpec::default(), "{nested}");
            } else {
                assert_eq!(given, None, "{at} has a default");
            }
        }
    }
    check("", MachineDocument::REFERENCE, &document);
}

fn camel_case(key: &str) -> String {
    let mut words = key.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |camel, word| format!("{camel}{}{}", word[..1].to_uppercase(), &word[1..]))
}

#[test]
fn explain_finds_keys_aliases_and_near_misses() {
    for (path, expected) in [
        ("", "runconfig"),
        ("model", "num_hidden_layers"),
        ("model.nonlinearity", "gelu, gelu_new, gelu_fast"),
        ("nonlinearity", "model.nonlinearity"),
        ("optimizer.weight_decay_rate", "another spelling of optimizer.weight_decay"),
        ("optimizer.learning_rate.0.scheduler", "CosineDecay"),
        ("eval_input.batch_size", "the value of train_input.batch_size"),
        ("runconfig.target_device", "none: the key is accepted"),
        ("model.pos_scaling_extra_args.low_freq_factor", "original_max_position_embeddings"),
        ("model.moe", "not supported yet: leave it out for a dense feed-forward network"),
        ("inference_input", "not supported yet"),
    ] {
        let text = reference::explain(path).unwrap_or_else(|error| panic!("{error}"));
        assert!(text.contains(expected), "{expected:?} in {text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }
    for (path, suggestion) in [
        ("model.nonlinarity", Some("model.nonlinearity")),
        ("nonlinarity", Some("model.nonlinearity")),
        ("modle.num_heads", Some("model.num_heads")),
        ("runconfg", Some("runconfig")),
        ("model.nonlinearity.x", Some("model.nonlinearity")),
        ("flux_capacitor", None),
        (".", None),
    ] {
        let error = reference::explain(path).expect_err(path);
        assert_eq!((error.path.as_str(), error.suggestion.as_deref()), (path, suggestion));
    }
}

#[test]
fn every_key_can_be_explained() {
    for key in keys() {
        let text = reference::explain(&key.path).unwrap_or_else(|error| panic!("{error}"));
        let name = key.key.alias_of().unwrap_or(key.key.name);
        assert!(text.contains(name), "{text}");
    }
}
