//! Checks the guarantees of the device: identical bits for any division of work, evaluation, memory, and errors.

mod common;

use std::sync::Arc;

use common::generic::{self, DecoderSizes};
use common::*;
use millrace_emulator::compile::{BatchSpec, CompileRequest, compile, system_bytes};
use millrace_emulator::device::InputData::{self, F32, I32};
use millrace_emulator::device::{CpuDevice, Device, DeviceError, LeafLoss};
use millrace_emulator::families;
use millrace_emulator::graph::Graph;
use millrace_emulator::kernels::Simd;
use millrace_emulator::kernels::loss::LossSums;
use millrace_emulator::numerics::Isa;
use millrace_emulator::plan::{Encoding, Pass, StreamPlan};
use millrace_emulator::rewrite::rewrite;
use millrace_emulator::tree::Node;
use millrace_emulator::{kernels, ops};
use millrace_params::{
    DecoderOptions, EncoderOptions, EncoderTask, ImageNetwork, ImageOptions, ImageShape, MachineSpec, ModelSpec,
    Nonlinearity, Norm, ParallelBlocks, Positions, RotaryPositions, Seq2SeqOptions, Seq2SeqPositions,
};

const WORDS: usize = 64;

/// Six leaves of two samples, dropout everywhere.
const BATCH: BatchSpec = BatchSpec { samples: 12, leaf_bound: 2 };

/// A decoder of generic operators that the compiler leaves as they are.
const GENERIC: DecoderSizes =
    DecoderSizes { vocabulary: WORDS, tokens: 20, blocks: 2, heads: 3, head_dim: 16, dropout: 0.1, is_known: false };

fn graph() -> Graph {
    families::decoder(&with_dropout(spec(3, 48, 3, WORDS, 20), 0.1), 20).unwrap()
}

/// A graph of each kind of model, with dropout everywhere.
fn models() -> Vec<Graph> {
    let rotary =
        |is_adjacent| Positions::Rotary(RotaryPositions { dimensions: 8, base: 100.0, is_adjacent, scaling: None });
    let llama = DecoderOptions {
        positions: rotary(false),
        norm: Norm::RmsNorm,
        num_key_heads: Some(1),
        attention_window: Some(7),
        is_gated: true,
        ..DecoderOptions::default()
    };
    let gptj = DecoderOptions {
        positions: rotary(true),
        parallel_blocks: Some(ParallelBlocks::OneNorm),
        ..DecoderOptions::default()
    };
    let neox = DecoderOptions { parallel_blocks: Some(ParallelBlocks::TwoNorms), ..gptj.clone() };
    let bloom = DecoderOptions {
        positions: Positions::Alibi,
        norm: Norm::BiaslessLayerNorm,
        is_embedding_normalized: true,
        embeddings_scale: 3.0,
        logits_scale: 0.5,
        ..DecoderOptions::default()
    };
    let gemma2 = DecoderOptions {
        is_window_alternating: true,
        attention_softcap: Some(0.5),
        logits_softcap: Some(1.5),
        is_branch_normalized: true,
        ..llama.clone()
    };
    let packed = DecoderOptions { attention_window: None, is_packed: true, ..llama.clone() };
    let graph = |decoder| {
        let spec = ModelSpec { decoder, ..with_dropout(spec(3, 48, 3, WORDS, 20), 0.1) };
        families::decoder(&spec, 20).unwrap()
    };
    let decoders = [DecoderOptions::default(), llama, gptj, neox, bloom, gemma2, packed].map(graph);
    let families = decoders.into_iter().chain(encoders()).chain(seq2seq()).chain(image_classifiers());
    // Its loss saves the logits, which the other losses recompute.
    let many_words = with_dropout(spec(3, 48, 3, ops::VOCABULARY_BLOCK + 7, 20), 0.1);
    families.chain([generic::decoder(GENERIC), families::decoder(&many_words, 20).unwrap()]).collect()
}

