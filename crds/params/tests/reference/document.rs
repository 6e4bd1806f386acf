//! Complete documents in which any key may be given.

use millrace_params::{FlagOverrides, JobSpec, Params, ParamsProblem, ParamsProblemKind};
use serde_json::{Map, Value, json};

use crate::common::{SEQUENCE_KEYS, SMALL, optimizer_with};

/// A document as JSON, in which keys are set and removed by their paths. Its text is YAML, because JSON is YAML.
#[derive(Clone)]
pub struct Document(Value);

impl Document {
    /// Returns a complete document in which `path` may be given: with the schedule, the initializer or the optimizer
    /// that has it.
    pub fn with_place_for(path: &str) -> Self {
        let params = Params::parse_yaml(SMALL).unwrap();
        let document = Self(serde_json::to_value(params).unwrap());
        match path {
            "train_input.tokenizer" | "eval_input.tokenizer" => document.set("model.vocab_size", "50257"),
            "train_input.tokenizer_file" => document.set("model.vocab_size", "50257").without("train_input.tokenizer"),
            "train_input.token_dtype" | "eval_input.token_dtype" => {
                document.set("train_input.data_processor", "GptTokenDataProcessor").without("train_input.tokenizer")
            }
            _ if path.starts_with("sparsity.") => document.set("sparsity", sparsity_with(path)),
            "optimizer.nesterov" | "optimizer.use_nesterov" => {
                document.set("optimizer.optimizer_type", "SGD").set("optimizer.momentum", "0.5")
            }
            _ if path.starts_with("optimizer.momentum_schedule.") => {
                document.set("optimizer.momentum_schedule", "{steps: [0], values: [0.5]}")
            }
            _ if optimizer_with(path).is_some() => {
                document.set("optimizer.optimizer_type", optimizer_with(path).unwrap_or_default())
            }
            _ if path.starts_with("optimizer.learning_rate.") => {
                let key = path.trim_start_matches("optimizer.learning_rate.");
                document.set("optimizer.learning_rate", schedule_with(key))
            }
            _ if path.starts_with("optimizer.adjust_learning_rate.") => {
                let document = match path.rsplit('.').next().unwrap_or_default() {
                    "encoder_qkv_projection" | "encoder_output_projection" => document.with_sequences(),
                    "pooler" => document.with_sentences(),
                    key if key.starts_with("encoder_") => document.with_sentences(),
                    _ => document,
                };
                document.set("optimizer.adjust_learning_rate", "{}")
            }
            "model.num_labels" | "model.task_dropout" | "model.problem_type" => document.with_sentences(),
            "model.num_cls_classes" | "model.cls_dropout_rate" => document.with_sentences(),
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
            _ if path.ends_with("_input.patch_size") || path.ends_with("_input.image_channels") => {
                document.with_patches()
            }
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
    pub fn with_sentences(self) -> Self {
        self.set("train_input.data_processor", "SST2DataProcessor").set("train_input.vocab_file", "vocab.txt")
    }

    /// Makes the model a classifier of tokens.
    pub fn with_classes_of_words(self) -> Self {
        self.set("train_input.data_processor", "BertTokenClassifierDataProcessor")
            .set("train_input.vocab_file", "vocab.txt")
            .set("train_input.label_vocab_file", "classes.json")
            .set("model.num_classes", "3")
    }

    /// Makes the model a classifier of images by linear layers.
    pub fn with_layers(self) -> Self {
        self.set("train_input", "{data_processor: MNISTDataProcessor, data_dir: images, batch_size: 8}")
            .set("model", "{name: fc_mnist, hidden_sizes: [16]}")
    }

    /// Makes the model a classifier of images by their patches.
    pub fn with_patches(self) -> Self {
        let model = "{name: vision_transformer, hidden_size: 64, num_hidden_layers: 2, num_heads: 4}";
        self.set("train_input", "{data_processor: ImageNet1KProcessor, data_dir: images, batch_size: 8}")
            .set("model", model)
    }

    /// Makes the model an encoder with a decoder.
    pub fn with_sequences(self) -> Self {
        let model = "{hidden_size: 64, d_kv: 8, filter_size: 96, num_heads: 4, encoder_num_hidden_layers: 2, name: t5}";
        let input = "{data_processor: T5DynamicDataProcessor, batch_size: 8, max_sequence_length: 64, \
                     tgt_max_sequence_length: 24, data_dir: text, vocab_file: vocab.txt}";
        self.set("train_input", input).set("model", model)
    }

    /// Returns the document for a choice of `path`, which may need another kind of model.
    pub fn for_choice(&self, path: &str, choice: &str) -> Self {
        let document = self.clone();
        match choice {
            "fixed" | "relative" if path == "model.position_embedding_type" => document.with_sequences(),
            _ if !path.ends_with("data_processor") => document,
            "MNISTDataProcessor" => document.with_layers(),
            "ArrayDataProcessor" | "PythonDataProcessor" => document.set("model", "{graph: net.json}"),
            "ImageNet1KProcessor" => document.with_patches(),
            "T5DynamicDataProcessor" | "TransformerDynamicDataProcessor" => document.with_sequences(),
            "BertHDF5DataProcessor" => document.set("model.disable_nsp", "true"),
            _ => document,
        }
    }

    pub fn parent(&mut self, path: &str) -> &mut Map<String, Value> {
        let mut value = &mut self.0;
        for segment in path.split('.').take(path.split('.').count() - 1) {
            value = value.as_object_mut().unwrap().entry(segment).or_insert_with(|| json!({}));
        }
        value.as_object_mut().unwrap_or_else(|| panic!("{path} has no place"))
    }

    /// Sets a key to a value that is given as YAML.
    pub fn set(mut self, path: &str, yaml: &str) -> Self {
        let document = format!("value: {yaml}");
        let parsed: Value = serde_saphyr::from_str(&document).unwrap_or_else(|error| panic!("{yaml}: {error}"));
        let name = path.rsplit('.').next().unwrap().to_owned();
        self.parent(path).insert(name, parsed["value"].clone());
        self
    }

    pub fn without(mut self, path: &str) -> Self {
        let name = path.rsplit('.').next().unwrap().to_owned();
        self.parent(path).remove(&name);
        self
    }

    pub fn resolve(&self) -> Result<JobSpec, Vec<ParamsProblem>> {
        let params = Params::read_json(&self.0);
        let resolved = params.and_then(|params| params.resolve(&FlagOverrides::default()));
        resolved.map(|resolved| resolved.job).map_err(|error| error.problems().cloned().collect())
    }

    #[track_caller]
    pub fn job(&self) -> JobSpec {
        self.resolve().unwrap_or_else(|problems| panic!("{problems:?}\nin {}", self.0))
    }

    /// Returns the kind of the problem with `path`.
    pub fn problem(&self, path: &str) -> Option<ParamsProblemKind> {
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
