//! The chart on a real API server, without nodes: `charts/test` brings one. Nothing else may be installed there.

use serde_json::{Value, json};

use crate::rbac;
use crate::tools::{
    NAMESPACE, RELEASE, alone, appliance, chart, everything, find, get, helm, kubectl, root, run, template,
};

/// Every value but those whose kinds this API server does not have.
fn everything_here() -> Value {
    let mut values = everything();
    for kind in ["serviceMonitor", "podMonitor", "prometheusRule"] {
        values["monitoring"][kind]["enabled"] = json!(false);
    }
    values["rbac"]["aggregate"] = json!(true);
    values
}

/// One release for all that is tried on it: a cluster has no second one.
#[test]
#[ignore = "needs helm and an API server"]
fn from_install_to_uninstall() {
    let restricted = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    });
    kubectl(&["apply", "-f", "-"], &restricted).unwrap();
    let path = chart();
    let path = path.to_str().unwrap();
    helm(&["install", RELEASE, path], &json!({})).unwrap();
    let again = helm(&["install", "second", path], &json!({})).unwrap_err();
    assert!(again.contains("exists and cannot be imported"), "a cluster has one release: {again}");

    appliance_is_applied_without_status();
    rbac::operator_has_least_privilege();
    rbac::rest_server_has_least_privilege();
    rbac::rest_server_writes_only_text_config_maps();
    rbac::user_roles_grant_their_verbs();
    example_is_accepted();

    let history = get(&["--namespace", NAMESPACE, "persistentvolumeclaim/millrace-api"]);
    helm(&["upgrade", RELEASE, path], &everything_here()).unwrap();
    assert_eq!(get(&["--namespace", NAMESPACE, "deployment/millrace-operator"])["spec"]["replicas"], 2);
    pods_are_restricted();
    upgrade_updates_definitions(path);

    kubectl(&["delete", "trainjob.millrace.dev", "--all", "--namespace=default"], &Value::Null).unwrap();
    run("helm", &["uninstall", RELEASE, "--namespace", NAMESPACE], "").unwrap();
    get(&["customresourcedefinitions", "trainjobs.millrace.dev"]);
    let grants = &get(&["appliance.millrace.dev", "default"])["status"]["grants"];
    assert_eq!(grants[0]["uid"], "a", "the ledger outlives the release");
    helm(&["install", RELEASE, path], &json!({})).unwrap();
    let claim = get(&["--namespace", NAMESPACE, "persistentvolumeclaim/millrace-api"]);
    assert_eq!(claim["metadata"]["uid"], history["metadata"]["uid"], "history outlives the release");
}

/// As the operator does it, with its rights.
fn appliance_is_applied_without_status() {
    let apply = |document: &Value| {
        let arguments = [
            "apply",
            "--server-side",
            "--field-manager=millrace-chart",
            "--force-conflicts",
            "--as",
            &rbac::user("operator"),
            "--validate=strict",
            "-f",
            "-",
        ];
        kubectl(&arguments, document).unwrap();
    };
    kubectl(
        &["wait", "--for=condition=Established", "crd/appliances.millrace.dev", "crd/trainjobs.millrace.dev"],
        &Value::Null,
    )
    .unwrap();
    apply(&appliance(&template(&chart(), &everything()).1));
    let grant = json!({"status": {"grants": [{"uid": "a", "namespace": "default", "name": "a"}]}});
    let patch = ["patch", "appliance.millrace.dev/default", "--subresource=status", "--type=merge"];
    kubectl(&[&patch[..], &["--patch", &grant.to_string()]].concat(), &Value::Null).unwrap();
    apply(&appliance(&template(&chart(), &json!({})).1));
    let stored = get(&["appliance.millrace.dev", "default"]);
    assert_eq!(stored["spec"]["systems"], 16);
    assert!(
        stored["spec"]["wafer"].is_null(),
        "what is no longer in the values is no longer there: {}",
        stored["spec"]
    );
    assert_eq!(stored["status"]["grants"][0]["uid"], "a");
}

fn example_is_accepted() {
    let file = root().join("examples/trainjob.yaml");
    let apply = ["apply", "--namespace=default", "--validate=strict", "-f", file.to_str().unwrap()];
    kubectl(&apply, &Value::Null).unwrap();
}

/// The API server's own judgement: pods as the Deployments', in a namespace that enforces `restricted`.
fn pods_are_restricted() {
    for (values, name) in [
        (json!({}), "millrace-operator"),
        (everything_here(), "millrace-operator"),
        (alone(), "millrace-api"),
        (everything_here(), "millrace-api"),
    ] {
        let (_, documents) = template(&chart(), &values);
        let template = &find(&documents, "Deployment", name)["spec"]["template"];
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": template["metadata"]["labels"]},
            "spec": template["spec"],
        });
        let create = ["create", "--dry-run=server", "--validate=strict", "-f", "-"];
        kubectl(&create, &pod).unwrap();
        let mut loose = pod;
        loose["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = json!(true);
        let refused = kubectl(&create, &loose).unwrap_err();
        assert!(refused.contains("violates PodSecurity"), "{refused}");
    }
}

/// A definition of an older version is there, and objects of it: `helm upgrade` brings the new one.
fn upgrade_updates_definitions(path: &str) {
    let old = json!({"metadata": {"labels": {"helm.sh/chart": "millrace-0.0.0"}}, "spec": {"names": {"shortNames": ["old"]}}});
    let patch = ["patch", "crd/trainjobs.millrace.dev", "--type=merge", "--patch", &old.to_string()];
    let new = get(&["customresourcedefinitions", "trainjobs.millrace.dev"])["spec"]["names"]["shortNames"].clone();
    kubectl(&patch, &Value::Null).unwrap();
    helm(&["upgrade", RELEASE, path, "--force-conflicts"], &everything_here()).unwrap();
    let upgraded = get(&["customresourcedefinitions", "trainjobs.millrace.dev"]);
    assert_eq!(upgraded["spec"]["names"]["shortNames"], new);
    assert_eq!(upgraded["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    assert_eq!(get(&["--namespace=default", "trainjob.millrace.dev/gpt2-kjv"])["spec"]["numCsx"], 2);
}
