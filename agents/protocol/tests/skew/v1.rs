//! The launch document as release 0.1.0 reads it. Never change it: it represents agents that are deployed.

#![allow(missing_docs)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

macro_rules! object {
    ($name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        #[derive(Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $(pub $field: $type,)*
        }
    };
}

object!(Launch {
    job: Job,
    appliance: Appliance,
    mode: Mode,
    model_dir: String,
    attempt: Option<u32>,
    job_uid: Option<String>,
    resume: Resume,
    wanted: Wanted,
    isa: Option<String>,
    notes: Vec<String>,
    without_effect: Vec<String>,
    params_yaml: String,
});
object!(Resume {
    checkpoint_path: Option<String>,
    states: States,
    autoload: bool,
    accept_other_profile: bool,
});
object!(Wanted {
    systems: usize,
    least_systems: usize,
    shards: usize,
    swarmx: usize,
    fan_out: u32,
    activation_servers: usize,
});
object!(Job {
    model: Model,
    optimizer: Optimizer,
    train_input: Input,
    eval_input: Option<Input>,
    run: Run,
});
object!(Model {
    family: Family,
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_heads: usize,
    filter_size: usize,
    max_position_embeddings: usize,
    use_position_embedding: bool,
    share_embedding_weights: bool,
    dropout_rate: f64,
    embedding_dropout_rate: f64,
    attention_dropout_rate: f64,
    layer_norm_epsilon: f64,
    attention_scale: f64,
    nonlinearity: Nonlinearity,
    use_projection_bias_in_attention: bool,
    use_ffn_bias_in_attention: bool,
    use_ffn_bias: bool,
    use_bias_in_output: bool,
    initializers: Initializers,
    precision: Precision,
    loss_scaling: LossScaling,
    loss_weight: f64,
    compute_eval_metrics: bool,
});
object!(Initializers {
    embedding: Initializer,
    hidden: Initializer,
    residual_output: Initializer,
    lm_head: Initializer,
});
object!(Optimizer {
    kind: OptimizerKind,
    weight_decay: f64,
    max_gradient_norm: Option<f64>,
    schedule: Schedule,
});
object!(Schedule {
    segments: Vec<Segment>,
});
object!(Segment { steps: u64, piece: Piece });
object!(Input {
    source: Source,
    split: Split,
    batch_size: usize,
    micro_batch_size: usize,
    max_sequence_length: usize,
    shuffle: bool,
    shuffle_seed: u64,
});
object!(Run {
    mode: Mode,
    model_dir: String,
    summary_dir: String,
    max_steps: u64,
    eval_steps: Option<u64>,
    eval_frequency: u64,
    checkpoint_steps: u64,
    max_checkpoints: Option<u64>,
    save_initial_checkpoint: bool,
    autoload_last_checkpoint: bool,
    checkpoint_path: Option<String>,
    load_checkpoint_states: States,
    disable_strict_checkpoint_loading: bool,
    log_steps: u64,
    summary_steps: u64,
    logging: LogLevel,
    seed: u64,
    check_loss_values: bool,
    num_csx: usize,
    num_wgt_servers: usize,
    num_act_servers: usize,
    compile_only: bool,
    validate_only: bool,
    job_labels: BTreeMap<String, String>,
});
object!(States { model: bool, optimizer: bool, dataloader: bool, lr_scheduler: bool, global_step: bool });
object!(Appliance {
    systems: usize,
    wafer: Wafer,
    memoryx: MemoryX,
    swarmx: SwarmX,
    activation_servers: usize,
    threads: usize,
    link: Link,
});
object!(Wafer {
    memory_bytes: u64,
    memory_bandwidth: f64,
    fabric_bandwidth: f64,
    cores: u64,
    clock_hz: f64,
    peak_flops: f64,
    utilisation: f64,
    link_bytes_per_s: f64,
});
object!(MemoryX { shards: usize, memory_bytes: u64, memory_bandwidth: f64 });
object!(SwarmX {
    fan_out: usize,
    nodes: Option<usize>,
});
object!(Link { chunk_bytes: u64, window_chunks: usize });

macro_rules! words {
    ($name:ident { $($word:ident),* $(,)? }) => {
        #[derive(Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($word,)*
        }
    };
}

words!(Mode { Train, Eval, TrainAndEval, EvalAll });
words!(Family { Gpt2, Gpt3 });
words!(Nonlinearity { Gelu, GeluTanh });
words!(Precision { F32, Bf16 });
words!(LossScaling { NumTokens, BatchSize });
words!(Tokenizer { Gpt2, Bytes });

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LogLevel {
    Debug,
    Verbose,
    Info,
    Warning,
    Error,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
pub enum Initializer {
    Normal { mean: f64, std: f64 },
    TruncatedNormal { mean: f64, std: f64, a: f64, b: f64 },
    Uniform { a: f64, b: f64 },
    Constant { val: f64 },
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerKind {
    Adam {
        betas: [f64; 2],
        eps: f64,
        correct_bias: bool,
    },
    #[serde(rename = "adamw")]
    AdamW {
        betas: [f64; 2],
        eps: f64,
        correct_bias: bool,
    },
    Sgd {
        momentum: f64,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
pub enum Piece {
    Constant { learning_rate: f64 },
    Linear { initial: f64, end: f64, total_iters: u64 },
    CosineDecay { initial: f64, end: f64, total_iters: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    Text { paths: Vec<String>, tokenizer: Tokenizer },
    Tokens { paths: Vec<String> },
    Synthetic {},
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "snake_case", deny_unknown_fields)]
pub enum Split {
    All {},
    Train { fraction: f64 },
    Validation { fraction: f64 },
}
