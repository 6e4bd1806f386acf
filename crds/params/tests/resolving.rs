//! Tests defaults, unions, flags, and checks of keys against each other.

mod common;

use common::{SMALL, resolve, resolved, with, without};
use millrace_params::{
    CheckpointStates, DataSource, FlagOverrides, InitializerSpec, JobSpec, LogLevel, MixturePart, Mode, Params,
    ParamsProblemKind, Precision, Schedule, ScheduleSegment, ScheduleSegmentKind, Split, TokenizerName,
};

/// Returns the source of these files, whose tokens are bytes.
fn text(paths: &[&str]) -> DataSource {
    let paths = paths.iter().map(|path| (*path).to_owned()).collect();
    DataSource::Text { paths, tokenizer: TokenizerName::Bytes, text_key: "text".into() }
}

#[test]
fn omitted_keys_have_model_zoo_defaults() {
    let resolved = resolved(SMALL);
    let job = &resolved.job;
    assert_eq!((resolved.notes.len(), resolved.ignored_keys.len()), (0, 0));
    assert_eq!((job.model.filter_size, job.model.dropout_rate, job.model.precision), (256, 0.1, Precision::F32));
    assert!(job.model.share_embedding_weights && job.model.use_ffn_bias && !job.model.use_bias_in_output);
    assert_eq!(job.model.initializers.embedding, InitializerSpec::truncated_normal(0.02));
    assert_eq!(job.model.initializers.lm_head, InitializerSpec::Normal { mean: 0.0, std: 0.02 });
    let text = text(&["a.txt", "b.txt"]);
    let eval = job.eval_input.as_ref().unwrap();
    assert_eq!((&job.train_input.source, &eval.source), (&text, &text));
    assert_eq!(job.train_input.split, Split::Train { fraction: 0.1 });
    assert_eq!(eval.split, Split::Validation { fraction: 0.1 });
    assert_eq!(
        (job.train_input.max_sequence_length, job.train_input.leaf_size(), job.train_input.leaves()),
        (256, 1, 8)
    );
    assert_eq!((job.run.seed, job.train_input.shuffle_seed, job.run.num_csx), (1, 1, 1));
    assert_eq!((job.run.log_steps, job.run.eval_frequency, job.run.checkpoint_steps), (1, 100, 0));
    assert_eq!((job.run.eval_steps, job.run.max_checkpoints), (None, None));
    assert_eq!((job.run.logging, job.run.load_checkpoint_states), (LogLevel::Info, CheckpointStates::ALL));
}

