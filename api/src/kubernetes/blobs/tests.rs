//! Tests of the port for uploads over loopback: who reads what.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use kube::runtime::reflector;
use kube::runtime::watcher::Event;
use millrace_cluster::pod_site::GraphDocuments;
use millrace_crds::{JobFile, StoredParams, TrainJobSpec, UploadedModel};
use millrace_protocol::blobs::{self, MAX_PART_BYTES, ReadError};
use millrace_protocol::proto::BlobRequest;
use millrace_protocol::security::{AttemptName, Authority, Credentials, MemberName, Service, Validity};
use tonic::Code;

use super::*;
use crate::blobs::{BlobPart, UNUSED_BLOB_TTL};

const OWN: &str = "6a0c1c3e-0000-4000-8000-000000000001";
const OTHER: &str = "6a0c1c3e-0000-4000-8000-000000000002";

/// Namespaces by their names, each with its UID.
#[derive(Clone)]
struct Namespaces(HashMap<&'static str, &'static str>);

#[async_trait]
impl FindNamespace for Namespaces {
    async fn find(&self, name: &LabelName) -> Result<Option<BlobNamespace>> {
        let uid = self.0.get(name.as_str());
        Ok(uid.map(|uid| BlobNamespace::with_uid(name.clone(), LabelName::new(*uid).unwrap())))
    }
}

struct Case {
    _dir: tempfile::TempDir,
    store: BlobStore,
    namespaces: Namespaces,
    jobs: Vec<Arc<TrainJob>>,
    authority: Authority,
    address: String,
}

fn digest(content: &[u8]) -> BlobDigest {
    BlobDigest::new(format!("blake3:{}", blake3::hash(content).to_hex())).unwrap()
}

/// Builds a job with a file, and with a graph document.
fn job(uid: &str, namespace: &str, file: &[u8], graph: &[u8]) -> TrainJob {
    let mut job =
        TrainJob::new(&format!("job-{}", &uid[uid.len() - 1..]), TrainJobSpec::new(1, StoredParams::default()));
    (job.metadata.uid, job.metadata.namespace) = (Some(uid.to_owned()), Some(namespace.to_owned()));
    job.spec.files = vec![JobFile { path: "x".to_owned(), digest: digest(file).to_string() }];
    job.spec.model = Some(UploadedModel { graph: Some(digest(graph).to_string()), weights: None });
    job
}

fn today() -> Validity {
    Validity::starting(SystemTime::now(), Duration::from_secs(3600))
}

/// A file of several parts.
fn large() -> Vec<u8> {
    (0..2 * MAX_PART_BYTES + 5).map(|at| (at % 251) as u8).collect()
}

impl Case {
    /// Serves the uploads of two jobs in namespaces of their own.
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::new(dir.path().to_owned(), 1 << 30);
        let namespaces = Namespaces([("team", "team-uid"), ("others", "others-uid")].into());
        let jobs = [job(OWN, "team", &large(), b"graph"), job(OTHER, "others", b"secret", b"graph 2")];
        let (view, mut writer) = reflector::store();
        jobs.iter().for_each(|job| writer.apply_watcher_event(&Event::Apply(job.clone())));
        let authority = Authority::new(today()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service = BlobService::new(store.clone(), view, namespaces.clone());
        let identity = identity_of(&authority, MemberName::Service(Service::RestServer));
        tokio::spawn(run(listener, watch::channel(identity).1, service));
        Self { _dir: dir, store, namespaces, jobs: jobs.map(Arc::new).into(), authority, address }
    }

    async fn upload(&self, namespace: &str, content: &[u8]) {
        let namespace = self.namespaces.find(&LabelName::new(namespace).unwrap()).await.unwrap().unwrap();
        self.store.announce(namespace.clone(), digest(content), content.len() as u64).await.unwrap();
        let part = BlobPart::of_bytes(0, Bytes::copy_from_slice(content));
        self.store.append(namespace, digest(content), part).await.unwrap();
    }

    /// Reads a blob of a job as the member `name`.
    async fn read(&self, name: MemberName, uid: &str, content: &[u8]) -> Result<Vec<u8>, ReadError> {
        let identity = identity_of(&self.authority, name);
        blobs::read(&self.address, &identity, (uid, &digest(content)), u64::MAX).await
    }
}

