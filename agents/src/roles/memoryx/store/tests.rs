use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_checkpoint::{
    Checkpoint, CheckpointMetadata, Digest, LockRequest, ModelDirLock, Staging, StepHistory, WriterEpoch,
};
use millrace_emulator::kernels::ftz;
use millrace_emulator::numerics::Isa;
use millrace_emulator::numerics::random::hash64;
use millrace_engine::payload_memory::HeapMemory;
use millrace_engine::types::TrainingHistory;
use millrace_params::{FlagOverrides, MachineSpec, Params};

use super::*;
use crate::control::job::JobDocument;

const LENGTH: usize = 40 * payload::SPARSE_BLOCK_ELEMENTS + 9;

/// Returns a gradient with few non-zero sparse blocks: zeros of both signs, denormals and other values.
fn gradient(key: u64, filled: u64) -> Vec<f32> {
    let number = |element: usize| {
        let hash = hash64(key, element as u64);
        let empty = hash64(!key, (element / payload::SPARSE_BLOCK_ELEMENTS) as u64) % 100 >= filled;
        let special = [0.0, -0.0, 1e-40, -1e-40, -3.0, 1.5 * f32::MIN_POSITIVE, -f32::MIN_POSITIVE];
        if empty { 0.0 } else { special.get(hash as usize % 9).copied().unwrap_or((hash >> 40) as f32) }
    };
    (0..LENGTH).map(number).collect()
}

fn dense(gradient: &[f32]) -> Payload {
    Payload::Dense(gradient.iter().flat_map(|x| x.to_le_bytes()).collect())
}

fn sum(gradient: &[f32]) -> Payload {
    Payload::from_sum(gradient, &HeapMemory)
}

/// Gathers two uses of a chunk, each the sum of the leaves of two systems.
fn gather(uses: &[[Vec<f32>; 2]; 2], encode: impl Fn(&[f32]) -> Payload) -> Vec<u32> {
    let mut all = vec![f32::NAN; LENGTH];
    for (index, [left, right]) in uses.iter().enumerate() {
        take_sum(Simd::detect(), &encode(left).join(encode(right), &HeapMemory), index == 0, &mut all).unwrap();
    }
    all.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn sparse_sums_have_bits_of_dense_sums_under_flushing() {
    let _flush = ftz::scoped();
    for seed in 0..20 {
        for filled in [[[5, 5], [5, 5]], [[100, 100], [5, 5]], [[5, 100], [40, 40]], [[5, 5], [100, 5]]] {
            let mut key = 10 * seed;
            let uses = filled.map(|pair| {
                pair.map(|filled| {
                    key += 1;
                    gradient(key, filled)
                })
            });
            assert_eq!(gather(&uses, sum), gather(&uses, dense), "seed {seed}, {filled:?}");
        }
    }
    assert!(matches!(Payload::from_sum(&gradient(1, 5), &HeapMemory), Payload::Sparse(_)));
    assert_eq!(take_sum(Simd::detect(), &Payload::from_sum(&[0.0; LENGTH], &HeapMemory), true, &mut [0.0; 2]), None);
}

/// Returns the only shard of the smallest example, with its initial parameters.
fn small_store() -> ShardStore {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/gpt2-tiny.yaml");
    store(&std::fs::read_to_string(path).unwrap())
}

fn store(params: &str) -> ShardStore {
    let params = Params::parse_yaml(params).unwrap();
    let job = params.resolve(&FlagOverrides::default()).unwrap().job;
    let mut appliance = MachineSpec::default();
    appliance.link.chunk_bytes = 1 << 14;
    let job = JobDocument::new(job, appliance).unwrap().compile(Isa::detect()).unwrap();
    let store = ShardStore::new(job, 0, 1, StallClock::new()).unwrap();
    store.initialise().unwrap();
    store
}

/// Returns the smallest example with another optimizer, on links with chunks of `chunk_bytes`.
fn job_with(optimizer: &str, chunk_bytes: u64) -> CompiledJob {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/gpt2-tiny.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, section) = text.split_once("\noptimizer:").unwrap();
    let (_, after) = section.split_once("\nrunconfig:").unwrap();
    let params = Params::parse_yaml(&format!("{before}\noptimizer: {optimizer}\nrunconfig:{after}")).unwrap();
    let job = params.resolve(&FlagOverrides::default()).unwrap().job;
    let mut appliance = MachineSpec::default();
    appliance.link.chunk_bytes = chunk_bytes;
    JobDocument::new(job, appliance).unwrap().compile(Isa::detect()).unwrap()
}

