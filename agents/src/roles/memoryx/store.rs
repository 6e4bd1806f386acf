//! The chunk store: parameters, moments and gradients of one shard, in DRAM.
//!
//! Everything that touches a number of the model goes through here: read, the one-pass update, snapshot. A committed
//! update is *pending* until a chunk is next read; it is applied then, once.
//!
//! A snapshot of step *t* may be under way while step *t + 1* runs. A chunk not yet written is copied before its next
//! update, from a bounded pool; when that is empty the update waits, and the wait is counted.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use millrace_checkpoint::{Moments, PlanReader, RangeWriter};
use millrace_emulator::graph::Init;
use millrace_emulator::kernels::{Simd, convert, elementwise, optimizer};
use millrace_emulator::numerics::init::{Initializer, tensor_key};
use millrace_emulator::placement::ShardId;
use millrace_emulator::plan::{ChunkId, Encoding};
use millrace_engine::payload::{self, Payload};
use millrace_engine::types::CommitRecord;
use millrace_params::OptimizerKind;
use millrace_telemetry::stall::{StallClock, StallReason};

use crate::control::job::CompiledJob;
use crate::failure::Failure;

/// Chunk copies that may wait for the disk: 16 chunks of 3 MiB.
const COPIES: usize = 16;
/// Elements between a chunk's arrays: w, m, v and g at distances that are powers of two evict each other from the
/// caches, and an update costs several times as much.
const STAGGER: usize = 272;

/// The numbers of one chunk.
struct Cell {
    /// w, moments, g, a stagger apart.
    numbers: Vec<f32>,
    elements: usize,
    /// Updates applied.
    step: u64,
    /// The snapshot that still wants this chunk, and a copy made for it.
    snapshot: Option<(u64, Option<Vec<f32>>)>,
}

impl Cell {
    /// Array `index` of the chunk.
    fn array(&mut self, index: usize) -> &mut [f32] {
        let start = index * (self.elements + STAGGER);
        &mut self.numbers[start..start + self.elements]
    }

    /// All arrays at once.
    fn arrays(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let elements = self.elements;
        self.numbers.chunks_mut(elements + STAGGER).map(move |array| &mut array[..elements])
    }
}

/// See the module text.
pub struct Store {
    job: CompiledJob,
    simd: Simd,
    cells: Vec<Option<Mutex<Cell>>>,
    moments: Moments,
    pending: RwLock<Option<CommitRecord>>,
    copies: Mutex<usize>,
    copy_returned: Condvar,
    stall: StallClock,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere ends the process; the numbers themselves are never half-written under a lock that is released.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The moments an optimizer keeps.
pub fn moments_of(kind: &OptimizerKind) -> Moments {
    match kind {
        OptimizerKind::Adam { .. } | OptimizerKind::AdamW { .. } => Moments::adam(),
        OptimizerKind::Sgd { momentum } if *momentum != 0.0 => Moments::momentum(),
        OptimizerKind::Sgd { .. } => Moments::none(),
    }
}

impl Store {
    /// Room for the chunks of shard `id` of `shards`, zeroed.
    ///
    /// # Errors
    /// The job's instruction set is not there.
    pub fn new(job: CompiledJob, id: ShardId, shards: u32, stall: StallClock) -> Result<Self, Failure> {
        let simd = Simd::new(job.profile.isa).map_err(Failure::own)?;
        let moments = moments_of(&job.optimizer().kind);
        let arrays = 2 + moments.len();
        let cell = |(chunk, plan): (usize, &millrace_emulator::plan::Chunk)| {
            (chunk % shards.max(1) as usize == id as usize).then(|| {
                let numbers = vec![0.0; arrays * (plan.elements + STAGGER)];
                Mutex::new(Cell { numbers, elements: plan.elements, step: 0, snapshot: None })
            })
        };
        Ok(Self {
            simd,
            cells: job.plan.chunks.iter().enumerate().map(cell).collect(),
            moments,
            pending: RwLock::new(None),
            copies: Mutex::new(COPIES),
            copy_returned: Condvar::new(),
            stall,
            job,
        })
    }

    /// The chunks of this shard.
    pub fn own(&self) -> impl Iterator<Item = ChunkId> {
        self.cells.iter().enumerate().filter_map(|(chunk, cell)| cell.is_some().then_some(chunk))
    }

    fn cell(&self, chunk: ChunkId) -> Option<MutexGuard<'_, Cell>> {
        self.cells.get(chunk)?.as_ref().map(lock)
    }

    fn gradient_index(&self) -> usize {
        1 + self.moments.len()
    }

