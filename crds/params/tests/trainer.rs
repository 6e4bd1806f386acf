//! Tests the `trainer` layout against the classic one, and that messages name the keys and lines of the user's file.

mod common;

use common::{resolve, resolved};
use millrace_params::reference::explain;
use millrace_params::{FlagOverrides, Params, ParamsError, ParamsProblemKind, PhasedParams, ResolveOutput};

const TRAINER: &str = "\
trainer:
  init:
    backend:
      backend_type: CSX
      cluster_config:
        num_csx: 2
        num_workers_per_csx: 1
    model_dir: there
    seed: 7
    model:
      name: gpt3
      vocab_size: 256
      hidden_size: 64
      num_hidden_layers: 2
      num_heads: 4
      max_position_embeddings: 256
    optimizer:
      AdamW:
        betas: [0.9, 0.95]
        weight_decay: 0.1
    schedulers:
    - SequentialLR:
        schedulers:
        - LinearLR:
            initial_learning_rate: 0.0
            end_learning_rate: 1e-3
            total_iters: 10
        - CosineDecayLR: {initial_learning_rate: 1e-3, total_iters: 90}
    precision:
      enabled: true
      fp16_type: bfloat16
      max_gradient_norm: 1.0
    loop:
      max_steps: 100
      eval_steps: 3
    checkpoint:
      steps: 50
    logging:
      log_steps: 10
    callbacks:
    - ScopedTrainFlags:
        csx.performance.micro_batch_size: 2
        csx.performance.transfer_processes: 5
    - KeepNCheckpoints: {n: 2}
    - LoadCheckpointStates:
        load_checkpoint_states: [model, optimizer]
    - ComputeNorm: {}
    loggers:
    - TensorBoardLogger: {}
  fit:
    train_dataloader: &data
      data_processor: GptTextDataProcessor
      data_files: a.txt
      tokenizer: bytes
      batch_size: 8
      num_workers: 8
    val_dataloader: &validation
      <<: *data
      data_files: b.txt
      batch_size: 4
  validate:
    val_dataloader: *validation
  validate_all:
    val_dataloaders: *validation
";

const CLASSIC: &str = "\
train_input:
  data_processor: GptTextDataProcessor
  data_files: a.txt
  tokenizer: bytes
  batch_size: 8
  micro_batch_size: 2
eval_input:
  data_processor: GptTextDataProcessor
  data_files: b.txt
  tokenizer: bytes
  batch_size: 4
model:
  name: gpt3
  vocab_size: 256
  hidden_size: 64
  num_hidden_layers: 2
  num_heads: 4
  max_position_embeddings: 256
  mixed_precision: true
  fp16_type: bfloat16
optimizer:
  optimizer_type: AdamW
  betas: [0.9, 0.95]
  weight_decay: 0.1
  max_gradient_norm: 1.0
  learning_rate:
  - {scheduler: Linear, initial_learning_rate: 0, end_learning_rate: 1e-3, total_iters: 10}
  - {scheduler: CosineDecay, initial_learning_rate: 1e-3, total_iters: 90}
runconfig:
  mode: train_and_eval
  model_dir: there
  seed: 7
  num_csx: 2
  max_steps: 100
  eval_steps: 3
  eval_frequency: 100
  checkpoint_steps: 50
  log_steps: 10
  max_checkpoints: 2
  load_checkpoint_states: model,optimizer
";

#[test]
fn both_layouts_resolve_to_same_job() {
    let trainer = resolved(TRAINER);
    assert_eq!(trainer.job, resolved(CLASSIC).job);
    assert_eq!(
        trainer.ignored_keys,
        [
            "trainer.fit.train_dataloader.num_workers",
            "trainer.fit.val_dataloader.num_workers",
            "trainer.init.backend.backend_type",
            "trainer.init.backend.cluster_config.num_workers_per_csx",
            "trainer.init.callbacks.0.ScopedTrainFlags.csx.performance.transfer_processes",
            "trainer.init.callbacks.3.ComputeNorm",
            "trainer.init.loggers",
        ]
    );
    let indented: String = TRAINER.lines().skip(1).map(|line| format!("  {line}\n")).collect();
    for phase in [format!("trainer:\n- trainer:\n{indented}"), format!("trainer:\n-\n{indented}")] {
        assert_eq!(resolved(&phase).job, trainer.job, "{phase}");
    }
    // What a server stores is the classic layout.
    let params = Params::parse_yaml(TRAINER).unwrap();
    let stored = serde_json::to_value(&params).unwrap();
    assert!(stored.get("trainer").is_none() && Params::read_json(&stored).unwrap() == params, "{stored}");
}