/// T5 and the Transformer.
fn seq2seq() -> [Graph; 2] {
    let base = with_dropout(spec(2, 48, 3, WORDS, 20), 0.1);
    let initializer = base.initializers.hidden;
    let relative = Seq2SeqPositions::Relative { buckets: 8, max_distance: 16, initializer };
    [(relative, true), (Seq2SeqPositions::Fixed, false)].map(|(positions, norm_first)| {
        let options = Seq2SeqOptions {
            target_vocab_size: WORDS,
            target_length: 13,
            num_decoder_layers: 2,
            shares_embedding: norm_first,
            positions,
            norm_first,
            decoder_nonlinearity: Nonlinearity::Relu,
            is_decoder_gated: false,
            ffn_dropout_rate: 0.1,
            input_dropout_rate: 0.1,
            output_dropout_rate: 0.1,
            query_initializer: initializer,
            decoder: None,
        };
        let decoder = DecoderOptions { norm: Norm::RmsNorm, attention_width: Some(36), ..DecoderOptions::default() };
        families::graph(&ModelSpec { seq2seq: Some(options), decoder, ..base.clone() }, 20).unwrap()
    })
}

/// BERT with both losses of pretraining, as a classifier of samples and of tokens, and for answers; and an encoder
/// whose blocks normalize their input and rotate queries and keys.
fn encoders() -> [Graph; 5] {
    let pretraining = EncoderTask::Pretraining {
        max_predictions: Some(5),
        masked_token_weight: 0.3,
        nonlinearity: Nonlinearity::Gelu,
        predicts_next_sentence: true,
    };
    let graph = |task, norm_first: bool, positions| {
        let options = EncoderOptions {
            use_segment_embedding: !norm_first,
            pooler_nonlinearity: Nonlinearity::Tanh,
            task,
            norm_first,
            is_embedding_plain: norm_first,
            mask_token: norm_first.then_some(1),
            has_token_dropout: norm_first,
        };
        let decoder = DecoderOptions { positions, ..DecoderOptions::default() };
        let base = with_dropout(spec(3, 48, 3, WORDS, 20), 0.1);
        let spec = ModelSpec { encoder: Some(options), decoder, compute_eval_metrics: true, ..base };
        families::graph(&spec, 20).unwrap()
    };
    let of_tokens = EncoderTask::TokenClassifier { classes: 5, dropout_rate: 0.1, counts_padding: false };
    let rotary = Positions::Rotary(RotaryPositions { dimensions: 8, base: 100.0, is_adjacent: false, scaling: None });
    let classifier = EncoderTask::Classifier { classes: 3, dropout_rate: 0.1 };
    [
        graph(pretraining, false, Positions::Learned),
        graph(classifier, false, Positions::Learned),
        graph(of_tokens, false, Positions::Learned),
        graph(EncoderTask::Summarization { max_sentences: 3, compares_words: true }, true, rotary),
        graph(EncoderTask::QuestionAnswering {}, false, Positions::Learned),
    ]
}

/// Linear layers, and a vision transformer.
fn image_classifiers() -> [Graph; 2] {
    let transformer =
        ImageNetwork::Transformer { patch_size: [3, 5], has_projection_bias: true, pooler_nonlinearity: None };
    let shape = ImageShape { channels: 3, height: 9, width: 10 };
    [ImageNetwork::Mlp { hidden_sizes: vec![50, 30, 20] }, transformer].map(|network| {
        let image = Some(ImageOptions { shape, network });
        let spec = ModelSpec { image, ..with_dropout(spec(3, 48, 3, 7, 1), 0.1) };
        families::graph(&spec, 1).unwrap()
    })
}

/// The leaves of each device in each round: first, and one past the last.
type Shares = &'static [&'static [(u32, u32)]];

const WHOLE: Shares = &[&[(0, 6)]];

