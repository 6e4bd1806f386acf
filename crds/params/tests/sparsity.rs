//! Resolves `sparsity`, as the public model zoo's files have it.

use millrace_params::{DropFraction, MaskGrowth, MaskUpdate, SparsitySpec};

mod common;

use common::{SMALL, resolve};

fn with_sparsity(section: &str) -> String {
    format!("{SMALL}sparsity:\n  sparsity: 0.75\n{section}")
}

fn spec(section: &str) -> SparsitySpec {
    resolve(&with_sparsity(section)).unwrap().job.sparsity.unwrap()
}

#[test]
fn older_and_newer_patterns_select_the_same_parameters() {
    let older =
        "  type: static\n  init_method: random\n  param_name_patterns:\n    - .*proj_[qkv]_dense_layer.weight\n";
    let newer = "  init_method: random\n  param_filter: ['*proj_[qkv]_dense_layer.weight']\n";
    let found = [older, newer].map(|section| {
        let spec = spec(section);
        let filter = spec.filter().unwrap();
        assert_eq!(spec.sparsity, 0.75);
        ["l.0.proj_q_dense_layer.weight", "l.0.proj_output_dense_layer.weight"].map(|name| filter.first_match(name))
    });
    assert_eq!(found, [[Some(0), None]; 2]);
    assert_eq!(resolve(SMALL).unwrap().job.sparsity, None);
}

#[test]
fn algorithms_and_patterns_are_checked() {
    let many = format!("  param_filter: [{}]\n", vec!["a"; 65].join(", "));
    let long = format!("  param_filter: {}\n", "a".repeat(257));
    for (section, message) in [
        (
            "  type: set\n  drop_fraction: {type: cosine}\n  schedule: {freq: 1}\n",
            "drop_fraction.half_period is missing",
        ),
        (
            "  type: set\n  drop_fraction: {type: exp}\n  schedule: {freq: 1}\n",
            "drop_fraction.type exp is not supported",
        ),
        ("  algorithm: RigL\n", "sparsity.update is missing"),
        ("  algorithm: RigL\n  update: {stop: 3}\n", "sparsity.update.freq is missing"),
        ("  algorithm: RigL\n  update: {freq: 0}\n", "sparsity.update.freq is 0"),
        ("  algorithm: RigL\n  drop_fraction: 1\n  update: {freq: 1}\n", "sparsity.drop_fraction is 1"),
        ("  algorithm: gmp\n", "sparsity.algorithm gmp is not supported"),
        ("  init_method: topk\n", "sparsity.init_method topk is not supported"),
        ("  param_filter: a\n  param_name_patterns: a\n", "is given together with param_filter"),
        ("  param_name_patterns: '(a'\n", "has the pattern \"(a\""),
        ("  param_name_patterns: '(a{1000}){1000}'\n", "too large"),
        (&many, "has 65 patterns"),
        (&long, "has a pattern of 257 bytes"),
    ] {
        let report = resolve(&with_sparsity(section)).expect_err(section).report();
        assert!(report.contains(message), "{section}: {report}");
    }
    let all = resolve(&format!("{SMALL}sparsity: {{sparsity: 1}}\n")).unwrap_err().report();
    assert!(all.contains("sparsity.sparsity is 1, which is out of range"), "{all}");
}

/// Both layouts of the zoo's files; `stop` is exclusive, and nothing changes after step 0.
#[test]
fn changes_of_zeros_are_resolved() {
    let drop = "  drop_fraction: {type: cosine, init: 0.4, half_period: 3584}\n";
    let older = spec(&format!("  type: set\n{drop}  schedule: {{freq: 100, stop: 300}}\n"));
    let newer = spec("  algorithm: rigl\n  update: {freq: 100, start: 150}\n");
    let [older, newer] = [older, newer].map(|spec| spec.update.unwrap());
    assert_eq!(older.drop_fraction, DropFraction { initial: 0.4, minimum: 0.0, half_period: Some(3584) });
    assert_eq!(newer.drop_fraction, DropFraction { initial: 0.3, minimum: 0.3, half_period: None });
    assert_eq!([older.growth, newer.growth], [MaskGrowth::Random, MaskGrowth::Gradient]);
    let due = |update: MaskUpdate| (0..500).filter(|step| update.is_due(*step)).collect::<Vec<u64>>();
    assert_eq!((due(older), due(newer)), (vec![100, 200], vec![150, 250, 350, 450]));
    assert_eq!(spec("  update: {freq: 1}\n").update, None);
}
