//! Tests of a reader over loopback, compared with direct access to the same files.

use std::path::Path;
use std::sync::Arc;

use bytes::BytesMut;
use futures::TryStreamExt;
use millrace_checkpoint::{
    CheckpointMetadata, LockRequest, ModelDirLock, Moments, RangeWriter, Section, Staging, StepHistory, WriterEpoch,
};
use millrace_emulator::compile::compile_job;
use millrace_params::{FlagOverrides, MachineDocument, Params};
use millrace_protocol::proto::{Entry, FollowRequest};
use millrace_protocol::security::{Authority, Credentials, ExpectedPeer, MemberName, Service, Validity};
use millrace_telemetry::journal::{AttemptOutcome, JournalEvent, JournalWriter};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;
use crate::error::{ApiError, ErrorReason};
use crate::files::{ExportCache, FileSet, Files, LocalFiles, READ_CHUNK_BYTES, RemoteFiles};
use crate::generation::{FinishReason, GenerationEvent, GenerationOptions, GenerationRequest, Prompt, SamplingOptions};
use crate::journal_files;
use crate::kubernetes::client_credentials;

const UID: &str = "6a0c1c3e-0000-4000-8000-000000000001";
const STEP: u64 = 3;
/// Longer than the tests take.
const LONG_TIMEOUT: Duration = Duration::from_secs(600);
/// A file of several chunks.
const LARGE: &str = "logs/attempt-1/large.log";
const ENDLESS: &str = "logs/attempt-1/endless.log";

const PARAMS: &str = "
train_input: {data_processor: SyntheticDataProcessor, batch_size: 4, micro_batch_size: 1, max_sequence_length: 8}
model: {name: gpt2, vocab_size: 32, hidden_size: 8, num_hidden_layers: 1, num_heads: 1, max_position_embeddings: 128}
optimizer: {optimizer_type: SGD, learning_rate: 0.1}
runconfig: {max_steps: 1, num_csx: 1}
";

/// Creates a model_dir and a directory for its exports.
fn directories() -> (TempDir, ReaderSource) {
    let dir = tempfile::tempdir().unwrap();
    let reads = ReaderSource {
        model_dir: dir.path().join("model_dir"),
        exports: ExportCache::new(dir.path().join("exports"), 1 << 30),
        generator: Generator::new(1 << 30),
        uid: UID.to_owned(),
    };
    (dir, reads)
}

/// Takes the lock of model_dir for the first attempt of a job.
fn lock(model_dir: &Path, uid: &str) -> Arc<ModelDirLock> {
    Arc::new(ModelDirLock::acquire(model_dir, &LockRequest::job(uid, 1)).unwrap())
}

/// Writes the checkpoint of [`STEP`].
fn checkpoint(lock: &Arc<ModelDirLock>) {
    let job = Params::parse_yaml(PARAMS).unwrap().resolve(&FlagOverrides::default()).unwrap().job;
    let plan = compile_job(&job, &MachineDocument::default().resolve().unwrap()).unwrap();
    let epoch = WriterEpoch { attempt: lock.attempt(), number: 1 };
    let mut staging = Staging::create(lock, &plan, STEP, epoch, &Moments::none()).unwrap();
    let mut writer = RangeWriter::open(staging.path(), &plan, &Moments::none()).unwrap();
    for (at, chunk) in plan.chunks.iter().enumerate() {
        let values: Vec<f32> = (0..chunk.elements).map(|element| element as f32).collect();
        let digest = writer.write_chunk(at, Section::Parameters, &values).unwrap();
        staging.record_digest(Section::Parameters, at, digest).unwrap();
    }
    writer.finish().unwrap();
    let facts = CheckpointMetadata {
        plan: plan.hash(),
        seed: 1,
        next_sample: 4 * STEP,
        numerics_profile: "{}".to_owned(),
        precision: "f32".to_owned(),
        optimizer: "sgd".to_owned(),
        loss: Some(2.5),
        grad_norm: Some(0.5),
        history: StepHistory::default(),
        notes: Vec::new(),
        job: job.to_json(),
        recovery: false,
    };
    staging.publish(facts).unwrap();
}

