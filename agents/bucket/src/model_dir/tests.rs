//! Tests of model_dirs in a bucket in memory, with real checkpoints.

use std::sync::Mutex;

use futures::StreamExt as _;
use millrace_checkpoint::{
    Checkpoint, CheckpointMetadata, LockRequest, ModelDirLock, Moments, RangeWriter, Section, Staging, StepHistory,
    WriterEpoch, begin_lineage,
};
use millrace_emulator::compile::{BatchSpec, CompileRequest, compile};
use millrace_emulator::plan::{DEFAULT_CHUNK_ELEMENTS, Encoding, StreamPlan};
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use tempfile::TempDir;

use super::*;

fn plan() -> StreamPlan {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/0.1.0/model_dir/checkpoint_4");
    compile(CompileRequest {
        graph: Checkpoint::open(golden).unwrap().layout().graph().clone(),
        train: BatchSpec { samples: 2, leaf_bound: 1 },
        trains: true,
        eval: None,
        encoding: Encoding::F32,
        wafer_memory: 1 << 30,
        chunk_elements: DEFAULT_CHUNK_ELEMENTS,
        window_chunks: 8,
        memoryx_memory: u64::MAX,
        whole_tensor_state: None,
        extra_state_tensors: 0,
    })
    .unwrap()
}

/// Returns the control of uploads whose run has ended.
fn ended() -> UploadControl {
    upload_handle().1
}

/// Writes checkpoints of these steps to the model_dir of a new attempt, and a line for each to a file of the run.
fn train(dir: &Path, steps: &[u64]) {
    let (plan, moments) = (plan(), Moments::none());
    let lock = Arc::new(ModelDirLock::acquire(dir, &LockRequest::local()).unwrap());
    let newest = millrace_checkpoint::newest_complete(dir, millrace_checkpoint::VerificationLevel::Quick).unwrap().0;
    begin_lineage(&lock, newest.map(|checkpoint| checkpoint.lineage_point())).unwrap();
    for &step in steps {
        let epoch = WriterEpoch { attempt: lock.attempt(), number: 1 };
        let mut staging = Staging::create(&lock, &plan, step, epoch, &moments).unwrap();
        let mut writer = RangeWriter::open(staging.path(), &plan, &moments).unwrap();
        let write = |(chunk, elements): (usize, usize)| {
            let values: Vec<f32> = (0..elements).map(|index| (step + index as u64) as f32).collect();
            (chunk, writer.write_chunk(chunk, Section::Parameters, &values).unwrap())
        };
        let chunks = plan.chunks.iter().map(|chunk| chunk.elements).enumerate();
        let digests: Vec<_> = chunks.map(write).collect();
        writer.finish().unwrap();
        for (chunk, digest) in digests {
            staging.record_digest(Section::Parameters, chunk, digest).unwrap();
        }
        staging.publish(metadata(&plan)).unwrap();
        let metrics = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("metrics.jsonl"));
        writeln!(metrics.unwrap(), "{step}").unwrap();
    }
}

fn metadata(plan: &StreamPlan) -> CheckpointMetadata {
    CheckpointMetadata {
        plan: plan.hash(),
        seed: 1,
        next_sample: 2,
        numerics_profile: "{}".to_owned(),
        precision: "f32".to_owned(),
        optimizer: "sgd".to_owned(),
        loss: None,
        grad_norm: None,
        history: StepHistory::default(),
        notes: Vec::new(),
        job: "{}".to_owned(),
        recovery: false,
    }
}

/// A bucket, and machines that use it.
struct Case {
    objects: Arc<InMemory>,
    machines: TempDir,
    events: Arc<Mutex<Vec<CopyEvent>>>,
}

const WRITABLE: &str = "the lease is free";

impl Case {
    fn new() -> Self {
        let machines = tempfile::tempdir().unwrap();
        Self { objects: Arc::default(), machines, events: Arc::default() }
    }

    fn address(&self) -> BucketAddress {
        "s3://runs/team/gpt".parse().unwrap()
    }

    fn bucket(&self) -> Bucket {
        Bucket::new(self.objects.clone(), "the bucket runs", self.address().prefix().clone())
    }

    fn reporter(&self) -> Reporter {
        let events = self.events.clone();
        Arc::new(move |event| events.lock().unwrap().push(event))
    }

    async fn open(&self, machine: &str) -> Result<ModelDirCopy, ModelDirError> {
        let dir = self.machines.path().join(machine);
        let wanted = [WantedCheckpoints::Newest];
        ModelDirCopy::open(self.bucket(), &self.address(), &dir, &wanted, self.reporter()).await
    }

    /// Trains these steps on a machine; keeps two checkpoints.
    async fn run(&self, machine: &str, steps: &[u64]) {
        let copy = self.open(machine).await.expect(WRITABLE);
        train(copy.dir(), steps);
        copy.upload(ended(), 2).await.unwrap();
    }

    fn path(&self, file: &str) -> ObjectPath {
        ObjectPath::from(format!("{}/{file}", self.address().prefix()))
    }

    async fn steps(&self) -> Vec<u64> {
        RemoteFiles::list(&self.bucket()).await.unwrap().complete_steps().collect()
    }

    /// Returns the steps of the checkpoints on a machine, and the content of its file of the run.
    fn on(&self, machine: &str) -> (Vec<u64>, String) {
        let dir = self.machines.path().join(machine);
        let complete = millrace_checkpoint::list(&dir).unwrap().complete;
        let metrics = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
        (complete.iter().map(|info| info.step).collect(), metrics)
    }

