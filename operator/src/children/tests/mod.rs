//! Tests the children of a job without a cluster.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use millrace_cluster::model_dir::model_dir_mount;
use millrace_cluster::names::{APPLIANCE_LABEL, ATTEMPT_LABEL, ChildNames, INDEX_LABEL, ROLE_LABEL, SYSTEM_LABEL};
use millrace_cluster::pod_site::PodSite;
use millrace_control::record::resolved_version;
use millrace_control::{JobSite, ResolveError, ResourceRequirements, requirements, resolve};
use millrace_crds::{
    ApplianceSpec, JobVolume, MountedDir, PersistentVolumeClaimSource, ResolvedJob, Role, StoredParams, TrainJob,
    TrainJobSpec, TrainJobStatus,
};
use millrace_params::CheckpointStates;
use millrace_protocol::error_chain;
use millrace_protocol::launch::VERSION;
use millrace_protocol::security::Credentials;

use super::*;

mod bucket;
mod loader;
mod uploads;

/// Builds the smallest job, with `model_dir` in its params.
fn job(name: &str, model_dir: &str) -> TrainJob {
    let params = serde_json::json!({
        "train_input": {
            "data_processor": "SyntheticDataProcessor", "max_sequence_length": 8,
            "batch_size": 4, "micro_batch_size": 1,
        },
        "model": {
            "name": "gpt2", "vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 1, "num_heads": 1,
            "max_position_embeddings": 8,
        },
        "optimizer": {"optimizer_type": "SGD", "learning_rate": 0.1},
        "runconfig": {"max_steps": 1, "model_dir": model_dir, "num_csx": 1},
    });
    let mut job = TrainJob::new(name, TrainJobSpec::new(2, StoredParams(params)));
    job.metadata.namespace = Some("team".to_owned());
    job.metadata.uid = Some("6a0c1c3e-0000-4000-8000-000000000001".to_owned());
    job
}

fn site() -> PodSite {
    PodSite::without_uploads("localhost/millrace:test".to_owned())
}

fn resolve_here(job: &TrainJob) -> Result<ResolvedJob, ResolveError> {
    resolve(job, &ApplianceSpec::default(), &site())
}

fn needs_of(job: &TrainJob, record: &ResolvedJob, num_csx: u32) -> Result<ResourceRequirements, ResolveError> {
    requirements(job, record, num_csx, &site())
}

fn resolved(job: &TrainJob) -> (ResolvedJob, ResourceRequirements) {
    let resolution = resolve_here(job).unwrap();
    let needs = needs_of(job, &resolution, job.spec.num_csx).unwrap();
    (resolution, needs)
}

fn built<T>(job: &TrainJob, with: impl FnOnce(&AttemptContext<'_>) -> T) -> T {
    let (resolution, needs) = resolved(job);
    let cluster = ApplianceSpec::default();
    let systems = ["csx-4".to_owned(), "csx-7".to_owned()];
    with(&AttemptContext {
        job,
        resolution: &resolution,
        cluster: &cluster,
        number: 3,
        needs: &needs,
        systems: &systems,
    })
}

fn pod<'a>(pods: &'a [Pod], role: &str) -> &'a Pod {
    pods.iter().find(|pod| pod.metadata.labels.as_ref().unwrap()[ROLE_LABEL] == role).unwrap()
}

fn mounts(pod: &Pod) -> BTreeMap<String, bool> {
    let mounts = pod.spec.as_ref().unwrap().containers[0].volume_mounts.clone().unwrap();
    mounts.into_iter().map(|mount| (mount.mount_path, mount.read_only != Some(true))).collect()
}

#[test]
fn names_fit_and_are_the_same_for_every_attempt() {
    let long = "j".repeat(63);
    for name in ["a", "job-with-a-name", &long, &format!("{}-{}", "j".repeat(40), "k".repeat(22))] {
        let pods = built(&job(name, "m"), pods);
        let names: BTreeSet<String> = pods.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect();
        assert_eq!(names.len(), 8, "coordinator, 2 shards, a SwarmX node, 2 activation servers, 2 systems");
        for name in &names {
            assert!(name.len() <= 63 && !name.contains("--") && !name.contains('3'), "{name}");
        }
    }
    let names = |uid| ChildNames::new(&long, uid).pod(Role::Cs2, 191);
    assert_ne!(names("one"), names("another"), "another job of the same name is another");
    assert!(names("one").len() <= 63);
}