fn write(path: &Path, content: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// Creates a file that no test reads to its end.
fn endless(reads: &ReaderSource) {
    write(&reads.model_dir.join(ENDLESS), b"");
    let file = std::fs::OpenOptions::new().write(true).open(reads.model_dir.join(ENDLESS)).unwrap();
    file.set_len(1 << 40).unwrap();
}

fn reader(uid: &str) -> ExpectedPeer {
    ExpectedPeer::new(MemberName::for_reader(uid).unwrap())
}

/// Returns the credentials of a reader, issued by the operator's authority, and the identity of its only client.
fn certificates(uid: &str) -> (Credentials, Identity) {
    let today = Validity::starting(std::time::SystemTime::now(), LONG_TIMEOUT);
    let (operator, client) = (Authority::new(today).unwrap(), client_credentials().unwrap());
    let shown = operator.issue(&MemberName::for_reader(uid).unwrap(), today).unwrap();
    let served = Credentials { authority: client.authority.clone(), ..shown };
    (served, Identity::new(&Credentials { authority: operator.certificate().to_owned(), ..client }).unwrap())
}

/// Starts a reader; returns its address and its task.
async fn start(
    credentials: &Credentials,
    reads: &ReaderSource,
    idle_timeout: Duration,
) -> (String, JoinHandle<anyhow::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, reads) = (listener.local_addr().unwrap().to_string(), reads.clone());
    let identity = Identity::new(credentials).unwrap();
    let end = tokio::spawn(async move { serve(listener, identity, reads, idle_timeout, std::future::pending()).await });
    (address, end)
}

/// Starts a reader of these directories; returns its client and its task.
async fn served(reads: &ReaderSource, idle_timeout: Duration) -> (RemoteFiles, JoinHandle<anyhow::Result<()>>) {
    let (served, client) = certificates(UID);
    let (address, end) = start(&served, reads, idle_timeout).await;
    (RemoteFiles::new(&address, &client, reader(UID)).unwrap(), end)
}

/// Reads a part of a file.
async fn part(
    files: &dyn Files,
    file_set: &FileSet,
    path: &str,
    first: u64,
    length: u64,
) -> Result<BytesMut, ApiError> {
    let content = files.open(file_set, path).await?.content;
    content.read_range(first, length).await?.try_collect().await
}

#[tokio::test]
async fn remote_files_equal_local_files() {
    let (_dir, reads) = directories();
    checkpoint(&lock(&reads.model_dir, UID));
    let large: Vec<u8> = (0..3 * READ_CHUNK_BYTES + 5).map(|at| (at % 251) as u8).collect();
    write(&reads.model_dir.join(LARGE), &large);
    write(&reads.model_dir.join("job.json"), b"");
    let (remote, _end) = served(&reads, LONG_TIMEOUT).await;
    let local = LocalFiles::new(reads.model_dir.clone(), reads.exports.clone(), reads.generator.clone());

    let checkpoints = remote.checkpoints().await.unwrap();
    assert_eq!(checkpoints.iter().map(|checkpoint| checkpoint.step).collect::<Vec<_>>(), [STEP]);
    assert_eq!(checkpoints, local.checkpoints().await.unwrap());
    // The reader, which is called first, makes the export.
    for (shelf, known) in [
        (FileSet::HuggingFace(STEP), "model.safetensors"),
        (FileSet::Checkpoint(STEP), "manifest.json"),
        (FileSet::Artifacts, LARGE),
    ] {
        let listed = remote.list(&shelf).await.unwrap();
        assert!(listed.iter().any(|file| file.path == known), "{known}: {listed:?}");
        assert_eq!(listed, local.list(&shelf).await.unwrap());
        for file in listed {
            let (there, here) =
                (remote.open(&shelf, &file.path).await.unwrap(), local.open(&shelf, &file.path).await.unwrap());
            assert_eq!((there.bytes, there.tag), (here.bytes, here.tag), "{}", file.path);
            let there: BytesMut = there.content.read_range(0, file.bytes).await.unwrap().try_collect().await.unwrap();
            let here: BytesMut = here.content.read_range(0, file.bytes).await.unwrap().try_collect().await.unwrap();
            assert_eq!((there.len() as u64, there), (file.bytes, here), "{}", file.path);
        }
    }
    let total = large.len() as u64;
    for (first, length) in
        [(0, 1), (7, READ_CHUNK_BYTES as u64), (READ_CHUNK_BYTES as u64 - 1, 2), (total - 1, 9), (total, 1), (3, 0)]
    {
        let end = (first + length).min(total) as usize;
        let got = part(&remote, &FileSet::Artifacts, LARGE, first, length).await.unwrap();
        assert!(got == large[first as usize..end], "{length} bytes from {first}");
    }
    let pieces = remote.open(&FileSet::Artifacts, LARGE).await.unwrap().content.read_range(0, total).await.unwrap();
    let pieces: Vec<_> = pieces.try_collect().await.unwrap();
    assert!(pieces.iter().all(|piece| piece.len() <= READ_CHUNK_BYTES), "a piece is no longer than others may be");
}