/// Each case has one invalid value, with the expected key, line, kind and a word of the hint.
#[test]
fn every_check_names_its_key() {
    use ParamsProblemKind::*;
    for (section, line, key, kind, hint) in [
        ("train_input", "batch_size: 0", "batch_size", Invalid, "from 1"),
        ("train_input", "batch_size: 99999999999", "batch_size", Invalid, "from 1"),
        ("train_input", "micro_batch_size: 0", "micro_batch_size", Invalid, "from 1"),
        ("train_input", "micro_batch_size: explore", "micro_batch_size", NotSupported, "auto"),
        ("train_input", "micro_batch_size: {min: 1, max: 4}", "micro_batch_size", NotSupported, "auto"),
        ("train_input", "max_sequence_length: 512", "max_sequence_length", Invalid, "max_position_embeddings"),
        ("train_input", "vocab_size: 50257", "vocab_size", Invalid, "leave it out"),
        ("train_input", "validation_fraction: 1.0", "validation_fraction", Invalid, "less than 1"),
        ("train_input", "data_processor: CsvDataLoader", "data_processor", Invalid, "use GptTextDataProcessor"),
        (
            "train_input",
            "data_processor: GptTextDataProcesor",
            "data_processor",
            Invalid,
            "did you mean GptTextDataProcessor?",
        ),
        ("train_input", "data_processor: DummyDataProcessor", "data_processor", NotSupported, "GptTextData"),
        ("train_input", "data_subset: 0.5-0.1", "data_subset", Invalid, "for example 0.0-0.5"),
        ("train_input", "num_samples: 0", "num_samples", Invalid, "from 1"),
        ("train_input", "sort_files: False", "sort_files", NotSupported, "leave it out"),
        ("train_input", "use_vsl: True", "use_vsl", Invalid, "use GptHDF5DataProcessor"),
        ("eval_input", "use_vsl: True", "use_vsl", Invalid, "samples of one kind"),
        ("train_input", "mixture: [{data_dir: a, weight: 1}]", "mixture", NotSupported, "data_files"),
        ("train_input", "data_files: []", "data_files", Missing, "at least one"),
        ("train_input", "data_files: ''", "data_files", Missing, "at least one"),
        ("train_input", "tokenizer: sentencepiece", "tokenizer", Invalid, "gpt2 or bytes"),
        ("train_input", "repeat: False", "repeat", NotSupported, "leave it out"),
        ("eval_input", "repeat: True", "repeat", Invalid, "runconfig.eval_steps"),
        ("train_input", "split: test", "split", Invalid, "all, train, validation or val"),
        ("eval_input", "validation_fraction: 0.2", "validation_fraction", Invalid, "one of the two"),
        ("train_input", "tokenizer_file: a.json", "tokenizer_file", Invalid, "leave one of the two out"),
        ("train_input", "text_key: ''", "text_key", Invalid, "such as text"),
        ("eval_input", "tokenizer: gpt2", "tokenizer", Invalid, "leave it out"),
        ("eval_input", "tokenizer_file: a.json", "tokenizer_file", Invalid, "leave it out"),
        ("model", "hidden_size: 0", "hidden_size", Invalid, "from 1"),
        ("model", "num_heads: 5", "num_heads", Invalid, "divides hidden_size"),
        ("model", "filter_size: 0", "filter_size", Invalid, "from 1"),
        ("model", "vocab_size: 0", "vocab_size", Invalid, "from 1"),
        ("model", "dropout_rate: 1.0", "dropout_rate", Invalid, "less than 1"),
        ("model", "attention_dropout_rate: -0.1", "attention_dropout_rate", Invalid, "less than 1"),
        ("model", "layer_norm_epsilon: 0", "layer_norm_epsilon", Invalid, "greater than 0"),
        ("model", "loss_weight: 0", "loss_weight", Invalid, "greater than 0"),
        ("model", "loss_scaling: tokens", "loss_scaling", Invalid, "num_tokens"),
        ("model", "position_embedding_type: relative", "position_embedding_type", NotSupported, "use learned"),
        ("model", "norm_type: group", "norm_type", NotSupported, "use layernorm"),
        ("model", "nonlinearity: leaky_relu", "nonlinearity", NotSupported, "use gelu"),
        ("model", "nonlinearity: gleu", "nonlinearity", Invalid, "did you mean gelu?"),
        ("model", "attention_type: scaled_cosine", "attention_type", NotSupported, "use scaled_dot_product"),
        ("model", "alibi_trainable_slopes: True", "alibi_trainable_slopes", NotSupported, "false"),
        ("model", "attention_sliding_window_length: 0", "attention_sliding_window_length", Invalid, "from 1"),
        ("model", "embeddings_scale: 0", "embeddings_scale", Invalid, "greater than 0"),
        ("model", "attention_inner_dim: 0", "attention_inner_dim", Invalid, "from 1"),
        ("model", "attention_logits_alpha: 0", "attention_logits_alpha", Invalid, "greater than 0"),
        ("model", "lr_adjustment_groups: {a: 1}", "lr_adjustment_groups", NotSupported, "adjust_learning_rate"),
        ("model", "norm_first: False", "norm_first", NotSupported, "true"),
        ("model", "initializer: eye", "initializer", NotSupported, "truncated_normal"),
        ("model", "initializer: {std: 0.1}", "initializer.name", Missing, "name"),
        ("model", "initializer: {name: normal, a: 1}", "initializer.a", Invalid, "leave it out"),
        ("model", "initializer: {name: normal, std: -1}", "initializer.std", Invalid, "at least 0"),
        ("model", "initializer: {name: uniform, a: 1, b: 0}", "initializer.a", Invalid, "lower bound"),
        ("model", "initializer: {name: truncated_normal, a: 5, b: 6}", "initializer", Invalid, "widen"),
        ("optimizer", "optimizer_type: Rprop", "optimizer_type", NotSupported, "AdamW"),
        ("optimizer", "optimizer_type: AdamV", "optimizer_type", Invalid, "did you mean AdamW?"),
        ("optimizer", "betas: [0.9]", "betas", Invalid, "two numbers"),
        ("optimizer", "betas: [0.9, 1.0]", "betas", Invalid, "less than 1"),
        ("optimizer", "eps: 0", "eps", Invalid, "greater than 0"),
        ("optimizer", "weight_decay: -1", "weight_decay", Invalid, "at least 0"),
        ("optimizer", "momentum: 0.9", "momentum", Invalid, "leave it out"),
        ("optimizer", "max_gradient_norm: -1", "max_gradient_norm", Invalid, "at least 0"),
        ("optimizer", "max_gradient_value: 1.0", "max_gradient_value", NotSupported, "max_gradient_norm"),
        ("optimizer", "nesterov: True", "nesterov", Invalid, "leave it out"),
        ("optimizer", "learning_rate: -1", "learning_rate", Invalid, "at least 0"),
        ("optimizer", "learning_rate: []", "learning_rate", Invalid, "at least one"),
        ("runconfig", "mode: fit", "mode", Invalid, "train"),
        ("runconfig", "max_steps: 0", "max_steps", Invalid, "from 1"),
        ("runconfig", "log_steps: 0", "log_steps", Invalid, "from 1"),
        ("runconfig", "eval_frequency: 0", "eval_frequency", Invalid, "from 1"),
        ("runconfig", "max_checkpoints: 0", "max_checkpoints", Invalid, "from 1"),
        ("runconfig", "num_csx: 0", "num_csx", Invalid, "from 1"),
        ("runconfig", "model_dir: ''", "model_dir", Invalid, "leave it out"),
        ("runconfig", "load_checkpoint_states: model,moments", "load_checkpoint_states", Invalid, "use all"),
        ("runconfig", "logging: LOUD", "logging", Invalid, "INFO"),
        ("runconfig", "job_labels: [team]", "job_labels", Invalid, "key=value"),
    ] {
        let text = with(section, line);
        let error = resolve(&text).expect_err(&text);
        let report = error.report();
        let problem = error.problems().next().unwrap();
        assert_eq!(error.problems().count(), 1, "{line}: {report}");
        assert_eq!(
            (problem.key.as_str(), problem.kind),
            (format!("{section}.{key}").as_str(), kind),
            "{line}: {report}"
        );
        let number = text.lines().position(|l| l.trim_start().starts_with(line)).unwrap() + 1;
        if kind != Missing || !line.starts_with("data") {
            assert_eq!(problem.line, Some(number), "{line}: {report}");
        }
        assert!(problem.hint.as_ref().unwrap().contains(hint), "{hint:?} in {report}");
    }
}

