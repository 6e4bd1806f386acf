use millrace_params::{DropFraction, FlagOverrides, MaskGrowth, MaskUpdate, Params};

use super::*;
use crate::families;

const GROUPED: &str = "train_input: {data_processor: GptTokenDataProcessor, data_files: x, batch_size: 8}\n\
    model: {vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_heads: 4, nonlinearity: swiglu,\
    \x20attention_module: multiquery_attention, extra_attention_params: {num_kv_groups: 2}}\n\
    optimizer: {optimizer_type: AdamW, learning_rate: 0.1}\nrunconfig: {max_steps: 1}\n";

fn job(sparsity: &str) -> (JobSpec, Graph) {
    let params = Params::parse_yaml(&format!("{GROUPED}sparsity: {sparsity}\n")).unwrap();
    let job = params.resolve(&FlagOverrides::default()).unwrap().job;
    let graph = families::graph(&job.model, 16).unwrap();
    (job, graph)
}

/// Returns the number of zeros in each row of every sparse tensor.
fn zeros(job: &JobSpec, graph: &Graph) -> Vec<(String, Vec<usize>)> {
    let mut masks = SparsityMasks::new(job, graph).unwrap();
    masks.find_bounds(7, 0..graph.tensors.len());
    let of_tensor = |(index, tensor): (usize, &Tensor)| {
        let mut values = vec![1.0; tensor.elements()];
        masks.apply(crate::kernels::Simd::detect(), 7, index, 0, &mut values);
        let mut pieces = vec![1.0; tensor.elements()];
        for (start, piece) in pieces.chunks_mut(13).enumerate() {
            masks.apply(crate::kernels::Simd::detect(), 7, index, 13 * start, piece);
        }
        assert_eq!(pieces, values, "{} in pieces", tensor.name);
        let width = tensor.elements() / tensor.shape[0];
        (tensor.name.clone(), values.chunks(width).map(|row| row.iter().filter(|x| **x == 0.0).count()).collect())
    };
    let all: Vec<(String, Vec<usize>)> = graph.tensors.iter().enumerate().map(of_tensor).collect();
    let total: usize = all.iter().flat_map(|(_, rows)| rows).sum();
    assert_eq!(masks.zeros(), total as u64);
    all.into_iter().filter(|(_, rows)| rows.iter().any(|zeros| *zeros > 0)).collect()
}

#[test]
fn number_of_zeros_is_exact_in_every_parameter() {
    let (job, graph) =
        job("{sparsity: 0.7, param_filter: ['*proj_[qv]_dense_layer.weight', '*ffn.1.linear_layer.weight']}");
    let found = zeros(&job, &graph);
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["h.0.attn.qkv.weight", "h.0.mlp.proj.weight", "h.1.attn.qkv.weight", "h.1.mlp.proj.weight"]);
    // 4 heads of 8 queries; 2 heads of keys, which are dense, and 2 of values.
    let sum = |rows: Range<usize>| found[0].1[rows].iter().sum::<usize>();
    let exact = |rows: usize| (0.7 * (rows * 32) as f64).round() as usize;
    assert_eq!((sum(0..32), sum(32..48), sum(48..64)), (exact(32), 0, exact(16)));
    assert_ne!(found[0].1, found[2].1, "blocks have different masks");
}

#[test]
fn default_masks_every_matrix_of_the_blocks() {
    let (job, graph) = job("{sparsity: 0.5}");
    let names: Vec<String> = zeros(&job, &graph).into_iter().map(|(name, _)| name).collect();
    let parts = ["attn.qkv", "attn.proj", "mlp.gate", "mlp.fc", "mlp.proj"];
    let expected = (0..2).flat_map(|block| parts.map(|part| format!("h.{block}.{part}.weight")));
    assert_eq!(names, expected.collect::<Vec<_>>());
}

#[test]
fn pattern_without_parameter_is_named() {
    let (job, graph) = job("{sparsity: 0.5, param_name_patterns: ['.*linear_layer.weight', 'h.7.*']}");
    let error = SparsityMasks::new(&job, &graph).unwrap_err();
    assert_eq!(error, SparsityError::NoMatch { pattern: "h.7.*".into() });
}