#[test]
fn replicas_of_a_shard_prefer_different_nodes() {
    let job = job("job", "m");
    let avoided = |cluster: &ApplianceSpec| -> Vec<Option<Vec<String>>> {
        let resolution = resolve(&job, cluster, &site()).unwrap();
        let needs = needs_of(&job, &resolution, 2).unwrap();
        let systems = ["csx-4".to_owned(), "csx-7".to_owned()];
        let (job, number) = (&job, 3);
        let attempt =
            AttemptContext { job, resolution: &resolution, cluster, number, needs: &needs, systems: &systems };
        let of_pod = |pod: Pod| {
            let term = pod.spec?.affinity?.pod_anti_affinity?.preferred_during_scheduling_ignored_during_execution?;
            term[0].pod_affinity_term.label_selector.clone()?.match_expressions?[0].values.clone()
        };
        let memoryx = |pod: &Pod| pod.metadata.labels.as_ref().unwrap()[ROLE_LABEL] == "memoryx";
        pods(&attempt).into_iter().filter(memoryx).map(of_pod).collect()
    };
    let mut cluster = ApplianceSpec::default();
    assert_eq!(avoided(&cluster), [None, None]);
    cluster.machine = serde_json::from_value(serde_json::json!({"memoryx": {"replicas": 2}})).unwrap();
    let expected = ["2", "3", "0", "1"].map(|other| Some(vec![other.to_owned()]));
    assert_eq!(avoided(&cluster), expected);
}

#[test]
fn pods_are_restricted_owned_labelled_without_credentials() {
    for pod in built(&job("job", "m"), pods) {
        let name = pod.metadata.name.clone().unwrap();
        let owner = &pod.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.controller), ("TrainJob", Some(true)), "{name}");
        assert_eq!(pod.metadata.labels.as_ref().unwrap()[ATTEMPT_LABEL], "3");
        let spec = pod.spec.unwrap();
        assert_eq!(spec.automount_service_account_token, Some(false));
        assert_eq!(spec.restart_policy.as_deref(), Some("Never"), "an end is seen, not covered up");
        let security = spec.security_context.unwrap();
        assert_eq!(
            (security.run_as_non_root, security.seccomp_profile.unwrap().type_),
            (Some(true), "RuntimeDefault".into())
        );
        let container = &spec.containers[0];
        let security = container.security_context.clone().unwrap();
        assert_eq!(security.allow_privilege_escalation, Some(false));
        assert_eq!(security.capabilities.unwrap().drop.unwrap(), ["ALL"]);
        assert_eq!(security.read_only_root_filesystem, Some(true));
        assert_eq!(container.termination_message_policy.as_deref(), Some("FallbackToLogsOnError"));
        let resources = container.resources.clone().unwrap();
        assert!(resources.requests.unwrap().contains_key("memory") && resources.limits.unwrap().contains_key("memory"));
    }
}

#[test]
fn system_pod_names_its_system() {
    let pods = built(&job("job", "m"), pods);
    let labels = pods.iter().filter_map(|pod| pod.metadata.labels.as_ref());
    let systems: Vec<_> =
        labels.filter_map(|labels| Some((labels.get(SYSTEM_LABEL)?, labels.get(APPLIANCE_LABEL)?))).collect();
    let default = "default".to_owned();
    assert_eq!(systems, [(&"csx-4".to_owned(), &default), (&"csx-7".to_owned(), &default)]);
}

#[test]
fn pods_are_of_a_priority_class_that_the_appliance_allows() {
    let mut job = job("job", "m");
    for (class, of_pods) in [("p1", Some("p1")), ("system-cluster-critical", None), ("other", None)] {
        job.spec.priority_class_name = Some(class.to_owned());
        for pod in built(&job, pods) {
            assert_eq!(pod.spec.unwrap().priority_class_name.as_deref(), of_pods, "{class}");
        }
    }
}

#[test]
fn pods_mount_only_the_volumes_they_need() {
    let mut job = job("job", "/results/run");
    let claim = |name: &str, claim: &str| JobVolume {
        name: name.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimSource { claim_name: claim.to_owned() }),
        config_map: None,
    };
    let mount =
        |path: &str, volume: &str| MountedDir { path: path.to_owned(), volume: volume.to_owned(), sub_path: None };
    job.spec.volumes = vec![claim("results", "my-results"), claim("data", "my-data")];
    job.spec.mount_dirs = vec![mount("/results", "results"), mount("/data", "data")];
    let pods = built(&job, pods);
    let sees = |role: &str, path: &str| mounts(pod(&pods, role)).get(path).copied();
    assert_eq!((sees("coordinator", "/results"), sees("coordinator", "/data")), (Some(true), Some(false)));
    assert_eq!((sees("memoryx", "/results"), sees("memoryx", "/data")), (Some(true), None));
    assert_eq!((sees("activation", "/results"), sees("activation", "/data")), (Some(false), Some(false)));
    assert_eq!((mounts(pod(&pods, "cs2")).len(), mounts(pod(&pods, "swarmx")).len()), (1, 1));
    assert!(built(&job, claim_of).is_none(), "the job brings its own");
}