/// A rejected value has a substitute, about which the user must not read.
#[test]
fn rejected_value_causes_no_further_problem() {
    let many = FlagOverrides { num_csx: Some(7), ..FlagOverrides::default() };
    for (text, key) in [
        (with("train_input", "batch_size: 0"), "train_input.batch_size"),
        (with("train_input", "micro_batch_size: 0"), "train_input.micro_batch_size"),
        (without("  batch_size: 8\n"), "train_input.batch_size"),
        (
            with("optimizer", "learning_rate: {scheduler: Cosinus, initial_learning_rate: 1, total_iters: 9}"),
            "optimizer.learning_rate.scheduler",
        ),
        (with("optimizer", "learning_rate: {scheduler: LambdaLR}"), "optimizer.learning_rate.scheduler"),
        (
            with("optimizer", "learning_rate: [{scheduler: Cosinus}, {scheduler: Constant, val: 1}]"),
            "optimizer.learning_rate.0.scheduler",
        ),
    ] {
        // More systems than a substituted batch would have leaves.
        let text = text.replace("  batch_size: 4\n", "  shuffle: False\n");
        let overrides = if text.contains("scheduler") { FlagOverrides::default() } else { many.clone() };
        let error = Params::parse_yaml(&text).unwrap().resolve(&overrides).expect_err(&text);
        assert_eq!((error.key(), error.problems().count()), (key, 1), "{}", error.report());
    }
}