/// Weights and state of every tensor, by name.
type Tensors = BTreeMap<String, Vec<Vec<u32>>>;

/// Trains on `shards` shards with gradients that depend on tensor and element only. After `resume_at` steps, state
/// is written to a checkpoint, and other shards continue from it.
fn train_on(job: &CompiledJob, shards: u32, steps: u64, resume: Option<(u64, u32)>) -> Tensors {
    let new = |shards: u32| -> Vec<ShardStore> {
        (0..shards).map(|id| ShardStore::new(job.clone(), id, shards, StallClock::new()).unwrap()).collect()
    };
    let mut stores = new(shards);
    stores.iter().for_each(|store| store.initialise().unwrap());
    let dir = tempfile::tempdir().unwrap();
    for step in 1..=steps {
        let owners = placement::group_owners(&job.plan, stores.len() as u32);
        for chunk in 0..job.plan.chunks.len() {
            let shard = placement::owner_of_chunk(&owners, stores.len() as u32, chunk);
            let store = &stores[shard as usize];
            store.read(chunk, &HeapMemory).unwrap();
            let mut gradient = vec![0.0; job.plan.chunks[chunk].elements];
            for (tensor, first, range) in job.plan.chunk_pieces(chunk) {
                for (index, gradient) in gradient[range].iter_mut().enumerate() {
                    let hash = hash64(step << 32 | tensor as u64, (first + index) as u64);
                    *gradient = (hash >> 40) as f32 / (1 << 23) as f32 - 1.0;
                }
            }
            store.gather(chunk, true, true, &dense(&gradient)).unwrap().unwrap();
        }
        let record = CommitRecord {
            step,
            scale: 0.5,
            learning_rate: 0.1,
            loss: 1.0,
            norm: 1.0,
            tokens: 1,
            history: TrainingHistory::default(),
        };
        stores.iter().for_each(|store| store.commit(record));
        if let Some((_, shards)) = resume.filter(|(resume_step, _)| *resume_step == step) {
            let path = write_checkpoint(job, &stores, step, dir.path());
            stores = new(shards);
            stores.iter().for_each(|store| store.restore(path.to_str().unwrap(), true, step).unwrap());
        }
    }
    let path = write_checkpoint(job, &stores, steps, dir.path());
    let checkpoint = Checkpoint::open_verified(path).unwrap();
    let tensors = checkpoint.layout().graph().tensors.iter().enumerate();
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    let all = |tensor| {
        let sections = checkpoint.moments().sections();
        sections.map(|section| bits(checkpoint.read_tensor(tensor, section).unwrap())).collect()
    };
    tensors.map(|(tensor, tensor_spec)| (tensor_spec.name.clone(), all(tensor))).collect()
}

fn write_checkpoint(job: &CompiledJob, stores: &[ShardStore], step: u64, dir: &Path) -> PathBuf {
    let lock = Arc::new(ModelDirLock::acquire(dir, &LockRequest::local()).unwrap());
    let epoch = WriterEpoch { attempt: lock.attempt(), number: 1 };
    let mut staging = Staging::create(&lock, &job.plan, step, epoch, &job.moments()).unwrap();
    for store in stores {
        let cursor = store.begin_snapshot(step);
        let digests = store.write_snapshot(cursor, staging.path().to_str().unwrap()).unwrap();
        for (chunk, digests) in digests {
            for (section, digest) in job.moments().sections().zip(digests) {
                staging.record_digest(section, chunk, Digest(digest)).unwrap();
            }
        }
    }
    let metadata = CheckpointMetadata {
        plan: job.hash,
        seed: 0,
        next_sample: 0,
        numerics_profile: job.profile_json(),
        precision: "f32".into(),
        optimizer: job.optimizer().kind.name().into(),
        loss: None,
        grad_norm: None,
        history: StepHistory::default(),
        notes: Vec::new(),
        job: job.job.to_json(),
        recovery: false,
    };
    staging.publish(metadata).unwrap()
}