/// Replaces a part of the document, or adds lines after it; the problem is on the line of `offending`.
#[test]
fn problems_name_the_keys_that_were_written() {
    use ParamsProblemKind::*;
    let list = "        - LinearLR:";
    for (part, replacement, offending, kind, key, message) in [
        ("vocab_size: 256", "vocab_sise: 256", "", UnknownKey, "trainer.init.model.vocab_sise", "mean vocab_size?"),
        ("max_steps: 100", "max_step: 100", "", UnknownKey, "trainer.init.loop.max_step", "mean max_steps?"),
        ("max_steps: 100", "max_steps: many", "", WrongType, "trainer.init.loop.max_steps", "not many"),
        ("max_steps: 100", "max_steps: 0", "", Invalid, "trainer.init.loop.max_steps", "from 1"),
        ("seed: 7", "seed: 7\n    seed: 8", "seed: 8", DuplicateKey, "trainer.init.seed", "first on line 9"),
        (
            "num_heads: 4",
            "num_heads: 5",
            "",
            Invalid,
            "trainer.init.model.num_heads",
            "trainer.init.model.hidden_size 64",
        ),
        ("AdamW", "Rprop", "", NotSupported, "trainer.init.optimizer", "Rprop is not supported"),
        ("weight_decay: 0.1", "momentum: 1", "", Invalid, "trainer.init.optimizer.AdamW.momentum", "for AdamW"),
        (
            "total_iters: 10",
            "alpha: 1",
            "- LinearLR",
            Missing,
            "trainer.init.schedulers.0.SequentialLR.schedulers.0.LinearLR.total_iters",
            "is missing",
        ),
        (
            "- LinearLR",
            "- LambdaLR",
            "",
            NotSupported,
            "trainer.init.schedulers.0.SequentialLR.schedulers.0",
            "Python code",
        ),
        (
            list,
            "        - ConstantLR: {learning_rate: 1}\n        - LinearLR:",
            "- ConstantLR",
            Missing,
            "trainer.init.schedulers.0.SequentialLR.schedulers.0.ConstantLR.total_iters",
            "is missing",
        ),
        ("- ComputeNorm: {}", "- Lora: {}", "", NotSupported, "trainer.init.callbacks.3.Lora", "callback Lora"),
        (
            "    loggers:",
            "    sparsity: {sparsity: 0.5, algorithm: gmp}\n    loggers:",
            "sparsity",
            NotSupported,
            "trainer.init.sparsity.algorithm",
            "gmp is not supported yet",
        ),
        ("batch_size: 4", "batch_size: 0", "", Invalid, "trainer.fit.val_dataloader.batch_size", "from 1"),
        (
            "val_dataloader: *validation",
            "val_dataloader: *data",
            "",
            Invalid,
            "trainer.validate.val_dataloader",
            "differs from trainer.fit.val_dataloader",
        ),
        ("trainer:", "model: {}\ntrainer:", "model", UnknownKey, "model", "write it below trainer"),
    ] {
        assert!(TRAINER.contains(part), "{part}");
        let text = TRAINER.replacen(part, replacement, 1);
        let offending = if offending.is_empty() { replacement } else { offending };
        let line = text.lines().position(|line| line.contains(offending)).unwrap() + 1;
        let error = resolve(&text).expect_err(replacement);
        let problem = error.problems().next().unwrap();
        let report = error.report();
        assert_eq!((problem.line, problem.kind, problem.key.as_str()), (Some(line), kind, key), "{report}");
        assert!(report.contains(message) && problem.message.starts_with(key), "{message} in {report}");
    }
}

/// A document of several phases, each of which trains to one of the steps.
fn phased(ends: &[&str]) -> String {
    let (_, phase) = TRAINER.split_once("trainer:\n").unwrap();
    let states = "    - LoadCheckpointStates:\n        load_checkpoint_states: [model, optimizer]\n";
    assert!(phase.contains(states));
    let phase = phase.replace(states, "").replace("&", "&a").replace("*", "*a");
    let item = |(index, end): (usize, &&str)| {
        let phase = phase.replace("&a", &format!("&p{index}")).replace("*a", &format!("*p{index}"));
        let phase = phase.replacen("max_steps: 100", end, 1);
        phase.lines().map(|line| format!("    {line}\n")).fold("- trainer:\n".to_owned(), |text, line| text + &line)
    };
    ends.iter().enumerate().map(item).fold("trainer:\n".to_owned(), |text, phase| text + &phase)
}