fn claim_of(attempt: &AttemptContext<'_>) -> Option<k8s_openapi::api::core::v1::PersistentVolumeClaim> {
    claim(attempt)
}

#[test]
fn each_pod_sees_its_own_identity_only_and_proves_it() {
    use millrace_protocol::security::{AttemptName, Identity, MemberName};
    let now = std::time::SystemTime::now();
    let authorities = crate::authority::Authorities::new(now).unwrap();
    let job = job("job", "m");
    let (pods, secret) =
        built(&job, |attempt| (pods(attempt), identities(attempt, &authorities, "launch".to_owned(), now).unwrap()));
    let data = secret.data.unwrap();
    assert_eq!(data.len(), 2 * pods.len() + 1);
    for pod in pods {
        let labels = pod.metadata.labels.unwrap();
        let agent = format!("{}-{}", labels[ROLE_LABEL], labels[INDEX_LABEL]);
        let spec = pod.spec.unwrap();
        let secrets: Vec<_> = spec.volumes.unwrap().into_iter().filter_map(|volume| volume.secret).collect();
        assert_eq!(secrets.len(), 1);
        assert_eq!(secrets[0].secret_name, secret.metadata.name);
        let mounted: BTreeMap<_, _> =
            secrets[0].items.clone().unwrap().into_iter().map(|item| (item.path, item.key)).collect();
        assert_eq!(mounted.len(), 3);
        let part = |file: &str| String::from_utf8(data[&mounted[file]].0.clone()).unwrap();
        let credentials = Credentials { certificate: part("tls.crt"), key: part("tls.key"), authority: part("ca.crt") };
        let attempt = AttemptName::new(job.metadata.uid.as_deref().unwrap(), 3).unwrap();
        assert_eq!(*Identity::new(&credentials).unwrap().name(), MemberName::for_agent(attempt, &agent).unwrap());
        let variables = spec.containers[0].env.clone().unwrap();
        let set = |name: &str| variables.iter().find(|var| var.name == name).and_then(|var| var.value.clone());
        let mount =
            spec.containers[0].volume_mounts.clone().unwrap().into_iter().find(|mount| mount.name == "identity");
        assert_eq!(set("MILLRACE_IDENTITY"), mount.map(|mount| mount.mount_path));
        assert_eq!(set("MILLRACE_DATA_ENCRYPTION").as_deref(), Some("on"));
    }
}

#[test]
fn identities_of_largest_cluster_fit_into_secret() {
    let mut job = job("job", "m");
    job.spec.num_csx = 192;
    job.spec.params.0["train_input"]["batch_size"] = 192.into();
    let now = std::time::SystemTime::now();
    let authorities = crate::authority::Authorities::new(now).unwrap();
    let cluster = ApplianceSpec {
        machine: serde_json::from_value(serde_json::json!({"systems": 192})).unwrap(),
        ..ApplianceSpec::default()
    };
    let resolution = resolve(&job, &cluster, &site()).unwrap();
    let needs = needs_of(&job, &resolution, 192).unwrap();
    let attempt = AttemptContext {
        job: &job,
        resolution: &resolution,
        cluster: &cluster,
        number: 3,
        needs: &needs,
        systems: &[],
    };
    let secret = identities(&attempt, &authorities, "launch".to_owned(), now).unwrap();
    assert!(secret.data.unwrap().len() > 2 * 2 * 192);
}

#[test]
fn claim_without_volumes_is_found_by_name_and_has_no_owner() {
    let claim = built(&job("job", "runs/../one"), claim_of).unwrap();
    assert_eq!(claim.metadata.name.as_deref(), Some("job-model-dir"));
    assert_eq!(claim.metadata.owner_references, None);
    let (resolution, _) = resolved(&job("job", "runs/../one"));
    assert_eq!(resolution.model_dir.as_deref(), Some("/var/lib/millrace/model_dir/runs/one"));
    let outside = resolve_here(&job("job", "/elsewhere")).unwrap_err().to_string();
    assert!(outside.contains("/elsewhere") && outside.contains("spec.mountDirs"), "{outside}");
}

