//! Tests of the pods of a job with uploads.

use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodSpec;
use millrace_cluster::pod_site::GraphDocuments;
use millrace_control::DocumentError;
use millrace_crds::{CheckpointStatus, JobFile, UploadedModel};
use millrace_params::BlobDigest;
use millrace_protocol::launch::{FetchDocument, LaunchDocument};

use super::*;

/// A server that stores uploads, among them no document.
struct NoDocuments;

impl GraphDocuments for NoDocuments {
    fn read(&self, _: &TrainJob, digest: &BlobDigest) -> Result<Vec<u8>, DocumentError> {
        Err(DocumentError::Unusable(format!("no upload {digest}").into()))
    }
}

fn digest(digit: char) -> String {
    format!("blake3:{}", digit.to_string().repeat(64))
}

/// Builds a job with two files and initial weights.
fn job_with_uploads() -> TrainJob {
    let mut job = job("job", "m");
    let file = |path: &str, digit| JobFile { path: path.to_owned(), digest: digest(digit) };
    job.spec.files = vec![file("0/x.npy", '1'), file("1/words.txt", '2')];
    job.spec.model = Some(UploadedModel { graph: None, weights: Some(digest('3')) });
    job
}

/// Builds the children of an attempt: its pods, and the data of its ConfigMap and its Secret.
fn children_of(job: &TrainJob) -> (Vec<Pod>, BTreeMap<String, String>, BTreeSet<String>) {
    let site = PodSite { documents: Some(Arc::new(NoDocuments)), ..site() };
    let cluster = ApplianceSpec::default();
    let resolution = resolve(job, &cluster, &site).unwrap();
    let needs = requirements(job, &resolution, 2, &site).unwrap();
    let attempt =
        AttemptContext { job, resolution: &resolution, cluster: &cluster, number: 3, needs: &needs, systems: &[] };
    let server = UploadServer { address: "uploads.system.svc:7300".to_owned(), namespace: "system".to_owned() };
    let document = fetch_document(&attempt).unwrap();
    let mut pods = pods(&attempt);
    if let Some(document) = &document {
        let fetcher = Fetcher { attempt: &attempt, server: &server, document };
        pods.iter_mut().for_each(|pod| fetcher.add_to(pod));
    }
    let now = std::time::SystemTime::now();
    let secret =
        identities(&attempt, &crate::authority::Authorities::new(now).unwrap(), "uid".to_owned(), now).unwrap();
    (pods, launch(&attempt).unwrap().data.unwrap(), secret.data.unwrap().into_keys().collect())
}

/// Returns the names of the volumes that a container of the pod mounts.
fn mounted(spec: &PodSpec, is_init: bool) -> BTreeSet<String> {
    let containers = if is_init { spec.init_containers.as_ref().unwrap() } else { &spec.containers };
    let mounts = containers.iter().flat_map(|container| container.volume_mounts.clone().unwrap_or_default());
    mounts.map(|mount| mount.name).collect()
}

#[test]
fn uploads_are_fetched_where_agents_read_them() {
    let (pods, data, secret) = children_of(&job_with_uploads());
    let document = FetchDocument::from_json(&data["uploads.json"]).unwrap();
    let paths: Vec<_> = document.files.iter().map(|file| file.path.to_str().unwrap()).collect();
    let (files, model) = ("/var/lib/millrace/files", "/var/lib/millrace/model");
    assert_eq!(paths[1..], ["/var/lib/millrace/files/0/x.npy", "/var/lib/millrace/files/1/words.txt"]);
    let launch = LaunchDocument::from_json(&data["launch.json"]).unwrap();
    assert_eq!(launch.resume.checkpoint_path.as_deref(), Some(Path::new(paths[0])), "the weights");
    assert!(secret.contains("fetcher.crt") && secret.contains("fetcher.key"));
    for (role, dirs) in [("coordinator", &[files, model][..]), ("activation", &[files])] {
        let pod = pod(&pods, role);
        let into: Vec<_> = dirs.iter().map(|dir| format!("--into={dir}")).collect();
        let spec = pod.spec.as_ref().unwrap();
        let fetcher = &spec.init_containers.as_ref().unwrap()[0];
        assert_eq!(fetcher.args.as_ref().unwrap()[4..], into, "{role}");
        assert!(dirs.iter().all(|dir| !mounts(pod)[*dir]), "an agent can't change them");
        let scratch = spec.volumes.iter().flatten().filter(|volume| volume.name.starts_with("uploaded-"));
        assert!(scratch.clone().count() == dirs.len());
        assert!(scratch.filter_map(|volume| volume.empty_dir.as_ref()).all(|dir| dir.size_limit.is_some()));
    }
    for role in ["memoryx", "cs2"] {
        assert_eq!(pod(&pods, role).spec.as_ref().unwrap().init_containers, None, "{role}");
    }
}

#[test]
fn agents_have_no_certificate_for_uploads() {
    let (pods, ..) = children_of(&job_with_uploads());
    let spec = pod(&pods, "coordinator").spec.as_ref().unwrap();
    assert!(mounted(spec, true).contains("fetcher-identity") && !mounted(spec, true).contains("identity"));
    assert!(mounted(spec, false).contains("identity") && !mounted(spec, false).contains("fetcher-identity"));
    let secret = spec.volumes.iter().flatten().find(|volume| volume.name == "identity").unwrap().secret.as_ref();
    let keys: Vec<_> = secret.unwrap().items.iter().flatten().map(|item| item.key.as_str()).collect();
    assert_eq!(keys, ["coordinator-0.crt", "coordinator-0.key", "ca.crt"]);
}

#[test]
fn only_what_an_attempt_needs_is_fetched() {
    let mut job = job_with_uploads();
    let saved = CheckpointStatus { step: Some(7), ..CheckpointStatus::default() };
    job.status = Some(TrainJobStatus { checkpoint: Some(saved), ..TrainJobStatus::default() });
    let (_, data, _) = children_of(&job);
    assert_eq!(FetchDocument::from_json(&data["uploads.json"]).unwrap().files.len(), 2, "it has a checkpoint");
    let (pods, data, secret) = children_of(&super::job("job", "m"));
    assert!(!data.contains_key("uploads.json") && !secret.contains("fetcher.key"), "there are no uploads");
    assert!(pods.iter().all(|pod| pod.spec.as_ref().unwrap().init_containers.is_none()));
}

#[test]
fn jobs_with_uploads_need_a_server_of_them() {
    let error = resolve_here(&job_with_uploads()).unwrap_err().to_string();
    assert!(error.contains("the REST server of this cluster stores none"), "{error}");
    let mut policy = built(&job("job", "m"), network_policy);
    let before = policy.spec.as_ref().unwrap().egress.as_ref().unwrap().len();
    let server = UploadServer { address: "uploads.system.svc:7300".to_owned(), namespace: "system".to_owned() };
    server.open_egress(&mut policy);
    let egress = policy.spec.unwrap().egress.unwrap();
    assert_eq!(egress.len(), before + 1);
    let peer = &egress[before].to.as_ref().unwrap()[0];
    let namespace = peer.namespace_selector.as_ref().unwrap().match_labels.as_ref().unwrap();
    assert_eq!(namespace["kubernetes.io/metadata.name"], "system");
}