#[test]
fn missing_required_keys_are_named() {
    for (line, key) in [
        ("  data_processor: GptTextDataProcessor\n", "train_input.data_processor"),
        ("  data_files: [a.txt, b.txt]\n", "train_input.data_files"),
        ("  batch_size: 8\n", "train_input.batch_size"),
        ("eval_input:\n  batch_size: 4\n", "eval_input"),
        ("  vocab_size: 256\n", "model.vocab_size"),
        ("  num_heads: 4\n", "model.num_heads"),
        ("optimizer:\n  optimizer_type: AdamW\n  learning_rate: 1e-3\n", "optimizer"),
        ("  optimizer_type: AdamW\n", "optimizer.optimizer_type"),
        ("  learning_rate: 1e-3\n", "optimizer.learning_rate"),
        ("  max_steps: 100\n", "runconfig.max_steps"),
    ] {
        let error = resolve(&without(line)).expect_err(line);
        let problem = error.problems().next().unwrap();
        assert_eq!((problem.key.as_str(), problem.kind), (key, ParamsProblemKind::Missing), "{}", error.report());
        assert_eq!(error.problems().count(), 1, "{}", error.report());
    }
    let keys: Vec<_> = resolve("runconfig:\n  max_steps: 1\n").unwrap_err().problems().map(|p| p.key.clone()).collect();
    assert_eq!(keys, ["model", "optimizer", "train_input"]);
}

/// Keys that contradict each other.
#[test]
fn contradictions_are_refused() {
    for (text, key) in [
        (with("model", "vocab_size: 128"), "model.vocab_size"),
        (with("optimizer", "betas: [0.9, 0.99]\n  beta1: 0.9"), "optimizer.betas"),
        (with("optimizer", "weight_decay: 0.1\n  weight_decay_rate: 0.2"), "optimizer.weight_decay_rate"),
        (with("model", "use_untied_layer_norm: True\n  name: llama"), "model.use_untied_layer_norm"),
        (with("optimizer", "max_gradient_norm: 1\n  max_gradient_value: 1"), "optimizer.max_gradient_value"),
        (with("runconfig", "compile_only: True\n  validate_only: True"), "runconfig.validate_only"),
        (with("runconfig", "num_csx: 5"), "runconfig.num_csx"),
    ] {
        let error = resolve(&text).expect_err(&text);
        assert_eq!(error.key(), key, "{}", error.report());
        assert_eq!(error.problems().next().unwrap().kind, ParamsProblemKind::Invalid);
    }
}