fn resolve_phases(text: &str, overrides: &FlagOverrides) -> Result<Vec<ResolveOutput>, ParamsError> {
    let read = PhasedParams::parse_yaml(text, |_| Err(std::io::ErrorKind::NotFound.into()))?;
    read.resolve_with(overrides, |params, overrides| params.resolve(overrides), |error| error)
}

#[test]
fn phases_continue_from_the_one_before() {
    let text = phased(&["max_steps: 100", "max_steps: 150"]);
    let overrides = FlagOverrides { checkpoint_path: Some("begin".into()), ..FlagOverrides::default() };
    let phases = resolve_phases(&text, &overrides).unwrap();
    let runs: Vec<_> = phases.iter().map(|phase| &phase.job.run).collect();
    assert_eq!(runs.iter().map(|run| run.max_steps).collect::<Vec<_>>(), [100, 150]);
    let starts: Vec<_> = runs.iter().map(|run| run.checkpoint_path.as_deref()).collect();
    assert_eq!(starts, [Some("begin"), None], "the flag is for the first phase");
    for (max_steps, ends) in [(40, &[40][..]), (100, &[100]), (120, &[100, 120]), (200, &[100, 200])] {
        let overrides = FlagOverrides { max_steps: Some(max_steps), ..FlagOverrides::default() };
        let phases = resolve_phases(&text, &overrides).unwrap();
        assert_eq!(phases.iter().map(|phase| phase.job.run.max_steps).collect::<Vec<_>>(), ends);
    }
    // The last checkpoint of the phase before may be named.
    let named = text.replacen("fit:", "fit:\n        ckpt_path: PATH", 2);
    for (path, is_valid) in
        [("./there/checkpoint_100.mdl", true), ("here/checkpoint_100", false), ("there/checkpoint_50", false)]
    {
        let named = named.replacen("PATH", "before", 1).replacen("PATH", path, 1);
        let found = resolve_phases(&named, &FlagOverrides::default());
        assert_eq!(found.as_ref().is_ok_and(|phases| phases[1].job.run.checkpoint_path.is_none()), is_valid, "{path}");
    }
}

#[test]
fn phases_that_can_not_continue_are_rejected() {
    const STATES: &str = "init.callbacks.1.LoadCheckpointStates.load_checkpoint_states";
    let text = phased(&["max_steps: 100", "max_steps: 100"]);
    let error = resolve_phases(&text, &FlagOverrides::default()).unwrap_err();
    let expected = "trainer.1.trainer.init.loop.max_steps is 100, but the phase before trains to step 100 already";
    let line = text.lines().enumerate().filter(|(_, line)| line.contains("max_steps")).last().unwrap().0 + 1;
    assert_eq!(error.to_string(), format!("line {line}: {expected}"));
    for (part, replacement, key) in [
        ("max_steps: 150", "num_epochs: 3", "init.loop.max_steps"),
        ("model_dir: there", "model_dir: elsewhere", "init.model_dir"),
        ("fit:", "fit:\n        ckpt_path: there/checkpoint_50", "fit.ckpt_path"),
        ("steps: 50", "autoload_last_checkpoint: false", "init.checkpoint.autoload_last_checkpoint"),
        ("KeepNCheckpoints: {n: 2}", "LoadCheckpointStates: {load_checkpoint_states: model}", STATES),
    ] {
        let text = phased(&["max_steps: 100", "max_steps: 150"]);
        let begin = text.rfind(part).unwrap();
        let text = format!("{}{replacement}{}", &text[..begin], &text[begin + part.len()..]);
        let error = resolve_phases(&text, &FlagOverrides::default()).unwrap_err();
        let error = error.problems().next().unwrap();
        assert_eq!(error.key, format!("trainer.1.trainer.{key}"), "{error}");
    }
    let many = phased(&["max_steps: 1"; 17]);
    assert_eq!(
        resolve_phases(&many, &FlagOverrides::default()).unwrap_err().to_string(),
        "line 1: trainer has 17 phases"
    );
    // Both phases have mistakes.
    let error = resolve_phases(&phased(&["max_stops: 1", "max_stops: 2"]), &FlagOverrides::default()).unwrap_err();
    assert_eq!(error.problems().count(), 2, "{}", error.report());
}