#[test]
fn bound_is_an_order_statistic() {
    for (elements, zeros) in [(0..100, 1), (3..103, 50), (0..100, 100), (0..100_000, 74_999)] {
        let mut hashes: Vec<u64> = elements.clone().map(|element| hash64(5, element as u64)).collect();
        hashes.sort_unstable();
        assert_eq!(bound(5, elements, zeros), Some(hashes[zeros as usize - 1]));
    }
    assert_eq!((bound(5, 0..10, 0), bound(5, 0..10, 11)), (None, None));
}

/// The number of zeros stays; the smallest weights go, and those with the largest gradients come, as zeros.
#[test]
fn changes_replace_small_weights_by_zeros_with_large_gradients() {
    let (job, graph) = job("{sparsity: 0.5, param_filter: h.0.attn.proj.weight, algorithm: rigl, update: {freq: 1}}");
    let masks = SparsityMasks::new(&job, &graph).unwrap();
    let tensor = graph.tensors.iter().position(|tensor| tensor.name == "h.0.attn.proj.weight").unwrap();
    let elements = graph.tensors[tensor].elements();
    let update = MaskUpdate {
        drop_fraction: DropFraction { initial: 0.25, minimum: 0.25, half_period: None },
        ..*mask_update(&job).unwrap()
    };
    let run = |growth: MaskGrowth, step: u64| {
        // Weights of even elements train and grow with the element; so do all gradients, up to the last four.
        let mut mask: Vec<f32> = (0..elements).map(|index| f32::from(u8::from(index % 2 == 0))).collect();
        let mut weights: Vec<f32> = mask.iter().enumerate().map(|(index, mask)| (index as f32 - 0.5) * mask).collect();
        let gradient: Vec<f32> =
            (0..elements).map(|index| if index + 4 < elements { -(index as f32) } else { 0.0 }).collect();
        let mut state = mask.clone();
        let arrays =
            MaskArrays { weights: &mut weights, gradient: &gradient, mask: &mut mask, state: vec![&mut state] };
        masks.update(&MaskUpdate { growth, ..update }, (7, step), tensor, arrays);
        assert_eq!(mask.iter().filter(|mask| **mask == 0.0).count(), elements / 2);
        for index in 0..elements {
            let is_new = mask[index] != 0.0 && index % 2 == 1;
            assert_eq!(weights[index] != 0.0, mask[index] != 0.0 && !is_new, "weight {index}");
            assert_eq!(state[index] != 0.0, mask[index] != 0.0 && !is_new, "state {index}");
        }
        mask
    };
    let changed = elements / 8;
    let unmasked = |mask: &[f32]| (0..elements).filter(|index| mask[*index] != 0.0).collect::<Vec<usize>>();
    // A quarter of those that train, the first, is replaced by odd elements from the end.
    let remaining = (2 * changed..elements).step_by(2);
    let grown = (0..changed).map(|index| elements - 5 - 2 * index);
    let mut expected: Vec<usize> = remaining.chain(grown).collect();
    expected.sort_unstable();
    assert_eq!(unmasked(&run(MaskGrowth::Gradient, 1)), expected);
    // At random: another choice at every step, among which are some that were dropped.
    let [first, second] = [1, 2].map(|step| unmasked(&run(MaskGrowth::Random, step)));
    assert!(first != second && first.iter().any(|index| *index < 2 * changed && index % 2 == 0));
}

#[test]
fn share_of_a_change_follows_half_a_cosine() {
    let share = DropFraction { initial: 0.3, minimum: 0.1, half_period: Some(100) };
    let found = [0, 50, 100, 1000].map(|step| update::drop_fraction(share, step));
    for (found, expected) in found.into_iter().zip([0.3, 0.2, 0.1, 0.1]) {
        assert!((found - expected).abs() < 1e-12, "{found}");
    }
}