/// Losses and gradients of a step whose leaves are distributed over devices, in rounds.
fn run_on_devices(plan: &Arc<StreamPlan>, devices: &mut [CpuDevice], shares: Shares) -> (Vec<LeafLoss>, Vec<Vec<f32>>) {
    let (weights, samples) = (initial_weights(plan, 1), Samples::random(plan, 2));
    let (mut losses, mut sums) = (Vec::new(), Vec::new());
    for shares in shares {
        for (device, &(start, end)) in devices.iter_mut().zip(*shares) {
            let (loss, sum) = round(device, plan, &weights, &samples, start..end);
            losses.extend(loss);
            sums.extend(sum);
        }
    }
    (losses, total(plan, sums))
}

fn bits(groups: &[Vec<f32>]) -> Vec<u32> {
    groups.iter().flatten().map(|number| number.to_bits()).collect()
}

#[test]
fn bits_do_not_depend_on_the_division_of_work() {
    let encodings = [Encoding::F32, Encoding::Bf16];
    for (graph, encoding) in models().into_iter().flat_map(|graph| encodings.map(|encoding| (graph.clone(), encoding)))
    {
        let plan = plan(graph, BATCH, encoding, LARGE);
        assert_eq!(plan.leaves.count, 6);
        let on = |threads| device(&plan, threads);
        let (losses, gradients) = run_on_devices(&plan, &mut [on(1)], WHOLE);
        assert!(gradients.iter().flatten().all(|g| g.is_finite()) && gradients.iter().flatten().any(|g| *g != 0.0));
        let cases: [(&str, &[usize], Shares); 6] = [
            ("2 threads", &[2], WHOLE),
            ("3 threads", &[3], WHOLE),
            ("2 devices", &[1, 2], &[&[(0, 3), (3, 6)]]),
            ("4 devices, of which one idle", &[1, 1, 1, 1], &[&[(0, 2), (2, 4), (4, 6), (0, 0)]]),
            ("2 devices, not halves", &[1, 1], &[&[(0, 4), (4, 6)]]),
            ("rounds", &[1, 1], &[&[(0, 2), (2, 3)], &[(3, 5), (5, 6)]]),
        ];
        for (name, threads, shares) in cases {
            let mut devices: Vec<CpuDevice> = threads.iter().map(|&threads| on(threads)).collect();
            let (other_losses, other_gradients) = run_on_devices(&plan, &mut devices, shares);
            assert_eq!(bits(&gradients), bits(&other_gradients), "{name}");
            assert_eq!(losses, other_losses, "{name}");
        }
    }
}

#[test]
fn families_have_no_patterns_to_rewrite() {
    for graph in models() {
        assert_eq!(rewrite(graph.clone()), graph);
    }
}

#[test]
fn same_bits_when_layers_are_recomputed() {
    for graph in models() {
        let saving = plan(graph.clone(), BATCH, Encoding::F32, LARGE);
        let recomputing = recomputing(graph, BATCH);
        assert!(!saving.layers.iter().any(|layer| layer.recompute));
        assert!(recomputing.layers.iter().any(|layer| layer.recompute));
        let run = |plan: &Arc<StreamPlan>| run_on_devices(plan, &mut [device(plan, 1)], WHOLE);
        let ((losses, gradients), (repeated_losses, repeated_gradients)) = (run(&saving), run(&recomputing));
        assert_eq!(losses, repeated_losses);
        assert_eq!(bits(&gradients), bits(&repeated_gradients));
    }
}