fn identity_of(authority: &Authority, name: MemberName) -> Identity {
    Identity::new(&authority.issue(&name, today()).unwrap()).unwrap()
}

fn fetcher(uid: &str) -> MemberName {
    MemberName::for_fetcher(uid).unwrap()
}

#[tokio::test]
async fn certificate_of_a_job_reads_its_own_uploads_only() {
    let case = Case::new().await;
    case.upload("team", &large()).await;
    case.upload("others", b"secret").await;
    assert_eq!(case.read(fetcher(OWN), OWN, &large()).await.unwrap(), large());
    let rejected = async |name, uid, content: &[u8]| match case.read(name, uid, content).await {
        Err(ReadError::Rejected(status)) => status.message().to_owned(),
        other => panic!("{other:?}"),
    };
    let of_another_job = rejected(fetcher(OTHER), OWN, &large()).await;
    assert_eq!(of_another_job, format!("the certificate is of job {OTHER}, not of job {OWN}"));
    let not_named = rejected(fetcher(OWN), OWN, b"secret").await;
    assert!(not_named.starts_with("the spec of job job-1 does not name the upload blake3:"), "{not_named}");
    // The operator plans jobs; it reads no data.
    case.upload("team", b"graph").await;
    let operator = || MemberName::Service(Service::Operator);
    assert_eq!(case.read(operator(), OWN, b"graph").await.unwrap(), b"graph");
    let data = rejected(operator(), OWN, &large()).await;
    assert!(data.contains("does not name the upload"), "{data}");
    let agent = MemberName::for_agent(AttemptName::new(OWN, 1).unwrap(), "coordinator-0").unwrap();
    for name in [agent, MemberName::Service(Service::RestServer)] {
        assert!(matches!(case.read(name, OWN, &large()).await, Err(ReadError::Connect(_))));
    }
    let foreign = identity_of(&Authority::new(today()).unwrap(), fetcher(OWN));
    let read = blobs::read(&case.address, &foreign, (OWN, &digest(&large())), u64::MAX).await;
    assert!(matches!(read, Err(ReadError::Connect(_))), "{read:?}");
}

#[tokio::test]
async fn missing_and_unfinished_uploads_differ() {
    let case = Case::new().await;
    let read = async |uid| case.read(fetcher(uid), uid, &large()).await;
    assert!(matches!(read(OWN).await, Err(ReadError::NotFound)));
    let team = case.namespaces.find(&LabelName::new("team").unwrap()).await.unwrap().unwrap();
    case.store.announce(team, digest(&large()), large().len() as u64).await.unwrap();
    let begun = read(OWN).await;
    assert!(matches!(&begun, Err(ReadError::NotYet(status)) if status.message().contains("not complete")), "{begun:?}");
    let unknown = read("6a0c1c3e-0000-4000-8000-000000000003").await;
    assert!(matches!(&unknown, Err(ReadError::NotYet(status)) if status.message().contains("yet")), "{unknown:?}");
    // The same digest in another namespace is another upload.
    case.upload("others", b"graph").await;
    let operator = MemberName::Service(Service::Operator);
    assert!(matches!(case.read(operator, OWN, b"graph").await, Err(ReadError::NotFound)));
}

#[tokio::test]
async fn read_begins_at_the_requested_byte() {
    let case = Case::new().await;
    case.upload("team", &large()).await;
    let mut client = blobs::connect(&case.address, &identity_of(&case.authority, fetcher(OWN))).await.unwrap();
    let total = large().len() as u64;
    for offset in [0, 1, MAX_PART_BYTES as u64, total - 1, total] {
        let digest = digest(&large()).to_string();
        let request = BlobRequest { job_uid: OWN.to_owned(), digest, offset };
        let mut parts = client.read(request).await.unwrap().into_inner();
        let mut received = Vec::new();
        while let Some(part) = parts.message().await.unwrap() {
            assert_eq!(part.blob_bytes, total);
            assert!(part.data.len() <= MAX_PART_BYTES);
            received.extend_from_slice(&part.data);
        }
        assert!(received == large()[offset as usize..], "from byte {offset}");
    }
    for (digest, offset, code) in [
        (digest(&large()).to_string(), total + 1, Code::OutOfRange),
        ("../blake3".to_owned(), 0, Code::InvalidArgument),
    ] {
        let request = BlobRequest { job_uid: OWN.to_owned(), digest, offset };
        assert_eq!(client.read(request).await.unwrap_err().code(), code);
    }
}

