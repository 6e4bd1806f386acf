//! Tests strict reading: what is rejected, with which line and hint.

mod common;

use common::{SMALL, resolve, with};
use millrace_params::{FlagOverrides, Params, ParamsProblemKind};

/// Each document has one mistake, with the expected error.
#[test]
fn every_mistake_has_its_line_and_its_hint() {
    use ParamsProblemKind::*;
    for (text, line, kind, key, message, hint) in [
        (
            with("model", "hiden_size: 64"),
            10,
            UnknownKey,
            "model.hiden_size",
            "not a known key",
            "did you mean hidden_size?",
        ),
        (
            with("model", "learning_rate: 1"),
            10,
            UnknownKey,
            "model.learning_rate",
            "not a known key",
            "it belongs in optimizer",
        ),
        (with("model", "flux_capacitor: 1"), 10, UnknownKey, "model.flux_capacitor", "not a known key", "remove it"),
        (
            format!("{SMALL}optimiser:\n  eps: 1e-8\n"),
            21,
            UnknownKey,
            "optimiser",
            "not a known key",
            "did you mean optimizer?",
        ),
        (
            format!("{SMALL}  max_steps: 5\n"),
            21,
            DuplicateKey,
            "runconfig.max_steps",
            "twice, first on line 20",
            "keep one",
        ),
        (format!("{SMALL}model:\n  num_heads: 4\n"), 21, DuplicateKey, "model", "twice, first on line 9", "keep one"),
        (
            with("model", "num_heads: many"),
            10,
            WrongType,
            "model.num_heads",
            "must be a whole number, zero or more, not many",
            "",
        ),
        (with("model", "num_heads: -4"), 10, WrongType, "model.num_heads", "not -4", ""),
        (with("model", "num_heads: 4.5"), 10, WrongType, "model.num_heads", "not 4.5", ""),
        (
            with("model", "num_heads: \"4\""),
            10,
            WrongType,
            "model.num_heads",
            "the string \"4\"",
            "leave the quotes out",
        ),
        (with("model", "num_heads: [4]"), 10, WrongType, "model.num_heads", "not a list", ""),
        (with("model", "dropout_rate: .nan"), 10, WrongType, "model.dropout_rate", "a finite number", ""),
        (with("model", "use_ffn_bias: 1"), 10, WrongType, "model.use_ffn_bias", "must be true or false, not 1", ""),
        (with("runconfig", "model_dir: 7"), 19, WrongType, "runconfig.model_dir", "must be a string, not 7", "quotes"),
        (with("optimizer", "betas: [0.9, x]"), 16, WrongType, "optimizer.betas.1", "a finite number, not x", ""),
        (with("train_input", "data_files: {a: b}"), 2, WrongType, "train_input.data_files", "a list of strings", ""),
        (
            with("model", "attention_qk_norm_layer: rmsnorm"),
            10,
            NotSupported,
            "model.attention_qk_norm_layer",
            "not supported yet",
            "leave it out",
        ),
        (
            with("model", "moe_params: {num_experts: 8}"),
            10,
            NotSupported,
            "model.moe_params",
            "not supported yet",
            "dense",
        ),
        (
            format!("{SMALL}inference_input:\n  batch_size: 1\n"),
            21,
            NotSupported,
            "inference_input",
            "not supported yet",
            "leave the section out",
        ),
        (with("runconfig", "num_steps: 3"), 19, NotSupported, "runconfig.num_steps", "not supported yet", "max_steps"),
        ("[1, 2]".into(), 1, WrongType, "", "the document must be a mapping", ""),
        ("model: {a: 1".into(), 1, Syntax, "", "not valid YAML", ""),
        ("model:\n\tname: gpt2\n".into(), 2, Syntax, "", "not valid YAML", ""),
        ("a: 1\n---\nb: 2\n".into(), 2, Syntax, "", "second document", ""),
        ("model: !!map {}\n".into(), 1, Syntax, "", "tags", ""),
        ("? [a]\n: 1\n".into(), 1, Syntax, "", "plain word", ""),
        ("a: &x [*x]\n".into(), 1, Syntax, "", "", ""),
    ] {
        let error = Params::parse_yaml(&text).expect_err(&text);
        let problem = error.problems().next().unwrap();
        let report = error.report();
        assert_eq!(error.problems().count(), 1, "{text}{report}");
        assert_eq!((problem.line, problem.kind, problem.key.as_str()), (Some(line), kind, key), "{text}{report}");
        assert!(problem.message.contains(message), "{message:?} in {report}");
        assert!(report.contains(hint), "{hint:?} in {report}");
        assert!(error.to_string().starts_with(&format!("line {line}: ")), "{error}");
    }
}