#[test]
fn same_bits_when_weights_arrive_early_in_small_chunks() {
    const CHUNK_ELEMENTS: usize = 192;
    for graph in models() {
        let plan = plan(graph.clone(), BATCH, Encoding::F32, LARGE);
        let (losses, gradients) = run_on_devices(&plan, &mut [device(&plan, 1)], WHOLE);
        let saving =
            CompileRequest { chunk_elements: CHUNK_ELEMENTS, ..request(graph.clone(), BATCH, Encoding::F32, LARGE) };
        let plans = [Arc::new(compile(saving).unwrap()), recomputing_in_chunks(graph, BATCH, CHUNK_ELEMENTS)];
        for plan in plans {
            let (weights, samples) = (initial_weights(&plan, 1), Samples::random(&plan, 2));
            let mut device = device(&plan, 2);
            let (early_losses, sums) = round_with_early_weights(&mut device, &plan, &weights, &samples);
            assert_eq!(early_losses, losses);
            assert_eq!(bits(&total(&plan, sums)), bits(&gradients));
        }
    }
}

/// The kernels guarantee it for all instruction sets with fused multiply-add.
#[test]
fn same_bits_with_avx2_and_avx512() {
    let plans: Vec<_> = models().into_iter().map(|graph| plan(graph, BATCH, Encoding::F32, LARGE)).collect();
    let run = |simd: Simd| -> Vec<_> {
        plans.iter().map(|plan| run_on_devices(plan, &mut [device_on(plan, 1, simd)], WHOLE)).collect()
    };
    let fused: Vec<Simd> = Simd::all().filter(|simd| simd.isa() != Isa::Portable).collect();
    // What the system reports of the CPU, so that a set that is no longer detected is noticed.
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has_flags = |flags: &[&str]| flags.iter().all(|flag| cpu.split_whitespace().any(|word| word == *flag));
    let avx2 = has_flags(&["avx2", "fma"]);
    let avx512 = avx2 && has_flags(&["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"]);
    assert_eq!(fused.len(), usize::from(avx2) + usize::from(avx512), "sets detected, and sets of this CPU");
    if fused.len() < 2 {
        eprintln!("nothing compared: this CPU has no AVX-512");
    }
    for pair in fused.windows(2) {
        for ((losses, gradients), (other_losses, other_gradients)) in run(pair[0]).into_iter().zip(run(pair[1])) {
            assert_eq!(losses, other_losses);
            assert_eq!(bits(&gradients), bits(&other_gradients));
        }
    }
}

#[test]
fn device_is_reusable_and_dropout_follows_samples() {
    let plan = plan(graph(), BATCH, Encoding::F32, LARGE);
    let mut device = device(&plan, 1);
    let (weights, samples) = (initial_weights(&plan, 1), Samples::random(&plan, 2));
    let (_, first) = step(&mut device, &plan, &weights, &samples);
    evaluate(&mut device, &plan, &weights, &samples);
    let (_, repeated) = step(&mut device, &plan, &weights, &samples);
    assert_eq!(bits(&first), bits(&repeated));
    let moved = Samples { first: samples.first + 1, ..Samples::random(&plan, 2) };
    let (_, other) = step(&mut device, &plan, &weights, &moved);
    assert_ne!(bits(&first), bits(&other));
}

#[test]
fn losses_beside_the_main_one_are_summed_apart() {
    let [pretraining, classifier, ..] = encoders();
    let evaluate_graph = |graph| {
        let plan = plan(graph, BATCH, Encoding::F32, LARGE);
        let losses = evaluate(&mut device(&plan, 2), &plan, &initial_weights(&plan, 1), &Samples::random(&plan, 2));
        (losses, plan.eval_leaves.batch())
    };
    let (losses, samples) = evaluate_graph(pretraining);
    // Each sample has at most one label of the next sentence, beside its masked tokens.
    assert!((1..=samples).contains(&losses.iter().map(|leaf| leaf.other.tokens).sum()));
    for leaf in &losses {
        assert!(0.0 <= leaf.other.loss && leaf.other.loss < leaf.loss && leaf.other.correct <= leaf.other.tokens);
        assert!(leaf.tokens > leaf.other.tokens, "{leaf:?}");
    }
    assert!(evaluate_graph(classifier).0.iter().all(|leaf| leaf.other == LossSums::default()));
}