#[test]
fn launch_document_uses_the_current_spec() {
    let mut job = job("job", "m");
    let launch = |job: &TrainJob| {
        let map = built(job, |attempt| launch(attempt).unwrap());
        millrace_protocol::launch::LaunchDocument::from_json(&map.data.unwrap()["launch.json"]).unwrap()
    };
    let first = launch(&job);
    assert_eq!((first.attempt, first.agent_counts.systems, first.job.run.num_csx), (Some(3), 2, 2), "the spec wins");
    assert_eq!(first.job_uid, job.metadata.uid);
    assert_eq!(first.model_dir.to_str(), Some("/var/lib/millrace/model_dir/m"));
    let (resolution, _) = resolved(&job);
    assert_eq!(resolution.differences[0].key, "runconfig.num_csx");
    job.spec.params.0["runconfig"]["checkpoint_path"] = "/data/checkpoint_5".into();
    job.spec.params.0["runconfig"]["load_checkpoint_states"] = "model".into();
    let first = launch(&job).resume;
    assert!(first.checkpoint_path.is_some() && !first.states.global_step);
    let saved = millrace_crds::CheckpointStatus { step: Some(7), ..Default::default() };
    job.status = Some(TrainJobStatus { checkpoint: Some(saved), ..TrainJobStatus::default() });
    let later = launch(&job).resume;
    assert!(later.checkpoint_path.is_none(), "the job has come further since");
    assert_eq!(later.states, CheckpointStates::ALL, "its own steps count");
}

/// Reads a document of release 0.1.0.
fn golden<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/0.1.0").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn job_of_first_release_keeps_its_arguments() {
    let (job, record): (TrainJob, ResolvedJob) = (golden("trainjob.json"), golden("resolved.json"));
    let (needs, cluster) = (needs_of(&job, &record, job.spec.num_csx).unwrap(), ApplianceSpec::default());
    let attempt =
        AttemptContext { job: &job, resolution: &record, cluster: &cluster, number: 3, needs: &needs, systems: &[] };
    let map = launch(&attempt).unwrap().data.unwrap();
    let document: serde_json::Value = serde_json::from_str(&map["launch.json"]).unwrap();
    assert_eq!(document, golden::<serde_json::Value>("launch.json"));
    let arguments: BTreeMap<String, Vec<String>> = pods(&attempt)
        .iter()
        .map(|pod| {
            let labels = pod.metadata.labels.as_ref().unwrap();
            let container = &pod.spec.as_ref().unwrap().containers[0];
            assert_eq!(container.image.as_deref(), Some("localhost/millrace:0.1.0"));
            (format!("{}-{}", labels[ROLE_LABEL], labels[INDEX_LABEL]), container.args.clone().unwrap())
        })
        .collect();
    assert_eq!(arguments, golden::<BTreeMap<_, _>>("arguments.json"));
}

#[test]
fn every_scratch_directory_has_a_limit() {
    let request = file_reader(&job_with_claim());
    let reader = ReaderPod { request: &request, cluster: &ApplianceSpec::default(), image: "localhost/millrace:test" };
    let mut all = built(&job("job", "m"), pods);
    all.push(reader.pod());
    let volumes = all.into_iter().flat_map(|pod| pod.spec.unwrap().volumes.unwrap_or_default());
    let scratch: Vec<_> = volumes.filter_map(|volume| volume.empty_dir).collect();
    assert!(scratch.len() > 2, "coordinator, activation servers and the reader have some");
    assert!(scratch.iter().all(|directory| directory.size_limit.is_some()));
}

#[test]
fn no_attempt_starts_with_unauthenticated_agents() {
    let site = site();
    assert_eq!(site.unsupported_agents(VERSION), None);
    let record: ResolvedJob = golden("resolved.json");
    let error = site.unsupported_agents(resolved_version(&record)).unwrap();
    assert!(error.contains("release 0.1.0") && error.contains("create it again"), "{error}");
}

#[test]
fn record_of_later_version_is_rejected_with_remedy() {
    let (mut record, _) = resolved(&job("job", "m"));
    assert_eq!(record.version, Some(VERSION));
    record.version = Some(VERSION + 1);
    let error = needs_of(&job("job", "md"), &record, 2).unwrap_err().to_string();
    assert!(error.contains(&format!("version {}", VERSION + 1)), "{error}");
    assert!(error.contains(&format!("up to {VERSION}")) && error.contains("create the job again"), "{error}");
    let damaged = ResolvedJob { version: None, job: Some("{".to_owned()), ..record };
    assert!(
        needs_of(&job("job", "md"), &damaged, 2)
            .unwrap_err()
            .to_string()
            .contains("run the release that admitted the job")
    );
}

