//! Tests the two complete examples of the public model zoo: every key is used, noted, or reported as without effect.

mod common;

use common::{resolve, resolved};
use millrace_params::optimizers::AdamW;
use millrace_params::{
    DataSource, EncoderTask, FlagOverrides, InitializerSpec, InputSpec, LossScaling, Mode, OptimizerKind, Params,
    PhasedParams, Precision, ResolveOutput, ScheduleSegmentKind, Split, TokenizerName,
};

const XL: &str = include_str!("fixtures/gpt3_xl.yaml");
const SMALL: &str = include_str!("fixtures/gpt2_small.yaml");

#[test]
fn gpt3_xl_is_understood() {
    let resolved = resolved(XL);
    let job = &resolved.job;
    let truncated = |std: f64| InitializerSpec::TruncatedNormal { mean: 0.0, std, a: -2.0 * std, b: 2.0 * std };
    assert_eq!(job.model.initializers.embedding, truncated(0.02));
    assert_eq!(job.model.initializers.hidden, truncated(0.02));
    assert_eq!(job.model.initializers.residual_output, truncated(0.0025));
    assert_eq!((job.model.hidden_size, job.model.num_hidden_layers, job.model.num_heads), (2048, 24, 16));
    assert_eq!((job.model.filter_size, job.model.vocab_size, job.model.max_position_embeddings), (8192, 50257, 2048));
    assert_eq!(
        (job.model.dropout_rate, job.model.embedding_dropout_rate, job.model.attention_dropout_rate),
        (0.0, 0.0, 0.0)
    );
    assert_eq!(job.model.attention_scale, 1.0 / 128f64.sqrt());
    assert_eq!(job.model.precision, Precision::Bf16);
    assert_eq!((job.model.loss_scaling, job.model.loss_weight), (LossScaling::NumTokens, 1.0));
    let adamw = AdamW { betas: [0.9, 0.95], eps: 1e-8, correct_bias: true, epsilon_hat: false, amsgrad: false };
    assert_eq!(job.optimizer.kind, OptimizerKind::from(adamw));
    assert_eq!((job.optimizer.weight_decay, job.optimizer.max_gradient_norm), (0.1, Some(1.0)));
    let schedule = &job.optimizer.schedule;
    assert_eq!(schedule.segments[0].steps, 346);
    assert_eq!(
        schedule.segments[1].piece,
        ScheduleSegmentKind::CosineDecay { initial: 2e-4, end: 2e-5, total_iters: 23988 }
    );
    assert_eq!((schedule.at(0), schedule.at(346), schedule.at(24334)), (0.0, 2e-4, 2e-5));

    let DataSource::Text { paths, tokenizer, .. } = &job.train_input.source else {
        panic!("{:?}", job.train_input.source)
    };
    assert_eq!((paths.len(), tokenizer), (10, &TokenizerName::Gpt2));
    assert_eq!((job.train_input.batch_size, job.train_input.max_sequence_length), (528, 2048));
    assert_eq!((job.train_input.leaf_size(), job.train_input.leaves()), (8, 66));
    assert_eq!((job.train_input.shuffle, job.train_input.shuffle_seed), (false, 0));
    let eval = job.eval_input.as_ref().unwrap();
    assert_eq!((eval.batch_size, eval.leaf_size(), eval.split), (264, 1, Split::All {}));
    assert_eq!((job.run.max_steps, job.run.eval_steps, job.run.checkpoint_steps), (24334, Some(702), 2000));
    assert_eq!((job.run.mode, job.run.log_steps, job.run.save_initial_checkpoint), (Mode::Train, 1, false));
    assert_eq!(
        resolved.ignored_keys,
        [
            "train_input.num_workers",
            "train_input.prefetch_factor",
            "train_input.persistent_workers",
            "eval_input.num_workers",
            "optimizer.log_summaries",
            "runconfig.enable_distributed",
            "runconfig.use_cs_grad_accum",
            "runconfig.use_appliance_data",
        ]
    );
    assert_eq!(resolved.notes.len(), 1, "{:?}", resolved.notes);
    assert!(resolved.notes[0].contains("micro_batch_size 264"), "{:?}", resolved.notes);
}