#[test]
fn trainer_without_phases_is_rejected() {
    let error = resolve("trainer:\n- trainer: {init: {}}\n- trainer: {init: {}}\n").unwrap_err();
    assert_eq!(error.to_string(), "trainer has 2 phases, and only one can be read here");
    for (text, key) in [("trainer: []", "trainer"), ("trainer: 5", "trainer"), ("trainer: {init: []}", "trainer.init")]
    {
        assert_eq!(resolve(text).unwrap_err().key(), key, "{text}");
    }
    let keys: Vec<_> = resolve("trainer: {}").unwrap_err().problems().map(|problem| problem.key.clone()).collect();
    let expected = ["trainer.init.model", "trainer.init.optimizer", "trainer.init.loop.max_steps"];
    assert!(expected.iter().all(|key| keys.contains(&(*key).to_owned())), "{keys:?}");
}

#[test]
fn flags_without_evaluation_data_request_no_evaluation() {
    let (without, _) = TRAINER.split_once("    val_dataloader").unwrap();
    let text = without.replace("ScopedTrainFlags", "GlobalFlags");
    let found = resolved(&text);
    assert_eq!((found.job.eval_input, found.job.run.mode.evaluates()), (None, false));
    assert_eq!(found.job.train_input.micro_batch_size, 2);
}

#[test]
fn merge_keys_have_lowest_precedence_and_bounds() {
    let model = |text: &str| Params::parse_yaml(text).map(|params| params.model.unwrap_or_default());
    let text = "train_input: &a {vocab_size: 1, batch_size: 2}\n\
                eval_input: &b {vocab_size: 3, shuffle_seed: 4}\n\
                model: {num_heads: 5, <<: [{num_heads: 6, hidden_size: 7}, {hidden_size: 8, vocab_size: 9}]}\n";
    let read = model(text).unwrap();
    assert_eq!((read.num_heads, read.hidden_size, read.vocab_size), (Some(5), Some(7), Some(9)));
    for text in ["model: {<<: 5}", "model: {<<: [{}, 5]}", "model: {<<: {}, <<: {}}"] {
        let error = model(text).unwrap_err();
        assert_eq!(error.problems().next().unwrap().kind, ParamsProblemKind::Syntax, "{error}");
    }
    let mut laughs = String::from("a0: &a0 {k0: x, k1: x, k2: x, k3: x}\n");
    for i in 1..30 {
        laughs.push_str(&format!("a{i}: &a{i} {{<<: [*a{p}, *a{p}], l{i}: *a{p}}}\n", p = i - 1));
    }
    assert!(model(&laughs).unwrap_err().to_string().contains("values"));
}

#[test]
fn model_flag_names_the_family_of_params_without_name() {
    let with_flag = |text: &str, model: &str| {
        let flags = FlagOverrides { model: Some(model.to_owned()), ..FlagOverrides::default() };
        Params::parse_yaml(text).unwrap().resolve(&flags).map(|resolved| resolved.job)
    };
    assert_eq!(with_flag(TRAINER, "GPT3").unwrap(), resolved(TRAINER).job);
    let unnamed = TRAINER.replace("      name: gpt3\n", "");
    assert_eq!(with_flag(&unnamed, "gpt3").unwrap(), resolved(TRAINER).job);
    let error = with_flag(TRAINER, "gpt2").unwrap_err();
    assert_eq!(error.to_string(), "--model is gpt2, but trainer.init.model.name is gpt3");
    assert_eq!(with_flag(&unnamed, "mixtral").unwrap_err().to_string(), "--model mixtral is not supported yet");
}

#[test]
fn keys_of_trainer_are_explained() {
    assert!(explain("trainer").unwrap().contains("trainer.init.loop.max_steps"));
    for (path, message) in [
        ("trainer.init.loop.max_steps", "stands for runconfig.max_steps"),
        ("trainer.0.trainer.init.model.nonlinearity", "stands for model.nonlinearity"),
        ("trainer.init.optimizer.AdamW.eps", "stands for optimizer.eps"),
        (
            "trainer.init.schedulers.0.SequentialLR.schedulers.1.StepLR.gamma",
            "stands for optimizer.learning_rate.gamma",
        ),
        ("trainer.fit.train_dataloader", "stands for train_input"),
        ("trainer.init.sparsity", "stands for sparsity"),
    ] {
        assert!(explain(path).unwrap().contains(message), "{path}: {:?}", explain(path));
    }
    assert!(explain("trainer.init.nothing").is_err());
}