/// Sums over a tensor have the same order on any shards and in any chunks, and continue from a checkpoint.
#[test]
fn whole_tensor_updates_depend_on_neither_shards_nor_chunks() {
    let _flush = ftz::scoped();
    let lamb = "{optimizer_type: LAMB, learning_rate: 0.1, weight_decay: 0.1}";
    let adafactor = "{optimizer_type: AdaFactor, learning_rate: 0.1, beta1: 0.9, weight_decay: 0.1}";
    let changing = |algorithm: &str, optimizer: &str| {
        format!(
            "{{optimizer_type: {optimizer}, learning_rate: 0.1}}\n\
             sparsity: {{sparsity: 0.7, algorithm: {algorithm}, update: {{freq: 2, stop: 3}}}}"
        )
    };
    let changing = [changing("rigl", "AdamW"), changing("set", "AdaFactor")];
    for optimizer in [lamb, adafactor, &changing[0], &changing[1]] {
        let small = job_with(optimizer, 1 << 14);
        assert!(small.plan.groups.iter().any(|group| group.chunks.len() > 2), "tensors are cut into chunks");
        let expected = train_on(&small, 1, 3, None);
        for (shards, resume) in [(3, None), (2, Some((2, 3))), (100, None)] {
            assert!(train_on(&small, shards, 3, resume) == expected, "{optimizer} on {shards} shards, {resume:?}");
        }
        assert!(train_on(&job_with(optimizer, 1 << 20), 2, 3, None) == expected, "{optimizer} in larger chunks");
    }
}

/// Weights that the mask selects are zero, with their moments, on any shards and after a resume; the others train.
#[test]
fn masked_weights_stay_zero_under_every_optimizer() {
    let _flush = ftz::scoped();
    let all = [
        "AdamW, betas: [0.9, 0.95]",
        "AdamW, amsgrad: true, momentum_schedule: {steps: [0, 2], values: [0.5, 0.9], interpolation: linear}",
        "SGD, momentum: 0.9",
        "SGD, momentum: 0.9, nesterov: true, maximize: true, momentum_schedule: {steps: [0, 2], values: [0.9, 0.5]}",
        "Lion",
        "RMSprop, centered: true, momentum: 0.5",
        "Adagrad, initial_accumulator_value: 0.1",
        "NAdam, momentum_schedule: {steps: [0, 1, 2], values: [0.5, 0.9, 0.7]}",
        "RAdam",
        "Adadelta",
        "LAMB",
        "Adafactor, beta1: 0.9",
    ];
    for optimizer in all {
        let optimizer = format!("{{optimizer_type: {optimizer}, learning_rate: 0.1, weight_decay: 0.1}}");
        let sparsity = "{sparsity: 0.75, param_filter: ['*proj_q_dense_layer.weight', '*linear_layer.weight']}";
        let job = job_with(&format!("{optimizer}\nsparsity: {sparsity}"), 1 << 14);
        let zeros = SparsityMasks::new(&job.job, &job.plan.graph).unwrap().zeros();
        let trained = train_on(&job, 1, 3, None);
        let at_zero = |sections: &Vec<Vec<u32>>, section: usize| {
            let zero = |index: &usize| f32::from_bits(sections[section][*index]) == 0.0;
            (0..sections[section].len()).filter(zero).collect::<Vec<_>>()
        };
        let sparse = trained.iter().filter(|(name, _)| name.contains("mlp.") || name.contains("qkv"));
        let sparse: Vec<_> = sparse.filter(|(name, _)| name.ends_with("weight")).collect();
        let found: usize = sparse.iter().map(|(_, sections)| at_zero(sections, 0).len()).sum();
        assert_eq!(found as u64, zeros, "{optimizer}: the others have values");
        for (name, sections) in sparse {
            let masked = at_zero(sections, 0);
            // Adagrad's sum of squares begins with its setting.
            let is_full = |section: &usize| sections[*section].len() == sections[0].len();
            for section in (1..sections.len()).filter(is_full).filter(|_| !optimizer.contains("Adagrad")) {
                let zero = |index: &usize| f32::from_bits(sections[section][*index]) == 0.0;
                assert!(masked.iter().all(zero), "{optimizer}: section {section} of {name}");
            }
        }
        assert!(train_on(&job, 2, 3, Some((2, 3))) == trained, "{optimizer} on other shards");
    }
}