fn request(tokens: &[u32], max_tokens: u64) -> GenerationRequest {
    let options = GenerationOptions { sampling: SamplingOptions::default(), max_tokens, ignore_end: false };
    GenerationRequest { checkpoint: None, prompt: Prompt::Tokens(tokens.to_vec()), options }
}

#[tokio::test]
async fn remote_text_equals_local_text() {
    let (_dir, reads) = directories();
    checkpoint(&lock(&reads.model_dir, UID));
    let (remote, _end) = served(&reads, LONG_TIMEOUT).await;
    let local = LocalFiles::new(reads.model_dir.clone(), reads.exports.clone(), reads.generator.clone());
    let events: Vec<_> = remote.generate(request(&[1, 2], 3)).await.unwrap().try_collect().await.unwrap();
    assert_eq!(events[0], GenerationEvent::Start { checkpoint: STEP, prompt_tokens: 2 });
    assert_eq!(events.len(), 5, "{events:?}");
    let end = GenerationEvent::End { text: String::new(), reason: FinishReason::MaxTokens };
    assert_eq!(events.last(), Some(&end));
    let here: Vec<_> = local.generate(request(&[1, 2], 3)).await.unwrap().try_collect().await.unwrap();
    assert_eq!(events, here);
    let full: Vec<_> = remote.generate(request(&[1, 2], 999)).await.unwrap().try_collect().await.unwrap();
    let end = GenerationEvent::End { text: String::new(), reason: FinishReason::MaxPositions };
    assert_eq!((full.len(), full.last()), (128, Some(&end)), "126 tokens fill the positions");
}

