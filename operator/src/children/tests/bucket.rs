//! Tests of what a coordinator gets to keep its job's model_dir in a bucket.

use serde_json::json;

use super::*;

/// An appliance whose model_dirs are kept in a bucket.
fn cluster() -> ApplianceSpec {
    let bucket = json!({
        "url": "s3://runs/millrace", "endpoint": "https://s3.example.org:9000", "region": "eu-1",
        "secretName": "s3", "caConfigMapName": "authorities",
    });
    serde_json::from_value(json!({"storage": {"bucket": bucket}})).unwrap()
}

fn with_bucket<T>(job: &TrainJob, with: impl FnOnce(&AttemptContext<'_>) -> T) -> T {
    let cluster = cluster();
    let resolution = resolve(job, &cluster, &site()).unwrap();
    let needs = needs_of(job, &resolution, 2).unwrap();
    with(&AttemptContext { job, resolution: &resolution, cluster: &cluster, number: 1, needs: &needs, systems: &[] })
}

#[test]
fn only_the_coordinator_has_the_credentials() {
    let pods = with_bucket(&job("gpt", "m"), pods);
    for pod in &pods {
        let role = &pod.metadata.labels.as_ref().unwrap()[ROLE_LABEL];
        let agent = &pod.spec.as_ref().unwrap().containers[0];
        let is_coordinator = role == "coordinator";
        assert_eq!(agent.env_from.is_some(), is_coordinator, "{role}");
        let text = serde_json::to_string(pod).unwrap();
        assert_eq!(text.contains("s3.example.org"), is_coordinator, "{role}");
    }
    let agent = pod(&pods, "coordinator").spec.as_ref().unwrap().containers[0].clone();
    let secret = agent.env_from.unwrap()[0].secret_ref.clone().unwrap();
    assert_eq!((secret.name.as_str(), secret.optional), ("s3", None));
    let variables: BTreeMap<String, Option<String>> =
        agent.env.unwrap().into_iter().map(|variable| (variable.name, variable.value)).collect();
    for (name, value) in [
        ("MILLRACE_MODEL_DIR_BUCKET", "s3://runs/millrace/team/gpt"),
        ("AWS_ENDPOINT_URL", "https://s3.example.org:9000"),
        ("AWS_REGION", "eu-1"),
        ("SSL_CERT_FILE", "/etc/millrace/bucket/ca.crt"),
    ] {
        assert_eq!(variables[name].as_deref(), Some(value), "{name}");
    }
    assert_eq!(mounts(pod(&pods, "coordinator")).get("/etc/millrace/bucket"), Some(&false), "read-only");
}

#[test]
fn policy_of_the_bucket_is_for_the_coordinator() {
    let policy = with_bucket(&job("gpt", "m"), bucket_policy).unwrap();
    let agents = with_bucket(&job("gpt", "m"), network_policy);
    assert_ne!(policy.metadata.name, agents.metadata.name);
    let spec = policy.spec.unwrap();
    assert_eq!(spec.pod_selector.unwrap().match_labels.unwrap()[ROLE_LABEL], "coordinator");
    assert_eq!(spec.policy_types.unwrap(), ["Egress"]);
    assert_eq!(serde_json::to_value(spec.egress).unwrap(), json!([{"ports": [{"protocol": "TCP", "port": 9000}]}]));
    assert!(built(&job("gpt", "m"), bucket_policy).is_none());
}

#[test]
fn model_dir_on_a_volume_is_not_uploaded() {
    let job = job_with_claim();
    assert_eq!(resolve(&job, &cluster(), &site()).unwrap().model_dir_bucket, None);
}