#[test]
fn gpt2_small_is_understood() {
    let resolved = resolved(SMALL);
    let job = &resolved.job;
    assert_eq!((job.model.hidden_size, job.model.num_hidden_layers, job.model.filter_size), (768, 12, 3072));
    assert_eq!(
        (job.model.dropout_rate, job.model.embedding_dropout_rate, job.model.attention_dropout_rate),
        (0.1, 0.1, 0.1)
    );
    assert_eq!((job.model.loss_scaling, job.model.loss_weight), (LossScaling::BatchSize, 1.0 / 2048.0));
    assert_eq!(job.model.precision, Precision::Bf16);
    assert_eq!(job.model.initializers.residual_output, InitializerSpec::truncated_normal(0.02 / 24f64.sqrt()));
    let schedule = &job.optimizer.schedule;
    assert_eq!((schedule.at(0), schedule.at(800), schedule.at(1600)), (0.0, 3e-4, 6e-4));
    assert!((schedule.at(151_600) - 6e-5).abs() < 1e-19, "alpha 0.1 of 6e-4 is where it ends");
    assert_eq!((job.train_input.shuffle, job.train_input.shuffle_seed), (true, 256));
    assert_eq!((job.train_input.leaf_size(), job.train_input.leaves()), (1, 112));
    assert_eq!((job.run.seed, job.run.model_dir.as_str(), job.run.save_initial_checkpoint), (1, "./model_dir", true));
    assert_eq!(
        resolved.ignored_keys,
        [
            "train_input.num_workers",
            "train_input.prefetch_factor",
            "train_input.persistent_workers",
            "eval_input.num_workers",
        ]
    );
    let all = resolved.notes.join("\n");
    assert_eq!(resolved.notes.len(), 3, "{all}");
    for word in ["bf16 instead of fp16", "optimizer.initial_loss_scale, optimizer.max_loss_scale", "alpha"] {
        assert!(all.contains(word), "{word} in {all}");
    }
}

#[test]
fn hdf5_source_of_the_originals_is_accepted() {
    for (text, processor) in [(XL, "GptHDF5MapDataProcessor"), (SMALL, "GptHDF5DataProcessor")] {
        let job = resolve(&text.replace("GptTextDataProcessor", processor)).unwrap().job;
        for input in [Some(&job.train_input), job.eval_input.as_ref()].into_iter().flatten() {
            assert!(matches!(&input.source, DataSource::Hdf5 { mixture, .. } if mixture.is_empty()), "{processor}");
            assert!(!input.paths().is_empty());
        }
    }
}

/// The zoo's older spellings mean the same as the newer ones.
#[test]
fn older_spellings_mean_the_same() {
    let older = SMALL
        .replace("betas: [0.9, 0.95]", "beta1: 0.9\n    beta2: 0.95")
        .replace("weight_decay:", "weight_decay_rate:")
        .replace("total_iters: 1600", "steps: 1600")
        .replace("total_iters: 150000", "decay_steps: 150000")
        .replace("checkpoint_steps:", "save_checkpoint_steps:");
    assert_ne!(older, SMALL);
    assert_eq!(resolved(&older).job, resolved(SMALL).job);
}

/// Keys in the zoo's files of newer releases.
#[test]
fn newer_releases_are_understood() {
    let newer = SMALL
        .replace("    shuffle: False\n", "    shuffle: False\n    repeat: True\n")
        .replace("    filter_size: 3072\n", "    filter_size: 3072\n    fold_rope_consts: False\n");
    assert_eq!(resolved(&newer).job, resolved(SMALL).job);
}