#[test]
fn learning_rate_has_many_shapes() {
    let line = |initial, end, total_iters| ScheduleSegmentKind::Linear { initial, end, total_iters };
    let cosine = |initial, end, total_iters| ScheduleSegmentKind::CosineDecay { initial, end, total_iters };
    let constant = |learning_rate| ScheduleSegmentKind::Constant { learning_rate };
    let last = ScheduleSegment::endless;
    let lasting = |steps, piece| ScheduleSegment { steps, ..last(piece) };
    for (yaml, segments) in [
        ("0.1", vec![last(constant(0.1))]),
        ("0", vec![last(constant(0.0))]),
        ("6e-4", vec![last(constant(6e-4))]),
        ("{scheduler: Constant, learning_rate: 0.2}", vec![last(constant(0.2))]),
        ("{scheduler: constant, val: 0.2}", vec![last(constant(0.2))]),
        (
            "{scheduler: Linear, initial_learning_rate: 1, end_learning_rate: 0.5, total_iters: 10}",
            vec![last(line(1.0, 0.5, 10))],
        ),
        ("{scheduler: LinearLR, initial_learning_rate: 1, steps: 10}", vec![last(line(1.0, 0.0, 10))]),
        (
            "{scheduler: CosineDecay, initial_learning_rate: 1, alpha: 0.1, decay_steps: 10}",
            vec![last(cosine(1.0, 0.1, 10))],
        ),
        (
            "[{scheduler: Linear, initial_learning_rate: 0, end_learning_rate: 1, steps: 4},
              {scheduler: CosineDecay, initial_learning_rate: 1, end_learning_rate: 0.5, decay_steps: 100, steps: 8},
              {scheduler: Constant, learning_rate: 0.5, total_iters: 3},
              {scheduler: Constant, learning_rate: 0.25}]",
            vec![
                lasting(4, line(0.0, 1.0, 4)),
                lasting(8, cosine(1.0, 0.5, 100)),
                lasting(3, constant(0.5)),
                last(constant(0.25)),
            ],
        ),
    ] {
        let job = resolved(&with("optimizer", &format!("learning_rate: {yaml}"))).job;
        assert_eq!(job.optimizer.schedule, Schedule { segments }, "{yaml}");
    }
    for (yaml, key, kind) in [
        ("{initial_learning_rate: 1}", "scheduler", ParamsProblemKind::Missing),
        ("{scheduler: Linear, total_iters: 5}", "initial_learning_rate", ParamsProblemKind::Missing),
        ("{scheduler: Linear, initial_learning_rate: 1}", "total_iters", ParamsProblemKind::Missing),
        ("{scheduler: Constant}", "learning_rate", ParamsProblemKind::Missing),
        ("{scheduler: Linear, initial_learning_rate: 1, total_iters: 5, val: 1}", "val", ParamsProblemKind::Invalid),
        ("{scheduler: LambdaLR}", "scheduler", ParamsProblemKind::NotSupported),
    ] {
        let error = resolve(&with("optimizer", &format!("learning_rate: {yaml}"))).expect_err(yaml);
        let found = error.problems().any(|p| p.key == format!("optimizer.learning_rate.{key}") && p.kind == kind);
        assert!(found, "{yaml}: {}", error.report());
    }
}

#[test]
fn schedule_is_function_of_step() {
    let lasting = |steps, piece| ScheduleSegment { steps, ..ScheduleSegment::endless(piece) };
    let schedule = Schedule {
        segments: vec![
            lasting(4, ScheduleSegmentKind::Linear { initial: 0.0, end: 1.0, total_iters: 4 }),
            lasting(10, ScheduleSegmentKind::CosineDecay { initial: 1.0, end: 0.5, total_iters: 8 }),
            lasting(u64::MAX, ScheduleSegmentKind::Constant { learning_rate: 0.25 }),
        ],
    };
    for (step, rate) in
        [(0, 0.0), (1, 0.25), (3, 0.75), (4, 1.0), (8, 0.75), (12, 0.5), (13, 0.5), (14, 0.25), (u64::MAX, 0.25)]
    {
        assert!((schedule.at(step) - rate).abs() < 1e-15, "step {step}: {} instead of {rate}", schedule.at(step));
    }
}