/// The arena has the size that the plan accounts for, and everything else does not grow with the depth of the model.
#[test]
fn memory_is_what_the_plan_says() {
    assert_eq!(ops::VOCABULARY_BLOCK, kernels::loss::VOCABULARY_BLOCK);
    let device_bytes = |layers: usize, recompute: bool| {
        let graph = families::decoder(&spec(layers, 96, 2, 256, 64), 64).unwrap();
        let batch = BatchSpec { samples: 12, leaf_bound: 4 };
        let plan = if recompute { recomputing(graph, batch) } else { plan(graph, batch, Encoding::F32, LARGE) };
        let leaves = plan.leaves_per_round.min(plan.leaves.count);
        let mut device = device(&plan, 1);
        round(&mut device, &plan, &initial_weights(&plan, 1), &Samples::random(&plan, 2), 0..leaves);
        let (memory, expected) =
            (device.memory(), system_bytes(&plan, plan.leaves.count, true, &MachineSpec::default().link).host);
        let difference = memory.activations as f64 / expected.activations as f64 - 1.0;
        assert!(difference.abs() < 0.01, "{layers} layers: {} for {}", memory.activations, expected.activations);
        // The weights of the next layer, which the plan counts, only arrive early with links; copies are padded to
        // whole tiles, which is visible with matrices as small as these.
        let max_weights = expected.weights.resident + expected.weights.window + expected.packed;
        assert!(
            memory.weights <= max_weights + max_weights / 5 && 2 * memory.weights > max_weights,
            "{} for {max_weights}",
            memory.weights
        );
        memory.weights + memory.gradients + memory.scratch
    };
    for recompute in [false, true] {
        assert_eq!(device_bytes(2, recompute), device_bytes(8, recompute));
    }
}

#[test]
fn non_finite_value_is_traced_to_its_layer() {
    let plan = plan(graph(), BATCH, Encoding::F32, LARGE);
    let samples = Samples::random(&plan, 2);
    for (index, name) in ["embed", "h.1.attn", "head"].into_iter().enumerate() {
        let layer = plan.graph.layers.iter().position(|layer| layer.name == name).unwrap();
        let group = plan.groups.iter().position(|group| group.name == name).unwrap();
        let mut weights = initial_weights(&plan, 1);
        weights[group][0] = [f32::NAN, f32::INFINITY, f32::NAN][index];
        let (losses, _) = round(&mut device(&plan, 1), &plan, &weights, &samples, 0..6);
        assert!(
            losses.iter().all(|leaf| !leaf.loss.is_finite() && leaf.bad_layer == Some(layer)),
            "{name}: {losses:?}"
        );
    }
}