/// Keys in the zoo's files of older releases, including those of larger GPT-3 models.
#[test]
fn older_releases_are_understood() {
    let older = SMALL
        .replace(
            "    shuffle_seed: 256\n",
            "    shuffle_seed: 256\n    repeat: True\n    use_multiple_workers: False\n",
        )
        .replace(
            "    shuffle: False\n",
            "    shuffle: False\n    repeat: False\n    vocab_size: 50257\n    mixed_precision: True\n",
        )
        .replace(
            "    filter_size: 3072\n",
            "    filter_size: 3072\n    fixed_sparse_attention: null\n    attention_softmax_fp32: False\n    \
             use_bfloat16: False\n    precision_opt_level: 1\n    boundary_casting: False\n    tf_summary: False\n",
        )
        .replace(
            "    max_gradient_norm: 1.0\n",
            "    max_gradient_norm: 1.0\n    loss_scaling_factor: \"dynamic\"\n    ws_summary: True\n    \
             disable_lr_steps_reset: False\n",
        )
        .replace(
            "    eval_steps: 32\n",
            "    eval_steps: 32\n    keep_checkpoint_max: 21\n    save_losses: True\n    log_step_count_steps: 1\n    \
             show_debug_metrics: False\n    num_wgt_servers: 24\n    save_summary_steps: 100\n    job_labels: [a=b]\n",
        );
    let mut expected = resolved(SMALL).job;
    expected.run.max_checkpoints = Some(21);
    expected.run.num_wgt_servers = 24;
    expected.run.job_labels.insert("a".into(), "b".into());
    let found = resolved(&older);
    assert_eq!(found.job, expected);
    assert_eq!(found.ignored_keys.len(), 14, "{:?}", found.ignored_keys);
}

/// A document that a client stores and sends as JSON does not change.
#[test]
fn document_round_trips_through_json() {
    let params = Params::parse_yaml(XL).unwrap();
    let json = serde_json::to_string(&params).unwrap();
    let back: Params = serde_json::from_str(&json).unwrap();
    assert_eq!(back, params);
    assert_eq!(Params::parse_yaml(&json).unwrap(), params, "JSON is YAML too");
    assert_eq!(Params::read_json(&serde_json::from_str(&json).unwrap()).unwrap(), params);
}

/// An object from an API server may be newer than this program; a document that is read to be run may not.
#[test]
fn json_is_read_strictly_and_only_deserialised_leniently() {
    let json = serde_json::json!({
        "model": {"hiden_size": 1, "dropout_rate": null},
        "optimizer": {"learning_rate": {"schedular": "Linear"}, "eps": 1e-8, "betas": [0.9, "0.95"]},
    });
    let lenient: Params = serde_json::from_value(json.clone()).unwrap_or_default();
    assert_eq!(lenient.model, None, "betas hold a string, which no leniency can read");
    let error = Params::read_json(&json).unwrap_err();
    let problems: Vec<_> = error.problems().map(|p| (p.key.as_str(), p.line, p.hint.as_deref())).collect();
    assert_eq!(
        problems,
        [
            ("model.hiden_size", None, Some("did you mean hidden_size?")),
            ("optimizer.betas.1", None, Some("leave the quotes out")),
            ("optimizer.learning_rate.schedular", None, Some("did you mean scheduler?")),
        ]
    );
    let newer = serde_json::json!({"model": {"hidden_size": 8, "a_new_key": 1}});
    let lenient: Params = serde_json::from_value(newer.clone()).unwrap();
    assert_eq!(lenient.model.unwrap().hidden_size, Some(8));
    assert!(Params::read_json(&newer).is_err());
}

/// Fine-tuning for TensorFlow, with a model that continues another file's.
const FINE_TUNING: &str = "train_input: {data_processor: PROCESSOR, batch_size: 8, max_sequence_length: 64, INPUT}\n\
                           eval_input: {data_processor: PROCESSOR, INPUT}\n\
                           predict_input: {batch_size: 1}\n\
                           model:\n  pretrain_params_path: base.yaml\n  mixed_precision: True\n  MODEL\n\
                           optimizer: {optimizer_type: adam, beta_1: 0.8, learning_rate: 0.1}\n\
                           runconfig: {max_steps: 1, mode: train_and_eval, eval_steps: 0}\n";