#[test]
fn flags_beat_the_document_only_when_given() {
    let params = Params::parse_yaml(&with("runconfig", "model_dir: here\n  eval_steps: 3\n  logging: ERROR")).unwrap();
    let none = params.resolve(&FlagOverrides::default()).unwrap().job.run;
    assert_eq!((none.mode, none.model_dir.as_str(), none.max_steps), (Mode::TrainAndEval, "here", 100));
    let overrides = FlagOverrides {
        model: Some("gpt3".into()),
        mode: Some("train".into()),
        model_dir: Some("there".into()),
        num_csx: Some(2),
        max_steps: Some(7),
        eval_steps: Some(1),
        checkpoint_path: Some("there/checkpoint_3".into()),
        load_checkpoint_states: Some("model, global_step".into()),
        disable_strict_checkpoint_loading: Some(true),
        num_wgt_servers: Some(3),
        num_act_servers: Some(1),
        compile_only: Some(true),
        validate_only: None,
        logging: Some("debug".into()),
    };
    let run = params.resolve(&overrides).unwrap().job.run;
    assert_eq!((run.mode, run.model_dir.as_str(), run.summary_dir.as_str()), (Mode::Train, "there", "there"));
    assert_eq!((run.num_csx, run.max_steps, run.eval_steps), (2, 7, Some(1)));
    assert_eq!(run.checkpoint_path.as_deref(), Some("there/checkpoint_3"));
    let states = CheckpointStates { model: true, global_step: true, ..CheckpointStates::NONE };
    assert_eq!((run.load_checkpoint_states, run.disable_strict_checkpoint_loading), (states, true));
    assert_eq!((run.num_wgt_servers, run.num_act_servers), (3, 1));
    assert_eq!((run.compile_only, run.validate_only, run.logging), (true, false, LogLevel::Debug));

    let error = params.resolve(&FlagOverrides { num_csx: Some(99), ..FlagOverrides::default() }).unwrap_err();
    assert_eq!((error.key(), error.line()), ("--num_csx", None));
    assert!(error.report().contains("micro_batch_size") || error.report().contains("batch_size"), "{}", error.report());
}

#[test]
fn inputs_share_what_they_must() {
    let other = with("eval_input", "data_files: c.txt");
    let job = resolved(&other).job;
    let eval = job.eval_input.unwrap();
    assert_eq!(
        (eval.source, eval.split, job.train_input.split),
        (text(&["c.txt"]), Split::All {}, Split::Train { fraction: 0.1 })
    );

    let all = resolved(&without("  validation_fraction: 0.1\n"));
    assert!(all.notes[0].contains("same samples as training"), "{:?}", all.notes);
    let eval_only = resolved(&with("runconfig", "mode: eval")).job;
    assert_eq!((eval_only.run.max_steps, eval_only.run.mode), (0, Mode::Eval));

    let synthetic = SMALL
        .replace("GptTextDataProcessor", "SyntheticDataProcessor")
        .replace("  tokenizer: bytes\n  ", "  ")
        .replace("  validation_fraction: 0.1\n", "");
    let error = resolve(&synthetic).unwrap_err();
    assert_eq!(error.key(), "runconfig.eval_steps", "{}", error.report());
    let job = resolved(&synthetic.replace("max_steps: 100", "max_steps: 100\n  eval_steps: 2")).job;
    let parts = (job.train_input.split, job.eval_input.unwrap().split);
    assert_eq!(parts, (Split::Train { fraction: 0.1 }, Split::Validation { fraction: 0.1 }));
}