#[tokio::test]
async fn client_that_does_not_read_delays_no_other() {
    let (_dir, reads) = directories();
    checkpoint(&lock(&reads.model_dir, UID));
    let local = LocalFiles::new(reads.model_dir.clone(), reads.exports.clone(), reads.generator.clone());
    let mut unread = Vec::new();
    let all = async {
        for _ in 0..20 {
            unread.push(local.generate(request(&[1], 127)).await.unwrap());
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("each text ends without its client");
}

#[tokio::test]
async fn texts_that_cannot_be_generated_are_rejected() {
    let (_dir, reads) = directories();
    let (remote, _end) = served(&reads, LONG_TIMEOUT).await;
    let none = remote.generate(request(&[1], 3)).await.err().unwrap();
    assert_eq!(none.reason, ErrorReason::NotFound, "{none}");
    checkpoint(&lock(&reads.model_dir, UID));
    let text = GenerationRequest { prompt: Prompt::Text("In the".to_owned()), ..request(&[], 3) };
    for (request, reason, detail) in [
        (GenerationRequest { checkpoint: Some(9), ..request(&[1], 3) }, ErrorReason::NotFound, "checkpoint 9"),
        (request(&[99], 3), ErrorReason::BadRequest, "token 99 is not in the model's vocabulary of 32"),
        (request(&[1; 129], 3), ErrorReason::BadRequest, "129 tokens are more than the model's 128 positions"),
        (text, ErrorReason::BadRequest, "has no tokenizer"),
    ] {
        let error = remote.generate(request).await.err().unwrap();
        assert_eq!(error.reason, reason, "{error}");
        assert!(error.detail.contains(detail), "{error}");
    }
    let small = LocalFiles::new(reads.model_dir.clone(), reads.exports.clone(), Generator::new(1000));
    let error = small.generate(request(&[1], 3)).await.err().unwrap();
    assert_eq!(error.reason, ErrorReason::PayloadTooLarge, "{error}");
}

#[tokio::test]
async fn opened_file_keeps_its_content() {
    let (_dir, reads) = directories();
    let path = reads.model_dir.join("metrics.jsonl");
    write(&path, b"first");
    let (remote, _end) = served(&reads, LONG_TIMEOUT).await;
    let opened = remote.open(&FileSet::Artifacts, "metrics.jsonl").await.unwrap();
    write(&reads.model_dir.join("new"), b"another");
    std::fs::rename(reads.model_dir.join("new"), &path).unwrap();
    let content: BytesMut = opened.content.read_range(0, opened.bytes).await.unwrap().try_collect().await.unwrap();
    assert_eq!(content, b"first".as_slice());
    let now = part(&remote, &FileSet::Artifacts, "metrics.jsonl", 0, 99).await.unwrap();
    assert_eq!(now, b"another".as_slice());
}

#[tokio::test]
async fn stalled_download_blocks_no_other() {
    let (_dir, reads) = directories();
    endless(&reads);
    let (remote, _end) = served(&reads, LONG_TIMEOUT).await;
    let mut stuck = Vec::new();
    let all = async {
        for _ in 0..4 {
            let opened = remote.open(&FileSet::Artifacts, ENDLESS).await.unwrap();
            let mut pieces = opened.content.read_range(0, opened.bytes).await.unwrap();
            pieces.try_next().await.unwrap();
            stuck.push(pieces);
        }
        part(&remote, &FileSet::Artifacts, ENDLESS, 0, 64 << 20).await.unwrap()
    };
    let other = tokio::time::timeout(Duration::from_secs(60), all).await.expect("there is room for each");
    assert_eq!(other.len(), 64 << 20);
}

#[tokio::test]
async fn local_and_remote_errors_are_equal() {
    let (_dir, reads) = directories();
    write(&reads.model_dir.join("checkpoint_7/manifest.json"), b"no manifest");
    write(&reads.model_dir.join("checkpoint_8"), b"no directory");
    write(&reads.model_dir.join("logs/attempt-1/a.log"), b"a");
    let (remote, _end) = served(&reads, LONG_TIMEOUT).await;
    let local = LocalFiles::new(reads.model_dir.clone(), reads.exports.clone(), reads.generator.clone());
    let shown = |error: ApiError| (error.reason, error.detail);
    for (file_set, path, reason) in [
        (FileSet::Artifacts, "nothing", ErrorReason::NotFound),
        (FileSet::Artifacts, "", ErrorReason::NotFound),
        (FileSet::Artifacts, "logs", ErrorReason::NotFound),
        (FileSet::Artifacts, "../exports", ErrorReason::NotFound),
        (FileSet::Artifacts, "a\0\nb\u{e9}", ErrorReason::NotFound),
        (FileSet::Artifacts, "checkpoint_7/manifest.json", ErrorReason::NotFound),
        (FileSet::Checkpoint(9), "manifest.json", ErrorReason::NotFound),
        (FileSet::HuggingFace(9), "config.json", ErrorReason::NotFound),
        (FileSet::HuggingFace(7), "config.json", ErrorReason::Gone),
    ] {
        let error = remote.open(&file_set, path).await.err().map(shown);
        assert_eq!(error.as_ref().map(|(reason, _)| *reason), Some(reason), "{path:?}");
        assert_eq!(error, local.open(&file_set, path).await.err().map(shown));
    }
    let error = shown(remote.list(&FileSet::HuggingFace(9)).await.unwrap_err());
    assert_eq!(error.0, ErrorReason::NotFound);
    assert_eq!(error, shown(local.list(&FileSet::HuggingFace(9)).await.unwrap_err()));
    for none in [FileSet::Checkpoint(8), FileSet::Checkpoint(9)] {
        assert_eq!((remote.list(&none).await.unwrap(), local.list(&none).await.unwrap()), (Vec::new(), Vec::new()));
    }
    // A message that is too long for a header is truncated, and keeps its reason.
    let error = remote.open(&FileSet::Artifacts, &"\u{e9}".repeat(20_000)).await.err().unwrap();
    assert_eq!(error.reason, ErrorReason::NotFound);
    assert!(error.detail.starts_with("file \u{e9}\u{e9}"), "{}", error.detail);
}

#[tokio::test]
async fn journal_is_served_from_a_sequence_number() {
    let (_dir, reads) = directories();
    let event = |step| JournalEvent::Checkpoint { step, digest: "ab".to_owned() };
    for uid in ["another", UID] {
        let lock = lock(&reads.model_dir, uid);
        let journal = JournalWriter::open(&reads.model_dir, lock.attempt().into()).unwrap();
        for event in [event(1), event(2), JournalEvent::Outcome(AttemptOutcome::default())] {
            journal.append(event).unwrap();
        }
    }
    let (remote, _end) = served(&reads, LONG_TIMEOUT).await;
    let entries_from = async |from| {
        let entries =
            remote.journal().follow(FollowRequest { from, from_current_state: false }).await.unwrap().into_inner();
        let entries: Vec<Entry> = entries.try_collect().await.unwrap();
        entries.into_iter().map(|entry| (entry.number, entry.attempt, entry.kind)).collect::<Vec<_>>()
    };
    let entry = |number, kind: &str| (number, 1, kind.to_owned());
    assert_eq!(entries_from(5).await, [entry(5, "checkpoint"), entry(6, "outcome")]);
    assert_eq!(entries_from(0).await, [entry(4, "checkpoint"), entry(5, "checkpoint"), entry(6, "outcome")]);
    assert_eq!(entries_from(7).await, []);
    // The journal of a job that had the model_dir before is not served, and a stream of the newest entries is not
    // supported.
    assert!(journal_files::entries(reads.model_dir.clone(), "another".to_owned(), 0).recv().await.is_none());
    let error = remote.journal().follow(FollowRequest { from: 0, from_current_state: true }).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unimplemented);
}

#[tokio::test]
async fn unauthorized_clients_are_rejected() {
    let (_dir, reads) = directories();
    write(&reads.model_dir.join("job.json"), b"a");
    write(&reads.model_dir.join("id_rsa"), b"no artifact");
    let (served, ours) = certificates(UID);
    let (address, _end) = start(&served, &reads, LONG_TIMEOUT).await;
    let listed = async |client: &Identity, uid: &str| {
        let files = RemoteFiles::new(&address, client, reader(uid)).unwrap().list(&FileSet::Artifacts).await;
        files.map(|files| files.len()).map_err(|refusal| refusal.reason)
    };
    assert_eq!(listed(&ours, UID).await, Ok(1));
    // The client of another reader, and one with a certificate of another authority.
    assert_eq!(listed(&certificates(UID).1, UID).await, Err(ErrorReason::Unavailable));
    let today = Validity::starting(std::time::SystemTime::now(), LONG_TIMEOUT);
    let other = Authority::new(today).unwrap();
    let foreign = other.issue(&MemberName::Service(Service::RestServer), today).unwrap();
    let foreign = Credentials { authority: format!("{}{}", foreign.authority, served.authority), ..foreign };
    assert_eq!(listed(&Identity::new(&foreign).unwrap(), UID).await, Err(ErrorReason::Unavailable));
    // The reader of another job.
    assert_eq!(listed(&ours, "another").await, Err(ErrorReason::Unavailable));
    assert_eq!(listed(&ours, UID).await, Ok(1), "it was the same server all the while");
}

#[tokio::test]
async fn reader_exits_when_idle() {
    let (_dir, reads) = directories();
    endless(&reads);
    let idle_timeout = Duration::from_millis(100);
    let (remote, mut end) = served(&reads, idle_timeout).await;
    let opened = remote.open(&FileSet::Artifacts, ENDLESS).await.unwrap();
    let looked_at = remote.open(&FileSet::Artifacts, ENDLESS).await.unwrap();
    tokio::time::timeout(4 * idle_timeout, &mut end).await.expect_err("files are open");
    let mut pieces = opened.content.read_range(0, opened.bytes).await.unwrap();
    assert!(pieces.try_next().await.unwrap().is_some());
    // One stream is dropped in the middle, the other was never read.
    drop((pieces, looked_at));
    tokio::time::timeout(Duration::from_secs(60), end).await.expect("nobody asks").unwrap().unwrap();
    let error = remote.list(&FileSet::Artifacts).await.unwrap_err();
    assert_eq!(error.reason, ErrorReason::Unavailable);
    assert!(error.detail.contains("try again"), "{}", error.detail);
}