#[test]
fn all_errors_are_reported_together() {
    let text = "model:\n  hiden_size: 1\n  num_heads: x\n  name: gpt2\n  name: gpt3\noptimizer: 3\n";
    let error = Params::parse_yaml(text).unwrap_err();
    let lines: Vec<_> = error.problems().map(|p| p.line.unwrap()).collect();
    assert_eq!(lines, [2, 3, 5, 6]);
    let first = "line 2: model.hiden_size is not a known key (and 3 more problems)";
    assert_eq!((error.to_string().as_str(), error.hint()), (first, Some("did you mean hidden_size?")));
}

#[test]
fn values_accept_common_spellings() {
    let text = "\
model: {use_ffn_bias: on, use_bias_in_output: No, mixed_precision: TRUE, layer_norm_epsilon: 1e-8, hidden_size: 1_024,
        dropout_rate: .5, loss_weight: 2, fixed_sparse_attention: null, num_heads: ~, attention_type: 'dot_product'}
train_input: &input
  data_dir: one.txt
  micro_batch_size: None
eval_input: *input
runconfig: {debug_args: {a.b: [1, 2.5, x, null, {c: yes}]}, execute_crd_memory_gi: -1, logging: \"INFO\"}
";
    let params = Params::parse_yaml(text).unwrap();
    let model = params.model.as_ref().unwrap();
    assert_eq!(
        (model.use_ffn_bias, model.use_bias_in_output, model.mixed_precision),
        (Some(true), Some(false), Some(true))
    );
    assert_eq!((model.layer_norm_epsilon, model.dropout_rate, model.loss_weight), (Some(1e-8), Some(0.5), Some(2.0)));
    assert_eq!(
        (model.hidden_size, model.num_heads, model.attention_type.as_deref()),
        (Some(1024), None, Some("dot_product"))
    );
    assert_eq!(params.train_input, params.eval_input);
    let run = params.runconfig.as_ref().unwrap();
    assert_eq!(run.debug_args.as_ref().unwrap().to_string(), r#"{"a.b":[1,2.5,"x",null,{"c":"yes"}]}"#);
    assert_eq!(params.ignored_keys(), ["runconfig.debug_args", "runconfig.execute_crd_memory_gi"]);
}

/// Neither depth nor aliases nor truncation of a document may exhaust or panic the reader.
#[test]
fn malicious_documents_are_rejected_quickly() {
    let deep = "[".repeat(100_000);
    let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let previous = format!("*a{}", i - 1);
        laughs.push_str(&format!("a{i}: &a{i} [{}]\n", [previous.as_str(); 10].join(", ")));
    }
    for text in [deep.as_str(), laughs.as_str()] {
        let error = Params::parse_yaml(text).unwrap_err();
        assert_eq!(error.problems().next().unwrap().kind, ParamsProblemKind::Syntax, "{error}");
    }
    let fixture = include_str!("fixtures/gpt2_small.yaml");
    for end in (0..fixture.len()).step_by(7) {
        let _ = Params::parse_yaml(&fixture[..end]).map(|p| p.resolve(&FlagOverrides::default()));
    }
    assert!(resolve("").is_err());
}