#[test]
fn fine_tuning_for_tensorflow_is_understood() {
    let base = "model: {hidden_size: 64, num_hidden_layers: 2, num_heads: 4, use_vsl: True, dropout_rate: 0.3}";
    let job = |processor: &str, input: &str, model: &str| {
        let text = FINE_TUNING.replace("PROCESSOR", processor).replace("INPUT", input).replace("MODEL", model);
        let params = PhasedParams::parse_yaml(&text, |_| Ok(base.to_owned())).unwrap().first;
        params.resolve(&FlagOverrides::default()).unwrap()
    };
    let paths = |output: &ResolveOutput| {
        let paths = |input: &InputSpec| input.paths().join(" ");
        [paths(&output.job.train_input), output.job.eval_input.as_ref().map(paths).unwrap()]
    };
    let pairs = "data_dir: tfds/, vocab_file: v";
    let pairs = job("MnliDataProcessor", pairs, "num_cls_classes: 3\n  cls_dropout_rate: 0.2");
    let expected = ["tfds/glue/mnli/*/glue-train.tfrecord* v", "tfds/glue/mnli/*/glue-validation*.tfrecord* v"];
    assert_eq!(paths(&pairs), expected);
    let task = &pairs.job.model.encoder.as_ref().unwrap().task;
    assert_eq!(*task, EncoderTask::Classifier { classes: 3, dropout_rate: 0.2 });
    assert_eq!((pairs.job.model.dropout_rate, pairs.job.run.eval_steps), (0.3, None));
    assert_eq!(pairs.job.train_input.words_file(), Some(("v", true)), "sentences are lower case by default");
    let OptimizerKind::Adam(adam) = pairs.job.optimizer.kind else { panic!() };
    assert_eq!(adam.betas, [0.8, 0.999]);

    let tokens = "data_dir: d, label_vocab_file: l, vocab_file: v";
    let tokens = job("NerDataProcessor", tokens, "num_classes: 7\n  include_padding_in_loss: True");
    assert_eq!((paths(&tokens), tokens.job.model.loss_weight), (["d l".into(), "d l".into()], 1.0 / 64.0));
    let summaries = job("BertSumTfRecordsProcessor", "data_dir: d, max_cls_tokens: 9", "loss_weight: 0.25");
    let task = &summaries.job.model.encoder.as_ref().unwrap().task;
    let expected = EncoderTask::Summarization { max_sentences: 9, compares_words: false };
    assert_eq!((task, summaries.job.model.loss_weight), (&expected, 0.25));
    let keys = "loss_weight: 0.25\n  vocab_file: v";
    let compared = job("BertSumTfRecordsProcessor", "data_dir: d, max_cls_tokens: 9", keys);
    assert_eq!(paths(&compared), ["d v", "d v"], "the words of summaries are compared");
    let expected = EncoderTask::Summarization { max_sentences: 9, compares_words: true };
    assert_eq!(compared.job.model.encoder.as_ref().unwrap().task, expected);
    let loss_only = job("BertSumTfRecordsProcessor", "data_dir: d", &format!("{keys}\n  compute_eval_metrics: False"));
    assert_eq!(paths(&loss_only), ["d", "d"]);
    let answers = job("QuestionAnsweringDataProcessor", "data_file: a.tf_record", "cls_dropout_rate: 0.1");
    assert_eq!((paths(&answers)[0].as_str(), answers.job.model.loss_weight), ("a.tf_record", 2.0));
    assert!(answers.notes.iter().any(|note| note.contains("cls_dropout_rate has no effect")), "{:?}", answers.notes);
}
