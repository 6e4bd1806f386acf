//! Tests of the sidecar that reads a Python dataset.

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::*;

/// Builds the pods of a job whose record has this image for its dataset, and this limit of memory.
fn pods_with_loader(image: Option<&str>, memory: Option<&str>) -> Vec<Pod> {
    let mut job = job_with_claim();
    if let Some(memory) = memory {
        let resources = serde_json::json!({"loader": {"limits": {"memory": memory}}});
        job.spec.resources = Some(serde_json::from_value(resources).unwrap());
    }
    let (resolution, needs) = resolved(&job);
    let resolution = ResolvedJob { loader_image: image.map(str::to_owned), ..resolution };
    let cluster = ApplianceSpec::default();
    pods(&AttemptContext {
        job: &job,
        resolution: &resolution,
        cluster: &cluster,
        number: 1,
        needs: &needs,
        systems: &[],
    })
}

fn loader(pods: &[Pod]) -> Container {
    let containers = pod(pods, "activation").spec.as_ref().unwrap().init_containers.clone().unwrap();
    <[Container; 1]>::try_from(containers).unwrap().into_iter().next().unwrap()
}

#[test]
fn only_activation_servers_have_the_sidecar() {
    let pods = pods_with_loader(Some("datasets:1"), None);
    for role in ["coordinator", "memoryx", "swarmx", "cs2"] {
        assert!(pod(&pods, role).spec.as_ref().unwrap().init_containers.is_none(), "{role}");
    }
    let agent = &pod(&pods, "activation").spec.as_ref().unwrap().containers[0];
    assert!(agent.args.as_ref().unwrap().contains(&"--loader_socket=/run/millrace/loader/socket".to_owned()));
    let without = pods_with_loader(None, None);
    let spec = pod(&without, "activation").spec.as_ref().unwrap();
    assert!(spec.init_containers.is_none());
    assert!(!spec.containers[0].args.as_ref().unwrap().iter().any(|argument| argument.contains("loader")));
}

#[test]
fn sidecar_has_no_credentials_and_reads_only() {
    let pods = pods_with_loader(Some("datasets:1"), None);
    let loader = loader(&pods);
    assert_eq!((loader.image.as_deref(), loader.restart_policy.as_deref()), (Some("datasets:1"), Some("Always")));
    let security = loader.security_context.unwrap();
    assert_eq!(security.read_only_root_filesystem, Some(true));
    assert_eq!(security.capabilities.unwrap().drop.unwrap(), ["ALL"]);
    let writable: BTreeMap<String, bool> = loader
        .volume_mounts
        .unwrap()
        .into_iter()
        .map(|mount| (mount.mount_path, mount.read_only != Some(true)))
        .collect();
    let expected = [("/results", false), ("/run/millrace/loader", false), ("/tmp", true)];
    assert_eq!(writable, expected.map(|(path, writable)| (path.to_owned(), writable)).into());
    assert!(mounts(pod(&pods, "activation"))["/run/millrace/loader"], "the agent writes socket and program");
    let variables: Vec<String> = loader.env.unwrap().into_iter().map(|variable| variable.name).collect();
    assert_eq!(variables, ["HOME"]);
    assert!(loader.command.unwrap().iter().any(|argument| argument.contains("isolated-host")));
}

#[test]
fn limits_of_the_sidecar_are_those_of_the_job() {
    let memory = |pods: &[Pod]| loader(pods).resources.unwrap().limits.unwrap()["memory"].clone();
    assert_eq!(memory(&pods_with_loader(Some("datasets:1"), None)), Quantity("4Gi".to_owned()));
    assert_eq!(memory(&pods_with_loader(Some("datasets:1"), Some("7Gi"))), Quantity("7Gi".to_owned()));
}