    fn skipped(&self) -> Vec<u64> {
        let events = self.events.lock().unwrap();
        let step = |event: &CopyEvent| if let CopyEvent::Skipped { step, .. } = event { Some(*step) } else { None };
        events.iter().filter_map(step).collect()
    }
}

#[tokio::test]
async fn another_machine_continues_a_run() {
    let case = Case::new();
    case.run("a", &[10, 20, 30]).await;
    assert_eq!(case.steps().await, [20, 30], "retention holds in the bucket");
    case.run("b", &[40]).await;
    assert_eq!(case.on("b"), (vec![30, 40], "10\n20\n30\n40\n".to_owned()), "it fetches the newest one only");
    assert_eq!(case.steps().await, [30, 40]);
    // The files of `a` are older than those of the bucket.
    case.run("a", &[]).await;
    assert_eq!(case.on("a"), (vec![40], "10\n20\n30\n40\n".to_owned()));
    assert_eq!(case.on("a.former").0, [10, 20, 30]);
    let events = case.events.lock().unwrap().len();
    case.run("a", &[50]).await;
    let newer = case.events.lock().unwrap()[events..].to_vec();
    assert!(matches!(&newer[..], [CopyEvent::Uploaded { name, .. }] if name == "checkpoint_50"), "{newer:?}");
}

#[tokio::test]
async fn damaged_checkpoint_is_skipped() {
    let case = Case::new();
    case.run("a", &[10, 20]).await;
    let [first, ..] = &case.objects.list(Some(&case.path("checkpoint_20/parameters"))).collect::<Vec<_>>().await[..]
    else {
        panic!("a checkpoint without parameters")
    };
    let file = first.as_ref().unwrap().location.clone();
    let content = case.objects.get(&file).await.unwrap().bytes().await.unwrap();
    let mut flipped = content.to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    for (machine, damaged) in
        [("flipped", flipped), ("short", content[..content.len() - 1].to_vec()), ("empty", vec![])]
    {
        case.objects.put(&file, damaged.into()).await.unwrap();
        let copy = case.open(machine).await.unwrap();
        assert_eq!(case.on(machine).0, [10], "{machine}");
        copy.upload(ended(), 0).await.unwrap();
    }
    assert_eq!(case.skipped(), [20, 20, 20]);
}

#[tokio::test]
async fn interrupted_upload_is_no_checkpoint() {
    let case = Case::new();
    case.run("a", &[10, 20]).await;
    case.objects.delete(&case.path("checkpoint_20/manifest.json")).await.unwrap();
    let copy = case.open("b").await.unwrap();
    assert_eq!(case.on("b").0, [10]);
    copy.upload(ended(), 0).await.unwrap();
    let left: Vec<_> = case.objects.list(Some(&case.path("checkpoint_20"))).collect().await;
    assert_eq!(left.len(), 0, "the next run removes what is left of it");
}

#[tokio::test]
async fn hostile_names_stay_outside() {
    let case = Case::new();
    case.run("a", &[10]).await;
    for name in ["../escaped", "x/../../escaped", ".ssh/key", "checkpoint_11.deleted/manifest.json"] {
        let path = ObjectPath::from_iter(case.address().prefix().parts().chain(name.split('/').map(Into::into)));
        case.objects.put(&path, "x".into()).await.unwrap();
    }
    drop(case.open("b").await.unwrap());
    let mut machines: Vec<_> =
        std::fs::read_dir(case.machines.path()).unwrap().map(|dir| dir.unwrap().file_name()).collect();
    machines.sort();
    assert_eq!(machines, ["a", "b"]);
    let mut files: Vec<_> =
        std::fs::read_dir(case.machines.path().join("b")).unwrap().map(|f| f.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, [".millrace-bucket", ".millrace-lock.1", "attempts.json", "checkpoint_10", "metrics.jsonl"]);
}

#[tokio::test(start_paused = true)]
async fn one_machine_at_a_time_holds_the_lease() {
    let case = Case::new();
    let (run, control) = upload_handle();
    let holder = case.open("a").await.unwrap();
    let uploads = tokio::spawn(holder.upload(control, 0));
    let rejected = case.open("b").await.err().map(|error| error.to_string());
    assert!(rejected.is_some_and(|error| error.starts_with("s3://runs/team/gpt is in use by process")));
    uploads.abort();
    let _ = uploads.await;
    // Nothing renews the lease any more.
    let waiting = tokio::time::Instant::now();
    let second = case.open("b").await.expect(WRITABLE);
    assert!(waiting.elapsed() >= lease::LEASE_EXPIRY);
    // The first machine continues where it was stopped, and finds that it was replaced.
    second.upload(ended(), 0).await.unwrap();
    drop(run);
    case.run("a", &[]).await;
}

#[tokio::test(start_paused = true)]
async fn holder_that_lost_the_lease_uploads_nothing() {
    let case = Case::new();
    let first = case.open("a").await.unwrap();
    tokio::time::sleep(lease::LEASE_EXPIRY).await;
    let second = case.open("b").await.expect(WRITABLE);
    train(first.dir(), &[10]);
    let lost = first.upload(ended(), 0).await.unwrap_err();
    assert!(matches!(lost, ModelDirError::LeaseLost { .. }), "{lost}");
    assert_eq!(case.steps().await, [0; 0]);
    second.upload(ended(), 0).await.unwrap();
}

#[tokio::test]
async fn object_that_is_no_lease_is_reported() {
    let case = Case::new();
    for content in [vec![b' '; 5000], b"{}".to_vec(), vec![]] {
        case.objects.put(&case.path(".millrace-lease"), content.into()).await.unwrap();
        let error = case.open("a").await.err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains(".millrace-lease is not a lease: delete it")));
    }
}