/// Masks that change keep their number of zeros, and zeros are masked weights; a run that never changes them has the
/// weights of a static one.
#[test]
fn changing_masks_keep_their_number_of_zeros() {
    let _flush = ftz::scoped();
    let weights = |changes: &str| {
        let sparsity = format!("{{sparsity: 0.75, param_filter: '*linear_layer.weight'{changes}}}");
        let job = job_with(&format!("{{optimizer_type: AdamW, learning_rate: 0.1}}\nsparsity: {sparsity}"), 1 << 14);
        train_on(&job, 1, 4, None).into_iter().filter(|(name, _)| name.contains("mlp.") && name.ends_with("weight"))
    };
    let zeros = |values: &[u32]| values.iter().filter(|bits| f32::from_bits(**bits) == 0.0).count();
    let fixed: Vec<_> = weights("").collect();
    let unchanged = weights(", algorithm: set, update: {freq: 1, stop: 1}");
    let without_mask = |(name, sections): (String, Vec<Vec<u32>>)| (name, sections[..3].to_vec());
    assert!(unchanged.map(without_mask).eq(fixed.iter().cloned()), "the masks of the first step");
    for algorithm in ["set", "rigl"] {
        let changes = format!(", algorithm: {algorithm}, drop_fraction: 0.5, update: {{freq: 2, stop: 4}}");
        for ((name, sections), (_, before)) in weights(&changes).zip(&fixed) {
            let [weights, .., mask] = sections.as_slice() else { panic!() };
            assert_eq!(zeros(mask), zeros(&before[0]), "{algorithm}: {name}");
            assert_eq!(zeros(weights), zeros(mask), "{algorithm}: {name}");
            assert!(weights.iter().zip(mask).all(|(weight, mask)| *mask != 0 || *weight == 0));
            assert!(weights.iter().zip(&before[0]).any(|(now, before)| (*now == 0) != (*before == 0)), "{name}");
        }
    }
}

/// A run with masks that change can continue one without, whose checkpoint has no masks.
#[test]
fn masks_that_a_checkpoint_lacks_are_those_of_the_first_step() {
    let adam = "{optimizer_type: AdamW, learning_rate: 0.1}";
    let dense = job_with(adam, 1 << 14);
    let store = ShardStore::new(dense.clone(), 0, 1, StallClock::new()).unwrap();
    store.initialise().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = write_checkpoint(&dense, &[store], 0, dir.path());
    let sparse = format!("{adam}\nsparsity: {{sparsity: 0.7, algorithm: set, update: {{freq: 2}}}}");
    let sparse = job_with(&sparse, 1 << 14);
    for with_state in [true, false] {
        let store = ShardStore::new(sparse.clone(), 0, 1, StallClock::new()).unwrap();
        store.restore(path.to_str().unwrap(), with_state, 0).unwrap();
        let mut zeros = 0;
        for cell in store.chunks.owned_chunks().collect::<Vec<_>>() {
            store
                .chunks
                .fill(cell, 1, |numbers| {
                    let weights = numbers.array(0).to_vec();
                    let mask = numbers.array(3).to_vec();
                    zeros += mask.iter().filter(|mask| **mask == 0.0).count() as u64;
                    assert!(
                        weights.iter().zip(&mask).all(|(weight, mask)| *mask == 1.0 || (*mask, *weight) == (0.0, 0.0))
                    );
                })
                .unwrap();
        }
        assert_eq!(zeros, SparsityMasks::new(&sparse.job, &sparse.plan.graph).unwrap().zeros());
    }
}

/// The state of Adafactor is so small that a shard holds little more than weights and gradients.
#[test]
fn adafactor_keeps_rows_and_columns_only() {
    let job = job_with("{optimizer_type: Adafactor, learning_rate: 0.1}", 1 << 14);
    let store = ShardStore::new(job, 0, 1, StallClock::new()).unwrap();
    let plan = store.ops().job.plan.clone();
    let cells: Vec<ChunkId> = store.chunks.owned_chunks().collect();
    let elements: usize = cells.into_iter().map(|cell| store.ops().lengths(cell).iter().sum::<usize>()).sum();
    assert!(
        (elements as f64) < 2.1 * plan.parameters() as f64,
        "{elements} numbers for {} parameters",
        plan.parameters()
    );
    store.chunks.fill(0, 0, |numbers| assert_eq!(numbers.arrays().count(), 4)).unwrap();
}