#[test]
fn network_policy_restricts_agents_to_their_job() {
    let job = job("job", "m");
    let policy = built(&job, network_policy).spec.unwrap();
    assert_eq!(policy.policy_types.unwrap(), ["Ingress", "Egress"]);
    let open: Vec<_> = policy.ingress.unwrap().into_iter().filter(|rule| rule.from.is_none()).collect();
    assert_eq!(open.len(), 1, "metrics alone are for everybody");
    let service = built(&job, service).spec.unwrap();
    assert_eq!(service.publish_not_ready_addresses, Some(true));
    assert_eq!(service.selector.unwrap()[ROLE_LABEL], "coordinator");
}

#[test]
fn impossible_job_is_rejected_in_one_sentence() {
    let mut invalid = job("job", "m");
    invalid.spec.params.0["model"]["num_heads"] = 3.into();
    let message = resolve_here(&invalid).unwrap_err().to_string();
    assert!(message.contains("num_heads"), "{message}");
    let mut invalid = job("job", "m");
    invalid.spec.params.0["optimizer"]["learning_rat"] = 1.into();
    let message = resolve_here(&invalid).unwrap_err().to_string();
    assert!(message.contains("learning_rat") && message.contains("learning_rate"), "{message}");
    let mut invalid = job("job", "m");
    invalid.spec.num_csx = 5;
    let message = resolve_here(&invalid).unwrap_err().to_string();
    assert!(message.contains("num_csx"), "{message}");
    let mut large = job("job", "m");
    large.spec.params.0["train_input"]["max_sequence_length"] = (1 << 22).into();
    large.spec.params.0["model"]["max_position_embeddings"] = (1 << 22).into();
    large.spec.params.0["model"]["hidden_size"] = 8192.into();
    match resolve_here(&large).unwrap_err() {
        ResolveError::TooLarge(error) => {
            let message = error_chain(&error);
            assert!(message.contains("the wafer has") && message.contains("smaller hidden_size"), "{message}")
        }
        other => panic!("it is the machine that is too small: {other}"),
    }
}

/// Builds a job whose model_dir is in a claim of its user.
fn job_with_claim() -> TrainJob {
    let mut job = job("job", "/results/run");
    job.spec.volumes = vec![JobVolume {
        name: "results".to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimSource { claim_name: "my-results".to_owned() }),
        config_map: None,
    }];
    let path = "/results".to_owned();
    job.spec.mount_dirs = vec![MountedDir { path, volume: "results".to_owned(), sub_path: Some("a/b".to_owned()) }];
    job
}

/// Builds the request for the files of `job`, as an API server returns it.
fn file_reader(job: &TrainJob) -> millrace_crds::FileReader {
    let record = resolved(job).0;
    let mount = model_dir_mount(&job.spec, &record).unwrap();
    let spec = millrace_crds::FileReaderSpec {
        job_uid: job.uid().unwrap(),
        job_name: job.name_any(),
        appliance: job.spec.appliance.clone(),
        model_dir: record.model_dir.unwrap(),
        claim_name: mount.claim_name,
        mount_path: mount.path,
        sub_path: mount.sub_path,
        client_authority: "CLIENTS".to_owned(),
    };
    let mut request = millrace_crds::FileReader::new("job-reader-1", spec);
    request.metadata.namespace = Some("team".to_owned());
    request.metadata.uid = Some("6a0c1c3e-0000-4000-8000-000000000002".to_owned());
    request
}

#[test]
fn reader_has_one_read_only_claim_and_no_credentials() {
    let request = file_reader(&job_with_claim());
    let reader = ReaderPod { request: &request, cluster: &ApplianceSpec::default(), image: "localhost/millrace:test" };
    let pod = reader.pod();
    assert!(!mounts(&pod)["/results"], "not to be written");
    let owner = &pod.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.controller), ("FileReader", Some(true)));
    let spec = pod.spec.unwrap();
    assert_eq!(spec.automount_service_account_token, Some(false));
    let volumes = spec.volumes.unwrap();
    let claims: Vec<_> = volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref()).collect();
    assert_eq!((claims.len(), claims[0].claim_name.as_str()), (1, "my-results"));
    let mount = &spec.containers[0].volume_mounts.as_ref().unwrap()[0];
    assert_eq!(mount.sub_path.as_deref(), Some("a/b"));
    let issued = Credentials { certificate: "C".to_owned(), key: "K".to_owned(), authority: "OPERATORS".to_owned() };
    let secret = reader.secret(issued).data.unwrap();
    assert_eq!(secret["ca.crt"].0, b"CLIENTS", "only clients of the server that requested the reader are admitted");
}