#[test]
fn leaf_is_largest_divisor_within_bound() {
    for (batch, micro, length, leaf, leaves) in [
        (32, "4", 256, 4, 8),
        (32, "5", 256, 4, 8),
        (32, "auto", 256, 4, 8),
        (32, "none", 256, 32, 1),
        (7, "4", 256, 1, 7),
        (12, "5", 64, 4, 3),
        (12, "auto", 64, 1, 12),
        (64, "auto", 16, 8, 8),
        (5, "auto", 16, 1, 5),
        (1024, "auto", 256, 4, 256),
        (8, "1000000", 256, 8, 1),
    ] {
        let text = with(
            "train_input",
            &format!("batch_size: {batch}\n  micro_batch_size: {micro}\n  max_sequence_length: {length}"),
        );
        let text = text.replacen("  batch_size: 8\n", "", if batch == 8 { 0 } else { 1 });
        let input = resolved(&text).job.train_input;
        assert_eq!((input.leaf_size(), input.leaves()), (leaf, leaves), "{batch} {micro} {length}");
    }
}

/// Going from one system to eight changes one number, even if the params do not mention leaves.
#[test]
fn default_leaves_allow_eight_systems() {
    assert!(!SMALL.contains("micro_batch_size"));
    for (batch, systems) in [(8, 8), (5, 5), (1, 1), (12, 8), (264, 8)] {
        let batch_size = format!("batch_size: {batch}");
        let text = SMALL.replace("batch_size: 4", &batch_size).replace("batch_size: 8", &batch_size);
        let params = Params::parse_yaml(&text).unwrap();
        let jobs = [1, systems].map(|num_csx| {
            let overrides = FlagOverrides { num_csx: Some(num_csx), ..FlagOverrides::default() };
            params.resolve(&overrides).unwrap_or_else(|error| panic!("{batch}: {}", error.report())).job
        });
        assert_eq!(jobs[0].train_input, jobs[1].train_input, "the leaves are a function of the params");
        assert!(jobs[0].train_input.is_micro_batch_auto);
    }
}

#[test]
fn max_epochs_ends_a_run_before_max_steps() {
    let ends = |line: &str, samples: u64| {
        let mut job = resolved(&with("runconfig", line)).job;
        let known_max_steps = job.run.known_max_steps();
        job.limit_by_epochs(samples);
        (known_max_steps, job.run.max_steps)
    };
    let only_epochs = SMALL.replace("max_steps: 100", "max_epochs: 3");
    let mut job = resolved(&only_epochs).job;
    assert_eq!((job.run.known_max_steps(), job.run.max_epochs), (None, Some(3)));
    job.limit_by_epochs(21);
    assert_eq!(job.run.known_max_steps(), Some(7), "63 samples are 7 whole batches of 8");
    assert_eq!(JobSpec::from_json(&job.to_json()).unwrap(), job);
    assert_eq!(ends("max_epochs: 2", 400), (Some(100), 100), "two epochs are 100 steps");
    assert_eq!(ends("num_epochs: 2", 40), (Some(100), 10));
    assert_eq!(ends("max_epochs: 1", 3), (Some(100), 1), "fewer samples than a batch");
    assert_eq!(ends("max_epochs: 9000000000000000", u64::MAX), (Some(100), 100));
    assert_eq!(resolve(&with("runconfig", "max_epochs: 0")).unwrap_err().key(), "runconfig.max_epochs");
    assert_eq!(
        resolve(&with("runconfig", "max_epochs: 1\n  num_epochs: 2")).unwrap_err().key(),
        "runconfig.num_epochs"
    );
    let synthetic = SMALL.replace("GptTextDataProcessor", "SyntheticDataProcessor").replace("  tokenizer: bytes\n", "");
    let error = resolve(&synthetic.replace("max_steps: 100", "max_epochs: 3\n  eval_steps: 1")).unwrap_err();
    assert_eq!(error.key(), "runconfig.max_epochs", "{}", error.report());
}

#[test]
fn equal_jobs_are_equal_bytes() {
    let job = resolved(include_str!("fixtures/gpt3_xl.yaml")).job;
    let json = job.to_json();
    let back = JobSpec::from_json(&json).unwrap();
    assert_eq!((&back, back.to_json()), (&job, json.clone()));
    let mut awkward = job.clone();
    awkward.optimizer.weight_decay = f64::from_bits(0x3fb9_9999_9999_999b);
    awkward.model.loss_weight = 1.0 / 3.0;
    assert_eq!(JobSpec::from_json(&awkward.to_json()).unwrap(), awkward);
    assert!(JobSpec::from_json(&json.replacen("\"vocab_size\"", "\"vocabulary\"", 1)).is_err());
}