/// Streams every chunk, gathers its gradient of `step`, and commits the step.
fn train(store: &ShardStore, step: u64) {
    for chunk in store.chunks.owned_chunks() {
        store.read(chunk, &HeapMemory).unwrap();
        let elements = store.ops().job.plan.chunks[chunk].elements;
        let gradient = vec![step as f32 + chunk as f32; elements];
        store.gather(chunk, true, true, &dense(&gradient)).unwrap().unwrap();
    }
    let record = CommitRecord {
        step,
        scale: 1.0,
        learning_rate: 0.1,
        loss: 1.0,
        norm: 1.0,
        tokens: 1,
        history: TrainingHistory::default(),
    };
    store.commit(record);
}

/// Returns the bits of every chunk that `cursor` still yields.
fn rest_of(store: &ShardStore, mut cursor: SnapshotCursor) -> Vec<(ChunkId, Vec<u32>)> {
    let next = || cursor.next(&store.chunks).unwrap();
    let bits = |(chunk, numbers): (ChunkId, Vec<f32>)| (chunk, numbers.iter().map(|x| x.to_bits()).collect());
    std::iter::from_fn(next).map(bits).collect()
}

/// SGD moves each element by the gradient times the learning rate times the factor of the tensor.
#[test]
fn learning_rate_of_a_tensor_has_its_factor() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/gpt2-tiny.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, optimizer) = text.split_once("\noptimizer:").unwrap();
    let (_, after) = optimizer.split_once("\nrunconfig:").unwrap();
    let sgd = "{optimizer_type: SGD, learning_rate: 1.0, adjust_learning_rate: {decoder_kernel: 0.25}}";
    let store = store(&format!("{before}\noptimizer: {sgd}\nrunconfig:{after}"));
    let weights = |store: &ShardStore| rest_of(store, store.begin_snapshot(0));
    let before = weights(&store);
    store.abandon_snapshot();
    train(&store, 1);
    let plan = &store.ops().job.plan;
    let mut scaled = 0;
    for ((chunk, old), (_, new)) in before.into_iter().zip(rest_of(&store, store.begin_snapshot(1))) {
        let gradient = 1.0 + chunk as f32;
        for (tensor, _, range) in plan.chunk_pieces(chunk) {
            let name = &plan.graph.tensors[tensor].name;
            let is_kernel = name.ends_with("weight") && (name.contains(".attn.") || name.contains(".mlp."));
            scaled += usize::from(is_kernel);
            let rate = if is_kernel { 0.1f32 * 0.25 } else { 0.1 };
            for (old, new) in old[range.clone()].iter().zip(&new[range]) {
                let expected = gradient.mul_add(-rate, f32::from_bits(*old));
                assert_eq!(f32::from_bits(*new), expected, "{name}");
            }
        }
    }
    assert!(scaled > 0);
}

#[test]
fn momentum_of_a_tensor_is_that_of_its_group() {
    let trained = |settings: &str| {
        let sgd = format!("{{optimizer_type: SGD, learning_rate: 0.1, momentum: {settings}}}");
        train_on(&job_with(&sgd, 1 << 14), 1, 3, None)
    };
    let (half, quarter) = (trained("0.5"), trained("0.25"));
    let group = "{params: '*.bias', momentum_schedule: {steps: [0], values: [0.25]}}";
    for (name, tensor) in trained(&format!("0.5, params: [{group}]")) {
        let (same, other) = if name.ends_with(".bias") { (&quarter, &half) } else { (&half, &quarter) };
        assert!(tensor == same[&name] && tensor != other[&name], "{name}");
    }
}

#[test]
fn maximized_loss_moves_weights_the_other_way() {
    let weights = |settings: &str| -> Vec<f32> {
        let job = job_with(&format!("{{optimizer_type: SGD, learning_rate: 0.1, {settings}}}"), 1 << 14);
        let tensors = train_on(&job, 1, 1, None);
        tensors.into_values().flat_map(|sections| sections[0].clone()).map(f32::from_bits).collect()
    };
    let initial = weights("params: [{params: '*', learning_rate_factor: 0}]");
    let moved = weights("maximize: false").into_iter().zip(weights("maximize: true"));
    for (initial, (down, up)) in initial.into_iter().zip(moved) {
        assert!((up - initial + down - initial).abs() < 1e-6 && (up - down).abs() < 0.2, "{initial}: {down} and {up}");
    }
}