/// The labels are reshaped before they are used, so that they are checked when they are.
#[test]
fn computed_index_outside_its_table_is_rejected() {
    let plan = plan(generic::decoder(GENERIC), BATCH, Encoding::F32, LARGE);
    let (weights, samples) = (initial_weights(&plan, 1), Samples::random(&plan, 2));
    let mut device = device(&plan, 2);
    let (losses, _) = round(&mut device, &plan, &weights, &samples, 0..6);
    for (integer, position) in [(-1, 7), (WORDS as i32, 39)] {
        let mut damaged = Samples { inputs: samples.inputs.clone(), first: 0 };
        let Elements::I32(labels) = &mut damaged.inputs[1] else { panic!("labels are integers") };
        labels[40 + position] = integer;
        begin(&mut device, true, &[Node::new(0, 6)], &damaged.leaves(plan.leaves, 0..6)).unwrap();
        let mut layers = (0..plan.layers.len()).map(|layer| {
            load(&mut device, &plan, &weights, Pass::Forward, layer);
            device.forward(layer)
        });
        let error = layers.find_map(Result::err).expect("an error");
        let DeviceError::Index { leaf: 1, value, position: found, entries: WORDS, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((value, found), (integer, position));
    }
    assert_eq!(round(&mut device, &plan, &weights, &samples, 0..6).0, losses);
}

fn with_inputs<'a>(leaf: &Leaf<'_>, inputs: &[InputData<'a>]) -> Leaf<'a> {
    Leaf { leaf: leaf.leaf, first_sample: leaf.first_sample, inputs: inputs.to_vec() }
}

const NEGATIVE_THEN_64: [i32; 40] = {
    let mut labels = [-1; 40];
    labels[7] = 64;
    labels
};

type Attempt = fn(&mut CpuDevice, &StreamPlan, &[Leaf<'_>]) -> Result<(), DeviceError>;

#[test]
fn model_that_does_not_fit_is_rejected_and_named() {
    let plan = plan(graph(), BATCH, Encoding::F32, LARGE);
    let samples = Samples::random(&plan, 2);
    let leaves = samples.leaves(plan.leaves, 0..6);
    const ALL: &[Node] = &[Node::new(0, 6)];
    let cases: [(&str, Attempt); 14] = [
        ("leaves [0, 2]", |d, _, l| begin(d, true, ALL, &[l[0].clone(), l[2].clone()])),
        ("leaves [6]", |d, _, l| begin(d, true, &[Node::new(6, 7)], &[Leaf { leaf: 6, ..l[0].clone() }])),
        ("partial sums [0,3) and [3,6)", |d, _, l| begin(d, true, &[Node::new(0, 3), Node::new(3, 6)], l)),
        ("1 inputs", |d, _, l| begin(d, false, &[], &[with_inputs(&l[0], &l[0].inputs[..1])])),
        ("39 elements", |d, _, l| begin(d, false, &[], &[with_inputs(&l[0], &[I32(&[0; 39]), l[0].inputs[1]])])),
        ("not of the element type", |d, _, l| begin(d, false, &[], &[with_inputs(&l[0], &[F32(&[0.0; 40]); 2])])),
        ("input_ids of leaf 0 is 64", |d, _, l| {
            begin(d, false, &[], &[with_inputs(&l[0], &[I32(&[64; 40]), l[0].inputs[1]])])
        }),
        ("input_ids of leaf 0 is -1", |d, _, l| {
            begin(d, false, &[], &[with_inputs(&l[0], &[I32(&[-1; 40]), l[0].inputs[1]])])
        }),
        ("labels of leaf 0 is 64", |d, _, l| {
            begin(d, false, &[], &[with_inputs(&l[0], &[l[0].inputs[0], I32(&[64; 40])])])
        }),
        ("labels of leaf 0 is 64", |d, _, l| {
            // The first bad element is named, not the first ignored one.
            begin(d, false, &[], &[with_inputs(&l[0], &[l[0].inputs[0], I32(&NEGATIVE_THEN_64)])])
        }),
        ("chunk 1000", |d, _, _| d.load(1000, Encoding::F32, &[])),
        ("3 bytes", |d, _, _| d.load(0, Encoding::F32, &[0; 3])),
        ("chunk 0 of its weights is missing", |d, _, l| begin(d, true, ALL, l).and_then(|()| d.forward(0))),
        ("out of order", |d, _, l| begin(d, true, ALL, l).and_then(|()| d.forward(1))),
    ];
    let mut device = device(&plan, 1);
    for (expected, attempt) in cases {
        let error = attempt(&mut device, &plan, &leaves).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error:?} does not name {expected:?}");
        assert!(matches!(device.forward(1), Err(DeviceError::Order { .. })));
    }
    // A new round works as if the failed one had not happened.
    step(&mut device, &plan, &initial_weights(&plan, 1), &samples);
    assert_eq!(device.backward(0), Err(DeviceError::Order { pass: Pass::Backward, layer: 0 }));
    assert_eq!(device.gradient(1, 0, Node::new(0, 6)), None);
    assert_eq!(device.gradient(0, plan.chunks.len(), Node::new(0, 6)), None);
}