/// Params that read HDF5 files, with these keys of `train_input` instead of its files.
fn hdf5(keys: &str) -> String {
    SMALL
        .replace("GptTextDataProcessor", "GptHDF5MapDataProcessor")
        .replace("  tokenizer: bytes\n", "")
        .replace("  data_files: [a.txt, b.txt]\n", keys)
}

#[test]
fn mixture_lists_paths_and_weights() {
    let keys = "  mixture:\n  - {data_dir: [a, b], weight: 2}\n  - {data_dir: c, weight: 1}\n";
    let job = resolve(&hdf5(keys)).unwrap().job;
    let DataSource::Hdf5 { paths, mixture } = &job.train_input.source else { panic!("{:?}", job.train_input.source) };
    assert_eq!(paths, &["a", "b", "c"]);
    assert_eq!(mixture, &[MixturePart { paths: 2, weight: 6667 }, MixturePart { paths: 1, weight: 3333 }]);
    for (keys, key, message) in [
        ("mixture: []", "mixture", "has 0 sources"),
        ("mixture: [{data_dir: a, weight: 1}]\n  data_dir: b", "mixture", "beside data_dir"),
        ("mixture: [{data_dir: a}]", "mixture.0.weight", "is missing"),
        ("mixture: [{weight: 1}]", "mixture.0.data_dir", "is missing"),
        ("mixture: [{data_dir: a, weight: 0}]", "mixture.0.weight", "is 0, which is out of range"),
        ("mixture: [{data_dir: a, weight: 1}, {data_dir: b, weight: 1e-9}]", "mixture.1.weight", "less than 1/10000"),
    ] {
        let error = resolve(&hdf5(&format!("  {keys}\n"))).unwrap_err();
        let problems: Vec<_> = error.problems().collect();
        assert_eq!(problems.len(), 1, "{keys}: {}", error.report());
        assert_eq!(problems[0].key, format!("train_input.{key}"));
        assert!(problems[0].message.contains(message), "{}", problems[0].message);
    }
}

#[test]
fn selection_of_samples_is_part_of_the_job() {
    let input =
        resolve(&hdf5("  data_dir: d\n  data_subset: 0-0.5,0.75-1\n  num_samples: 9\n")).unwrap().job.train_input;
    assert_eq!((input.data_subset, input.num_samples), (vec![[0.0, 0.5], [0.75, 1.0]], Some(9)));
    let input = resolve(&hdf5("  data_dir: d\n  data_subset: 0.0-1.0\n")).unwrap().job.train_input;
    assert_eq!((input.data_subset, input.num_samples), (vec![], None));
}

#[test]
fn tokenizer_file_is_the_last_path_of_both_inputs() {
    let with_file = SMALL.replace("tokenizer: bytes", "tokenizer_file: llama/tokenizer.json\n  text_key: body");
    let other = with_file.replace("eval_input:\n", "eval_input:\n  data_files: c.jsonl\n");
    for (text, files) in [(with_file, &["a.txt", "b.txt"][..]), (other, &["c.jsonl"])] {
        let job = resolved(&text).job;
        let eval = job.eval_input.unwrap();
        assert_eq!((job.train_input.tokenizer_file(), job.train_input.vocabulary_paths()), (eval.tokenizer_file(), 1));
        assert_eq!(eval.paths(), [files, &["llama/tokenizer.json"]].concat());
        let DataSource::Text { tokenizer, text_key, .. } = eval.source else { panic!("no text") };
        assert_eq!((tokenizer, text_key.as_str()), (TokenizerName::File, "body"));
    }
}