#[test]
fn sum_of_wrong_length_names_the_chunk() {
    let store = small_store();
    let elements = store.ops().job.plan.chunks[1].elements;
    for wrong in [0, elements - 1, elements + 1] {
        let error = store.gather(1, true, true, &dense(&vec![1.0; wrong])).unwrap_err();
        assert_eq!(error, StoreError::WrongLength { chunk: 1, elements });
    }
}

#[test]
fn commit_during_a_snapshot_does_not_change_it() {
    let store = small_store();
    train(&store, 1);
    // The expected content of a snapshot of step 1: nothing else is committed while this one is taken.
    let expected = rest_of(&store, store.begin_snapshot(1));

    // The storage is so slow that step 2 is committed, and step 3 begun, before the first chunk is written. Step 3
    // has streamed as many chunks as there are copies.
    let snapshot = store.begin_snapshot(1);
    train(&store, 2);
    assert!(expected.len() > MAX_SNAPSHOT_COPIES);
    expected[..MAX_SNAPSHOT_COPIES].iter().for_each(|(chunk, _)| drop(store.read(*chunk, &HeapMemory).unwrap()));
    assert!(rest_of(&store, snapshot) == expected, "the snapshot of step 1 has numbers of step 2");
}

/// The snapshot is abandoned instead, and the next one is complete.
#[test]
fn update_does_not_wait_for_storage_that_accepts_nothing() {
    let store = ShardStore { snapshot_timeout: Duration::from_millis(10), ..small_store() };
    train(&store, 1);
    let mut stuck = store.begin_snapshot(1);
    train(&store, 2);
    assert!(!store.take_storage_stuck(), "no chunk was updated yet");
    train(&store, 3);
    assert!(store.take_storage_stuck() && !store.take_storage_stuck());
    assert!(matches!(stuck.next(&store.chunks), Err(StoreError::NotInSnapshot { .. })));
    assert_eq!(rest_of(&store, store.begin_snapshot(3)).len(), store.chunks.owned_chunks().count());
}

/// A replica continues with the bits of the one that it copied.
#[test]
fn copied_cells_have_the_same_bits() {
    for optimizer in ["{optimizer_type: AdamW, learning_rate: 0.1}", "{optimizer_type: Adafactor, learning_rate: 0.1}"]
    {
        let job = job_with(optimizer, 1 << 12);
        let new = || ShardStore::new(job.clone(), 0, 1, StallClock::new()).unwrap();
        let (from, to) = (new(), new());
        from.initialise().unwrap();
        let step = |store: &ShardStore, step: u64| {
            for chunk in 0..job.plan.chunks.len() {
                store.update(chunk).unwrap();
                let values = (0..job.plan.chunks[chunk].elements).map(|at| hash64(step, at as u64) as i32 as f32);
                store.gather(chunk, true, true, &dense(&values.collect::<Vec<_>>())).unwrap();
            }
            let history = TrainingHistory::default();
            let record =
                CommitRecord { step, scale: 1e-9, learning_rate: 0.1, loss: 1.0, norm: 1.0, tokens: 1, history };
            store.commit(record);
        };
        step(&from, 1);
        for (cell, bytes) in from.cells() {
            let copy = from.copy(cell, 1).unwrap();
            assert_eq!(copy.len(), bytes);
            to.fill_from_copy(cell, 1, &copy).unwrap();
            assert!(matches!(from.copy(cell, 2), Err(StoreError::NotAtStep { applied: 1, step: 2, .. })));
            assert!(to.fill_from_copy(cell, 1, &copy[4..]).is_err());
            to.fill_from_copy(cell, 1, &copy).unwrap();
        }
        [&from, &to].into_iter().for_each(|store| step(store, 2));
        assert!(from.cells().all(|(cell, _)| from.copy(cell, 2) == to.copy(cell, 2)), "{optimizer}");
    }
}