    /// Fills the parameters with their initial values; the moments stay zero.
    pub fn initialise(&self) {
        let (plan, seed) = (&self.job.plan, self.job.job.run.seed);
        for chunk in self.own() {
            let Some(mut cell) = self.cell(chunk) else { continue };
            let weights = cell.array(0);
            for (tensor, first, range) in plan.chunk_pieces(chunk) {
                let init = initializer(plan.graph.tensors[tensor].init);
                init.fill(tensor_key(seed, tensor as u64), first as u64, &mut weights[range]);
            }
        }
    }

    /// Fills parameters and moments from a checkpoint of `step` updates.
    ///
    /// # Errors
    /// The checkpoint is damaged or of another model.
    pub fn restore(&self, path: &str, optimizer: bool, step: u64) -> Result<(), Failure> {
        let failed = |error: millrace_checkpoint::Error| crate::checkpoints::checkpoint_failure(&error);
        let checkpoint = millrace_checkpoint::Checkpoint::open(path).map_err(failed)?;
        let moments = if optimizer { self.moments.clone() } else { Moments::none() };
        let strictness = crate::checkpoints::strictness(&self.job.job);
        let mut reader = PlanReader::new(checkpoint, &self.job.plan, &moments, strictness).map_err(failed)?;
        if !reader.absent_tensors().is_empty() {
            // What the checkpoint has not got keeps its initial values.
            self.initialise();
        }
        for chunk in self.own() {
            let Some(mut cell) = self.cell(chunk) else { continue };
            cell.step = step;
            for (index, section) in moments.sections().enumerate() {
                reader.read_chunk(chunk, section, cell.array(index)).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Takes the sum of one use of `chunk` into its gradient; after the last use returns its squared norm.
    pub fn gather(&self, chunk: ChunkId, first: bool, last: bool, sum: &Payload) -> Option<f64> {
        let mut cell = self.cell(chunk)?;
        let gradient = cell.array(self.gradient_index());
        take_sum(self.simd, sum, first, gradient)?;
        last.then(|| elementwise::squared_norm(self.simd, gradient))
    }

    /// Makes the gathered gradients the pending update.
    pub fn commit(&self, record: CommitRecord) {
        *self.pending.write().unwrap_or_else(PoisonError::into_inner) = Some(record);
    }

    fn pending(&self) -> Option<CommitRecord> {
        *self.pending.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chunk's current weights as they travel.
    pub fn read(&self, chunk: ChunkId) -> Option<(Encoding, Bytes)> {
        self.bring_up(chunk);
        let encoding = self.job.plan.chunk_encoding(chunk);
        let mut cell = self.cell(chunk)?;
        let weights = cell.array(0);
        let bytes = match encoding {
            Encoding::F32 => convert::f32_bytes(self.simd, weights),
            Encoding::Bf16 => convert::bf16_bytes(self.simd, weights),
        };
        Some((encoding, bytes.into()))
    }

    /// Applies the pending update to `chunk` unless it has it.
    fn bring_up(&self, chunk: ChunkId) {
        let Some(record) = self.pending() else { return };
        let mut ticket = false;
        loop {
            let Some(mut cell) = self.cell(chunk) else { return };
            if cell.step >= record.step {
                break;
            }
            if let Some((step, None)) = cell.snapshot
                && cell.step >= step
            {
                if !ticket {
                    // Wait for a copy without the cell's lock: whoever returns one may want this very chunk.
                    drop(cell);
                    self.take_copy();
                    ticket = true;
                    continue;
                }
                ticket = false;
                let kept = self.saved_arrays(&mut cell);
                cell.snapshot = Some((step, Some(kept)));
            }
            self.update(chunk, &mut cell, &record);
            break;
        }
        if ticket {
            self.return_copy();
        }
    }

    fn take_copy(&self) {
        let _waiting = self.stall.start(StallReason::Snapshot);
        let mut free = lock(&self.copies);
        while *free == 0 {
            free = self.copy_returned.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
    }

    fn return_copy(&self) {
        *lock(&self.copies) += 1;
        self.copy_returned.notify_one();
    }

    /// Weights and moments, one after the other.
    fn saved_arrays(&self, cell: &mut Cell) -> Vec<f32> {
        let saved = 1 + self.moments.len();
        let mut copy = Vec::with_capacity(saved * cell.elements);
        cell.arrays().take(saved).for_each(|array| copy.extend_from_slice(array));
        copy
    }

    fn update(&self, chunk: ChunkId, cell: &mut Cell, record: &CommitRecord) {
        let optimizer = self.job.optimizer();
        let plan = &self.job.plan;
        cell.step = record.step;
        let mut arrays: Vec<&mut [f32]> = cell.arrays().collect();
        for (tensor, _, range) in plan.chunk_pieces(chunk) {
            let decay = if plan.graph.tensors[tensor].role.decays() { optimizer.weight_decay } else { 0.0 };
            let mut pieces = arrays.iter_mut().map(|array| &mut array[range.clone()]);
            apply(self.simd, &optimizer.kind, decay, record, &mut pieces);
        }
    }

    /// Marks every chunk for a snapshot of `step`; to be done before the next turn is opened.
    pub fn begin_snapshot(&self, step: u64) {
        for chunk in self.own() {
            if let Some(mut cell) = self.cell(chunk) {
                cell.snapshot = Some((step, None));
            }
        }
    }

    /// Writes every chunk of the snapshot, while training goes on.
    ///
    /// # Errors
    /// The disk is full or broken.
    pub fn write_snapshot(&self, path: &str) -> millrace_checkpoint::Result<ChunkDigestList> {
        let mut writer = RangeWriter::open(path, &self.job.plan, &self.moments)?;
        let mut digests = Vec::new();
        for chunk in self.own() {
            let (numbers, elements) = self.take_snapshot(chunk);
            let mut of_chunk = Vec::with_capacity(1 + self.moments.len());
            for (section, values) in self.moments.sections().zip(numbers.chunks(elements.max(1))) {
                of_chunk.push(writer.write_chunk(chunk, section, values)?.0);
            }
            digests.push((chunk, of_chunk));
        }
        writer.finish()?;
        Ok(digests)
    }

    /// The chunk as of the snapshot's step.
    fn take_snapshot(&self, chunk: ChunkId) -> (Vec<f32>, usize) {
        let Some(mut cell) = self.cell(chunk) else { return (Vec::new(), 0) };
        let elements = cell.elements;
        let Some((step, copy)) = cell.snapshot.take() else { return (Vec::new(), 0) };
        if let Some(copy) = copy {
            drop(cell);
            self.return_copy();
            return (copy, elements);
        }
        // Without a copy the chunk is at the snapshot's step, or one update behind it. The pending update may be that
        // one, or a later one, committed while the snapshot is written: that one must not get into the snapshot.
        if let Some(record) = self.pending().filter(|record| record.step > cell.step && record.step <= step) {
            self.update(chunk, &mut cell, &record);
        }
        (self.saved_arrays(&mut cell), elements)
    }

    /// Gives up a snapshot: updates need not copy for it any more.
    pub fn abandon_snapshot(&self) {
        for chunk in self.own() {
            let copied =
                self.cell(chunk).and_then(|mut cell| cell.snapshot.take()).is_some_and(|(_, copy)| copy.is_some());
            if copied {
                self.return_copy();
            }
        }
    }
}

/// Digests of each own chunk: parameters, then moments.
pub type ChunkDigestList = Vec<(ChunkId, Vec<[u8; 32]>)>;

/// One optimizer update of a piece; `arrays` yields w, the moments, g.
fn apply<'a>(
    simd: Simd,
    kind: &OptimizerKind,
    weight_decay: f64,
    record: &CommitRecord,
    arrays: &mut impl Iterator<Item = &'a mut [f32]>,
) {
    let (learning_rate, step) = (f64::from(record.learning_rate), record.step);
    match *kind {
        OptimizerKind::Adam { betas, eps, correct_bias } | OptimizerKind::AdamW { betas, eps, correct_bias } => {
            let decoupled = matches!(kind, OptimizerKind::AdamW { .. });
            let adam = optimizer::Adam {
                learning_rate,
                beta1: betas[0],
                beta2: betas[1],
                epsilon: eps,
                weight_decay,
                decay: if decoupled { optimizer::Decay::Decoupled } else { optimizer::Decay::Gradient },
                correct_bias,
                step,
            };
            if let (Some(w), Some(m), Some(v), Some(g)) = (arrays.next(), arrays.next(), arrays.next(), arrays.next()) {
                optimizer::adam(simd, &adam, record.scale, w, g, m, v);
            }
        }
        OptimizerKind::Sgd { momentum } => {
            let sgd = optimizer::Sgd { learning_rate, momentum, dampening: 0.0, weight_decay, nesterov: false, step };
            let w = arrays.next();
            let m = if momentum == 0.0 { Some(Default::default()) } else { arrays.next() };
            if let (Some(w), Some(m), Some(g)) = (w, m, arrays.next()) {
                optimizer::sgd(simd, &sgd, record.scale, w, g, m);
            }
        }
    }
}

/// `gradient = sum`, or `+= sum` after the first use; `None` where they differ in length.
fn take_sum(simd: Simd, sum: &Payload, first: bool, gradient: &mut [f32]) -> Option<()> {
    let take = if first { convert::read_f32 } else { convert::add_f32 };
    match sum {
        _ if !sum.is_sum_of(gradient.len()) => return None,
        Payload::Dense(sum) => take(simd, sum, gradient),
        Payload::Sparse(sum) => {
            let spans = gradient.chunks_mut(payload::SPAN).zip(sum.spans());
            spans.for_each(|(gradient, span)| take(simd, span, gradient));
        }
    }
    Some(())
}

fn initializer(init: Init) -> Initializer {
    match init {
        Init::Constant { value } => Initializer::Constant { value },
        Init::Normal { mean, std } => Initializer::Normal { mean, std },
        Init::TruncatedNormal { mean, std, low, high } => Initializer::TruncatedNormal { mean, std, low, high },
        Init::Uniform { low, high } => Initializer::Uniform { low, high },
    }
}

#[cfg(test)]
mod tests {
    use millrace_emulator::kernels::ftz;
    use millrace_emulator::numerics::Isa;
    use millrace_emulator::numerics::random::hash64;
    use millrace_params::{ApplianceSpec, Overrides, Params};

    use super::*;
    use crate::control::job::JobDocument;

    const LENGTH: usize = 40 * payload::SPAN + 9;

    /// A gradient of which few spans have numbers: zeros of both signs, denormals and others.
    fn gradient(key: u64, filled: u64) -> Vec<f32> {
        let number = |element: usize| {
            let hash = hash64(key, element as u64);
            let empty = hash64(!key, (element / payload::SPAN) as u64) % 100 >= filled;
            let special = [0.0, -0.0, 1e-40, -1e-40, -3.0, 1.5 * f32::MIN_POSITIVE, -f32::MIN_POSITIVE];
            if empty { 0.0 } else { special.get(hash as usize % 9).copied().unwrap_or((hash >> 40) as f32) }
        };
        (0..LENGTH).map(number).collect()
    }

    fn dense(gradient: &[f32]) -> Payload {
        Payload::Dense(gradient.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// Two uses of a chunk, each the sum of two systems' leaves.
    fn gather(uses: &[[Vec<f32>; 2]; 2], form: impl Fn(&[f32]) -> Payload) -> Vec<u32> {
        let mut all = vec![f32::NAN; LENGTH];
        for (at, [left, right]) in uses.iter().enumerate() {
            take_sum(Simd::detect(), &form(left).join(form(right)), at == 0, &mut all).unwrap();
        }
        all.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn sparse_sums_make_the_bits_of_dense_ones_on_threads_that_flush_denormals() {
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
                assert_eq!(gather(&uses, Payload::of_sum), gather(&uses, dense), "seed {seed}, {filled:?}");
            }
        }
        assert!(matches!(Payload::of_sum(&gradient(1, 5)), Payload::Sparse(_)));
        assert_eq!(take_sum(Simd::detect(), &Payload::of_sum(&[0.0; LENGTH]), true, &mut [0.0; 2]), None);
    }

    /// The only shard of the smallest example, with its initial parameters.
    fn small_store() -> Store {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/gpt2-tiny.yaml");
        let params = Params::parse_yaml(&std::fs::read_to_string(path).unwrap()).unwrap();
        let job = params.resolve(&Overrides::default()).unwrap().job;
        let mut appliance = ApplianceSpec::default();
        appliance.link.chunk_bytes = 1 << 14;
        let job = JobDocument { job, appliance }.compile(Isa::detect()).unwrap();
        let store = Store::new(job, 0, 1, StallClock::new()).unwrap();
        store.initialise();
        store
    }

    /// Streams every chunk, gathers its gradient of `step`, and commits the step.
    fn train(store: &Store, step: u64) {
        for chunk in store.own() {
            store.read(chunk).unwrap();
            let gradient = vec![step as f32 + chunk as f32; store.cell(chunk).unwrap().elements];
            store.gather(chunk, true, true, &dense(&gradient)).unwrap();
        }
        let record = CommitRecord { step, scale: 1.0, learning_rate: 0.1, loss: 1.0, norm: 1.0, tokens: 1 };
        store.commit(record);
    }

    fn bits(numbers: &[f32]) -> Vec<u32> {
        numbers.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn a_commit_during_a_snapshot_changes_no_byte_of_it() {
        let store = small_store();
        train(&store, 1);
        let chunks: Vec<ChunkId> = store.own().collect();
        // What a snapshot of step 1 must hold: nothing else is committed while this one is taken.
        store.begin_snapshot(1);
        let expected: Vec<_> = chunks.iter().map(|&chunk| bits(&store.take_snapshot(chunk).0)).collect();

        // Storage so slow that step 2 is committed, and step 3 begun, before the first chunk is written. There are copies
        // for some chunks only: step 3 has streamed no more than these.
        store.begin_snapshot(1);
        train(&store, 2);
        assert!(chunks.len() > COPIES);
        chunks[..COPIES].iter().for_each(|&chunk| drop(store.read(chunk).unwrap()));
        let written: Vec<_> = chunks.iter().map(|&chunk| bits(&store.take_snapshot(chunk).0)).collect();
        assert!(written == expected, "the snapshot of step 1 has numbers of step 2");
    }
}