#[tokio::test]
async fn uploads_of_jobs_are_kept() {
    let case = Case::new().await;
    for (namespace, content) in [("team", b"graph".as_slice()), ("team", b"graph 2"), ("others", b"graph 2")] {
        case.upload(namespace, content).await;
    }
    for entry in walk(case._dir.path()) {
        let file = std::fs::File::open(entry).unwrap();
        file.set_modified(SystemTime::now() - 2 * UNUSED_BLOB_TTL).unwrap();
    }
    assert_eq!(remove_unused(&case.store, &case.namespaces, &case.jobs).await.unwrap(), 1);
    let left: Vec<_> =
        walk(case._dir.path()).map(|path| path.parent().unwrap().file_name().unwrap().to_owned()).collect();
    assert!(left.len() == 2 && left.contains(&"team-uid".into()) && left.contains(&"others-uid".into()), "{left:?}");
    // Without its namespace, nothing is known about the uploads of a job.
    let gone = Namespaces([("team", "team-uid")].into());
    assert_eq!(remove_unused(&case.store, &gone, &case.jobs).await.unwrap(), 1);
}

/// Returns the files of all namespaces.
fn walk(dir: &std::path::Path) -> impl Iterator<Item = std::path::PathBuf> {
    let dirs = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    dirs.flat_map(|dir| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()))
}

#[tokio::test(flavor = "multi_thread")]
async fn server_reads_documents_of_the_job_namespace() {
    let case = Case::new().await;
    case.upload("team", b"graph").await;
    let read = async |job: Arc<TrainJob>| {
        let documents = LocalDocuments::new(case.store.clone(), case.namespaces.clone());
        tokio::task::spawn_blocking(move || documents.read(&job, &digest(b"graph"))).await.unwrap()
    };
    assert_eq!(read(case.jobs[0].clone()).await.unwrap(), b"graph");
    let missing = read(case.jobs[1].clone()).await.unwrap_err();
    assert!(matches!(missing, millrace_control::DocumentError::Unusable(_)));
    assert!(missing.to_string().contains("namespace others has no upload blake3:"), "{missing}");
}

/// Serves one upload of the store `MILLRACE_BENCH_STORE` until the process is killed; writes the credentials of a
/// fetcher to `MILLRACE_BENCH_IDENTITY`. The job's UID is [`OWN`].
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a server for tests/bench/uploads, not a test"]
async fn serve_upload_for_benchmark() {
    let variable = |name: &str| std::env::var(format!("MILLRACE_BENCH_{name}")).unwrap();
    let mut job = job(OWN, "default", b"", b"");
    job.spec.files[0].digest = variable("DIGEST");
    let (view, mut writer) = reflector::store();
    writer.apply_watcher_event(&Event::Apply(job));
    let authority = Authority::new(today()).unwrap();
    let credentials = authority.issue(&fetcher(OWN), today()).unwrap();
    let dir = std::path::PathBuf::from(variable("IDENTITY"));
    for (name, text) in [
        (Credentials::CERTIFICATE_FILE, &credentials.certificate),
        (Credentials::KEY_FILE, &credentials.key),
        (Credentials::AUTHORITY_FILE, &credentials.authority),
    ] {
        std::fs::write(dir.join(name), text).unwrap();
    }
    let listener = TcpListener::bind(variable("LISTEN")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let store = BlobStore::new(variable("STORE").into(), u64::MAX);
    let service = BlobService::new(store, view, Namespaces([("default", "default")].into()));
    let identity = identity_of(&authority, MemberName::Service(Service::RestServer));
    println!("serving {OWN}");
    run(listener, watch::channel(identity).1, service).await.unwrap();
}
